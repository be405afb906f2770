#include "transport/core/rate/path_loss.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace longhaul::transport {
namespace {

constexpr int64_t kFloorMemory = 3000;  // packets: one standard error is 0.2 % of 1 % loss, 0.7 % of 20 %
constexpr int64_t kEverythingMemory = 1000;  // packets: a bound that follows the path, within 1 % at 10 %
// Packets that end an experiment: one standard error is 3 % at 10 % loss, and none lost bounds l0 by 2 %.
constexpr int64_t kExperimentPackets = 100;
// In a row: sixteen flows in 0.05 BDP lose 59 % to themselves with one, 14 % with three, 29 % with six, which
// keep one flow from knowing what it loses in bursts.
constexpr int kSurprises = 3;
constexpr int64_t kFreshRoundPackets = 50;  // of a round trip: two of them are an experiment
constexpr double kLeastSurprise = 0.05;     // of the first answer: less changes little
// Of an answer that is relied on for long.
constexpr int64_t kSurePackets = 1000;
constexpr int64_t kSurePacketsOfQueue = 200;  // where the loss behind a short queue refines it
constexpr int64_t kNormalMemory = 3000;       // likewise
constexpr double kElasticSigmas = 2;
// Round trips between two experiments until then.
constexpr uint64_t kUnsureRounds = 64;
constexpr Duration kUnsureTime = std::chrono::milliseconds(500);
constexpr double kBurstLeaves =
    0.5;  // of a round trip's delivery rate: less is the path's, not a burst's doing
constexpr double kSureFloor = 0.01;  // below it nothing depends on the answer: the target is 2 % at least
// An answer that nothing contradicts is asked for again, so that others' overload is not excused for ever.
// Three round trips at 0.75 of the rate every ten seconds cost 0.4 % at 50 ms.
constexpr Duration kReconfirm = std::chrono::seconds(10);
constexpr uint64_t kReconfirmRounds = 200;  // likewise, where round trips are long
// At four packets a round trip LossFloor::kMinPackets take five, after draining.
constexpr uint64_t kMaxExperimentRounds = 8;
constexpr Duration kMaxExperimentTime = std::chrono::milliseconds(500);  // likewise, of short round trips
// What the last answer has changed shows after as many: DOWN, its fate, a round at the new rate.
constexpr uint64_t kAnswerRounds = 6;
constexpr Duration kAnswerTime =
    std::chrono::milliseconds(50);  // likewise, where timers are as late as round trips
// Flows that excuse each other's overload in full would keep it up; four fifths of it die out cycle by cycle.
constexpr double kFallbackFloorShare = 0.8;
// Two timers late at once. x2: nothing but 0.1 BDP of queue for four flows.
constexpr Duration kVisibleQueue = std::chrono::milliseconds(2);
constexpr int kVisibleShare =
    8;  // of the minimum RTT, its inverse: HyStart++ (RFC 9406 §4.2) looks for an eighth
constexpr double kBurstWeight =
    0.05;  // of twenty rounds with loss. x2: own loss at 1 ms, 5 % is 4.2 to 4.7 %, not 3.2

static_assert(PathLoss::kExperimentGain < PathLoss::kLowShare);
static_assert(PathLoss::kMaxExcused < 1 && kFallbackFloorShare < 1);

}  // namespace

PathLoss::PathLoss(const BbrModel* model)
    : m_(*model),
      confirmed_(m_.options.max_datagram, kFloorMemory),
      smallest_(m_.options.max_datagram),
      fresh_(m_.options.max_datagram, kFloorMemory),
      surprise_(m_.options.max_datagram, kFloorMemory),
      short_queue_(m_.options.max_datagram, kFloorMemory),
      everything_(m_.options.max_datagram, kEverythingMemory),
      normal_(m_.options.max_datagram, kNormalMemory) {}

void PathLoss::OnPacketSent() {
  sending_rate_ = std::max(sending_rate_, m_.bounded_rate);
  sent_in_cruise_ = sent_in_cruise_ && m_.state == BbrState::kProbeBwCruise && !experiment_;
}

// Where no round trip has as many packets as a measurement needs, the largest will do.
Bandwidth PathLoss::Newest() const { return newest_.Best().IsZero() ? delivered_.Best() : newest_.Best(); }

