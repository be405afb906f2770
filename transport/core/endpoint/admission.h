// What an endpoint does for strangers, bounded: which clients must show a cookie first, how many handshakes
// an address may begin, how many of its packets may fail to open, how many stateless answers leave.
//
// Addresses share kAddressBuckets buckets by a salted hash of their network, so the memory is fixed however
// many addresses a flood makes up; two that share a bucket share its rate.
//
// INITs that do not open are counted twice over: those with a good cookie, whose senders have proved to
// receive at their address, and all the others, whose addresses may be made up. So noise with a
// spoofed source uses up what that address may send without proof, and nothing of what it may send with one.
// Packets that name a connection prove no address (connection IDs travel in clear): they count against that
// connection (Path::kStraysPerSecond), never here.
//
// Without keys there is nothing to protect (NullSecurity): the endpoint then asks for its refusals only,
// which a stranger's wrong version is enough for.
#pragma once

#include <cstdint>
#include <vector>

#include "base/address.h"
#include "base/instant.h"
#include "base/token_bucket.h"

namespace longhaul::transport {

struct AdmissionOptions {
  bool always_cookie = false;   // every client pays a round trip for the proof of its address
  uint32_t max_half_open = 64;  // handshakes under way (half of it with one host); a quarter is load
  Duration half_open_timeout = std::chrono::seconds(5);
  uint32_t inits_without_cookie = 200;  // per second; more is load
  // Per second, for INITs that were opened; as many again for those that were not. A cookie costs less than
  // the INIT that asks for it; the bound protects addresses that did not ask.
  uint32_t retries = 20'000;
  uint32_t resets = 100;  // per second
  // REFUSEs per second; with keys and without. As many again for INITs that no key opens.
  uint32_t refusals = 100;
  // Per second and address, twice as many at once. Many workers may share a NAT.
  uint32_t handshakes_per_address = 100;
  uint32_t failures_per_address = 1000;  // INITs that no key opens; as many again with a cookie
};

// What is one host to us: an IPv4 address, or 64 bits of IPv6, whose addresses all belong to one host
// (RFC 6177).
uint64_t NetworkOf(const Address& address);

class Admission {
 public:
  static constexpr size_t kAddressBuckets = 4096;

  Admission(const AdmissionOptions& options, uint64_t salt);

  // An INIT without a valid cookie has come, while so many handshakes are under way: must it come again with
  // one?
  bool NeedsCookie(Instant now, size_t half_open);
  // One more handshake with this address may begin; counts as begun.
  bool MayBegin(Instant now, const Address& from) { return handshakes_.Take(now, Index(from)); }
  // INITs from there are worth opening. `proved`: a cookie has shown that the sender receives what
  // is sent there.
  bool MayOpen(Instant now, const Address& from, bool proved) {
    return FailuresOf(proved).Has(now, Index(from));
  }
  void OnDidNotOpen(Instant now, const Address& from, bool proved) {
    FailuresOf(proved).Take(now, Index(from));
  }
  // A RETRY may answer an INIT, one that was `opened` or one that was not.
  bool MayRetry(Instant now, bool opened) { return (opened ? retries_ : unopened_retries_).Take(now); }
  bool MayReset(Instant now) { return resets_.Take(now); }
  bool MayRefuse(Instant now, bool opened) { return (opened ? refusals_ : unopened_refusals_).Take(now); }

 private:
  // Made on first use: most endpoints are clients.
  class Table {
   public:
    explicit Table(double per_second) : full_(per_second, 2 * per_second) {}
    bool Has(Instant now, size_t i) { return buckets_.empty() || buckets_[i].Has(now); }
    bool Take(Instant now, size_t i) {
      if (buckets_.empty()) buckets_.assign(kAddressBuckets, full_);
      return buckets_[i].Take(now);
    }

   private:
    TokenBucket full_;
    std::vector<TokenBucket> buckets_;
  };

  size_t Index(const Address& address) const;
  Table& FailuresOf(bool proved) { return proved ? proved_failures_ : failures_; }

  AdmissionOptions options_;
  uint64_t salt_;
  TokenBucket inits_;
  TokenBucket retries_;
  TokenBucket unopened_retries_;
  TokenBucket resets_;
  TokenBucket refusals_;
  TokenBucket unopened_refusals_;
  Table handshakes_;
  Table failures_;
  Table proved_failures_;
};

}  // namespace longhaul::transport
