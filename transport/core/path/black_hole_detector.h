// Finds that a path has begun to swallow large datagrams while smaller ones get through (RFC 8899 §4.3).
//
// A lost packet is suspicious when nothing as large that was sent later has been acknowledged: loss detection
// declares it lost only because something later was, so smaller ones arrive. kSuspicious of those in a row
// are a black hole. Random loss clears itself, since on a busy path the later packets are as large.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/packet_header.h"

namespace longhaul::transport {

class BlackHoleDetector {
 public:
  static constexpr int kSuspicious = 6;
  // Packets whose sizes differ by less are taken to be equally large.
  static constexpr int64_t kSizeStep = 64;

  // base: what every path carries; only larger packets are looked at.
  explicit BlackHoleDetector(int64_t base) : base_(base) {}

  void OnPacketAcked(wire::PacketNumber number, int64_t bytes);
  void OnPacketLost(wire::PacketNumber number, int64_t bytes);
  bool found() const { return suspicious_ >= kSuspicious; }
  // The sender has reacted: what it sent so far is no evidence any more.
  void Reset(wire::PacketNumber next_number);

 private:
  size_t Step(int64_t bytes) const { return static_cast<size_t>((bytes - base_) / kSizeStep); }

  int64_t base_;
  // By size step above the base: one more than the largest packet number acknowledged.
  std::vector<wire::PacketNumber> acked_below_;
  int suspicious_ = 0;
  size_t smallest_step_ = 0;             // of the suspicious ones
  wire::PacketNumber first_number_ = 0;  // of these
  wire::PacketNumber ignored_below_ = 0;
};

}  // namespace longhaul::transport
