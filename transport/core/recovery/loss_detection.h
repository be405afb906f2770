// Decides which sent packets are acknowledged and which are lost; owns the packets in flight.
//
// A packet is lost when a later one was acknowledged and either
//   - at least packet_threshold() packets were sent after it and acknowledged (RFC 9002 §6.1.1; the threshold
//     starts at 3 and grows with observed reordering, at most 256, as RACK's reo_wnd does; 16 round trips
//     with less reordering halve it), or
//   - it has been outstanding for 5/4 of max(smoothed_rtt, latest_rtt) (§6.1.2; the factor is mvfst's), or longer
//     where packets come late: as long as the latest took of those that had been given up, at most a PTO.
// Where an ACK names no new largest number, the time of what has come late is a sample (§5.1 takes that of
// the largest alone): else smoothed_rtt would be that of the packets that overtake. A probe timeout (PTO)
// never declares loss (§6.2): it only asks for probes. A packet declared lost is remembered (bounded) so that
// a late ACK of it is recognised as spurious: then the packet threshold grows and the caller learns that the
// content did arrive.
//
// Now and then the sender leaves a number out (SkipNumber): an ACK that names it comes from a peer that
// acknowledges what it has not received (RFC 9000 §21.4). A number left out is no packet: it is never lost,
// and no distance between packets counts it.
//
// Not thread-safe; lives inside one Connection.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/instant.h"
#include "longhaul/status.h"
#include "longhaul/units.h"
#include "proto/frames.h"
#include "transport/core/recovery/packet_ring.h"
#include "transport/core/recovery/rtt_estimator.h"
#include "transport/core/recovery/sent_packets.h"

namespace longhaul::transport {

class LossDetection {
 public:
  static constexpr uint64_t kInitialPacketThreshold = 3;
  static constexpr uint64_t kMaxPacketThreshold = 256;
  // Round trips for which reordering is remembered: RACK's reo_wnd_persist (RFC 8985 §6.2).
  static constexpr int kReorderingMemoryRtts = 16;
  // PTO doubles at most three times (RFC 9002 §6.2.1 has no bound): a connection dies of ten seconds of
  // silence, so it must ask often enough that a run of losses cannot look like death. Four probes a second
  // cost nothing.
  static constexpr int kMaxPtoBackoff = 3;
  static_assert(kInitialPacketThreshold < kMaxPacketThreshold);
  static constexpr size_t kMaxInFlightPackets = 1u << 17;
  // Numbers left out that are remembered, the newest: twice what is expected in the largest flight.
  static constexpr uint64_t kPacketsPerSkip = 512;
  static constexpr size_t kMaxSkipped = 2 * kMaxInFlightPackets / kPacketsPerSkip;

  // What one ACK (or one timeout) changed. Packets are moved out: their content now belongs to the caller.
  struct Outcome {
    std::vector<SentPacket> acked;     // newly acknowledged, ascending by number
    std::vector<SentPacket> lost;      // newly declared lost, ascending by number
    std::vector<SentPacket> spurious;  // declared lost earlier, acknowledged now
    Duration late{0};  // since the oldest of these was sent that a later one had overtaken; zero: none was
    bool overtaken_ack = false;  // another ACK, which named newer packets, has overtaken this one
    bool rtt_updated = false;
    bool send_probes = false;  // PTO fired: send up to two ack-eliciting packets
  };

  explicit LossDetection(RttEstimator* rtt) : rtt_(rtt) {}

  // REQUIRES: numbers ascend; in_flight count below kMaxInFlightPackets (ask CanSend first).
  void OnPacketSent(SentPacket packet);
  bool CanSend() const { return in_flight_count_ < kMaxInFlightPackets; }
  // No packet will have this number. REQUIRES: larger than every number sent and skipped before.
  void SkipNumber(wire::PacketNumber number);

  // Applies one ACK frame that arrived at `received`: by that time packets are judged, since ACKs behind it
  // may still wait to be read. Acknowledging a packet never sent, or a number that was left out, is the
  // peer's protocol error: returns kProtocolViolation and changes nothing.
  Result<Outcome> OnAckReceived(const wire::AckFrame& ack, Instant received);
  // The loss timer or the PTO has expired. Harmless when called early.
  Outcome OnTimeout(Instant now);
  // The peer has answered in another way than by an acknowledgement: probe timeouts start small again.
  void ResetPtoBackoff() { pto_count_ = 0; }
  // When OnTimeout wants to be called: the earliest loss time, else the PTO of the last ack-eliciting packet
  // in flight, else Infinite().
  Instant Deadline() const;

