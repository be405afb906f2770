// Which of a site's relays speaks to the server. Each tells the others ten times a second that it lives, who
// leads, and which ranks of its node are here. The first leader is node 0's; when it has been silent, the
// lowest node that lives takes over, with a higher claim. A leader that hears of a higher claim leads no
// more.
//
//   A network that splits has a leader on each side: the server knows the later one only, by its incarnation.
//
// Sans-I/O. Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/instant.h"
#include "worker/site/site_message.h"
#include "worker/site/site_shape.h"

namespace longhaul::site {

class Leadership {
 public:
  static constexpr Duration kBeatEvery = std::chrono::milliseconds(100);
  // After which a relay counts as dead: a third of the idle time-out, the server's if that is shorter, so
  // that ranks and server, which wait for all of it, still wait when another one has connected; five beats at
  // least, since datagrams are lost.
  static Duration SilenceOf(Duration idle_timeout) {
    return std::max<Duration>(idle_timeout / 3, 5 * kBeatEvery);
  }

  // nodes: whose relays there are; session: of this process.
  Leadership(uint8_t own, uint8_t nodes, uint64_t session, Duration silence, Instant now)
      : own_(own), nodes_(nodes), session_(session), silence_(silence), started_(now), looked_(now) {}

  // What this node says of itself.
  struct Own {
    uint64_t ranks = 0;
    bool complete = false;  // as a leader: all ranks have been here; one has left in order
    bool any_left = false;
    bool resigns = false;  // a successor may begin at once
    friend bool operator==(const Own&, const Own&) = default;
  };
  SiteMessage Beat(const Own& own);
  // REQUIRES: a kBeat. True: that node has another process than before.
  bool OnBeat(const SiteMessage& beat, Instant now);
  // Before each look at silent relays. True: this relay was late itself (stopped, say) and may not have read
  // yet what the others have said, so that their silence begins anew.
  bool OnLook(Instant now);
  // True: this node leads from now on.
  bool Claim(Instant now);
  // Why a leader is followed by another one: it has resigned, else it was silent.
  bool resigned() const { return resigned_; }

  // The silence after which a relay is dead; the shortest that any of the site's knows counts for all.
  void LimitSilence(Duration silence) { silence_ = std::min(silence_, std::max(silence, SilenceOf({}))); }

  uint64_t leader() const { return leader_; }
  bool leads() const { return leader_ != 0 && claimed_ == leader_; }
  // Nodes that are not silent, this one among them.
  uint64_t alive(Instant now) const;
  // Of a node, as it said last; 0 of this one.
  uint64_t ranks(uint8_t node) const { return peers_[node].ranks; }
  // What is known of the site by those that have led it.
  bool complete() const { return complete_; }
  bool any_left() const { return any_left_; }
  // That a successor has to exceed; 0: none that is known.
  uint64_t incarnation() const { return incarnation_; }
  void SetIncarnation(uint64_t incarnation) { incarnation_ = incarnation; }
  Duration silence() const { return silence_; }

 private:
  static constexpr uint32_t kLeads = 1, kComplete = 2, kAnyLeft = 4, kResigns = 8;
  struct Peer {
    uint64_t session = 0;  // 0: not heard yet
    uint64_t number = 0;   // of its last beat
    uint64_t ranks = 0;
    Instant heard;
  };
  bool IsLeaderDead(Instant now) const;

  const uint8_t own_;
  const uint8_t nodes_;
  const uint64_t session_;
  Duration silence_;
  const Instant started_;
  Instant looked_;
  std::array<Peer, 16> peers_;
  uint64_t beats_ = 0;
  uint64_t leader_ = 0;
  uint64_t claimed_ = 0;
  Instant led_;  // when the leader was heard as such
  bool resigned_ = false;
  uint64_t incarnation_ = 0;
  bool complete_ = false;
  bool any_left_ = false;
};

}  // namespace longhaul::site
