// The handshake of one connection: the byte streams of its HandshakeCrypto in both directions, cut into
// flights of long packets, repeated by a timer until they show progress, and bounded by what an unproved
// address may be sent.
//
//   client   INIT(0): ClientHello ──▶                          server
//                    ◀── ACCEPT: ServerHello ... Finished, as many packets as it takes
//            INIT(S): Finished    ──▶                          complete: its first short packet confirms
//
// A CRYPTO frame says where its bytes belong and how many bytes of the other direction are here without a
// gap; so every flight begins with what the peer is known to lack, and everything in a long packet may come
// twice. Long packets have numbers of their own and are never acknowledged otherwise.
//
// The connection builds the packets; this decides what they carry and when. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/instant.h"
#include "longhaul/status.h"
#include "proto/frames.h"
#include "transport/core/security/security.h"

namespace longhaul::transport {

class Handshake {
 public:
  // A flight is repeated after this, doubling up to the longest. Below most round trips a repetition costs
  // one datagram; a handshake that waits a second for each loss costs patience.
  static constexpr Duration kFirstInterval = std::chrono::milliseconds(300);
  static constexpr Duration kLongestInterval = std::chrono::milliseconds(1200);
  // A peer that repeats itself is answered at once, but not more often than this: repetitions that answer
  // repetitions must not become a storm.
  static constexpr Duration kMinRepeatGap = std::chrono::milliseconds(100);
  // Three times what an unproved address sent is the most it gets (RFC 9000 §8.1).
  static constexpr int64_t kMaxAmplification = 3;
  // Bytes and pieces of the peer's stream that may wait for a gap to be filled; what is more comes again.
  static constexpr size_t kMaxWaitingBytes = wire::kMaxHandshakeBytes;
  static constexpr size_t kMaxPieces = 128;  // twice the 55 datagrams of 1200 bytes that 64 KiB take

  // The client's first flight is due at once.
  Handshake(bool is_client, std::unique_ptr<HandshakeCrypto> crypto);
  // Of a client that has heard nothing: another that goes on from here, to take one of several answers.
  // in_order: it keeps nothing beyond a gap. What has arrived it says only at its end: if it fails, all of it
  // must come again. Null: HandshakeCrypto::Again gives none.
  std::unique_ptr<Handshake> Again(bool in_order) const;

  // --- Events ---
  // An authentic long packet of `bytes` came; proves_address: its sender receives what is sent to the
  // address.
  void OnPacket(int64_t bytes, bool proves_address);
  // Errors end the connection: kPermissionDenied, kProtocolViolation (bytes never sent are acknowledged),
  // kResourceExhausted (a stream of more than wire::kMaxHandshakeBytes).
  Status OnCrypto(Instant now, const wire::CryptoFrame& frame);
  // All frames of that packet are handled: decides whether it is answered at once.
  void OnPacketEnd(Instant now);
  // The server asks for a cookie: the first flight leaves again, with it.
  void OnRetry();
  // Whatever the peer sent shows that it has our last flight.
  void OnAnswered(Instant now);
  void OnTimeout(Instant now);
  // The last flight could not leave as it was.
  void SendAgain() { StartFlight(); }
  // An answer is here: the next flight waits until it is checked.
  void Rest(Instant now) {
    if (!out_.in_flight) out_.deadline = std::max(out_.deadline, now + kLongestInterval);
  }
  // Nothing more is said or heard: the cryptography, and every secret in it, goes. REQUIRES: complete().
  void Release() { crypto_.reset(); }
  Instant Deadline() const { return out_.deadline; }

  // --- Questions ---
  bool complete() const { return crypto_ == nullptr || crypto_->complete(); }
  // REQUIRES: not released.
  HandshakeCrypto& crypto() { return *crypto_; }
  bool released() const { return crypto_ == nullptr; }
  // The peer has all of our stream.
  bool delivered() const { return peer_received_ == out_.stream.size(); }
  bool address_proved() const { return address_proved_; }
  // Flights since the last progress.
  int repeats() const { return out_.repeats; }
  uint64_t flights() const { return out_.flights; }
  // The round trip that the handshake has shown, once: only of a first flight that was sent once and at one
  // instant (Karn's rule).
  std::optional<Duration> TakeRttSample();

  // --- Sending ---
  // Something should leave, and `bytes` may.
  bool WantsToSend() const { return out_.in_flight; }
  bool MaySend(int64_t bytes) const {
    return address_proved_ || out_.bytes + bytes <= kMaxAmplification * bytes_received_;
  }
  // The next packet begins a flight.
  bool AtFlightStart() const { return out_.flight_start; }
  // What the next packet carries, at most `room` bytes as a frame; nullopt: neither stream has anything to
  // say. Its data borrows from here until the next event.
  std::optional<wire::CryptoFrame> NextFrame(size_t room) const;
  wire::PacketNumber NextNumber() { return out_.next_number++; }
  // A packet with NextFrame's answer left (`data` bytes of the stream in a datagram of `bytes`).
  void OnSent(Instant now, size_t data, int64_t bytes);
  // One that belongs to no flight left.
  void OnSentAside(int64_t bytes) { out_.bytes += bytes; }

 private:
  void StartFlight();
  // Takes over what the cryptography wants to say; whether there was anything.
  Result<bool> Pull();
  Status Deliver(uint64_t offset, ByteSpan data);

  bool is_client_;
  std::unique_ptr<HandshakeCrypto> crypto_;
  bool one_of_several_ = false;
  bool in_order_ = false;

  // What we say, and when it left: all of this goes on in another that Again makes.
  struct Sending {
    std::vector<uint8_t> stream;  // from its start
    bool in_flight = false;       // a flight is being sent
    bool flight_start = false;
    uint64_t flight_next = 0;
    int repeats = 0;
    uint64_t flights = 0;
    Instant last_flight;
    Instant flight_began;
    bool flight_at_once = true;
    bool karn = true;  // a sample is still possible
    Instant deadline = Instant::Infinite();
    wire::PacketNumber next_number = 0;
    int64_t bytes = 0;
  };
  Sending out_;

  uint64_t peer_received_ = 0;
  uint64_t received_ = 0;                             // the peer's stream, without a gap
  std::map<uint64_t, std::vector<uint8_t>> waiting_;  // beyond it, by offset
  size_t waiting_bytes_ = 0;

  bool new_data_ = false;  // of the event under way
  bool progress_ = false;
  bool answered_ = false;  // the peer's first packet was
  std::optional<Duration> rtt_sample_;

  bool address_proved_;
  int64_t bytes_received_ = 0;
};

}  // namespace longhaul::transport
