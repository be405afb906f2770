#include "worker/site/leadership.h"

#include <algorithm>
#include <bit>

namespace longhaul::site {

SiteMessage Leadership::Beat(const Own& own) {
  SiteMessage beat;
  beat.kind = SiteKind::kBeat;
  beat.rank = own_;
  beat.session = session_;
  beat.seq = ++beats_;
  beat.leader = leader_;
  beat.ranks = own.ranks;
  beat.value = incarnation_;
  beat.mid = static_cast<uint32_t>(silence_ / std::chrono::milliseconds(1));
  if (leads()) beat.tensor |= kLeads;
  if (complete_ || own.complete) beat.tensor |= kComplete;
  if (any_left_ || own.any_left) beat.tensor |= kAnyLeft;
  if (own.resigns) beat.tensor |= kResigns;
  return beat;
}

bool Leadership::OnBeat(const SiteMessage& beat, Instant now) {
  if (beat.rank >= nodes_ || beat.rank == own_ || beat.session == 0) return false;
  Peer& peer = peers_[beat.rank];
  const bool restarted = peer.session != 0 && peer.session != beat.session;
  if (peer.session == beat.session && beat.seq <= peer.number) return false;  // it was overtaken
  peer = {beat.session, beat.seq, beat.ranks, now};
  if (beat.leader > leader_) {
    leader_ = beat.leader;
    led_ = now;
    resigned_ = false;
  }
  if (beat.leader == leader_ && (beat.tensor & kLeads) != 0 && NodeOfLeader(leader_) == beat.rank) {
    led_ = now;
    resigned_ = (beat.tensor & kResigns) != 0;
  }
  incarnation_ = std::max(incarnation_, beat.value);
  if (beat.mid != 0) LimitSilence(std::chrono::milliseconds(beat.mid));
  complete_ |= (beat.tensor & kComplete) != 0;
  any_left_ |= (beat.tensor & kAnyLeft) != 0;
  return restarted;
}

bool Leadership::OnLook(Instant now) {
  const bool late = now - looked_ > silence_ / 2;
  looked_ = now;
  if (!late) return false;
  led_ = now;
  for (Peer& peer : peers_) peer.heard = now;
  return true;
}

bool Leadership::IsLeaderDead(Instant now) const {
  if (leader_ != 0) return NodeOfLeader(leader_) == own_ || resigned_ || now - led_ > silence_;
  // At the start: node 0 leads, once it knows that no other one does. The others may be there already, with
  // a successor of its last process.
  const bool all_heard =
      std::ranges::count_if(peers_, [](const Peer& peer) { return peer.session != 0; }) + 1 == nodes_;
  return own_ == 0 && (all_heard || now - started_ > silence_);
}

bool Leadership::Claim(Instant now) {
  uint64_t able = alive(now);
  if (resigned_) able &= ~(uint64_t{1} << NodeOfLeader(leader_));
  if (leads() || !IsLeaderDead(now) || std::countr_zero(able) != own_) return false;
  leader_ = claimed_ = LeadershipOf((leader_ >> 4) + 1, own_);
  return true;
}

uint64_t Leadership::alive(Instant now) const {
  uint64_t alive = uint64_t{1} << own_;
  for (uint8_t node = 0; node < nodes_; ++node) {
    const bool heard = peers_[node].session != 0 && now - peers_[node].heard <= silence_;
    alive |= uint64_t{heard} << node;
  }
  return alive;
}

}  // namespace longhaul::site
