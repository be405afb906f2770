// A file descriptor that becomes readable at an instant of the clock.
#pragma once

#include "base/instant.h"
#include "longhaul/status.h"
#include "transport/udp/file_descriptor.h"

namespace longhaul::udp {

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
