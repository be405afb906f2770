// Builds the short packets of a connection: what goes into the next one, in which order, and which datagrams
// leave in one batch; and hands what was in them back to where it came from when their fate is known. Asks
// FlightControl whether anything may leave.
//
// Not thread-safe; lives inside one connection.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "transport/core/connection/control_stream.h"
#include "transport/core/connection/flight_control.h"
#include "transport/core/connection/handshaking.h"
#include "transport/core/connection/key_changes.h"
#include "transport/core/connection/packet_builder.h"
#include "transport/core/connection/path.h"
#include "transport/core/connection/windows.h"
#include "transport/core/datagram_core.h"

namespace longhaul::transport {

struct ConnectionStats;

class PacketWriter {
 public:
  // Answers to PATH_CHALLENGE that wait to leave; the peer asks again for what is dropped.
  static constexpr size_t kMaxPathResponses = 4;
  // Unacknowledged frames that a probe timeout sends again; two probes have room for few of the large ones.
  static constexpr size_t kMaxProbeFrames = 8;
  static constexpr size_t kMaxProbeChunks = 64;  // looked at for the two that probes carry

  // Where the content comes from; all must outlive the writer. stats is only added to.
  struct Sources {
    Handshaking* handshaking = nullptr;
    FlightControl* flight = nullptr;
    Path* path = nullptr;
    Windows* windows = nullptr;
    ControlChannel* control = nullptr;
    ConnectionStats* stats = nullptr;
  };
  PacketWriter(const Sources& sources, const KeyUpdateLimits& limits)
      : from_(sources), key_changes_(limits) {}

  // --- Requests ---
  bool ping_due() const { return ping_due_; }
  void RequestPing() { ping_due_ = true; }
  void Answer(const wire::PathChallengeFrame& challenge);
  // kProtocolViolation as KeyChanges::OnFrame.
  Status OnKeyUpdate(const wire::KeyUpdateFrame& frame, Instant now);

  // kAeadLimitReached: the keys may not be used any longer.
  Status CheckKeys() const;

  // --- Fates ---
  // received: when it arrived, at or before `now`. Whether anything was learned; kProtocolViolation: it
  // acknowledges what was never sent.
  Result<bool> OnAck(const wire::AckFrame& ack, Instant now, Instant received);
  // The deadline of loss detection may have passed. Whether anything was learned.
  bool OnTimeout(Instant now);
  // Frames that are in flight leave once more, beside the PING of a keep-alive.
  void RepeatFrames() { SendAgain(from_.flight->loss().UnackedFrames(kMaxProbeFrames)); }

  // --- Datagrams. REQUIRES, but for batches: the handshake has keys. ---
  // A datagram that did not fit its batch leaves before anything else.
  bool HasPostponed() const { return !postponed_.empty(); }
  // nullopt: it does not fit the buffer.
  std::optional<Transmit> TakePostponed(MutableByteSpan buffer);
  // PATH_CHALLENGE to an address to which the peer may have moved.
  std::optional<Transmit> PollChallenge(Instant now, MutableByteSpan buffer);
  // Starts a batch, which is marked as ECN-capable or not.
  void BeginBatch(bool ect0) { ect0_ = ect0; }
  void UpdateKeysIfDue(Instant now);
  // A probe of the path's MTU, as a batch of its own.
  std::optional<Transmit> PollMtuProbe(Instant now, MutableByteSpan buffer);
  // Fills the buffer with what build(span) writes: equally long datagrams, of which the last may be shorter,
  // until it returns 0.
  template <typename MakeDatagram>
  std::optional<Transmit> Batch(MutableByteSpan buffer, MakeDatagram build);
  // One packet of frames or a chunk; 0: nothing is due, or nothing may leave.
  size_t Build(Instant now, MutableByteSpan out);
  size_t BuildClose(const wire::CloseFrame& close, MutableByteSpan out);

 private:
  // One GSO send carries at most this many segments (the kernel allows 128).
  static constexpr int kMaxSegments = 64;

  PacketBuilder Start(MutableByteSpan out) const;
  bool HasFrames() const;  // ack-eliciting ones that wait
  void AddAck(Instant now, PacketBuilder* builder);
  void AddElicitingFrames(Instant now, PacketBuilder* builder);
  void AddControlData(PacketBuilder* builder);
  // host_drops: the peer's total; nullopt: no news.
  bool TakeFates(LossDetection::Outcome outcome, uint64_t new_ce, std::optional<uint64_t> host_drops,
                 Instant now);
  void OnPacketAcked(const SentPacket& packet, Instant now);
  void OnPacketLost(const SentPacket& packet, Instant now);
  void SendAgain(const std::vector<SentFrame>& frames);
  size_t Finish(Instant now, PacketBuilder* builder, bool mtu_probe = false);

  Sources from_;
  KeyChanges key_changes_;
  std::vector<uint64_t> path_responses_;  // data to send back
  bool ping_due_ = false;
  bool ect0_ = false;  // of the batch under way, and of postponed_
  uint32_t ack_only_sent_ = 0;
  std::vector<uint8_t> postponed_;
};

template <typename MakeDatagram>
std::optional<Transmit> PacketWriter::Batch(MutableByteSpan buffer, MakeDatagram build) {
  Transmit transmit{from_.path->peer(), 0, 0, ect0_};
  for (int segments = 0; segments < kMaxSegments; ++segments) {
    const int64_t longest = from_.path->datagram_bytes();
    const size_t limit = std::min(static_cast<size_t>(longest), buffer.size() - transmit.size);
    // What is left of the buffer after other segments must hold a whole datagram: no chunk is cut for it.
    const int64_t needed = segments > 0 ? longest : std::min(Path::kSmallestDatagram, longest);
    if (limit < static_cast<size_t>(needed)) break;
    const MutableByteSpan out = buffer.subspan(transmit.size, limit);
    const size_t size = build(out);
    if (size == 0) break;
    if (transmit.segment_bytes == 0) transmit.segment_bytes = size;
    if (size > transmit.segment_bytes) {  // only the last segment may differ, and only be shorter
      postponed_.assign(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(size));
      break;
    }
    transmit.size += size;
    if (size < transmit.segment_bytes) break;
  }
  if (transmit.size == 0) return std::nullopt;
  return transmit;
}

}  // namespace longhaul::transport