void PathLoss::Begin() {
  // Packets that lost nothing are of before the loss that asks; where it takes long to get new ones they
  // count.
  if (asked_ && fresh_.lost().value() == 0 && m_.rounds.last().Total() >= m_.Packets(kFreshRoundPackets))
    fresh_ = LossFloor(m_.options.max_datagram, kFloorMemory);
  asked_ = false;
  experiment_ = true;
  StartClock();
  const BbrRounds::Round& last = m_.rounds.last();
  // Behind a queue it is the path that delivers so little, not a burst's doing.
  reference_ = Newest();
  if (!last.limited)
    reference_ = std::max(last.delivered_bw, QueueSeen(last) ? Bandwidth() : reference_ * kBurstLeaves);
}

void PathLoss::StartClock() {
  experiment_round_ = m_.rounds.count();
  experiment_at_ = m_.event.now;
}

void PathLoss::OnDown() {
  if (!m_.full_pipe.reached() || m_.rate_bound != RateLimiter::kPacing || Newest().IsZero()) return;
  if (asked_ || QueueInvisible() || (floor() >= kSureFloor && confirmed_.packets() < kSurePackets)) Begin();
}

bool PathLoss::OnRoundEnd(bool lossy) {
  const BbrRounds::Round& last = m_.rounds.last();
  delivered_.Update(last.delivered_bw, m_.rounds.count());
  // The last packets of a window and the first of a connection say nothing of what the path delivers.
  const bool tail =
      (last.limited || !m_.full_pipe.reached()) && last.Total() < m_.Packets(LossFloor::kMinPackets);
  if (!tail) newest_.Update(last.delivered_bw, newest_rounds_++);
  everything_.OnPackets(last.acked, last.lost - last.marked);
  LearnBurst();
  const uint64_t answers = answers_;
  LearnFromExperiment();
  bool ended = answers_ > answers;
  const bool over = m_.rounds.count() > experiment_round_ + kMaxExperimentRounds ||
                    m_.event.now > experiment_at_ + std::max<Duration>(kMaxExperimentTime,
                                                                       m_.min_rtt() * kMaxExperimentRounds);
  if (experiment_ && (ended || over)) {
    if (!ended) Conclude();
    ended = answers_ > answers || experiment_round_ != m_.rounds.count();  // else it has begun anew
    if (ended) experiment_ = false;
  }
  const uint64_t rounds = m_.rounds.count() - answered_round_;
  const Duration time = m_.event.now - answered_at_;
  const bool due = answers_ == 0 || (rounds > kAnswerRounds && time > kAnswerTime);
  const bool contradicted = !confirmed_.known() || last.Loss() > upper();
  const bool again = IsUnsure() && rounds > kUnsureRounds && time > kUnsureTime;
  if (!experiment_ && ((lossy && contradicted && due) || again)) asked_ = true;
  const bool may_begin = m_.state == BbrState::kStartup || m_.state == BbrState::kProbeBwDown;
  if (asked_ && may_begin && !Newest().IsZero()) Begin();
  return ended;
}

void PathLoss::LearnBurst() {
  const BbrRounds::Round& last = m_.rounds.last();
  if (last.loss_events == 0 || (m_.IsProbingBw() && !last.limited) || QueueSeen(last)) return;
  const double run = last.lost / m_.options.max_datagram / last.loss_events;
  ++bursty_rounds_;
  burst_ += std::max(kBurstWeight, 1.0 / bursty_rounds_) * (std::clamp(run, 1.0, kMaxBurst) - burst_);
  LH_CHECK_OP(burst_, >=, 1.0);
}

void PathLoss::LearnFromExperiment() {
  const BbrRounds::Round& last = m_.rounds.last();
  if (acked_in_cruise_) normal_.OnPackets(last.acked, last.lost - last.marked);
  acked_in_cruise_ = std::exchange(sent_in_cruise_, true);
  if (!QueueSeen(last))
    past_[past_rounds_++ % past_.size()] = {acked_rate_, last.acked, last.lost - last.marked};
  acked_rate_ = std::exchange(sending_rate_, Bandwidth());
  const Bandwidth delivered = experiment_ ? reference_ : delivered_.Best();
  for (PastRound& round : past_) {
    if (round.rate.IsZero() || round.rate > delivered * kLowShare) continue;
    round.rate = Bandwidth();
    fresh_.OnPackets(round.acked, round.lost);
    smallest_.OnPackets(round.acked, round.lost, burst());
  }
  if (fresh_.packets() >= kExperimentPackets * burst()) Conclude();
}

