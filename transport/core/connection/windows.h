// The windows of one connection, both directions, and the grants to the peer: what they put into packets, and
// what becomes of it.
//
// Not thread-safe; lives inside one connection.
#pragma once

#include <optional>
#include <span>

#include "transport/core/connection/event_queue.h"
#include "transport/core/connection/events.h"
#include "transport/core/connection/packet_builder.h"
#include "transport/core/recovery/sent_packets.h"
#include "transport/core/window/chunk_cutter.h"
#include "transport/core/window/incoming_windows.h"
#include "transport/core/window/outgoing_windows.h"
#include "transport/core/window/part_assembly.h"

namespace longhaul::transport {

struct ConnectionStats;

class Windows {
 public:
  // receive_window: bytes in flight that the peer may have before it gets a grant. events and stats, which is
  // only added to, must outlive this.
  Windows(codec::ErasureCoder* coder, IncomingWindows::Limits limits, ByteCount receive_window,
          EventQueue* events, ConnectionStats* stats);

  OutgoingWindows& outgoing() { return outgoing_; }
  const OutgoingWindows& outgoing() const { return outgoing_; }
  IncomingWindows& incoming() { return incoming_; }
  const IncomingWindows& incoming() const { return incoming_; }
  // Half-done chunks of incoming windows.
  const PartAssembly& parts() const { return parts_; }

  // --- Requests ---
  // peer: what it takes. Errors as Connection::OpenWindow.
  Status Open(const WindowOptions& options, const wire::TransportParametersFrame& peer);
  Status Submit(WindowKey key, wire::ReliabilityClass reliability, ByteSpan header, ByteSpan body);
  // Gives an outgoing window up: its WindowClosed does not come any more.
  void Cancel(WindowKey key);
  // The peer may open windows; for one that is not admitted nothing but WindowOpened happens.
  void Admit(bool admitted) { admitted_ = admitted; }
  // The latest chunk of the window that was polled is not taken.
  void RefuseChunk(WindowKey key, wire::ReliabilityClass reliability, uint32_t sequence);
  // An incoming one. False: it is not open.
  bool Close(WindowKey key, wire::CloseReason reason);
  // Zero() = no bound. What the peer has already is not sent again.
  void Grant(Bandwidth rate, ByteCount receive_window);
  // Puts up to `count` of these chunks, which are in flight, at the head of what is sent.
  void ProbeWith(std::span<const SentChunk> chunks, int count);

  // --- What the peer sends. Errors are its protocol violations. ---
  Status OnOpen(const wire::WindowOpenFrame& open);
  void OnStatus(const wire::WindowStatusFrame& status);
  void OnClose(const wire::WindowCloseFrame& close);
  // It asks for chunks.
  void OnNack(const wire::WindowNackFrame& nack, Instant now, Duration smoothed_rtt);
  enum class ChunkFate : uint8_t { kTaken, kNoRoom, kInvalid };
  // header.part: `chunk` is a part header and a part. kNoRoom: the packet must be treated as never received.
  ChunkFate OnChunk(const wire::DataHeader& header, ByteSpan chunk);

  // --- What the owner polls ---
  // The next chunk of an entry kChunks; nullopt: no more. Error: a chunk that came early was invalid.
  Result<std::optional<event::Chunk>> PollChunk(WindowKey key);
  // Null: closed by now, or the peer is not admitted any more.
  const WindowRx* Polled(WindowKey key) const;
  void EndLoans() {
    incoming_.EndLoans();
    parts_.EndLoans();
  }

  // --- Frames and chunks that wait ---
  bool HasFrames() const;
  bool HasChunk() const { return cutter_.HasRest() || outgoing_.HasChunk(); }
  // Adds as many as there is room for.
  void AddFrames(Instant now, PacketBuilder* builder);
  // The chunk that leaves next, or as much of it as there is room for, into a packet without frames. False:
  // none waits.
  bool AddChunk(const PathView& path, uint32_t timestamp_us, PacketBuilder* builder);

  // --- Fates of what was sent ---
  void OnPacketAcked(const SentPacket& packet);
  void OnPacketLost(const SentPacket& packet, const PathView& path);
  // A frame was lost, or is sent once more to be sure. The others' frames are none of its business.
  void SendAgain(const SentFrame& frame);

 private:
  // Whether all that wait found room.
  bool AddCloses(Instant now, PacketBuilder* builder);
  bool AddNacks(PacketBuilder* builder);
  void AddOpensAndStatuses(PacketBuilder* builder);
  void CountSent(const WindowTx::Item& item);
  ChunkFate OnWholeChunk(const wire::DataHeader& header, ByteSpan chunk);
  ChunkFate OnPart(const wire::DataHeader& header, ByteSpan bytes);
  // It is here already, or its window is closed.
  bool IsOver(const wire::DataHeader& header) const;

  OutgoingWindows outgoing_;
  ChunkCutter cutter_;
  IncomingWindows incoming_;
  PartAssembly parts_;
  wire::GrantFrame grant_;  // in force, or about to be
  bool grant_due_ = false;  // it waits to be sent
  bool admitted_ = true;
  EventQueue* events_;
  ConnectionStats* stats_;
};

}  // namespace longhaul::transport
