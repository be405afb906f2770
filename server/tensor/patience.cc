#include "server/tensor/patience.h"

#include <algorithm>
#include <utility>

#include "server/tensor/stragglers.h"

namespace longhaul::server {

void Patience::OnTurn(uint32_t rank, Duration taken) {
  if (turns_.empty()) return;
  stale_ = true;
  Turns& turns = turns_[rank];
  const Duration off = taken > turns.mean ? taken - turns.mean : turns.mean - taken;
  if (turns.count++ == 0) {
    turns.mean = taken;
    turns.deviation = taken / 2;
  } else {
    turns.deviation += (off - turns.deviation) / 4;
    turns.mean += (taken - turns.mean) / 8;
  }
  turns.longest = std::max(taken, turns.longest - turns.longest / 128);
}

const std::optional<Duration>& Patience::Usual() const {
  if (!std::exchange(stale_, false)) return usual_;
  usual_.reset();
  std::vector<Duration> usual;
  for (const Turns& turns : turns_) {
    if (turns.count >= kEnough) usual.push_back(turns.mean + 4 * turns.deviation);
  }
  if (usual.empty() || usual.size() * 2 < turns_.size()) return usual_;
  const auto middle = usual.begin() + static_cast<std::ptrdiff_t>((usual.size() - 1) / 2);
  std::nth_element(usual.begin(), middle, usual.end());
  return usual_ = *middle;
}

Duration Patience::Scaled(Duration time) const { return Times(time, factor_); }

Instant Patience::Deadline(uint32_t rank, Instant turn, Instant begin, uint64_t model_bytes) const {
  if (turns_.empty()) return Instant::Infinite();
  const std::optional<Duration>& usual = Usual();
  if (!usual) {
    const Duration transfer = kSlowest.TransferTime(ByteCount(static_cast<int64_t>(model_bytes)));
    return begin + std::max(kStart * idle_, Scaled(begin - turn)) + transfer;
  }
  const Duration own = std::min(Scaled(turns_[rank].longest), *usual + kStart * idle_);
  return std::max({begin + kLeast * idle_, turn + Scaled(*usual), turn + own});
}

}  // namespace longhaul::server
