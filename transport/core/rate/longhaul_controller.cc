#include "transport/core/rate/longhaul_controller.h"

#include <algorithm>

namespace longhaul::transport {
namespace {

constexpr double kFloorMargin = 0.02;   // l* before there is a fit
constexpr double kBubbleMargin = 0.1;   // the bubble threshold stays this much above the floor
constexpr double kMaxThresh = 0.9;      // a peer may acknowledge what it likes
constexpr double kMaxExcused = 0.5;     // of what was sent
constexpr double kSentLow = 0.92;       // DOWN's gain, and a little
constexpr int64_t kFloorMemory = 3000;  // packets
constexpr double kBelieved = 0.8;
constexpr Duration kVisibleQueue = std::chrono::milliseconds(2);
constexpr double kHalf = 0.5;
constexpr double kRecovery = 1.25;  // per round trip below the target
constexpr double kSlowRecovery = 1.02;
constexpr double kFarBelow = 0.7;
constexpr uint64_t kDownRounds = 2;
constexpr uint64_t kMaxDownRounds = 8;
constexpr double kBlindDownGain = 0.75;
constexpr double kQueueGuard = 0.1;  // of the minimum RTT
constexpr double kSharedQueueGuard = 0.2;
constexpr double kStillGrowing = 1.1;
constexpr double kLongtermGrowth = 0.5;  // of what a round trip acknowledges
constexpr Duration kProbeWait = std::chrono::milliseconds(1000);
constexpr int kProbeWaitRounds = 10;
constexpr double kProbeWaitSpread = 0.5;
constexpr double kFruitlessBackoff = 1.5;
constexpr double kMaxFruitlessBackoff = 1.7;
constexpr int kLossyProbeBackoff = 3;  // halves of the wait
constexpr double kThreshSigmas = 3;
constexpr double kLongQueue = 0.5;  // of the minimum RTT
constexpr double kContradiction = 0.85;
constexpr int kContradictingRounds = 2;
constexpr int64_t kContradictingPackets = 100;
constexpr double kFloorSigmas = 1.5;
constexpr uint64_t kRoundsPerFit = 8;
constexpr double kStandingQueue = 0.25;  // of the minimum RTT
constexpr double kYield = 0.97;
constexpr double kLeastYielded = 1.0 / 16;  // of the filter's maximum, which forgets within two cycles
constexpr double kMinCwndGain = 1.1;
constexpr double kGainCut = 0.85;
constexpr double kGainGrowth = 1.02;
constexpr int64_t kQuantaPerBdp = 64;
// A queue this long hurts nobody, and on paths shorter than a timer's lateness (inside a machine, a rack)
// shares of the BDP would be single datagrams: nothing to segment, and the timer would set the pace.
constexpr Duration kQuantumAlways = std::chrono::microseconds(50);
constexpr double kBurstWeight = 0.05;

}  // namespace

LonghaulController::LonghaulController(const RateOptions& options, Random random)
    : Bbr(options, random),
      short_queue_floor_(options.max_datagram, kFloorMemory),
      low_rate_floor_(options.max_datagram),
      response_(options.max_datagram) {}

void LonghaulController::OnPacketSent(Instant now, ByteCount bytes, ByteCount bytes_in_flight,
                                      bool app_limited) {
  Bbr::OnPacketSent(now, bytes, bytes_in_flight, app_limited);
  sent_in_round_ += bytes;
  if (state_ != BbrState::kProbeBwDown || bounded_rate_ > max_bw_ * kSentLow) round_sent_low_ = false;
}

double LonghaulController::LossThresh() const {
  double margin = target_.state == FitState::kFitted ? TargetLossFit::kHeadroom : kFloorMargin;
  if (!FloorIsOfShortQueue()) margin = std::max(margin, kFloorSigmas * low_rate_floor_.deviation());
  double target = std::max(kLossThresh, floor() + margin);
  if (target_.state == FitState::kFitted) target = std::max(target, target_.target);
  return std::min(target, kMaxThresh);
}

bool LonghaulController::LossTooHigh(ByteCount lost, ByteCount total) const {
  return LossResponse::Exceeds(total / options_.max_datagram, lost / options_.max_datagram, LossThresh(),
                               kThreshSigmas, mean_burst_);
}

Bandwidth LonghaulController::SampleRate(const RateSample& sample) const {
  const double floor = Excused();
  const double served = 1 / (1 - floor);  // sent bytes for each one delivered
  Bandwidth rate = sample.train_rate * served;
  if (sample.valid) {
    const double lost = sample.delivered.value() > 0 ? sample.lost / sample.delivered : 0.0;
    rate = std::max(rate, sample.delivery_rate * (1 + std::min(lost, floor * served)));
  }
  return rate;
}

bool LonghaulController::IsSampleLimited(const RateSample& sample) const {
  return sample.app_limited && sample.train_rate.IsZero();
}

void LonghaulController::OnCongestionEvent(const CongestionEvent& event) {
  Bbr::OnCongestionEvent(event);
  ForgetAnotherPath();
  if (path_rtt_ > Duration::zero()) last_rtt_ = path_rtt_;
  LearnShortQueueFloor();
}

// Among several flows a tenth less of one share would not end what the others lose; where the queue does not
// show whose loss it is, DOWN steps back far enough to see.
double LonghaulController::DownGain() const {
  return QueueInvisible() ? kBlindDownGain : kProbeDownPacingGain;
}

void LonghaulController::OnRoundEnd() {
  if (rounds_in_down_ <= 1) low_rate_bytes_in_down_ = ByteCount();
  if (state_ == BbrState::kProbeBwRefill) {  // UP begins with this event
    up_start_rtt_ = last_round_.min_rtt == Duration::max() ? smoothed_rtt_ : last_round_.min_rtt;
    up_start_bw_ = max_bw_;
  }
  LearnBurst();
  LearnLowRateFloor();
  if (last_round_.Total().value() == 0) return;
  const double threshold = std::max(options_.bubble_threshold, floor() + kBubbleMargin);
  response_.OnRound(last_round_.acked, last_round_.lost, LossThresh(), threshold, mean_burst_);
  AdaptCwndGain();
  FeedFit();
  ForgetWhatIsContradicted();
}

// The packets of the round that has just ended were sent in the one before it.
void LonghaulController::FeedFit() {
  const Duration length = now_ - last_round_.start;
  if (!last_round_.limited && !previous_limited_ && previous_phase_ && length > Duration::zero() &&
      previous_length_ > Duration::zero()) {
    RateRound round;
    round.sent = Bandwidth::FromBytesAndTime(previous_sent_, previous_length_);
    round.delivered = Bandwidth::FromBytesAndTime(last_round_.acked, length);
    round.loss = (last_round_.lost - last_round_.marked) / last_round_.Total();
    round.packets = last_round_.Total() / options_.max_datagram;
    round.queue = has_min_rtt() ? std::max(Duration(0), smoothed_rtt_ - min_rtt_) : Duration(0);
    round.phase = *previous_phase_;
    fit_.OnRound(round);
  }
  previous_limited_ = last_round_.limited;
  previous_phase_ = Phase();
  if (round_count_ % kRoundsPerFit == 0) Refit();
}

std::optional<RatePhase> LonghaulController::Phase() const {
  switch (state_) {
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

void LonghaulController::Refit() {
  if (has_min_rtt()) target_ = fit_.Fit(options_.loss_budget, min_rtt_);
}

void LonghaulController::OnWindowStart(Instant now) {
  Refit();
  Bbr::OnWindowStart(now);
}

// Much less arrives than was sent, round after round, beyond what the path loses by itself: the filter would
// go on for two cycles to remember what the path no longer has.
void LonghaulController::ForgetWhatIsContradicted() {
  const Bandwidth sent = Bandwidth::FromBytesAndTime(previous_sent_, previous_length_);
  previous_sent_ = sent_in_round_;
  previous_length_ = now_ - last_round_.start;
  sent_in_round_ = ByteCount();
  const bool congested = response_.verdict() != LossVerdict::kRaise ||
                         (has_min_rtt() && last_round_.min_rtt != Duration::max() &&
                          last_round_.min_rtt - min_rtt_ > min_rtt_ * kLongQueue);
  if (!FloorKnown() || IsProbingBw() || last_round_.limited || !congested ||
      last_round_.bw >= std::min(sent, max_bw_) * kContradiction) {
    contradicting_rounds_ = 0;
    contradicting_bytes_ = ByteCount();
    contradicting_bw_ = Bandwidth::Zero();
    return;
  }
  contradicting_bw_ = std::max(contradicting_bw_, last_round_.bw);
  contradicting_bytes_ += last_round_.Total();
  if (++contradicting_rounds_ < kContradictingRounds) return;
  if (contradicting_bytes_ < options_.max_datagram * kContradictingPackets) return;
  max_bw_slots_ = {contradicting_bw_, contradicting_bw_};
  max_bw_ = contradicting_bw_;
  contradicting_rounds_ = 0;
  contradicting_bytes_ = ByteCount();
  contradicting_bw_ = Bandwidth::Zero();
}

// Of a window shorter than the path only the train tells, in the middle of the round trip.
std::optional<Bandwidth> LonghaulController::FullBwSample() const {
  if (last_round_.limited) return std::nullopt;
  return last_round_.bw;
}

void LonghaulController::LearnBurst() {
  if (last_round_.loss_events == 0 || IsProbingBw()) return;
  const double run = last_round_.lost / options_.max_datagram / last_round_.loss_events;
  mean_burst_ += kBurstWeight * (std::clamp(run, 1.0, 64.0) - mean_burst_);
}

// A minimum RTT that has grown is of another path: what looked like its queue was its length.
void LonghaulController::ForgetAnotherPath() {
  if (known_min_rtt_ > Duration::zero() && min_rtt_ > known_min_rtt_ + known_min_rtt_ / 8 + kVisibleQueue) {
    longest_queue_.Reset();
    short_queue_floor_ = LossFloor(options_.max_datagram, kFloorMemory);
    low_rate_floor_ = SmallestLossFloor(options_.max_datagram);
    fit_.Reset();
    target_ = TargetLoss();
  }
  if (has_min_rtt()) known_min_rtt_ = min_rtt_;
}

// The packets of this event are next to the one whose RTT it carries; a loss that a timer found is next to
// the last.
void LonghaulController::LearnShortQueueFloor() {
  if (!has_min_rtt() || last_rtt_ == Duration::zero()) return;
  const Duration queue = std::max(Duration(0), last_rtt_ - min_rtt_);
  longest_queue_.Update(queue.count(), round_count_);
  const Duration shortish = Duration(longest_queue_.Best()) / 2;
  if (queue <= shortish) short_queue_floor_.OnPackets(newly_acked_, newly_lost_);
}

void LonghaulController::LearnLowRateFloor() {
  if (previous_sent_low_ && !QueueSeen(last_round_)) {
    low_rate_floor_.OnPackets(last_round_.acked, last_round_.lost - last_round_.marked);
    low_rate_bytes_in_down_ += last_round_.Total();
  }
  previous_sent_low_ = round_sent_low_;
  round_sent_low_ = full_bw_reached_;
}

// A queue that is too short to be told from the noise of ACKs.
bool LonghaulController::QueueInvisible() const {
  return Duration(longest_queue_.Best()) < std::max<Duration>(kVisibleQueue, min_rtt_ / 8);
}

// Two measures. While the queue can be seen, the loss in a short queue is the path's. Where it cannot, what
// DOWN has lost stands in; other flows' overload can be in that, so it is not excused in full: flows that
// excuse each other's overload would keep it up for ever, while a floor excused to four fifths dies out,
// cycle by cycle, unless the path feeds it.
double LonghaulController::floor() const {
  const double floor = FloorIsOfShortQueue() ? short_queue_floor_.value() : low_rate_floor_.value();
  return std::min(floor, kMaxExcused);
}

bool LonghaulController::FloorKnown() const { return FloorIsOfShortQueue() || low_rate_floor_.known(); }

bool LonghaulController::FloorIsOfShortQueue() const {
  return !QueueInvisible() && short_queue_floor_.known();
}

double LonghaulController::Excused() const { return FloorIsOfShortQueue() ? floor() : floor() * kBelieved; }

bool LonghaulController::QueueSeen(const Round& round) const {
  if (!has_min_rtt() || round.min_rtt == Duration::max()) return false;
  return round.min_rtt > min_rtt_ + min_rtt_ / 8 + std::chrono::milliseconds(1);
}

// The sum of what several flows have once seen is more than the path has: a queue stands although nobody
// probes. Then what the last round trip delivered is the share, and a little less drains. Not without end: on
// paths much shorter than a millisecond a busy host delays packets as a queue does, and no rate is low enough
// to end that.
bool LonghaulController::YieldToStandingQueue() {
  if (state_ != BbrState::kProbeBwCruise || last_round_.limited || !has_min_rtt()) return false;
  if (last_round_.min_rtt == Duration::max() ||
      last_round_.min_rtt - min_rtt_ <= min_rtt_ * kStandingQueue + std::chrono::milliseconds(1))
    return false;
  InitLowerBounds();
  bw_shortterm_ = std::min(bw_shortterm_, std::max(last_round_.bw * kYield, max_bw_ * kLeastYielded));
  return true;
}

void LonghaulController::AdaptLowerBoundsFromCongestion() {
  if (IsProbingBw()) return;
  if (YieldToStandingQueue() && response_.verdict() == LossVerdict::kRaise) return;
  const LossVerdict verdict = response_.verdict();
  if (verdict != LossVerdict::kRaise && state_ == BbrState::kProbeBwCruise && !FloorIsOfShortQueue() &&
      !low_rate_floor_.solid()) {
    StartProbeBwDown();  // measure first what the path loses by itself
    if (verdict == LossVerdict::kHold) return;
  }
  switch (verdict) {
    case LossVerdict::kRaise:
      LiftLowerBounds();
      break;
    case LossVerdict::kHold:
      InitLowerBounds();
      bw_shortterm_ = std::min(bw_shortterm_, std::max(bw_latest_, bw_shortterm_ * kBeta));
      inflight_shortterm_ =
          std::min(inflight_shortterm_, std::max(inflight_latest_, inflight_shortterm_ * kBeta));
      break;
    case LossVerdict::kHalve:
      InitLowerBounds();
      // Half of what arrives is as low as one round trip's loss can call for; a few packets' bad luck, round
      // after round, would otherwise end at no rate at all.
      bw_shortterm_ = std::min(bw_shortterm_,
                               std::max(bw_shortterm_ * kHalf, std::max(bw_latest_, last_round_.bw) * kHalf));
      inflight_shortterm_ = std::max(inflight_shortterm_ * kHalf, options_.max_datagram * kMinPipePackets);
      break;
  }
}

// Fast from a halved rate; near what the filter holds only step by step, and not into a standing queue: with
// several flows the sum of what each has once seen is more than the path has.
void LonghaulController::LiftLowerBounds() {
  if (bw_shortterm_ == Bandwidth::Max()) return;
  if (QueueSeen(last_round_)) return;
  const bool far = bw_shortterm_ < max_bw_ * kFarBelow;
  const double lift = far ? kRecovery : kSlowRecovery;
  bw_shortterm_ = bw_shortterm_ * lift;
  if (inflight_shortterm_ != kInfinite) inflight_shortterm_ = inflight_shortterm_ * lift;
  if (bw_shortterm_ >= max_bw_) ResetShortTermModel();
}

// Not for ever: if what is lost is the path's own, only a probe can show it.
bool LonghaulController::MayProbeBw() const {
  return (response_.verdict() == LossVerdict::kRaise && !prev_probe_too_high_) ||
         HasElapsedInPhase(bw_probe_wait_ * kLossyProbeBackoff / 2);
}

ByteCount LonghaulController::InflightWithHeadroom() const {
  const ByteCount headroom = Bbr::InflightWithHeadroom();
  if (headroom == kInfinite) return headroom;
  return std::max(headroom, std::min(inflight_longterm_, Inflight(1.0) + send_quantum_));
}

bool LonghaulController::IsTimeToCruise() const {
  const bool measured = low_rate_bytes_in_down_ >= options_.max_datagram * LossFloor::kMinPackets;
  return rounds_in_down_ >= kDownRounds && (measured || rounds_in_down_ >= kMaxDownRounds) &&
         Bbr::IsTimeToCruise();
}

// Often where probing costs a little queue, so that shares even out within seconds; seldom where it costs
// loss.
void LonghaulController::PickProbeWait() {
  rounds_since_probe_up_ = 0;
  const Duration base = has_min_rtt() ? std::max(kProbeWait, min_rtt_ * kProbeWaitRounds) : kProbeWait;
  // Where the queue cannot be seen a probe ends by loss only: the less often the last ones found something,
  // the less often it asks.
  const bool found = max_bw_ >= up_start_bw_ * kStillGrowing || !QueueInvisible();
  probe_wait_factor_ = found ? 1.0 : std::min(probe_wait_factor_ * kFruitlessBackoff, kMaxFruitlessBackoff);
  const double spread = probe_wait_factor_ * (1 + kProbeWaitSpread * random_.Uniform());
  bw_probe_wait_ = Duration(static_cast<int64_t>(static_cast<double>(base.count()) * spread));
}

// The queue that this UP has built, not one that others keep there: that would never let us ask for our
// share.
bool LonghaulController::UpBuiltQueue(double of_min_rtt) const {
  return has_min_rtt() && path_rtt_ > Duration::zero() &&
         path_rtt_ - up_start_rtt_ > min_rtt_ * of_min_rtt + std::chrono::milliseconds(1);
}

bool LonghaulController::IsTimeToGoDown() {
  // Where a queue stands before we have asked for anything, others are on the path: to get a share takes more
  // room.
  const bool shared =
      has_min_rtt() && up_start_rtt_ - min_rtt_ > min_rtt_ / 16 + std::chrono::milliseconds(1);
  const double guard = shared ? kSharedQueueGuard : kQueueGuard;
  if (ack_phase_ == AckPhase::kProbeFeedback && UpBuiltQueue(guard) &&
      max_bw_ < up_start_bw_ * kStillGrowing) {
    return true;
  }
  return Bbr::IsTimeToGoDown();
}

// Neither loss nor queue: the bound is from another time, so it may grow as fast as UP sends.
void LonghaulController::ProbeInflightLongtermUpward() {
  if (ack_phase_ == AckPhase::kProbeFeedback && !UpBuiltQueue(kQueueGuard / 2)) {
    if (cwnd_limited_ && cwnd_ >= inflight_longterm_) {
      inflight_longterm_ += newly_acked_ * kLongtermGrowth;
      return;
    }
  }
  Bbr::ProbeInflightLongtermUpward();
}

double LonghaulController::CwndGain() const {
  switch (state_) {
    case BbrState::kProbeBwDown:
      return 1.0;
    case BbrState::kProbeBwCruise:
    case BbrState::kProbeBwRefill:
      return steady_cwnd_gain_;
    case BbrState::kProbeBwUp:
      return steady_cwnd_gain_ + kProbeUpCwndGain - kDefaultCwndGain;
    case BbrState::kStartup:
    case BbrState::kDrain:
    case BbrState::kProbeRtt:
      return cwnd_gain_;
  }
  return cwnd_gain_;
}

void LonghaulController::AdaptCwndGain() {
  if (response_.verdict() == LossVerdict::kRaise) {
    steady_cwnd_gain_ = std::min(kDefaultCwndGain, steady_cwnd_gain_ * kGainGrowth);
  } else if (QueueSeen(last_round_)) {
    steady_cwnd_gain_ = std::max(kMinCwndGain, steady_cwnd_gain_ * kGainCut);
  }
}

bool LonghaulController::StartupLossIsOurs() const {
  return QueueSeen(last_round_) || full_bw_count_ + 1 >= kFullBwRounds;
}

bool LonghaulController::MeetsMinRtt(Duration rtt) const {
  return has_min_rtt() && rtt <= min_rtt_ + min_rtt_ / 64;
}

void LonghaulController::SetSendQuantum() {
  Bbr::SetSendQuantum();
  const ByteCount share = std::max(ByteCount(Bdp().value() / kQuantaPerBdp), bounded_rate_ * kQuantumAlways);
  send_quantum_ = std::min(send_quantum_, std::max(share, options_.max_datagram * int64_t{2}));
}

std::optional<double> LonghaulController::path_loss() const {
  if (!FloorIsOfShortQueue()) return std::nullopt;
  return short_queue_floor_.upper();
}

RateSnapshot LonghaulController::Snapshot() const {
  RateSnapshot snapshot = Bbr::Snapshot();
  snapshot.fit.floor = target_.state == FitState::kFitted ? target_.floor : floor();
  snapshot.fit.capacity = target_.capacity;
  snapshot.fit.r_squared = target_.r_squared;
  snapshot.fit.samples = target_.samples;
  snapshot.fit.state = FitStateName(target_.state);
  return snapshot;
}

}  // namespace longhaul::transport
