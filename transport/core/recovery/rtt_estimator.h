// The path's delay from ACKs and timestamps: the round-trip time, how long the peer's packets wait in queues
// on their way here, and how long at this host.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/instant.h"
#include "longhaul/units.h"
#include "transport/core/recovery/empty_path.h"

namespace longhaul::transport {

// Round-trip time as in RFC 9002 §5: smoothed_rtt, rttvar, latest_rtt and min_rtt from ACKs.
class RttEstimator {
 public:
  // Before the first sample (RFC 9002 §6.2.2).
  static constexpr Duration kInitialRtt = std::chrono::milliseconds(333);
  // Timer granularity (RFC 9002 §6.1.2).
  static constexpr Duration kGranularity = std::chrono::milliseconds(1);

  // A peer whose host is busy holds ACKs longer than the protocol's max_ack_delay. So much of it is believed
  // to be no queue; beyond it the host stood still.
  static constexpr Duration kMaxHeld = std::chrono::milliseconds(100);

  // initial: what the path is taken to have before the first sample.
  explicit RttEstimator(Duration initial = kInitialRtt) : smoothed_(initial), rttvar_(initial / 2) {}

  // A packet that elicited an acknowledgement was acknowledged `latest` after it was sent. ack_delay is what
  // the peer reports. For smoothed_rtt and rttvar, which time-outs are made of, it counts up to max_ack_delay
  // and is subtracted only when the result stays >= min_rtt. latest <= 0 is ignored.
  void OnSample(Duration latest, Duration ack_delay, Instant now);

  bool has_sample() const { return has_sample_; }
  Duration smoothed_rtt() const { return smoothed_; }
  Duration rttvar() const { return rttvar_; }
  Duration latest_rtt() const { return latest_; }
  // The path's part of latest_rtt: without what the peer says it held the acknowledgement back, up to
  // kMaxHeld; never below min_rtt, so that no claim hides more than the queue.
  Duration adjusted_rtt() const { return adjusted_; }
  Duration min_rtt() const { return min_; }  // over the connection's life
  // smoothed_rtt + max(4 rttvar, granularity) + max_ack_delay (RFC 9002 §6.2.1), without back-off.
  Duration PtoBase(Duration max_ack_delay) const;

 private:
  bool has_sample_ = false;
  Duration smoothed_;
  Duration rttvar_;
  Duration latest_{0};
  Duration adjusted_{0};
  Duration min_ = Duration::max();
};

// The queue that the peer's packets met, from the timestamps that they carry.
//
// Arrival minus timestamp is the one-way delay plus the unknown offset of two clocks. The minimum of that sum
// is an empty path's, and what exceeds it is queue. Clocks drift apart (50 ppm x 20 s = 1 ms), so a minimum
// is used for 10..20 s only. A path that becomes longer is noticed sooner, from packets that come after a
// pause.
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

  // The queue above both bases.
  int64_t Above(uint32_t offset) const;
  void NoticeLongerPath(Instant now, uint32_t offset, Duration smoothed_rtt);

  Lowest base_;           // since base_start_
  Lowest previous_base_;  // of the time before
  Instant base_start_;
  Lowest bucket_;
  Instant bucket_start_;
  int64_t standing_us_ = 0;
  Instant last_;  // packet
  EmptyPath empty_path_;
};

// How long packets that have arrived wait at this host until its process reads them.
//
// A process that does something else for a while reads late and then catches up: that is no queue of the
// path. But where even the packet that waits least waits, time and again, the process does not keep up, and
// the socket's buffer is a queue like any other: it fills, and then it drops.
class HostDelay {
 public:
  static constexpr Duration kTime = std::chrono::seconds(1);
  // Longer than a process waits for its turn on a shared machine.
  static constexpr Duration kStandingTime = std::chrono::milliseconds(100);

  // A packet that arrived at `received` is handled. received > now counts as now.
  void OnPacket(Instant now, Instant received);
  // As when the latest packet is to be taken to have arrived: the standing wait is not this host's lateness.
  Instant arrival() const { return std::min(now_, received_ + standing()); }
  // The least wait of the last kStandingTime to twice that.
  Duration standing() const { return std::min(least_, previous_least_); }
  // Over the last one to two seconds. Zero without packets.
  Duration mean() const;
  Duration largest() const { return std::max(current_.largest, previous_.largest); }

 private:
  struct Span {
    int64_t packets = 0;
    Duration sum{0};
    Duration largest{0};
  };

  Instant now_, received_;  // of the latest packet
  Span current_;            // since start_
  Span previous_;           // of the second before
  Instant start_;
  Duration least_{0};           // since least_start_
  Duration previous_least_{0};  // of the time before
  Instant least_start_;
};

}  // namespace longhaul::transport
