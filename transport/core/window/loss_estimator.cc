#include "transport/core/window/loss_estimator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace longhaul::transport {

uint64_t LossEstimator::OnSent() {
  // Half of the ring stays for the past.
  if (sent_ - known_ >= fates_.size() / 2) Grow();
  At(sent_) = Fate::kUnknown;
  return sent_++;
}

void LossEstimator::Grow() {
  if (fates_.size() == kMaxMemory) {
    ++abandoned_;
    SetFate(known_, Fate::kArrived);
    return;
  }
  std::vector<Fate> larger(std::max(kMinMemory, 2 * fates_.size()), Fate::kArrived);
  const uint64_t first = sent_ - std::min<uint64_t>(sent_, fates_.size());
  for (uint64_t place = first; place < sent_; ++place) larger[place & (larger.size() - 1)] = At(place);
  fates_ = std::move(larger);
}

void LossEstimator::OnAcked(uint64_t place) { SetFate(place, Fate::kArrived); }
void LossEstimator::OnLost(uint64_t place) { SetFate(place, Fate::kLost); }

void LossEstimator::SetFate(uint64_t place, Fate fate) {
  LH_CHECK_OP(place, <, sent_);
  if (place < known_ || At(place) != Fate::kUnknown) return;
  At(place) = fate;
  Advance();
}

void LossEstimator::Advance() {
  for (; known_ < sent_ && At(known_) != Fate::kUnknown; ++known_) {
    if (At(known_) == Fate::kLost) {
      ++open_lost_;
      ++lost_;
      if (known_ == 0 || !WasLost(known_ - 1)) ++runs_;
    }
    if ((known_ + 1) % kGroup == 0) CloseGroup();
  }
}

void LossEstimator::CloseGroup() {
  const double lost = open_lost_;
  for (const auto& [sums, weight] : {std::pair(&fast_, kFastWeight), std::pair(&slow_, kSlowWeight)}) {
    sums->s0 = sums->s0 * (1 - weight) + kGroup;
    sums->s1 = sums->s1 * (1 - weight) + lost;
    sums->n2 = sums->n2 * (1 - weight) + kGroup * (kGroup - 1);
    sums->s2 = sums->s2 * (1 - weight) + lost * (lost - 1);
  }
  lost_ *= 1 - kSlowWeight;
  runs_ *= 1 - kSlowWeight;
  open_lost_ = 0;
  ++groups_;
}

void LossEstimator::OnSpurious(uint64_t place) {
  if (!WasLost(place)) return;
  At(place) = Fate::kArrived;
  if (place >= known_) return;  // not counted yet
  const uint64_t group = place / kGroup;
  const double age = group < groups_ ? static_cast<double>(groups_ - 1 - group) : 0;
  const double faded = std::pow(1 - kSlowWeight, static_cast<double>(groups_ - std::min(group, groups_)));
  lost_ = std::max(0.0, lost_ - faded);
  // Alone it was a run; between two others it held one together.
  const bool before = place > 0 && WasLost(place - 1);
  const bool after = place + 1 < known_ && WasLost(place + 1);
  runs_ = std::max(0.0, runs_ + faded * ((before ? 1 : 0) + (after ? 1 : 0) - 1));
  if (group == groups_) {
    --open_lost_;
    return;
  }
  double others = 0;
  for (uint64_t other = group * kGroup; other < (group + 1) * kGroup; ++other)
    others += WasLost(other) ? 1 : 0;
  Add(age, -1, -2 * others);  // (x + 1) x - x (x - 1) = 2 x
}

void LossEstimator::Add(double age, double lost, double pairs) {
  for (const auto& [sums, weight] : {std::pair(&fast_, kFastWeight), std::pair(&slow_, kSlowWeight)}) {
    const double faded = std::pow(1 - weight, age);
    sums->s1 = std::max(0.0, sums->s1 + faded * lost);
    sums->s2 = std::max(0.0, sums->s2 + faded * pairs);
  }
}

double LossEstimator::Sums::Mean(double more_packets, double more_lost) const {
  const double packets = s0 + more_packets;
  return packets > 0 ? std::min(1.0, (s1 + more_lost) / packets) : 0;
}

double LossEstimator::loss() const {
  const auto open = static_cast<double>(known_ % kGroup);
  return std::max(fast_.Mean(open, open_lost_), slow_.Mean(open, open_lost_));
}

double LossEstimator::margin() const {
  const auto open = static_cast<double>(known_ % kGroup);
  const bool fast = fast_.Mean(open, open_lost_) > slow_.Mean(open, open_lost_);
  const double packets = (fast ? fast_ : slow_).s0 + open;
  const double p = loss();
  return packets > 0 ? std::sqrt(p * (1 - p) * (1 + (kGroup - 1) * rho()) / packets) : 0;
}

double LossEstimator::rho() const {
  const double p = slow_.Mean(0, 0);
  if (p <= 0 || p >= 1) return 0;
  return std::clamp((slow_.s2 / slow_.n2 - p * p) / (p * (1 - p)), 0.0, kMaxCorrelation);
}

double LossEstimator::mean_burst() const {
  // Below a thousandth of a packet there is only rounding left of losses undone or long ago.
  return runs_ > 1e-3 ? std::max(1.0, lost_ / runs_) : 1;
}

}  // namespace longhaul::transport
