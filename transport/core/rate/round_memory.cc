#include "transport/core/rate/round_memory.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace longhaul::transport {

void RoundMemory::Excursion::Add(double deviation, uint64_t number) {
  const double next = std::max(0.0, sum + deviation - kSlack);
  if (sum == 0) since = number;
  sum = next;
}

void RoundMemory::Add(RatePhase phase, RememberedRound round, const std::optional<PathHinge>& hinge) {
  LH_CHECK(round.sent > 0 && round.packets > 0);
  LH_CHECK(round.loss >= 0 && round.loss <= 1);
  round.number = next_number_++;
  if (round.number > kMaxAge) ForgetBefore(round.number - kMaxAge);
  std::vector<RememberedRound>& rounds = rounds_[static_cast<size_t>(phase)];
  if (rounds.size() == kRoundsPerPhase) rounds.erase(rounds.begin());
  rounds.push_back(round);
  LH_CHECK_OP(rounds.size(), <=, kRoundsPerPhase);
  if (!hinge) {
    watch_ = {};
    return;
  }
  Watch& watch = watch_[static_cast<size_t>(phase)];
  const double model_error = round.sent <= hinge->capacity ? hinge->floor_error : hinge->capacity_error;
  const double deviation =
      std::sqrt(hinge->noise / round.packets + kTimingError * kTimingError + model_error * model_error);
  const double z =
      std::clamp((round.yield - hinge->Yield(round.sent)) / deviation, -kMaxDeviations, kMaxDeviations);
  watch.more.Add(z, round.number);
  watch.less.Add(-z, round.number);
  for (const Excursion& side : {watch.more, watch.less}) {
    if (side.sum < kAlarm) continue;
    ++changes_;
    ForgetBefore(side.since);
    watch_ = {};
    return;
  }
}

void RoundMemory::ForgetBefore(uint64_t number) {
  for (std::vector<RememberedRound>& rounds : rounds_) {
    std::erase_if(rounds, [number](const RememberedRound& r) { return r.number < number; });
  }
}

bool RoundMemory::InDoubt() const {
  return std::ranges::any_of(watch_,
                             [](const Watch& w) { return std::max(w.more.sum, w.less.sum) > kAlarm / 3; });
}

void RoundMemory::Clear() {
  for (std::vector<RememberedRound>& rounds : rounds_) rounds.clear();
  watch_ = {};
}

}  // namespace longhaul::transport
