// How many repair symbols a source block gets and over how many blocks bursts are spread, from the measured
// loss.
//
// Rule (docs/decisions/0003): the m that minimises P_f(k, m) + c m, with P_f(k, m) the probability that more
// than m of the k + m symbols are lost, and c = 1 / (packets that could be sent in the time by which the
// block's failure would delay the window's end). That time is the recovery time of 1.25 RTT, or several when
// what is sent again may be lost again, less the slack until the window's last packet: as far as that goes, a
// retransmission is hidden behind what is still to be sent.
//
// P_f is a beta-binomial: losses of mean p, two symbols of a block correlated by rho (docs/decisions/0008).
// Bursts correlate neighbours; the interleaver sends a block's symbols `spacing` packets apart, and what a
// burst of the measured length correlates fades with that distance.
#pragma once

#include <cstdint>

#include "base/instant.h"
#include "longhaul/units.h"
#include "transport/core/window/loss_estimator.h"

namespace longhaul::transport {

// P(more than m of n = k + m symbols are lost) at loss p and pairwise correlation rho (0: independent).
double BlockFailureProbability(int k, int m, double p, double rho = 0);

// Loss as FEC is planned for it.
struct LossModel {
  double p = 0;           // with its margin, 0..1
  double rho = 0;         // of LossEstimator::kGroup consecutive packets
  double mean_burst = 1;  // packets, >= 1

  // Correlation between n symbols that leave `spacing` packets apart. A Gilbert-Elliott path of this p and
  // burst correlates packets j apart by r^j; that part of rho fades with the spacing, the rest of it (loss
  // that comes and goes more slowly) stays.
  double RhoAt(int n, double spacing) const;
};

// m by the rule above, 0..max_m. rho: RhoAt the block's spacing. packets_at_stake: 1 / c, 1 at least.
int RepairSymbolsFor(int k, int max_m, double p, double rho, double packets_at_stake);

// Expected delay of the window's end by the failure of a block of k symbols at loss p, in recovery times.
// slack: of the block until the window's last packet, in recovery times.
double ExpectedOverrun(double slack, double p, int k);

inline constexpr int kMinFecDepth = 4;
inline constexpr int kMaxFecDepth =
    64;  // a receiver holds so many incomplete blocks: 64 * 24 * 1400 B = 2 MB
// Blocks to interleave in the next window: 4 mean bursts. As many as allowed where that leaves so much
// correlation that even the best m lets more than kMaxBlockFailure of the blocks fail, which without
// correlation it would not: then loss comes in spells whose length the runs of losses do not show.
inline constexpr double kMaxBlockFailure = 0.01;
int AdvisedDepth(const LossModel& loss, int k, double packets_per_recovery_time);

// Redundancy rises at once and falls by one symbol per round trip: how many symbols more than the rule says
// now.
class RepairHold {
 public:
  // `wanted`: what the rule says now.
  void Update(int wanted, Instant now, Duration rtt);
  int extra() const;

 private:
  double held_ = 0;
  int wanted_ = 0;
  Instant updated_;
};

// What one connection knows for its FEC: the loss estimate, the redundancy held for a while, and the depth of
// the next window's interleaver. Lives as long as the path, across windows. Not thread-safe.
class FecAdvisor {
 public:
  // Redundancy is held in units of a full block of this size.
  static constexpr int kReferenceBlock = 20;  // WindowOptions::fec_k's default
  static_assert(kMinFecDepth <= kMaxFecDepth);

  // Takes the fates of packets.
  LossEstimator& estimator() { return estimator_; }
  const LossEstimator& estimator() const { return estimator_; }

  // Fates have become known. packets_per_recovery_time: packets sent in 1.25 RTT at the current rate.
  // path_loss: the path loses no more than that by itself, so the rest of the loss is what a full queue
  // dropped, and repair symbols would only fill it further.
  void Update(Instant now, Duration smoothed_rtt, double packets_per_recovery_time, double path_loss = 1);

  // As of the last Update.
  const LossModel& model() const { return model_; }
  int extra_repair() const { return hold_.extra(); }
  // For a window that opens now; kMinFecDepth..kMaxFecDepth.
  int Depth() const { return AdvisedDepth(model_, kReferenceBlock, packets_per_recovery_time_); }

 private:
  LossEstimator estimator_;
  LossModel model_;
  RepairHold hold_;
  double packets_per_recovery_time_ = 1;
  int wanted_ = 0;
  double wanted_for_ = 0;  // the p that wanted_ was computed for
  uint64_t groups_ = 0;    // and after how many groups
};

}  // namespace longhaul::transport
