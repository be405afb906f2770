#include "server/results/lossy_downlink.h"

#include <algorithm>
#include <array>
#include <bit>
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
      change_(results.chunks()),
      scored_(results.chunks()),
      high_(results.chunks()),
      hashes_(results.chunks()),
      hashes_before_(results.chunks()) {
  LH_CHECK_OP(hash_rounds_, >=, 1u);
  high_.SetAll();
}

void LossyDownlink::BeginRound(uint64_t round) {
  if (!ranked_) {  // a whole round has gone by since
    WorkBudget everything = WorkBudget::Everything();
    (void)Rank(everything);
  }
  if (std::exchange(begun_, true)) {
    std::swap(change_, scored_);  // which are all zero
    classifier_.Begin(round);
    next_scored_ = 0;
    ranked_ = false;
  }
  round_ = round;
  if (hash_rounds_ > 1 && codec::IsHashRound(round + 1, hash_rounds_)) hashed_round_ = round;
}

bool LossyDownlink::Rank(WorkBudget& budget) {
  if (ranked_) return true;
  for (; next_scored_ < scored_.size(); ++next_scored_) {
    if (budget.spent()) return false;
    (void)classifier_.Score(next_scored_, std::exchange(scored_[next_scored_], 0.0));
    budget.Spend(WorkBudget::kPerRankedChunk);
  }
  constexpr uint32_t kStep = 4096;
  for (bool done = false; !done;) {
    if (budget.spent()) return false;
    done = classifier_.Rank(kStep);
    budget.Spend(uint64_t{WorkBudget::kPerRankedChunk} * std::min(kStep, results_.chunks()));
  }
  high_ = transport::ChunkBitmap(results_.chunks());
  for (const uint32_t chunk : classifier_.Take().high) high_.Set(chunk);
  return ranked_ = true;
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
  const transport::ChunkBitmap& missed = known->second.missed;
  std::array<uint32_t, 1024> part;
  uint32_t hash = 0;
  for (uint32_t first = 0; first < results_.chunks(); first += part.size()) {
    const uint32_t count = std::min<uint32_t>(part.size(), results_.chunks() - first);
    for (uint32_t i = 0; i < count; ++i)
      part[i] = missed.Test(first + i) ? hashes_before_[first + i] : hashes_[first + i];
    hash = codec::HashOfHashes(std::span(part).first(count), hash);
  }
  return hash;
}

transport::ChunkBitmap LossyDownlink::Low(uint32_t rank, uint64_t round) const {
  const auto known = workers_.find(rank);
  const bool has_previous = known != workers_.end() && known->second.round + 1 == round;
  if (!has_previous || codec::IsHashRound(round, hash_rounds_))
    return transport::ChunkBitmap(results_.chunks());
  // Neither high nor missed; a byte at a time.
  std::vector<uint8_t> low = high_.bytes();
  const std::vector<uint8_t>& missed = known->second.missed.bytes();
  for (size_t i = 0; i < low.size(); ++i) low[i] = static_cast<uint8_t>(~(low[i] | missed[i]));
  if (results_.chunks() % 8 != 0)
    low.back() = static_cast<uint8_t>(low.back() & ((1u << results_.chunks() % 8) - 1));
  return {results_.chunks(), std::move(low)};
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
    const std::vector<uint8_t>& before = known->second.missed.bytes();
    for (size_t i = 0; i < before.size(); ++i)
      stats_.repaid +=
          static_cast<uint64_t>(std::popcount(static_cast<uint8_t>(before[i] & ~missed.bytes()[i])));
  }
  workers_[rank] = {round, std::move(missed)};
}

}  // namespace longhaul::server
