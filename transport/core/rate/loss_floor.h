// The share of packets that the path loses whatever the rate: measured where the loss cannot be our own, in
// round trips sent below the rate that the path was seen to deliver.
#pragma once

#include "longhaul/units.h"

namespace longhaul::transport {

class LossFloor {
 public:
  explicit LossFloor(ByteCount max_datagram) : max_datagram_(max_datagram) {}

  // A round trip sent at low rate into an empty queue had this fate. The last kMemoryPackets packets count.
  void OnLowRateRound(ByteCount acked, ByteCount lost);
  // 0..1; 0 until kMinPackets packets were measured.
  double value() const;
  // By what the pacing rate is multiplied so that the *delivered* rate is the estimate: 1 / (1 - floor), the
  // floor bounded by kMaxCompensated.
  double Compensation() const;

  static constexpr int64_t kMinPackets = 20;
  static constexpr int64_t kMemoryPackets = 400;
  static constexpr double kMaxCompensated = 0.3;

 private:
  ByteCount max_datagram_;
  double lost_ = 0;  // bytes, of the packets remembered
  double total_ = 0;
};

}  // namespace longhaul::transport
