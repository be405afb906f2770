#include "server/round/intake.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/reached.h"
#include "codec/chunk/chunk.h"
#include "codec/chunk/top_k.h"
#include "codec/policy/priority.h"

namespace longhaul::server {

using control::ControlMessage;
using transport::ChunkVerdict;

namespace {

control::PushTaken PushTaken(const Tensor& tensor, uint64_t round, transport::WindowKey key) {
  control::PushTaken taken;
  taken.set_key(tensor.key());
  taken.set_round(round);
  taken.set_window(key.id);
  taken.set_generation(key.generation);
  return taken;
}

}  // namespace

Intake::Intake(const ServerSettings& settings, uint16_t symbol_bytes, const Membership* membership,
               RoundEngineHost* host, TensorJobs* jobs, ResultSender* results, EngineStats* stats, bool logs)
    : spec_(settings),
      symbol_bytes_(symbol_bytes),
      logs_(logs),
      membership_(membership),
      host_(host),
      jobs_(jobs),
      results_(results),
      stats_(stats),
      scratch_(codec::kMaxChunkElements) {}

// --- Opening ---

Status Intake::Violation(Peer& peer, StatusCode code, const std::string& what) {
  const Status why(code, what);
  host_->Disconnect(peer, why);
  return why;
}

Status Intake::OnWindowOpened(Instant now, Peer& peer, transport::WindowKey key,
                              const wire::WindowOpenFrame& open) {
  const auto metadata = codec::DecodeWindowMetadata(open.metadata);
  if (!metadata.ok()) return Violation(peer, StatusCode::kProtocolViolation, metadata.status().message());
  TensorJob* job = jobs_->Find(metadata->key);
  if (job == nullptr) {
    return Violation(peer, StatusCode::kProtocolViolation,
                     "window for unknown tensor key " + std::to_string(metadata->key));
  }
  const Parameters& parameters = job->tensor.parameters();
  const bool initial = metadata->kind == codec::WindowKind::kInitial;
  const codec::ChunkGeometry& geometry = initial ? parameters.geometry() : parameters.gradient_geometry();
  const DType dtype = initial ? DType::kFloat32 : parameters.spec().wire_dtype;
  const uint64_t chunks = uint64_t{open.high_count} + open.low_count;
  if (metadata->count != geometry.count || metadata->chunk_elements != geometry.chunk_elements ||
      chunks != geometry.chunks() || metadata->dtype != dtype) {
    return Violation(peer, StatusCode::kSettingsMismatch,
                     "window for tensor \"" + parameters.spec().name + "\" has " +
                         std::to_string(metadata->count) + " elements in " + std::to_string(chunks) +
                         " chunks of " + std::to_string(metadata->chunk_elements) + " " +
                         std::string(DTypeName(metadata->dtype)) + ", the server has " +
                         std::to_string(geometry.count) + " in " + std::to_string(geometry.chunks()) +
                         " of " + std::to_string(geometry.chunk_elements) + " " +
                         std::string(DTypeName(dtype)));
  }
  if (open.symbol_bytes > symbol_bytes_) {  // incomplete FEC blocks keep this much per chunk
    return Violation(peer, StatusCode::kSettingsMismatch,
                     "window with symbols of " + std::to_string(open.symbol_bytes) + " bytes, the job has " +
                         std::to_string(symbol_bytes_));
  }
  if (!initial && metadata->kind != codec::WindowKind::kGradient) {
    return Violation(peer, StatusCode::kProtocolViolation,
                     "a worker sends gradients or initial values, nothing else");
  }
  const Status opened =
      initial ? OpenInitial(peer, key, *job) : OpenGradient(now, peer, key, *metadata, *job);
  if (!opened.ok()) return opened;
  peer.transfers.at(key).closer = transport::WindowCloser(open.high_count, open.low_count, now);
  return {};
}

Status Intake::OpenInitial(Peer& peer, transport::WindowKey key, TensorJob& job) {
  const Parameters& parameters = job.tensor.parameters();
  if (!job.AwaitsInitial() || parameters.initial_sender() != peer.rank) {
    return Status(StatusCode::kFailedPrecondition, "these initial values were not asked for");
  }
  const bool open = std::ranges::any_of(peer.transfers, [&job](const auto& known) {
    return known.second.kind == Transfer::Kind::kInitial && known.second.tensor == &job.tensor;
  });
  if (open) return Violation(peer, StatusCode::kProtocolViolation, "a second window of initial values");
  Transfer transfer;
  transfer.kind = Transfer::Kind::kInitial;
  transfer.tensor = &job.tensor;
  peer.transfers[key] = transfer;
  return {};
}

Status Intake::OpenGradient(Instant now, Peer& peer, transport::WindowKey key,
                            const codec::WindowMetadata& metadata, TensorJob& job) {
  Rounds& rounds = job.tensor.rounds();
  const Rounds::Participation part = rounds.participation(peer.rank);
  if (rounds.asynchronous()) return OpenStep(now, peer, key, metadata, job);
  const std::string which = "push of round " + std::to_string(metadata.round) + " of tensor \"" +
                            job.tensor.parameters().spec().name + "\" in round " +
                            std::to_string(rounds.number());
  if (metadata.round > rounds.number()) return Violation(peer, StatusCode::kProtocolViolation, which);
  const bool late = metadata.round < rounds.number();
  if (part == Rounds::Participation::kClosed || part == Rounds::Participation::kAbsent ||
      (late && part == Rounds::Participation::kOpen)) {
    LH_REACHED("the window of a round that went on is refused");
    ++stats_->old_windows_refused;
    return Status(StatusCode::kAborted, which + ": the round went on without it");
  }
  if (part == Rounds::Participation::kOpen)
    return Violation(peer, StatusCode::kProtocolViolation, "second " + which);
  if (spec_.policy == LossPolicy::kShift && metadata.weight != membership_->member(peer.rank).weight) {
    return Violation(peer, StatusCode::kProtocolViolation,
                     which + ": its weight is not the one it joined with");
  }
  // Its own round is over: it counts in the one in progress.
  if (late) {
    LH_REACHED("a late window counts in the round in progress");
    ++stats_->late_windows_taken;
  }
  const transport::ChunkBitmap& contributed = job.tensor.aggregator().contributed(peer.rank);
  if (part == Rounds::Participation::kLagging) {  // counted as lost when it was left out; may still come
    const uint32_t missing = job.tensor.chunks() - contributed.count();
    rounds.tally().lost_chunks -= missing;
    stats_->by_rank[peer.rank].lost -= missing;
    job.patience.OnTurn(peer.rank, now - job.left_out_of[peer.rank]);
  }
  Transfer& transfer = Begin(now, peer, key, metadata, job);
  transfer.on_time = !late;
  transfer.takes_epoch = job.epochs.Takes(peer.rank, metadata.shift_epoch);
  if (contributed.count() > 0) transfer.superseded = contributed;
  // The push of a round that ended between the worker's declaration and now: what of it was in has counted.
  const bool again = late && !job.pushed_here[peer.rank] && job.counted[peer.rank].round >= metadata.round;
  job.pushed_here[peer.rank] = true;
  if (again && job.counted[peer.rank].IsOf(membership_->member(peer.rank).session)) {
    LH_REACHED("a push comes again of which a part has counted");
    transfer.superseded = job.CountedChunks(peer.rank);
  }
  if (metadata.wants_result) {
    results_->SendRound(peer, job.tensor, {job.epochs.epoch(), job.epochs.change_round()});
  } else {
    ControlMessage taken;
    *taken.mutable_push_taken() = PushTaken(job.tensor, rounds.number(), key);
    if (logs_) {
      job.untold.emplace_back(peer.rank, std::move(taken));
    } else {
      host_->Send(peer, taken);
    }
  }
  return {};
}

Transfer& Intake::Begin(Instant now, Peer& peer, transport::WindowKey key,
                        const codec::WindowMetadata& metadata, TensorJob& job) {
  if (!membership_->EnoughWorkers()) {
    host_->RequestAbort(Status(StatusCode::kAborted, "only " + std::to_string(membership_->joined()) +
                                                         " workers are left, the job needs " +
                                                         std::to_string(membership_->min_workers())));
  }
  Transfer transfer;
  transfer.tensor = &job.tensor;
  transfer.round = job.tensor.rounds().number();
  transfer.weight = CountWeight(peer.rank, metadata.weight, job);
  transfer.low_energy = static_cast<double>(metadata.total_low_energy);
  transfer.opened = now;
  job.guard.BeginWindow(peer.rank);
  job.window_sessions[peer.rank] = membership_->member(peer.rank).session;
  job.tensor.rounds().OnWindowOpened(peer.rank, now);
  return peer.transfers[key] = transfer;
}

// Whatever round it says: a push counts in the steps that are made while it comes.
Status Intake::OpenStep(Instant now, Peer& peer, transport::WindowKey key,
                        const codec::WindowMetadata& metadata, TensorJob& job) {
  const std::string which = "push of tensor \"" + job.tensor.parameters().spec().name + "\"";
  if (job.tensor.rounds().participation(peer.rank) == Rounds::Participation::kAbsent)
    return Status(StatusCode::kAborted, which + " by a rank that is no member");
  if (job.IsPushing(peer.rank))
    return Violation(peer, StatusCode::kProtocolViolation,
                     "second " + which + " before the first has counted");
  if (metadata.wants_result) {
    return Violation(peer, StatusCode::kProtocolViolation,
                     which + " wants a round's result where staleness is not 0");
  }
  // The same push again, by another connection: what is in of it counts already.
  const uint64_t session = membership_->member(peer.rank).session;
  if (session == 0 || std::exchange(job.push_session[peer.rank], session) != session)
    job.tensor.BeginPush(peer.rank);
  if (!job.clocks.IsMember(peer.rank)) job.clocks.OnMemberJoined(peer.rank);  // it had been given up
  Begin(now, peer, key, metadata, job).on_time = false;
  return {};
}

// What the push counts as; the owner hears of the first one that counts as less than it says, the second, the
// fourth, ...
float Intake::CountWeight(uint32_t rank, float said, TensorJob& job) {
  EngineStats::Rank& of = stats_->by_rank[rank];
  const float counted = job.weights.Count(rank, job.tensor.aggregator().robust() ? 1 : said);
  of.said_weight = said;
  of.counted_weight = counted;
  if (counted >= said || job.tensor.aggregator().robust()) return counted;
  ++stats_->weights_bounded;
  if (std::has_single_bit(++of.weights_bounded)) host_->OnWeightBounded(rank, said, counted);
  return counted;
}

// --- Chunks ---

ChunkVerdict Intake::OnChunk(Peer& peer, transport::WindowKey key, bool high, ByteSpan bytes, bool repaired,
                             Outcome* outcome) {
  const auto found = peer.transfers.find(key);
  if (found == peer.transfers.end()) return ChunkVerdict::kRefused;  // refused when it opened
  Transfer& transfer = found->second;
  Parameters& parameters = transfer.tensor->parameters();
  const bool gradient = transfer.kind == Transfer::Kind::kGradient;
  const codec::ChunkGeometry& geometry = gradient ? parameters.gradient_geometry() : parameters.geometry();
  const DType dtype = gradient ? parameters.spec().wire_dtype : DType::kFloat32;
  const auto chunk = codec::ParseChunk(bytes);
  if (!chunk.ok()) {
    (void)Violation(peer, StatusCode::kProtocolViolation, chunk.status().message());
    return ChunkVerdict::kRefused;
  }
  if (chunk->index >= geometry.chunks() || chunk->count != geometry.Length(chunk->index) ||
      chunk->dtype != dtype) {
    (void)Violation(peer, StatusCode::kProtocolViolation,
                    "chunk " + std::to_string(chunk->index) + " of tensor \"" + parameters.spec().name +
                        "\" is out of place");
    return ChunkVerdict::kRefused;
  }
  const std::span<float> values = std::span(scratch_).first(chunk->count);
  codec::DecodeChunk(*chunk, values);
  if (gradient) {
    if (!high) transfer.low_energy_received += codec::DequantizeEnergy(chunk->log_energy);
    return AddGradient(peer, transfer, high, chunk->index, repaired, outcome);
  }
  if (!codec::AllFinite(values)) {
    (void)Violation(peer, StatusCode::kProtocolViolation,
                    "initial values of tensor \"" + parameters.spec().name + "\" are not finite");
    return ChunkVerdict::kRefused;
  }
  if (parameters.initial() == Parameters::Initial::kAwaited) parameters.SetInitialChunk(chunk->index, values);
  return ChunkVerdict::kTaken;
}

// Adds scratch_ to the round's sum.
ChunkVerdict Intake::AddGradient(Peer& peer, Transfer& transfer, bool high, uint32_t chunk, bool repaired,
                                 Outcome* outcome) {
  Tensor& tensor = *transfer.tensor;
  Rounds& rounds = tensor.rounds();
  const bool over = !tensor.asynchronous() && transfer.round != rounds.number();
  // The rank's contribution is in; that of the worker's predecessor may be in an earlier round that did not
  // wait for this window.
  if (transfer.superseded.Test(chunk) || (!over && tensor.pushed(peer.rank).Test(chunk))) {
    LH_REACHED("a contribution is there already");
    ++stats_->duplicate_contributions;
    if (!high) ++transfer.low_taken;
    return AcknowledgeWithoutCounting();
  }
  if (over || (!tensor.asynchronous() && rounds.IsFinal(chunk))) {
    LH_REACHED("a chunk comes when it is final");
    ++stats_->late_chunks;
    return ChunkVerdict::kRefused;
  }
  if (!transfer.takes_epoch) {
    LH_REACHED("a contribution of another shift epoch");
    ++stats_->epoch_refused;
    return ChunkVerdict::kRefused;
  }
  const uint32_t length = tensor.geometry().Length(chunk);
  const std::span<const float> values = std::span(scratch_).first(length);
  // The same chunk again, by another sequence number.
  if (transfer.rejected.Test(chunk)) return AcknowledgeWithoutCounting();
  if (!PassesGuard(peer, transfer, high, chunk, values)) {
    if (transfer.rejected.size() == 0) transfer.rejected = transport::ChunkBitmap(tensor.chunks());
    transfer.rejected.Set(chunk);
    return AcknowledgeWithoutCounting();
  }
  if (!tensor.Add(peer.rank, high, chunk, values, transfer.weight)) {
    ++stats_->late_chunks;  // of a predecessor's push, in this step and the next
    return ChunkVerdict::kRefused;
  }
  EngineStats::Rank& rank = stats_->by_rank[peer.rank];
  ++rank.chunks;
  if (!high) ++transfer.low_taken;
  if (repaired) {
    ++rank.repaired;
    ++rounds.tally().repaired_chunks;
  }
  outcome->job = &jobs_->Of(tensor);
  if (!tensor.asynchronous() && tensor.OnContribution(peer.rank, chunk)) outcome->ready = chunk;
  return ChunkVerdict::kTaken;
}

// For a chunk that must not count, now or later. A refused one would be owed by policies that repay, and come
// again with the next gradient.
ChunkVerdict Intake::AcknowledgeWithoutCounting() {
  if (!codec::Repays(spec_.policy)) return ChunkVerdict::kRefused;
  ++stats_->taken_and_dropped;
  return ChunkVerdict::kTaken;
}

bool Intake::PassesGuard(const Peer& peer, const Transfer& transfer, bool high, uint32_t chunk,
                         std::span<const float> values) {
  TensorJob& job = jobs_->Of(*transfer.tensor);
  const float scale = transfer.weight * job.tensor.ArrivalScale(peer.rank, high);
  const uint64_t round = job.tensor.asynchronous() ? job.tensor.rounds().number() : transfer.round;
  const ContributionGuard::Verdict verdict =
      job.guard.Check(peer.rank, chunk, values, scale, round, transfer.weight);
  if (verdict == ContributionGuard::Verdict::kOk) return true;
  ++stats_->by_rank[peer.rank].rejected;
  ++job.tensor.rounds().tally().rejected_chunks;
  if (job.guard.refused(peer.rank) > 1) return false;
  const bool too_large = verdict == ContributionGuard::Verdict::kTooLarge;
  host_->OnRejected({.rank = peer.rank,
                     .tensor = job.tensor.parameters().spec().name,
                     .round = transfer.round,
                     .chunk = chunk,
                     .why = GuardVerdictName(verdict),
                     .excess = too_large ? job.guard.last_excess() : 0});
  return false;
}

// --- Closing ---

Intake::Outcome Intake::OnWindowState(Instant now, Peer& peer, const transport::event::WindowState& state) {
  const auto found = peer.transfers.find(state.key);
  if (found == peer.transfers.end()) return {};
  Transfer& transfer = found->second;
  transport::IncomingWindow window = state.window;
  const bool gradient = transfer.kind == Transfer::Kind::kGradient;
  if (gradient && window.high_ratio >= spec_.close_ratio_high) {
    window.high_complete = true;  // as far as the close rule is concerned
  }
  transfer.closer.Observe(window, state.smoothed_rtt, now);
  if (window.high_complete && !transfer.high_done && gradient) {
    transfer.high_done = true;
    TensorJob& job = jobs_->Of(*transfer.tensor);
    const Rounds& rounds = job.tensor.rounds();
    // Before there are values no member has a turn.
    const bool turn = job.HasValues();
    if (turn && job.tensor.asynchronous()) job.patience.OnTurn(peer.rank, now - job.answered_at[peer.rank]);
    if (transfer.on_time && transfer.round == rounds.number()) {
      job.stragglers.OnHighDone(peer.rank, now - rounds.begun_at());
      if (turn) job.patience.OnTurn(peer.rank, now - job.turn);
    }
  }
  return CheckClose(now, peer, state.key);
}

Intake::Outcome Intake::CheckClose(Instant now, Peer& peer, transport::WindowKey key) {
  Outcome outcome;
  const auto found = peer.transfers.find(key);
  if (found == peer.transfers.end()) return outcome;
  Transfer& transfer = found->second;
  outcome.job = &jobs_->Of(*transfer.tensor);
  const transport::CloseDecision decision =
      transfer.closer.Evaluate(CloseInput(peer, *outcome.job, transfer), now);
  if (decision.close) {
    Close(now, peer, key, *decision.close, &outcome);
    return outcome;
  }
  if (decision.nack) peer.connection->RequestMissing(key);
  outcome.check_at = transfer.closer.check_at();
  return outcome;
}

transport::CloseRuleInput Intake::CloseInput(const Peer& peer, const TensorJob& job,
                                             const Transfer& transfer) const {
  // The same RTT as the round's own deadline is made of: two would leave a deadline that is past and not due.
  const Duration rtt = peer.rtt();
  transport::CloseRuleInput input{.energy_ratio = spec_.close_ratio,
                                  .energy_received = transfer.closer.window().low_ratio};
  if (transfer.kind == Transfer::Kind::kInitial) return input;
  if (transfer.low_energy > 0) {
    input.energy_received = std::min(1.0, transfer.low_energy_received / transfer.low_energy);
  }
  if (const auto soft = job.window_times[peer.rank].Soft()) {
    input.soft = transfer.opened + *soft + std::max(rtt / 2, Stragglers::kGrace);
  }
  if (transfer.round == job.tensor.rounds().number()) {
    input.hard = jobs_->HardDeadline(job, peer.rank, rtt, membership_->joined());
  }
  input.soft = std::min(input.soft, input.hard);
  return input;
}

void Intake::Close(Instant now, Peer& peer, transport::WindowKey key, wire::CloseReason reason,
                   Outcome* outcome) {
  const Transfer transfer = std::move(peer.transfers[key]);
  peer.transfers.erase(key);
  TensorJob& job = *outcome->job;
  outcome->closed = true;
  ++stats_->by_rank[peer.rank].close_reasons[static_cast<size_t>(reason)];
  if (transfer.kind == Transfer::Kind::kInitial && job.AwaitsInitial()) {
    outcome->initialized = {.rank = peer.rank, .key = key, .reason = reason};
    return;
  }
  peer.connection->CloseWindow(key, reason);
  if (transfer.kind == Transfer::Kind::kInitial) return;
  job.window_times[peer.rank].Add(now - transfer.opened);
  if (reason == wire::CloseReason::kHard && transfer.round == job.tensor.rounds().number()) {
    host_->OnLeftOut({.rank = peer.rank,
                      .tensor = job.tensor.parameters().spec().name,
                      .round = transfer.round,
                      .waited = now - job.since()});
  }
  CloseGradient(peer, key, transfer, reason);
}

void Intake::CloseGradient(Peer& peer, transport::WindowKey key, const Transfer& transfer,
                           wire::CloseReason reason) {
  Tensor& tensor = *transfer.tensor;
  Rounds& rounds = tensor.rounds();
  const bool past = !tensor.asynchronous() && transfer.round != rounds.number();
  if (past || rounds.participation(peer.rank) != Rounds::Participation::kOpen) return;
  const transport::ChunkBitmap& contributed = tensor.pushed(peer.rank);
  const uint32_t lost = tensor.chunks() - contributed.count();
  const uint32_t low_count = transfer.closer.window().low_count;
  const uint32_t low_lost = low_count - transfer.low_taken;
  RoundTally& tally = rounds.tally();
  ++tally.closed[static_cast<size_t>(reason)];
  tally.low_chunks += low_count;
  tally.low_lost += low_lost;
  tally.lost_chunks += lost;
  stats_->by_rank[peer.rank].lost += lost;
  const Tensor::WindowOutcome window{.weight = transfer.weight,
                                     .low_count = low_count,
                                     .low_received = transfer.low_taken,
                                     .high_missing = lost - std::min(lost, low_lost)};
  if (tensor.asynchronous()) {
    FinishedPush finished{.rank = peer.rank, .step = tensor.StepOfPush(peer.rank), .outcome = window};
    *finished.taken.mutable_push_taken() = PushTaken(tensor, finished.step, key);
    jobs_->Of(tensor).finished.push_back(std::move(finished));
    return;  // RoundEngine::CloseSteps goes on
  }
  tensor.OnWindowOver(peer.rank, window);
  rounds.OnWindowClosed(peer.rank, contributed);
}

}  // namespace longhaul::server
