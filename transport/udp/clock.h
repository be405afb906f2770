// Time and chance of the operating system: everything below this folder is handed both as arguments.
#pragma once

#include "base/files.h"
#include "base/instant.h"
#include "longhaul/status.h"

namespace longhaul::udp {

// Nanoseconds of CLOCK_MONOTONIC. Never goes back; any thread.
Instant Now();

// A seed that differs from run to run, so that connection IDs do, whatever seed the job has. Any thread.
uint64_t EntropySeed();

// A file descriptor that becomes readable at an instant of the clock.
// Not thread-safe. Move-only.
class DeadlineTimer {
 public:
  static Result<DeadlineTimer> Create();

  // Readable from `deadline` on; Infinite() disarms. Costs a system call only when the deadline changes.
  void Arm(Instant deadline);
  // Takes the readiness away after it was seen.
  void Acknowledge();

  Instant deadline() const { return deadline_; }
  int fd() const { return fd_.get(); }

 private:
  explicit DeadlineTimer(FileDescriptor fd) : fd_(std::move(fd)) {}

  FileDescriptor fd_;
  Instant deadline_ = Instant::Infinite();
};

}  // namespace longhaul::udp
