// Time and chance of the operating system: everything below this folder is handed both as arguments.
#pragma once

#include "base/files.h"
#include "base/instant.h"
#include "longhaul/status.h"

namespace longhaul::udp {

// Nanoseconds of CLOCK_MONOTONIC. Never goes back; any thread.
Instant Now();

// CPU time of the calling thread, since it began. A system call.
Duration ThreadCpuTime();

// A seed that differs from run to run, so that connection IDs do, whatever seed the job has. Any thread.
uint64_t EntropySeed();

// Turns the times at which the kernel took datagrams in (CLOCK_REALTIME) into instants of Now(). That clock
// may be set at any moment; a time stamp is believed only while the distance of the two clocks stays as it
// was.
// Not thread-safe.
class StampClock {
 public:
  // What has waited longer has waited for so long: the sender has given it up by then.
  static constexpr Duration kOldest = std::chrono::seconds(1);
  // Both clocks run at one speed, so what moves their distance is a jump, or this thread's standing still
  // between two calls.
  static constexpr Duration kMaxShift = std::chrono::milliseconds(1);

  StampClock() { Read(); }
  // To be called for each batch, after it was received and before At().
  void Read();
  // As Read(), with what the clocks say.
  void Set(Instant now, int64_t realtime_ns);
  // Not after the latest reading; Infinite() when the clock was set since the one before.
  Instant At(int64_t realtime_ns) const;

 private:
  Instant now_;
  int64_t realtime_ns_ = 0;
  int64_t distance_ns_ = 0;
  bool steady_ = false;
};

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
