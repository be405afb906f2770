// Opens the short packets of a connection, those of addresses to which the peer may have moved included,
// hands their frames and chunks to the owners, and accounts them: acknowledgements, the queue on the way
// here, the host's drops.
//
// Not thread-safe; lives inside one connection.
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "base/instant.h"
#include "proto/packet_header.h"
#include "transport/core/connection/flight_control.h"
#include "transport/core/connection/handshaking.h"
#include "transport/core/connection/packet_writer.h"
#include "transport/core/connection/path.h"
#include "transport/core/connection/windows.h"
#include "transport/core/datagram_core.h"
#include "transport/core/recovery/rtt_estimator.h"

namespace longhaul::transport {

struct ConnectionStats;

// An authentic packet; borrows from its datagram.
struct OpenedPacket {
  wire::PacketNumber number = 0;
  std::optional<wire::DataHeader> data;
  MutableByteSpan body;

  // Its header may promise more frames than there are bytes.
  bool IsWhole() const { return !data || data->frames_length <= body.size(); }
  // REQUIRES: IsWhole().
  ByteSpan frames() const { return data ? body.first(data->frames_length) : body; }
  ByteSpan chunk() const { return data ? body.subspan(data->frames_length) : ByteSpan(); }
};

class PacketReader {
 public:
  // Where the content goes; all must outlive the reader. stats is only added to.
  struct Owners {
    Handshaking* handshaking = nullptr;
    FlightControl* flight = nullptr;
    Path* path = nullptr;
    Windows* windows = nullptr;
    ControlChannel* control = nullptr;
    PacketWriter* writer = nullptr;
    EventQueue* events = nullptr;
    ConnectionStats* stats = nullptr;
  };
  explicit PacketReader(const Owners& owners) : to_(owners) {}

  enum class Verdict : uint8_t {
    kOpened,     // the peer's, from where it is known to be
    kMoved,      // the peer's, and the first to come from there: the connection goes on with that address
    kDropped,    // counted; nothing else has changed
    kElsewhere,  // from another address, which is not followed
    kLimited,    // from another address, and too much from such did not open: not opened
  };
  // In place: `datagram` is garbage when it does not open. may_move: the peer is followed to another address
  // if the path's options say so.
  Verdict Read(Instant now, const Address& from, const wire::ShortHeader& header, MutableByteSpan datagram,
               bool may_move, OpenedPacket* packet);
  // What the frames and the chunk of a packet led to.
  struct Outcome {
    Status status;       // else the peer's violation of the protocol
    bool fates = false;  // of our packets became known
    std::optional<wire::CloseFrame>
        close;  // the peer's; borrows from the packet. Nothing behind it was read.
  };
  // REQUIRES: packet.IsWhole(). The packet is acknowledged, unless there was no room for it. closing: nothing
  // but CLOSE means anything.
  Outcome Take(Instant now, const OpenedPacket& packet, bool closing, const ReceiveInfo& info);

  // Standing queue on the way here.
  Duration incoming_queue() const { return incoming_queue_.standing(); }
  // How late this host reads what has arrived.
  const HostDelay& host_delay() const { return host_delay_; }

 private:
  enum class Opening : uint8_t { kOpened, kDropped, kNotAuthentic };
  Opening Open(const wire::ShortHeader& header, MutableByteSpan datagram, OpenedPacket* packet);
  // Until its address has proved itself nothing in a packet counts but the answer to the challenge: it is not
  // acknowledged, so what it carries comes again.
  Verdict ReadCandidate(Instant now, const Address& from, const wire::ShortHeader& header,
                        MutableByteSpan datagram, OpenedPacket* packet);

  struct FrameHandler;
  void Account(Instant now, const OpenedPacket& packet, bool ack_eliciting, const ReceiveInfo& info);

  Owners to_;
  QueueDelay incoming_queue_;
  HostDelay host_delay_;
  // The socket's count when the first packet came: what was dropped before is no loss of this connection.
  std::optional<uint64_t> host_drops_before_;
};

}  // namespace longhaul::transport
