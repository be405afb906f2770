// The beginning of one connection, from the first INIT to the first short packet: what long packets carry
// besides the handshake's bytes (handshake.h), refusals and RETRY, the keys, and what confirms it.
//
// With certificates any host can make an ACCEPT: until one of them has proved to be the server's, the client
// takes them side by side (server_answers.h), and those that fail end nothing but what no other contradicts.
//
// A client is connected when nothing of its own is left to be delivered, a server when the client has proved
// its address; or else either is by the peer's first short packet.
//
// Not thread-safe; lives inside one connection.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/instant.h"
#include "longhaul/status.h"
#include "proto/frames.h"
#include "proto/packet_header.h"
#include "transport/core/connection/handshake.h"
#include "transport/core/connection/path.h"
#include "transport/core/connection/server_answers.h"
#include "transport/core/security/security.h"

namespace longhaul::transport {

struct ConnectionOptions;
struct ConnectionStats;

class Handshaking {
 public:
  // Unanswered INITs after which the client falls back to Path::kBaseDatagram, 0.9 s from the first. A path
  // may carry no more, and a worker has few seconds to join; where chance lost them, the search only starts
  // from below.
  static constexpr int kInitsBeforeFallback = 2;
  // Any host can send a REFUSE. A client with keys believes it when nothing authentic has come for so long
  // after it.
  static constexpr Duration kRefusalGrace = std::chrono::seconds(1);
  // An ACCEPT that fails names the reason, perhaps a forger's. It is believed when no other answer has come
  // for so long: a server that is there has sent its own three times by then.
  static constexpr Duration kDoubtGrace = std::chrono::milliseconds(1500);
  // RETRYs that a client follows between two flights of its own accord: of forged ones, with public keys,
  // there may be some before the server's.
  static constexpr int kMaxRetries = 16;
  // The shortest stateless reset: one byte less than a PING, the shortest packet that provokes one.
  static constexpr size_t kMinResetBytes = wire::kMinPacketBytes;

  struct Options {
    bool is_client = true;
    wire::ConnectionId local;
    wire::ConnectionId remote;                  // zero on the client until ACCEPT
    wire::TransportParametersFrame parameters;  // ours
  };
  // What a connection with these options says of itself.
  static wire::TransportParametersFrame ParametersOf(const ConnectionOptions& options);
  // security, path and stats (which is only added to) must outlive this.
  Handshaking(const Options& options, Security* security, Path* path, ConnectionStats* stats);

  // What an event leads to.
  struct Outcome {
    enum class Next : uint8_t {
      kGoOn,
      kConnected,  // keys are there, and this side may use them
      kFailed,     // by what the peer sent: it should learn that
      kOver,       // the peer has ended it, or the server refuses
    };
    Next next = Next::kGoOn;
    Status why;
  };

  // --- Questions ---
  bool is_client() const { return options_.is_client; }
  wire::ConnectionId local_id() const { return options_.local; }
  wire::ConnectionId remote_id() const { return options_.remote; }
  // kNone before the peer has proved an identity, and without security.
  const PeerIdentity& identity() const { return identity_; }
  // Null until the handshake has keys.
  PacketProtection* protection() const { return protection_.get(); }
  bool address_proved() const { return handshake_->address_proved(); }
  // Client: no answer has proved to be the server's yet, though there may be some.
  bool open() const { return open_; }
  // Client: why the latest answer that failed did.
  const std::optional<Status>& doubt() const { return doubt_; }
  const std::optional<wire::TransportParametersFrame>& peer_parameters() const { return peer_parameters_; }
  // Long packets have nothing to say any more once an authentic short one has come.
  bool heard_short() const { return heard_short_; }
  uint64_t flights() const { return handshake_->flights(); }
  // The round trip that the flights have shown, once.
  std::optional<Duration> TakeRttSample() { return handshake_->TakeRttSample(); }

