// What the path can do, read from ACKs: the bottleneck's bandwidth, the round-trip time of an empty queue,
// packet-timed round trips and whether the pipe is full (draft-ietf-ccwg-bbr §5.3, §5.5).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/instant.h"
#include "longhaul/units.h"
#include "transport/core/rate/rate_controller.h"

namespace longhaul::transport {

class BandwidthModel {
 public:
  // Round trips with a sample that the application did not limit; longer than one gain cycle, so that the
  // maximum always holds one probe for more.
  static constexpr size_t kBandwidthRounds = 12;
  static constexpr Duration kMinRttLifetime = std::chrono::seconds(10);
  static constexpr double kFullPipeGrowth = 1.25;
  static constexpr int kFullPipeRounds = 3;

  // What the last complete round trip saw. Its packets were sent in the round before.
  struct Round {
    ByteCount acked;
    ByteCount lost;
    Duration min_rtt = Duration::max();  // max() when the round gave no sample
    bool measured = false;               // had a bandwidth sample that the application did not limit
  };

  // probing_for_more: the sender tries to exceed the estimate; only such rounds tell that the pipe is full.
  // Applies one event; true when it is the first of a new round trip: then last_round() has just ended.
  // queue_empty: the sample comes from a packet sent into an idle path, so it may replace an expired minimum.
  bool OnEvent(const CongestionEvent& event, ByteCount lost, bool queue_empty, bool probing_for_more);
  // The minimum is what PROBE_RTT has just measured.
  void SetMinRtt(Duration rtt, Instant now);

  bool has_bandwidth() const { return !bandwidth_.IsZero(); }
  // Largest sample of the last kBandwidthRounds measured rounds. A sample that the application limited counts
  // only when it is the largest, and a round of nothing else ages nothing.
  Bandwidth bandwidth() const { return bandwidth_; }
  bool has_min_rtt() const { return min_rtt_ != Duration::max(); }
  Duration min_rtt() const { return min_rtt_; }
  // The minimum was neither undercut nor met again (within 1/64) for kMinRttLifetime.
  bool MinRttExpired(Instant now) const { return has_min_rtt() && now - min_rtt_time_ > kMinRttLifetime; }
  uint64_t round_count() const { return rounds_; }
  const Round& last_round() const { return last_round_; }
  // The round under way.
  const Round& round() const { return round_; }
  // The estimate did not grow by kFullPipeGrowth in kFullPipeRounds measured rounds.
  bool pipe_full() const { return stalled_rounds_ >= kFullPipeRounds; }
  int stalled_rounds() const { return stalled_rounds_; }
  // Bytes that fill the path without a queue; zero before both estimates exist.
  ByteCount Bdp() const;

 private:
  void EndRound(bool probing_for_more);
  void TakeBandwidth(const RateSample& sample);
  void TakeRtt(Duration rtt, bool queue_empty, Instant now);
  void JudgePipe(bool probing_for_more);

  std::array<Bandwidth, kBandwidthRounds> round_max_{};  // ring, one slot per measured round
  size_t slot_ = 0;
  Bandwidth bandwidth_;
  Duration min_rtt_ = Duration::max();
  Instant min_rtt_time_;
  uint64_t rounds_ = 0;
  ByteCount next_round_delivered_;  // the ACK of a packet sent after this much was delivered ends the round
  Round round_;
  Round last_round_;
  Bandwidth full_bandwidth_;  // the estimate when it last grew
  int stalled_rounds_ = 0;
};

}  // namespace longhaul::transport
