// The receiver's half of acknowledgements: which packet numbers arrived, and when an ACK is due.
//
// An ACK is due after max(16, peer's in-flight / 8) ack-eliciting packets, at once on a gap (a packet number
// below the largest still missing appears, or one arrives out of order), at once when asked (end of a
// window, a probe), else after min(srtt / 4, 5 ms). See docs/decisions and RFC 9000 §13.2.
#pragma once

#include <cstdint>

#include "base/instant.h"
#include "base/interval_set.h"
#include "proto/frames.h"

namespace longhaul::transport {

class AckTracker {
 public:
  static constexpr Duration kMaxAckDelay = std::chrono::milliseconds(5);
  static constexpr int kMinPacketsPerAck = 16;
  // Packet numbers more than this below the largest are treated as duplicates (replay window).
  static constexpr uint64_t kReplayWindow = uint64_t{1} << 16;

  // Whether this number has been seen, or is too old to be known. To be asked before opening the packet.
  bool IsDuplicate(wire::PacketNumber number) const;
  // An authenticated packet arrived, at `received`: the delay that the ACK reports counts from there, and so
  // does the bound on it. REQUIRES: !IsDuplicate(number).
  void OnPacketReceived(wire::PacketNumber number, bool ack_eliciting, bool ecn_ce, Instant received);
  // That packet carried ECT(0).
  void CountEct0() { ++ecn_ect0_; }
  // The next ACK should leave at once.
  void RequestImmediateAck() { immediate_ = ack_pending_ = true; }
  // Cumulative count of datagrams that the host dropped (SO_RXQ_OVFL).
  void SetHostDrops(uint64_t drops) { host_drops_ = drops; }
  // For the delay bound min(srtt / 4, 5 ms).
  void SetSmoothedRtt(Duration srtt) { smoothed_rtt_ = srtt; }

  // One more than the largest packet number received: how many packets the peer has sent by then.
  uint64_t largest_plus_one() const { return received_.empty() ? 0 : received_.ranges().back().last + 1; }

  // An ACK should be sent now.
  bool ShouldAck(Instant now) const;
  // There is something not yet acknowledged: worth piggybacking on a packet that leaves anyway.
  bool HasPending() const { return ack_pending_; }
  // When ShouldAck becomes true by itself; Infinite() when nothing is pending.
  Instant Deadline() const;
  // The frame to send now (at most wire::kMaxAckRanges newest ranges); resets the pending state.
  // REQUIRES: a packet was received.
  wire::AckFrame BuildAck(Instant now);
  // The peer has our ACK of everything up to `largest`: older ranges need not be repeated.
  void OnAckAcknowledged(wire::PacketNumber largest);

 private:
  void ForgetOld(wire::PacketNumber largest);
  void MeasureFlight(Instant received);

  IntervalSet received_;  // to know duplicates; bounded: see kMaxTrackedRanges in the body
  IntervalSet reported_;  // what ACKs still name; a subset of received_, up to the replay window
  wire::PacketNumber forgotten_below_ = 0;
  bool ack_pending_ = false;
  bool immediate_ = false;
  int eliciting_since_ack_ = 0;
  Instant oldest_unacked_;  // arrival of the first ack-eliciting packet since the last ACK
  Instant largest_time_;    // arrival of the largest number
  Duration smoothed_rtt_{0};
  // The peer's in-flight packets, measured as ack-eliciting arrivals per smoothed RTT.
  Instant flight_start_;
  int flight_count_ = 0;
  int peer_flight_ = 0;  // of the last complete round trip
  uint64_t ecn_ect0_ = 0;
  uint64_t ecn_ce_ = 0;
  uint64_t host_drops_ = 0;
};

}  // namespace longhaul::transport
