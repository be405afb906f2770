#include "server/grants/capacity_estimator.h"

#include <algorithm>

namespace longhaul::server {
namespace {

constexpr Duration kMinQueue = std::chrono::milliseconds(3);  // above the jitter of a host's scheduling
// All senders of one link see the same queue; the measurement of one in four may lag.
constexpr double kQueuedShare = 0.75;
// Excess loss that is significant: at 300 packets and 2 % the standard deviation is 0.8 %.
constexpr double kExcessLoss = 0.05;
constexpr double kLossWeight = 1.0 / 16;  // of a sample, one a tick (RTT / 4): remembers four RTTs
// A queue of q is drained in two round trips by sending q / (2 rtt) less; never less than three quarters.
constexpr double kMaxDrain = 0.25;
// Raising by 2.5 % and then 5 % a round trip builds an eighth of a BDP in three round trips, before the queue
// is visible here; a quarter a round trip when the queue is evidently not on the shared link.
constexpr double kFirstStep = 0.025;
constexpr double kMaxStep = 0.05;
constexpr double kFreeStep = 0.25;
// After a queue the estimate is held for eight round trips, and twice as long after each probe that ended in
// another queue.
constexpr int kHoldRtts = 8;
constexpr int kMaxHoldRtts = 32;
// A short queue without loss lowers the estimate by at most this factor at a time: an arrival rate measured
// while a host or the link stalled is not the capacity, and the queue drains anyway.
constexpr double kCut = 0.95;

}  // namespace

Duration CapacityEstimator::QueueThreshold(Duration rtt) { return std::max<Duration>(rtt / 8, kMinQueue); }

Bandwidth CapacityEstimator::Bounded(Bandwidth rate) const {
  return std::max(options_.floor, std::min(rate, options_.cap));
}

bool CapacityEstimator::Congested(const ArrivalSample& s) const {
  if (s.sending < 2) return false;
  // A sender below its grant queues on its own path; only senders at their grant reveal the shared queue.
  if (known() && (s.bound == 0 || s.bound_free > 0)) return false;
  const bool queued =
      s.queued >= 2 && s.queued >= kQueuedShare * s.sending && (!known() || s.bound_queued > 0);
  // Without any queue the loss is random loss of the path.
  const bool lossy = s.loss > usual_loss_ + kExcessLoss && s.queue >= NoQueue(s.rtt);
  return queued || lossy;
}

void CapacityEstimator::OnSample(const ArrivalSample& s) {
  if (s.sending == 0) return;
  if (Congested(s)) {
    // The effect of the latest cut is visible only after a round trip.
    if (s.now - lowered_at_ >= s.rtt * 3 / 2 || !known()) Lower(s);
    return;
  }
  if (s.queue < NoQueue(s.rtt)) {
    usual_loss_ += kLossWeight * (s.loss - usual_loss_);
    drain_ = 0;
  }
  if (known()) Raise(s);
}

void CapacityEstimator::Lower(const ArrivalSample& s) {
  const Bandwidth measured = s.arrival * (1.0 / (1.0 - std::min(usual_loss_, 0.5)));
  const bool probing = step_ > 0;
  const bool heavy = s.loss > usual_loss_ + kExcessLoss || s.queue > s.rtt;
  if (!known() || heavy) {
    capacity_ = Bounded(measured);
  } else {
    capacity_ = Bounded(std::clamp(measured, capacity_ * kCut, capacity_));
  }
  const double queue_rtts = static_cast<double>(s.queue.count()) / static_cast<double>(s.rtt.count());
  drain_ = std::clamp(queue_rtts / 2, 0.0, kMaxDrain);
  lowered_at_ = s.now;
  hold_ = probing ? std::min<Duration>(hold_ * 2, s.rtt * kMaxHoldRtts) : s.rtt * kHoldRtts;
  hold_ = std::max<Duration>(hold_, s.rtt * kHoldRtts);
  hold_until_ = s.now + hold_;
  step_ = 0;
}

void CapacityEstimator::Raise(const ArrivalSample& s) {
  if (s.bound_free == 0 || s.now - raised_at_ < s.rtt) return;
  // Less than half of it is used: raising it would change nothing.
  if (capacity_ > s.arrival * 2.0) return;
  // If some bounded sender sees no queue, the queue is not on the shared link.
  const bool others_queue = s.queued > 0 && s.bound_free == s.bound;
  if (!others_queue && (s.now < hold_until_ || s.queue >= NoQueue(s.rtt))) return;
  step_ = others_queue ? kFreeStep : std::clamp(step_ * 2, kFirstStep, kMaxStep);
  raised_at_ = s.now;
  capacity_ = Bounded(capacity_ * (1.0 + step_));
}

void CapacityEstimator::OnIdle() {
  drain_ = 0;
  if (step_ > 0) step_ = kFirstStep;
}

}  // namespace longhaul::server
