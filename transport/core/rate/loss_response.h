// The in-window rule (mission A5): what the loss of one round trip means for the rate.
//
//   loss < target                    raise: probing goes on, and what bounded the rate is lifted step by step
//   target <= loss < threshold       hold: no probing; the rate is what the path delivers
//   threshold <= loss                halve, at most once per round trip
//
// At or above means: by more than chance explains. A round that shows it too weakly to halve holds, and is
// judged again together with the next, so that a true excess is found within a few round trips however small
// they are.
//
// It only judges; TargetLossPolicy acts on its model.
#pragma once

#include <cstdint>

#include "longhaul/units.h"

namespace longhaul::transport {

enum class LossVerdict : uint8_t { kRaise, kHold, kHalve };

class LossResponse {
 public:
  static constexpr int64_t kMinPackets = 20;  // at 30 % loss one standard deviation is 10 %

  explicit LossResponse(ByteCount max_datagram) : max_datagram_(max_datagram) {}

  // A round trip has ended. Rounds of fewer than kMinPackets packets are put together until there are enough;
  // until then the verdict stays. `mean_burst`: packets that are lost in a row on average, 1 when losses are
  // independent.
  LossVerdict OnRound(ByteCount acked, ByteCount lost, double target, double threshold, double mean_burst);
  LossVerdict verdict() const { return verdict_; }

  // Whether the share lost is at or above `level` by more than chance explains: by `sigmas` standard
  // deviations of a binomial whose losses come in runs of mean_burst (geometric lengths inflate the variance
  // by 2 b - 1).
  static bool Exceeds(double packets, double lost_packets, double level, double sigmas, double mean_burst);

 private:
  bool LastingExcess(double target, double mean_burst);

  ByteCount max_datagram_;
  LossVerdict verdict_ = LossVerdict::kRaise;
  bool settling_ = false;  // the next round is still of packets sent before the halving
  ByteCount acked_;        // of the rounds put together
  ByteCount lost_;
  double long_lost_ = 0;  // packets of the last rounds together
  double long_total_ = 0;
};

}  // namespace longhaul::transport
