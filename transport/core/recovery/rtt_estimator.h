// Round-trip time as in RFC 9002 §5: smoothed_rtt, rttvar, latest_rtt and min_rtt from ACKs.
#pragma once

#include "base/instant.h"
#include "longhaul/units.h"

namespace longhaul::transport {

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

}  // namespace longhaul::transport
