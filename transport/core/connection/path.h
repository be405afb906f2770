// The way to the peer: its address and the addresses to which it may have moved, how long a datagram may be,
// whether ECN marks get through.
//
// Not thread-safe; lives inside one connection, which builds and sends the probes and challenges.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/address.h"
#include "base/instant.h"
#include "base/random.h"
#include "base/token_bucket.h"
#include "longhaul/status.h"
#include "transport/core/path/dplpmtud.h"
#include "transport/core/path/ecn_validator.h"
#include "transport/core/path/path_manager.h"
#include "transport/core/recovery/loss_detection.h"

namespace longhaul::transport {

struct ConnectionStats;

class Path {
 public:
  // Datagrams of this size are what a path must carry at the handshake; tried when larger ones go unanswered
  // or are refused.
  static constexpr int64_t kBaseDatagram = Dplpmtud::kBase;
  // What is still sent on a path that shrinks below that.
  static constexpr int64_t kSmallestDatagram = Dplpmtud::kMin;
  // INIT and ACCEPT are at most this long; jumbo frames are for the search afterwards.
  static constexpr int64_t kLargestInit = 1452;
  // Packets per second, twice as many at once, that name this connection, come from an unknown address and do
  // not open. More are not opened: a few percent of a core go to noise at most, and under a faster flood the
  // packets of a worker that moves still have their share.
  static constexpr double kStraysPerSecond = 20'000;

  struct Options {
    int64_t max_datagram = kLargestInit;  // UDP payload
    bool ecn = true;
    bool follows_peer = false;  // to another address, once that has proved itself
  };
  Path(const Options& options, const Address& peer, Security* security, Random random);

  // --- Questions ---
  const Address& peer() const { return peer_; }
  // Where the connection began.
  const Address& first_peer() const { return first_peer_; }
  // Largest datagram that is known to arrive.
  int64_t datagram_bytes() const { return datagram_bytes_; }
  // Longest chunk that fits it, a multiple of 16.
  size_t MaxChunkBytes() const;
  // Datagrams that leave now are to be marked as ECN-capable.
  bool marks_ecn() const { return ecn_.marks(); }
  void AddTo(ConnectionStats* stats) const;

  // --- Size, during the handshake ---
  // What is longer than this has not been shown to pass, or the peer does not take it.
  void LimitTo(int64_t bytes);
  // A datagram as long as one of ours came back: this size passes in both directions.
  void OnEcho(int64_t bytes);
  // The kernel refuses to send datagrams of this size. True: shorter ones are worth a try.
  bool OnInitRefused(int64_t bytes);

  // --- Size, afterwards (transport/core/path/dplpmtud.h) ---
  // max: what both sides allow.
  void StartSearch(Instant now, int64_t max);
  // The search is over for now.
  bool search_settled() const { return pmtu_.settled(); }
  std::optional<int64_t> NextProbe() const { return pmtu_.NextProbe(); }
  void OnProbeSent(wire::PacketNumber number);
  void OnPeerDatagram(int64_t bytes, Instant now) { pmtu_.OnPeerDatagram(bytes, now); }
  void OnSendRefused(int64_t bytes, Instant now) { pmtu_.OnRefused(bytes, now); }
  // Takes over what has been learned of the size.
  void Update() { datagram_bytes_ = pmtu_.plpmtu(); }
  // Chunks of this length are sent, whole where the path carries them; 0: none.
  void SetLongestChunk(size_t bytes);
  // It is known to carry kSmallestDatagram, or thought to. Until it is, chunks would only vanish, and their
  // losses ruin the rate.
  bool carries_chunks() const { return pmtu_.state() != Dplpmtud::State::kError; }
  // kUnavailable: it does not even carry kSmallestDatagram.
  Status Check() const;

  // --- Fates of our packets ---
  void OnPacketSent(const SentPacket& packet);
  // Learns of the size from fates, and marks the lost packets that only their size explains (outsized): a
  // path that swallows what is large is not congested. round_trip: the longest that is usual now.
  void TakeFates(LossDetection::Outcome* outcome, Instant now, Duration round_trip,
                 wire::PacketNumber next_number);
  // newest: the ACK is newer than every one before. Returns new CE marks to react to.
  uint64_t OnAck(const wire::AckFrame& ack, const LossDetection::Outcome& outcome, bool newest);

  // --- The peer's address (transport/core/path/path_manager.h) ---
  // A packet with this number is the peer's: it comes from its address or, being older than `newest`, from
  // the one before it moved.
  bool IsFromPeer(const Address& from, wire::PacketNumber number, wire::PacketNumber newest) const;
  bool follows_peer() const { return options_.follows_peer; }
  // Any host that has seen the connection ID can send noise with it from any address. It counts here, against
  // this connection alone: by its source address it would count against the host that really is there. An
  // address from which one packet was authentic is opened like the peer's own, so that noise in its name does
  // not keep it from answering the challenge.
  bool MayOpen(Instant now, const Address& from);
  void OnDidNotOpen(Instant now, const Address& from);
  // An authentic packet of `bytes` with these frames came from another address. pto: the probe timeout.
  // False: a frame is malformed.
  bool OnCandidate(Instant now, const Address& from, int64_t bytes, ByteSpan frames, Duration pto);
  bool IsValidated(const Address& from) const { return candidates_.IsValidated(from); }
  // The peer is there from now on. True: another host, so another path, and nothing is known of it. Another
  // port of the same host is a NAT's doing; the path is the same (RFC 9000 §9.4).
  bool MoveTo(const Address& to, wire::PacketNumber next_number);
  uint64_t moves() const { return moves_; }
  std::optional<PathManager::Challenge> NextChallenge(Instant now) { return candidates_.NextChallenge(now); }

  Instant Deadline() const { return std::min(pmtu_.Deadline(), candidates_.Deadline()); }
  void OnTimeout(Instant now);

 private:
  void OnLost(const SentPacket& packet, Instant now);

  Options options_;
  Address peer_;
  Address first_peer_;
  std::optional<Address> previous_peer_;  // before the last move: what is still under way comes from there
  uint64_t moves_ = 0;
  wire::PacketNumber first_number_ = 0;  // earlier packets went to another host
  PathManager candidates_;
  TokenBucket strays_{kStraysPerSecond, 2 * kStraysPerSecond};

  int64_t datagram_bytes_;     // the handshake begins, pmtu_ goes on
  int64_t largest_echo_ = 0;   // during the handshake
  int64_t refused_bytes_ = 0;  // by the kernel, during the handshake
  Dplpmtud pmtu_;
  BlackHoleDetector black_hole_{kSmallestDatagram};
  EcnValidator ecn_;
  uint64_t probes_sent_ = 0;
  uint64_t probes_lost_ = 0;
  uint64_t black_holes_ = 0;
};

}  // namespace longhaul::transport
