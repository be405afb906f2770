#include "transport/core/rate/bandwidth_model.h"

#include <algorithm>

namespace longhaul::transport {

bool BandwidthModel::OnEvent(const CongestionEvent& event, ByteCount lost, bool queue_empty,
                             bool probing_for_more) {
  const bool acked = event.acked.value() > 0;
  const bool new_round = acked && event.sample.prior_delivered >= next_round_delivered_;
  if (new_round) {
    next_round_delivered_ = event.delivered;
    EndRound(probing_for_more);
  }
  round_.acked += event.acked;
  round_.lost += lost;
  TakeBandwidth(event.sample);
  if (event.latest_rtt > Duration::zero()) TakeRtt(event.latest_rtt, queue_empty, event.now);
  return new_round;
}

void BandwidthModel::EndRound(bool probing_for_more) {
  ++rounds_;
  JudgePipe(probing_for_more);
  if (round_.measured) {
    slot_ = (slot_ + 1) % kBandwidthRounds;
    round_max_[slot_] = Bandwidth::Zero();
    const Bandwidth remembered = *std::max_element(round_max_.begin(), round_max_.end());
    if (!remembered.IsZero()) bandwidth_ = remembered;
  }
  last_round_ = round_;
  round_ = Round();
}

void BandwidthModel::JudgePipe(bool probing_for_more) {
  if (bandwidth_ >= full_bandwidth_ * kFullPipeGrowth) {
    full_bandwidth_ = bandwidth_;
    stalled_rounds_ = 0;
  } else if (round_.measured && probing_for_more) {
    stalled_rounds_ = std::min(stalled_rounds_ + 1, kFullPipeRounds);
  }
}

void BandwidthModel::TakeBandwidth(const RateSample& sample) {
  Bandwidth rate = sample.train_rate;
  if (sample.valid) rate = std::max(rate, sample.delivery_rate);
  if (rate.IsZero()) return;
  const bool limited = sample.app_limited && sample.train_rate.IsZero();
  if (limited && rate <= bandwidth_) return;
  round_.measured = round_.measured || !limited;
  round_max_[slot_] = std::max(round_max_[slot_], rate);
  bandwidth_ = std::max(bandwidth_, rate);
}

void BandwidthModel::TakeRtt(Duration rtt, bool queue_empty, Instant now) {
  round_.min_rtt = std::min(round_.min_rtt, rtt);
  if (rtt < min_rtt_ || (queue_empty && MinRttExpired(now))) {
    SetMinRtt(rtt, now);
  } else if (rtt <= min_rtt_ + min_rtt_ / 64) {
    min_rtt_time_ = now;
  }
}

void BandwidthModel::SetMinRtt(Duration rtt, Instant now) {
  min_rtt_ = rtt;
  min_rtt_time_ = now;
}

ByteCount BandwidthModel::Bdp() const {
  return has_bandwidth() && has_min_rtt() ? bandwidth_ * min_rtt_ : ByteCount();
}

}  // namespace longhaul::transport
