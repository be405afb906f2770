// Says to the members which ranks are in (control.Membership): before Start, and when that has changed.
//
// A change is said at once, and what changes within kEvery of that is said together: a rank that comes and
// goes costs the others ten small messages a second at most. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/instant.h"
#include "server/job/messages.h"
#include "server/member/membership.h"
#include "server/member/peer.h"
#include "server/round/round_host.h"

namespace longhaul::server {

class Roll {
 public:
  static constexpr Duration kEvery = std::chrono::milliseconds(100);
  // More changes than a server can have in a second: each is a handshake, or the end of a connection.
  static constexpr int64_t kEpochsPerSecond = 1 << 20;

  // Both must outlive this.
  Roll(const Membership* membership, RoundEngineHost* host) : membership_(membership), host_(host) {}

  // Seconds since 1970, UTC. No epoch is below so many times kEpochsPerSecond, so that they go on growing
  // when the server is started again, in another second.
  void SetWallClock(std::function<int64_t()> clock) { clock_ = std::move(clock); }
  void OnChange() {
    const int64_t now = std::clamp<int64_t>(clock_ ? clock_() : 0, 0, INT64_MAX / kEpochsPerSecond);
    epoch_ = std::max(epoch_ + 1, static_cast<uint64_t>(now * kEpochsPerSecond));
    due_ = true;
  }
  // The job starts, for all members; by_rank: null where there is none.
  void Start(Instant now, const std::vector<Peer*>& by_rank, const control::ControlMessage& start) {
    due_ = false;
    next_ = now + kEvery;
    for (Peer* peer : by_rank) {
      if (peer != nullptr) Start(*peer, start);
    }
  }
  // ... and for one that comes later.
  void Start(Peer& peer, const control::ControlMessage& start) const {
    SayTo(peer);
    host_->Send(peer, start);
  }
  // Says a change when it is time, in a job that has started.
  void Run(Instant now, const std::vector<Peer*>& by_rank) {
    if (now < NextTimeout()) return;
    due_ = false;
    next_ = now + kEvery;
    for (Peer* peer : by_rank) {
      if (peer != nullptr) SayTo(*peer);
    }
  }
  Instant NextTimeout() const { return due_ && membership_->started() ? next_ : Instant::Infinite(); }

 private:
  void SayTo(Peer& peer) const {
    if (peer.takes_membership) host_->Send(peer, MembershipMessage(*membership_, epoch_));
  }

  const Membership* membership_;
  RoundEngineHost* host_;
  std::function<int64_t()> clock_;
  uint64_t epoch_ = 0;
  bool due_ = false;
  Instant next_;
};

}  // namespace longhaul::server
