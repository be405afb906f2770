// Which identity may take which rank of the job, and which one has.
//
// A rank belongs to the identity (the name in the certificate) that took it first, until the job is over, and
// an identity has one rank, unless its certificate or its entry of the allow-list names several. The
// successor that an entry names takes a rank over when its owner is out. An identity that was kicked takes no
// rank until the next reload or the job's end. Peers without names (one shared key, no keys) are all equal:
// any of them takes any rank, but a kicked rank is closed to the host that it was kicked from.
//
// Knows no connections. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/allow_list.h"
#include "longhaul/status.h"
#include "transport/core/security/security.h"

namespace longhaul::server {

class RankPlan {
 public:
  explicit RankPlan(uint32_t world_size) : owners_(world_size) {}

  // kPermissionDenied says what the identity may have instead. `held`: a worker with that rank is in.
  // REQUIRES: rank < world_size.
  Status MayTake(const transport::PeerIdentity& who, const Address& from, uint32_t rank, bool held) const;
  // REQUIRES: MayTake.
  void Take(uint32_t rank, const transport::PeerIdentity& who, const Address& from);
  // The rank is free again, or all of them are: a job that never began remembers no owner.
  void GiveBack(uint32_t rank) { owners_[rank] = {}; }
  void GiveAllBack() { owners_.assign(owners_.size(), {}); }
  // The rank's owner, or the worker that it is set aside for, takes no rank from now on. False: it is no
  // one's.
  bool Kick(uint32_t rank);
  // Kicks are forgotten, and ranks are free whose owners may not have them by this list.
  void Replace(AllowList allow);
  // The job is over: kicks and owners are forgotten.
  void Reset();

  bool HasOwner(uint32_t rank) const { return owners_[rank].taken; }
  // A certificate's name; "" when the rank has no owner, or its peers have no names.
  const std::string& owner(uint32_t rank) const { return owners_[rank].name; }
  // For how many workers the rank stands.
  uint32_t WorkersOf(uint32_t rank) const;
  const AllowList& allow() const { return allow_; }

 private:
  struct Owner {
    bool taken = false;
    std::string name;
    Address from;
  };

  struct Kicked {
    std::string name;  // "": of a host, and only this rank
    uint32_t rank = 0;
    Address from;
  };

  bool IsKicked(const std::string& name, uint32_t rank, const Address& from) const;
  // The entry by which the worker may have that rank: its own, or one that it is the successor of; null.
  const AllowEntry* EntryOf(const std::string& name, uint32_t rank) const;
  // Why the list does not give the worker that rank.
  Status NotTheirs(const std::string& name, uint32_t rank) const;
  // The rank is, or is set aside for, `entry`'s worker or its successor, and `name` is the other one.
  Status MayFollow(const AllowEntry& entry, const std::string& name, uint32_t rank, bool held) const;
  // The owner was kicked and no successor of it is named.
  bool IsVacant(uint32_t rank) const;
  Status MayHoldAnother(const transport::PeerIdentity& who, const AllowEntry* entry, uint32_t rank) const;

  AllowList allow_;
  std::vector<Owner> owners_;   // by rank
  std::vector<Kicked> kicked_;  // at most one a rank and reload
};

}  // namespace longhaul::server
