// What stands behind the handle of an operation, and who ends it.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/user_calls.h"
#include "longhaul/client.h"

namespace longhaul::internal {

// What all handles of one operation share.
struct OperationState {
  explicit OperationState(std::shared_ptr<UserCalls> the_calls) : calls(std::move(the_calls)) {}
  // One that has ended.
  explicit OperationState(Status why) : ended(true), done(true), outcome(std::move(why)) {}

  // The first call counts, later ones do nothing.
  void Complete(const Status& status, const OperationStats& final_stats);
  // A callback sees its own operation done. REQUIRES: the mutex is held.
  bool Done() const { return done || (ended && completing == std::this_thread::get_id()); }

  const std::shared_ptr<UserCalls> calls;  // null: it has ended
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;  // outcome and stats are fixed
  bool done = false;   // and the callbacks have run
  std::thread::id completing;
  Status outcome;
  OperationStats stats;
  std::vector<std::function<void(const Status&)>> callbacks;
};

// Operations that have begun and not ended: Leave waits for them.
struct Outstanding {
  std::mutex mutex;
  std::condition_variable changed;
  size_t count = 0;
  // The outcome of operations that get no other. Short: where memory has run out, no string is allocated.
  Status gone = {StatusCode::kResourceExhausted, "out of memory"};

  Status Gone() {
    const std::lock_guard lock(mutex);
    return gone;
  }
  void SetGone(const Status& why) {
    const std::lock_guard lock(mutex);
    gone = why;
  }
  void Add() {
    const std::lock_guard lock(mutex);
    ++count;
  }
  void Remove() {
    const std::lock_guard lock(mutex);
    --count;
    changed.notify_all();
  }
};

// Completes the operation; its destructor completes it with Outstanding::gone.
class Completion {
 public:
  Completion(std::shared_ptr<OperationState> state, std::shared_ptr<Outstanding> outstanding)
      : state_(std::move(state)), outstanding_(std::move(outstanding)) {
    outstanding_->Add();
  }
  ~Completion() {
    End(outstanding_->Gone(), {});
    outstanding_->Remove();
  }
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  void End(const Status& outcome, const OperationStats& stats) { state_->Complete(outcome, stats); }

 private:
  std::shared_ptr<OperationState> state_;
  std::shared_ptr<Outstanding> outstanding_;
};

}  // namespace longhaul::internal