// More loss than was known may be other flows': they have met the same overload, and step back in the same
// round trips. It counts when several experiments in a row have shown it, and then the least of them.
bool PathLoss::ConfirmsSurprise() {
  if (surprises_ == 0 || fresh_.value() < surprise_.value()) surprise_ = fresh_;
  fresh_ = LossFloor(m_.options.max_datagram, kFloorMemory);
  if (++surprises_ < kSurprises) {
    if (experiment_) {
      StartClock();
    } else {
      asked_ = true;
    }
    return false;
  }
  fresh_ = surprise_;
  return true;
}

// Answers that agree are put together; one that differs by more than chance replaces what was known.
void PathLoss::Conclude() {
  if (!fresh_.known()) return;
  const double error = std::hypot(confirmed_.error(burst()), fresh_.error(burst()));
  const bool agrees = confirmed_.known() && std::abs(confirmed_.value() - fresh_.value()) <= 2 * error;
  const bool more =
      confirmed_.known() ? !agrees && fresh_.value() > confirmed_.value() : fresh_.value() > kLeastSurprise;
  if (more && !ConfirmsSurprise()) return;
  surprises_ = 0;
  if (!agrees) {
    if (IsOfShortQueue()) {
      smallest_ = SmallestLossFloor(m_.options.max_datagram);
      smallest_.OnPackets(fresh_.acked(), fresh_.lost(), burst());
      short_queue_ = fresh_;
    }
    everything_ = LossFloor(m_.options.max_datagram, kEverythingMemory);
    confirmed_ = LossFloor(m_.options.max_datagram, kFloorMemory);
    normal_ = LossFloor(m_.options.max_datagram, kNormalMemory);
  }
  confirmed_.OnPackets(fresh_.acked(), fresh_.lost());
  normal_.Fade();  // what follows the rate is that of now
  fresh_ = LossFloor(m_.options.max_datagram, kFloorMemory);
  ++answers_;
  answered_round_ = m_.rounds.count();
  answered_at_ = m_.event.now;
}

bool PathLoss::OnEventEnd() {
  const Duration min_rtt = m_.min_rtt();
  // A minimum RTT that has grown is of another path: what looked like its queue was its length.
  const bool another = known_min_rtt_ > Duration::zero() &&
                       min_rtt > known_min_rtt_ + known_min_rtt_ / kVisibleShare + kVisibleQueue;
  if (another) {
    longest_queue_.Reset();
    confirmed_ = fresh_ = short_queue_ = LossFloor(m_.options.max_datagram, kFloorMemory);
    smallest_ = SmallestLossFloor(m_.options.max_datagram);
    everything_ = LossFloor(m_.options.max_datagram, kEverythingMemory);
    past_ = {};
    surprises_ = 0;
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
  if (!confirmed_.known()) return 0;
  const double shown = Inelastic();
  const double precise =
      IsOfShortQueue() ? std::min(short_queue_.value(), shown + 2 * smallest_.deviation()) : shown;
  return std::min({precise, confirmed_.upper(), everything_.upper(), kMaxExcused});
}

// Loss in a queue that several flows keep full falls by only a part of what one of them steps back, but it
// falls: along the line through both rates, what would be left at none. Beyond chance, since the line is four
// times as long as the step.
double PathLoss::Inelastic() const {
  const double floor = smallest_.value();
  if (!normal_.known()) return floor;
  const double chance = kElasticSigmas * std::hypot(normal_.error(), confirmed_.error());
  const double fall = std::max(0.0, normal_.value() - confirmed_.value() - chance);
  return std::max(0.0, floor - fall * kExperimentGain / (1 - kExperimentGain));
}

double PathLoss::upper() const { return confirmed_.upper(burst()); }

double PathLoss::Excused() const { return IsOfShortQueue() ? floor() : floor() * kFallbackFloorShare; }

bool PathLoss::IsUnsure() const {
  if (std::max(floor(), confirmed_.value()) < kSureFloor) return false;
  const bool old =
      m_.event.now > answered_at_ + kReconfirm && m_.rounds.count() > answered_round_ + kReconfirmRounds;
  return old || confirmed_.packets() < (QueueInvisible() ? kSurePackets : kSurePacketsOfQueue);
}

bool PathLoss::QueueInvisible() const {
  return Duration(longest_queue_.Best()) < std::max<Duration>(kVisibleQueue, m_.min_rtt() / kVisibleShare);
}

bool PathLoss::QueueSeen(const BbrRounds::Round& round) const {
  if (!m_.has_min_rtt() || round.min_rtt == Duration::max()) return false;
  return round.min_rtt > m_.min_rtt() + m_.min_rtt() / kVisibleShare + kTimerSlack;
}

}  // namespace longhaul::transport
