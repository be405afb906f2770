// The states of BBR (draft-ietf-ccwg-bbr §5.3): STARTUP doubles the rate each round trip until the delivery
// rate no longer grows or too much is lost; DRAIN empties the queue that this has built; PROBE_BW sends
// slower, as fast and faster than the path delivers, in turn; PROBE_RTT measures the minimum RTT when nothing
// else does.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "transport/core/rate/bbr/bbr.h"

namespace longhaul::transport {

void Bbr::SetState(BbrState state, double pacing_gain, double cwnd_gain) {
  LH_CHECK_OP(pacing_gain, >, 0);
  model_.state = state;
  model_.pacing_gain = pacing_gain;
  model_.cwnd_gain = cwnd_gain;
}

// --- STARTUP and DRAIN ---

void Bbr::EnterStartup() { SetState(BbrState::kStartup, kStartupPacingGain, BbrModel::kDefaultCwndGain); }

void Bbr::CheckFullBwReached() {
  if (model_.full_pipe.now() || !model_.rounds.round_start()) return;
  if (const std::optional<Bandwidth> sample = policy_->FullBwSample()) model_.full_pipe.OnRound(*sample);
}

void Bbr::CheckStartupDone() {
  if (model_.state != BbrState::kStartup) return;
  CheckStartupHighLoss();
  if (!model_.full_pipe.reached()) return;
  SetState(BbrState::kDrain, kDrainPacingGain, BbrModel::kDefaultCwndGain);
  model_.drain_start_round = model_.rounds.count();
}

// The draft's recovery phase is TCP's. Here the first loss begins it, a round trip without loss ends it.
void Bbr::CheckStartupHighLoss() {
  if (model_.full_pipe.reached() || !model_.rounds.round_start()) return;
  const BbrRounds::Round& last = model_.rounds.last();
  const bool recovering = std::exchange(startup_recovering_, last.loss_events > 0);
  if (!policy_->EndsStartup(recovering)) return;
  model_.bounds.undo.state = BbrState::kStartup;
  model_.full_pipe.SetReached();
  model_.bounds.inflight_longterm = std::max(model_.Bdp(), model_.bounds.inflight_latest);
}

void Bbr::CheckDrainDone() {
  if (model_.state != BbrState::kDrain) return;
  const bool drained = model_.event.in_flight <= model_.Inflight(1.0);
  if (drained || model_.rounds.count() > model_.drain_start_round + kDrainRounds) StartProbeBwDown();
}

// --- PROBE_BW ---

void Bbr::StartProbeBwDown() {
  model_.bounds.ResetCongestionSignals();
  model_.cycle.probe_up_acked_per_inc = BbrBounds::kInfinite;
  policy_->PickProbeWait();
  model_.cycle.cycle_stamp = model_.event.now;
  model_.cycle.ack_phase = AckPhase::kProbeStopping;
  model_.cycle.rounds_in_down = 0;
  model_.StartRound();
  SetState(BbrState::kProbeBwDown, BbrPolicy::kProbeDownPacingGain, BbrModel::kDefaultCwndGain);
}

void Bbr::StartProbeBwCruise() { SetState(BbrState::kProbeBwCruise, 1.0, BbrModel::kDefaultCwndGain); }

void Bbr::StartProbeBwRefill() {
  model_.bounds.ResetShortTermModel();
  model_.cycle.bw_probe_up_rounds = 0;
  model_.cycle.bw_probe_up_acked = ByteCount();
  model_.cycle.prev_probe_precautionary = false;
  model_.cycle.ack_phase = AckPhase::kRefilling;
  model_.StartRound();
  SetState(BbrState::kProbeBwRefill, 1.0, BbrModel::kDefaultCwndGain);
}

void Bbr::StartProbeBwUp() {
  model_.cycle.bw_probe_sample = true;
  model_.cycle.ack_phase = AckPhase::kProbeStarting;
  model_.StartRound();
  model_.full_pipe.Restart(model_.event.sample_rate);
  SetState(BbrState::kProbeBwUp, kProbeUpPacingGain, kProbeUpCwndGain);
  model_.cycle.RaiseInflightLongtermSlope(model_.cwnd, model_.options.max_datagram);
}

void Bbr::UpdateProbeBwCyclePhase() {
  if (!model_.full_pipe.reached()) return;
  if (AdaptLongTermModel()) return;
  switch (model_.state) {
    case BbrState::kProbeBwDown:
      if (policy_->IsTimeToProbeBw()) {
        StartProbeBwRefill();
      } else if (policy_->IsTimeToCruise()) {
        StartProbeBwCruise();
      }
      break;
    case BbrState::kProbeBwCruise:
      if (policy_->IsTimeToProbeBw()) StartProbeBwRefill();
      break;
    case BbrState::kProbeBwRefill:
      if (model_.rounds.round_start()) StartProbeBwUp();
      break;
    case BbrState::kProbeBwUp:
      if (!policy_->IsTimeToGoDown()) break;
      model_.cycle.prev_probe_too_high = false;  // no high loss, so far
      StartProbeBwDown();
      break;
    case BbrState::kStartup:
    case BbrState::kDrain:
    case BbrState::kProbeRtt:
      break;
  }
}

// True when it has started a state itself.
bool Bbr::AdaptLongTermModel() {
  ProbeBwCycle& cycle = model_.cycle;
  const bool round_start = model_.rounds.round_start();
  if (cycle.ack_phase == AckPhase::kProbeStarting && round_start) cycle.ack_phase = AckPhase::kProbeFeedback;
  if (cycle.ack_phase == AckPhase::kProbeStopping && round_start) {
    cycle.bw_probe_sample = false;
    cycle.ack_phase = AckPhase::kInit;
    if (model_.IsInProbeBw() && !model_.event.sample_limited) model_.max_bw_filter.Advance();
    if (model_.IsInProbeBw() && cycle.prev_probe_precautionary && !cycle.prev_probe_too_high) {
      StartProbeBwRefill();
      return true;
    }
  }
  ByteCount& longterm = model_.bounds.inflight_longterm;
  if (IsInflightTooHigh() || longterm == BbrBounds::kInfinite) return false;
  longterm = std::max(longterm, model_.event.rs.tx_in_flight);
  if (model_.state == BbrState::kProbeBwUp) policy_->ProbeInflightLongtermUpward();
  return false;
}

// --- PROBE_RTT ---

void Bbr::UpdateMinRtt() {
  const Duration rtt = model_.event.rtt;
  if (model_.event.void_min_rtt && rtt > Duration::zero()) model_.min_rtt_filter.Void(model_.event.now, rtt);
  model_.min_rtt_filter.Update(model_.event.now, rtt, policy_->ProbeRttInterval(), policy_->MeetsMinRtt(rtt));
}

void Bbr::CheckProbeRtt() {
  if (model_.state != BbrState::kProbeRtt && model_.min_rtt_filter.probe_rtt_expired() &&
      !model_.idle_restart) {
    SetState(BbrState::kProbeRtt, 1.0, kProbeRttCwndGain);
    model_.SaveCwnd();
    probe_rtt_done_stamp_ = Instant::Infinite();
    model_.cycle.ack_phase = AckPhase::kProbeStopping;
    model_.StartRound();
  }
  if (model_.state == BbrState::kProbeRtt) HandleProbeRtt();
  if (model_.event.rs.delivered.value() > 0) model_.idle_restart = false;
}

void Bbr::HandleProbeRtt() {
  if (probe_rtt_done_stamp_.IsInfinite()) {
    if (model_.event.in_flight > ProbeRttCwnd()) return;
    probe_rtt_done_stamp_ = model_.event.now + kProbeRttDuration;
    probe_rtt_round_done_ = false;
    model_.StartRound();
    return;
  }
  if (model_.rounds.round_start()) probe_rtt_round_done_ = true;
  if (probe_rtt_round_done_) CheckProbeRttDone();
}

void Bbr::CheckProbeRttDone() {
  if (probe_rtt_done_stamp_.IsInfinite() || model_.event.now <= probe_rtt_done_stamp_) return;
  model_.min_rtt_filter.Refresh(model_.event.now);
  model_.RestoreCwnd();
  model_.bounds.ResetShortTermModel();
  if (model_.full_pipe.reached()) {
    StartProbeBwDown();
    StartProbeBwCruise();
  } else {
    EnterStartup();
  }
}

ByteCount Bbr::ProbeRttCwnd() const {
  return std::max(model_.Bdp() * kProbeRttCwndGain, model_.Packets(BbrModel::kMinPipePackets));
}

void Bbr::HandleRestartFromIdle() {
  model_.idle_restart = true;
  model_.aggregation.Restart(model_.event.now);
  if (model_.IsInProbeBw()) {
    SetPacingRateWithGain(1.0);
  } else if (model_.state == BbrState::kProbeRtt) {
    CheckProbeRttDone();
  }
}

}  // namespace longhaul::transport
