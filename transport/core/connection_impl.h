// The connection behind transport/core/connection.h; made and driven by the Endpoint.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/core/connection.h"
#include "transport/core/control_stream.h"
#include "transport/core/datagram_core.h"
#include "transport/core/handshake.h"
#include "transport/core/incoming_windows.h"
#include "transport/core/outgoing_windows.h"
#include "transport/core/packet_builder.h"
#include "transport/core/path/black_hole_detector.h"
#include "transport/core/path/dplpmtud.h"
#include "transport/core/path/ecn_validator.h"
#include "transport/core/path/path_manager.h"
#include "transport/core/rate/delivery_rate.h"
#include "transport/core/rate/pacer.h"
#include "transport/core/recovery/ack_tracker.h"
#include "transport/core/recovery/loss_detection.h"
#include "transport/core/recovery/queue_delay.h"
#include "transport/core/recovery/rtt_estimator.h"
#include "transport/core/token_bucket.h"
#include "transport/core/window/fec_advisor.h"

namespace longhaul::transport {

class ConnectionImpl final : public Connection {
 public:
  // Datagrams of this size are what every path carries; tried when larger ones go unanswered or are refused.
  static constexpr int64_t kBaseDatagram = Dplpmtud::kBase;
  // INIT and ACCEPT are at most this long; jumbo frames are for the search afterwards.
  static constexpr int64_t kLargestInit = 1452;
  // Unanswered INITs after which the client falls back to kBaseDatagram: on a path that loses 20 % each way,
  // four in a row go unanswered by mere chance once in sixty connections.
  static constexpr int kInitsBeforeFallback = 4;
  // A client with keys believes a REFUSE, which anybody can send, when nothing authentic has come for so long
  // after it.
  static constexpr Duration kRefusalGrace = std::chrono::seconds(1);
  // The shortest stateless reset: one byte less than a PING, the shortest packet that provokes one.
  static constexpr size_t kMinResetBytes = wire::kMinPacketBytes;
  // RETRYs that a client follows.
  static constexpr int kMaxRetries = 4;
  // Unacknowledged frames that a probe timeout sends again; two probes have room for few of the large ones.
  static constexpr size_t kMaxProbeFrames = 8;
  static constexpr size_t kMaxProbeChunks = 64;  // looked at for the two that probes carry
  // OnConnected waits at most this long for the path's MTU. The usual handshake proves the largest size, and
  // then there is nothing to wait for; a search takes about four round trips per size that does not pass.
  static constexpr Duration kMaxSettleTime = std::chrono::seconds(3);
  // Packets per second, twice as many at once, that name this connection, come from an address that it knows
  // nothing of, and do not open. What is beyond is not opened: a few percent of a core go to noise at most,
  // and of a faster flood a worker that moves has its share.
  static constexpr double kStraysPerSecond = 20'000;
  // Answers to PATH_CHALLENGE that wait to leave.
  static constexpr size_t kMaxPathResponses = 4;
  // How often CLOSE is repeated, one PTO apart, while the peer does not echo it.
  static constexpr int kCloseRepeats = 3;

  struct Identity {
    bool is_client = true;
    wire::ConnectionId local;
    wire::ConnectionId remote;  // zero on the client until ACCEPT
    Address peer;
  };

  // `over`: who must outlive the connection and learns its local ID when it is over; the endpoint need not
  // ask each for every datagram.
  ConnectionImpl(Instant now, const Identity& identity, const ConnectionOptions& options, Security* security,
                 codec::ErasureCoder* coder, Random random, std::vector<wire::ConnectionId>* over);

  void SetObserver(ConnectionObserver* observer) { observer_ = observer; }
  // Server: who gives the connection its observer when it is complete, unless it has one by then.
  using Acceptor = std::function<ConnectionObserver*(Connection&)>;
  void SetAcceptor(Acceptor acceptor) { acceptor_ = std::move(acceptor); }

