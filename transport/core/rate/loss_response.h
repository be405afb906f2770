// The in-window rule: what the loss of one round trip means for the rate.
//
//   loss < target                    raise: the gain cycle goes on
//   target <= loss < threshold       hold: no probing for more
//   threshold <= loss                halve the rate, at most once per round trip; later rounds recover it
//
// At or above means: by more than chance explains. A round that shows it too weakly to halve holds, and is
// judged again together with the next, so that a true excess is found within a few round trips however small
// they are.
//
// target is the configured one, but never below floor + kFloorMargin: what the path loses by itself is no
// reason to hold. The threshold likewise stays kBubbleMargin above the floor, as far as kMaxTrustedFloor.
#pragma once

#include <cstdint>

#include "longhaul/units.h"

namespace longhaul::transport {

enum class LossVerdict : uint8_t { kRaise, kHold, kHalve };

class LossResponse {
 public:
  static constexpr double kFloorMargin = 0.02;
  static constexpr double kBubbleMargin = 0.1;
  static constexpr double kMaxTrustedFloor = 0.5;
  static constexpr double kRecovery = 1.25;  // per round trip
  static constexpr int64_t kMinPackets = 20;

  LossResponse(double target, double bubble_threshold, ByteCount max_datagram)
      : target_(target), bubble_threshold_(bubble_threshold), max_datagram_(max_datagram) {}

  // A round trip has ended. Rounds of fewer than kMinPackets packets are put together until there are enough;
  // until then the verdict stays. `rate` is what the sender paces at without the bound.
  void OnRound(ByteCount acked, ByteCount lost, double floor, Bandwidth rate);

  LossVerdict verdict() const { return verdict_; }
  // Upper bound of the pacing rate; Max() = none.
  Bandwidth bound() const { return bound_; }
  double Target(double floor) const;
  // Whether the share lost is at or above `level` by more than chance explains: by `sigmas` standard
  // deviations.
  bool Exceeds(ByteCount acked, ByteCount lost, double level, double sigmas = 1) const;

 private:
  void Halve(Bandwidth rate);
  void Recover(Bandwidth rate);

  double target_;
  double bubble_threshold_;
  ByteCount max_datagram_;
  LossVerdict verdict_ = LossVerdict::kRaise;
  Bandwidth bound_ = Bandwidth::Max();
  bool settling_ = false;  // the next round still tells of packets sent before the halving
  ByteCount acked_;        // of the rounds put together
  ByteCount lost_;
};

}  // namespace longhaul::transport
