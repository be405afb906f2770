// Pacing rate, send quantum and congestion window from the model (draft-ietf-ccwg-bbr §5.6).

#include <algorithm>

#include "transport/core/rate/bbr/bbr.h"

namespace longhaul::transport {
namespace {

constexpr Duration kQuantumTime = std::chrono::milliseconds(1);
constexpr ByteCount kMaxQuantum{64 << 10};

}  // namespace

ByteCount Bbr::Bdp() const {
  if (!has_min_rtt() || max_bw_.IsZero()) return options_.max_datagram * kInitialCwndPackets;
  return std::min(max_bw_, bw_shortterm_) * min_rtt_;
}

ByteCount Bbr::QuantizationBudget(ByteCount inflight_cap) const {
  inflight_cap = std::max({inflight_cap, send_quantum_, options_.max_datagram * kMinPipePackets});
  if (state_ == BbrState::kProbeBwUp) inflight_cap += options_.max_datagram * int64_t{2};
  return inflight_cap;
}

ByteCount Bbr::Inflight(double gain) const { return QuantizationBudget(Bdp() * gain); }

void Bbr::SetPacingRateWithGain(double gain) {
  if (!bw_.IsZero()) {
    const Bandwidth rate = bw_ * (gain * kPacingMargin);
    if (full_bw_reached_ || rate > pacing_rate_) pacing_rate_ = rate;
  } else if (smoothed_rtt_ > Duration::zero()) {
    // The initial window spread over the first RTT is a better guess than any constant.
    const Bandwidth nominal =
        Bandwidth::FromBytesAndTime(options_.max_datagram * kInitialCwndPackets, smoothed_rtt_);
    pacing_rate_ = std::max(pacing_rate_, std::min(nominal * kStartupPacingGain, Bandwidth::Mbps(1000)));
  }
  BoundRate();
}

void Bbr::BoundRate() {
  bounded_rate_ = pacing_rate_;
  rate_bound_ = RateLimiter::kPacing;
  if (!grant_.IsZero() && grant_ < bounded_rate_) {
    bounded_rate_ = grant_;
    rate_bound_ = RateLimiter::kGrant;
  }
  if (options_.cap < bounded_rate_) {
    bounded_rate_ = options_.cap;
    rate_bound_ = RateLimiter::kCap;
  }
  bounded_rate_ = std::max(bounded_rate_, options_.floor);
}

void Bbr::SetSendQuantum() {
  send_quantum_ =
      std::max(std::min(bounded_rate_ * kQuantumTime, kMaxQuantum), options_.max_datagram * int64_t{2});
}

void Bbr::SetCwnd() {
  const ByteCount max_inflight = QuantizationBudget(Bdp() * CwndGain() + extra_acked());
  if (full_bw_reached_) {
    cwnd_ = std::min(cwnd_ + newly_acked_, max_inflight);
  } else if (cwnd_ < max_inflight || delivered_ < options_.max_datagram * kInitialCwndPackets) {
    cwnd_ += newly_acked_;
  }
  cwnd_ = std::max(cwnd_, options_.max_datagram * kMinPipePackets);
  if (state_ == BbrState::kProbeRtt) cwnd_ = std::min(cwnd_, ProbeRttCwnd());
  BoundCwndForModel();
}

void Bbr::BoundCwndForModel() {
  ByteCount cap = kInfinite;
  if (IsInProbeBw() && state_ != BbrState::kProbeBwCruise) {
    cap = inflight_longterm_;
  } else if (state_ == BbrState::kProbeRtt || state_ == BbrState::kProbeBwCruise) {
    cap = InflightWithHeadroom();
  }
  cap = std::min(cap, inflight_shortterm_);
  cap = std::max(cap, options_.max_datagram * kMinPipePackets);
  cwnd_ = std::min(cwnd_, cap);
}

void Bbr::SaveCwnd() {
  prior_cwnd_ = !loss_in_round_ && state_ != BbrState::kProbeRtt ? cwnd_ : std::max(prior_cwnd_, cwnd_);
}

void Bbr::RestoreCwnd() { cwnd_ = std::max(cwnd_, prior_cwnd_); }

void Bbr::OnWindowStart(Instant now) {
  now_ = now;
  // The pause before the window was a PROBE_RTT for free.
  if (state_ == BbrState::kProbeRtt && idle_restart_) CheckProbeRttDone();
  SetPacingRateWithGain(pacing_gain_);
  SetSendQuantum();
}

void Bbr::SetGrant(Bandwidth rate) {
  grant_ = rate;
  BoundRate();
  SetSendQuantum();
}

RateSnapshot Bbr::Snapshot() const {
  RateSnapshot snapshot;
  snapshot.name = name();
  snapshot.state = BbrStateName(state_);
  snapshot.bandwidth = max_bw_;
  snapshot.pacing_rate = bounded_rate_;
  snapshot.cwnd = cwnd_;
  snapshot.min_rtt = has_min_rtt() ? min_rtt_ : Duration(0);
  snapshot.loss = recent_loss_;
  snapshot.target_loss = LossThresh();
  snapshot.queue_delay = has_min_rtt() ? std::max(Duration(0), smoothed_rtt_ - min_rtt_) : Duration(0);
  snapshot.send_quantum = send_quantum_;
  return snapshot;
}

}  // namespace longhaul::transport
