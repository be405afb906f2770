// How long the peer's packets waited in queues on their way to us, from the timestamps that they carry.
//
// Arrival minus timestamp is the one-way delay plus the distance of two clocks that nobody knows; its minimum
// is that of an empty path, and what is above it is the queue. The minimum is taken anew every 10..20 s,
// since clocks drift apart (50 ppm x 20 s = 1 ms).
//
// The lowest of half a round trip counts, not the mean: bursts and late timers pass, a standing queue stays
// (RFC 8289 §3).
#pragma once

#include <cstdint>

#include "base/instant.h"

namespace longhaul::transport {

class QueueDelay {
 public:
  static constexpr Duration kMinBucket = std::chrono::milliseconds(2);
  static constexpr Duration kBaseTime = std::chrono::seconds(10);

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
