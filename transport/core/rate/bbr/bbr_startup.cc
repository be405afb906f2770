// STARTUP doubles the rate each round trip until the delivery rate no longer grows or too much is lost; DRAIN
// empties the queue that this has built (draft-ietf-ccwg-bbr §5.3.1, §5.3.2).

#include <algorithm>

#include "transport/core/rate/bbr/bbr.h"

namespace longhaul::transport {

void Bbr::EnterStartup() {
  state_ = BbrState::kStartup;
  pacing_gain_ = kStartupPacingGain;
  cwnd_gain_ = kDefaultCwndGain;
}

void Bbr::CheckStartupDone() {
  if (state_ != BbrState::kStartup) return;
  CheckStartupHighLoss();
  if (full_bw_reached_) EnterDrain();
}

// There is no recovery phase here as TCP has one; the first loss begins it, a round trip without loss ends
// it.
void Bbr::CheckStartupHighLoss() {
  if (full_bw_reached_ || !round_start_) return;
  if (last_round_.loss_events == 0) {
    startup_recovery_delivered_.reset();
    return;
  }
  if (!startup_recovery_delivered_) {
    startup_recovery_delivered_ = delivered_;
    return;
  }
  if (last_round_.loss_events < kStartupFullLossCount) return;
  if (!LossTooHigh(last_round_.lost, last_round_.Total()) || !StartupLossIsOurs()) return;
  undo_state_ = BbrState::kStartup;
  full_bw_now_ = full_bw_reached_ = true;
  inflight_longterm_ = std::max(Bdp(), inflight_latest_);
}

void Bbr::EnterDrain() {
  state_ = BbrState::kDrain;
  pacing_gain_ = kDrainPacingGain;
  cwnd_gain_ = kDefaultCwndGain;
  drain_start_round_ = round_count_;
}

void Bbr::CheckDrainDone() {
  if (state_ != BbrState::kDrain) return;
  if (in_flight_ <= Inflight(1.0) || round_count_ > drain_start_round_ + kDrainRounds) EnterProbeBw();
}

}  // namespace longhaul::transport
