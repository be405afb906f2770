// Writes one packet into a buffer: header, chunk or frames, tag. Knows sizes and layout, decides nothing.
//
//   PacketBuilder b(buffer, ...); b.StartShort(...); b.SetChunk(item) and/or b.Add(frame)...;
//   b.Seal(protection)
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "proto/frames.h"
#include "proto/packet_header.h"
#include "transport/core/recovery/sent_packets.h"
#include "transport/core/security/packet_protection.h"
#include "transport/core/window/window_tx.h"

namespace longhaul::transport {

class PacketBuilder {
 public:
  // `out` is where the datagram goes: its length is the longest that may be built.
  explicit PacketBuilder(MutableByteSpan out) : out_(out) {}

  void StartShort(wire::ConnectionId destination, wire::PacketNumber number, bool key_phase = false);
  // `cookie`: only of INIT and RETRY.
  void StartLong(wire::LongType type, uint16_t version, wire::ConnectionId destination,
                 wire::ConnectionId source, wire::PacketNumber number, ByteSpan cookie = {});

  // Bytes still free for frames (or for a chunk, when no frame was added).
  size_t room() const;
  // Makes it a DATA packet. REQUIRES: short header, no frame and no chunk yet, item.size() <=
  // room_for_chunk().
  void SetChunk(const WindowTx::Item& item, uint32_t timestamp_us);
  // Adds a frame; false, with nothing changed, when there is no room.
  bool Add(const wire::Frame& frame);
  // Remembers what must be repaired when the packet is lost.
  void Remember(SentFrame frame) { sent_.frames.push_back(frame); }
  bool has_content() const { return has_chunk_ || frames_size_ > 0; }
  bool ack_eliciting() const { return sent_.ack_eliciting; }
  // Neither counts as in flight nor has a fate that matters.
  void LeaveFlight() { leaves_flight_ = true; }
  // Fills with PADDING up to `size` bytes of datagram. Call last.
  void PadTo(size_t size);

  // Completes the packet: data header, tag. Returns the datagram's size.
  size_t Seal(PacketProtection& protection);
  // The record for loss detection; number, size and content are set, times are not.
  SentPacket TakeSent() { return std::move(sent_); }

 private:
  MutableByteSpan out_;
  size_t header_bytes_ = 0;
  size_t frames_size_ = 0;
  bool is_short_ = false;
  bool has_chunk_ = false;
  bool leaves_flight_ = false;
  wire::ShortHeader short_;
  wire::DataHeader data_;
  size_t chunk_size_ = 0;
  size_t position_ = 0;  // end of what is written
  SentPacket sent_;
};

}  // namespace longhaul::transport
