// Everything between the start of a job and its end: the life of its rounds, and the routing of what its
// workers say and send to
//
//   Declarations  which tensors there are, and their version 0
//   Intake        windows that arrive: chunks into sums, the close rule
//   Pulls         requests for current values
//   Steps         pushes that are steps of their own: when they count and are acknowledged
//   ResultSender  (server/results) windows that leave
//
// Works on connections by way of Peer. Which worker may join, and whether the job goes on without one, is
// decided by the owner (server/job/coordinator.h). SetNow comes before any event. Not thread-safe.
//
// An event works on a bounded part of a tensor, however large it is: a chunk that came, and of what grows
// with the tensor (chunks that wait for no worker once a window ends, chunks to hand over,
// hashes) a budget's worth. The rest is Work.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "base/instant.h"
#include "base/work_budget.h"
#include "server/member/membership.h"
#include "server/member/peer.h"
#include "server/results/result_sender.h"
#include "server/round/declarations.h"
#include "server/round/image_collector.h"
#include "server/round/intake.h"
#include "server/round/pulls.h"
#include "server/round/round_host.h"
#include "server/round/steps.h"
#include "server/round/tensor_job.h"
#include "server/settings.h"

namespace longhaul::server {

class RoundEngine {
 public:
  // images: null: the job's state is not kept. All pointers must outlive this.
  RoundEngine(const ServerSettings& settings, uint16_t symbol_bytes, const Membership* membership,
              RoundEngineHost* host, ImageKeeper* images = nullptr);

  void SetNow(Instant now) { now_ = now; }

  // --- Control messages of members ---
  void OnDeclare(Peer& peer, const control::Declare& declare);
  void OnPullRequest(Peer& peer, const control::PullRequest& pull);
  Steps& steps() { return steps_; }  // for ClockRequest
  // A call of the worker has waited long enough: ends it, saying for whom it waits, unless it has ended.
  void OnGiveUp(Peer& peer, uint32_t request);

  // --- Windows (see transport/core/connection/events.h) ---
  // An error refuses the window.
  Status OnWindowOpened(Peer& peer, transport::WindowKey key, const wire::WindowOpenFrame& open) {
    return intake_.OnWindowOpened(now_, peer, key, open);
  }
  // As Intake::OnChunk.
  transport::ChunkVerdict OnChunk(Peer& peer, transport::WindowKey key, bool high, ByteSpan chunk,
                                  bool repaired);
  void OnWindowState(Peer& peer, const transport::event::WindowState& state);
  void OnOutgoingClosed(Peer& peer, transport::WindowKey key, const transport::WindowReceipt& receipt);

  // --- Membership. The peer's connection is over, or about to be: nothing is sent to it any more. ---
  // A worker joined (again) after the start.
  void OnMemberJoined(uint32_t rank);
  // The rank's connection was replaced by a newer incarnation's; `old` is out.
  void OnMemberReplaced(uint32_t rank, Peer& old);
  void OnMemberGone(uint32_t rank, Peer& peer);
  // The job ends: nothing of this engine is borrowed by the peer's connection any more.
  void DropPeer(Peer& peer);

  // Windows that time alone closes, and rounds that stop waiting. False: it was not time to look.
  bool HandleTimeout();
  Instant NextTimeout() const { return next_check_; }

  // Work that is left of earlier events; a slice of it.
  bool HasWork() const { return results_.HasWork() || !unfinished_.empty(); }
  void Work();
  // The event, or the slice of work, is over: the next one has a budget of its own.
  void EndEvent();

  // Images of the job's state.
  ImageCollector& images() { return images_; }
  // The round log is longer: rounds that have waited for it are over.
  void OnLogged();

  const EngineStats& stats() const { return stats_; }
  const ResultSender& results() const { return results_; }
  uint64_t elements() const { return declarations_.store().elements(); }
  const MemoryBudget& memory() const { return declarations_.memory(); }
  uint64_t declarations_held() const { return declarations_.held_back(); }
  size_t tensor_count() const { return jobs_.size(); }
  // A round in progress does not wait for the rank.
  bool Lags(uint32_t rank) const;
  // The round that most workers wait in, the declaration that most wait for, and pulls that wait for memory,
  // if any: no worker hides the wait for itself behind another that only it has begun.
  std::vector<Wait> LongestWaits() const;

 private:
  void Follow(const Intake::Outcome& outcome);
  void FollowDeclared(const std::vector<TensorJob*>& jobs);
  void OnOffered(TensorJob& job, const InitialWindow& window);
  void OnInitialized(TensorJob& job);
  // False: the job ends, and nothing was finished.
  bool FinaliseReady(TensorJob& job, std::span<const uint32_t> ready);
  void FinaliseSwept(TensorJob& job);
  void Sweep(TensorJob& job);
  void WorkOn(TensorJob& job);
  bool IsUnfinished(const TensorJob& job) const;
  void FinishRoundIfComplete(TensorJob& job);
  void CloseSteps(TensorJob& job);
  bool logs() const { return keeper_ != nullptr && keeper_->Logs(); }
  void LogRound(TensorJob& job);
  // The round that is complete may be told: its record is on the disk, or none is kept.
  bool IsLogged(TensorJob& job);
  void EndWeights(TensorJob& job);
  // to: by rank, the members that get it; empty: all.
  void Report(TensorJob& job, const TensorRound& round, std::vector<bool> to);
  void WorkOnReport(TensorJob& job, WorkBudget& budget);
  void SetReplicaHash(const Tensor& tensor, uint32_t rank, control::RoundReport& report,
                      WorkBudget& budget) const;
  void MoveMember(TensorJob& job, uint32_t rank, bool takes_part);
  void ForgetWorker(TensorJob& job, uint32_t rank);
  void ExcludeFromRound(TensorJob& job, uint32_t rank);
  void CountAsLost(TensorJob& job, uint32_t rank);
  void LeaveStragglersOut(TensorJob& job);
  void CheckAt(Instant when) { next_check_ = std::min(next_check_, when); }

  ServerSettings settings_;
  const Membership* membership_;
  RoundEngineHost* host_;
  EngineStats stats_;
  WorkBudget budget_;              // of the event in progress
  std::set<uint32_t> unfinished_;  // keys of tensors with a sweep, or a report to send
  bool results_first_ = false;
  bool broken_ = false;  // a step has failed: no round ends any more, so that no image has what it made
  TensorJobs jobs_;
  ImageKeeper* keeper_;
  ImageCollector images_;
  ResultSender results_;
  Declarations declarations_;
  Pulls pulls_;
  Steps steps_;
  Intake intake_;
  Instant now_;
  Instant next_check_ = Instant::Infinite();
};

}  // namespace longhaul::server
