#include "transport/core/rate/target_loss_policy.h"

#include <algorithm>

#include "base/check.h"
#include "transport/core/rate/bbr/bbr.h"

namespace longhaul::transport {
namespace {

using std::chrono::milliseconds;

// "x2": what half and twice the value (or its distance from 1) changed in 13 cells of simulated paths; see
// path_loss.cc. "0010": docs/decisions/0010.

// --- What is too much loss ---
constexpr double kFloorMargin = BbrPolicy::kLossThresh;  // l* before there is a fit: the draft's 2 % above l0
// The rate is not halved below this much above l0. x2: at 0.2 four flows in 0.05 BDP lose 33 %, not 19 %.
constexpr double kHalveMargin = 0.1;
constexpr double kMaxThresh = 0.9;   // a peer may acknowledge anything; InflightAtLoss divides by 1 less it
constexpr double kThreshSigmas = 3;  // asked at every loss of a probe: chance exceeds it once in 740 times
// Of a floor of 200 packets; one of 15 is further off. x2: at 3 own loss at 1 ms, 5 % is 5.9 %, not 3.2 %.
constexpr double kFloorSigmas = 1.5;

// --- What a bound becomes ---
constexpr double kHalvingFactor = 0.5;                 // mission A5
constexpr double kRecovery = Bbr::kProbeUpPacingGain;  // per round trip below the target: as fast as UP asks
// Per round trip near max_bw. x2: 1.01 costs 0.04 of the utilisation at 20 % loss in 0.25 BDP; 1.04 adds 0.13
// BDP of queue for four flows.
constexpr double kSlowRecovery = 1.02;
constexpr double kFarBelow = BbrBounds::kBeta;  // of max_bw: further below than one loss can have put it
// Of the minimum RTT: what UP's gain queues in a round trip. x2: at 0.5 the queue at 5 % is 0.26 BDP, not
// 0.18.
constexpr double kStandingQueue = 0.25;
constexpr double kCompetitionBackoff = 0.97;  // of what the last round delivered; x2: nothing
constexpr double kLeastYielded = 1.0 / 16;    // of max_bw, for paths of microseconds (0010, 12); x2: nothing

// --- When what the filter remembers is void ---
// x2: a rate that falls to a fifth loses 10.2 % at half of kLongQueue or kContradictingPackets, not 11.1; 9.4
// % at one contradicting round, 15.4 % at four; kContradiction changes nothing.
constexpr double kLongQueue = 0.5;       // of the minimum RTT
constexpr double kContradiction = 0.85;  // delivered, of the smaller of sent and remembered
constexpr int kContradictingRounds = 2;  // one may be a stall
constexpr int64_t kContradictingPackets = 100;

// --- The cycle ---
constexpr uint64_t kDownRounds = 2;  // one drains, the next brings the fate of its packets
constexpr uint64_t kMaxDownRounds =
    8;  // at four packets a round LossFloor::kMinPackets take five, after draining
constexpr double kBlindDownGain = 0.75;    // 0010, 2: a tenth less of one share ends no other flow's loss
constexpr double kQueueGuard = 0.1;        // of the minimum RTT (0010, 6)
constexpr double kSharedQueueGuard = 0.2;  // likewise, where others share the path
constexpr int kSharedShare = 16;           // of the minimum RTT, its inverse; x2: nothing
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

// --- The window ---
constexpr double kMinCwndGain = 1.1;  // ACKs that come late; x2: nothing but 0.1 BDP of queue for four flows
// Per round trip that is lossy behind a queue. x2: at 0.7 the least of four shares is 0.84, not 0.71.
constexpr double kGainCut = 0.85;
constexpr double kGainGrowth = 1.02;   // per round trip below the target: eight make up for one cut
constexpr int64_t kQuantaPerBdp = 64;  // in 0.05 BDP of buffer 0.90 of the capacity, not 0.40 (0010, 9)
// A queue this long costs nothing, and on paths shorter than a timer's lateness (inside a machine, a rack)
// shares of the BDP would be single datagrams: nothing to segment, and the timer would set the pace.
constexpr Duration kQuantumAlways = std::chrono::microseconds(50);

static_assert(kMaxThresh < 1 && kLeastYielded < kCompetitionBackoff && kCompetitionBackoff < 1);
static_assert(kSlowRecovery < kRecovery && kFarBelow * kRecovery < 1, "a fast step never passes max_bw");
static_assert(kQueueGuard < kSharedQueueGuard && kDownRounds < kMaxDownRounds);
static_assert(1 < kMinCwndGain && kMinCwndGain < BbrModel::kDefaultCwndGain);

}  // namespace

TargetLossPolicy::TargetLossPolicy(BbrModel* model)
    : BbrPolicy(model), path_loss_(model), response_(m_.options.max_datagram) {}

// --- Events ---

void TargetLossPolicy::OnPacketSent(ByteCount bytes) {
  sent_in_round_ += bytes;
  path_loss_.OnPacketSent();
}

void TargetLossPolicy::OnRoundEnd() {
  const BbrRounds::Round& last = m_.rounds.last();
  if (m_.state == BbrState::kProbeBwRefill) {  // UP begins with this event
    up_start_rtt_ = last.min_rtt == Duration::max() ? m_.event.smoothed_rtt : last.min_rtt;
    up_start_bw_ = m_.max_bw();
  }
  path_loss_.OnRoundEnd();
  if (last.Total().value() == 0) return;
  const double threshold = std::max(m_.options.halve_threshold, path_loss_.floor() + kHalveMargin);
  response_.OnRound(last.acked, last.lost, LossThresh(), threshold, path_loss_.mean_burst());
  AdaptCwndGain();
  const SentRound sent = previous_;
  FeedFit(sent);
  previous_ = {sent_in_round_, m_.event.now - last.start, Phase(), last.limited};
  sent_in_round_ = ByteCount();
  ForgetWhatIsContradicted(sent.rate());
}

void TargetLossPolicy::OnEventEnd() {
  if (!path_loss_.OnEventEnd()) return;
  fit_.Reset();
  target_ = TargetLoss();
}

void TargetLossPolicy::FeedFit(const SentRound& sent) {
  const BbrRounds::Round& last = m_.rounds.last();
  const Duration length = m_.event.now - last.start;
  if (!last.limited && !sent.limited && sent.phase && length > Duration::zero() &&
      sent.length > Duration::zero()) {
    RateRound round;
    round.sent = sent.rate();
    round.delivered = Bandwidth::FromBytesAndTime(last.acked, length);
    round.loss = (last.lost - last.marked) / last.Total();
    round.packets = last.Total() / m_.options.max_datagram;
    round.queue = m_.QueueDelay();
    round.phase = *sent.phase;
    fit_.OnRound(round);
  }
  if (m_.rounds.count() % kRoundsPerFit == 0) Refit();
}

std::optional<RatePhase> TargetLossPolicy::Phase() const {
  switch (m_.state) {
    case BbrState::kProbeBwDown:
      return RatePhase::kDown;
    case BbrState::kProbeBwCruise:
    case BbrState::kProbeBwRefill:
      return RatePhase::kCruise;
    case BbrState::kProbeBwUp:
      return RatePhase::kUp;
    case BbrState::kStartup:
    case BbrState::kDrain:
    case BbrState::kProbeRtt:
      return std::nullopt;
  }
  return std::nullopt;
}

void TargetLossPolicy::Refit() {
  if (m_.has_min_rtt()) target_ = fit_.Fit(m_.options.loss_budget, m_.min_rtt());
}

// Much less arrives than was sent, round after round, beyond what the path loses by itself: without this the
// filter would hold for two cycles what the path no longer has.
void TargetLossPolicy::ForgetWhatIsContradicted(Bandwidth sent) {
  const BbrRounds::Round& last = m_.rounds.last();
  const bool congested =
      response_.verdict() != LossVerdict::kRaise || (m_.has_min_rtt() && last.min_rtt != Duration::max() &&
                                                     last.min_rtt - m_.min_rtt() > m_.min_rtt() * kLongQueue);
  if (!path_loss_.known() || m_.IsProbingBw() || last.limited || !congested ||
      last.bw >= std::min(sent, m_.max_bw()) * kContradiction) {
    contradiction_ = {};
    return;
  }
  contradiction_.bw = std::max(contradiction_.bw, last.bw);
  contradiction_.bytes += last.Total();
  if (++contradiction_.rounds < kContradictingRounds) return;
  if (contradiction_.bytes < m_.Packets(kContradictingPackets)) return;
  m_.max_bw_filter.Replace(contradiction_.bw);
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

// Of a window shorter than the path only the train has a sample, in the middle of the round trip.
std::optional<Bandwidth> TargetLossPolicy::FullBwSample() const {
  if (m_.rounds.last().limited) return std::nullopt;
  return m_.rounds.last().bw;
}

bool TargetLossPolicy::MeetsMinRtt(Duration rtt) const {
  return m_.has_min_rtt() && rtt <= m_.min_rtt() + m_.min_rtt() / kMetShare;
}

// --- Loss ---

double TargetLossPolicy::LossThresh() const {
  const bool fitted = target_.state == FitState::kFitted;
  const double margin =
      std::max(fitted ? TargetLossFit::kHeadroom : kFloorMargin, kFloorSigmas * path_loss_.deviation());
  double target = std::max(kLossThresh, path_loss_.floor() + margin);
  if (fitted) target = std::max(target, target_.target);
  return std::min(target, kMaxThresh);
}

bool TargetLossPolicy::LossTooHigh(ByteCount lost, ByteCount total) const {
  const ByteCount packet = m_.options.max_datagram;
  return LossResponse::Exceeds(total / packet, lost / packet, LossThresh(), kThreshSigmas,
                               path_loss_.mean_burst());
}

bool TargetLossPolicy::StartupLossIsOurs() const {
  return path_loss_.QueueSeen(m_.rounds.last()) || m_.full_pipe.count() + 1 >= FullPipe::kRounds;
}

bool TargetLossPolicy::AdaptLowerBoundsFromCongestion() {
  if (m_.IsProbingBw()) return false;
  const LossVerdict verdict = response_.verdict();
  if (YieldToStandingQueue() && verdict == LossVerdict::kRaise) return false;
  // Measure first what the path loses by itself. DOWN resets the signals when it starts; what follows must
  // not use them either.
  const bool measure =
      verdict != LossVerdict::kRaise && m_.state == BbrState::kProbeBwCruise && !path_loss_.IsSolid();
  if (measure) m_.bounds.ResetCongestionSignals();
  if (verdict == LossVerdict::kRaise) LiftLowerBounds();
  if (verdict == LossVerdict::kHold && !measure) HoldAtDelivered();
  if (verdict == LossVerdict::kHalve) Halve();
  return measure;
}

// The sum of what several flows have once seen is more than the path has: a queue stands although no flow
// probes. Then what the last round trip delivered is the share, and a little less drains. Not without end: on
// paths much shorter than a millisecond a busy host delays packets as a queue does, and no rate is low enough
// to end that.
bool TargetLossPolicy::YieldToStandingQueue() {
  const BbrRounds::Round& last = m_.rounds.last();
  if (m_.state != BbrState::kProbeBwCruise || last.limited || !m_.has_min_rtt()) return false;
  if (last.min_rtt == Duration::max() ||
      last.min_rtt - m_.min_rtt() <= m_.min_rtt() * kStandingQueue + PathLoss::kTimerSlack) {
    return false;
  }
  m_.InitLowerBounds();
  m_.bounds.bw_shortterm =
      std::min(m_.bounds.bw_shortterm, std::max(last.bw * kCompetitionBackoff, m_.max_bw() * kLeastYielded));
  return true;
}

void TargetLossPolicy::HoldAtDelivered() {
  m_.InitLowerBounds();
  BbrBounds& b = m_.bounds;
  b.bw_shortterm = std::min(b.bw_shortterm, std::max(b.bw_latest, b.bw_shortterm * BbrBounds::kBeta));
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
  if (b.bw_shortterm == Bandwidth::Max() || path_loss_.QueueSeen(m_.rounds.last())) return;
  const double lift = b.bw_shortterm < m_.max_bw() * kFarBelow ? kRecovery : kSlowRecovery;
  b.bw_shortterm = b.bw_shortterm * lift;
  if (b.inflight_shortterm != BbrBounds::kInfinite) b.inflight_shortterm = b.inflight_shortterm * lift;
  if (b.bw_shortterm >= m_.max_bw()) b.ResetShortTermModel();
}

// --- PROBE_BW ---

// Often where probing costs a little queue, so that shares even out within seconds; seldom where it costs
// loss.
void TargetLossPolicy::PickProbeWait() {
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
  return rounds >= kDownRounds && (path_loss_.MeasuredInDown() || rounds >= kMaxDownRounds) &&
         BbrPolicy::IsTimeToCruise();
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

// Among several flows a tenth less of one share would not end what the others lose; where the queue does not
// show whose loss it is, DOWN steps back far enough to see.
double TargetLossPolicy::DownGain() const {
  return path_loss_.QueueInvisible() ? kBlindDownGain : kProbeDownPacingGain;
}

// --- Output ---

ByteCount TargetLossPolicy::InflightWithHeadroom() const {
  const ByteCount headroom = BbrPolicy::InflightWithHeadroom();
  if (headroom == BbrBounds::kInfinite) return headroom;
  return std::max(headroom, std::min(m_.bounds.inflight_longterm, m_.Inflight(1.0) + m_.send_quantum));
}

double TargetLossPolicy::CwndGain() const {
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
  if (!path_loss_.IsOfShortQueue()) return std::nullopt;
  return path_loss_.upper();
}

FitSnapshot TargetLossPolicy::Fit() const {
  const bool fitted = target_.state == FitState::kFitted;
  return {fitted ? target_.floor : path_loss_.floor(), target_.capacity, target_.r_squared, target_.samples,
          FitStateName(target_.state)};
}

}  // namespace longhaul::transport
