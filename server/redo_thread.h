// Writes the round log in a thread of its own: what has come while the disk was busy goes with one sync.
//
// The server's thread calls everything but the constructor; images go back to it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "longhaul/status.h"
#include "server/store/redo_log.h"

namespace longhaul::server {

class RedoThread {
 public:
  RedoThread(store::RedoLog log, store::RedoLog::About about);
  // Waits for the write in progress.
  ~RedoThread();

  // wake: called in the thread when more is written. kInternal: there is no thread.
  Status Start(std::function<void()> wake);
  // These return the entry's number, which counts from 1.
  uint64_t Begin(const ResumedJob& run, bool goes_on) { return Add({.begin = std::pair(run, goes_on)}); }
  uint64_t Append(store::RedoLog::Image image) { return Add({.image = std::move(image)}); }
  uint64_t End() { return Add({}); }
  // wake is not called any more.
  void Quiet();
  // What has been written since the last call is logged from now on. The errors since then.
  std::vector<Status> TakeErrors();
  uint64_t logged() const { return logged_; }
  uint64_t states() const { return states_; }  // of tensors, of what is logged
  uint64_t failed() const { return failed_; }
  bool failing() const { return failing_; }  // the last write

 private:
  struct Shared;
  uint64_t Add(store::RedoLog::Entry entry);

  std::shared_ptr<Shared> shared_;
  uint64_t appended_ = 0;
  uint64_t logged_ = 0;
  uint64_t states_ = 0;
  uint64_t failed_ = 0;
  bool failing_ = false;
  std::thread thread_;
};

}  // namespace longhaul::server
