#include "server/report/round_log.h"

#include <algorithm>
#include <utility>

#include "base/quantile.h"

namespace longhaul::server {

std::vector<JobRound> RoundLog::Add(const TensorRound& round, size_t tensors, Instant now) {
  std::vector<JobRound> over;
  if (open_.tensors.contains(round.tensor)) over.push_back(Finish());
  open_.tensors.insert(round.tensor);
  JobRound& sum = open_.sum;
  sum.contributors = std::max(sum.contributors, round.contributors);
  sum.last_rank = round.last_rank;
  sum.repaired_chunks += round.tally.repaired_chunks;
  sum.filled_chunks += round.tally.filled_chunks;
  sum.lost_chunks += round.tally.lost_chunks;
  sum.rejected_chunks += round.tally.rejected_chunks;
  sum.tolerated_chunks += round.tally.tolerated_chunks;
  sum.excluded += round.tally.excluded;
  sum.fill_reason = std::max(sum.fill_reason, round.tally.fill_reason);
  sum.low_chunks += round.tally.low_chunks;
  sum.low_lost += round.tally.low_lost;
  for (size_t i = 0; i < sum.closed.size(); ++i) sum.closed[i] += round.tally.closed[i];
  open_.begun = std::min(open_.begun, round.begun);
  open_.end = now;
  if (open_.tensors.size() >= tensors) over.push_back(Finish());
  return over;
}

std::optional<JobRound> RoundLog::Flush() {
  if (open_.tensors.empty()) return std::nullopt;
  return Finish();
}

JobRound RoundLog::Finish() {
  const Open open = std::exchange(open_, Open());
  JobRound round = open.sum;
  round.round = rounds_;
  round.tensors = static_cast<uint32_t>(open.tensors.size());
  round.duration = open.end - open.begun;
  round.interval = open.end - previous_end_;
  round.loss = round.low_chunks == 0 ? 0.0 : static_cast<double>(round.low_lost) / round.low_chunks;
  previous_end_ = open.end;
  low_chunks_ += round.low_chunks;
  low_lost_ += round.low_lost;
  if (history_.size() < kMaxHistory) {
    history_.push_back(round.duration);
  } else {
    history_[rounds_ % kMaxHistory] = round.duration;
  }
  ++rounds_;
  return round;
}

Duration RoundLog::Percentile(double p) const { return Quantile(history_, p); }

}  // namespace longhaul::server
