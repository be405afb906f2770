// Which packets a link loses: independently, or in bursts.
//
//   Bernoulli         every packet with the same probability
//   Gilbert-Elliott   two states; in the good one nothing is lost, in the bad one everything is
//                     (netem's `loss gemodel p r` with 1-h = 100 % and 1-k = 0 %)
//
// A user thinks in the average loss L and the mean burst length B, so the state machine is derived from them:
//   leave the bad state   r = 1 / B                 (bursts are geometric with mean B)
//   enter the bad state   p = r * L / (1 - L)       (so that the share of the bad state, p / (p + r), is L)
#pragma once

#include <cstdint>

#include "base/random.h"

namespace longhaul::wan {

// The transition probabilities per packet of a Gilbert-Elliott process.
struct GilbertElliott {
  double enter_bad = 0;
  double leave_bad = 1;

  // REQUIRES: Possible(average_loss, mean_burst).
  static GilbertElliott From(double average_loss, double mean_burst);
  // Not every pair exists: bursts of mean 1 cannot lose more than half, since two bursts need a gap.
  static bool Possible(double average_loss, double mean_burst);
};

class LossProcess {
 public:
  // average_loss in 0..1; mean_burst 0 means Bernoulli, otherwise >= 1 packets.
  // The first state is drawn from the stationary distribution, so a short run is not biased.
  LossProcess(double average_loss, double mean_burst, Random random);

  // Whether the next packet is lost. Time plays no role: a burst is counted in packets.
  bool Next();

 private:
  double average_loss_;
  bool bursty_;
  GilbertElliott chain_;
  Random random_;
  bool bad_ = false;
};

}  // namespace longhaul::wan
