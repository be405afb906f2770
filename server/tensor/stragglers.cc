#include "server/tensor/stragglers.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/reached.h"

namespace longhaul::server {
namespace {

// The upper one of an even number.
Duration Median(std::span<Duration> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Duration Times(Duration time, double factor) {
  constexpr Duration kMost = std::chrono::hours(24 * 365);
  const double product = static_cast<double>(time.count()) * factor;
  return product < static_cast<double>(kMost.count()) ? Duration(static_cast<int64_t>(product)) : kMost;
}

void CloseTimes::Add(Duration taken) {
  LH_CHECK(taken >= Duration(0));
  times_[next_] = taken;
  next_ = (next_ + 1) % kMemory;
  count_ = std::min(count_ + 1, kMemory);
}

Duration CloseTimes::Median() const {
  LH_CHECK(count_ > 0);
  std::array<Duration, kMemory> values = times_;
  return server::Median(std::span<Duration>(values.data(), count_));
}

std::optional<Duration> CloseTimes::Soft() const {
  if (count_ < kEnough) return std::nullopt;
  std::array<Duration, kMemory> values = times_;
  const std::span<Duration> used(values.data(), count_);
  const Duration median = server::Median(used);
  for (Duration& value : used) value = value > median ? value - median : median - value;
  // Without a floor a worker that is always equally fast would be cut off by the first jitter.
  const Duration spread =
      std::max({server::Median(used), median / 16, Duration(std::chrono::milliseconds(1))});
  return median + 3 * spread;
}

void Stragglers::OnHighDone(uint32_t rank, Duration since_begin) {
  if (since_begin_.empty()) return;
  since_begin_[rank].Add(since_begin);
  soft_[rank] = since_begin_[rank].Soft();
  stale_ = true;
  grace_of_ = 0;
}

const std::optional<Duration>& Stragglers::Usual() const {
  if (!std::exchange(stale_, false)) return usual_;
  usual_.reset();
  std::vector<Duration> usual;
  for (const auto& soft : soft_) {
    if (soft) usual.push_back(*soft);
  }
  if (usual.empty() || usual.size() * 2 < since_begin_.size()) return usual_;
  // The lower one of two: a slow half must not decide what is usual.
  const auto middle = usual.begin() + static_cast<std::ptrdiff_t>((usual.size() - 1) / 2);
  std::nth_element(usual.begin(), middle, usual.end());
  return usual_ = *middle;
}

Instant Stragglers::Deadline(Instant begin, Duration rtt, uint32_t done, uint32_t members) const {
  const Instant bound = bound_ > Duration(0) ? begin + bound_ : Instant::Infinite();
  if (factor_ <= 0 || done == 0 || done * 2 < members) return bound;
  const auto& usual = Usual();
  if (!usual) return bound;
  const Duration scaled = Times(*usual, factor_);
  LH_REACHED("a learned deadline for stragglers");
  return std::min(bound, begin + std::max({scaled, *usual + 2 * rtt, *usual + kGrace}));
}

Duration Stragglers::Grace(uint32_t quorum, Duration took) const {
  LH_CHECK_OP(quorum, >=, 1u);
  if (std::exchange(grace_of_, quorum) != quorum) grace_ = LearnedGrace(quorum);
  return std::max(grace_.value_or(took), kGrace);
}

std::optional<Duration> Stragglers::LearnedGrace(uint32_t quorum) const {
  std::vector<Duration> usual;
  Duration fastest = Duration::max();
  for (size_t rank = 0; rank < soft_.size(); ++rank) {
    if (!soft_[rank]) continue;
    usual.push_back(*soft_[rank]);
    fastest = std::min(fastest, since_begin_[rank].Median());
  }
  if (usual.size() < quorum) return std::nullopt;
  LH_REACHED("a learned grace after a quorum");
  const auto last = usual.begin() + static_cast<std::ptrdiff_t>(quorum - 1);
  std::nth_element(usual.begin(), last, usual.end());
  return *last - fastest;
}

}  // namespace longhaul::server
