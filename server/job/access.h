// Which connections may stay: what a reload strikes out, what an operator kicks, and what time does.
//
// TLS has judged a peer once, at its handshake (transport/crypto/tls_session.h); a connection may live for
// weeks. Time is the wall clock, since certificates are dated by it. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "longhaul/status.h"
#include "server/member/membership.h"
#include "server/member/peer.h"
#include "server/settings.h"
#include "transport/core/security/security.h"

namespace longhaul::server {

class Access {
 public:
  // So long before its end a certificate is worth a line in the log: a day, in which an operator looks at it.
  static constexpr int64_t kNoticeSeconds = 24 * 3600;

  // wall_clock: seconds since 1970, UTC; empty: certificates do not expire.
  explicit Access(std::function<int64_t()> wall_clock = {}) : wall_clock_(std::move(wall_clock)) {}

  void SetWallClock(std::function<int64_t()> wall_clock) {
    wall_clock_ = std::move(wall_clock);
    own_said_ = false;
  }
  // From now on; ranks and kicks too (RankPlan::Replace).
  void Replace(AccessRules rules, Membership* membership);
  // The rank's identity is out, and this describes it. kPermissionDenied (`by` may not), kNotFound (the rank
  // is no one's).
  Result<std::string> Kick(const transport::PeerIdentity& by, uint32_t rank, Membership* membership) const;

  // Why a connection that is not over has to end now, by the peer's name: kPermissionDenied.
  Status MayStay(const Peer& peer, const Membership& membership) const;
  Status MayStay(const transport::PeerIdentity& who) const;
  // Seconds until the peer's certificate expires, once, when they are kNoticeSeconds or less.
  std::optional<int64_t> TakeNotice(Peer* peer) const {
    return TakeNotice(peer->connection->identity().expires, &peer->expiry_said);
  }
  // The same of the server's own certificate; negative when it has expired.
  std::optional<int64_t> TakeOwnNotice() { return TakeNotice(rules_.expires, &own_said_); }

 private:
  std::optional<int64_t> TakeNotice(int64_t expires, bool* said) const;

  AccessRules rules_;
  std::function<int64_t()> wall_clock_;
  bool own_said_ = false;
};

}  // namespace longhaul::server
