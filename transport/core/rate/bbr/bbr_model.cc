#include "transport/core/rate/bbr/bbr_model.h"

#include <algorithm>

#include "base/check.h"

namespace longhaul::transport {
namespace {

constexpr double kRecentLossWeight = 0.2;  // for people only: a snapshot's loss is of about five rounds
constexpr int kMaxSlopeRounds = 30;        // the draft's: the slope doubles no further

}  // namespace

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

// --- Rounds ---

void BbrRounds::OnPacketSent(ByteCount in_flight, ByteCount cwnd) {
  if (in_flight >= cwnd) cwnd_limited_in_round_ = true;
  if (cwnd_limited_in_round_) cwnd_limited_ = true;
}

ByteCount BbrRounds::ExcuseHostDrops(ByteCount lost, ByteCount dropped) {
  host_drop_credit_ += dropped;
  const ByteCount excused = std::min(lost, host_drop_credit_);
  host_drop_credit_ -= excused;
  return lost - excused;
}

void BbrRounds::CountLoss(ByteCount lost, ByteCount marked) {
  current_.marked += marked;
  current_.lost += lost + marked;
}

void BbrRounds::CountLostPacket(uint64_t number) {
  if (current_.loss_events == 0 || number != last_lost_number_ + 1) ++current_.loss_events;
  last_lost_number_ = number;
}

bool BbrRounds::Advance(const BbrEvent& event) {
  round_start_ = event.newly_acked.value() > 0 && event.rs.prior_delivered >= next_round_delivered_;
  if (!round_start_) return false;
  StartRound(event.delivered);
  ++count_;
  last_ = current_;
  LH_CHECK_OP(last_.marked.value(), <=, last_.lost.value());
  current_ = Round();
  current_.start = event.now;
  host_drop_credit_ = host_drop_credit_ * 0.5;  // a drop whose packet is never declared lost excuses no other
  cwnd_limited_ = cwnd_limited_in_round_;
  cwnd_limited_in_round_ = false;
  if (last_.Total().value() > 0) recent_loss_ += kRecentLossWeight * (last_.Loss() - recent_loss_);
  return true;
}

void BbrRounds::Count(const BbrEvent& event) {
  current_.acked += event.newly_acked;
  current_.bw = std::max(current_.bw, event.sample_rate);
  current_.delivered_bw = std::max(current_.delivered_bw, event.delivered_rate);
  current_.limited = current_.limited && event.sample_limited;
  if (event.path_rtt > Duration::zero()) current_.min_rtt = std::min(current_.min_rtt, event.path_rtt);
}

// --- Bounds ---

void BbrBounds::UpdateLatestDeliverySignals(const BbrEvent& event) {
  loss_round_start = false;
  bw_latest = std::max(bw_latest, event.sample_rate);
  inflight_latest = std::max(inflight_latest, event.rs.delivered);
  if (event.newly_acked.value() > 0 && event.rs.prior_delivered >= loss_round_delivered) {
    loss_round_delivered = event.delivered;
    loss_round_start = true;
  }
}

void BbrBounds::AdvanceLatestDeliverySignals(const BbrEvent& event) {
  if (!loss_round_start) return;
  bw_latest = event.sample_rate;
  inflight_latest = event.rs.delivered;
}

void BbrBounds::ResetCongestionSignals() {
  loss_in_round = false;
  bw_latest = Bandwidth::Zero();
  inflight_latest = ByteCount();
}

void BbrBounds::ResetShortTermModel() {
  bw_shortterm = Bandwidth::Max();
  inflight_shortterm = kInfinite;
}

void BbrBounds::InitLowerBounds(Bandwidth max_bw, ByteCount cwnd) {
  if (bw_shortterm == Bandwidth::Max()) bw_shortterm = max_bw;
  if (inflight_shortterm == kInfinite) inflight_shortterm = cwnd;
}

void BbrBounds::Save(uint64_t round) {
  undo = {std::nullopt, bw_shortterm, inflight_shortterm, inflight_longterm, round, ByteCount()};
}

void BbrBounds::Restore() {
  loss_in_round = false;
  undo.lost = ByteCount();
  bw_shortterm = std::max(bw_shortterm, undo.bw_shortterm);
  inflight_shortterm = std::max(inflight_shortterm, undo.inflight_shortterm);
  inflight_longterm = std::max(inflight_longterm, undo.inflight_longterm);
}

// --- The cycle ---

void ProbeBwCycle::RaiseInflightLongtermSlope(ByteCount cwnd, ByteCount max_datagram) {
  const int64_t growth = int64_t{1} << bw_probe_up_rounds;
  bw_probe_up_rounds = std::min(bw_probe_up_rounds + 1, kMaxSlopeRounds);
  probe_up_acked_per_inc = std::max(ByteCount(cwnd.value() / growth), max_datagram);
  LH_CHECK_OP(probe_up_acked_per_inc.value(), >, 0);
}

// --- The model ---

Duration BbrModel::QueueDelay() const {
  return has_min_rtt() ? std::max(Duration(0), event.smoothed_rtt - min_rtt()) : Duration(0);
}

ByteCount BbrModel::Bdp() const {
  if (!has_min_rtt() || max_bw().IsZero()) return Packets(kInitialCwndPackets);
  return std::min(max_bw(), bounds.bw_shortterm) * min_rtt();
}

ByteCount BbrModel::QuantizationBudget(ByteCount inflight_cap) const {
  inflight_cap = std::max({inflight_cap, send_quantum, Packets(kMinPipePackets)});
  if (state == BbrState::kProbeBwUp) inflight_cap += Packets(2);
  return inflight_cap;
}

void BbrModel::SaveCwnd() {
  prior_cwnd = !bounds.loss_in_round && state != BbrState::kProbeRtt ? cwnd : std::max(prior_cwnd, cwnd);
}

}  // namespace longhaul::transport
