#include "transport/core/rate/bbr/bbr_policy.h"

#include <algorithm>

namespace longhaul::transport {
namespace {

// The draft's: Reno would need this many round trips for its next loss at a BDP of as many packets or more.
constexpr int64_t kMaxRenoRounds = 62;
constexpr Duration kSendQuantumTime =
    std::chrono::milliseconds(1);               // the draft's: a burst is at most a millisecond
constexpr ByteCount kMaxSendQuantum{64 << 10};  // the draft's: what segmentation offload takes at once

}  // namespace

std::optional<Bandwidth> BbrPolicy::FullBwSample() const {
  if (m_.event.sample_limited) return std::nullopt;
  return m_.event.sample_rate;
}

Bandwidth BbrPolicy::PacingRate(double gain) const { return m_.bw * (gain * kPacingMargin); }

bool BbrPolicy::MeetsMinRtt(Duration rtt) const {
  (void)rtt;
  return false;
}

bool BbrPolicy::LossTooHigh(ByteCount lost, ByteCount total) const { return lost > total * LossThresh(); }

bool BbrPolicy::EndsStartup(bool recovering) {
  const BbrRounds::Round& last = m_.rounds.last();
  return recovering && last.loss_events >= kStartupFullLossCount && LossTooHigh(last.lost, last.Total());
}

bool BbrPolicy::AdaptLowerBoundsFromCongestion() {
  BbrBounds& bounds = m_.bounds;
  if (m_.IsProbingBw() || !bounds.loss_in_round) return false;
  m_.InitLowerBounds();
  bounds.bw_shortterm = std::max(bounds.bw_latest, bounds.bw_shortterm * BbrBounds::kBeta);
  bounds.inflight_shortterm = std::max(bounds.inflight_latest, bounds.inflight_shortterm * BbrBounds::kBeta);
  return false;
}

// Flows that probe at random times do not probe in step.
void BbrPolicy::PickProbeWait() {
  m_.cycle.rounds_since_probe_up = m_.random.Below(2);
  m_.cycle.bw_probe_wait = std::chrono::seconds(2) + std::chrono::microseconds(m_.random.Below(1'000'000));
}

bool BbrPolicy::IsTimeToProbeBw() const {
  if (m_.cycle.HasElapsed(m_.event.now, m_.cycle.bw_probe_wait)) return true;
  // As often as Reno, so that it gets its share.
  const ByteCount target = std::min(m_.Bdp(), m_.cwnd);
  const int64_t reno_rounds = target.value() / m_.options.max_datagram.value();
  return m_.cycle.rounds_since_probe_up >= static_cast<uint64_t>(std::min(reno_rounds, kMaxRenoRounds));
}

bool BbrPolicy::IsTimeToCruise() const {
  return m_.event.in_flight <= InflightWithHeadroom() && m_.event.in_flight <= m_.Inflight(1.0);
}

bool BbrPolicy::IsTimeToGoDown() {
  if (m_.cycle.prev_probe_too_high && m_.event.in_flight >= m_.bounds.inflight_longterm) {
    m_.cycle.prev_probe_precautionary = true;
    return true;
  }
  if (m_.rounds.cwnd_limited() && m_.cwnd >= m_.bounds.inflight_longterm) {
    m_.full_pipe.Restart(m_.event.sample_rate);  // inflight_longterm limits the rate, not the pipe
    return false;
  }
  return m_.full_pipe.now();
}

void BbrPolicy::ProbeInflightLongtermUpward() {
  if (!m_.rounds.cwnd_limited() || m_.cwnd < m_.bounds.inflight_longterm) return;
  ProbeBwCycle& cycle = m_.cycle;
  cycle.bw_probe_up_acked += m_.event.newly_acked;
  if (cycle.bw_probe_up_acked >= cycle.probe_up_acked_per_inc) {
    const int64_t steps = cycle.bw_probe_up_acked.value() / cycle.probe_up_acked_per_inc.value();
    cycle.bw_probe_up_acked -= cycle.probe_up_acked_per_inc * steps;
    m_.bounds.inflight_longterm += m_.Packets(steps);
  }
  if (m_.rounds.round_start()) cycle.RaiseInflightLongtermSlope(m_.cwnd, m_.options.max_datagram);
}

ByteCount BbrPolicy::InflightWithHeadroom() const {
  const ByteCount longterm = m_.bounds.inflight_longterm;
  if (longterm == BbrBounds::kInfinite) return longterm;
  const ByteCount headroom = std::max(m_.options.max_datagram, longterm * kHeadroom);
  return std::max(longterm - headroom, m_.Packets(BbrModel::kMinPipePackets));
}

ByteCount BbrPolicy::SendQuantum() const {
  return std::max(std::min(m_.bounded_rate * kSendQuantumTime, kMaxSendQuantum), m_.Packets(2));
}

}  // namespace longhaul::transport
