// Finds that a path has begun to swallow large datagrams while smaller ones get through (RFC 8899 §4.3).
//
// A lost packet is suspicious when nothing as large that was sent later has been acknowledged: loss detection
// declares it lost only because something later was, so smaller ones arrive. kSuspicious of those in a row,
// sent over more than a round trip, are a black hole. Random loss clears itself, since on a busy path the
// later packets are as large. A queue that overflows at the end of a window drops a row of packets with
// nothing as large behind them, but they are of one flight: within a round trip the sender has heard and
// slows down. A black hole goes on, also for what is sent after the first of its losses is known.
#pragma once

#include <cstdint>
#include <vector>

#include "base/instant.h"
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
  void OnPacketLost(wire::PacketNumber number, int64_t bytes, Instant sent);
  bool found(Duration round_trip) const {
    return suspicious_ >= kSuspicious && last_sent_ - first_sent_ > round_trip;
  }
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
  Instant first_sent_;                   // likewise
  Instant last_sent_;
  wire::PacketNumber ignored_below_ = 0;
};

}  // namespace longhaul::transport
