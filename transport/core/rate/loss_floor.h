// The share of packets lost among those shown to it, the newest `memory` of them counting in full, with its
// standard error.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "longhaul/units.h"

namespace longhaul::transport {

class LossFloor {
 public:
  static constexpr int64_t kMinPackets = 20;  // one lost of these is 5 %: the resolution of a first guess

  // memory: how many packets count.
  LossFloor(ByteCount max_datagram, int64_t memory) : max_datagram_(max_datagram), memory_(memory) {}

  // These packets met this fate.
  void OnPackets(ByteCount acked, ByteCount lost);
  // What was measured so far counts half.
  void Fade() {
    lost_ /= 2;
    total_ /= 2;
  }
  // kMinPackets packets were measured.
  bool known() const { return packets() >= kMinPackets; }
  // How many stand behind value().
  double packets() const { return total_ / static_cast<double>(max_datagram_.value()); }
  ByteCount lost() const { return ByteCount(static_cast<int64_t>(lost_)); }
  ByteCount acked() const { return ByteCount(static_cast<int64_t>(total_ - lost_)); }
  // 0..1; 0 until it is known.
  double value() const;
  // One standard error of value(), as if one packet had been lost at least: none lost of a few says little.
  // 1 until it is known. mean_burst: so many are lost in a row, >= 1; a run is one loss.
  double error(double mean_burst = 1) const;
  // value() and two standard errors of it: the path hardly loses more. 1 until it is known.
  double upper(double mean_burst = 1) const;

 private:
  ByteCount max_datagram_;
  int64_t memory_;
  double lost_ = 0;  // bytes, of the packets remembered
  double total_ = 0;
};

// The smallest of the last kBlocks measurements of at least kBlockPackets packets each: other flows add to
// one measurement or another, hardly to all.
class SmallestLossFloor {
 public:
  static constexpr int64_t kBlockPackets = 200;  // one standard error is 1.5 % at 5 % loss
  static constexpr size_t kBlocks = 4;  // of four, one is without another flow's probe (docs/decisions/0010)

  explicit SmallestLossFloor(ByteCount max_datagram)
      : block_(static_cast<double>(kBlockPackets * max_datagram.value())),
        first_(max_datagram, kBlockPackets) {}

  // mean_burst: so many are lost in a row, >= 1; a block has as many runs as it would have single losses.
  void OnPackets(ByteCount acked, ByteCount lost, double mean_burst = 1);
  bool known() const { return first_.known(); }
  // A whole block was measured.
  bool solid() const { return complete_ > 0; }
  // Standard deviation of a block's measurement at value().
  double deviation() const;
  double value() const;

 private:
  double block_;     // bytes, of single losses
  LossFloor first_;  // until a block is complete
  ByteCount acked_;  // of the block under way
  ByteCount lost_;
  std::array<double, kBlocks> blocks_{};
  size_t complete_ = 0;
};

}  // namespace longhaul::transport
