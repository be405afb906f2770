// The members of the job: ranks, incarnations, the start barrier and what is left when a worker goes.
//
//   empty -> joined -> left      (said goodbye)
//                   -> lost      (died or was silent; may come again)
//            joined -> joined    (replaced: by a higher incarnation, or by another connection of the same process,
//                                 at once; by a process that says no number, or the same one, when its
//                                 predecessor no longer answers)
//
// A process that says no number gets the next one of its rank. A number that a process says fences those
// below it: they are refused, also when the rank is free. A process that says none is fenced by its session
// (fences.h).
//
// Before the start a lost or leaving worker's place becomes empty again.
//
// Which identity may take a rank is the plan's (rank_plan.h). A worker that leaves before the start gives its
// rank back; without any worker all ranks are free.
//
// A worker says how much its gradients weigh. Of a round's weight it has max_weight_share at most, or as many
// times that as it stands for workers (server/member/weight_ledger.h): one, unless the operator has admitted
// more. Knows no connections. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/address.h"
#include "base/instant.h"
#include "longhaul/status.h"
#include "server/member/fences.h"
#include "server/member/rank_plan.h"
#include "transport/core/security/security.h"

namespace longhaul::server {

struct Member {
  enum class State : uint8_t { kEmpty, kJoined, kLeft, kLost };

  State state = State::kEmpty;
  uint64_t incarnation = 0;
  std::string site;                  // as the worker says
  transport::PeerIdentity identity;  // as it has proved
  float weight = 1;
  uint64_t session = 0;  // of its process; 0: it says none
  Address peer;
  Instant last_heard;
};

// What a worker says when it joins (control.Join).
struct JoinRequest {
  std::string job;
  uint32_t rank = 0;
  uint32_t world_size = 0;
  std::optional<uint64_t> incarnation = {};
  std::string site;
  transport::PeerIdentity identity = {};
  float weight = 1;
  uint64_t session = 0;
  Address peer;
};

class Membership {
 public:
  enum class Admission : uint8_t {
    kNew,        // the place was empty, or its worker was lost or had left
    kReplaces,   // the rank's older incarnation is out
    kContested,  // nothing has changed: does the rank's worker still live?
  };

  // By default a worker counts as at most so many others: honest shards differ by less.
  static constexpr double kUsualWeights = 3;

  // Between the last worker to come and the start without those that are not in: processes that were started
  // together are seconds apart at most.
  static constexpr Duration kLastCall = std::chrono::seconds(1);
  // The usual idle time-out: by then all that live look for the server. Those that come later enter the job.
  static constexpr Duration kReturn = std::chrono::seconds(10);
  // Where rounds close without some: those that are back have found the server within a probe time-out of
  // each other.
  static constexpr Duration kQuorumReturn = std::chrono::milliseconds(200);

  // min_workers: fewer joined workers than this abort a started job; 1..world_size. max_weight_share:
  // JobSpec's. start_workers: so many begin without the others; 0: only all; else min_workers..world_size.
  // min_incarnation: workers with a lower one, or none, are of earlier attempts of the job, and refused.
  Membership(std::string job, uint32_t world_size, uint32_t min_workers, double max_weight_share = 1,
             uint32_t start_workers = 0, uint64_t min_incarnation = 0);

  // Errors, each naming both sides' values: kSettingsMismatch (job, world size), kInvalidArgument (rank),
  // kPermissionDenied (the identity may not have the rank), kAlreadyExists (the rank is taken, the
  // incarnation is older than one of the same identity that was here or than min_incarnation, or another
  // process has followed it).
  // holder_silent: a contested rank's
  // worker has not answered.
  Result<Admission> Join(const JoinRequest& request, Instant now, bool holder_silent = false);
  // kAlreadyExists: the rank's worker has answered.
  Status Taken(uint32_t rank, Duration answered_after) const;
  // The worker said goodbye, or is dead. REQUIRES: it is joined.
  void Leave(uint32_t rank);
  void Lose(uint32_t rank);
  void OnHeard(uint32_t rank, Instant now) { members_[rank].last_heard = now; }

  // True once: the start barrier opens, when every rank is in, or start_workers are and no other has come for
  // kLastCall; see GoOn. Started() stays true until the job's end.
  bool TryStart(Instant now);
  bool started() const { return started_; }
  // Joined workers, now.
  uint32_t joined() const { return joined_; }
  uint32_t world_size() const { return static_cast<uint32_t>(members_.size()); }
  uint32_t min_workers() const { return min_workers_; }
  bool EnoughWorkers() const { return joined_ >= min_workers_; }
  const Member& member(uint32_t rank) const { return members_[rank]; }
  // How many workers the rank stands for, of all that were admitted: its share of the weight grows with it (a
  // site's engine pushes the sum of the site's workers). 1 by default; stays when a job is over. Takes effect
  // with the tensors that are declared after it. REQUIRES: rank in range, workers >= 1.
  void SetStandsFor(uint32_t rank, uint32_t workers);
  const std::vector<uint32_t>& stands_for() const { return stands_for_; }
  // How many times the others' mean weight one worker counts as at most: WeightLedger's K, which makes
  // max_weight_share of a worker's share. Infinite: no bound.
  double WeightTimes() const;
  // The rank's share of a round's weight, at most, when all are members.
  double WeightShare(uint32_t rank) const;
  bool IsJoined(uint32_t rank) const { return members_[rank].state == Member::State::kJoined; }
  std::vector<bool> Joined() const;  // by rank
  // From now on; what the list says of ranks that stand for several workers, too (SetStandsFor).
  void SetAllow(AllowList allow);
  const Fences& fences() const { return fences_; }
  // The job goes on: the processes that it had at an earlier server. Once a push has counted it
  // starts with min_workers when no other has come for kReturn: a rank may have left before. With a quorum
  // (not 0), which closes its rounds anyway, and none for kQuorumReturn.
  void GoOn(std::vector<RankSessions> sessions, uint32_t quorum = 0);
  RankPlan& plan() { return plan_; }
  const RankPlan& plan() const { return plan_; }
  // "worker rank 2 (site B, 127.0.0.1:4000)"; with a certificate "worker rank 2 (fra, site B,
  // 127.0.0.1:4000)".
  std::string Describe(uint32_t rank) const;
  // "rank 2, which has not joined; worker rank 3 (site B, 10.0.0.3:4000) and 5 more": eight at most by name.
  std::string Names(const std::vector<uint32_t>& ranks) const;

  // A new job: all members are gone, nothing is remembered.
  void Reset();

 private:
  void Free(uint32_t rank, Member::State state);
  double Admitted() const;  // workers that all ranks stand for

  std::string job_;
  uint32_t min_workers_;
  uint32_t start_workers_;
  uint64_t min_incarnation_;
  double max_weight_share_;
  std::vector<uint32_t> stands_for_;  // by rank
  std::vector<Member> members_;
  RankPlan plan_;
  Fences fences_;
  uint32_t joined_ = 0;
  Instant last_joined_;
  bool goes_on_ = false;  // the job, from an earlier server
  uint32_t quorum_ = 0;   // of a job that goes on
  bool started_ = false;
};

}  // namespace longhaul::server
