#include "server/stragglers.h"

#include <algorithm>

namespace longhaul::server {

void Stragglers::OnHighDone(uint32_t rank, Duration since_begin) {
  if (!since_begin_.empty()) since_begin_[rank].Add(since_begin);
}

std::optional<Duration> Stragglers::Usual() const {
  std::vector<Duration> usual;
  for (const CloseTimes& times : since_begin_) {
    if (const auto soft = times.Soft()) usual.push_back(*soft);
  }
  if (usual.empty() || usual.size() * 2 < since_begin_.size()) return std::nullopt;
  // The lower one of two: a slow half must not decide what is usual.
  const auto middle = usual.begin() + static_cast<std::ptrdiff_t>((usual.size() - 1) / 2);
  std::nth_element(usual.begin(), middle, usual.end());
  return *middle;
}

Instant Stragglers::Deadline(Instant begin, Duration rtt, uint32_t done, uint32_t members) const {
  const Instant bound = bound_ > Duration(0) ? begin + bound_ : Instant::Infinite();
  if (factor_ <= 0 || done == 0 || done * 2 < members) return bound;
  const auto usual = Usual();
  if (!usual) return bound;
  const auto scaled = Duration(static_cast<int64_t>(static_cast<double>(usual->count()) * factor_));
  return std::min(bound, begin + std::max({scaled, *usual + 2 * rtt, *usual + kGrace}));
}

}  // namespace longhaul::server
