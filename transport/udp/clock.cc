#include "transport/udp/clock.h"

#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <random>
#include <string>

namespace longhaul::udp {

namespace {

int64_t ReadClock(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);  // cannot fail with these arguments
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

Instant Now() { return Instant::FromNanoseconds(ReadClock(CLOCK_MONOTONIC)); }  // the clock of DeadlineTimer

Duration ThreadCpuTime() { return Duration(ReadClock(CLOCK_THREAD_CPUTIME_ID)); }

void StampClock::Read() {
  // In this order, a thread that stands still in between makes datagrams younger, never older.
  const int64_t realtime_ns = ReadClock(CLOCK_REALTIME);
  Set(Now(), realtime_ns);
}

void StampClock::Set(Instant now, int64_t realtime_ns) {
  const int64_t distance_ns = realtime_ns - now.nanoseconds();
  const int64_t shift_ns = distance_ns - distance_ns_;
  steady_ = -kMaxShift.count() <= shift_ns && shift_ns <= kMaxShift.count();
  now_ = now;
  realtime_ns_ = realtime_ns;
  distance_ns_ = distance_ns;
}

Instant StampClock::At(int64_t realtime_ns) const {
  if (!steady_) return Instant::Infinite();
  return now_ - std::clamp<Duration>(Duration(realtime_ns_ - realtime_ns), Duration::zero(), kOldest);
}

uint64_t EntropySeed() {
  std::random_device device;
  return uint64_t{device()} << 32 ^ device();
}

Result<DeadlineTimer> DeadlineTimer::Create() {
  FileDescriptor fd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!fd.valid()) {
    return Status(StatusCode::kInternal, std::string("timerfd_create failed: ") + std::strerror(errno));
  }
  return DeadlineTimer(std::move(fd));
}

void DeadlineTimer::Arm(Instant deadline) {
  if (deadline == deadline_) return;
  deadline_ = deadline;
  itimerspec when{};  // all zero disarms
  if (!deadline.IsInfinite()) {
    const int64_t ns = std::max<int64_t>(1, deadline.nanoseconds());
    when.it_value.tv_sec = ns / 1'000'000'000;
    when.it_value.tv_nsec = ns % 1'000'000'000;
  }
  ::timerfd_settime(fd_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

void DeadlineTimer::Acknowledge() {
  uint64_t expirations = 0;
  // Nothing to read: it was armed anew after it had fired. Then the new deadline stands.
  if (::read(fd_.get(), &expirations, sizeof expirations) > 0) deadline_ = Instant::Infinite();
}

}  // namespace longhaul::udp
