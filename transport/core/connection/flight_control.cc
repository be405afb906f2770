#include "transport/core/connection/flight_control.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/reached.h"
#include "transport/core/connection/connection.h"

namespace longhaul::transport {

FlightControl::FlightControl(Instant now, const RateOptions& options, Random random)
    : options_(options),
      rate_(MakeRateController(options, random)),
      pacer_(options.max_datagram),
      random_(random.Fork(1)),
      last_eliciting_sent_(now) {
  UpdatePacer(now);
}

void FlightControl::UpdatePacer(Instant now) {
  pacer_.SetMaxQuantum(rate_->send_quantum());
  pacer_.SetRate(rate_->pacing_rate(), now);
}

double FlightControl::PacketsPerRecoveryTime(int64_t datagram_bytes) const {
  // A recovery time is 1.25 RTT; before the first sample the initial RTT stands in.
  const ByteCount in_recovery = rate_->pacing_rate() * (rtt_.smoothed_rtt() * 5 / 4);
  return std::max(1.0, in_recovery / ByteCount(datagram_bytes));
}

PathView FlightControl::path_view(Instant now, int64_t datagram_bytes) const {
  const LossModel& model = fec_.model();
  return {.loss = model.p,
          .packets_per_recovery_time = PacketsPerRecoveryTime(datagram_bytes),
          .rho = model.rho,
          .mean_burst = model.mean_burst,
          .extra_repair = fec_.extra_repair(),
          .now = now,
          .recovery_time = rtt_.smoothed_rtt() * 5 / 4,
          .packet_bytes = static_cast<size_t>(datagram_bytes) - wire::kDataOverheadBytes};
}

void FlightControl::AddTo(ConnectionStats* stats, Instant now) const {
  stats->packets_lost = loss_.packets_lost();
  stats->packets_spurious = loss_.packets_spurious();
  stats->pto_fired = pto_fired_;
  stats->host_drops = peer_host_drops_;
  // The peer leaves numbers out as we do; which, the receiver cannot tell from losses.
  const uint64_t numbers = acks_.largest_plus_one();
  stats->packets_expected = numbers - numbers / (LossDetection::kPacketsPerSkip + 1);
  stats->numbers_skipped = numbers_skipped_;
  stats->smoothed_rtt = smoothed_rtt();
  stats->min_rtt = MinRtt();
  stats->latest_rtt = rtt_.latest_rtt();
  stats->bytes_in_flight = loss_.bytes_in_flight();
  stats->loss = fec_.estimator().loss();
  stats->loss_for_fec = fec_.model().p;
  stats->loss_correlation = fec_.model().rho;
  stats->mean_loss_burst = fec_.model().mean_burst;
  stats->fec_depth = FecDepth();
  stats->rate = rate_->Snapshot();
  stats->limited = limited_;
  if (limiter_) stats->limited[static_cast<size_t>(*limiter_)] += now - limited_since_;
}

bool FlightControl::WindowAllows(size_t bytes) const {
  const ByteCount after = loss_.bytes_in_flight() + ByteCount(static_cast<int64_t>(bytes));
  if (!loss_.CanSend()) return false;
  // One datagram is always allowed: a window smaller than that must not stop the flow.
  if (static_cast<uint64_t>(after.value()) > receive_window_ && loss_.bytes_in_flight().value() > 0) {
    return false;
  }
  // The last datagram may overshoot, likewise.
  return loss_.bytes_in_flight() < rate_->cwnd();
}

std::optional<RateLimiter> FlightControl::Limiter(bool has_data, bool window_allows,
                                                  bool pacer_allows) const {
  if (!has_data) return RateLimiter::kApp;
  if (!window_allows) {
    const bool congestion = loss_.bytes_in_flight() >= rate_->cwnd() || !loss_.CanSend();
    return congestion ? RateLimiter::kCwnd : RateLimiter::kReceiveWindow;
  }
  return pacer_allows ? std::nullopt : std::optional(rate_->rate_bound());
}

bool FlightControl::MaySend(Instant now, size_t bytes, bool has_data) {
  if (has_data && pacer_.Stalled(now)) sampler_.OnAppLimited(loss_.bytes_in_flight());
  const bool window_allows = has_data && WindowAllows(bytes);
  const bool pacer_allows = has_data && pacer_.Credit(now) > ByteCount(0);
  waits_for_pacer_ = waits_for_pacer_ || (window_allows && !pacer_allows);
  if (!window_allows) pacer_.OnBlockedElsewhere(now);
  if (limiter_) limited_[static_cast<size_t>(*limiter_)] += now - limited_since_;
  limiter_ = Limiter(has_data, window_allows, pacer_allows);
  limited_since_ = now;
  return window_allows && pacer_allows;
}

bool FlightControl::MayProbePath(Instant now, size_t bytes) {
  if (!WindowAllows(bytes)) return false;
  const bool pacer_allows = pacer_.Credit(now) > ByteCount(0);
  waits_for_pacer_ = waits_for_pacer_ || !pacer_allows;
  return pacer_allows;
}

void FlightControl::OnNothingToSend(Instant now) {
  sampler_.OnAppLimited(loss_.bytes_in_flight());
  pacer_.OnBlockedElsewhere(now);
}

void FlightControl::OnPacketSent(SentPacket sent, Instant now) {
  LH_CHECK_OP(sent.number, ==, next_number_);
  ++next_number_;
  sent.sent_time = now;
  const bool in_flight = sent.in_flight;
  const ByteCount bytes = sent.bytes;
  if (in_flight) {
    if (!sent.mtu_probe) sent.flight_place = fec_.estimator().OnSent();
    sampler_.OnPacketSent(&sent, loss_.bytes_in_flight(), now);
    last_eliciting_sent_ = now;
  }
  loss_.OnPacketSent(std::move(sent));
  if (skips_) SkipNow();
  if (!in_flight) return;  // ACKs alone are not paced
  pacer_.OnSent(bytes, now);
  rate_->OnPacketSent(now, bytes, loss_.bytes_in_flight(), sampler_.is_app_limited());
  if (rate_->suppresses_samples()) sampler_.OnAppLimited(loss_.bytes_in_flight());
}

void FlightControl::SkipNow() {
  if (skips_->Below(LossDetection::kPacketsPerSkip) != 0) return;
  loss_.SkipNumber(next_number_++);
  LH_REACHED("a packet number is left out");
  ++numbers_skipped_;
}

void FlightControl::OnHandshakeRtt(Duration sample, Instant now) {
  rtt_.OnSample(sample, Duration(0), now);
  acks_.SetSmoothedRtt(rtt_.smoothed_rtt());
}

void FlightControl::OnConnected(int64_t datagram_bytes, Instant now, uint64_t skip_seed) {
  skips_.emplace(skip_seed);
  pacer_ = Pacer(ByteCount(datagram_bytes));
  UpdatePacer(now);
}

void FlightControl::OnWindowStart(Instant now) {
  rate_->OnWindowStart(now);
  UpdatePacer(now);
}

void FlightControl::OnGrant(const wire::GrantFrame& grant, wire::PacketNumber number, Instant now) {
  if (number < grant_number_) return;
  grant_number_ = number;
  receive_window_ = grant.receive_window_bytes;
  // Bounded, so that it fits a signed number of bits.
  const uint64_t rate = std::min<uint64_t>(grant.rate_bytes_per_second, uint64_t{1} << 50);
  grant_ = Bandwidth::BytesPerSecond(static_cast<int64_t>(rate));
  rate_->SetGrant(grant_);
  UpdatePacer(now);
}

void FlightControl::SetLossLimits(const LossLimits& limits) {
  options_.loss_limits = limits;
  rate_->SetLossLimits(limits);
}

void FlightControl::SetRateBounds(Bandwidth floor, Bandwidth cap) {
  options_.floor = floor;
  options_.cap = cap;
  rate_->SetBounds(floor, cap);
}

void FlightControl::OnNewPort(Instant now, uint64_t index) {
  const Duration before = std::min<Duration>(rtt_.smoothed_rtt(), RttEstimator::kInitialRtt);
  OnNewPath(now, index);
  rtt_ = RttEstimator(before);
}

void FlightControl::OnNewPath(Instant now, uint64_t index) {
  path_first_number_ = next_number_;
  rtt_ = RttEstimator();
  path_rtt_ = PathRtt(now);
  rate_ = MakeRateController(options_, random_.Fork(index));
  rate_->SetGrant(grant_);
  sampler_.OnAppLimited(loss_.bytes_in_flight());  // what is on its way says nothing of this path's capacity
  UpdatePacer(now);
}

void FlightControl::TakeFates(Instant now, const LossDetection::Outcome& outcome, int64_t datagram_bytes) {
  event_ = CongestionEvent();
  for (const SentPacket& packet : outcome.spurious) {
    sampler_.OnPacketAcked(packet, now);
    if (packet.mtu_probe) continue;
    event_.spurious += packet.bytes;
    if (packet.in_flight) fec_.estimator().OnSpurious(packet.flight_place);
  }
  for (const SentPacket& packet : outcome.acked) {
    sampler_.OnPacketAcked(packet, now);
    event_.acked += packet.bytes;
    if (packet.in_flight && !packet.mtu_probe) fec_.estimator().OnAcked(packet.flight_place);
  }
  lost_packets_.clear();
  for (const SentPacket& packet : outcome.lost) {
    if (packet.mtu_probe) continue;
    if (packet.outsized) {  // the estimator waits for a fate, and this says nothing of what is sent now
      if (packet.in_flight) fec_.estimator().OnAcked(packet.flight_place);
      continue;
    }
    if (packet.in_flight) fec_.estimator().OnLost(packet.flight_place);
    if (packet.number < path_first_number_) continue;  // no congestion of this path
    sampler_.OnPacketLost(packet);
    event_.lost += packet.bytes;
    lost_packets_.push_back(sampler_.Describe(packet));
  }
  fec_.Update(now, rtt_.smoothed_rtt(), PacketsPerRecoveryTime(datagram_bytes),
              rate_->path_loss().value_or(1));
  if (!outcome.send_probes) return;
  LH_REACHED("a probe timeout");
  ++pto_fired_;
  probes_due_ = kProbes;
}

bool FlightControl::Conclude(Instant now, const LossDetection::Outcome& outcome, uint64_t new_ce,
                             std::optional<uint64_t> host_drops) {
  const uint64_t new_drops = host_drops.value_or(0) > peer_host_drops_ ? *host_drops - peer_host_drops_ : 0;
  peer_host_drops_ += new_drops;
  const PathRtt::Sample sample = path_rtt_.OnAck(outcome, rtt_, now);
  const bool nothing = outcome.acked.empty() && outcome.lost.empty() && outcome.spurious.empty();
  if (nothing && new_ce == 0 && !outcome.send_probes) return false;
  event_.now = now;
  event_.lost_packets = lost_packets_;
  event_.timeout = outcome.send_probes;
  event_.sample = sampler_.TakeSample(MinRtt(), now);
  event_.bytes_in_flight = loss_.bytes_in_flight();
  event_.delivered = sampler_.delivered();
  event_.latest_rtt = sample.latest;
  event_.adjusted_rtt = sample.adjusted;
  event_.void_min_rtt = sample.void_minimum;
  event_.smoothed_rtt = rtt_.smoothed_rtt();
  event_.min_rtt = MinRtt();
  event_.ecn_ce = new_ce;
  event_.host_drops = new_drops;
  rate_->OnCongestionEvent(event_);
  UpdatePacer(now);
  acks_.SetSmoothedRtt(rtt_.smoothed_rtt());
  return true;
}

}  // namespace longhaul::transport
