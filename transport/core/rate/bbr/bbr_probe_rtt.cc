// The minimum RTT, and the pause that measures it when nothing else does (draft-ietf-ccwg-bbr §5.3.4, §5.4).

#include <algorithm>

#include "transport/core/rate/bbr/bbr.h"

namespace longhaul::transport {

void Bbr::UpdateMinRtt() {
  probe_rtt_expired_ = now_ > probe_rtt_min_stamp_ + ProbeRttInterval() && has_min_rtt();
  if (rtt_ <= Duration::zero()) return;
  if (rtt_ < probe_rtt_min_delay_ || probe_rtt_expired_ || MeetsMinRtt(rtt_)) {
    probe_rtt_min_delay_ = MeetsMinRtt(rtt_) ? std::min(rtt_, probe_rtt_min_delay_) : rtt_;
    probe_rtt_min_stamp_ = now_;
  }
  const bool min_rtt_expired = now_ > min_rtt_stamp_ + kMinRttFilterLen;
  if (probe_rtt_min_delay_ < min_rtt_ || min_rtt_expired) {
    min_rtt_ = probe_rtt_min_delay_;
    min_rtt_stamp_ = probe_rtt_min_stamp_;
  }
}

void Bbr::CheckProbeRtt() {
  if (state_ != BbrState::kProbeRtt && probe_rtt_expired_ && !idle_restart_) {
    EnterProbeRtt();
    SaveCwnd();
    probe_rtt_done_stamp_ = Instant::Infinite();
    ack_phase_ = AckPhase::kProbeStopping;
    StartRound();
  }
  if (state_ == BbrState::kProbeRtt) HandleProbeRtt();
  if (rs_.delivered.value() > 0) idle_restart_ = false;
}

void Bbr::EnterProbeRtt() {
  state_ = BbrState::kProbeRtt;
  pacing_gain_ = 1.0;
  cwnd_gain_ = kProbeRttCwndGain;
}

void Bbr::HandleProbeRtt() {
  if (probe_rtt_done_stamp_.IsInfinite()) {
    if (in_flight_ > ProbeRttCwnd()) return;
    probe_rtt_done_stamp_ = now_ + kProbeRttDuration;
    probe_rtt_round_done_ = false;
    StartRound();
    return;
  }
  if (round_start_) probe_rtt_round_done_ = true;
  if (probe_rtt_round_done_) CheckProbeRttDone();
}

void Bbr::CheckProbeRttDone() {
  if (probe_rtt_done_stamp_.IsInfinite() || now_ <= probe_rtt_done_stamp_) return;
  probe_rtt_min_stamp_ = now_;
  probe_rtt_expired_ = false;
  RestoreCwnd();
  ExitProbeRtt();
}

void Bbr::ExitProbeRtt() {
  ResetShortTermModel();
  if (full_bw_reached_) {
    StartProbeBwDown();
    StartProbeBwCruise();
  } else {
    EnterStartup();
  }
}

ByteCount Bbr::ProbeRttCwnd() const {
  return std::max(Bdp() * kProbeRttCwndGain, options_.max_datagram * kMinPipePackets);
}

void Bbr::HandleRestartFromIdle() {
  idle_restart_ = true;
  extra_acked_interval_start_ = now_;
  if (IsInProbeBw()) {
    SetPacingRateWithGain(1.0);
  } else if (state_ == BbrState::kProbeRtt) {
    CheckProbeRttDone();
  }
}

}  // namespace longhaul::transport
