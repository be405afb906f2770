#include "server/job/access.h"

#include <algorithm>

#include "server/job/authorization.h"

namespace longhaul::server {

void Access::Replace(AccessRules rules, Membership* membership) {
  membership->SetAllow(rules.allow);
  rules_ = std::move(rules);
  own_said_ = false;
}

Result<std::string> Access::Kick(const transport::PeerIdentity& by, uint32_t rank,
                                 Membership* membership) const {
  if (Status may = Authorize(by, Request::kKick); !may.ok()) return may;
  if (rank >= membership->world_size() || !membership->plan().Kick(rank))
    return Status(StatusCode::kNotFound, "no worker has rank " + std::to_string(rank));
  return membership->Describe(rank);
}

Status Access::MayStay(const Peer& peer, const Membership& membership) const {
  using State = transport::Connection::State;
  const State state = peer.connection->state();
  if (state == State::kClosing || state == State::kClosed) return {};
  const transport::PeerIdentity& who = peer.connection->identity();
  if (Status stay = MayStay(who); !stay.ok()) return stay;
  if (!peer.joined() || membership.plan().HasOwner(peer.rank)) return {};
  return {StatusCode::kPermissionDenied,
          IdentityText(who) + " may not have rank " + std::to_string(peer.rank) + " any more"};
}

Status Access::MayStay(const transport::PeerIdentity& who) const {
  using Kind = transport::PeerIdentity::Kind;
  const auto denied = [&](const std::string& why) {
    return Status(StatusCode::kPermissionDenied, IdentityText(who) + why);
  };
  if (who.kind == Kind::kNone) return {};
  if (!rules_.trusts.empty() && std::ranges::find(rules_.trusts, who.trust) == rules_.trusts.end()) {
    return denied(who.kind == Kind::kPsk ? " is not valid any more: take the new one"
                                         : ": its authority is not trusted any more");
  }
  if (who.kind != Kind::kCertificate) return {};
  if (who.role != "server" && !rules_.allow.Allows(who.role, who.name))
    return denied(" was taken off the list of allowed names");
  if (wall_clock_ && who.expires != 0 && wall_clock_() > who.expires)
    return denied(": its certificate has expired");
  return {};
}

std::optional<int64_t> Access::TakeNotice(int64_t expires, bool* said) const {
  if (*said || !wall_clock_ || expires == 0) return std::nullopt;
  const int64_t left = expires - wall_clock_();
  if (left > kNoticeSeconds) return std::nullopt;
  *said = true;
  return left;
}

}  // namespace longhaul::server
