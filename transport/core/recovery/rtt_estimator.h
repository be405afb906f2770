// The path's delay from ACKs and timestamps: the round-trip time, and how long the peer's packets
// wait in queues on their way here.
#pragma once

#include <cstdint>

#include "base/instant.h"
#include "longhaul/units.h"

namespace longhaul::transport {

// Round-trip time as in RFC 9002 §5: smoothed_rtt, rttvar, latest_rtt and min_rtt from ACKs.
class RttEstimator {
 public:
  // Before the first sample (RFC 9002 §6.2.2).
  static constexpr Duration kInitialRtt = std::chrono::milliseconds(333);
  // Timer granularity (RFC 9002 §6.1.2).
  static constexpr Duration kGranularity = std::chrono::milliseconds(1);

  // A packet that elicited an acknowledgement was acknowledged `latest` after it was sent. ack_delay is what
  // the peer reports, clamped to `max_ack_delay`; it is subtracted only when the result stays >= min_rtt.
  // latest <= 0 is ignored.
  void OnSample(Duration latest, Duration ack_delay, Instant now);

  bool has_sample() const { return has_sample_; }
  Duration smoothed_rtt() const { return smoothed_; }
  Duration rttvar() const { return rttvar_; }
  Duration latest_rtt() const { return latest_; }
  // latest_rtt without what the peer says it held the acknowledgement back; never below min_rtt.
  Duration adjusted_rtt() const { return adjusted_; }
  Duration min_rtt() const { return min_; }  // over the connection's life
  // smoothed_rtt + max(4 rttvar, granularity) + max_ack_delay (RFC 9002 §6.2.1), without back-off.
  Duration PtoBase(Duration max_ack_delay) const;

 private:
  bool has_sample_ = false;
  Duration smoothed_ = kInitialRtt;
  Duration rttvar_ = kInitialRtt / 2;
  Duration latest_{0};
  Duration adjusted_{0};
  Duration min_ = Duration::max();
};

// The queue that the peer's packets met, from the timestamps that they carry.
//
// Arrival minus timestamp is the one-way delay plus the unknown offset of two clocks. The minimum of that sum
// is an empty path's, and what exceeds it is queue. Clocks drift apart (50 ppm x 20 s = 1 ms), so a minimum
// is used for 10..20 s only.
//
// The queue is the least delay of half a round trip, not the mean: bursts and late timers pass, a standing
// queue stays (RFC 8289 §3).
class QueueDelay {
 public:
  static constexpr Duration kMinBucket = std::chrono::milliseconds(2);  // Pacer's timers may be so late
  static constexpr Duration kBaseTime = std::chrono::seconds(10);       // two of them: 1 ms of drift

  // A packet that its sender stamped with `timestamp_us` (wraps) arrived.
  void OnPacket(Instant now, uint32_t timestamp_us, Duration smoothed_rtt);
  // The standing queue of the last half to whole round trip; zero before the first packet.
  Duration standing() const { return Duration(int64_t{1000} * standing_us_); }

 private:
  struct Lowest {
    bool any = false;
    uint32_t offset = 0;
    void Add(uint32_t value);
  };

  Lowest base_;           // since base_start_
  Lowest previous_base_;  // of the time before
  Instant base_start_;
  Lowest bucket_;
  Instant bucket_start_;
  int64_t standing_us_ = 0;
};

}  // namespace longhaul::transport
