#include "transport/core/rate/path_loss.h"

#include <algorithm>

#include "base/check.h"
#include "transport/core/rate/bbr/bbr_policy.h"

namespace longhaul::transport {
namespace {

// "x2": what half and twice the value changed in 13 cells of simulated paths (40 Mbit/s, 8 seeds, 10 s):
// utilisation by 0.01, own loss by 0.004, queue or least share by 0.08 or more.
constexpr double kMaxExcused = 0.5;  // of what was sent: false ACKs double the bandwidth at most
// Rounds sent below this share of the bandwidth count as low: DOWN's 0.9, and 2 % for a maximum that moves.
constexpr double kDownGainCeiling = 0.92;
constexpr int64_t kFloorMemory = 3000;  // packets: one standard error is 0.2 % of 1 % loss, 0.7 % of 20 %
// Flows that excuse each other's overload in full would keep it up; four fifths of it die out cycle by cycle.
constexpr double kFallbackFloorShare = 0.8;
// Two timers late at once. x2: nothing but 0.1 BDP of queue for four flows.
constexpr Duration kVisibleQueue = std::chrono::milliseconds(2);
constexpr int kVisibleShare =
    8;  // of the minimum RTT, its inverse: HyStart++ (RFC 9406 §4.2) looks for an eighth
constexpr double kBurstWeight =
    0.05;  // of twenty rounds with loss. x2: own loss at 1 ms, 5 % is 4.2 to 4.7 %, not 3.2
constexpr double kMaxBurst = 64;  // packets; a longer run is an outage

static_assert(kDownGainCeiling > BbrPolicy::kProbeDownPacingGain);
static_assert(kMaxExcused < 1 && kFallbackFloorShare < 1);

}  // namespace

PathLoss::PathLoss(const BbrModel* model)
    : m_(*model), short_queue_(m_.options.max_datagram, kFloorMemory), low_rate_(m_.options.max_datagram) {}

void PathLoss::OnPacketSent() {
  if (m_.state != BbrState::kProbeBwDown || m_.bounded_rate > m_.max_bw() * kDownGainCeiling) {
    round_sent_low_ = false;
  }
}

void PathLoss::OnRoundEnd() {
  if (m_.cycle.rounds_in_down <= 1) low_rate_bytes_ = ByteCount();
  LearnBurst();
  LearnLowRateFloor();
}

void PathLoss::LearnBurst() {
  const BbrRounds::Round& last = m_.rounds.last();
  if (last.loss_events == 0 || m_.IsProbingBw()) return;
  const double run = last.lost / m_.options.max_datagram / last.loss_events;
  mean_burst_ += kBurstWeight * (std::clamp(run, 1.0, kMaxBurst) - mean_burst_);
  LH_CHECK_OP(mean_burst_, >=, 1.0);
}

void PathLoss::LearnLowRateFloor() {
  const BbrRounds::Round& last = m_.rounds.last();
  if (previous_sent_low_ && !QueueSeen(last)) {
    low_rate_.OnPackets(last.acked, last.lost - last.marked);
    low_rate_bytes_ += last.Total();
  }
  previous_sent_low_ = round_sent_low_;
  round_sent_low_ = m_.full_pipe.reached();
}

bool PathLoss::OnEventEnd() {
  const Duration min_rtt = m_.min_rtt();
  // A minimum RTT that has grown is of another path: what looked like its queue was its length.
  const bool another = known_min_rtt_ > Duration::zero() &&
                       min_rtt > known_min_rtt_ + known_min_rtt_ / kVisibleShare + kVisibleQueue;
  if (another) {
    longest_queue_.Reset();
    short_queue_ = LossFloor(m_.options.max_datagram, kFloorMemory);
    low_rate_ = SmallestLossFloor(m_.options.max_datagram);
  }
  if (m_.has_min_rtt()) known_min_rtt_ = min_rtt;
  if (m_.event.path_rtt > Duration::zero()) last_rtt_ = m_.event.path_rtt;
  if (!m_.has_min_rtt() || last_rtt_ == Duration::zero()) return another;
  // The packets of this event are next to the one whose RTT it carries; a loss that a timer found is next to
  // the last.
  const Duration queue = std::max(Duration(0), last_rtt_ - min_rtt);
  longest_queue_.Update(queue.count(), m_.rounds.count());
  if (queue <= Duration(longest_queue_.Best()) / 2)
    short_queue_.OnPackets(m_.event.newly_acked, m_.event.newly_lost);
  return another;
}

double PathLoss::floor() const {
  return std::min(IsOfShortQueue() ? short_queue_.value() : low_rate_.value(), kMaxExcused);
}

double PathLoss::Excused() const { return IsOfShortQueue() ? floor() : floor() * kFallbackFloorShare; }

bool PathLoss::QueueInvisible() const {
  return Duration(longest_queue_.Best()) < std::max<Duration>(kVisibleQueue, m_.min_rtt() / kVisibleShare);
}

bool PathLoss::QueueSeen(const BbrRounds::Round& round) const {
  if (!m_.has_min_rtt() || round.min_rtt == Duration::max()) return false;
  return round.min_rtt > m_.min_rtt() + m_.min_rtt() / kVisibleShare + kTimerSlack;
}

bool PathLoss::MeasuredInDown() const { return low_rate_bytes_ >= m_.Packets(LossFloor::kMinPackets); }

}  // namespace longhaul::transport
