// Packet-timed rounds, the filters of the model and the signals of the latest round trip (draft-ietf-ccwg-bbr
// §5.5; the event loop is §5.2.3).

#include <algorithm>

#include "transport/core/rate/bbr/bbr.h"

namespace longhaul::transport {

std::string_view BbrStateName(BbrState state) {
  switch (state) {
    case BbrState::kStartup:
      return "startup";
    case BbrState::kDrain:
      return "drain";
    case BbrState::kProbeBwDown:
      return "probe_bw_down";
    case BbrState::kProbeBwCruise:
      return "probe_bw_cruise";
    case BbrState::kProbeBwRefill:
      return "probe_bw_refill";
    case BbrState::kProbeBwUp:
      return "probe_bw_up";
    case BbrState::kProbeRtt:
      return "probe_rtt";
  }
  return "unknown";
}

Bbr::Bbr(const RateOptions& options, Random random)
    : options_(options), random_(random), cwnd_(options.max_datagram * kInitialCwndPackets) {
  pacing_rate_ = options.initial;
  BoundRate();
  SetSendQuantum();
}

void Bbr::OnPacketSent(Instant now, ByteCount bytes, ByteCount bytes_in_flight, bool app_limited) {
  now_ = now;
  in_flight_ = bytes_in_flight;
  if (bytes_in_flight == bytes && app_limited) HandleRestartFromIdle();
  if (bytes_in_flight >= cwnd_) cwnd_limited_in_round_ = true;
  if (cwnd_limited_in_round_) cwnd_limited_ = true;
}

void Bbr::OnCongestionEvent(const CongestionEvent& event) {
  TakeEvent(event);
  UpdateRound();
  ByteCount excused = event.lost - newly_lost_;
  for (const LostPacket& packet : event.lost_packets) {
    if (excused.value() > 0) {
      excused -= packet.bytes;
    } else {
      HandleLostPacket(packet);
    }
  }
  if (event.ecn_ce > 0) {
    NoteLoss();
    if (bw_probe_sample_ && LossTooHigh(round_.lost, round_.Total())) {
      HandleInflightTooHigh(rs_.tx_in_flight, rs_.app_limited);
    }
  }
  if (event.timeout && !loss_in_round_) SaveStateUponLoss();
  if (event.spurious.value() > 0 && undo_lost_.value() > 0) {
    undo_lost_ -= event.spurious;
    if (undo_lost_.value() <= 0) HandleSpuriousLossDetection();
  }
  if (event.acked.value() == 0 && event.lost.value() == 0 && event.spurious.value() == 0) return;

  UpdateLatestDeliverySignals();
  UpdateCongestionSignals();
  UpdateAckAggregation();
  CheckFullBwReached();
  CheckStartupDone();
  CheckDrainDone();
  if (event.acked.value() > 0) UpdateProbeBwCyclePhase();
  UpdateMinRtt();
  CheckProbeRtt();
  AdvanceLatestDeliverySignals();
  bw_ = std::min(max_bw_, bw_shortterm_);  // BoundBWForModel

  SetPacingRateWithGain(pacing_gain_);
  SetSendQuantum();
  SetCwnd();
}

void Bbr::TakeEvent(const CongestionEvent& event) {
  now_ = event.now;
  rs_ = event.sample;
  newly_acked_ = event.acked;
  delivered_ = event.delivered;
  in_flight_ = event.bytes_in_flight;
  rtt_ = event.latest_rtt;
  path_rtt_ = event.adjusted_rtt > Duration::zero() ? event.adjusted_rtt : event.latest_rtt;
  smoothed_rtt_ = event.smoothed_rtt;
  sample_rate_ = SampleRate(rs_);
  sample_limited_ = sample_rate_.IsZero() || IsSampleLimited(rs_);
  // A CE mark is congestion without a loss.
  const ByteCount marked =
      options_.max_datagram * static_cast<int64_t>(std::min<uint64_t>(event.ecn_ce, 1u << 20));
  newly_lost_ = ExcuseHostDrops(event);
  round_.marked += std::min(marked, event.acked);
  round_.lost += newly_lost_ + std::min(marked, event.acked);
}

// The drop may be reported before the packet is declared lost or after it; whichever came first waits for the
// other.
ByteCount Bbr::ExcuseHostDrops(const CongestionEvent& event) {
  host_drop_credit_ +=
      options_.max_datagram * static_cast<int64_t>(std::min<uint64_t>(event.host_drops, 1u << 20));
  const ByteCount excused = std::min(event.lost, host_drop_credit_);
  host_drop_credit_ -= excused;
  return event.lost - excused;
}

void Bbr::UpdateRound() {
  round_start_ = newly_acked_.value() > 0 && rs_.prior_delivered >= next_round_delivered_;
  if (round_start_) {
    StartRound();
    ++round_count_;
    ++rounds_since_probe_up_;
    ++rounds_in_down_;
    last_round_ = round_;
    round_ = Round();
    round_.start = now_;
    host_drop_credit_ =
        host_drop_credit_ * 0.5;  // a drop whose packet is never declared lost excuses no other
    cwnd_limited_ = cwnd_limited_in_round_;
    cwnd_limited_in_round_ = false;
    if (last_round_.Total().value() > 0) {
      constexpr double kRecentLossWeight = 0.2;
      recent_loss_ += kRecentLossWeight * (last_round_.lost / last_round_.Total() - recent_loss_);
    }
    OnRoundEnd();
  }
  round_.acked += newly_acked_;
  round_.bw = std::max(round_.bw, sample_rate_);
  round_.limited = round_.limited && sample_limited_;
  if (path_rtt_ > Duration::zero()) round_.min_rtt = std::min(round_.min_rtt, path_rtt_);
}

void Bbr::UpdateMaxBw() {
  if (sample_rate_.IsZero() || (sample_limited_ && sample_rate_ < max_bw_)) return;
  max_bw_slots_[max_bw_slot_] = std::max(max_bw_slots_[max_bw_slot_], sample_rate_);
  max_bw_ = std::max(max_bw_slots_[0], max_bw_slots_[1]);
}

void Bbr::AdvanceMaxBwFilter() {
  // A cycle without a sample says nothing about the path.
  if (max_bw_slots_[max_bw_slot_].IsZero()) return;
  max_bw_slot_ = 1 - max_bw_slot_;
  max_bw_slots_[max_bw_slot_] = Bandwidth::Zero();
  max_bw_ = max_bw_slots_[1 - max_bw_slot_];
}

void Bbr::UpdateLatestDeliverySignals() {
  loss_round_start_ = false;
  bw_latest_ = std::max(bw_latest_, sample_rate_);
  inflight_latest_ = std::max(inflight_latest_, rs_.delivered);
  if (newly_acked_.value() > 0 && rs_.prior_delivered >= loss_round_delivered_) {
    loss_round_delivered_ = delivered_;
    loss_round_start_ = true;
  }
}

void Bbr::AdvanceLatestDeliverySignals() {
  if (!loss_round_start_) return;
  bw_latest_ = sample_rate_;
  inflight_latest_ = rs_.delivered;
}

void Bbr::ResetCongestionSignals() {
  loss_in_round_ = false;
  bw_latest_ = Bandwidth::Zero();
  inflight_latest_ = ByteCount();
}

void Bbr::ResetShortTermModel() {
  bw_shortterm_ = Bandwidth::Max();
  inflight_shortterm_ = kInfinite;
}

void Bbr::UpdateAckAggregation() {
  if (newly_acked_.value() == 0) return;
  ByteCount expected = bw_ * (now_ - extra_acked_interval_start_);
  if (extra_acked_delivered_ <= expected) {
    extra_acked_delivered_ = ByteCount();
    extra_acked_interval_start_ = now_;
    expected = ByteCount();
  }
  extra_acked_delivered_ += newly_acked_;
  // The draft bounds it by cwnd alone, which it raises itself: a sender that stalls now and then would grow
  // without end.
  const ByteCount extra = std::min({extra_acked_delivered_ - expected, cwnd_, bw_ * kMaxExtraAckedTime});
  extra_acked_filter_.SetLength(full_bw_reached_ ? kExtraAckedRounds : 1);
  extra_acked_filter_.Update(extra.value(), round_count_);
}

void Bbr::ResetFullBw() {
  full_bw_ = Bandwidth::Zero();
  full_bw_count_ = 0;
  full_bw_now_ = false;
}

std::optional<Bandwidth> Bbr::FullBwSample() const {
  if (sample_limited_) return std::nullopt;
  return sample_rate_;
}

void Bbr::CheckFullBwReached() {
  if (full_bw_now_ || !round_start_) return;
  const std::optional<Bandwidth> sample = FullBwSample();
  if (!sample) return;
  if (*sample >= full_bw_ * kFullBwGrowth) {
    ResetFullBw();
    full_bw_ = *sample;
    return;
  }
  ++full_bw_count_;
  full_bw_now_ = full_bw_count_ >= kFullBwRounds;
  if (full_bw_now_) full_bw_reached_ = true;
}

}  // namespace longhaul::transport
