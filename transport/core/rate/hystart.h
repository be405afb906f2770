// HyStart++ (RFC 9406): leaves slow start when the round-trip time grows, before the queue overflows.
//
//   slow start --[RTT of a round above that of the last]--> conservative slow start (a quarter of the growth)
//       ^------[RTT back below the baseline]---------------------'   --[5 rounds]--> done
//
// Sizes are the caller's: this part says only by how much an acknowledged byte may raise the window. As the
// sender paces, L (the bound per ACK) is infinite (§4.2).
#pragma once

#include "base/instant.h"
#include "longhaul/units.h"

namespace longhaul::transport {

class HyStart {
 public:
  static constexpr Duration kMinRttThresh = std::chrono::milliseconds(4);
  static constexpr Duration kMaxRttThresh = std::chrono::milliseconds(16);
  static constexpr int kMinRttDivisor = 8;
  static constexpr int kRttSamples = 8;  // N_RTT_SAMPLE
  static constexpr int kCssGrowthDivisor = 4;
  static constexpr int kCssRounds = 5;

  // A packet-timed round trip begins.
  void OnRoundStart();
  void OnRttSample(Duration rtt);

  bool conservative() const { return conservative_; }  // in CSS
  bool done() const { return done_; }                  // slow start is over: ssthresh = cwnd
  // Growth of the window per acknowledged byte.
  double growth() const { return conservative_ ? 1.0 / kCssGrowthDivisor : 1.0; }

 private:
  bool RttGrew() const;

  Duration last_round_min_ = Duration::max();
  Duration round_min_ = Duration::max();
  int samples_ = 0;
  bool conservative_ = false;
  Duration css_baseline_ = Duration::max();
  int css_rounds_ = 0;
  bool done_ = false;
};

}  // namespace longhaul::transport
