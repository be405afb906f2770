#include "transport/core/rate/bbr_like_controller.h"

#include <algorithm>

#include "transport/core/recovery/ack_tracker.h"

namespace longhaul::transport {
namespace {

using State = BbrLikeController::State;

constexpr double kStartupGain = 2.77;  // 4 ln 2: the smallest that doubles the delivered rate per round trip
constexpr double kDrainGain = 1.0 / kStartupGain;
constexpr double kDownGain = 0.9;
constexpr double kUpGain = 1.25;
constexpr double kCwndGain = 2.0;
constexpr double kUpCwndExtra = 0.25;
// A queue that overflows (loss above the target while every RTT of the round shows a queue) is shortened step
// by step, and allowed again more slowly.
constexpr double kMinCwndGain = 1.1;
constexpr double kCwndGainCut = 0.85;
constexpr double kCwndGainGrowth = 1.02;
constexpr double kProbeFound = 1.1;  // of the 1.25 that UP asked for
constexpr double kProbeRttCwndGain = 0.5;
// The maximum of noisy samples is a little high; without the margin CRUISE would build a queue.
constexpr double kPacingMargin = 0.99;
constexpr int64_t kInitialCwndPackets = 32;
constexpr int64_t kMinCwndPackets = 4;
constexpr Duration kPacerBurst = std::chrono::milliseconds(2);  // Pacer::MaxCredit
constexpr Duration kProbeRttTime = std::chrono::milliseconds(200);
constexpr uint64_t kMinCruiseRounds = 2;
constexpr uint64_t kCruiseSpread = 4;
constexpr uint64_t kDownRounds = 2;  // the second is wholly sent low, and so measures the floor
constexpr uint64_t kMaxDownRounds = 4;
constexpr double kRecentLossWeight = 0.2;

}  // namespace

std::string_view StateName(State state) {
  switch (state) {
    case State::kStartup:
      return "startup";
    case State::kDrain:
      return "drain";
    case State::kDown:
      return "probe_bw_down";
    case State::kCruise:
      return "probe_bw_cruise";
    case State::kRefill:
      return "probe_bw_refill";
    case State::kUp:
      return "probe_bw_up";
    case State::kProbeRtt:
      return "probe_rtt";
  }
  return "unknown";
}

BbrLikeController::BbrLikeController(const RateOptions& options, Random random)
    : options_(options),
      random_(random),
      floor_(options.max_datagram),
      response_(options.target_loss, options.bubble_threshold, options.max_datagram),
      cwnd_gain_(kCwndGain) {
  Update();
}

void BbrLikeController::OnPacketSent(Instant now, ByteCount bytes, ByteCount bytes_in_flight,
                                     bool app_limited) {
  (void)now;
  (void)app_limited;
  if (bytes_in_flight == bytes) idle_restart_ = true;
  sent_in_state_ += bytes;
  if (!SendsBelowDelivery()) round_sent_low_ = false;
}

void BbrLikeController::OnCongestionEvent(const CongestionEvent& event) {
  // What the peer's host dropped is not the network's loss; a CE mark is congestion without a loss.
  const ByteCount host =
      options_.max_datagram * static_cast<int64_t>(std::min<uint64_t>(event.host_drops, 1u << 20));
  const ByteCount marked =
      options_.max_datagram * static_cast<int64_t>(std::min<uint64_t>(event.ecn_ce, 1u << 20));
  const ByteCount lost = std::max(ByteCount(), event.lost - host) + std::min(marked, event.acked);
  const bool queue_empty = idle_restart_;
  if (event.latest_rtt > Duration::zero()) idle_restart_ = false;
  const bool probing = response_.bound() >= model_.bandwidth() * BandwidthModel::kFullPipeGrowth;
  const bool new_round = model_.OnEvent(event, lost, queue_empty, probing);
  if (new_round) OnRoundEnd();
  AdvanceState(event, new_round);
  Update();
}

void BbrLikeController::OnRoundEnd() {
  ++rounds_in_state_;
  LearnFromRound();
  previous_sent_low_ = round_sent_low_;
  round_sent_low_ = true;
}

void BbrLikeController::LearnFromRound() {
  const BandwidthModel::Round& round = model_.last_round();
  const ByteCount total = round.acked + round.lost;
  if (total.value() == 0) return;
  if (previous_sent_low_) {
    queue_standing_ = QueueSeen(round);
    if (!queue_standing_) floor_.OnLowRateRound(round.acked, round.lost);
  }
  AdaptCwndGain(round);
  recent_loss_ += kRecentLossWeight * (round.lost / total - recent_loss_);
  response_.OnRound(round.acked, round.lost, floor_.value(), UnboundedRate());
}

void BbrLikeController::AdaptCwndGain(const BandwidthModel::Round& round) {
  const bool overflows = response_.Exceeds(round.acked, round.lost, response_.Target(floor_.value()));
  if (overflows && QueueSeen(round)) {
    cwnd_gain_ = std::max(kMinCwndGain, cwnd_gain_ * kCwndGainCut);
  } else if (!overflows) {
    cwnd_gain_ = std::min(kCwndGain, cwnd_gain_ * kCwndGainGrowth);
  }
}

bool BbrLikeController::QueueSeen(const BandwidthModel::Round& round) const {
  if (!model_.has_min_rtt() || round.min_rtt == Duration::max()) return false;
  return round.min_rtt > model_.min_rtt() + model_.min_rtt() / 8 + std::chrono::milliseconds(1);
}

bool BbrLikeController::SendsBelowDelivery() const {
  return model_.has_bandwidth() && pipe_filled_ && pacing_rate_ <= model_.bandwidth() * kDownGain;
}

void BbrLikeController::AdvanceState(const CongestionEvent& event, bool new_round) {
  switch (state_) {
    case State::kStartup:
      if (new_round) AdvanceStartup();
      break;
    case State::kDrain:
      if (event.bytes_in_flight <= FullPath()) Enter(State::kDown);
      break;
    case State::kDown:
      if (rounds_in_state_ >= kMaxDownRounds ||
          (rounds_in_state_ >= kDownRounds && event.bytes_in_flight <= FullPath())) {
        LeaveDown();
      }
      break;
    case State::kCruise:
      if (rounds_in_state_ < cruise_rounds_) break;
      Enter(response_.verdict() == LossVerdict::kRaise ? State::kRefill : State::kDown);
      break;
    case State::kRefill:
      if (rounds_in_state_ >= 1) Enter(State::kUp);
      break;
    case State::kUp: {
      const BandwidthModel::Round& round = model_.round();
      const bool too_much = response_.Exceeds(round.acked, round.lost, response_.Target(floor_.value()));
      // One round trip's worth at the higher rate. Counted in bytes, so that a pause of the application is no
      // probe.
      if (too_much || sent_in_state_ >= FullPath() * kUpGain) Enter(State::kDown);
      break;
    }
    case State::kProbeRtt:
      AdvanceProbeRtt(event);
      return;
  }
  if (model_.MinRttExpired(event.now) && !idle_restart_) Enter(State::kProbeRtt);
}

void BbrLikeController::LeaveDown() {
  // An UP that was given what it asked for found a path that is not full: ask again without a rest.
  const bool found =
      !bandwidth_before_up_.IsZero() && model_.bandwidth() >= bandwidth_before_up_ * kProbeFound;
  bandwidth_before_up_ = Bandwidth::Zero();
  const bool again = found && !queue_standing_ && response_.verdict() == LossVerdict::kRaise;
  Enter(again ? State::kRefill : State::kCruise);
}

void BbrLikeController::AdvanceStartup() {
  const BandwidthModel::Round& round = model_.last_round();
  const bool lossy = response_.Exceeds(round.acked, round.lost, options_.target_loss);
  // Loss alone does not end STARTUP, since a path may lose at any rate; loss with a standing queue, or with a
  // rate that no longer grows, is our own.
  const bool own_loss =
      lossy && (QueueSeen(round) || model_.stalled_rounds() + 1 >= BandwidthModel::kFullPipeRounds);
  if (!model_.pipe_full() && !own_loss) return;
  pipe_filled_ = true;
  Enter(State::kDrain);
}

void BbrLikeController::AdvanceProbeRtt(const CongestionEvent& event) {
  if (probe_rtt_end_.IsInfinite()) {
    if (event.bytes_in_flight > cwnd_) return;
    probe_rtt_end_ = event.now + kProbeRttTime;
    probe_rtt_round_ = model_.round_count();
    return;
  }
  if (event.latest_rtt > Duration::zero()) probe_rtt_min_ = std::min(probe_rtt_min_, event.latest_rtt);
  if (event.now >= probe_rtt_end_ && model_.round_count() > probe_rtt_round_) LeaveProbeRtt(event.now);
}

void BbrLikeController::LeaveProbeRtt(Instant now) {
  if (probe_rtt_min_ != Duration::max()) model_.SetMinRtt(probe_rtt_min_, now);
  Enter(pipe_filled_ ? State::kCruise : State::kStartup);
}

void BbrLikeController::Enter(State state) {
  state_ = state;
  rounds_in_state_ = 0;
  sent_in_state_ = ByteCount();
  if (state == State::kUp) bandwidth_before_up_ = model_.bandwidth();
  if (state == State::kCruise) cruise_rounds_ = kMinCruiseRounds + random_.Below(kCruiseSpread);
  if (state == State::kProbeRtt) {
    probe_rtt_end_ = Instant::Infinite();
    probe_rtt_min_ = Duration::max();
  }
}

void BbrLikeController::OnWindowStart(Instant now) {
  // The pause before the window was a PROBE_RTT for free.
  if (state_ == State::kProbeRtt && idle_restart_) LeaveProbeRtt(now);
  Update();
}

void BbrLikeController::SetGrant(Bandwidth rate) {
  grant_ = rate;
  Update();
}

double BbrLikeController::Gain() const {
  switch (state_) {
    case State::kStartup:
      return kStartupGain;
    case State::kDrain:
      return kDrainGain;
    case State::kDown:
      return kDownGain;
    case State::kUp:
      return kUpGain;
    case State::kCruise:
    case State::kRefill:
    case State::kProbeRtt:
      return 1.0;
  }
  return 1.0;
}

Bandwidth BbrLikeController::UnboundedRate() const {
  if (!model_.has_bandwidth()) return options_.initial;
  const Bandwidth rate = model_.bandwidth() * (Gain() * kPacingMargin);
  if (state_ == State::kDrain || state_ == State::kDown) return rate;
  // The first samples of STARTUP are of a flight that did not fill the path: they are no reason to slow down.
  if (state_ == State::kStartup) return std::max(rate, options_.initial);
  return rate * Compensation();
}

double BbrLikeController::Compensation() const { return queue_standing_ ? 1.0 : floor_.Compensation(); }

ByteCount BbrLikeController::FullPath() const { return model_.Bdp() * Compensation(); }

void BbrLikeController::Update() {
  Bandwidth rate = std::min({UnboundedRate(), response_.bound(), options_.cap});
  if (!grant_.IsZero()) rate = std::min(rate, grant_);
  pacing_rate_ = std::max(rate, options_.floor);

  const ByteCount initial = options_.max_datagram * kInitialCwndPackets;
  const ByteCount path = FullPath();
  if (path.value() == 0) {
    cwnd_ = initial;
    return;
  }
  if (state_ == State::kProbeRtt) {
    cwnd_ = std::max(options_.max_datagram * kMinCwndPackets, path * kProbeRttCwndGain);
    return;
  }
  // Room for what the two ends hold back: bursts of the pacer, and what waits at the receiver for its ACK.
  const Duration ack_delay = std::min<Duration>(model_.min_rtt() / 4, AckTracker::kMaxAckDelay);
  const ByteCount held =
      std::min(options_.max_datagram * int64_t{AckTracker::kMinPacketsPerAck}, pacing_rate_ * ack_delay);
  const double gain = cwnd_gain_ + (state_ == State::kUp ? kUpCwndExtra : 0.0);
  cwnd_ = path * gain + pacing_rate_ * kPacerBurst + options_.max_datagram * kMinCwndPackets + held;
  if (!pipe_filled_) cwnd_ = std::max(cwnd_, initial);
}

RateSnapshot BbrLikeController::Snapshot() const {
  RateSnapshot snapshot;
  snapshot.name = "longhaul";
  snapshot.state = StateName(state_);
  snapshot.bandwidth = model_.bandwidth();
  snapshot.pacing_rate = pacing_rate_;
  snapshot.cwnd = cwnd_;
  snapshot.min_rtt = model_.has_min_rtt() ? model_.min_rtt() : Duration(0);
  snapshot.loss = recent_loss_;
  return snapshot;
}

}  // namespace longhaul::transport
