#include "transport/core/rate/cubic.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace longhaul::transport {
namespace {

constexpr double kDatagramLossWeight = 0.01;  // for people only: a snapshot's loss is of about 100 datagrams
static_assert(0 < Cubic::kAlpha && Cubic::kAlpha < 1 && Cubic::kMinDatagrams < Cubic::kInitialDatagrams);
// Silence over this many probe timeouts makes lost packets persistent congestion: the first doubles the
// second, so together they are the three of RFC 9002 §7.6.1.
constexpr int kPersistentTimeouts = 2;

double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

void HyStart::OnRoundStart() {
  if (conservative_ && ++css_rounds_ >= kCssRounds) done_ = true;
  last_round_min_ = round_min_;
  round_min_ = Duration::max();
  samples_ = 0;
}

void HyStart::OnRttSample(Duration rtt) {
  if (done_) return;
  round_min_ = std::min(round_min_, rtt);
  if (++samples_ < kRttSamples) return;
  if (!conservative_ && RttGrew()) {
    conservative_ = true;
    css_baseline_ = round_min_;
    css_rounds_ = 0;
  } else if (conservative_ && round_min_ < css_baseline_) {
    conservative_ = false;  // the growth was noise
    css_baseline_ = Duration::max();
  }
}

bool HyStart::RttGrew() const {
  if (last_round_min_ == Duration::max()) return false;
  const Duration thresh =
      std::clamp<Duration>(last_round_min_ / kMinRttDivisor, kMinRttThresh, kMaxRttThresh);
  return round_min_ >= last_round_min_ + thresh;
}

Cubic::Cubic(const RateOptions& options) : options_(options) { Update(); }

void Cubic::OnPacketSent(Instant now, ByteCount bytes, ByteCount bytes_in_flight, bool app_limited) {
  (void)app_limited;               // how much of the window is used counts
  if (bytes_in_flight == bytes) {  // the path was idle
    if (!unused_since_) StopClock(now - last_ack_);
    round_max_in_flight_ = last_round_max_in_flight_ = ByteCount();
  }
  round_max_in_flight_ = std::max(round_max_in_flight_, bytes_in_flight);
}

void Cubic::OnCongestionEvent(const CongestionEvent& event) {
  if (event.smoothed_rtt > Duration::zero() && event.min_rtt > Duration::zero()) {
    smoothed_rtt_ = event.smoothed_rtt;
    min_rtt_ = event.min_rtt;
  }
  excused_drops_ += event.host_drops;
  UpdateRound(event);
  if (event.timeout && ++timeouts_ == 1) first_timeout_ = event.now;
  if (undo_ && event.spurious.value() > 0) {
    undo_lost_ -= event.spurious;
    if (undo_lost_.value() <= 0) Undo(event.now);
  }
  UpdateRecovery(event);
  TakeLosses(event);
  if (event.acked.value() > 0) {
    timeouts_ = 0;
    last_ack_ = event.now;
    Grow(event);
  }
  const double total = Datagrams(event.acked + event.lost);
  if (total > 0) {
    const double weight = 1 - std::pow(1 - kDatagramLossWeight, total);
    recent_loss_ += weight * (Datagrams(event.lost) / total - recent_loss_);
  }
  LH_CHECK_OP(window_.cwnd, >=, static_cast<double>(kMinDatagrams));
  LH_CHECK(std::isfinite(window_.cwnd) && window_.ssthresh > 0);
  Update();
}

void Cubic::UpdateRound(const CongestionEvent& event) {
  if (event.acked.value() > 0 && event.sample.prior_delivered >= next_round_delivered_) {
    next_round_delivered_ = event.delivered;
    last_round_max_in_flight_ = round_max_in_flight_;
    round_max_in_flight_ = event.bytes_in_flight;
    excused_drops_ -= std::min(excused_drops_, excused_drops_of_last_);
    excused_drops_of_last_ = excused_drops_;
    if (hystart_) hystart_->OnRoundStart();
  }
  if (hystart_ && event.latest_rtt > Duration::zero()) hystart_->OnRttSample(event.latest_rtt);
}

void Cubic::UpdateRecovery(const CongestionEvent& event) {
  // The RTT sample is of the newest packet that the ACK names, so this is when that packet left.
  if (!InRecovery() || event.latest_rtt <= Duration::zero()) return;
  if (event.now - event.latest_rtt > *recovery_start_) recovery_start_.reset();
}

void Cubic::TakeLosses(const CongestionEvent& event) {
  const bool persistent = IsPersistent(event);
  const ByteCount lost = NewLoss(event);
  // Further losses of the flight that was reduced for belong to the same decision.
  if (undo_ && lost.value() == 0) undo_lost_ += event.lost;
  const bool marked = event.ecn_ce > 0 && !InRecovery();
  if (lost.value() > 0 || persistent) {
    Reduce(event.now, event.lost);
  } else if (marked) {
    Reduce(event.now, ByteCount());
  }
  if (persistent) Collapse();
}

ByteCount Cubic::NewLoss(const CongestionEvent& event) {
  ByteCount lost;
  for (const LostPacket& packet : event.lost_packets) {
    if (excused_drops_ > 0) {
      --excused_drops_;
      excused_drops_of_last_ -= std::min<uint64_t>(excused_drops_of_last_, 1);
      continue;
    }
    if (!reduced_ || packet.sent_time > last_reduction_) lost += packet.bytes;
  }
  return lost;
}

bool Cubic::IsPersistent(const CongestionEvent& event) const {
  if (timeouts_ < kPersistentTimeouts || event.lost_packets.empty() || event.lost < event.acked) return false;
  return event.lost_packets.front().sent_time < first_timeout_ &&
         event.lost_packets.back().sent_time >= first_timeout_;
}

void Cubic::Reduce(Instant now, ByteCount lost) {
  undo_.reset();
  if (lost.value() > 0) {
    undo_ = window_;
    undo_lost_ = lost;
  }
  hystart_.reset();
  reduced_ = true;
  last_reduction_ = now;
  recovery_start_ = now;
  // Fast convergence (§4.7): a flow whose share shrinks gives more of it away.
  const bool shrinking = window_.cwnd < window_.w_max;
  window_.w_max = shrinking ? window_.cwnd * (1 + kBeta) / 2 : window_.cwnd;
  window_.cwnd_prior = window_.cwnd;
  window_.cwnd = std::max<double>(window_.cwnd * kBeta, kMinDatagrams);
  window_.ssthresh = window_.cwnd;
  window_.epoch.reset();
  window_.plateau_here = false;
}

// §4.8, after the reduction; undone with it when the packets turn up after all.
void Cubic::Collapse() {
  window_.cwnd = kMinDatagrams;
  window_.epoch.reset();
  window_.plateau_here = true;
  recovery_start_.reset();
}

void Cubic::Undo(Instant now) {
  LH_CHECK(undo_.has_value());
  if (undo_->cwnd > window_.cwnd) {
    window_ = *undo_;
    StopClock(now - last_reduction_);
    recovery_start_.reset();
  }
  undo_.reset();
}

bool Cubic::IsWindowUsed() const {
  const ByteCount used = std::max(round_max_in_flight_, last_round_max_in_flight_);
  // In slow start a flight that fills half of the window may double it (RFC 7661 §4.1 calls it validated).
  return (InSlowStart() ? used * int64_t{2} : used) >= cwnd();
}

void Cubic::Grow(const CongestionEvent& event) {
  if (InRecovery()) return;
  if (!IsWindowUsed()) {
    if (!unused_since_) unused_since_ = event.now;
    return;
  }
  if (unused_since_) {
    StopClock(event.now - *unused_since_);
    unused_since_.reset();
  }
  const double acked = Datagrams(event.acked);
  if (InSlowStart()) {
    GrowSlowStart(acked);
  } else {
    GrowCubic(event, acked);
  }
}

void Cubic::GrowSlowStart(double acked) {
  window_.cwnd += acked * (hystart_ ? hystart_->growth() : 1.0);
  if (hystart_ && hystart_->done()) {
    hystart_.reset();
    window_.ssthresh = window_.cwnd_prior = window_.cwnd;
  } else if (InSlowStart()) {
    return;
  } else {
    window_.cwnd = window_.ssthresh;  // after a timeout: no further than slow start may go
  }
  window_.plateau_here = true;
}

void Cubic::BeginEpoch(Instant now) {
  window_.epoch = now;
  window_.w_est = window_.cwnd;
  if (window_.plateau_here || window_.w_max <= window_.cwnd) {
    // No congestion event has set the plateau (§4.8, §4.10): it is here.
    window_.w_max = window_.cwnd;
    window_.k = 0;
  } else {
    window_.k = std::cbrt((window_.w_max - window_.cwnd) / kC);
  }
  LH_CHECK_OP(window_.k, >=, 0);
  window_.plateau_here = false;
}

// That much time does not count for the curve.
void Cubic::StopClock(Duration time) {
  if (window_.epoch) window_.epoch = *window_.epoch + time;
}

void Cubic::GrowCubic(const CongestionEvent& event, double acked) {
  if (!window_.epoch) BeginEpoch(event.now);
  const auto w_cubic = [&](double t) { return kC * std::pow(t - window_.k, 3) + window_.w_max; };
  const double t = Seconds(event.now - *window_.epoch);
  const double cwnd = window_.cwnd;
  // §4.3: until Reno would be back at the window before the reduction it is as gentle as kBeta demands.
  window_.w_est += (window_.w_est >= window_.cwnd_prior ? 1.0 : kAlpha) * acked / cwnd;
  const double target = std::clamp(w_cubic(t + Seconds(smoothed_rtt_)), cwnd, 1.5 * cwnd);
  window_.cwnd += (target - cwnd) / cwnd * acked;
  if (w_cubic(t) < window_.w_est) window_.cwnd = std::max(window_.cwnd, window_.w_est);
}

void Cubic::SetGrant(Bandwidth rate) {
  grant_ = rate;
  Update();
}

ByteCount Cubic::cwnd() const {
  // Whole bytes; two to the 40th datagrams are more than any path holds, and far from the end of 64 bits.
  return options_.max_datagram * std::min(window_.cwnd, 1e12);
}

void Cubic::Update() {
  Bandwidth rate = options_.initial;
  if (smoothed_rtt_ > Duration::zero()) {
    rate = Bandwidth::FromBytesAndTime(cwnd(), smoothed_rtt_) * (InSlowStart() ? kSlowStartPacing : kPacing);
  }
  bound_ = RateLimiter::kPacing;
  if (options_.cap < rate) {
    rate = options_.cap;
    bound_ = RateLimiter::kCap;
  }
  if (!grant_.IsZero() && grant_ < rate) {
    rate = grant_;
    bound_ = RateLimiter::kGrant;
  }
  pacing_rate_ = std::max(rate, options_.floor);
}

RateSnapshot Cubic::Snapshot() const {
  RateSnapshot snapshot;
  snapshot.name = NameOf(RateControl::kCubic);
  snapshot.state = InRecovery() ? "recovery" : InSlowStart() ? "slow_start" : "congestion_avoidance";
  if (smoothed_rtt_ > Duration::zero())
    snapshot.bandwidth = Bandwidth::FromBytesAndTime(cwnd(), smoothed_rtt_);
  snapshot.pacing_rate = pacing_rate_;
  snapshot.cwnd = cwnd();
  snapshot.min_rtt = min_rtt_;
  snapshot.loss = recent_loss_;
  snapshot.queue_delay = smoothed_rtt_ > min_rtt_ ? smoothed_rtt_ - min_rtt_ : Duration(0);
  snapshot.send_quantum = send_quantum();
  return snapshot;
}

}  // namespace longhaul::transport
