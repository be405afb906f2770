// The connection behind transport/core/connection/connection.h; made and driven by the Endpoint. It routes
// between its owners of state, each with its own header and test, and decides only how the connection begins
// and ends:
//
//   handshaking   from INIT to keys          flight   may a packet leave, what holds it back
//   path          address, size, ECN         windows  chunks in and out, grants
//   reader        datagram -> packet         control  the ordered stream
//   writer        packet -> datagram, fates  closing  CLOSE        events  what the owner polls
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "transport/core/connection/attention.h"
#include "transport/core/connection/closing.h"
#include "transport/core/connection/connection.h"
#include "transport/core/connection/control_stream.h"
#include "transport/core/connection/event_queue.h"
#include "transport/core/connection/events.h"
#include "transport/core/connection/flight_control.h"
#include "transport/core/connection/handshaking.h"
#include "transport/core/connection/packet_reader.h"
#include "transport/core/connection/packet_writer.h"
#include "transport/core/connection/path.h"
#include "transport/core/connection/windows.h"
#include "transport/core/datagram_core.h"

namespace longhaul::transport {

class ConnectionImpl final : public Connection {
 public:
  // Connected waits at most this long for the path's MTU. The usual handshake proves the largest size, and
  // then there is nothing to wait for; a search takes about four round trips per size that does not pass.
  static constexpr Duration kMaxMtuWait = std::chrono::seconds(3);

  struct Identity {
    bool is_client = true;
    wire::ConnectionId local;
    wire::ConnectionId remote;  // zero on the client until ACCEPT
    Address peer;
  };

  // attention must outlive the connection, which adds itself to its lists.
  ConnectionImpl(Instant now, const Identity& identity, const ConnectionOptions& options,
                 const std::shared_ptr<Security>& security, codec::ErasureCoder* coder, Random random,
                 Attention* attention);

  // Server: the owner hears of the connection now, not when the handshake is complete.
  void Introduce();

  // --- Connection ---
  State state() const override { return state_; }
  wire::ConnectionId local_id() const override { return handshaking_.local_id(); }
  Address peer() const override { return path_.peer(); }
  const PeerIdentity& identity() const override { return handshaking_.identity(); }
  ConnectionStats stats() const override;
  Duration smoothed_rtt() const override { return flight_.smoothed_rtt(); }
  ByteCount max_datagram() const override { return ByteCount(path_.datagram_bytes()); }
  size_t MaxChunkBytes() const override { return path_.MaxChunkBytes(); }
  ByteCount backlog() const override { return windows_.outgoing().backlog(); }
  void Admit(bool admitted) override;
  Status SendControl(ByteSpan bytes) override;
  Status OpenWindow(const WindowOptions& options) override;
  Status SubmitChunk(WindowKey key, wire::ReliabilityClass reliability, ByteSpan header,
                     ByteSpan body) override {
    return Stirred().windows_.Submit(key, reliability, header, body);
  }
  void CancelWindow(WindowKey key) override { Stirred().windows_.Cancel(key); }
  void RefuseChunk(WindowKey key, wire::ReliabilityClass reliability, uint32_t sequence) override {
    Stirred().windows_.RefuseChunk(key, reliability, sequence);
  }
  void CloseWindow(WindowKey key, wire::CloseReason reason) override;
  void RequestMissing(WindowKey key) override { Stirred().windows_.incoming().RequestMissing(key); }
  void Grant(Bandwidth rate, ByteCount receive_window) override {
    Stirred().windows_.Grant(rate, receive_window);
  }
  void SetRateBounds(Bandwidth floor, Bandwidth cap) override { Stirred().flight_.SetRateBounds(floor, cap); }
  void SetLossLimits(const LossLimits& limits) override { Stirred().flight_.SetLossLimits(limits); }
  void SetKeepalive(Duration keepalive) override { Stirred().options_.keepalive = keepalive; }
  void Probe() override {
    if (state_ == State::kConnected) Stirred().writer_.RequestPing();
  }
  bool wants_new_path() const override { return silence_.wants_new_path; }
  void TakeNewPath() override;
  void Close(const Status& why) override;

  // --- What happened, in order ---
  std::optional<Event> PollEvent();
  // The owner knows of the connection: it was asked for, or Accepted was polled.
  bool known_to_owner() const { return known_to_owner_; }

