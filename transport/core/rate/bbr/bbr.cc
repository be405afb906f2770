#include "transport/core/rate/bbr/bbr.h"

#include <algorithm>

#include "base/check.h"
#include "transport/core/rate/target_loss_policy.h"

namespace longhaul::transport {
namespace {

constexpr uint64_t kMaxCounted = 1u << 20;  // packets; a peer may report any number of marks and drops
constexpr Bandwidth kMaxInitialRate =
    Bandwidth::Mbps(1000);  // by the handshake's RTT: of a rack, it may be anything

std::unique_ptr<BbrPolicy> MakePolicy(RateControl control, BbrModel* model) {
  LH_CHECK(control != RateControl::kCubic);
  if (control == RateControl::kBbr) return std::make_unique<BbrPolicy>(model);
  return std::make_unique<TargetLossPolicy>(model);
}

}  // namespace

Bbr::Bbr(const RateOptions& options, Random random)
    : model_(options, random), policy_(MakePolicy(options.control, &model_)) {
  LH_CHECK_OP(options.max_datagram.value(), >, 0);
  EnterStartup();
  model_.cwnd = model_.Packets(BbrModel::kInitialCwndPackets);
  model_.initial_rate = model_.pacing_rate = options.initial;
  BoundRate();
  model_.send_quantum = policy_->SendQuantum();
}

// --- Events ---

void Bbr::OnPacketSent(Instant now, ByteCount bytes, ByteCount bytes_in_flight, bool app_limited) {
  model_.event.now = now;
  model_.event.in_flight = bytes_in_flight;
  if (bytes_in_flight == bytes && app_limited) HandleRestartFromIdle();
  model_.rounds.OnPacketSent(bytes_in_flight, model_.cwnd);
  policy_->OnPacketSent(bytes);
}

void Bbr::OnCongestionEvent(const CongestionEvent& event) {
  Process(event);
  policy_->OnEventEnd();
  LH_CHECK_OP(model_.bounded_rate.bits_per_second(), >=, model_.options.floor.bits_per_second());
  LH_CHECK_OP(model_.cwnd.value(), >=, model_.Packets(BbrModel::kMinPipePackets).value());
}

void Bbr::Process(const CongestionEvent& event) {
  TakeEvent(event);
  UpdateRound();
  TakeLosses(event);
  if (event.acked.value() == 0 && event.lost.value() == 0 && event.spurious.value() == 0) return;

  model_.bounds.UpdateLatestDeliverySignals(model_.event);
  UpdateCongestionSignals();
  model_.aggregation.Update(model_.event.now, model_.rounds.count(), model_.bw, model_.event.newly_acked,
                            model_.cwnd, model_.full_pipe.reached() ? AckAggregation::kRounds : 1);
  CheckFullBwReached();
  CheckStartupDone();
  CheckDrainDone();
  if (event.acked.value() > 0) UpdateProbeBwCyclePhase();
  UpdateMinRtt();
  CheckProbeRtt();
  model_.bounds.AdvanceLatestDeliverySignals(model_.event);
  model_.bw = std::min(model_.max_bw(), model_.bounds.bw_shortterm);  // BoundBWForModel

  SetPacingRateWithGain(model_.pacing_gain);
  model_.send_quantum = policy_->SendQuantum();
  SetCwnd();
}

void Bbr::TakeEvent(const CongestionEvent& event) {
  BbrEvent& e = model_.event;
  e.now = event.now;
  e.rs = event.sample;
  e.newly_acked = event.acked;
  e.delivered = event.delivered;
  e.in_flight = event.bytes_in_flight;
  e.rtt = event.latest_rtt;
  e.void_min_rtt = event.void_min_rtt;
  e.path_rtt = event.adjusted_rtt > Duration::zero() ? event.adjusted_rtt : event.latest_rtt;
  e.smoothed_rtt = event.smoothed_rtt;
  e.sample_rate = policy_->SampleRate(e.rs);
  e.delivered_rate =
      std::min(e.sample_rate, std::max(e.rs.valid ? e.rs.delivery_rate : Bandwidth(), e.rs.train_rate));
  e.sample_limited = e.sample_rate.IsZero() || policy_->IsSampleLimited(e.rs);
  const auto packets = [&](uint64_t n) {
    return model_.Packets(static_cast<int64_t>(std::min<uint64_t>(n, kMaxCounted)));
  };
  e.newly_lost = model_.rounds.ExcuseHostDrops(event.lost, packets(event.host_drops));
  // A CE mark is congestion without a loss.
  model_.rounds.CountLoss(e.newly_lost, std::min(packets(event.ecn_ce), event.acked));
}

void Bbr::UpdateRound() {
  if (model_.rounds.Advance(model_.event)) {
    ++model_.cycle.rounds_since_probe_up;
    ++model_.cycle.rounds_in_down;
    policy_->OnRoundEnd();
  }
  model_.rounds.Count(model_.event);
}

// --- Loss ---

void Bbr::TakeLosses(const CongestionEvent& event) {
  BbrBounds::Undo& undo = model_.bounds.undo;
  ByteCount excused = event.lost - model_.event.newly_lost;
  for (const LostPacket& packet : event.lost_packets) {
    if (excused.value() > 0) {
      excused -= packet.bytes;
    } else {
      HandleLostPacket(packet);
    }
  }
  if (event.ecn_ce > 0) {
    NoteLoss();
    const BbrRounds::Round& round = model_.rounds.current();
    if (model_.cycle.bw_probe_sample && policy_->LossTooHigh(round.lost, round.Total())) {
      HandleInflightTooHigh(model_.event.rs.tx_in_flight, model_.event.rs.app_limited);
    }
  }
  if (event.timeout && !model_.bounds.loss_in_round) SaveStateUponLoss();
  if (event.spurious.value() > 0 && undo.lost.value() > 0) {
    undo.lost -= event.spurious;
    if (undo.lost.value() <= 0) HandleSpuriousLossDetection();
  }
}

void Bbr::NoteLoss() {
  BbrBounds& bounds = model_.bounds;
  if (!bounds.loss_in_round) {
    bounds.loss_round_delivered = model_.event.delivered;
    // The reaction to this episode's loss may have reset loss_in_round: what was saved before it stays.
    if (!bounds.undo.state || model_.rounds.count() > bounds.undo.round) SaveStateUponLoss();
  }
  bounds.loss_in_round = true;
}

void Bbr::SaveStateUponLoss() {
  model_.SaveCwnd();
  model_.bounds.Save(model_.rounds.count());
}

void Bbr::HandleLostPacket(const LostPacket& packet) {
  NoteLoss();
  model_.bounds.undo.lost += packet.bytes;
  model_.rounds.CountLostPacket(packet.number);
  if (!model_.cycle.bw_probe_sample) return;
  model_.event.rs.tx_in_flight = packet.tx_in_flight;
  model_.event.rs.lost = packet.lost;
  model_.event.rs.app_limited = packet.app_limited;
  if (IsInflightTooHigh()) HandleInflightTooHigh(InflightAtLoss(packet), packet.app_limited);
}

bool Bbr::IsInflightTooHigh() const {
  return policy_->LossTooHigh(model_.event.rs.lost, model_.event.rs.tx_in_flight);
}

void Bbr::HandleInflightTooHigh(ByteCount tx_in_flight, bool app_limited) {
  model_.cycle.prev_probe_too_high = true;
  model_.cycle.bw_probe_sample = false;  // once per probe
  if (!app_limited) {
    const ByteCount target = std::min(model_.Bdp(), model_.cwnd);
    model_.bounds.inflight_longterm = std::max(tx_in_flight, target * BbrBounds::kBeta);
  }
  if (model_.state == BbrState::kProbeBwUp) {
    model_.bounds.undo.state = BbrState::kProbeBwUp;
    StartProbeBwDown();
  }
}

// Where within the packet (it may be a burst of many) the loss crossed the threshold.
ByteCount Bbr::InflightAtLoss(const LostPacket& packet) const {
  const double thresh = policy_->LossThresh();
  LH_CHECK_OP(thresh, <, 1.0);
  const ByteCount inflight_before = packet.tx_in_flight - packet.bytes;
  const ByteCount lost_before = packet.lost - packet.bytes;
  const double prefix =
      (thresh * static_cast<double>(inflight_before.value()) - static_cast<double>(lost_before.value())) /
      (1.0 - thresh);
  return inflight_before + ByteCount(static_cast<int64_t>(prefix));
}

void Bbr::UpdateCongestionSignals() {
  model_.max_bw_filter.SetExcused(policy_->Excused());
  model_.max_bw_filter.Update(model_.event.sample_rate, model_.event.delivered_rate,
                              model_.event.sample_limited);
  if (!model_.bounds.loss_round_start) return;
  if (policy_->AdaptLowerBoundsFromCongestion()) StartProbeBwDown();
  model_.bounds.loss_in_round = false;
}

void Bbr::HandleSpuriousLossDetection() {
  model_.RestoreCwnd();
  model_.full_pipe.Restart();
  model_.bounds.Restore();
  const std::optional<BbrState> before = model_.bounds.undo.state;
  const bool probing_rtt = model_.state == BbrState::kProbeRtt;
  if (before == BbrState::kStartup && model_.state != BbrState::kStartup) {
    model_.full_pipe.ClearReached();
    if (!probing_rtt) EnterStartup();
  } else if (before == BbrState::kProbeBwUp && model_.state != BbrState::kProbeBwUp) {
    if (!probing_rtt) StartProbeBwRefill();
  }
  model_.bounds.undo.state.reset();
}

// --- Rate and window ---

void Bbr::SetPacingRateWithGain(double gain) {
  if (!model_.bw.IsZero()) {
    const Bandwidth rate = policy_->PacingRate(gain);
    // Small samples at first are the application's or the handshake's: STARTUP does not fall below where it
    // began.
    model_.pacing_rate = model_.full_pipe.reached() ? rate : std::max(rate, model_.initial_rate);
  } else if (model_.event.smoothed_rtt > Duration::zero()) {
    // The initial window spread over the first RTT is a better guess than any constant.
    const Bandwidth nominal =
        Bandwidth::FromBytesAndTime(model_.Packets(BbrModel::kInitialCwndPackets), model_.event.smoothed_rtt);
    model_.initial_rate =
        std::max(model_.initial_rate, std::min(nominal * kStartupPacingGain, kMaxInitialRate));
    model_.pacing_rate = model_.initial_rate;
  }
  BoundRate();
}

void Bbr::BoundRate() {
  Bandwidth rate = std::min(model_.pacing_rate, policy_->RateCeiling());
  model_.rate_bound = RateLimiter::kPacing;
  if (!model_.grant.IsZero() && model_.grant < rate) {
    rate = model_.grant;
    model_.rate_bound = RateLimiter::kGrant;
  }
  if (model_.options.cap < rate) {
    rate = model_.options.cap;
    model_.rate_bound = RateLimiter::kCap;
  }
  model_.bounded_rate = std::max(rate, model_.options.floor);
}

void Bbr::SetCwnd() {
  ByteCount& cwnd = model_.cwnd;
  const ByteCount max_inflight =
      model_.QuantizationBudget(model_.Bdp() * policy_->CwndGain() + model_.aggregation.extra_acked());
  if (model_.full_pipe.reached()) {
    cwnd = std::min(cwnd + model_.event.newly_acked, max_inflight);
  } else if (cwnd < max_inflight || model_.event.delivered < model_.Packets(BbrModel::kInitialCwndPackets)) {
    cwnd += model_.event.newly_acked;
  }
  cwnd = std::max(cwnd, model_.Packets(BbrModel::kMinPipePackets));
  if (model_.state == BbrState::kProbeRtt) cwnd = std::min(cwnd, ProbeRttCwnd());
  BoundCwndForModel();
}

void Bbr::BoundCwndForModel() {
  ByteCount cap = BbrBounds::kInfinite;
  if (model_.IsInProbeBw() && model_.state != BbrState::kProbeBwCruise) {
    cap = model_.bounds.inflight_longterm;
  } else if (model_.state == BbrState::kProbeRtt || model_.state == BbrState::kProbeBwCruise) {
    cap = policy_->InflightWithHeadroom();
  }
  cap = std::min(cap, model_.bounds.inflight_shortterm);
  cap = std::max(cap, model_.Packets(BbrModel::kMinPipePackets));
  model_.cwnd = std::min(model_.cwnd, cap);
}

void Bbr::OnWindowStart(Instant now) {
  policy_->OnWindowStart();
  model_.event.now = now;
  // The pause before the window was a PROBE_RTT for free.
  if (model_.state == BbrState::kProbeRtt && model_.idle_restart) CheckProbeRttDone();
  SetPacingRateWithGain(model_.pacing_gain);
  model_.send_quantum = policy_->SendQuantum();
}

void Bbr::SetGrant(Bandwidth rate) {
  model_.grant = rate;
  BoundRate();
  model_.send_quantum = policy_->SendQuantum();
}

RateSnapshot Bbr::Snapshot() const {
  RateSnapshot snapshot;
  snapshot.name = NameOf(model_.options.control);
  snapshot.state = BbrStateName(model_.state);
  snapshot.bandwidth = model_.max_bw();
  snapshot.pacing_rate = model_.bounded_rate;
  snapshot.cwnd = model_.cwnd;
  snapshot.min_rtt = model_.has_min_rtt() ? model_.min_rtt() : Duration(0);
  snapshot.loss = model_.rounds.recent_loss();
  snapshot.target_loss = policy_->LossThresh();
  snapshot.queue_delay = model_.QueueDelay();
  snapshot.send_quantum = model_.send_quantum;
  snapshot.fit = policy_->Fit();
  return snapshot;
}

}  // namespace longhaul::transport