  // --- Connection ---
  State state() const override { return state_; }
  wire::ConnectionId local_id() const override { return id_.local; }
  Address peer() const override { return id_.peer; }
  const PeerIdentity& identity() const override;
  ConnectionStats stats() const override;
  ByteCount max_datagram() const override { return ByteCount(datagram_bytes_); }
  size_t MaxChunkBytes() const override;
  std::optional<IncomingWindow> incoming(WindowKey key) const override;
  ByteCount backlog() const override { return outgoing_.backlog(); }
  void Admit(bool admitted) override;
  Status SendControl(ByteSpan bytes) override;
  Status OpenWindow(const WindowOptions& options) override;
  Status SubmitChunk(WindowKey key, wire::ReliabilityClass reliability, ByteSpan header,
                     ByteSpan body) override;
  void CancelWindow(WindowKey key) override { outgoing_.Erase(key); }
  void CloseWindow(WindowKey key, wire::CloseReason reason) override;
  void RequestMissing(WindowKey key) override;
  void Grant(Bandwidth rate, ByteCount receive_window) override;
  void Close(const Status& why) override;

  // --- Events, from the endpoint ---
  // Long packets still have something to say: none does any more once the peer has sent a short one, or the
  // connection is over. Asked before they are opened, so that late and forged ones cost nothing.
  bool TakesLong() const {
    return !heard_short_ && (state_ == State::kConnecting || state_ == State::kConnected);
  }
  // A long packet that the endpoint has opened. proves_address: whoever sent it also
  // gets what we send.
  void HandleLong(Instant now, const wire::LongHeader& header, ByteSpan frames, size_t datagram_bytes,
                  bool proves_address);
  // Client: REFUSE, which has only an integrity tag, and RETRY.
  void HandleRefuse(Instant now, const wire::LongHeader& header, ByteSpan frames);
  void HandleRetry(Instant now, ByteSpan cookie);
  enum class ShortFate : uint8_t {
    kHandled,
    kElsewhere,  // it comes from an address that is none of this connection's
    kLimited,    // so it does, and too much from such addresses did not open: not opened
  };
  // But for kHandled nothing changed besides counters.
  ShortFate HandleShort(Instant now, const Address& from, const wire::ShortHeader& header,
                        MutableByteSpan datagram, const ReceiveInfo& info);
  // Client: whether this datagram, which no key opens, says that the server has forgotten us. Then it is
  // over.
  bool HandleReset(ByteSpan datagram);
  // The address is the peer's, and it has been seen to get what is sent there.
  bool Trusts(const Address& from) const;
  void HandleTimeout(Instant now);
  void HandleSendRefused(size_t datagram_bytes);
  // Builds as many datagrams as pacing, window and buffer allow; see DatagramCore::PollTransmit.
  std::optional<Transmit> PollTransmit(Instant now, MutableByteSpan buffer);
  Instant NextTimeout() const;

  // Set once the connection is over; the endpoint then calls OnClosed and forgets it.
  const std::optional<Status>& closed_status() const { return closed_; }
  // Server: why the handshake failed, once; the connection may still be telling the peer.
  std::optional<Status> TakeHandshakeFailure() { return std::exchange(handshake_failure_, std::nullopt); }
  ConnectionObserver* observer() const { return observer_; }
  // Server: the client's connection ID, by which a repeated INIT is recognised.
  wire::ConnectionId remote_id() const { return id_.remote; }
  bool is_client() const { return id_.is_client; }
  // Where the connection began; peer() may have moved since.
  const Address& first_peer() const { return first_peer_; }
  // The answer to the peer's CLOSE, to be sent after the connection is gone; empty when there is none.
  std::vector<uint8_t> TakeFinalDatagram() { return std::move(final_datagram_); }

