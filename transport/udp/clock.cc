#include "transport/udp/clock.h"

#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <random>
#include <string>

namespace longhaul::udp {

Instant Now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // the clock of DeadlineTimer; cannot fail with these arguments
  return Instant::FromNanoseconds(int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec);
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
