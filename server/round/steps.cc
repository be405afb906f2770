#include "server/round/steps.h"

#include <algorithm>
#include <string>

#include "base/reached.h"

namespace longhaul::server {

bool Steps::Close(Instant now, TensorJob& job) {
  Tensor& tensor = job.tensor;
  bool counted = false;
  bool closes = false;
  for (FinishedPush& push : job.finished) {
    if (push.state != FinishedPush::State::kOver) continue;
    if (push.step > tensor.rounds().number()) {
      if (tensor.rounds().Closes()) continue;
      LH_REACHED("a step has chunks of a worker that is gone, and no window that closes it");
      tensor.rounds().CloseStep();
      closes = true;
      continue;
    }
    if (push.step < tensor.rounds().number()) {
      LH_REACHED("a push is over that earlier steps have all of");
      tensor.rounds().OnWindowPassed(push.rank);
      Count(now, job, push);
      counted = true;
      continue;
    }
    tensor.OnWindowOver(push.rank, push.outcome);
    tensor.rounds().OnWindowClosed(push.rank, tensor.pushed(push.rank));
    push.state = FinishedPush::State::kInStep;
    closes = true;
  }
  if (counted) Answer(now, job);
  return closes;
}

void Steps::Count(Instant now, TensorJob& job, FinishedPush& push) {
  job.clocks.Advance(push.rank);
  job.push_session[push.rank] = 0;
  push.state = FinishedPush::State::kHeld;
  push.held_since = now;
}

void Steps::OnOver(Instant now, TensorJob& job, uint64_t step) {
  for (FinishedPush& push : job.finished) {
    if (push.state == FinishedPush::State::kInStep && push.step == step) Count(now, job, push);
  }
  Answer(now, job);
}

void Steps::Answer(Instant now, TensorJob& job) {
  std::erase_if(job.finished, [&](const FinishedPush& push) {
    if (push.state != FinishedPush::State::kHeld || !job.clocks.MayGoOn(push.rank)) return false;
    job.own_pushes[push.rank] += push.taken.has_push_taken() ? 1 : 0;  // or an answer to a declaration
    job.answered_at[push.rank] = now;
    if (Peer* peer = host_->PeerOfRank(push.rank)) host_->Send(*peer, push.taken);
    return true;
  });
  pulls_->Answer(now, job);
  LeaveIdleOut(now, job);
}

std::vector<uint32_t> Steps::HoldersOf(const TensorJob& job, const FinishedPush& push) const {
  const int32_t staleness = job.tensor.parameters().spec().staleness;
  if (staleness == Clocks::kNoBound) return {};
  return job.clocks.Behind(job.clocks.of(push.rank) - static_cast<uint64_t>(staleness));
}

void Steps::LeaveIdleOut(Instant now, TensorJob& job) {
  bool left = false;
  for (const FinishedPush& push : job.finished) {
    if (push.state != FinishedPush::State::kHeld) continue;
    for (const uint32_t rank : HoldersOf(job, push)) {
      const Instant deadline =
          job.patience.Deadline(rank, job.answered_at[rank], push.held_since, jobs_->bytes());
      if (now < deadline) {
        check_at_ = std::min(check_at_, deadline);
        continue;
      }
      LH_REACHED("a member that does nothing holds the others no longer");
      job.clocks.OnMemberGone(rank);
      ++stats_->by_rank[rank].excluded;
      host_->OnLeftOut({.rank = rank,
                        .tensor = job.tensor.parameters().spec().name,
                        .round = job.tensor.rounds().number(),
                        .waited = now - push.held_since});
      left = true;
    }
  }
  if (left) Answer(now, job);
}

std::optional<Wait> Steps::LongestHeld() const {
  std::optional<Wait> longest;
  for (const auto& job : *jobs_) {
    for (const FinishedPush& push : job->finished) {
      if (push.state != FinishedPush::State::kHeld || (longest && longest->since <= push.held_since))
        continue;
      const uint64_t clock = job->clocks.of(push.rank);
      longest =
          Wait{.what = "push " + std::to_string(clock + 1) + " of tensor \"" +
                       job->tensor.parameters().spec().name + "\" by rank " + std::to_string(push.rank) +
                       ", " + std::to_string(clock - job->clocks.Slowest()) + " ahead,",
               .missing = HoldersOf(*job, push),
               .since = push.held_since};
    }
  }
  return longest;
}

// The connection is over. The worker's next one learns by its declaration what has counted.
void Steps::Drop(TensorJob& job, uint32_t rank) {
  std::erase_if(job.finished, [rank](const FinishedPush& push) { return push.rank == rank; });
  std::erase_if(job.untold, [rank](const auto& told) { return told.first == rank; });
  job.own_pushes[rank] = 0;
  job.pushed_here[rank] = false;
}

void Steps::OnClockRequest(Peer& peer, const control::ClockRequest& request) {
  const TensorJob* job = jobs_->Find(request.key());
  if (job == nullptr) {
    return host_->Disconnect(peer, Status(StatusCode::kProtocolViolation,
                                          "no tensor has the key " + std::to_string(request.key())));
  }
  const Clocks& clocks = job->clocks;
  control::ControlMessage message;
  control::ClockReply& reply = *message.mutable_clock_reply();
  // One that was given up may be behind the slowest, or have no one beside it.
  const uint64_t own = clocks.of(peer.rank);
  reply.set_request(request.request());
  reply.set_own(own);
  reply.set_slowest(clocks.members() > 0 ? std::min(own, clocks.Slowest()) : own);
  reply.set_fastest(std::max(own, clocks.Fastest()));
  reply.set_members(clocks.members());
  host_->Send(peer, message);
}

Status Steps::WhyStale(const TensorJob& job, const PendingPull& pull) const {
  const auto behind = job.clocks.Behind(pull.least_clock);
  if (pull.min_round > job.tensor.rounds().number() || behind.empty()) return {};
  return {StatusCode::kDeadlineExceeded, "push " + std::to_string(pull.least_clock) + " of tensor \"" +
                                             job.tensor.parameters().spec().name +
                                             "\" (max_staleness) waits for " + membership_->Names(behind)};
}

}  // namespace longhaul::server