 private:
  // Receiving (connection_receive.cc).
  bool OpenPacket(wire::PacketNumber number, size_t header_bytes, MutableByteSpan datagram,
                  MutableByteSpan* body);
  struct Opened {
    std::optional<wire::DataHeader> data;
    MutableByteSpan body;
    size_t frames_length() const { return data ? data->frames_length : body.size(); }
  };
  // Nullopt: a duplicate, malformed or not authentic; counted, nothing else changed.
  std::optional<Opened> OpenShort(const wire::ShortHeader& header, MutableByteSpan datagram);
  void TakeShort(Instant now, wire::PacketNumber number, const Opened& packet, size_t datagram_bytes,
                 const ReceiveInfo& info);
  // Hands the packet to the frames and the chunk; then it is acknowledged, unless there was no room for it.
  void HandleBody(Instant now, wire::PacketNumber number, const std::optional<wire::DataHeader>& data,
                  ByteSpan body, const ReceiveInfo& info);
  // Sets `eliciting` when a frame wants an acknowledgement.
  Status HandleFrames(Instant now, ByteSpan frames, bool* eliciting);
  Status HandleFrame(Instant now, const wire::Frame& frame);
  Status HandleAck(Instant now, const wire::AckFrame& ack);
  void HandleControl(const wire::ControlFrame& frame, Status* status);
  void TellControlData(ByteSpan bytes);
  Status HandleWindowOpen(const wire::WindowOpenFrame& open);
  Status HandleWindowStatus(const wire::WindowStatusFrame& status);
  Status HandleWindowClose(const wire::WindowCloseFrame& close);
  void HandleWindowNack(Instant now, const wire::WindowNackFrame& nack);
  Status HandleTransportParameters(const wire::TransportParametersFrame& parameters);
  // The handshake (connection_handshake.cc).
  void LearnFromLong(const wire::LongHeader& header, size_t datagram_bytes);
  Status HandleLongFrames(Instant now, ByteSpan frames, bool* refusal);
  void TakeRttSample(Instant now);
  void MakeKeys();
  void AdvanceHandshake();
  void Confirm();
  void Refused(Instant now, Status why);
  void FailHandshake(Status why);
  static std::string ReasonOf(const wire::CloseFrame& close);
  void HandlePeerClose(const wire::CloseFrame& close);
  enum class ChunkFate : uint8_t { kTaken, kNoRoom, kInvalid };
  ChunkFate DeliverChunk(const wire::DataHeader& header, ByteSpan chunk);
  void ReportProgress(WindowKey key);
  void RunDeferredCloses();
  void ProtocolViolation(const Status& why);
  void BecomeConnected();

  // Sending (connection_send.cc).
  size_t BuildDatagram(Instant now, MutableByteSpan out);
  size_t BuildLong(Instant now, MutableByteSpan out);
  size_t BuildClose(MutableByteSpan out);
  size_t BuildShort(Instant now, MutableByteSpan out);
  void AddAck(Instant now, PacketBuilder* builder);
  void AddElicitingFrames(Instant now, PacketBuilder* builder);
  void AddControlData(PacketBuilder* builder);
  void AddWindowFrames(Instant now, PacketBuilder* builder);
  size_t Finish(Instant now, PacketBuilder* builder, bool mtu_probe = false);
  bool HasFrames() const;  // ack-eliciting frames that wait
  bool WindowAllows(size_t bytes) const;
  // What keeps the next packet of the application from leaving.
  std::optional<RateLimiter> Limiter(bool has_data, bool window_allows, bool pacer_allows) const;
  // From now on the sending is held back by this; nullopt: by nothing.
  void SetLimiter(Instant now, std::optional<RateLimiter> limiter);
  void UpdatePacer(Instant now);
  void UpdateKeysIfDue(Instant now);
  // Closes when the keys may not be used any longer.
  void EndAtAeadLimit();
  PathView path_view() const;
  double PacketsPerRecoveryTime() const;

  // The path's MTU (connection_path.cc).
  void StartPathSearch();
  std::optional<Transmit> PollMtuProbe(Instant now, MutableByteSpan buffer);
  // Takes over what is known of the path's MTU by now.
  void FollowPathMtu();
  Status CheckChunkLength(size_t bytes);
  Status PathTooSmall(int64_t needed) const;
  // Tells the observer that we are connected, and what the peer has said meanwhile.
  void Announce();

  // The peer's address (connection_migration.cc).
  bool TakesCandidates() const;
  ShortFate HandleCandidate(Instant now, const Address& from, const wire::ShortHeader& header,
                            MutableByteSpan datagram, const ReceiveInfo& info);
  void Migrate(const Address& to);
  std::optional<Transmit> PollChallenge(Instant now, MutableByteSpan buffer);

  // Outcome of ACKs and timers.
  void Apply(Instant now, LossDetection::Outcome outcome, uint64_t new_ce, uint64_t new_host_drops);
  // New CE marks to react to.
  uint64_t TakeEcnCounts(const wire::AckFrame& ack, const LossDetection::Outcome& outcome, bool newest);
  void OnPacketAcked(const SentPacket& packet, bool spurious);
  void OnPacketLost(const SentPacket& packet);
  void SendAgain(std::span<const SentFrame> frames);
  // Queues chunks for the probes that are due.
  void ProbeWithChunks();

  void CloseNow(Status why);
  Duration Pto() const;
  Instant IdleDeadline() const;
  Status NoAnswer(Instant now) const;
  wire::TransportParametersFrame LocalParameters() const;

