// The share of packets that the path loses whatever the rate: measured where the loss cannot be our own,
// while the queue is short. A queue that overflows is full, so the packet behind a congestive loss has a long
// RTT; a packet behind a random loss has any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "longhaul/units.h"

namespace longhaul::transport {

class LossFloor {
 public:
  // memory: how many packets count.
  LossFloor(ByteCount max_datagram, int64_t memory) : max_datagram_(max_datagram), memory_(memory) {}

  // These packets met this fate while the loss could not be our own.
  void OnPackets(ByteCount acked, ByteCount lost);
  // kMinPackets packets were measured.
  bool known() const { return total_ >= static_cast<double>((max_datagram_ * kMinPackets).value()); }
  // 0..1; 0 until then.
  double value() const;
  // value() and two standard errors of it: the path hardly loses more. 1 until it is known.
  double upper() const;
  static constexpr int64_t kMinPackets = 20;  // one lost of these is 5 %: the resolution of a first guess

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
      : block_(kBlockPackets * max_datagram.value()), first_(max_datagram, kBlockPackets) {}

  void OnPackets(ByteCount acked, ByteCount lost);
  bool known() const { return first_.known(); }
  // A whole block was measured.
  bool solid() const { return complete_ > 0; }
  // Standard deviation of a block's measurement at value().
  double deviation() const;
  double value() const;

 private:
  int64_t block_;
  LossFloor first_;  // until a block is complete
  ByteCount acked_;  // of the block under way
  ByteCount lost_;
  std::array<double, kBlocks> blocks_{};
  size_t complete_ = 0;
};

}  // namespace longhaul::transport
