// Connections that have not joined, or only ask for the status: how many are kept, and which one has to go
// for a new one.
//
// The bounds are per source (the identity of the certificate; without one the IPv4 address or the first 64
// bits of IPv6) and over all sources. The oldest connection of the new one's source goes, or else of the
// source that has the most: idle connections keep no other source out.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "server/member/peer.h"

namespace longhaul::server {

class Strangers {
 public:
  static constexpr size_t kMax = 256;          // connections: 36 MiB, since kWary lets each hold 144 KiB
  static constexpr size_t kMaxPerSource = 64;  // a quarter: one source leaves room for others
  // A connection that does not join for this long is closed.
  static constexpr Duration kJoinTimeout = std::chrono::seconds(5);
  // Before that each end may search for the path's MTU for three seconds (ConnectionImpl's kMaxMtuWait), the
  // worker's once its flights have become small.
  static constexpr Duration kSearchTimeout = std::chrono::seconds(10);

  // All workers of a job may connect at once, and from one machine.
  explicit Strangers(uint32_t world_size) : world_size_(world_size) {}

  static size_t Max(uint32_t world_size) { return std::max(kMax, 2 * size_t{world_size}); }
  static size_t MaxPerSource(uint32_t world_size) { return std::max(kMaxPerSource, 2 * size_t{world_size}); }

  // The stranger that has to go for one more connection, or null. peers: in order of acceptance.
  Peer* Displaced(const std::vector<std::unique_ptr<Peer>>& peers, const transport::Connection& next);
  // Ok, or why it has to go: it has not said what it is.
  static Status WhyOverdue(const Peer& peer, Instant now) {
    const Duration most = peer.connected ? kJoinTimeout : kSearchTimeout;
    if (peer.phase != Peer::Phase::kNew || now < peer.accepted_at + most) return {};
    return {StatusCode::kDeadlineExceeded,
            "no Join within " + std::to_string(most / std::chrono::seconds(1)) + " s"};
  }
  static uint64_t Count(const std::vector<std::unique_ptr<Peer>>& peers);
  // Ever.
  uint64_t displaced() const { return displaced_; }

 private:
  uint32_t world_size_;
  uint64_t displaced_ = 0;
};

}  // namespace longhaul::server
