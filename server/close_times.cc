#include "server/close_times.h"

#include <algorithm>
#include <chrono>
#include <span>

#include "base/check.h"

namespace longhaul::server {
namespace {

// The upper one of an even number.
Duration Median(std::span<Duration> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

void CloseTimes::Add(Duration taken) {
  LH_CHECK(taken >= Duration(0));
  times_[next_] = taken;
  next_ = (next_ + 1) % kMemory;
  count_ = std::min(count_ + 1, kMemory);
}

std::optional<Duration> CloseTimes::Soft() const {
  if (count_ < kEnough) return std::nullopt;
  std::array<Duration, kMemory> values = times_;
  const std::span<Duration> used(values.data(), count_);
  const Duration median = Median(used);
  for (Duration& value : used) value = value > median ? value - median : median - value;
  // Without a floor a worker that is always equally fast would be cut off by the first jitter.
  const Duration spread = std::max({Median(used), median / 16, Duration(std::chrono::milliseconds(1))});
  return median + 3 * spread;
}

}  // namespace longhaul::server
