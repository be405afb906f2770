#include "server/round/pulls.h"

#include <algorithm>
#include <utility>

#include "base/reached.h"
#include "proto/utf8.h"

namespace longhaul::server {
void Pulls::Refuse(Peer& peer, uint32_t request, const Status& status) {
  control::ControlMessage message;
  control::PullRefused& refused = *message.mutable_pull_refused();
  refused.set_request(request);
  refused.set_code(static_cast<uint32_t>(status.code()));
  refused.set_message(wire::Printable(status.message(), wire::kMaxTextBytes));
  host_->Send(peer, message);
}

void Pulls::OnRequest(Instant now, Peer& peer, TensorJob* job, const control::PullRequest& pull) {
  if (job == nullptr) {
    const Status why(StatusCode::kNotFound, "no tensor has the key " + std::to_string(pull.key()));
    return Refuse(peer, pull.request(), why);
  }
  const auto of_tensor = static_cast<size_t>(std::ranges::count(job->pulls, peer.rank, &PendingPull::rank));
  if (of_tensor + results_->pulls(peer) >= kMaxPending || waiting_[peer.rank] >= kMaxWaiting) {
    const Status why(StatusCode::kResourceExhausted,
                     "more than " + std::to_string(kMaxPending) + " pulls of one worker wait");
    return Refuse(peer, pull.request(), why);
  }
  // Those that wait already do not get a turn because another one came.
  PendingPull wanted{.rank = peer.rank,
                     .request = pull.request(),
                     .min_round = pull.min_round(),
                     .own_pushes = pull.own_pushes()};
  const uint64_t own = job->clocks.of(peer.rank);
  if (pull.has_max_staleness()) wanted.least_clock = own - std::min<uint64_t>(own, pull.max_staleness());
  ++waiting_[peer.rank];
  if (!TryAnswer(now, *job, wanted)) job->pulls.push_back(wanted);
}

void Pulls::Answer(Instant now, TensorJob& job) {
  std::erase_if(job.pulls, [&](PendingPull& pull) { return TryAnswer(now, job, pull); });
}

bool Pulls::TryAnswer(Instant now, TensorJob& job, PendingPull& pull) {
  const Parameters& parameters = job.tensor.parameters();
  if (parameters.initial() != Parameters::Initial::kReady) return false;
  if (pull.min_round > parameters.version()) return false;
  if (pull.own_pushes > job.own_pushes[pull.rank] || pull.least_clock > job.clocks.Slowest()) return false;
  Peer* peer = host_->PeerOfRank(pull.rank);
  const bool enough = peer != nullptr && results_->pulls(*peer, job.tensor) >= kMaxOfTensor;
  if (enough || !SnapshotFitsBudget(parameters)) {
    stats_->pulls_held += pull.held_since ? 0 : 1;
    LH_REACHED("a pull is held");
    if (!pull.held_since) pull.held_since = now;
    postponed_ = true;
    return false;
  }
  --waiting_[pull.rank];
  if (peer != nullptr) results_->SendPull(*peer, job.tensor, pull.request);
  return true;
}

bool Pulls::SnapshotFitsBudget(const Parameters& parameters) const {
  const uint64_t bound = kMaxPinnedModels * store_->elements() * sizeof(float);
  return parameters.HasSnapshot() ||
         results_->pinned_bytes() + parameters.OfVersion(parameters.version())->bytes() <= bound;
}

void Pulls::AnswerPostponed(Instant now, TensorJobs& jobs) {
  if (!std::exchange(postponed_, false)) return;
  for (const auto& job : jobs) {
    if (!job->pulls.empty()) Answer(now, *job);
  }
}

std::optional<PendingPull> Pulls::GiveUp(TensorJob& job, const Peer& peer, uint32_t request) {
  const auto found = std::ranges::find_if(
      job.pulls, [&](const PendingPull& pull) { return pull.rank == peer.rank && pull.request == request; });
  if (found == job.pulls.end()) return std::nullopt;
  const PendingPull pull = *found;
  job.pulls.erase(found);
  --waiting_[peer.rank];
  return pull;
}

void Pulls::Forget(TensorJob& job, uint32_t rank) {
  waiting_[rank] -= static_cast<uint32_t>(
      std::erase_if(job.pulls, [rank](const PendingPull& pull) { return pull.rank == rank; }));
}

Wait Pulls::WaitOf(const TensorJob& job, const PendingPull& pull) const {
  const Peer* own = host_->PeerOfRank(pull.rank);
  const bool of_its_own = own != nullptr && results_->pulls(*own, job.tensor) >= kMaxOfTensor;
  Wait wait{.what = "a pull of tensor \"" + job.tensor.parameters().spec().name + "\" (" +
                    (of_its_own ? "one after the other)" : "answers that are not taken hold the memory)"),
            .missing = {},
            .since = *pull.held_since};
  for (uint32_t rank = 0; rank < waiting_.size(); ++rank) {
    const Peer* peer = host_->PeerOfRank(rank);
    if (peer != nullptr && (of_its_own ? rank == pull.rank : results_->pulls(*peer) > 0)) {
      wait.missing.push_back(rank);
    }
  }
  return wait;
}

std::optional<Wait> Pulls::LongestWait(const TensorJobs& jobs) const {
  std::optional<Wait> longest;
  for (const auto& job : jobs) {
    for (const PendingPull& pull : job->pulls) {
      if (!pull.held_since || (longest && longest->since <= *pull.held_since)) continue;
      Wait wait = WaitOf(*job, pull);
      if (!std::ranges::count(wait.missing, pull.rank)) longest = std::move(wait);
    }
  }
  return longest;
}

}  // namespace longhaul::server
