#include "server/tensor/patience.h"

#include <algorithm>

namespace longhaul::server {

void Patience::OnTurn(uint32_t rank, Duration taken) {
  if (turns_.empty()) return;
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

std::optional<Duration> Patience::Usual() const {
  std::vector<Duration> usual;
  for (const Turns& turns : turns_) {
    if (turns.count >= kEnough) usual.push_back(turns.mean + 4 * turns.deviation);
  }
  if (usual.empty() || usual.size() * 2 < turns_.size()) return std::nullopt;
  const auto middle = usual.begin() + static_cast<std::ptrdiff_t>((usual.size() - 1) / 2);
  std::nth_element(usual.begin(), middle, usual.end());
  return *middle;
}

Duration Patience::Scaled(Duration time) const {
  return Duration(static_cast<int64_t>(static_cast<double>(time.count()) * factor_));
}

Instant Patience::Deadline(uint32_t rank, Instant turn, Instant begin, uint64_t model_bytes) const {
  if (turns_.empty()) return Instant::Infinite();
  const std::optional<Duration> usual = Usual();
  if (!usual) {
    const Duration transfer = kSlowest.TransferTime(ByteCount(static_cast<int64_t>(model_bytes)));
    return begin + std::max(kStart * idle_, Scaled(begin - turn)) + transfer;
  }
  const Duration own = std::min(Scaled(turns_[rank].longest), *usual + kStart * idle_);
  return std::max({begin + kLeast * idle_, turn + Scaled(*usual), turn + own});
}

}  // namespace longhaul::server
