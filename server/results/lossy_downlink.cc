#include "server/results/lossy_downlink.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "codec/policy/state_hash.h"

namespace longhaul::server {
namespace {

// Squared norm of the difference.
double Change(std::span<const float> before, std::span<const float> after) {
  double sum = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const double difference = static_cast<double>(after[i]) - static_cast<double>(before[i]);
    sum += difference * difference;
  }
  return sum;
}

}  // namespace

LossyDownlink::LossyDownlink(const codec::ChunkGeometry& results, const Options& options)
    : results_(results),
      hash_rounds_(options.hash_rounds),
      classifier_(results, {.high_share = options.high_share, .high_energy = options.high_energy}),
      change_(results.chunks(), 0.0),
      high_(results.chunks(), true),
      hashes_(results.chunks()),
      hashes_before_(results.chunks()) {
  LH_CHECK_OP(hash_rounds_, >=, 1u);
}

void LossyDownlink::BeginRound(uint64_t round) {
  if (std::exchange(begun_, true)) {
    high_.assign(high_.size(), false);
    for (const uint32_t chunk : classifier_.ClassifyEnergies(change_, round).high) high_[chunk] = true;
  }
  std::fill(change_.begin(), change_.end(), 0.0);
  round_ = round;
  if (hash_rounds_ > 1 && codec::IsHashRound(round + 1, hash_rounds_)) hashed_round_ = round;
}

void LossyDownlink::ChangedBy(uint32_t chunk, std::span<const float> before, std::span<const float> after) {
  change_[chunk] = Change(before, after);
  if (hashed_round_ != round_) return;
  hashes_before_[chunk] = codec::StateHash(before);
  hashes_[chunk] = codec::StateHash(after);
}

std::optional<uint32_t> LossyDownlink::ReplicaHash(uint32_t rank, uint64_t round) const {
  const auto known = workers_.find(rank);
  if (known == workers_.end() || known->second.round != round || hashed_round_ != round) return std::nullopt;
  std::vector<uint32_t> hashes = hashes_;
  for (uint32_t chunk = 0; chunk < hashes.size(); ++chunk) {
    if (known->second.missed.Test(chunk)) hashes[chunk] = hashes_before_[chunk];
  }
  return codec::HashOfHashes(hashes);
}

transport::ChunkBitmap LossyDownlink::Low(uint32_t rank, uint64_t round) const {
  transport::ChunkBitmap low(results_.chunks());
  const auto known = workers_.find(rank);
  const bool has_previous = known != workers_.end() && known->second.round + 1 == round;
  if (!has_previous || codec::IsHashRound(round, hash_rounds_)) return low;
  for (uint32_t chunk = 0; chunk < results_.chunks(); ++chunk) {
    if (!high_[chunk] && !known->second.missed.Test(chunk)) low.Set(chunk);
  }
  return low;
}

void LossyDownlink::OnReceipt(uint32_t rank, uint64_t round, transport::ChunkBitmap missed) {
  LH_CHECK_OP(missed.size(), ==, results_.chunks());
  stats_.lost += missed.count();
  const auto known = workers_.find(rank);
  if (known != workers_.end() && known->second.round >= round) {
    stats_.repaid += missed.count();  // by the newer result, of which the receipt was here first
    return;
  }
  if (known != workers_.end()) {
    const transport::ChunkBitmap& before = known->second.missed;
    for (uint32_t chunk = 0; chunk < before.size(); ++chunk) {
      if (before.Test(chunk) && !missed.Test(chunk)) ++stats_.repaid;
    }
  }
  workers_[rank] = {round, std::move(missed)};
}

}  // namespace longhaul::server
