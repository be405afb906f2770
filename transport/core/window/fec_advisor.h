// What one connection knows for its FEC: the loss estimate, the redundancy held for a while, and the depth of
// the next window's interleaver. Lives as long as the path, across windows. Not thread-safe.
#pragma once

#include "base/instant.h"
#include "longhaul/units.h"
#include "transport/core/window/fec_policy.h"
#include "transport/core/window/loss_estimator.h"

namespace longhaul::transport {

class FecAdvisor {
 public:
  // Redundancy is held in units of a full block of this size.
  static constexpr int kReferenceBlock = 20;

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
