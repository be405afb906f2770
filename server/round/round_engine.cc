#include "server/round/round_engine.h"

#include <algorithm>
#include <utility>

#include "base/reached.h"
#include "codec/chunk/chunk.h"
#include "codec/policy/state_hash.h"

namespace longhaul::server {
namespace {

// What an optimizer reads and writes of an element is twice what encoding does: 0.4 ms a slice, and 0.9 ms
// where all of its memory is new.
constexpr uint64_t kPerElement = 2;

ResultSender::Options ResultOptions(const ServerSettings& settings) {
  ResultSender::Options options{.fec_k = settings.fec_k, .fec_depth = settings.fec_depth};
  if (settings.downlink == Downlink::kLossy) {
    options.lossy = {.high_share = settings.high_share,
                     .high_energy = settings.high_energy,
                     .hash_rounds = settings.hash_rounds};
  }
  return options;
}

double Share(uint32_t part, uint32_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

// For whom the round in progress waits. REQUIRES: it has begun.
Wait RoundWait(const TensorJob& job, const Membership& members) {
  const Rounds& rounds = job.tensor.rounds();
  const Parameters& parameters = job.tensor.parameters();
  Wait wait{
      .what = "round " + std::to_string(rounds.number()) + " of tensor \"" + parameters.spec().name + "\"",
      .missing = {},
      .since = rounds.begun_at()};
  const bool asked = parameters.initial() == Parameters::Initial::kAwaited;
  for (uint32_t rank = 0; rank < members.world_size(); ++rank) {
    if (!members.IsJoined(rank)) continue;
    const Rounds::Participation part = rounds.participation(rank);
    const bool pushes = part == Rounds::Participation::kAwaited || part == Rounds::Participation::kOpen;
    const bool offers = asked ? parameters.initial_sender() == rank : !job.declared[rank];
    if (job.HasValues() ? pushes : offers) wait.missing.push_back(rank);
  }
  return wait;
}

}  // namespace

RoundEngine::RoundEngine(const ServerSettings& settings, uint16_t symbol_bytes, const Membership* membership,
                         RoundEngineHost* host, ImageKeeper* images)
    : settings_(settings),
      membership_(membership),
      host_(host),
      keeper_(images),
      images_(settings.checkpoint_every, images, &jobs_),
      results_(ResultOptions(settings), &budget_),
      declarations_(settings, codec::ChunkElementsFor(symbol_bytes), membership, host, &jobs_, images),
      pulls_(settings.world_size, &declarations_.store(), host, &results_, &stats_),
      steps_(membership, host, &jobs_, &pulls_, &stats_),
      intake_(settings, symbol_bytes, membership, host, &jobs_, &results_, &stats_, logs()) {
  stats_.by_rank.resize(settings.world_size);
}

// --- Events of workers ---

void RoundEngine::OnDeclare(Peer& peer, const control::Declare& declare) {
  FollowDeclared(declarations_.OnDeclare(peer, declare, now_));
}

void RoundEngine::FollowDeclared(const std::vector<TensorJob*>& jobs) {
  for (TensorJob* job : jobs) {
    if (std::exchange(job->restored, false) || declarations_.StartsAsZeros(*job)) OnInitialized(*job);
  }
}

void RoundEngine::OnGiveUp(Peer& peer, uint32_t request) {
  if (declarations_.GiveUp(peer, request)) return;
  for (const auto& job : jobs_) {
    const auto given_up = pulls_.GiveUp(*job, peer, request);
    if (!given_up) continue;
    const Rounds& rounds = job->tensor.rounds();
    if (given_up->held_since) {
      const Wait wait = pulls_.WaitOf(*job, *given_up);
      pulls_.Refuse(peer, request,
                    Status(StatusCode::kDeadlineExceeded,
                           wait.what + " waits for " + membership_->Names(wait.missing)));
      return;
    }
    if (const Status why = steps_.WhyStale(*job, *given_up); !why.ok())
      return pulls_.Refuse(peer, request, why);
    const Wait wait = rounds.begun() ? RoundWait(*job, *membership_) : Wait();
    pulls_.Refuse(
        peer, request,
        Status(StatusCode::kDeadlineExceeded,
               "round " + std::to_string(given_up->min_round) + " of tensor \"" +
                   job->tensor.parameters().spec().name + "\" has not come, it is in round " +
                   std::to_string(rounds.number()) +
                   (wait.missing.empty() ? ", which has not begun"
                                         : ", which waits for " + membership_->Names(wait.missing))));
  }
}

// --- What waits ---

bool RoundEngine::Lags(uint32_t rank) const {
  return std::ranges::any_of(jobs_, [&](const auto& job) {
    if (job->tensor.asynchronous()) return membership_->IsJoined(rank) && !job->clocks.IsMember(rank);
    return job->tensor.rounds().participation(rank) == Rounds::Participation::kLagging;
  });
}

std::vector<Wait> RoundEngine::LongestWaits() const {
  // Workers that have pushed, and whether others can at all; of such, the oldest.
  const auto weight_of = [](const TensorJob& job) {
    const Rounds& rounds = job.tensor.rounds();
    return std::pair(
        rounds.Count(Rounds::Participation::kOpen) + rounds.Count(Rounds::Participation::kClosed),
        job.HasValues());
  };
  const TensorJob* first = nullptr;
  for (const auto& job : jobs_) {
    if (!job->tensor.rounds().begun() || (job->tensor.asynchronous() && job->HasValues())) continue;
    const auto order =
        first == nullptr ? std::strong_ordering::greater : weight_of(*job) <=> weight_of(*first);
    if (order > 0 || (order == 0 && job->tensor.rounds().begun_at() < first->tensor.rounds().begun_at()))
      first = job.get();
  }
  std::vector<Wait> waits;
  if (first != nullptr) waits.push_back(RoundWait(*first, *membership_));
  if (auto held = steps_.LongestHeld()) waits.push_back(*std::move(held));
  if (auto held = declarations_.LongestWait()) waits.push_back(*std::move(held));
  if (auto held = pulls_.LongestWait(jobs_)) waits.push_back(*std::move(held));
  return waits;
}

void RoundEngine::OnPullRequest(Peer& peer, const control::PullRequest& pull) {
  pulls_.OnRequest(now_, peer, jobs_.Find(pull.key()), pull);
}

transport::ChunkVerdict RoundEngine::OnChunk(Peer& peer, transport::WindowKey key, bool high, ByteSpan chunk,
                                             bool repaired) {
  Intake::Outcome outcome;
  const transport::ChunkVerdict verdict = intake_.OnChunk(peer, key, high, chunk, repaired, &outcome);
  if (outcome.ready) (void)FinaliseReady(*outcome.job, {&*outcome.ready, 1});
  return verdict;
}

void RoundEngine::OnWindowState(Peer& peer, const transport::event::WindowState& state) {
  Follow(intake_.OnWindowState(now_, peer, state));
}

void RoundEngine::Follow(const Intake::Outcome& outcome) {
  if (outcome.job == nullptr) return;
  CloseSteps(*outcome.job);
  FinaliseSwept(*outcome.job);
  if (outcome.initialized) OnOffered(*outcome.job, *outcome.initialized);
  if (outcome.closed) LeaveStragglersOut(*outcome.job);  // half of the members may be done now
  CheckAt(outcome.check_at);
  FinishRoundIfComplete(*outcome.job);
}

void RoundEngine::OnOutgoingClosed(Peer& peer, transport::WindowKey key,
                                   const transport::WindowReceipt& receipt) {
  results_.OnWindowClosed(peer, key, receipt);
  pulls_.AnswerPostponed(now_, jobs_);
}

// --- Rounds ---

// A worker's values are here. They count when they are on the disk: until then it has offered nothing.
void RoundEngine::OnOffered(TensorJob& job, const InitialWindow& window) {
  job.initial_window = window;
  if (!logs()) return OnInitialized(job);
  job.initial_record = keeper_->Log(std::make_shared<TensorImage>(job.tensor.Image()));
}

// Version 0 is there: what has waited for it goes on.
void RoundEngine::OnInitialized(TensorJob& job) {
  const bool logged = std::exchange(job.initial_record, 0) != 0;
  if (const auto window = std::exchange(job.initial_window, std::nullopt)) {
    host_->PeerOfRank(window->rank)->connection->CloseWindow(window->key, window->reason);
  }
  job.tensor.parameters().SetReady();
  job.values_since = job.turn = now_;
  std::fill(job.answered_at.begin(), job.answered_at.end(), now_);
  if (logs() && !logged && job.tensor.parameters().version() == 0)
    keeper_->Log(std::make_shared<TensorImage>(job.tensor.Image()));
  if (job.tensor.rounds().begun() && job.tensor.rounds().Closes()) job.tensor.rounds().BeginSweep();
  FinaliseSwept(job);
  pulls_.Answer(now_, job);
  LeaveStragglersOut(job);
}

bool RoundEngine::FinaliseReady(TensorJob& job, std::span<const uint32_t> ready) {
  Tensor& tensor = job.tensor;
  Parameters& parameters = tensor.parameters();
  if (ready.empty()) return true;
  if (parameters.initial() == Parameters::Initial::kAwaited) return true;  // OnInitialized sweeps for them
  // Every member of the round has pushed or is gone: values can no longer be offered.
  parameters.SetReady();
  if (tensor.rounds().final_order().empty()) {
    if (const Status begun = results_.BeginRound(tensor); !begun.ok()) {
      host_->RequestAbort(begun);
      return false;
    }
  }
  for (const uint32_t chunk : ready) {
    stats_.filled += tensor.Finalise(chunk);
    budget_.Spend(WorkBudget::kPerChunk + kPerElement * tensor.geometry().Length(chunk));
    if (const Status stepped = tensor.LastStep(); !stepped.ok()) {
      broken_ = true;
      host_->RequestAbort(stepped);
      return false;
    }
    if (tensor.rounds().AllFinal()) job.NoteCounted();
    if (logs() && tensor.rounds().AllFinal()) {
      LogRound(job);
    } else {
      results_.OnChunkFinal(tensor, chunk);
    }
  }
  return true;
}

// --- The round log ---

// No worker has the whole result of a round before it is on the disk: its last final chunk leaves after that.
void RoundEngine::LogRound(TensorJob& job) {
  Tensor& tensor = job.tensor;
  auto record = std::make_shared<TensorImage>(tensor.NextImage());
  record->counted = job.CountedBy(membership_->fences());
  tensor.WithholdLast();
  job.record = keeper_->Log(std::move(record));
}

bool RoundEngine::IsLogged(TensorJob& job) {
  Tensor& tensor = job.tensor;
  if (!tensor.withheld()) return true;
  if (keeper_->logged() < job.record) return false;
  tensor.ReleaseLast();
  results_.OnChunkFinal(tensor, tensor.rounds().final_order().back());
  for (const auto& [rank, message] : std::exchange(job.untold, {})) {
    if (Peer* peer = host_->PeerOfRank(rank)) host_->Send(*peer, message);
  }
  return true;
}

void RoundEngine::OnLogged() {
  for (const auto& job : jobs_) {
    if (job->initial_record != 0 && keeper_->logged() >= job->initial_record) OnInitialized(*job);
    if (job->tensor.withheld()) FinishRoundIfComplete(*job);
  }
}

// Windows are over: chunks that waited for nothing else become final, as many as the event's budget allows.
void RoundEngine::FinaliseSwept(TensorJob& job) {
  Sweep(job);
  if (IsUnfinished(job)) unfinished_.insert(job.tensor.key());
}

void RoundEngine::Sweep(TensorJob& job) {
  Rounds& rounds = job.tensor.rounds();
  if (job.tensor.WaitsForValues()) return;  // OnInitialized begins again
  const uint64_t per_chunk = uint64_t{WorkBudget::kPerChunk} * (1 + membership_->world_size()) +
                             kPerElement * job.tensor.geometry().Length(0);
  // A look at a word of 64 chunks takes some 2 ns a rank.
  const uint64_t per_look =
      1 + std::min(job.tensor.chunks(), Rounds::kSweptChunks) * membership_->world_size() / 128;
  std::vector<uint32_t> ready;
  while (rounds.HasSweep() && !budget_.spent()) {
    ready.clear();
    job.tensor.Sweep(1 + budget_.left() / per_chunk, &ready);
    budget_.Spend(per_look);
    if (!FinaliseReady(job, ready)) return;
  }
}

bool RoundEngine::IsUnfinished(const TensorJob& job) const {
  return job.report.has_value() || (job.tensor.rounds().HasSweep() && !job.tensor.WaitsForValues());
}

// Results and unfinished rounds alternate in having the first turn.
void RoundEngine::Work() {
  results_first_ = !results_first_;
  if (results_first_) results_.Work();
  while (!unfinished_.empty() && !budget_.spent()) {
    TensorJob& job = *jobs_.Find(*unfinished_.begin());
    WorkOn(job);
    if (!IsUnfinished(job)) unfinished_.erase(job.tensor.key());
  }
  results_.Work();
}

void RoundEngine::WorkOn(TensorJob& job) {
  WorkOnReport(job, budget_);
  if (!job.tensor.rounds().HasSweep()) return;
  Sweep(job);
  FinishRoundIfComplete(job);
}

void RoundEngine::EndEvent() {
  stats_.longest_event_elements = std::max(stats_.longest_event_elements, budget_.used());
  budget_ = WorkBudget();
}

void RoundEngine::FinishRoundIfComplete(TensorJob& job) {
  Tensor& tensor = job.tensor;
  Rounds& rounds = tensor.rounds();
  if (broken_ || !rounds.begun() || !rounds.AllFinal() || !IsLogged(job)) return;
  const bool steps = tensor.asynchronous();
  if (!steps) rounds.tally().excluded = rounds.Count(Rounds::Participation::kLagging);
  TensorRound round{.tensor = &tensor,
                    .round = rounds.number(),
                    .begun = rounds.begun_at(),
                    .last_rank = rounds.last_rank(),
                    .tally = rounds.tally()};
  std::vector<bool> contributed(membership_->world_size());
  for (uint32_t rank = 0; rank < membership_->world_size(); ++rank) {
    const bool lags = !steps && rounds.participation(rank) == Rounds::Participation::kLagging;
    stats_.by_rank[rank].excluded += lags ? 1 : 0;
    contributed[rank] = tensor.aggregator().contributed(rank).count() > 0;
    round.contributors += contributed[rank] ? 1 : 0;
    if (contributed[rank] && !steps) job.clocks.Advance(rank);
  }
  ++stats_.tensor_rounds;
  stats_.tolerated += round.tally.tolerated_chunks;
  EndWeights(job);
  if (job.report) {  // of the round before, all of which has gone by since
    WorkBudget everything = WorkBudget::Everything();
    WorkOnReport(job, everything);
  }
  results_.EndRound(tensor);
  tensor.NextRound(now_);
  images_.OnRoundOver(job);
  job.turn = now_;
  job.quorum_at.reset();
  std::fill(job.late.begin(), job.late.end(), false);
  if (job.epochs.OnRoundBegins(rounds.number())) job.BeginEpoch(*membership_);
  for (uint32_t rank = 0; rank < membership_->world_size(); ++rank) {
    if (!steps && rounds.participation(rank) == Rounds::Participation::kLagging) CountAsLost(job, rank);
  }
  Report(job, round, steps ? contributed : std::vector<bool>());
  declarations_.AnswerPostponed(job);
  pulls_.Answer(now_, job);
  host_->OnTensorRound(round);
  if (!steps) return;
  steps_.OnOver(now_, job, round.round);
  CloseSteps(job);
  FinishRoundIfComplete(job);
}

void RoundEngine::CloseSteps(TensorJob& job) {
  if (steps_.Close(now_, job)) FinaliseSwept(job);
  CheckAt(steps_.TakeCheckAt());
}

// Under policy shift the bounds of the epoch stay.
void RoundEngine::EndWeights(TensorJob& job) {
  const std::vector<double>& shares = job.weights.End();
  const double gain = 1.0 / static_cast<double>(std::min(stats_.tensor_rounds, EngineStats::kShareRounds));
  for (uint32_t rank = 0; rank < shares.size(); ++rank) {
    double& share = stats_.by_rank[rank].weight_share;
    share += gain * (shares[rank] - share);
  }
  if (settings_.policy != LossPolicy::kShift) job.weights.Begin(membership_->Joined());
  job.Weigh(*membership_);
}

void RoundEngine::Report(TensorJob& job, const TensorRound& round, std::vector<bool> to) {
  const Tensor& tensor = job.tensor;
  PendingReport& pending = job.report.emplace();
  pending.to = std::move(to);
  control::RoundReport& report = *pending.message.mutable_round_report();
  report.set_key(tensor.key());
  report.set_round(round.round);
  report.set_last_rank(round.last_rank);
  report.set_contributors(round.contributors);
  report.set_repaired_chunks(round.tally.repaired_chunks);
  report.set_filled_chunks(round.tally.filled_chunks);
  report.set_lost_chunks(round.tally.lost_chunks);
  report.set_loss(Share(round.tally.low_lost, round.tally.low_chunks));
  report.set_low_chunks(round.tally.low_chunks);
  report.set_low_lost(round.tally.low_lost);
  report.set_tolerated_chunks(round.tally.tolerated_chunks);
  report.set_rejected_chunks(round.tally.rejected_chunks);
  report.set_fill_reason(std::string(codec::FillReasonName(round.tally.fill_reason)));
  report.set_excluded(round.tally.excluded);
  report.set_shift_epoch(job.epochs.epoch());
  report.set_shift_epoch_round(job.epochs.change_round());
  report.set_has_state_hash(settings_.downlink == Downlink::kLossy &&
                            codec::IsHashRound(round.round, settings_.hash_rounds));
  WorkOnReport(job, budget_);
  if (job.report) unfinished_.insert(tensor.key());
}

// Hashes the values, as workers have them, where the report says their hash, and sends it to all.
void RoundEngine::WorkOnReport(TensorJob& job, WorkBudget& budget) {
  if (!job.report) return;
  PendingReport& pending = *job.report;
  control::RoundReport& report = *pending.message.mutable_round_report();
  const std::span<const float> values = job.tensor.parameters().current();
  const DType dtype = job.tensor.parameters().spec().result_dtype;
  std::vector<float> room;
  while (report.has_state_hash() && pending.hashed < values.size()) {
    if (budget.spent()) return;
    const uint64_t count = std::min<uint64_t>(values.size() - pending.hashed, WorkBudget::kSliceElements / 4);
    const auto part = codec::AsArrived(dtype, values.subspan(pending.hashed, count), &room);
    pending.hash = codec::StateHash(part, pending.hash);
    pending.hashed += count;
    budget.Spend(dtype == DType::kFloat32 ? count / 2 : count);
  }
  if (report.has_state_hash()) report.set_state_hash(pending.hash);
  for (; pending.next_rank < membership_->world_size(); ++pending.next_rank) {
    if (budget.spent()) return;
    if (!pending.to.empty() && !pending.to[pending.next_rank]) continue;
    SetReplicaHash(job.tensor, pending.next_rank, report, budget);
    if (Peer* peer = host_->PeerOfRank(pending.next_rank)) host_->Send(*peer, pending.message);
    budget.Spend(WorkBudget::kPerChunk);
  }
  stats_.state_hashes += report.has_state_hash() ? 1 : 0;
  job.report.reset();
}

// What the worker should have had after the round before, an ordinary one.
void RoundEngine::SetReplicaHash(const Tensor& tensor, uint32_t rank, control::RoundReport& report,
                                 WorkBudget& budget) const {
  const auto hash = report.has_state_hash() && report.round() > 0
                        ? results_.ReplicaHash(tensor, rank, report.round() - 1)
                        : std::nullopt;
  if (hash) budget.Spend(uint64_t{WorkBudget::kPerRankedChunk} * tensor.chunks());
  report.set_has_replica_hash(hash.has_value());
  report.set_replica_hash(hash.value_or(0));
}

// --- Membership ---

void RoundEngine::ForgetWorker(TensorJob& job, uint32_t rank) {
  declarations_.Forget(job, rank);
  pulls_.Forget(job, rank);
  job.epochs.OnMemberChanged(rank);
  Steps::Drop(job, rank);
}

// takes_part: of the round in progress; else from the next one on.
void RoundEngine::MoveMember(TensorJob& job, uint32_t rank, bool takes_part) {
  job.late[rank] = !takes_part;
  job.guard.OnMember(rank, job.tensor.rounds().number() + (takes_part ? 0 : 1));
}

void RoundEngine::OnMemberJoined(uint32_t rank) {
  for (const auto& job : jobs_) {
    job->epochs.OnMemberChanged(rank);
    job->clocks.OnMemberJoined(rank);
    job->answered_at[rank] = now_;
    job->WeighWith(rank, *membership_, settings_.policy);
    MoveMember(*job, rank, job->Enter(rank, settings_.policy, &stats_.by_rank[rank].lost));
  }
}

void RoundEngine::OnMemberReplaced(uint32_t rank, Peer& old) {
  DropPeer(old);
  for (const auto& job : jobs_) {
    ForgetWorker(*job, rank);
    Rounds& rounds = job->tensor.rounds();
    if (job->HasOfAnother(rank, membership_->member(rank).session)) {
      ExcludeFromRound(*job, rank);
      job->clocks.OnMemberReplaced(rank);
      MoveMember(*job, rank, rounds.OnMemberJoined(rank, true));
      FinishRoundIfComplete(*job);
    } else {
      MoveMember(*job, rank, rounds.OnMemberReplaced(rank));
    }
  }
  FollowDeclared(declarations_.ForgetHeld(rank));
  pulls_.AnswerPostponed(now_, jobs_);
}

void RoundEngine::DropPeer(Peer& peer) {
  results_.OnPeerGone(peer);
  peer.transfers.clear();
  for (const auto& job : jobs_) {
    if (job->initial_window && job->initial_window->rank == peer.rank) job->initial_window.reset();
  }
}

void RoundEngine::OnMemberGone(uint32_t rank, Peer& peer) {
  stats_.by_rank[rank].close_reasons[static_cast<size_t>(wire::CloseReason::kExcluded)] +=
      peer.transfers.size();
  DropPeer(peer);
  for (const auto& job : jobs_) {
    const Parameters& parameters = job->tensor.parameters();
    ForgetWorker(*job, rank);
    if (job->AwaitsInitial() && parameters.initial_sender() == rank) {
      host_->RequestAbort(Status(StatusCode::kAborted, membership_->Describe(rank) +
                                                           " left before the initial values of tensor \"" +
                                                           parameters.spec().name + "\" had arrived"));
    }
    ExcludeFromRound(*job, rank);
    LeaveStragglersOut(*job);  // those that are left may be a quorum
    if (declarations_.StartsAsZeros(*job)) OnInitialized(*job);
    FinishRoundIfComplete(*job);
  }
  FollowDeclared(declarations_.ForgetHeld(rank));
  pulls_.AnswerPostponed(now_, jobs_);
}

// The round in progress goes on without the rank; what it had contributed stays in.
void RoundEngine::ExcludeFromRound(TensorJob& job, uint32_t rank) {
  Tensor& tensor = job.tensor;
  Rounds& rounds = tensor.rounds();
  const Rounds::Participation participation = rounds.participation(rank);
  const bool open = participation == Rounds::Participation::kOpen;
  if (open) ++rounds.tally().closed[static_cast<size_t>(wire::CloseReason::kExcluded)];
  const bool missed = rounds.begun() && (open || participation == Rounds::Participation::kAwaited);
  const transport::ChunkBitmap& contributed = tensor.pushed(rank);
  const uint32_t lost = tensor.chunks() - contributed.count();
  rounds.OnMemberGone(rank, contributed);
  job.clocks.OnMemberGone(rank);
  job.Weigh(*membership_);
  steps_.Answer(now_, job);
  if (!missed) return;
  if (!membership_->EnoughWorkers()) {
    host_->RequestAbort(Status(StatusCode::kAborted, membership_->Describe(rank) + " left in round " +
                                                         std::to_string(rounds.number()) + " of tensor \"" +
                                                         tensor.parameters().spec().name + "\""));
    return;
  }
  job.Miss(rank, lost, &stats_.by_rank[rank].lost);
  FinaliseSwept(job);
}

// --- Stragglers ---

// A worker that the round does not wait for has lost all that it has not contributed.
void RoundEngine::CountAsLost(TensorJob& job, uint32_t rank) {
  const auto missing = job.tensor.chunks() - job.tensor.aggregator().contributed(rank).count();
  job.tensor.OnWindowOver(rank, {.weight = job.weights.Expected(rank), .high_missing = missing});
  job.tensor.rounds().tally().lost_chunks += missing;
  stats_.by_rank[rank].lost += missing;
}

// Excludes workers that have not even opened a window when the round stops waiting. Windows that are open end
// by the close rule, which is evaluated again at the deadline.
void RoundEngine::LeaveStragglersOut(TensorJob& job) {
  Rounds& rounds = job.tensor.rounds();
  if (rounds.asynchronous()) steps_.LeaveIdleOut(now_, job);
  CheckAt(steps_.TakeCheckAt());
  if (rounds.asynchronous() || !rounds.begun() || !job.HasValues()) return;
  if (!job.quorum_at && rounds.Quorum() > 0 && rounds.windows_in() >= rounds.Quorum()) job.quorum_at = now_;
  for (uint32_t rank = 0; rank < membership_->world_size(); ++rank) {
    const Rounds::Participation participation = rounds.participation(rank);
    const bool open = participation == Rounds::Participation::kOpen;
    if (!open && participation != Rounds::Participation::kAwaited) continue;
    Peer* peer = host_->PeerOfRank(rank);
    if (peer == nullptr) continue;  // nothing bounds a round that waits for a worker to come back
    const Instant deadline = jobs_.HardDeadline(job, rank, peer->rtt(), membership_->joined());
    if (open) {
      for (auto& [key, transfer] : peer->transfers) {
        if (transfer.tensor != &job.tensor || transfer.round != rounds.number()) continue;
        if (deadline.IsInfinite() || transfer.closer.nacked()) continue;  // checked a round trip after that
        transfer.closer.CheckBy(deadline);
        CheckAt(transfer.closer.check_at());
      }
    } else if (now_ < deadline) {
      CheckAt(deadline);
    } else {
      CountAsLost(job, rank);
      host_->OnLeftOut({.rank = rank,
                        .tensor = job.tensor.parameters().spec().name,
                        .round = rounds.number(),
                        .waited = now_ - job.since()});
      job.left_out_of[rank] = job.turn;
      rounds.OnExcluded(rank, job.tensor.aggregator().contributed(rank));
      FinaliseSwept(job);
    }
  }
}

bool RoundEngine::HandleTimeout() {
  if (now_ < next_check_) return false;
  next_check_ = Instant::Infinite();
  for (const auto& job : jobs_) {
    LeaveStragglersOut(*job);
    FinishRoundIfComplete(*job);
  }
  for (uint32_t rank = 0; rank < membership_->world_size(); ++rank) {
    Peer* peer = host_->PeerOfRank(rank);
    if (peer == nullptr) continue;
    std::vector<transport::WindowKey> due;
    for (const auto& [key, transfer] : peer->transfers) {
      const Instant check_at = transfer.closer.check_at();
      if (check_at <= now_) due.push_back(key);
      CheckAt(check_at <= now_ ? Instant::Infinite() : check_at);
    }
    for (const transport::WindowKey key : due) Follow(intake_.CheckClose(now_, *peer, key));
  }
  return true;
}

}  // namespace longhaul::server