  // --- Events ---
  // Whether it is of this connection; else counted.
  bool Accepts(const wire::LongHeader& header);
  // An opened INIT or ACCEPT that came while connecting. proves_address: its sender receives what is sent to
  // the address.
  Outcome HandleLong(Instant now, const wire::LongHeader& header, ByteSpan frames, size_t datagram_bytes,
                     bool proves_address);
  // One that came when connected: a client that still sends its last flight has not heard from the server.
  void HandleLateLong(const wire::LongHeader& header);
  // Client: REFUSE, which has only an integrity tag.
  Outcome HandleRefuse(Instant now, const wire::LongHeader& header, ByteSpan frames);
  // Client.
  void HandleRetry(ByteSpan cookie);
  // The peer's first short packet proves that it has the keys: a client whose handshake was empty has the
  // ACCEPT, a server has the client's last flight. `connecting`: this side is not connected yet.
  void OnShort(Instant now, bool connecting);
  void OnConnected();
  // A refusal is believed at its deadline.
  Outcome OnTimeout(Instant now);
  Instant Deadline() const { return std::min({handshake_->Deadline(), refused_at_, answers_.Deadline()}); }
  // The last flight could not leave as it was.
  void SendAgain() { handshake_->SendAgain(); }

  // --- Sending ---
  // An INIT or ACCEPT; 0: nothing is due, or it may not leave.
  size_t BuildLong(Instant now, MutableByteSpan out);
  // A CLOSE before there are keys; 0: the peer's address may not be sent more.
  size_t BuildClose(const wire::CloseFrame& close, MutableByteSpan out);

  // --- Confirmation: NEW_CID with the server's reset token ---
  bool confirm_due() const { return confirm_due_; }
  void SetConfirmDue(bool due) { confirm_due_ = due; }
  wire::NewCidFrame Confirmation() const { return {security_->ResetToken(options_.local)}; }
  Status OnConfirmation(const wire::NewCidFrame& frame);
  // Client: whether this datagram, which no key opens, is the server's stateless reset.
  bool IsReset(ByteSpan datagram) const;

  // Server: why it failed, once.
  void SetFailure(Status why) { failure_ = std::move(why); }
  std::optional<Status> TakeFailure() { return std::exchange(failure_, std::nullopt); }

 private:
  struct Content;
  // Client, as long as open().
  Outcome HandleAnswer(Instant now, const wire::LongHeader& header, const Result<Content>& content,
                       size_t datagram_bytes);
  Status HearAnswer(Instant now, ServerAnswers::Answer* answer, const Content& content,
                    size_t datagram_bytes);
  void Choose(ServerAnswers::Answer* answer);
  // An answer has failed.
  Outcome OnDoubt(Instant now, wire::ConnectionId remote, Status why);
  // Keys, when the handshake is complete, and whether they may be used.
  Outcome Conclude();
  void LearnFrom(const wire::LongHeader& header, size_t datagram_bytes);
  Status HandleContent(Instant now, const Content& content);
  Outcome OnClose(Instant now, const wire::CloseFrame& close);
  Status OnParameters(const wire::TransportParametersFrame& parameters);
  Outcome OnRefusal(Instant now, Status why);
  void DropRefusal();
  void MakeKeys();

  Options options_;
  Security* security_;
  Path* path_;
  ConnectionStats* stats_;
  bool public_key_;  // client: any host can seal a long packet
  bool open_;
  std::unique_ptr<Handshake> handshake_;
  ServerAnswers answers_;
  std::unique_ptr<PacketProtection> protection_;
  PeerIdentity identity_;
  std::optional<wire::TransportParametersFrame> peer_parameters_;
  std::vector<uint8_t> cookie_;    // client: from the latest RETRY
  std::optional<Status> refused_;  // client: believed at refused_at_, unless something authentic comes
  Instant refused_at_ = Instant::Infinite();
  std::optional<Status> doubt_;
  wire::ConnectionId doubtful_;  // the server's ID in that answer
  bool refused_by_doubt_ = false;
  bool contested_ = false;  // answers of several have come: only the time-out ends it
  int retries_followed_ = 0;
  std::optional<std::array<uint8_t, 16>> reset_token_;  // client: the server's
  bool confirm_due_ = false;                            // server
  bool heard_short_ = false;
  std::optional<Status> failure_;  // server
};

}  // namespace longhaul::transport
