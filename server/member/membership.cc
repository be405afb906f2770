#include "server/member/membership.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/reached.h"
#include "base/units_text.h"
#include "server/member/weight_ledger.h"

namespace longhaul::server {
namespace {

std::string Quoted(const std::string& text) { return "\"" + text + "\""; }

}  // namespace

Membership::Membership(std::string job, uint32_t world_size, uint32_t min_workers, double max_weight_share,
                       uint32_t start_workers, uint64_t min_incarnation)
    : job_(std::move(job)),
      min_workers_(min_workers),
      start_workers_(start_workers == 0 ? world_size : start_workers),
      min_incarnation_(min_incarnation),
      max_weight_share_(max_weight_share),
      stands_for_(world_size, 1),
      members_(world_size),
      plan_(world_size),
      fences_(world_size) {
  LH_CHECK_OP(min_workers, >=, 1u);
  LH_CHECK_OP(min_workers, <=, start_workers_);
  LH_CHECK_OP(start_workers_, <=, world_size);
}

Result<Membership::Admission> Membership::Join(const JoinRequest& request, Instant now, bool holder_silent) {
  if (request.job != job_) {
    return Status(StatusCode::kSettingsMismatch,
                  "the worker's job is " + Quoted(request.job) + ", the server's is " + Quoted(job_));
  }
  if (request.world_size != world_size()) {
    return Status(StatusCode::kSettingsMismatch, "the worker's world size is " +
                                                     std::to_string(request.world_size) +
                                                     ", the server's is " + std::to_string(world_size()));
  }
  if (request.rank >= world_size()) {
    return Status(StatusCode::kInvalidArgument, "rank " + std::to_string(request.rank) +
                                                    " is not below the world size " +
                                                    std::to_string(world_size()));
  }
  if (request.incarnation.value_or(0) < min_incarnation_) {
    LH_REACHED("an earlier attempt is refused");
    return Status(
        StatusCode::kAlreadyExists,
        "rank " + std::to_string(request.rank) + " has " +
            (request.incarnation ? "incarnation " + std::to_string(*request.incarnation) : "no incarnation") +
            ", and is of an earlier attempt of the job: this server takes " +
            std::to_string(min_incarnation_) + " and later (--min-incarnation)");
  }
  Member& member = members_[request.rank];
  const bool taken = member.state == Member::State::kJoined;
  if (Status may = plan_.MayTake(request.identity, request.peer, request.rank, taken); !may.ok()) return may;
  if (Status may = fences_.MayJoin(request.rank, request.session); !may.ok()) return may;
  // A successor counts its own incarnations.
  const bool known = member.state != Member::State::kEmpty && member.identity.name == request.identity.name;
  if (known && request.incarnation && *request.incarnation < member.incarnation) {
    LH_REACHED("an older incarnation is refused");
    return Status(StatusCode::kAlreadyExists,
                  "incarnation " + std::to_string(*request.incarnation) + " of rank " +
                      std::to_string(request.rank) + " is older than " + std::to_string(member.incarnation) +
                      ", which " + (taken ? "holds it from " + member.peer.ToString() : "was here before"));
  }
  const bool newer = request.incarnation && *request.incarnation > member.incarnation;
  // The same process, which has given its connection up: after a pause of this server's, for instance.
  const bool itself = taken && request.session != 0 && request.session == member.session;
  if (taken && !newer && !itself && !holder_silent) return Admission::kContested;
  const uint64_t next = member.incarnation + (known && member.incarnation < UINT64_MAX ? 1 : 0);
  member = Member{.state = Member::State::kJoined,
                  .incarnation = request.incarnation.value_or(next),
                  .site = request.site,
                  .identity = request.identity,
                  .weight = request.weight,
                  .session = request.session,
                  .peer = request.peer,
                  .last_heard = now};
  plan_.Take(request.rank, request.identity, request.peer);
  if (started_ || fences_.IsKnown(request.rank)) fences_.OnJoined(request.rank, request.session);
  if (!taken) ++joined_;
  last_joined_ = now;
  return taken ? Admission::kReplaces : Admission::kNew;
}

Status Membership::Taken(uint32_t rank, Duration answered_after) const {
  LH_REACHED("a rank is taken");
  const Member& member = members_[rank];
  return {StatusCode::kAlreadyExists,
          "rank " + std::to_string(rank) + " is taken by " + member.peer.ToString() + " (incarnation " +
              std::to_string(member.incarnation) + "), which lives: it answered within " +
              SecondsText(answered_after) + "; a higher --incarnation replaces it all the same"};
}

void Membership::Leave(uint32_t rank) { Free(rank, Member::State::kLeft); }
void Membership::Lose(uint32_t rank) { Free(rank, Member::State::kLost); }

void Membership::Free(uint32_t rank, Member::State state) {
  LH_CHECK(IsJoined(rank));
  --joined_;
  if (started_) {
    members_[rank].state = state;
    return;
  }
  members_[rank] = Member();
  if (state == Member::State::kLeft) plan_.GiveBack(rank);
  if (joined_ == 0) plan_.GiveAllBack();
}

void Membership::GoOn(std::vector<RankSessions> sessions, uint32_t quorum) {
  quorum_ = quorum;
  // Before a push has counted, the one that is gone may be the one that has the initial values.
  goes_on_ = std::ranges::any_of(sessions, [](const RankSessions& rank) { return rank.last != 0; });
  fences_.Restore(std::move(sessions));
}

bool Membership::TryStart(Instant now) {
  if (started_ || joined_ < (goes_on_ ? min_workers_ : start_workers_)) return false;
  const bool suffice = quorum_ != 0 && joined_ >= quorum_;
  const Duration wait = !goes_on_ ? kLastCall : suffice ? kQuorumReturn : kReturn;
  if (joined_ < world_size() && now < last_joined_ + wait) return false;
  started_ = true;
  for (uint32_t rank = 0; rank < world_size(); ++rank) {
    if (IsJoined(rank)) fences_.OnJoined(rank, members_[rank].session);
  }
  return true;
}

void Membership::SetStandsFor(uint32_t rank, uint32_t workers) {
  LH_CHECK_OP(rank, <, stands_for_.size());
  LH_CHECK_OP(workers, >=, 1u);
  stands_for_[rank] = workers;
}

void Membership::SetAllow(AllowList allow) {
  plan_.Replace(std::move(allow));
  for (uint32_t rank = 0; rank < world_size(); ++rank) SetStandsFor(rank, plan_.WorkersOf(rank));
}

double Membership::Admitted() const { return std::accumulate(stands_for_.begin(), stands_for_.end(), 0.0); }

std::vector<bool> Membership::Joined() const {
  std::vector<bool> joined(members_.size());
  for (uint32_t rank = 0; rank < joined.size(); ++rank) joined[rank] = IsJoined(rank);
  return joined;
}

// max_weight_share = K / (all - 1 + K). Less than an even share for each: all count alike.
double Membership::WeightTimes() const {
  if (max_weight_share_ <= 0) return kUsualWeights;
  if (max_weight_share_ >= 1) return std::numeric_limits<double>::infinity();
  return std::max(1.0, max_weight_share_ * (Admitted() - 1) / (1 - max_weight_share_));
}

double Membership::WeightShare(uint32_t rank) const {
  return WeightLedger::Share(WeightTimes(), stands_for_[rank], Admitted());
}

std::string Membership::Describe(uint32_t rank) const {
  const Member& member = members_[rank];
  if (member.state == Member::State::kEmpty) {
    const AllowEntry* const entry = plan_.allow().FindRank(rank);
    const std::string& owner = entry != nullptr && !plan_.HasOwner(rank) ? entry->name : plan_.owner(rank);
    return "worker rank " + std::to_string(rank) + (owner.empty() ? "" : " (" + owner + ")");
  }
  const std::string site = member.site.empty() ? "" : "site " + member.site + ", ";
  const std::string name = member.identity.name.empty() ? "" : member.identity.name + ", ";
  return "worker rank " + std::to_string(rank) + " (" + name + site + member.peer.ToString() + ")";
}

std::string Membership::Names(const std::vector<uint32_t>& ranks) const {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kMost); ++i) {
    const Member::State state = members_[ranks[i]].state;
    text += i == 0 ? "" : "; ";
    text += state == Member::State::kEmpty ? "rank " + std::to_string(ranks[i]) + ", which has not joined"
                                           : Describe(ranks[i]);
    if (state == Member::State::kLost) text += ", which is lost";
  }
  if (ranks.size() > kMost) text += " and " + std::to_string(ranks.size() - kMost) + " more";
  return text;
}

void Membership::Reset() {
  members_.assign(members_.size(), Member());
  plan_.Reset();
  fences_.Reset();
  joined_ = 0;
  started_ = false;
  goes_on_ = false;
}

}  // namespace longhaul::server
