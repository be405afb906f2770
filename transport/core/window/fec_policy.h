// How many repair symbols a source block gets, from the measured loss.
//
// Rule (docs/decisions/0003): the m that minimises P_f(k, m) + c m, with P_f(k, m) the probability that more than m
// of the k + m symbols are lost, and c = 1 / (packets sent in one recovery time of 1.25 RTT).
// A block whose slack until the window's last packet exceeds a recovery time needs at most one: its
// retransmission is hidden behind what is still to be sent.
//
// The loss estimate is an EWMA pair, fast (1/64) and slow (1/1024) per packet: p = max of both. (The estimator
// with burst correlation comes with the rate-control work.)
#pragma once

#include <cstdint>

#include "base/instant.h"
#include "longhaul/units.h"

namespace longhaul::transport {

// P(more than m of n = k + m symbols are lost) at independent loss p.
double BlockFailureProbability(int k, int m, double p);

// m by the rule above, 0..max_m.
int RepairSymbolsFor(int k, int max_m, double loss, double packets_per_recovery_time);

class LossEstimator {
 public:
  // One packet's fate became known.
  void OnPacket(bool lost);
  // Undo: the packet was declared lost by mistake.
  void OnSpurious();
  // 0..1; zero before the first loss.
  double loss() const;
  uint64_t packets() const { return packets_; }

 private:
  double fast_ = 0;
  double slow_ = 0;
  uint64_t packets_ = 0;
};

}  // namespace longhaul::transport