  ByteCount bytes_in_flight() const { return bytes_in_flight_; }
  uint64_t packet_threshold() const { return packet_threshold_; }
  int pto_count() const { return pto_count_; }
  // Frames of packets in flight that must arrive, oldest first, each once, at most `limit`: what a probe had
  // best carry once more.
  std::vector<SentFrame> UnackedFrames(size_t limit) const;
  // Chunks of packets in flight, oldest first, each once, at most `limit`: likewise.
  std::vector<SentChunk> UnackedChunks(size_t limit) const;
  // The largest packet number acknowledged; before the first acknowledgement nothing.
  std::optional<wire::PacketNumber> newest_acked() const {
    return any_acked_ ? std::optional(largest_acked_) : std::nullopt;
  }
  // Totals since the start, for statistics, without probes for the path's MTU. Loss is raw: before FEC and
  // without undoing spurious ones.
  uint64_t packets_lost() const { return packets_lost_; }
  uint64_t packets_spurious() const { return packets_spurious_; }

 private:
  struct Tracked {
    SentPacket packet;
    bool outstanding = true;  // false: its content was moved out; leaves when it is the first
  };

  Status Check(const wire::AckFrame& ack) const;
  bool IsWellFormed(const wire::AckFrame& ack) const;
  // Numbers below `number` that were left out, as far as they are remembered.
  size_t SkippedBelow(wire::PacketNumber number) const;
  // How many packets after `from` the packet `to` was sent.
  uint64_t Distance(wire::PacketNumber from, wire::PacketNumber to) const;
  void TakeAcked(const wire::AckRange& range, Outcome* outcome);
  void TakeSpurious(const wire::AckRange& range, Outcome* outcome);
  // How long the oldest of these took that a later one had overtaken; zero: none was overtaken.
  static Duration Lateness(const Outcome& outcome, wire::PacketNumber largest_before, Instant received);
  Duration MostLateness() const;
  Duration LatenessThreshold() const;
  // Whether this ACK gave a sample.
  bool UpdateRtt(const wire::AckFrame& ack, const Outcome& outcome, Instant received);
  void AdaptThreshold(wire::PacketNumber largest_before, const Outcome& outcome, Instant now);
  void DetectLost(Instant now, Outcome* outcome);
  void Declare(Tracked* tracked, Outcome* outcome);
  void RememberLost(const SentPacket& packet);
  void Leave(Tracked* tracked);  // takes the packet out of the totals in flight
  void DropSettled();

  RttEstimator* rtt_;
  PacketRing<Tracked> sent_;                // ascending; acknowledged or lost ones leave lazily
  PacketRing<Tracked> declared_lost_;       // ascending; bounded memory for spurious losses
  PacketRing<wire::PacketNumber> skipped_;  // ascending
  ByteCount bytes_in_flight_;
  size_t in_flight_count_ = 0;
  size_t eliciting_in_flight_ = 0;
  bool any_acked_ = false;
  bool any_sent_ = false;
  wire::PacketNumber largest_sent_ = 0;
  wire::PacketNumber largest_acked_ = 0;
  Instant loss_time_ = Instant::Infinite();
  Instant last_eliciting_sent_ = Instant::Infinite();
  // When the last PTO asked for probes: those may not be allowed to leave, and the next PTO is a back-off
  // away.
  Instant last_pto_;
  int pto_count_ = 0;
  uint64_t packet_threshold_ = kInitialPacketThreshold;
  uint64_t reordering_seen_ = 0;  // largest distance, in packets, since reordering_since_
  Duration lateness_seen_{0};     // longest time of an overtaken packet, likewise
  Duration lateness_{0};          // of those that had been given up: it is waited for
  Instant reordering_since_;
  uint64_t packets_lost_ = 0;
  uint64_t packets_spurious_ = 0;
};

}  // namespace longhaul::transport
