#include "server/member/rank_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace longhaul::server {
namespace {

std::string Quote(const std::string& text) { return "\"" + text + "\""; }
std::string Rank(uint32_t rank) { return "rank " + std::to_string(rank); }
Status Denied(std::string why) { return {StatusCode::kPermissionDenied, std::move(why)}; }

Status Belongs(uint32_t rank, const std::string& owner, const std::string& name) {
  return Denied(Rank(rank) + " belongs to " + Quote(owner) + " until the job is over, and this is " +
                Quote(name));
}

}  // namespace

Status RankPlan::MayTake(const transport::PeerIdentity& who, const Address& from, uint32_t rank,
                         bool held) const {
  if (IsKicked(who.name, rank, from)) {
    return Denied((who.name.empty() ? Rank(rank) + " of this host" : Quote(who.name)) +
                  " was kicked: it may come back after a reload, or in the next job");
  }
  if (who.name.empty()) return {};
  if (who.ranks && !who.ranks->Contains(rank)) {
    return Denied(Quote(who.name) + " may not take " + Rank(rank) + ": its certificate is for " +
                  (who.ranks->first == who.ranks->last ? "rank " : "ranks ") + who.ranks->ToString());
  }
  const Owner& owner = owners_[rank];
  if (owner.taken && owner.name == who.name) return {};
  const AllowEntry* const entry = EntryOf(who.name, rank);
  if (entry == nullptr && !allow_.empty()) return NotTheirs(who.name, rank);
  const bool pair =
      entry != nullptr && owner.taken && (owner.name == entry->name || owner.name == entry->successor);
  if (pair || (entry != nullptr && entry->name != who.name)) {
    if (Status may = MayFollow(*entry, who.name, rank, held); !may.ok()) return may;
  } else if (owner.taken && (held || !IsVacant(rank))) {
    return Belongs(rank, owner.name, who.name);
  }
  return MayHoldAnother(who, entry, rank);
}

Status RankPlan::NotTheirs(const std::string& name, uint32_t rank) const {
  const AllowEntry* const own = allow_.FindWorker(name);
  if (own != nullptr && own->ranks) {
    return Denied(Quote(name) + " may not take " + Rank(rank) + ": 'allow' says " + own->ToString());
  }
  if (const AllowEntry* const other = allow_.FindRank(rank)) {
    return Denied(Rank(rank) + " is set aside for " + Quote(other->name) + " ('allow'), and this is " +
                  Quote(name));
  }
  return Denied(Quote(name) + " may not take " + Rank(rank) + " ('allow')");
}

Status RankPlan::MayFollow(const AllowEntry& entry, const std::string& name, uint32_t rank, bool held) const {
  const Owner& owner = owners_[rank];
  const bool first = entry.name == name;
  const std::string& other = first ? entry.successor : entry.name;
  if (owner.taken && owner.name != other) return Belongs(rank, owner.name, name);
  const bool out = owner.taken ? !held : IsKicked(other, rank, {});
  if (out) return {};
  return Denied(Rank(rank) + " is " + Quote(other) + "'s; " + Quote(name) +
                " may take it when that one is lost, kicked or has left");
}

bool RankPlan::IsVacant(uint32_t rank) const {
  const Owner& owner = owners_[rank];
  const AllowEntry* const entry = allow_.FindWorker(owner.name);
  return IsKicked(owner.name, rank, owner.from) && (entry == nullptr || entry->successor.empty());
}

Status RankPlan::MayHoldAnother(const transport::PeerIdentity& who, const AllowEntry* entry,
                                uint32_t rank) const {
  const std::optional<RankRange> several = entry != nullptr && entry->ranks ? entry->ranks : who.ranks;
  for (uint32_t other = 0; other < owners_.size(); ++other) {
    if (other == rank || owners_[other].name != who.name) continue;
    if (several && several->Contains(other)) continue;
    return Denied(Quote(who.name) + " has " + Rank(other) + " and may not take " + Rank(rank) +
                  " as well: a certificate is for one rank, unless 'allow' or the certificate itself "
                  "(longhaul keygen --ranks) names several");
  }
  return {};
}

const AllowEntry* RankPlan::EntryOf(const std::string& name, uint32_t rank) const {
  const auto has = [&](const AllowEntry& entry) {
    return entry.ranks ? entry.ranks->Contains(rank) : allow_.FindRank(rank) == nullptr;
  };
  if (const AllowEntry* const own = allow_.FindWorker(name)) return has(*own) ? own : nullptr;
  const AllowEntry* found = nullptr;
  for (const AllowEntry& entry : allow_.entries()) {
    if (entry.successor != name || !has(entry)) continue;
    // Of several without ranks, the one whose worker has this rank.
    if (found == nullptr || entry.name == owners_[rank].name) found = &entry;
  }
  return found;
}

bool RankPlan::IsKicked(const std::string& name, uint32_t rank, const Address& from) const {
  return std::ranges::any_of(kicked_, [&](const Kicked& kicked) {
    return kicked.name == name && (!name.empty() || (kicked.rank == rank && kicked.from.ip == from.ip));
  });
}

void RankPlan::Take(uint32_t rank, const transport::PeerIdentity& who, const Address& from) {
  owners_[rank] = {.taken = true, .name = who.name, .from = from};
}

bool RankPlan::Kick(uint32_t rank) {
  const Owner& owner = owners_[rank];
  const AllowEntry* const entry = allow_.FindRank(rank);
  if (!owner.taken && entry == nullptr) return false;
  const std::string& name = owner.taken ? owner.name : entry->name;
  // Of a rank without names only the last host is remembered, of a name one kick: kicks need no bound.
  std::erase_if(kicked_,
                [&](const Kicked& k) { return k.name == name && (!name.empty() || k.rank == rank); });
  kicked_.push_back({.name = name, .rank = rank, .from = owner.from});
  return true;
}

void RankPlan::Replace(AllowList allow) {
  allow_ = std::move(allow);
  kicked_.clear();
  for (uint32_t rank = 0; rank < owners_.size(); ++rank) {
    const std::string& name = owners_[rank].name;
    if (!name.empty() && !allow_.empty() && EntryOf(name, rank) == nullptr) GiveBack(rank);
  }
}

void RankPlan::Reset() {
  kicked_.clear();
  GiveAllBack();
}

uint32_t RankPlan::WorkersOf(uint32_t rank) const {
  const AllowEntry* const entry = allow_.FindRank(rank);
  return entry == nullptr ? 1 : entry->workers;
}

}  // namespace longhaul::server