  Identity id_;
  ConnectionOptions options_;
  Security* security_;
  Handshake handshake_;
  KeyUpdatePolicy key_update_;
  std::unique_ptr<PacketProtection> protection_;  // null until the handshake has keys
  ConnectionObserver* observer_ = nullptr;
  Acceptor acceptor_;
  State state_ = State::kConnecting;
  std::optional<Status> closed_;
  std::optional<Status> handshake_failure_;  // server
  std::vector<wire::ConnectionId>* over_;

  int64_t datagram_bytes_;  // largest datagram sent; the handshake begins, pmtu_ goes on
  Dplpmtud pmtu_;
  BlackHoleDetector black_hole_{Dplpmtud::kBase};
  int64_t largest_datagram_ = 0;  // that the path was ever seen to carry
  int64_t refused_bytes_ = 0;     // by the kernel, during the handshake
  bool mtu_probe_waits_ = false;  // for the pacer
  bool announced_ = false;        // OnConnected was called
  bool admitted_ = true;          // may open windows
  Instant announce_by_ = Instant::Infinite();
  std::vector<uint8_t> early_control_;  // came before we announced ourselves
  std::optional<wire::TransportParametersFrame> peer_parameters_;
  int64_t largest_accept_ = 0;     // client: size of the largest ACCEPT so far
  std::vector<uint8_t> cookie_;    // client: from the latest RETRY
  std::optional<Status> refused_;  // client: believed at refused_at_, unless something authentic comes
  Instant refused_at_ = Instant::Infinite();
  bool confirm_due_ = false;  // server: NEW_CID waits to be sent
  bool heard_short_ = false;  // an authentic one: the peer needs nothing of the handshake any more
  std::optional<std::array<uint8_t, 16>> reset_token_;  // client: the server's

  RttEstimator rtt_;
  LossDetection loss_;
  AckTracker acks_;
  DeliveryRateSampler sampler_;
  std::unique_ptr<RateController> rate_;
  Pacer pacer_;
  std::vector<LostPacket> lost_packets_;  // of the event under way
  FecAdvisor fec_;
  ControlSendStream control_tx_;
  ControlReceiveStream control_rx_;
  bool control_refused_ = false;
  OutgoingWindows outgoing_;
  IncomingWindows incoming_;
  std::optional<wire::GrantFrame> grant_to_send_;
  wire::GrantFrame last_grant_;
  uint64_t peer_receive_window_ = 0;
  std::vector<uint64_t> path_responses_;  // data to send back

  bool delivering_ = false;  // inside WindowRx::OnData: closes wait until it returns
  struct DeferredClose {
    WindowKey key;
    wire::CloseReason reason;
  };
  std::vector<DeferredClose> deferred_closes_;

  wire::PacketNumber next_number_ = 0;
  int probes_due_ = 0;
  bool ping_due_ = false;
  std::vector<uint8_t> held_;  // a built datagram that did not fit its batch
  Instant created_;
  Instant last_heard_;
  Instant last_eliciting_sent_;
  Instant now_;  // of the latest event, for requests that come between events
  Duration idle_timeout_;
  bool blocked_by_pacer_ = false;
  std::optional<RateLimiter> limiter_;
  Instant limited_since_;
  QueueDelay incoming_queue_;
  std::optional<Status> closing_why_;
  int closes_left_ = 0;
  std::vector<uint8_t> final_datagram_;
  uint32_t ack_only_sent_ = 0;
  Instant next_close_ = Instant::Infinite();
  EcnValidator ecn_;
  Random random_;
  PathManager paths_;
  TokenBucket strays_{kStraysPerSecond, 2 * kStraysPerSecond};
  Address first_peer_;
  std::optional<Address>
      previous_peer_;  // before the last migration: what is still under way comes from there
  wire::PacketNumber path_first_number_ = 0;  // earlier packets went another path
  Bandwidth granted_;                         // by the peer
  bool batch_ect0_ = false;                   // of the datagrams that are being built, and of held_
  uint64_t peer_host_drops_ = 0;
  std::optional<uint64_t> host_drops_before_;  // the socket's count when the first packet came
  wire::PacketNumber receiving_number_ = 0;    // of the packet whose frames are being handled
  wire::PacketNumber grant_number_ = 0;        // of the newest packet that carried a GRANT
  ConnectionStats stats_;
};

}  // namespace longhaul::transport
