// Addresses that the peer may have moved to: validation of new paths (RFC 9000 §8.2, §9.3).
//
// A datagram of the connection that comes from another address makes that address a *candidate*, nothing
// more: it is sent a PATH_CHALLENGE, which only a host at that address can answer, at most kMaxChallenges
// times, and gets at most three times the bytes that it has sent. The connection goes on with the address it
// has until the answer is here.
//
//   OnCandidate --> challenged --[answer]-----------------------> validated --[OnMigrated]--> forgotten
//                       '--------[no answer, or no newer packet: kTimedOut]--> forgotten
//
// Every candidate ends as validated, timed out or refused (no room); all are counted.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/address.h"
#include "base/instant.h"
#include "base/random.h"
#include "longhaul/units.h"
#include "transport/core/security/security.h"

namespace longhaul::transport {

class PathManager {
 public:
  static constexpr size_t kMaxCandidates = 4;  // a rebinding makes one; forged sources find no room for more
  // One probe timeout apart, then two. Where 27 % are lost each way, all six are in vain in 0.47^6 = 1 % of
  // all moves, and three would be in 10 %.
  static constexpr int kMaxChallenges = 6;
  static constexpr int64_t kMaxAmplification = 3;  // RFC 9000 §8
  // A challenge fills a datagram that every path carries, as far as the amplification bound allows.
  static constexpr int64_t kChallengeBytes = 1200;
  static constexpr int64_t kMinChallengeBytes = 64;

  // What to send now: `data` in a datagram of `bytes`.
  struct Challenge {
    Address to;
    uint64_t data = 0;
    int64_t bytes = 0;
  };
  // Since the start.
  struct Counters {
    uint64_t candidates = 0;
    uint64_t challenges = 0;
    uint64_t validated = 0;
    uint64_t timed_out = 0;
    uint64_t refused = 0;  // datagrams from addresses that found no room
    bool operator==(const Counters&) const = default;
  };

  // A guessed challenge could be answered from anywhere, so `security`, which must outlive this, draws them.
  PathManager(Security* security, Random random) : security_(security), random_(random) {}

  // An authentic datagram came from an address that is not the peer's. `pto`: the probe timeout, at present.
  void OnCandidate(Instant now, const Address& from, int64_t bytes, Duration pto);
  // A PATH_RESPONSE came from there.
  void OnResponse(const Address& from, uint64_t data);
  bool IsCandidate(const Address& address) const { return Find(address) != nullptr; }
  bool IsValidated(const Address& address) const;
  // The connection now uses that address.
  void OnMigrated(const Address& to);

  // The challenge that leaves now, which counts as sent; nullopt: none.
  std::optional<Challenge> NextChallenge(Instant now);
  void OnTimeout(Instant now);
  Instant Deadline() const;

  size_t candidates() const { return candidates_.size(); }
  const Counters& counters() const { return counters_; }

 private:
  struct Candidate {
    Address address;
    int64_t received = 0;
    int64_t sent = 0;
    std::vector<uint64_t> asked;  // data of the challenges sent
    bool validated = false;
    Duration interval{0};  // until the next challenge
    Instant next_challenge;
    Instant expires;
  };

  Candidate* Find(const Address& address);
  const Candidate* Find(const Address& address) const;
  static bool WantsChallenge(const Candidate& candidate);
  static int64_t Room(const Candidate& candidate) {
    return kMaxAmplification * candidate.received - candidate.sent;
  }

  Security* security_;
  Random random_;
  std::vector<Candidate> candidates_;
  Counters counters_;
};

}  // namespace longhaul::transport
