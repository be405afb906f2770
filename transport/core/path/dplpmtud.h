// How large a datagram the path carries: datagram packetization layer path MTU discovery (RFC 8899, as RFC
// 9000 §14.3 uses it). Sizes are UDP payloads. The caller sends the probes (PING and PADDING) and reports
// their fates.
//
//   Start(proven) --> SEARCHING --[nothing left to try]--> SEARCH_COMPLETE --[PMTU_RAISE_TIMER]--> SEARCHING
//                         ^                                     |
//                         +----[base confirmed]---- BASE <------+--- black hole, or the size is refused
//                         |                          |
//                         +--[minimum confirmed]-- ERROR <--[base unanswered, or refused]
//                                                    |
//                                                    +--[minimum unanswered]--> failed()
//
// In ERROR the sender uses kMin (RFC 8899 §5.2: MIN_PLPMTU), once that is confirmed.
//
// One probe is in flight at a time. Candidates: what the sender needs, then the largest size allowed, then
// sizes that real paths have, then halving the gap until it is below kResolution.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/instant.h"
#include "proto/packet_header.h"

namespace longhaul::transport {

class Dplpmtud {
 public:
  enum class State : uint8_t { kDisabled, kBase, kSearching, kSearchComplete, kError };

  static constexpr int64_t kBase = 1200;  // BASE_PLPMTU: what a path carries at the handshake
  // MIN_PLPMTU: what is used on a path that shrinks below the base, an IPv4 tunnel in tunnels. The longest
  // frame that cannot be split, WINDOW_OPEN with 512 bytes of metadata, needs 568 bytes of datagram; an ACK
  // of 64 ranges within the replay window at most 350.
  static constexpr int64_t kMin = 600;
  static constexpr int kMaxProbes = 3;  // unanswered probes of a size that refute it
  // For a size that open windows need, else their chunks leave in parts: on a path that loses a fifth of what
  // is sent, eight in a row are lost by chance three times in a million.
  static constexpr int kMaxNeededProbes = 8;
  // For the minimum, without which the connection ends although smaller packets arrive: at half they are lost
  // in a row once in 10^9.
  static constexpr int kMaxMinProbes = 30;
  static_assert(kMaxProbes < kMaxNeededProbes && kMaxNeededProbes < kMaxMinProbes);
  static constexpr int64_t kResolution = 16;                          // chunk lengths are multiples of it
  static constexpr Duration kRaiseTimer = std::chrono::seconds(600);  // RFC 8899 §5.1.1
  // The same while something larger is needed: a path that was rerouted is often back within minutes.
  static constexpr Duration kNeededRaiseTimer = std::chrono::seconds(30);

  // Until Start() nothing is probed.
  // The handshake has proved that datagrams of `proven` bytes go both ways; `max` is what both sides allow.
  // REQUIRES: kBase <= proven <= max.
  void Start(Instant now, int64_t proven, int64_t max);

  State state() const { return state_; }
  // Largest size that is known to pass: what the sender may use.
  int64_t plpmtu() const { return plpmtu_; }
  // The search is over for now.
  bool settled() const { return state_ == State::kSearchComplete; }
  // Whether this size is known, by now, not to pass. What is neither that nor <= plpmtu() is being found out.
  bool Refuted(int64_t bytes) const {
    return bytes > max_ || bytes >= refuted_ || (settled() && bytes > plpmtu_);
  }
  // The path does not even carry kMin: the connection cannot go on.
  bool failed() const { return failed_; }

  // Something that is sent needs datagrams of this size; 0 = nothing does.
  void SetNeeded(int64_t bytes) { needed_ = bytes; }
  // A datagram of this size came from the peer. Most paths are alike in both directions, so that size is
  // asked for as often as one that is needed: two sides that end with different sizes by mere loss make one
  // of them cut its chunks.
  void OnPeerDatagram(int64_t bytes, Instant now);
  // The size of the probe that should leave now; nullopt: none.
  std::optional<int64_t> NextProbe() const;
  void OnProbeSent(wire::PacketNumber number) { in_flight_ = number; }
  // Also right for a probe that was declared lost before, and for any other packet.
  void OnAcked(wire::PacketNumber number, int64_t bytes, Instant now);
  // False when it is not the probe in flight.
  bool OnProbeLost(wire::PacketNumber number, Instant now);
  // The kernel refuses to send datagrams of this size.
  void OnRefused(int64_t bytes, Instant now);
  // Datagrams of the current size vanish.
  void OnBlackHole();
  // Another path, of which nothing is known.
  void Restart();

  // PMTU_RAISE_TIMER.
  Instant Deadline() const;
  void OnTimeout(Instant now);

 private:
  void FallTo(State state, int64_t bytes);
  void Search(Instant now);
  int64_t PickCandidate() const;
  void Refute(Instant now);
  int MaxTries() const {
    return candidate_ == needed_ || candidate_ <= seen_ ? kMaxNeededProbes : kMaxProbes;
  }

  State state_ = State::kDisabled;
  int64_t max_ = kBase;
  int64_t plpmtu_ = kBase;
  int64_t refuted_ = kBase + 1;  // smallest size that does not pass, as far as is known
  int64_t needed_ = 0;
  int64_t seen_ = 0;       // largest datagram of the peer
  int64_t candidate_ = 0;  // 0 = nothing to probe
  int tries_ = 0;          // of the candidate that went unanswered
  std::optional<wire::PacketNumber> in_flight_;
  Instant settled_at_ = Instant::Infinite();  // below the largest size
  bool failed_ = false;
};

// Finds that a path has begun to drop large datagrams while smaller ones get through (RFC 8899 §4.3).
//
// A lost packet is suspicious when nothing as large that was sent later has been acknowledged: loss detection
// declares it lost only because something later was, so smaller ones arrive. kSuspicious of those in a row,
// sent over more than a round trip, are a black hole. Random loss clears itself, since on a busy path the
// later packets are as large. A queue that overflows at the end of a window drops a row of packets with
// nothing as large behind them, but they are of one flight: within a round trip the sender learns of them and
// slows down. A black hole goes on, also for what is sent after the first of its losses is known.
class BlackHoleDetector {
 public:
  static constexpr int kSuspicious = 6;  // at 20 % random loss six in a row are one case in 15,000
  // bytes; packets whose sizes differ by less count as equally large
  static constexpr int64_t kSizeStep = 64;

  // base: only larger packets are looked at.
  explicit BlackHoleDetector(int64_t base) : base_(base) {}

  void OnPacketAcked(wire::PacketNumber number, int64_t bytes);
  void OnPacketLost(wire::PacketNumber number, int64_t bytes, Instant sent);
  bool found(Duration round_trip) const {
    return suspicious_ >= kSuspicious && last_sent_ - first_sent_ > round_trip;
  }
  // The sender has reacted: what it sent so far is no evidence any more.
  void Reset(wire::PacketNumber next_number);

 private:
  size_t Step(int64_t bytes) const { return static_cast<size_t>((bytes - base_) / kSizeStep); }

  int64_t base_;
  // By size step above the base: one more than the largest packet number acknowledged.
  std::vector<wire::PacketNumber> acked_below_;
  int suspicious_ = 0;
  size_t smallest_step_ = 0;             // of the suspicious ones
  wire::PacketNumber first_number_ = 0;  // of these
  Instant first_sent_;                   // likewise
  Instant last_sent_;
  wire::PacketNumber ignored_below_ = 0;
};

}  // namespace longhaul::transport
