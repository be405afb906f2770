#include "transport/udp/clock.h"

#include <ctime>

namespace longhaul::udp {

Instant Now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // the clock of DeadlineTimer; cannot fail with these arguments
  return Instant::FromNanoseconds(int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec);
}

}  // namespace longhaul::udp
