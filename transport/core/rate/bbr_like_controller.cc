#include "transport/core/rate/bbr_like_controller.h"

#include <algorithm>

namespace longhaul::transport {
namespace {

using State = BbrLikeController::State;

constexpr double kStartupGain = 2.77;  // 4 ln 2: the smallest that doubles the delivered rate per round trip
constexpr double kDrainGain = 1.0 / kStartupGain;
constexpr double kDownGain = 0.9;
constexpr double kUpGain = 1.25;
constexpr double kCwndGain = 2.0;
constexpr double kUpCwndGain = 2.25;
constexpr double kProbeRttCwndGain = 0.5;
// The maximum of noisy samples is a little high; without the margin CRUISE would build a queue.
constexpr double kPacingMargin = 0.99;
constexpr int64_t kInitialCwndPackets = 32;
constexpr int64_t kMinCwndPackets = 4;
constexpr int64_t kAckQuantumPackets = 16;  // AckTracker::kMinPacketsPerAck
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
      response_(options.target_loss, options.bubble_threshold, options.max_datagram) {
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
  const bool new_round = model_.OnEvent(event, lost, queue_empty);
  if (new_round) OnRoundEnd(event);
  AdvanceState(event, new_round);
  Update();
}

void BbrLikeController::OnRoundEnd(const CongestionEvent& event) {
  ++rounds_in_state_;
  LearnFromRound(event);
  previous_sent_low_ = round_sent_low_;
  round_sent_low_ = true;
}

void BbrLikeController::LearnFromRound(const CongestionEvent& event) {
  (void)event;
  const BandwidthModel::Round& round = model_.last_round();
  const ByteCount total = round.acked + round.lost;
  if (total.value() == 0) return;
  if (previous_sent_low_ && !QueueSeen(round)) floor_.OnLowRateRound(round.acked, round.lost);
  recent_loss_ += kRecentLossWeight * (round.lost / total - recent_loss_);
  response_.OnRound(round.acked, round.lost, floor_.value(), UnboundedRate());
}

bool BbrLikeController::QueueSeen(const BandwidthModel::Round& round) const {
  if (!model_.has_min_rtt() || round.min_rtt == Duration::max()) return false;
  return round.min_rtt > model_.min_rtt() + model_.min_rtt() / 4 + std::chrono::milliseconds(1);
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
        Enter(State::kCruise);
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
      AdvanceProbeRtt(event, new_round);
      return;
  }
  if (model_.MinRttExpired(event.now) && !idle_restart_) Enter(State::kProbeRtt);
}

void BbrLikeController::AdvanceStartup() {
  const BandwidthModel::Round& round = model_.last_round();
  const bool lossy = response_.Exceeds(round.acked, round.lost, options_.target_loss);
  // Loss alone does not end STARTUP, since a path may lose at any rate; loss with a standing queue, or with a
  // rate that no longer grows, is our own.
  const bool own_loss = lossy && (QueueSeen(round) || (round.measured && !round.grew));
  if (!model_.pipe_full() && !own_loss) return;
  pipe_filled_ = true;
  Enter(State::kDrain);
}

void BbrLikeController::AdvanceProbeRtt(const CongestionEvent& event, bool new_round) {
  if (probe_rtt_end_.IsInfinite()) {
    if (event.bytes_in_flight > cwnd_) return;
    probe_rtt_end_ = event.now + kProbeRttTime;
    probe_rtt_round_ = model_.round_count();
    return;
  }
  if (event.latest_rtt > Duration::zero()) probe_rtt_min_ = std::min(probe_rtt_min_, event.latest_rtt);
  (void)new_round;
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
  return rate * floor_.Compensation();
}

ByteCount BbrLikeController::FullPath() const { return model_.Bdp() * floor_.Compensation(); }

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
  // Room for what the two ends hold back: a burst of the pacer and an ACK's worth at the receiver.
  const ByteCount held =
      pacing_rate_ * std::chrono::milliseconds(2) + options_.max_datagram * kAckQuantumPackets;
  const double gain = state_ == State::kUp ? kUpCwndGain : kCwndGain;
  cwnd_ = path * gain + held;
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

std::unique_ptr<RateController> MakeRateController(const RateOptions& options, Random random) {
  return std::make_unique<BbrLikeController>(options, random);
}

}  // namespace longhaul::transport
