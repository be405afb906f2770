#include "transport/core/rate/target_loss_policy.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/reached.h"
#include "transport/core/rate/bbr/bbr.h"

namespace longhaul::transport {
namespace {

using std::chrono::milliseconds;

// "x2": what half and twice the value (or its distance from 1) changed in 13 cells of simulated paths; see
// path_loss.cc. "0010": docs/decisions/0010.

// --- What is too much loss ---
constexpr double kFloorMargin = BbrPolicy::kLossThresh;  // l* before there is a fit: the draft's 2 % above l0
constexpr double kMaxThresh = 0.9;   // a peer may acknowledge anything; InflightAtLoss divides by 1 less it
constexpr double kThreshSigmas = 3;  // asked at every loss of a probe: chance exceeds it once in 740 times

// --- What a bound becomes ---
constexpr double kOursBackoff = 0.9;    // what a bound keeps when the loss proved to be the sender's own
constexpr double kHalvingFactor = 0.5;  // mission A5
constexpr double kRecovery = Bbr::kProbeUpPacingGain;  // per round trip below the target: as fast as UP asks
// Per round trip near max_bw. x2: 1.01 costs 0.04 of the utilisation at 20 % loss in 0.25 BDP; 1.04 adds 0.13
// BDP of queue for four flows.
constexpr double kSlowRecovery = 1.02;
// Round trips below the target before the first small step: what the last one has cost shows after two.
constexpr int kCalmRounds = 6;
constexpr double kFarBelow = BbrBounds::kBeta;  // of max_bw: further below than one loss can have put it
// Of the minimum RTT: what UP's gain queues in a round trip. x2: at 0.5 the queue at 5 % is 0.26 BDP, not
// 0.18.
constexpr double kStandingQueue = 0.25;
// Beyond a round trip: no jitter or host is so late twice.
constexpr Duration kDeepQueue = milliseconds(10);
constexpr double kCompetitionBackoff = 0.97;  // of what the last round delivered; x2: nothing
// Round trips: 0.97 of the rate in each would have drained one BDP.
constexpr int kFutileRounds = 8;
constexpr double kSameQueue = 1.1;   // within a tenth: what a rate of 0.78 leaves alone
constexpr double kAnotherQueue = 2;  // UP adds less than the path's own length

// --- When what the filter remembers is void ---
// x2: a rate that falls to a fifth loses 10.2 % at half of kLongQueue or kContradictingPackets, not 11.1; 9.4
// % at one contradicting round, 15.4 % at four; kContradiction changes nothing.
constexpr double kLongQueue = 0.5;       // of the minimum RTT
constexpr double kContradiction = 0.85;  // delivered, of the smaller of sent and remembered
constexpr int kContradictingRounds = 2;  // one may be a stall
constexpr int64_t kContradictingPackets = 100;

// --- The cycle ---
constexpr uint64_t kDownRounds = 2;                  // one drains, the next brings the fate of its packets
constexpr double kQueueGuard = 0.1;                  // of the minimum RTT (0010, 6)
constexpr double kSharedQueueGuard = 0.2;            // likewise, where others share the path
constexpr int kSharedShare = 16;                     // of the minimum RTT, its inverse; x2: nothing
constexpr double kBandwidthGrowthThreshold = 1.1;    // less than half of UP's quarter is no growth
constexpr double kLongtermGrowth = 0.5;              // of what a round trip acknowledges (0010, 6)
constexpr Duration kProbeWait = milliseconds(1000);  // late joiners get their share in seconds (0010, 7)
constexpr int kProbeWaitRounds = 10;                 // UP's quarter is a fortieth more on average
constexpr double kProbeWaitSpread = 0.5;             // so that flows do not probe in step (0010, 7)
constexpr double kFruitlessBackoff = 1.5;  // per probe that found nothing: the second reaches the bound
constexpr double kMaxFruitlessBackoff =
    1.7;  // 0010, 7. x2: at 1.35 own loss at 1 ms, 5 % is 3.7 %, not 3.2 %
// Halves of the wait: only a probe shows what causes the loss. x2: own loss at 1 ms, 5 % is 3.9 to 4 %,
// not 3.2 %.
constexpr int kLossyProbeBackoff = 3;
constexpr int kMetShare = 64;          // of the minimum RTT, its inverse: noise of an empty path; x2: nothing
constexpr uint64_t kRoundsPerFit = 8;  // a fit costs 6 us (0010)
// Of max_bw, where UP and DOWN begin: half of a quarter, and half of a tenth.
constexpr double kUpShare = 1.125;
constexpr double kDownShare = 0.95;
constexpr double kAppLimitedWeight = 0.1;  // for people only: of about ten rounds
constexpr int64_t kFitPackets = 8;         // of a round in the fit: fewer are two ACKs
constexpr double kUnbroken =
    0.6;  // of the pacing rate: a window that ends, a timer that is late; not a pause

// --- The window ---
constexpr double kMinCwndGain = 1.1;  // ACKs that come late; x2: nothing but 0.1 BDP of queue for four flows
// Per round trip that is lossy behind a queue. x2: at 0.7 the least of four shares is 0.84, not 0.71.
constexpr double kGainCut = 0.85;
constexpr double kGainGrowth = 1.02;   // per round trip below the target: eight make up for one cut
constexpr int64_t kQuantaPerBdp = 64;  // in 0.05 BDP of buffer 0.90 of the capacity, not 0.40 (0010, 9)
// A queue this long costs nothing, and on paths shorter than a timer's lateness (inside a machine, a rack)
// shares of the BDP would be single datagrams: nothing to segment, and the timer would set the pace.
constexpr Duration kQuantumAlways = std::chrono::microseconds(50);

static_assert(kMaxThresh < 1 && kCompetitionBackoff < 1);
static_assert(kSlowRecovery < kRecovery && kFarBelow * kRecovery < 1, "a fast step never passes max_bw");
static_assert(kQueueGuard < kSharedQueueGuard);
static_assert(1 < kMinCwndGain && kMinCwndGain < BbrModel::kDefaultCwndGain);

}  // namespace

TargetLossPolicy::TargetLossPolicy(BbrModel* model)
    : BbrPolicy(model), path_loss_(model), response_(m_.options.max_datagram) {}

// --- Events ---

void TargetLossPolicy::OnPacketSent(ByteCount bytes) {
  if (m_.event.in_flight == bytes) empty_path_.OnFirstPacket();
  sending_.span.Add(m_.event.now, bytes);
  sending_.pace = std::max(sending_.pace, m_.bounded_rate);
  sending_.granted = m_.rate_bound == RateLimiter::kGrant;
  sending_.experiment = sending_.experiment || path_loss_.experiment();
  path_loss_.OnPacketSent();
}

void TargetLossPolicy::OnRoundEnd() {
  const BbrRounds::Round& last = m_.rounds.last();
  if (m_.state == BbrState::kProbeBwRefill) {  // UP begins with this event
    up_start_rtt_ = last.min_rtt == Duration::max() ? m_.event.smoothed_rtt : last.min_rtt;
    up_start_bw_ = m_.max_bw();
  }
  if (last.Total().value() == 0) return;
  const double threshold = std::min(path_loss_.floor() + m_.options.loss_limits.halve_threshold, kMaxThresh);
  response_.OnRound(last.acked, last.lost, LossThresh(), threshold, path_loss_.burst());
  const bool lossy = response_.verdict() != LossVerdict::kRaise;
  calm_rounds_ = lossy ? 0 : calm_rounds_ + 1;
  if (!previous_.experiment && (lossy || question_.total.value() > 0)) {
    question_.lost += last.lost;
    question_.total += last.Total();
    question_.loss_events += last.loss_events;
  }
  if (calm_rounds_ >= kCalmRounds) question_ = {};
  recent_bw_.Update(MeanServed(), m_.rounds.count());
  const bool has_rtt = m_.has_min_rtt() && last.min_rtt != Duration::max();
  const int64_t negative_queue = has_rtt ? (m_.min_rtt() - last.min_rtt).count() : 0;
  shortest_queue_.Update(negative_queue, m_.rounds.count());
  newest_queue_.Update(negative_queue, m_.rounds.count());
  if (path_loss_.OnRoundEnd(lossy)) OnAnswer();
  AdaptCwndGain();
  if (FollowsGrant()) m_.bounds.inflight_longterm = BbrBounds::kInfinite;
  FeedFit(previous_);
  ForgetWhatIsContradicted();
  acknowledged_ = previous_;
  previous_ = std::exchange(sending_, {});
}

// Of the round trip that has ended, as a sample counts it, but its mean: the largest sample of a round is a
// burst's.
Bandwidth TargetLossPolicy::MeanServed() const {
  const BbrRounds::Round& last = m_.rounds.last();
  if (!m_.has_min_rtt() || acked_.length() < m_.min_rtt() / 2) return last.bw;
  return std::min(last.bw, acked_.rate() * (1 / (1 - path_loss_.Excused())));
}

void TargetLossPolicy::OnEventEnd() {
  if (m_.rounds.round_start()) acked_ = {};
  if (m_.event.newly_acked.value() > 0) acked_.Add(m_.event.now, m_.event.newly_acked);
  NoticeLongerPath();
  if (!path_loss_.OnEventEnd()) return;
  fit_.Reset();
  target_ = TargetLoss();
}

void TargetLossPolicy::NoticeLongerPath() {
  const Duration rtt = m_.event.path_rtt;
  const bool first =
      m_.event.rs.tx_in_flight <= std::max(m_.send_quantum, m_.Packets(BbrModel::kMinPipePackets));
  if (rtt <= Duration::zero() || !first || !m_.has_min_rtt()) return;
  const bool longer = rtt > m_.min_rtt() * (1 + kStandingQueue) + PathLoss::kTimerSlack;
  const Duration found = empty_path_.OnSample(rtt, longer);
  if (found == Duration::zero()) return;
  LH_REACHED("the path has become longer");
  m_.min_rtt_filter.Replace(m_.event.now, found);
}

void TargetLossPolicy::Span::Add(Instant now, ByteCount more) {
  if (bytes.value() == 0) {
    first = now;
    first_bytes = more;
  }
  last = now;
  bytes += more;
}

// Of whatever limited the round: the application (as long as it had enough to send for half a round trip), a
// grant, the window. A pause in its middle would count as a lower rate.
void TargetLossPolicy::FeedFit(const SentRound& sent) {
  const BbrRounds::Round& last = m_.rounds.last();
  const bool long_enough = m_.has_min_rtt() && sent.span.length() > m_.min_rtt() / 2 &&
                           acked_.length() > m_.min_rtt() / 4 && last.Total() >= m_.Packets(kFitPackets);
  const Bandwidth rate = sent.span.rate();
  const bool usable = long_enough && rate >= sent.pace * kUnbroken;
  app_limited_ += kAppLimitedWeight * ((usable ? 0 : 1) - app_limited_);
  if (usable) {
    RateRound round;
    round.sent = rate;
    round.delivered = acked_.rate();
    round.loss = (last.lost - last.marked) / last.Total();
    round.packets = last.Total() / m_.options.max_datagram;
    round.queue = m_.QueueDelay();
    round.phase = Phase(sent);
    fit_.OnRound(round);
  }
  if (m_.rounds.count() % kRoundsPerFit == 0) Refit();
}

// A grant makes the experiments while it sets the rate; else what was sent tells more than the state, since
// the application and the window have a say.
RatePhase TargetLossPolicy::Phase(const SentRound& sent) const {
  if (sent.granted) return sent.experiment ? RatePhase::kDown : RatePhase::kCruise;
  const Bandwidth rate = sent.span.rate();
  if (rate < m_.max_bw() * kDownShare) return RatePhase::kDown;
  return rate > m_.max_bw() * kUpShare ? RatePhase::kUp : RatePhase::kCruise;
}

void TargetLossPolicy::Refit() {
  if (!m_.has_min_rtt()) return;
  FitContext context{.budget = m_.options.loss_limits.budget, .min_rtt = m_.min_rtt(), .grant = m_.grant};
  if (path_loss_.known()) context.floor = path_loss_.floor();
  target_ = fit_.Fit(context);
}

// Much less arrives than was sent, round after round, beyond what the path loses by itself: without this the
// filter would hold for two cycles what the path no longer has. Not while it is asked whose loss it is.
void TargetLossPolicy::ForgetWhatIsContradicted() {
  const BbrRounds::Round& last = m_.rounds.last();
  const bool queued = m_.has_min_rtt() && last.min_rtt != Duration::max() &&
                      last.min_rtt - m_.min_rtt() > m_.min_rtt() * kLongQueue && !IsYieldingFutile();
  const bool lossy = response_.verdict() != LossVerdict::kRaise && !path_loss_.asks();
  const bool congested = lossy || queued;
  if (m_.IsProbingBw() || last.limited || !congested ||
      last.bw >= std::min(previous_.span.rate(), m_.max_bw()) * kContradiction) {
    contradiction_ = {};
    return;
  }
  contradiction_.bw = std::max(contradiction_.bw, last.bw);
  contradiction_.delivered = std::max(contradiction_.delivered, last.delivered_bw);
  contradiction_.bytes += last.Total();
  if (++contradiction_.rounds < kContradictingRounds) return;
  if (contradiction_.bytes < m_.Packets(kContradictingPackets)) return;
  m_.max_bw_filter.Replace(contradiction_.bw, contradiction_.delivered);
  contradiction_ = {};
}

// --- Samples ---

Bandwidth TargetLossPolicy::SampleRate(const RateSample& sample) const {
  const double excused = path_loss_.Excused();
  LH_CHECK_OP(excused, <, 1.0);
  const double served = 1 / (1 - excused);  // sent bytes for each one delivered
  Bandwidth rate = sample.train_rate * served;
  if (sample.valid) {
    const double lost = sample.delivered.value() > 0 ? sample.lost / sample.delivered : 0.0;
    rate = std::max(rate, sample.delivery_rate * (1 + std::min(lost, excused * served)));
  }
  return rate;
}

bool TargetLossPolicy::IsSampleLimited(const RateSample& sample) const {
  return sample.app_limited && sample.train_rate.IsZero();
}

// Of a window shorter than the path only the train has a sample, in the middle of the round trip. A round
// that a stalled host has limited counts, too, if it has asked for more than before all the same, and one
// that a grant has limited if a queue stands: the path has no more. An experiment does not.
std::optional<Bandwidth> TargetLossPolicy::FullBwSample() const {
  const BbrRounds::Round& last = m_.rounds.last();
  if (acknowledged_.experiment) return std::nullopt;
  const bool overgranted = m_.rate_bound == RateLimiter::kGrant && QueueStands();
  if (!last.limited || overgranted) return last.bw;
  const Span& span = acknowledged_.span;
  const bool whole = m_.has_min_rtt() && span.length() > m_.min_rtt() * 9 / 10;
  const bool asked = span.rate() >= m_.full_pipe.bw() * FullPipe::kGrowth;
  if (whole && asked && m_.rate_bound == RateLimiter::kPacing) return last.bw;
  return std::nullopt;
}

bool TargetLossPolicy::MeetsMinRtt(Duration rtt) const {
  return m_.has_min_rtt() && rtt <= m_.min_rtt() + m_.min_rtt() / kMetShare;
}

// --- Loss ---

double TargetLossPolicy::LossThresh() const {
  const bool fitted = target_.basis == TargetBasis::kCurves;
  const double margin = fitted ? TargetLossFit::kHeadroom : kFloorMargin;
  double target = std::max(kLossThresh, path_loss_.floor() + margin);
  if (fitted) target = std::max(target, target_.target);
  return std::min(target, kMaxThresh);
}

bool TargetLossPolicy::LossTooHigh(ByteCount lost, ByteCount total) const {
  const ByteCount packet = m_.options.max_datagram;
  return LossResponse::Exceeds(total / packet, lost / packet, LossThresh(), kThreshSigmas,
                               path_loss_.burst());
}

// STARTUP asks the path whose loss it is before it gives up (path_loss.h).
bool TargetLossPolicy::EndsStartup(bool recovering) {
  (void)recovering;
  return startup_loss_is_ours_;
}

// What was held back because of loss that is the path's is free at once; of what was the sender's own, what
// the path delivered is kept, and the next probe can wait. An answer that was not asked for changes neither.
void TargetLossPolicy::OnAnswer() {
  const Question question = std::exchange(question_, {});
  if (question.total.value() == 0) return;
  const double total = question.total / m_.options.max_datagram;
  const double lost = question.lost / m_.options.max_datagram;
  // A burst or two are no overload.
  const double run =
      std::clamp(lost / std::max(1, question.loss_events), path_loss_.burst(), PathLoss::kMaxBurst);
  const bool ours = LossResponse::Exceeds(total, lost, LossThresh(), kThreshSigmas, run);
  startup_loss_is_ours_ = ours && m_.state == BbrState::kStartup;
  if (!ours) m_.bounds.ResetShortTermModel();
  if (!ours || m_.IsProbingBw()) return;
  m_.cycle.cycle_stamp = m_.event.now;
  m_.InitLowerBounds();
  const Bandwidth delivered = std::max(path_loss_.reference(), m_.bounds.bw_shortterm * kOursBackoff);
  m_.bounds.bw_shortterm = std::min(m_.bounds.bw_shortterm, delivered);
}

bool TargetLossPolicy::AdaptLowerBoundsFromCongestion() {
  if (m_.IsProbingBw()) return false;
  const LossVerdict verdict = response_.verdict();
  if (YieldToStandingQueue() && verdict == LossVerdict::kRaise) return false;
  // DOWN asks what the path loses by itself. It resets the signals when it starts; what follows must not use
  // them either.
  const bool ask = m_.state == BbrState::kProbeBwCruise && path_loss_.asks() && !path_loss_.experiment();
  if (ask) m_.bounds.ResetCongestionSignals();
  if (verdict == LossVerdict::kRaise) LiftLowerBounds();
  // An experiment that the application keeps short has few packets: round trip by round trip a hold would end
  // at no rate at all, before there is an answer.
  const bool short_experiment = path_loss_.experiment() && m_.rounds.last().limited;
  if (verdict == LossVerdict::kHold && !ask && !short_experiment) HoldAtDelivered();
  if (verdict == LossVerdict::kHalve) Halve();
  return ask;
}

// The sum of what several flows have once seen is more than the path has: a queue stands although no flow
// probes. Then what the last round trip delivered is the share, and a little less drains. Not without end: a
// queue that a lower rate does not shorten is not one of this flow's packets.
bool TargetLossPolicy::YieldToStandingQueue() {
  const BbrRounds::Round& last = m_.rounds.last();
  if (m_.state != BbrState::kProbeBwCruise || last.limited || !m_.has_min_rtt()) return false;
  const Duration newest(-newest_queue_.Best());
  if (!QueueStands()) {
    yielding_ = {};
    return false;
  }
  const bool shorter = newest * kSameQueue < yielding_.queue;
  const bool another = newest > yielding_.queue * kAnotherQueue;
  if (yielding_.rounds == 0 || shorter || another) yielding_ = {0, newest};
  ++yielding_.rounds;
  if (IsYieldingFutile()) return false;
  const Bandwidth share = last.bw * kCompetitionBackoff;
  m_.bounds.bw_shortterm = std::min({m_.bounds.bw_shortterm, m_.max_bw(), share});
  return true;
}

bool TargetLossPolicy::QueueStands() const {
  if (!m_.has_min_rtt()) return false;
  const Duration least(-shortest_queue_.Best());
  const Duration newest(-newest_queue_.Best());
  return least > m_.min_rtt() * kStandingQueue + PathLoss::kTimerSlack || newest > m_.min_rtt() + kDeepQueue;
}

// A queue that stays as it was while the rate falls is not this flow's: others keep it, or the path has
// become longer.
bool TargetLossPolicy::IsYieldingFutile() const { return yielding_.rounds > kFutileRounds; }

void TargetLossPolicy::HoldAtDelivered() {
  m_.InitLowerBounds();
  BbrBounds& b = m_.bounds;
  const Bandwidth delivered = std::max(b.bw_latest, recent_bw_.Best());
  b.bw_shortterm = std::min(b.bw_shortterm, std::max(delivered, b.bw_shortterm * BbrBounds::kBeta));
  b.inflight_shortterm =
      std::min(b.inflight_shortterm, std::max(b.inflight_latest, b.inflight_shortterm * BbrBounds::kBeta));
}

// Half of what arrives is as low as one round trip's loss can call for; a few packets' bad luck, round after
// round, would otherwise end at no rate at all.
void TargetLossPolicy::Halve() {
  m_.InitLowerBounds();
  BbrBounds& b = m_.bounds;
  const Bandwidth arrives = std::max(b.bw_latest, m_.rounds.last().bw);
  b.bw_shortterm =
      std::min(b.bw_shortterm, std::max(b.bw_shortterm * kHalvingFactor, arrives * kHalvingFactor));
  b.inflight_shortterm =
      std::max(b.inflight_shortterm * kHalvingFactor, m_.Packets(BbrModel::kMinPipePackets));
}

// Fast from a halved rate; near what the filter holds only step by step, and not into a standing queue: with
// several flows the sum of what each has once seen is more than the path has.
void TargetLossPolicy::LiftLowerBounds() {
  BbrBounds& b = m_.bounds;
  if (b.bw_shortterm == Bandwidth::Max()) return;
  if (path_loss_.QueueSeen(m_.rounds.last()) && !IsYieldingFutile()) return;
  if (b.bw_shortterm >= m_.max_bw() * kFarBelow && calm_rounds_ < kCalmRounds) return;
  const double lift = b.bw_shortterm < m_.max_bw() * kFarBelow ? kRecovery : kSlowRecovery;
  b.bw_shortterm = b.bw_shortterm * lift;
  if (b.inflight_shortterm != BbrBounds::kInfinite) b.inflight_shortterm = b.inflight_shortterm * lift;
  if (b.bw_shortterm >= m_.max_bw()) b.ResetShortTermModel();
}

// --- PROBE_BW ---

// Often where probing costs a little queue, so that shares even out within seconds; seldom where it costs
// loss.
void TargetLossPolicy::PickProbeWait() {
  path_loss_.OnDown();
  m_.cycle.rounds_since_probe_up = 0;
  const Duration base = m_.has_min_rtt() ? std::max(kProbeWait, m_.min_rtt() * kProbeWaitRounds) : kProbeWait;
  // Where the queue cannot be seen a probe ends by loss only: the less often the last ones found something,
  // the less often it asks.
  const bool found = m_.max_bw() >= up_start_bw_ * kBandwidthGrowthThreshold || !path_loss_.QueueInvisible();
  probe_wait_factor_ = found ? 1.0 : std::min(probe_wait_factor_ * kFruitlessBackoff, kMaxFruitlessBackoff);
  const double spread = probe_wait_factor_ * (1 + kProbeWaitSpread * m_.random.Uniform());
  m_.cycle.bw_probe_wait = Duration(static_cast<int64_t>(static_cast<double>(base.count()) * spread));
}

// Loss puts a probe off, but not for ever: if what is lost is the path's own, only a probe can show it.
bool TargetLossPolicy::IsTimeToProbeBw() const {
  const Instant now = m_.event.now;
  if (!m_.cycle.HasElapsed(now, m_.cycle.bw_probe_wait)) return false;
  return (response_.verdict() == LossVerdict::kRaise && !m_.cycle.prev_probe_too_high) ||
         m_.cycle.HasElapsed(now, m_.cycle.bw_probe_wait * kLossyProbeBackoff / 2);
}

bool TargetLossPolicy::IsTimeToCruise() const {
  const uint64_t rounds = m_.cycle.rounds_in_down;
  return rounds >= kDownRounds && (BbrPolicy::IsTimeToCruise() || IsYieldingFutile());
}

// The queue that this UP has built, not one that others keep there: that would never let us ask for our
// share.
bool TargetLossPolicy::UpBuiltQueue(double of_min_rtt) const {
  const Duration rtt = m_.event.path_rtt;
  return m_.has_min_rtt() && rtt > Duration::zero() &&
         rtt - up_start_rtt_ > m_.min_rtt() * of_min_rtt + PathLoss::kTimerSlack;
}

bool TargetLossPolicy::IsTimeToGoDown() {
  // Where a queue stands before we have asked for anything, others are on the path: to get a share takes more
  // room.
  const bool shared =
      m_.has_min_rtt() && up_start_rtt_ - m_.min_rtt() > m_.min_rtt() / kSharedShare + PathLoss::kTimerSlack;
  if (m_.cycle.ack_phase == AckPhase::kProbeFeedback &&
      UpBuiltQueue(shared ? kSharedQueueGuard : kQueueGuard) &&
      m_.max_bw() < up_start_bw_ * kBandwidthGrowthThreshold) {
    return true;
  }
  return BbrPolicy::IsTimeToGoDown();
}

// Neither loss nor queue: the bound is from another time, so it may grow as fast as UP sends.
void TargetLossPolicy::ProbeInflightLongtermUpward() {
  if (m_.cycle.ack_phase == AckPhase::kProbeFeedback && !UpBuiltQueue(kQueueGuard / 2) &&
      m_.rounds.cwnd_limited() && m_.cwnd >= m_.bounds.inflight_longterm) {
    m_.bounds.inflight_longterm += m_.event.newly_acked * kLongtermGrowth;
    return;
  }
  BbrPolicy::ProbeInflightLongtermUpward();
}

// The server knows the path of all workers better than one of them: where its grant is within a probe's reach
// of what was delivered, the grant sets the rate and takes the part of the cycle. A queue that stands says
// that the grants are more than the path has: the cycle drains it.
bool TargetLossPolicy::FollowsGrant() const {
  return m_.IsInProbeBw() && !m_.grant.IsZero() && m_.grant <= m_.max_bw() * Bbr::kProbeUpPacingGain &&
         !QueueStands();
}

Bandwidth TargetLossPolicy::PacingRate(double gain) const {
  if (!FollowsGrant()) return BbrPolicy::PacingRate(gain);
  return std::min(m_.max_bw() * Bbr::kProbeUpPacingGain, m_.bounds.bw_shortterm) * kPacingMargin;
}

Bandwidth TargetLossPolicy::RateCeiling() const {
  return path_loss_.experiment() ? path_loss_.reference() * PathLoss::kExperimentGain : Bandwidth::Max();
}

// --- Output ---

ByteCount TargetLossPolicy::InflightWithHeadroom() const {
  const ByteCount headroom = BbrPolicy::InflightWithHeadroom();
  if (headroom == BbrBounds::kInfinite) return headroom;
  return std::max(headroom, std::min(m_.bounds.inflight_longterm, m_.Inflight(1.0) + m_.send_quantum));
}

double TargetLossPolicy::CwndGain() const {
  if (FollowsGrant()) return steady_cwnd_gain_;
  // The BDP of the path as it is found now.
  const Duration queue = IsYieldingFutile() ? yielding_.queue : Duration(0);
  if (queue > Duration(0))
    return steady_cwnd_gain_ *
           (1 + static_cast<double>(queue.count()) / static_cast<double>(m_.min_rtt().count()));
  switch (m_.state) {
    case BbrState::kProbeBwDown:
      return 1.0;
    case BbrState::kProbeBwCruise:
    case BbrState::kProbeBwRefill:
      return steady_cwnd_gain_;
    case BbrState::kProbeBwUp:
      return steady_cwnd_gain_ + Bbr::kProbeUpCwndGain - BbrModel::kDefaultCwndGain;
    case BbrState::kStartup:
    case BbrState::kDrain:
    case BbrState::kProbeRtt:
      break;
  }
  return m_.cwnd_gain;
}

void TargetLossPolicy::AdaptCwndGain() {
  if (response_.verdict() == LossVerdict::kRaise) {
    steady_cwnd_gain_ = std::min(BbrModel::kDefaultCwndGain, steady_cwnd_gain_ * kGainGrowth);
  } else if (path_loss_.QueueSeen(m_.rounds.last())) {
    steady_cwnd_gain_ = std::max(kMinCwndGain, steady_cwnd_gain_ * kGainCut);
  }
}

ByteCount TargetLossPolicy::SendQuantum() const {
  const ByteCount share =
      std::max(ByteCount(m_.Bdp().value() / kQuantaPerBdp), m_.bounded_rate * kQuantumAlways);
  return std::min(BbrPolicy::SendQuantum(), std::max(share, m_.Packets(2)));
}

bool TargetLossPolicy::suppresses_samples() const {
  return BbrPolicy::suppresses_samples() || m_.rate_bound != RateLimiter::kPacing;
}

std::optional<double> TargetLossPolicy::path_loss() const {
  if (!path_loss_.known()) return std::nullopt;
  return path_loss_.upper();
}

FitSnapshot TargetLossPolicy::Fit() const {
  const bool fitted = target_.state == FitState::kFitted;
  const bool known = fitted || target_.state == FitState::kGranted;
  const bool application = !known && app_limited_ > 0.5;
  return {.floor = fitted ? target_.floor : path_loss_.floor(),
          .capacity = target_.capacity,
          .r_squared = target_.r_squared,
          .samples = target_.samples,
          .state = application ? "app_limited" : FitStateName(target_.state),
          .basis = TargetBasisName(target_.basis)};
}

}  // namespace longhaul::transport
