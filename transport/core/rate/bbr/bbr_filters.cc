#include "transport/core/rate/bbr/bbr_filters.h"

#include <algorithm>

#include "base/check.h"

namespace longhaul::transport {

void MaxBwFilter::Update(Bandwidth served, Bandwidth delivered, bool limited) {
  if (served.IsZero()) return;
  Slot& slot = slots_[slot_];
  if (!limited || served > max_bw_) slot.served = std::max(slot.served, served);
  if (!limited || delivered > max_delivered()) slot.delivered = std::max(slot.delivered, delivered);
  Bound();
}

void MaxBwFilter::SetExcused(double share) {
  LH_CHECK(share >= 0 && share < 1);
  excused_ = share;
  Bound();
}

void MaxBwFilter::Advance() {
  if (slots_[slot_].served.IsZero()) return;
  slot_ = 1 - slot_;
  slots_[slot_] = {};
  Bound();
}

void MaxBwFilter::Replace(Bandwidth served, Bandwidth delivered) {
  slots_[0] = slots_[1] = {served, delivered};
  Bound();
}

void MaxBwFilter::Bound() {
  max_bw_ = std::min(std::max(slots_[0].served, slots_[1].served), max_delivered() * (1 / (1 - excused_)));
}

void MinRttFilter::Update(Instant now, Duration rtt, Duration interval, bool met_again) {
  expired_ = now > probe_rtt_min_stamp_ + interval && known();
  if (rtt <= Duration::zero()) return;
  if (rtt < probe_rtt_min_delay_ || expired_ || met_again) {
    probe_rtt_min_delay_ = met_again ? std::min(rtt, probe_rtt_min_delay_) : rtt;
    probe_rtt_min_stamp_ = now;
  }
  if (probe_rtt_min_delay_ < min_rtt_ || now > min_rtt_stamp_ + kFilterLen) {
    min_rtt_ = probe_rtt_min_delay_;
    min_rtt_stamp_ = probe_rtt_min_stamp_;
  }
  LH_CHECK_OP(min_rtt_.count(), >, 0);
}

void MinRttFilter::Void(Instant now, Duration rtt) {
  LH_CHECK_OP(rtt.count(), >, 0);
  min_rtt_ = probe_rtt_min_delay_ = rtt;
  min_rtt_stamp_ = now;
}

void MinRttFilter::Replace(Instant now, Duration rtt) {
  Void(now, rtt);
  Refresh(now);
}

void MinRttFilter::Refresh(Instant now) {
  probe_rtt_min_stamp_ = now;
  expired_ = false;
}

void AckAggregation::Update(Instant now, uint64_t round, Bandwidth bw, ByteCount newly_acked, ByteCount cwnd,
                            uint64_t rounds) {
  if (newly_acked.value() == 0) return;
  ByteCount expected = bw * (now - interval_start_);
  if (delivered_ <= expected) {
    delivered_ = ByteCount();
    interval_start_ = now;
    expected = ByteCount();
  }
  delivered_ += newly_acked;
  const ByteCount extra = std::min({delivered_ - expected, cwnd, bw * kMaxTime});
  filter_.SetLength(rounds);
  filter_.Update(extra.value(), round);
}

void FullPipe::Restart(Bandwidth bw) {
  bw_ = bw;
  count_ = 0;
  now_ = false;
}

void FullPipe::OnRound(Bandwidth sample) {
  if (now_) return;
  if (sample >= bw_ * kGrowth) {
    Restart(sample);
    return;
  }
  ++count_;
  LH_CHECK_OP(count_, <=, kRounds);
  now_ = count_ >= kRounds;
  if (now_) reached_ = true;
}

}  // namespace longhaul::transport
