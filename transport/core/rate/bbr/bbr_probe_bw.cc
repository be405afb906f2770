// PROBE_BW: send slower, as fast and faster than the path delivers, in turn (draft-ietf-ccwg-bbr §5.3.3).

#include <algorithm>

#include "transport/core/rate/bbr/bbr.h"

namespace longhaul::transport {
namespace {

// Reno would need this many round trips for its next loss at a BDP of so many packets or more.
constexpr int64_t kMaxRenoRounds = 62;
constexpr int kMaxSlopeRounds = 30;

}  // namespace

bool Bbr::IsInProbeBw() const {
  return state_ == BbrState::kProbeBwDown || state_ == BbrState::kProbeBwCruise ||
         state_ == BbrState::kProbeBwRefill || state_ == BbrState::kProbeBwUp;
}

bool Bbr::IsProbingBw() const {
  return state_ == BbrState::kStartup || state_ == BbrState::kProbeBwRefill || state_ == BbrState::kProbeBwUp;
}

void Bbr::EnterProbeBw() {
  cwnd_gain_ = kDefaultCwndGain;
  StartProbeBwDown();
}

void Bbr::StartProbeBwDown() {
  ResetCongestionSignals();
  probe_up_acked_per_inc_ = kInfinite;
  PickProbeWait();
  cycle_stamp_ = now_;
  ack_phase_ = AckPhase::kProbeStopping;
  StartRound();
  state_ = BbrState::kProbeBwDown;
  rounds_in_down_ = 0;
  pacing_gain_ = DownGain();
  cwnd_gain_ = kDefaultCwndGain;
}

void Bbr::StartProbeBwCruise() {
  state_ = BbrState::kProbeBwCruise;
  pacing_gain_ = 1.0;
  cwnd_gain_ = kDefaultCwndGain;
}

void Bbr::StartProbeBwRefill() {
  ResetShortTermModel();
  bw_probe_up_rounds_ = 0;
  bw_probe_up_acked_ = ByteCount();
  prev_probe_precautionary_ = false;
  ack_phase_ = AckPhase::kRefilling;
  StartRound();
  state_ = BbrState::kProbeBwRefill;
  pacing_gain_ = 1.0;
  cwnd_gain_ = kDefaultCwndGain;
}

void Bbr::StartProbeBwUp() {
  ack_phase_ = AckPhase::kProbeStarting;
  StartRound();
  ResetFullBw();
  full_bw_ = sample_rate_;
  state_ = BbrState::kProbeBwUp;
  pacing_gain_ = kProbeUpPacingGain;
  cwnd_gain_ = kProbeUpCwndGain;
  RaiseInflightLongtermSlope();
}

void Bbr::PickProbeWait() {
  rounds_since_probe_up_ = random_.Below(2);
  bw_probe_wait_ = std::chrono::seconds(2) + std::chrono::microseconds(random_.Below(1'000'000));
}

void Bbr::UpdateProbeBwCyclePhase() {
  if (!full_bw_reached_) return;
  if (AdaptLongTermModel()) return;
  switch (state_) {
    case BbrState::kProbeBwDown:
      if (!IsTimeToProbeBw() && IsTimeToCruise()) StartProbeBwCruise();
      break;
    case BbrState::kProbeBwCruise:
      IsTimeToProbeBw();
      break;
    case BbrState::kProbeBwRefill:
      if (!round_start_) break;
      bw_probe_sample_ = true;
      StartProbeBwUp();
      break;
    case BbrState::kProbeBwUp:
      if (!IsTimeToGoDown()) break;
      prev_probe_too_high_ = false;  // no high loss, so far
      StartProbeBwDown();
      break;
    case BbrState::kStartup:
    case BbrState::kDrain:
    case BbrState::kProbeRtt:
      break;
  }
}

// Starts the probe when it is time; true when it did.
bool Bbr::IsTimeToProbeBw() {
  if (!HasElapsedInPhase(bw_probe_wait_) && !IsRenoCoexistenceProbeTime()) return false;
  if (!MayProbeBw()) return false;
  StartProbeBwRefill();
  return true;
}

bool Bbr::IsRenoCoexistenceProbeTime() const {
  const ByteCount target = std::min(Bdp(), cwnd_);
  const int64_t reno_rounds = target.value() / options_.max_datagram.value();
  return rounds_since_probe_up_ >= static_cast<uint64_t>(std::min(reno_rounds, kMaxRenoRounds));
}

bool Bbr::IsTimeToCruise() const {
  return in_flight_ <= InflightWithHeadroom() && in_flight_ <= Inflight(1.0);
}

bool Bbr::IsTimeToGoDown() {
  if (prev_probe_too_high_ && in_flight_ >= inflight_longterm_) {
    prev_probe_precautionary_ = true;
    return true;
  }
  if (cwnd_limited_ && cwnd_ >= inflight_longterm_) {
    ResetFullBw();  // it is inflight_longterm that limits the rate
    full_bw_ = sample_rate_;
    return false;
  }
  return full_bw_now_;
}

ByteCount Bbr::InflightWithHeadroom() const {
  if (inflight_longterm_ == kInfinite) return kInfinite;
  const ByteCount headroom = std::max(options_.max_datagram, inflight_longterm_ * kHeadroom);
  return std::max(inflight_longterm_ - headroom, options_.max_datagram * kMinPipePackets);
}

void Bbr::RaiseInflightLongtermSlope() {
  const int64_t growth = int64_t{1} << bw_probe_up_rounds_;
  bw_probe_up_rounds_ = std::min(bw_probe_up_rounds_ + 1, kMaxSlopeRounds);
  probe_up_acked_per_inc_ = std::max(ByteCount(cwnd_.value() / growth), options_.max_datagram);
}

void Bbr::ProbeInflightLongtermUpward() {
  if (!cwnd_limited_ || cwnd_ < inflight_longterm_) return;
  bw_probe_up_acked_ += newly_acked_;
  if (bw_probe_up_acked_ >= probe_up_acked_per_inc_) {
    const int64_t steps = bw_probe_up_acked_.value() / probe_up_acked_per_inc_.value();
    bw_probe_up_acked_ -= probe_up_acked_per_inc_ * steps;
    inflight_longterm_ += options_.max_datagram * steps;
  }
  if (round_start_) RaiseInflightLongtermSlope();
}

bool Bbr::AdaptLongTermModel() {
  if (ack_phase_ == AckPhase::kProbeStarting && round_start_) ack_phase_ = AckPhase::kProbeFeedback;
  if (ack_phase_ == AckPhase::kProbeStopping && round_start_) {
    bw_probe_sample_ = false;
    ack_phase_ = AckPhase::kInit;
    if (IsInProbeBw() && !sample_limited_) AdvanceMaxBwFilter();
    if (IsInProbeBw() && prev_probe_precautionary_ && !prev_probe_too_high_) {
      StartProbeBwRefill();
      return true;
    }
  }
  if (IsInflightTooHigh() || inflight_longterm_ == kInfinite) return false;
  inflight_longterm_ = std::max(inflight_longterm_, rs_.tx_in_flight);
  if (state_ == BbrState::kProbeBwUp) ProbeInflightLongtermUpward();
  return false;
}

}  // namespace longhaul::transport