  // --- Events, from the endpoint ---
  // Long packets still have something to say: none does any more once the peer has sent a short one, or the
  // connection is over. Asked before they are opened, so that late and forged ones cost nothing.
  bool TakesLong() const {
    return !handshaking_.heard_short() && (state_ == State::kConnecting || state_ == State::kConnected);
  }
  // A long packet that the endpoint has opened. proves_address: its sender receives what is sent to the
  // address.
  void HandleLong(Instant now, const wire::LongHeader& header, ByteSpan frames, size_t datagram_bytes,
                  bool proves_address);
  // Client: REFUSE, which has only an integrity tag, and RETRY.
  void HandleRefuse(Instant now, const wire::LongHeader& header, ByteSpan frames);
  void HandleRetry(Instant now, ByteSpan cookie);
  enum class ShortFate : uint8_t {
    kHandled,
    kElsewhere,  // it comes from another address, and the connection does not follow its peer
    kLimited,    // it comes from another address, and too much from such did not open: not opened
  };
  // But for kHandled nothing changed besides counters.
  ShortFate HandleShort(Instant now, const Address& from, const wire::ShortHeader& header,
                        MutableByteSpan datagram, const ReceiveInfo& info);
  // Client: whether this datagram, which no key opens, is the server's stateless reset. Then it is over.
  bool HandleReset(ByteSpan datagram);
  // The address is the peer's, and proved to receive what is sent there.
  bool Trusts(const Address& from) const;
  void HandleTimeout(Instant now);
  void HandleSendRefused(size_t datagram_bytes);
  // Builds as many datagrams as pacing, window and buffer allow; see DatagramCore::PollTransmit.
  std::optional<Transmit> PollTransmit(Instant now, MutableByteSpan buffer);
  Instant NextTimeout() const;

  // --- The endpoint's ---
  Turn& turn() { return turn_; }
  // Something happened, or may have by time alone: it may have something to send, and another time-out.
  ConnectionImpl& Stirred();

  // Server: why the handshake failed, once; CLOSE may still be under way to the peer.
  std::optional<Status> TakeHandshakeFailure() { return handshaking_.TakeFailure(); }
  // Server: the client's connection ID, by which a repeated INIT is recognised.
  wire::ConnectionId remote_id() const { return handshaking_.remote_id(); }
  bool is_client() const { return handshaking_.is_client(); }
  // Where the connection began; peer() may have moved since.
  const Address& first_peer() const { return path_.first_peer(); }
  // The answer to the peer's CLOSE, to be sent after the connection is gone; empty when there is none.
  std::vector<uint8_t> TakeFinalDatagram() { return closing_.TakeFinalDatagram(); }

 private:
  // Spans of earlier events end here.
  void BeginEvent(Instant now);
  // --- The course of the connection ---
  void Follow(const Handshaking::Outcome& outcome);
  void BecomeConnected();
  void FailHandshake(const Status& why);
  // Takes over what is known of the path's MTU by now.
  void FollowPathMtu();
  void CloseNow(Status why);
  void SetFinalDatagram();
  void ProtocolViolation(const Status& why);
  Instant IdleDeadline() const;
  Instant SilenceDeadline() const;
  void ForgiveStall(Instant now);
  Status WhySilent(Instant now) const;

  // A packet of the peer's.
  void TakePacket(Instant now, const OpenedPacket& packet, size_t datagram_bytes, const ReceiveInfo& info);
  void HandlePeerClose(const wire::CloseFrame& close);

  // --- Sending ---
  size_t BuildDatagram(Instant now, MutableByteSpan out);
  size_t BuildClose(MutableByteSpan out);
  void NoteMoved();

  Attention* attention_;
  Turn turn_;
  ConnectionOptions options_;
  std::shared_ptr<Security> security_;  // of its key, which the endpoint may have given up meanwhile
  uint64_t skip_seed_;
  ConnectionStats stats_;

  EventQueue events_;
  FlightControl flight_;
  Path path_;
  Handshaking handshaking_;
  Windows windows_;
  ControlChannel control_;
  PacketReader reader_;
  PacketWriter writer_;
  Closing closing_;

  State state_ = State::kConnecting;
  bool introduced_;  // Accepted was queued, or there is none
  bool known_to_owner_;
  Instant announce_by_ = Instant::Infinite();
  Instant created_;
  Instant last_heard_;
  Instant now_;           // of the latest event, for requests that come between events
  Instant timed_out_at_;  // the last call of HandleTimeout
  Duration idle_timeout_;
  bool may_take_ports_;
  // Client: since it has last heard anything.
  struct Silence {
    Instant since = Instant::Infinite();  // the first packet that asks for an answer, or the latest new port
    int new_paths = 0;
    bool wants_new_path = false;
  };
  Silence silence_;
};

}  // namespace longhaul::transport
