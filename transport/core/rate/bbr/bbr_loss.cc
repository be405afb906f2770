// What loss means: too much while probing bounds the volume in flight for long, outside of probing it bounds
// rate and volume for short; and both are undone when it was none (draft-ietf-ccwg-bbr §5.5.10, §5.5.11).

#include <algorithm>

#include "transport/core/rate/bbr/bbr.h"

namespace longhaul::transport {

bool Bbr::LossTooHigh(ByteCount lost, ByteCount total) const { return lost > total * LossThresh(); }

void Bbr::NoteLoss() {
  if (!loss_in_round_) {
    loss_round_delivered_ = delivered_;
    // The reaction to this episode's loss may have reset loss_in_round_: what was saved before it stays.
    if (!undo_state_ || round_count_ > undo_round_) SaveStateUponLoss();
  }
  loss_in_round_ = true;
}

void Bbr::SaveStateUponLoss() {
  SaveCwnd();
  undo_state_.reset();
  undo_round_ = round_count_;
  undo_bw_shortterm_ = bw_shortterm_;
  undo_inflight_shortterm_ = inflight_shortterm_;
  undo_inflight_longterm_ = inflight_longterm_;
  undo_lost_ = ByteCount();
}

void Bbr::HandleLostPacket(const LostPacket& packet) {
  NoteLoss();
  undo_lost_ += packet.bytes;
  if (round_.loss_events == 0 || packet.number != last_lost_number_ + 1) ++round_.loss_events;
  last_lost_number_ = packet.number;
  if (!bw_probe_sample_) return;
  rs_.tx_in_flight = packet.tx_in_flight;
  rs_.lost = packet.lost;
  rs_.app_limited = packet.app_limited;
  if (IsInflightTooHigh()) HandleInflightTooHigh(InflightAtLoss(packet), packet.app_limited);
}

void Bbr::HandleInflightTooHigh(ByteCount tx_in_flight, bool app_limited) {
  prev_probe_too_high_ = true;
  bw_probe_sample_ = false;  // once per probe
  if (!app_limited) {
    const ByteCount target = std::min(Bdp(), cwnd_);
    inflight_longterm_ = std::max(tx_in_flight, target * kBeta);
  }
  if (state_ == BbrState::kProbeBwUp) {
    undo_state_ = BbrState::kProbeBwUp;
    StartProbeBwDown();
  }
}

// Where within the packet (it may be a burst of many) the loss crossed the threshold.
ByteCount Bbr::InflightAtLoss(const LostPacket& packet) const {
  const double thresh = LossThresh();
  const ByteCount inflight_before = packet.tx_in_flight - packet.bytes;
  const ByteCount lost_before = packet.lost - packet.bytes;
  const double prefix =
      (thresh * static_cast<double>(inflight_before.value()) - static_cast<double>(lost_before.value())) /
      (1.0 - thresh);
  return inflight_before + ByteCount(static_cast<int64_t>(prefix));
}

void Bbr::UpdateCongestionSignals() {
  UpdateMaxBw();
  if (!loss_round_start_) return;
  AdaptLowerBoundsFromCongestion();
  loss_in_round_ = false;
}

void Bbr::AdaptLowerBoundsFromCongestion() {
  if (IsProbingBw() || !loss_in_round_) return;
  InitLowerBounds();
  bw_shortterm_ = std::max(bw_latest_, bw_shortterm_ * kBeta);
  inflight_shortterm_ = std::max(inflight_latest_, inflight_shortterm_ * kBeta);
}

void Bbr::InitLowerBounds() {
  if (bw_shortterm_ == Bandwidth::Max()) bw_shortterm_ = max_bw_;
  if (inflight_shortterm_ == kInfinite) inflight_shortterm_ = cwnd_;
}

void Bbr::HandleSpuriousLossDetection() {
  RestoreCwnd();
  loss_in_round_ = false;
  undo_lost_ = ByteCount();
  ResetFullBw();
  bw_shortterm_ = std::max(bw_shortterm_, undo_bw_shortterm_);
  inflight_shortterm_ = std::max(inflight_shortterm_, undo_inflight_shortterm_);
  inflight_longterm_ = std::max(inflight_longterm_, undo_inflight_longterm_);
  if (undo_state_ == BbrState::kStartup && state_ != BbrState::kStartup) {
    full_bw_reached_ = false;
    if (state_ != BbrState::kProbeRtt) EnterStartup();
  } else if (undo_state_ == BbrState::kProbeBwUp && state_ != BbrState::kProbeBwUp) {
    if (state_ != BbrState::kProbeRtt) StartProbeBwRefill();
  }
  undo_state_.reset();
}

}  // namespace longhaul::transport
