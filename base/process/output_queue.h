// Lines on their way to a descriptor that may take its time: a pipe that is not read, a stopped terminal, a
// slow disk.
//
//   Write (any thread)  ->  queue, at most kMaxBytes  ->  a thread of its own  ->  write(2)
//
// Write never waits. When the queue is full its oldest lines go; the line of `notice` then stands in the
// output where they are missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "longhaul/units.h"

namespace longhaul::process {

class OutputQueue {
 public:
  static constexpr size_t kMaxBytes = size_t{1} << 20;
  // The line that tells of dropped ones, without its end.
  using Notice = std::function<std::string(uint64_t lines)>;

  // `fd` must stay open; it is not closed. Starts a thread: block the signals that it must not get before.
  OutputQueue(int fd, Notice notice);
  // Does not wait: what was not flushed is lost. A write(2) that blocks ends with the process.
  ~OutputQueue();
  OutputQueue(const OutputQueue&) = delete;
  OutputQueue& operator=(const OutputQueue&) = delete;

  // Appends `line` and the end of a line. Any thread.
  void Write(std::string line);
  // Waits for at most `limit` until all lines are written or have failed; false: some are not.
  bool Flush(Duration limit);
  // Lines that were dropped, by a full queue or by a write that failed, so far.
  uint64_t dropped() const;
  // The system's words about the latest write that failed; empty: none did.
  std::string error() const;

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;  // also the thread's, which may outlive the queue
};

}  // namespace longhaul::process
