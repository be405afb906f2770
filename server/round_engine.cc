#include "server/round_engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "codec/chunk.h"
#include "codec/priority.h"
#include "codec/state_hash.h"
#include "proto/utf8.h"
#include "transport/core/window/close_rule.h"

namespace longhaul::server {
namespace {

using control::ControlMessage;
using transport::ChunkVerdict;

ControlMessage DeclaredAnswer(uint32_t request, const Status& status) {
  ControlMessage message;
  control::Declared& declared = *message.mutable_declared();
  declared.set_request(request);
  declared.set_code(static_cast<uint32_t>(status.code()));
  declared.set_message(wire::Printable(status.message(), wire::kMaxTextBytes));
  return message;
}

ControlMessage PullRefusal(uint32_t request, const Status& status) {
  ControlMessage message;
  control::PullRefused& refused = *message.mutable_pull_refused();
  refused.set_request(request);
  refused.set_code(static_cast<uint32_t>(status.code()));
  refused.set_message(wire::Printable(status.message(), wire::kMaxTextBytes));
  return message;
}

// What a declaration may ask for on the wire.
Status CheckWireTypes(const control::Declare& declare) {
  const auto wire = static_cast<DType>(declare.wire_dtype());
  const auto result = static_cast<DType>(declare.result_dtype());
  if (DTypeSize(wire) == 0 || DTypeSize(result) == 0) {
    return {StatusCode::kInvalidArgument, "unknown element type on the wire"};
  }
  if (result == DType::kFloat32) return {};
  return {StatusCode::kInvalidArgument,
          "results travel as float32 in this version, not as " + std::string(DTypeName(result))};
}

ResultSender::Options ResultOptions(const ServerSettings& settings, uint16_t symbol_bytes) {
  ResultSender::Options options{
      .symbol_bytes = symbol_bytes, .fec_k = settings.fec_k, .fec_depth = settings.fec_depth};
  if (settings.downlink == "lossy") {
    options.lossy = {.high_share = settings.high_share,
                     .high_energy = settings.high_energy,
                     .hash_rounds = settings.hash_rounds};
  }
  return options;
}

double Share(uint32_t part, uint32_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

RoundEngine::RoundEngine(const ServerSettings& settings, uint16_t symbol_bytes, const Membership* membership,
                         RoundEngineHost* host)
    : settings_(settings),
      membership_(membership),
      host_(host),
      symbol_bytes_(symbol_bytes),
      store_(settings.max_model, codec::ChunkElementsFor(symbol_bytes)),
      memory_(settings, codec::ChunkElementsFor(symbol_bytes)),
      policy_{.policy = *codec::ParseLossPolicy(settings.policy),
              .shift_alpha = static_cast<float>(settings.shift_alpha),
              .bubble_threshold = settings.bubble_threshold},
      results_(ResultOptions(settings, symbol_bytes)),
      scratch_(4 * size_t{codec::ChunkElementsFor(symbol_bytes)}),  // the longest chunks: int8
      waiting_pulls_(settings.world_size, 0),
      held_declares_(settings.world_size, 0) {
  stats_.by_rank.resize(settings.world_size);
}

// --- Declarations and pulls ---

void RoundEngine::OnDeclare(Peer& peer, const control::Declare& declare) {
  const auto refuse = [&](const Status& why) { host_->Send(peer, DeclaredAnswer(declare.request(), why)); };
  const auto optimizer = ParseOptimizer(declare.optimizer());
  if (!optimizer.ok()) return refuse(optimizer.status());
  if (declare.dtype() != static_cast<uint32_t>(DType::kFloat32)) {
    return refuse(Status(StatusCode::kInvalidArgument, "tensors are float32 in this version, not dtype " +
                                                           std::to_string(declare.dtype())));
  }
  if (const Status types = CheckWireTypes(declare); !types.ok()) return refuse(types);
  if (const Status downlink = CheckDownlink(*optimizer); !downlink.ok()) return refuse(downlink);
  const TensorSpec spec{.name = declare.name(),
                        .dtype = declare.dtype(),
                        .wire_dtype = static_cast<DType>(declare.wire_dtype()),
                        .result_dtype = static_cast<DType>(declare.result_dtype()),
                        .topk_share = settings_.priority == "topk" ? settings_.topk_share : 0,
                        .priority = declare.priority(),
                        .count = declare.count(),
                        .optimizer = *optimizer};
  if (const Status memory = CheckMemory(spec); !memory.ok()) return refuse(memory);
  const auto parameters = store_.Declare(spec);
  if (!parameters.ok()) return refuse(parameters.status());
  Entry* known = Find((*parameters)->key());
  Entry& entry = known != nullptr ? *known : AddTensor(*parameters);

  const Rounds& rounds = entry.tensor.rounds();
  const bool pushed =
      rounds.part(peer.rank) == Rounds::Part::kOpen || rounds.part(peer.rank) == Rounds::Part::kClosed;
  ControlMessage answer = DeclaredAnswer(declare.request(), Status());
  answer.mutable_declared()->set_key((*parameters)->key());
  answer.mutable_declared()->set_next_round(rounds.number() + (pushed || entry.late[peer.rank] ? 1 : 0));
  answer.mutable_declared()->set_send_initial(OfferInitial(entry, peer, declare.has_initial()));
  SetEpoch(entry, *answer.mutable_declared());
  entry.declared[peer.rank] = true;
  if (!entry.late[peer.rank]) {
    host_->Send(peer, answer);
  } else if (held_declares_[peer.rank] >= kMaxHeldDeclares) {
    return refuse(
        Status(StatusCode::kResourceExhausted, "too many declarations wait for the end of a round"));
  } else {
    // It takes part from the next round on; told before that round begins, it would push too early.
    entry.held.push_back({peer.rank, std::move(answer)});
    ++held_declares_[peer.rank];
  }
  DecideZeros(entry);
}

// Takes what the tensor needs, if it is new.
Status RoundEngine::CheckMemory(const TensorSpec& spec) {
  const Status check = store_.Check(spec);
  if (check.code() == StatusCode::kAlreadyExists) return {};
  return check.ok() ? memory_.Take(spec) : check;
}

// A sum is no state: what of it is lost on the way down, the next one does not bring.
Status RoundEngine::CheckDownlink(const OptimizerSpec& optimizer) const {
  if (settings_.downlink != "lossy" || optimizer.kind != OptimizerSpec::Kind::kAggregate) return {};
  return {
      StatusCode::kInvalidArgument,
      "with a lossy downlink every tensor needs an optimizer at the server: what is lost of a mean gradient "
      "does not come again (use --downlink reliable, or declare an optimizer)"};
}

RoundEngine::Entry& RoundEngine::AddTensor(Parameters* parameters) {
  const auto order = settings_.deterministic ? Aggregator::Order::kRank : Aggregator::Order::kArrival;
  const uint32_t ranks = membership_->world_size();
  tensors_.push_back(
      std::make_unique<Entry>(parameters, ranks, policy_, order, settings_.norm_guard,
                              Stragglers(settings_.straggler_factor, settings_.round_bound, ranks)));
  Entry& entry = *tensors_.back();
  for (uint32_t rank = 0; rank < membership_->world_size(); ++rank) {
    if (membership_->IsJoined(rank)) entry.tensor.rounds().OnMemberJoined(rank);
  }
  BeginEpoch(entry);
  return entry;
}

// Its members are those of this moment.
void RoundEngine::BeginEpoch(Entry& entry) {
  std::vector<bool> members(membership_->world_size(), false);
  double weight = 0;
  for (uint32_t rank = 0; rank < members.size(); ++rank) {
    members[rank] = membership_->IsJoined(rank);
    if (members[rank]) weight += static_cast<double>(membership_->member(rank).weight);
  }
  entry.epochs.Begin(members);
  entry.tensor.BeginEpoch(weight);
}

void RoundEngine::SetEpoch(const Entry& entry, control::Declared& declared) const {
  declared.set_shift_epoch(entry.epochs.epoch());
  declared.set_shift_epoch_round(entry.epochs.change_round());
}

// Whether this worker is to send the initial values.
bool RoundEngine::OfferInitial(Entry& entry, Peer& peer, bool has_initial) {
  Parameters& parameters = entry.tensor.parameters();
  if (entry.tensor.aggregate_only() || parameters.initial() == Parameters::Initial::kReady) return false;
  const bool asked = parameters.initial() == Parameters::Initial::kAwaited;
  if (asked && parameters.initial_sender() != peer.rank) return false;
  if (asked && !has_initial) {
    host_->RequestAbort(
        Status(StatusCode::kAborted, membership_->Describe(peer.rank) +
                                         " came back without the initial values of tensor \"" +
                                         parameters.spec().name + "\" that it had offered"));
    return false;
  }
  // Asked again only as another incarnation: this one would not have sent a second declaration as the first.
  if (asked && entry.declared[peer.rank]) return false;
  if (has_initial) parameters.AwaitInitial(peer.rank);
  return has_initial;
}

// When every worker has declared the tensor and none has values, they are zeros.
void RoundEngine::DecideZeros(Entry& entry) {
  Parameters& parameters = entry.tensor.parameters();
  if (parameters.initial() != Parameters::Initial::kNotOffered) return;
  for (uint32_t rank = 0; rank < membership_->world_size(); ++rank) {
    if (membership_->IsJoined(rank) && !entry.declared[rank]) return;
  }
  OnValues(entry);
}

// Version 0 is there: what has waited for it goes on.
void RoundEngine::OnValues(Entry& entry) {
  entry.tensor.parameters().SetReady();
  entry.values_since = now_;
  std::vector<uint32_t> ready;
  entry.tensor.rounds().CollectReady(&ready);
  FinaliseReady(entry, ready);
  AnswerPulls(entry);
  LeaveStragglersOut(entry);
}

void RoundEngine::OnPullRequest(Peer& peer, const control::PullRequest& pull) {
  Entry* entry = Find(pull.key());
  if (entry == nullptr) {
    const Status why(StatusCode::kNotFound, "no tensor has the key " + std::to_string(pull.key()));
    return host_->Send(peer, PullRefusal(pull.request(), why));
  }
  const auto waiting = static_cast<size_t>(std::ranges::count(entry->pulls, peer.rank, &PendingPull::rank));
  if (waiting + results_.pulls(peer) >= kMaxPendingPulls || waiting_pulls_[peer.rank] >= kMaxWaitingPulls) {
    const Status why(StatusCode::kResourceExhausted,
                     "more than " + std::to_string(kMaxPendingPulls) + " pulls of one worker wait");
    return host_->Send(peer, PullRefusal(pull.request(), why));
  }
  entry->pulls.push_back({peer.rank, pull.request(), pull.min_round()});
  ++waiting_pulls_[peer.rank];
  AnswerPulls(*entry);
}

void RoundEngine::AnswerPulls(Entry& entry) {
  const Parameters& parameters = entry.tensor.parameters();
  if (parameters.initial() != Parameters::Initial::kReady) return;
  std::erase_if(entry.pulls, [&](PendingPull& pull) {
    if (pull.min_round > parameters.version()) return false;
    Peer* peer = host_->PeerOfRank(pull.rank);
    const bool enough = peer != nullptr && results_.pulls(*peer, entry.tensor) >= kMaxPullsOfTensor;
    if (enough || !MayPin(parameters)) {
      stats_.pulls_held += pull.held ? 0 : 1;
      pull.held = pulls_wait_ = true;
      return false;
    }
    --waiting_pulls_[pull.rank];
    if (peer != nullptr) results_.SendPull(*peer, entry.tensor, pull.request);
    return true;
  });
}

bool RoundEngine::MayPin(const Parameters& parameters) const {
  const uint64_t bound = kMaxPinnedModels * store_.elements() * sizeof(float);
  return parameters.HasSnapshot() ||
         results_.pinned_bytes() + parameters.geometry().count * sizeof(float) <= bound;
}

void RoundEngine::AnswerHeldPulls() {
  if (!std::exchange(pulls_wait_, false)) return;
  for (const auto& entry : tensors_) {
    if (!entry->pulls.empty()) AnswerPulls(*entry);
  }
}

// --- Incoming windows ---

Status RoundEngine::Violation(Peer& peer, StatusCode code, const std::string& what) {
  const Status why(code, what);
  host_->Disconnect(peer, why);
  return why;
}

Status RoundEngine::OnWindowOpened(Peer& peer, transport::WindowKey key, const wire::WindowOpenFrame& open) {
  const auto metadata = codec::DecodeWindowMetadata(open.metadata);
  if (!metadata.ok()) return Violation(peer, StatusCode::kProtocolViolation, metadata.status().message());
  Entry* entry = Find(metadata->key);
  if (entry == nullptr) {
    return Violation(peer, StatusCode::kProtocolViolation,
                     "window for unknown tensor key " + std::to_string(metadata->key));
  }
  const Parameters& parameters = entry->tensor.parameters();
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
  if (open.symbol_bytes > symbol_bytes_) {  // incomplete blocks would take so much per chunk
    return Violation(peer, StatusCode::kSettingsMismatch,
                     "window with symbols of " + std::to_string(open.symbol_bytes) + " bytes, the job has " +
                         std::to_string(symbol_bytes_));
  }
  if (metadata->kind == codec::WindowKind::kInitial) return OpenInitial(peer, key, *entry);
  if (metadata->kind == codec::WindowKind::kGradient) return OpenGradient(peer, key, *metadata, *entry);
  return Violation(peer, StatusCode::kProtocolViolation,
                   "a worker sends gradients or initial values, nothing else");
}

Status RoundEngine::OpenInitial(Peer& peer, transport::WindowKey key, Entry& entry) {
  const Parameters& parameters = entry.tensor.parameters();
  if (parameters.initial() != Parameters::Initial::kAwaited || parameters.initial_sender() != peer.rank) {
    return Status(StatusCode::kFailedPrecondition, "nobody asked for these initial values");
  }
  const bool open = std::ranges::any_of(peer.transfers, [&entry](const auto& known) {
    return known.second.kind == Transfer::Kind::kInitial && known.second.tensor == &entry.tensor;
  });
  if (open) return Violation(peer, StatusCode::kProtocolViolation, "a second window of initial values");
  Transfer transfer;
  transfer.kind = Transfer::Kind::kInitial;
  transfer.tensor = &entry.tensor;
  transfer.last_chunk = now_;
  peer.transfers[key] = transfer;
  return {};
}

Status RoundEngine::OpenGradient(Peer& peer, transport::WindowKey key, const codec::WindowMetadata& metadata,
                                 Entry& entry) {
  Rounds& rounds = entry.tensor.rounds();
  const Rounds::Part part = rounds.part(peer.rank);
  const std::string which = "push of round " + std::to_string(metadata.round) + " of tensor \"" +
                            entry.tensor.parameters().spec().name + "\" in round " +
                            std::to_string(rounds.number());
  if (metadata.round > rounds.number()) return Violation(peer, StatusCode::kProtocolViolation, which);
  const bool late = metadata.round < rounds.number();
  if (part == Rounds::Part::kClosed || part == Rounds::Part::kAbsent ||
      (late && part == Rounds::Part::kOpen)) {
    ++stats_.old_windows_refused;
    return Status(StatusCode::kAborted, which + ": the round went on without it");
  }
  if (part == Rounds::Part::kOpen) return Violation(peer, StatusCode::kProtocolViolation, "second " + which);
  if (policy_.policy == codec::LossPolicy::kShift &&
      metadata.weight != membership_->member(peer.rank).weight) {
    return Violation(peer, StatusCode::kProtocolViolation,
                     which + ": its weight is not the one it joined with");
  }
  // The round that it was made for has gone on without it: it counts in the one in progress.
  if (late) ++stats_.late_windows_taken;
  const transport::ChunkBitmap& contributed = entry.tensor.aggregator().contributed(peer.rank);
  if (part == Rounds::Part::kLagging) {  // what CountAsLost had given up may still come
    const uint32_t missing = entry.tensor.chunks() - contributed.count();
    rounds.tally().lost_chunks -= missing;
    stats_.by_rank[peer.rank].lost -= missing;
  }
  if (!membership_->EnoughWorkers()) {
    host_->RequestAbort(Status(StatusCode::kAborted, "only " + std::to_string(membership_->joined()) +
                                                         " workers are left, the job needs " +
                                                         std::to_string(membership_->min_workers())));
  }
  Transfer transfer;
  transfer.tensor = &entry.tensor;
  transfer.round = rounds.number();
  transfer.weight = metadata.weight;
  transfer.on_time = !late;
  transfer.takes_epoch = entry.epochs.Takes(peer.rank, metadata.shift_epoch);
  transfer.low_energy = static_cast<double>(metadata.total_low_energy);
  transfer.opened = transfer.last_chunk = now_;
  if (contributed.count() > 0) transfer.superseded = contributed;
  peer.transfers[key] = transfer;
  entry.guard.BeginWindow(peer.rank);
  rounds.OnWindowOpened(peer.rank, contributed, now_);
  if (metadata.wants_result) {
    results_.SendRound(peer, entry.tensor, {entry.epochs.epoch(), entry.epochs.change_round()});
  } else {
    ControlMessage taken;
    taken.mutable_push_taken()->set_key(entry.tensor.key());
    taken.mutable_push_taken()->set_round(rounds.number());
    taken.mutable_push_taken()->set_window(key.id);
    taken.mutable_push_taken()->set_generation(key.generation);
    host_->Send(peer, taken);
  }
  return {};
}

ChunkVerdict RoundEngine::OnChunk(Peer& peer, transport::WindowKey key, bool high, ByteSpan bytes,
                                  bool repaired) {
  const auto found = peer.transfers.find(key);
  if (found == peer.transfers.end()) return ChunkVerdict::kRefused;  // the window was, a moment ago
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
    return AddGradient(peer, transfer, high, chunk->index, repaired);
  }
  if (parameters.initial() == Parameters::Initial::kAwaited) parameters.SetInitialChunk(chunk->index, values);
  return ChunkVerdict::kTaken;
}

// Adds scratch_ to the round's sum.
ChunkVerdict RoundEngine::AddGradient(Peer& peer, Transfer& transfer, bool high, uint32_t chunk,
                                      bool repaired) {
  Tensor& tensor = *transfer.tensor;
  Rounds& rounds = tensor.rounds();
  const bool over = transfer.round != rounds.number();
  // The rank's contribution is in. By the worker's predecessor it may be in a round that did not wait for
  // this window.
  if (transfer.superseded.Test(chunk) || (!over && tensor.aggregator().Contributed(peer.rank, chunk))) {
    ++stats_.duplicate_contributions;
    if (!high) ++transfer.low_taken;
    return TakeAndDrop();
  }
  if (over || rounds.IsFinal(chunk)) {
    ++stats_.late_chunks;
    return ChunkVerdict::kRefused;
  }
  if (!transfer.takes_epoch) {
    ++stats_.epoch_refused;
    return ChunkVerdict::kRefused;
  }
  const uint32_t length = tensor.geometry().Length(chunk);
  const std::span<const float> values = std::span(scratch_).first(length);
  if (!PassesGuard(peer, transfer, high, chunk, values)) return TakeAndDrop();
  LH_CHECK(tensor.Add(peer.rank, high, chunk, values, transfer.weight));
  EngineStats::Rank& rank = stats_.by_rank[peer.rank];
  ++rank.chunks;
  if (!high) ++transfer.low_taken;
  if (repaired) {
    ++rank.repaired;
    ++rounds.tally().repaired_chunks;
  }
  std::vector<uint32_t> ready;
  rounds.OnContribution(peer.rank, chunk, &ready);
  FinaliseReady(EntryOf(tensor), ready);
  return ChunkVerdict::kTaken;
}

ChunkVerdict RoundEngine::TakeAndDrop() {
  if (!codec::Repays(policy_.policy)) return ChunkVerdict::kRefused;
  ++stats_.taken_and_dropped;
  return ChunkVerdict::kTaken;
}

bool RoundEngine::PassesGuard(const Peer& peer, const Transfer& transfer, bool high, uint32_t chunk,
                              std::span<const float> values) {
  Entry& entry = EntryOf(*transfer.tensor);
  const float scale = transfer.weight * entry.tensor.ArrivalScale(peer.rank, high);
  const ContributionGuard::Verdict verdict =
      entry.guard.Check(peer.rank, chunk, values, scale, transfer.round);
  if (verdict == ContributionGuard::Verdict::kOk) return true;
  ++stats_.by_rank[peer.rank].rejected;
  ++entry.tensor.rounds().tally().rejected_chunks;
  if (entry.guard.refused(peer.rank) > 1) return false;
  const bool too_large = verdict == ContributionGuard::Verdict::kTooLarge;
  host_->OnRejected({.rank = peer.rank,
                     .tensor = entry.tensor.parameters().spec().name,
                     .round = transfer.round,
                     .chunk = chunk,
                     .why = GuardVerdictName(verdict),
                     .excess = too_large ? entry.guard.last_excess() : 0});
  return false;
}

void RoundEngine::OnWindowProgress(Peer& peer, transport::WindowKey key) {
  const auto found = peer.transfers.find(key);
  const auto window = peer.connection->incoming(key);
  if (found == peer.transfers.end() || !window) return;
  Transfer& transfer = found->second;
  const transport::WindowRxStats& rx = window->stats;
  const uint32_t received = rx.high_received + rx.high_repaired + rx.low_received + rx.repair_received;
  if (received != transfer.received) transfer.last_chunk = now_;
  transfer.received = received;
  if (window->sender_finished && transfer.finished.IsInfinite()) transfer.finished = now_;
  Entry& entry = EntryOf(*transfer.tensor);
  if (window->high_complete && !transfer.high_done && transfer.kind == Transfer::Kind::kGradient) {
    transfer.high_done = true;
    const Rounds& rounds = entry.tensor.rounds();
    if (transfer.on_time && transfer.round == rounds.number()) {
      entry.stragglers.OnHighDone(peer.rank, now_ - rounds.begun_at());
    }
  }
  const transport::CloseDecision decision =
      transport::EvaluateClose(*window, CloseInput(peer, entry, transfer, *window), now_);
  if (decision.close) {
    Close(peer, key, *decision.close, *window);
    LeaveStragglersOut(entry);  // enough may be done now
  } else {
    if (decision.nack) {
      transfer.nacked = now_;
      peer.connection->RequestMissing(key);
    }
    transfer.check_at = decision.check_again;
    CheckAt(transfer.check_at);
  }
  FinishRoundIfComplete(entry);
}

transport::CloseRuleInput RoundEngine::CloseInput(const Peer& peer, const Entry& entry,
                                                  const Transfer& transfer,
                                                  const transport::IncomingWindow& window) const {
  const Duration rtt = peer.connection->stats().smoothed_rtt;
  transport::CloseRuleInput input{.energy_ratio = settings_.close_ratio,
                                  .energy_received = window.low_ratio,
                                  .smoothed_rtt = rtt,
                                  .last_chunk = transfer.last_chunk,
                                  .finished = transfer.finished,
                                  .nacked = transfer.nacked};
  if (transfer.kind == Transfer::Kind::kInitial) return input;
  if (transfer.low_energy > 0) {
    input.energy_received = std::min(1.0, transfer.low_energy_received / transfer.low_energy);
  }
  if (const auto soft = entry.window_times[peer.rank].Soft()) {
    input.soft = transfer.opened + *soft + std::max(rtt / 2, Stragglers::kGrace);
  }
  if (transfer.round == entry.tensor.rounds().number()) input.hard = HardDeadline(entry, peer.rank);
  input.soft = std::min(input.soft, input.hard);
  return input;
}

void RoundEngine::Close(Peer& peer, transport::WindowKey key, wire::CloseReason reason,
                        const transport::IncomingWindow& window) {
  const Transfer transfer = peer.transfers[key];
  peer.transfers.erase(key);
  if (transfer.kind == Transfer::Kind::kGradient) {
    EntryOf(*transfer.tensor).window_times[peer.rank].Add(now_ - transfer.opened);
  }
  peer.connection->CloseWindow(key, reason);
  ++stats_.by_rank[peer.rank].close_reasons[static_cast<size_t>(reason)];
  if (transfer.kind == Transfer::Kind::kGradient) return CloseGradient(peer, transfer, reason, window);
  Entry& entry = EntryOf(*transfer.tensor);
  if (entry.tensor.parameters().initial() == Parameters::Initial::kAwaited) OnValues(entry);
}

void RoundEngine::CloseGradient(Peer& peer, const Transfer& transfer, wire::CloseReason reason,
                                const transport::IncomingWindow& window) {
  Tensor& tensor = *transfer.tensor;
  Rounds& rounds = tensor.rounds();
  if (transfer.round != rounds.number() || rounds.part(peer.rank) != Rounds::Part::kOpen) return;
  const transport::ChunkBitmap& contributed = tensor.aggregator().contributed(peer.rank);
  const uint32_t lost = tensor.chunks() - contributed.count();
  const uint32_t low_lost = window.low_count - transfer.low_taken;
  RoundTally& tally = rounds.tally();
  ++tally.closed[static_cast<size_t>(reason)];
  tally.low_chunks += window.low_count;
  tally.low_lost += low_lost;
  tally.lost_chunks += lost;
  stats_.by_rank[peer.rank].lost += lost;
  tensor.OnWindowOver(peer.rank, {.weight = transfer.weight,
                                  .low_count = window.low_count,
                                  .low_received = transfer.low_taken,
                                  .high_missing = lost - std::min(lost, low_lost)});
  std::vector<uint32_t> ready;
  rounds.OnWindowClosed(peer.rank, contributed, &ready);
  FinaliseReady(EntryOf(tensor), ready);
}

// --- Rounds ---

void RoundEngine::FinaliseReady(Entry& entry, const std::vector<uint32_t>& ready) {
  Tensor& tensor = entry.tensor;
  Parameters& parameters = tensor.parameters();
  if (ready.empty()) return;
  if (parameters.initial() == Parameters::Initial::kAwaited) return;  // collected when the values are in
  // Every member of the round has pushed or is gone: nobody can offer values any more.
  parameters.SetReady();
  if (tensor.rounds().final_order().empty()) results_.BeginRound(tensor);
  for (const uint32_t chunk : ready) {
    stats_.filled += tensor.Finalise(chunk);
    if (tensor.Overflowed(chunk)) {
      host_->RequestAbort(
          Status(StatusCode::kAborted,
                 "tensor \"" + parameters.spec().name + "\" became infinite in round " +
                     std::to_string(tensor.rounds().number()) +
                     ": its optimizer's step overflowed (try a smaller learning rate, or --norm-guard)"));
    }
    results_.OnChunkFinal(tensor, chunk);
  }
}

void RoundEngine::FinishRoundIfComplete(Entry& entry) {
  Tensor& tensor = entry.tensor;
  Rounds& rounds = tensor.rounds();
  if (!rounds.begun() || !rounds.AllFinal()) return;
  rounds.tally().excluded = rounds.Count(Rounds::Part::kLagging);
  for (uint32_t rank = 0; rank < membership_->world_size(); ++rank) {
    stats_.by_rank[rank].excluded += rounds.part(rank) == Rounds::Part::kLagging ? 1 : 0;
  }
  TensorRound round;
  round.tensor = &tensor;
  round.round = rounds.number();
  round.begun = rounds.begun_at();
  round.last_rank = rounds.last_rank();
  round.tally = rounds.tally();
  for (uint32_t rank = 0; rank < membership_->world_size(); ++rank) {
    round.contributors += tensor.aggregator().contributed(rank).count() > 0 ? 1 : 0;
  }
  ++stats_.tensor_rounds;
  stats_.tolerated += round.tally.tolerated_chunks;
  tensor.NextRound();
  std::fill(entry.late.begin(), entry.late.end(), false);
  if (entry.epochs.OnRoundBegins(rounds.number())) BeginEpoch(entry);
  for (uint32_t rank = 0; rank < membership_->world_size(); ++rank) {
    if (rounds.part(rank) == Rounds::Part::kLagging) CountAsLost(entry, rank);
  }

  ControlMessage message;
  control::RoundReport& report = *message.mutable_round_report();
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
  report.set_shift_epoch(entry.epochs.epoch());
  report.set_shift_epoch_round(entry.epochs.change_round());
  SetStateHash(tensor, report);
  for (uint32_t rank = 0; rank < membership_->world_size(); ++rank) {
    SetReplicaHash(tensor, rank, report);
    if (Peer* peer = host_->PeerOfRank(rank); peer != nullptr) host_->Send(*peer, message);
  }
  AnswerHeld(entry);
  AnswerPulls(entry);
  host_->OnTensorRound(round);
}

// The round is over: its values are the current ones.
void RoundEngine::SetStateHash(const Tensor& tensor, control::RoundReport& report) {
  if (settings_.downlink != "lossy" || !codec::IsHashRound(report.round(), settings_.hash_rounds)) return;
  report.set_has_state_hash(true);
  report.set_state_hash(codec::StateHash(tensor.parameters().current()));
  ++stats_.state_hashes;
}

// What the worker should have had after the round before, an ordinary one.
void RoundEngine::SetReplicaHash(const Tensor& tensor, uint32_t rank, control::RoundReport& report) const {
  const auto hash = report.has_state_hash() && report.round() > 0
                        ? results_.ReplicaHash(tensor, rank, report.round() - 1)
                        : std::nullopt;
  report.set_has_replica_hash(hash.has_value());
  report.set_replica_hash(hash.value_or(0));
}

void RoundEngine::AnswerHeld(Entry& entry) {
  for (HeldDeclare& held : std::exchange(entry.held, {})) {
    --held_declares_[held.rank];
    SetEpoch(entry, *held.answer.mutable_declared());  // as it is now
    if (Peer* peer = host_->PeerOfRank(held.rank); peer != nullptr) host_->Send(*peer, held.answer);
  }
}

void RoundEngine::OnOutgoingClosed(Peer& peer, transport::WindowKey key,
                                   const transport::WindowReceipt& receipt) {
  results_.OnWindowClosed(peer, key, receipt);
  AnswerHeldPulls();
}

// --- Membership ---

void RoundEngine::ForgetPeer(Entry& entry, uint32_t rank) {
  entry.declared[rank] = false;
  held_declares_[rank] -= static_cast<uint32_t>(
      std::erase_if(entry.held, [rank](const HeldDeclare& held) { return held.rank == rank; }));
  waiting_pulls_[rank] -= static_cast<uint32_t>(
      std::erase_if(entry.pulls, [rank](const PendingPull& pull) { return pull.rank == rank; }));
}

void RoundEngine::OnMemberJoined(uint32_t rank) {
  for (const auto& entry : tensors_) {
    entry->epochs.OnMemberChanged(rank);
    entry->late[rank] = !entry->tensor.rounds().OnMemberJoined(rank);
    entry->guard.OnMember(rank, entry->tensor.rounds().number() + (entry->late[rank] ? 1 : 0));
  }
}

void RoundEngine::OnMemberReplaced(uint32_t rank, Peer& old) {
  results_.OnPeerGone(old);
  old.transfers.clear();
  for (const auto& entry : tensors_) {
    ForgetPeer(*entry, rank);
    entry->epochs.OnMemberChanged(rank);
    entry->late[rank] = !entry->tensor.rounds().OnMemberReplaced(rank);
    entry->guard.OnMember(rank, entry->tensor.rounds().number() + (entry->late[rank] ? 1 : 0));
  }
  AnswerHeldPulls();
}

void RoundEngine::DropPeer(Peer& peer) {
  results_.OnPeerGone(peer);
  peer.transfers.clear();
}

void RoundEngine::OnMemberGone(uint32_t rank, Peer& peer) {
  stats_.by_rank[rank].close_reasons[static_cast<size_t>(wire::CloseReason::kExcluded)] +=
      peer.transfers.size();
  DropPeer(peer);
  for (const auto& entry : tensors_) {
    Tensor& tensor = entry->tensor;
    const Parameters& parameters = tensor.parameters();
    ForgetPeer(*entry, rank);
    entry->epochs.OnMemberChanged(rank);
    if (parameters.initial() == Parameters::Initial::kAwaited && parameters.initial_sender() == rank) {
      host_->RequestAbort(Status(StatusCode::kAborted, membership_->Describe(rank) +
                                                           " left before the initial values of tensor \"" +
                                                           parameters.spec().name + "\" had arrived"));
    }
    ExcludeFromRound(*entry, rank);
    DecideZeros(*entry);
    FinishRoundIfComplete(*entry);
  }
  AnswerHeldPulls();
}

// The round in progress goes on without the rank; what it had contributed stays in.
void RoundEngine::ExcludeFromRound(Entry& entry, uint32_t rank) {
  Tensor& tensor = entry.tensor;
  Rounds& rounds = tensor.rounds();
  if (rounds.part(rank) == Rounds::Part::kOpen) {
    ++rounds.tally().closed[static_cast<size_t>(wire::CloseReason::kExcluded)];
  }
  const bool missed = rounds.begun() && (rounds.part(rank) == Rounds::Part::kAwaited ||
                                         rounds.part(rank) == Rounds::Part::kOpen);
  const transport::ChunkBitmap& contributed = tensor.aggregator().contributed(rank);
  std::vector<uint32_t> ready;
  rounds.OnMemberGone(rank, contributed, &ready);
  if (!missed) return;
  if (!membership_->EnoughWorkers()) {
    host_->RequestAbort(Status(StatusCode::kAborted, membership_->Describe(rank) + " left in round " +
                                                         std::to_string(rounds.number()) + " of tensor \"" +
                                                         tensor.parameters().spec().name + "\""));
    return;
  }
  const uint32_t lost = tensor.chunks() - contributed.count();
  rounds.tally().lost_chunks += lost;
  stats_.by_rank[rank].lost += lost;
  FinaliseReady(entry, ready);
}

// --- Stragglers ---

bool RoundEngine::HasValues(const Entry& entry) {
  return entry.tensor.aggregate_only() || entry.tensor.parameters().initial() == Parameters::Initial::kReady;
}

// The first round waits for version 0 as long as it takes: whoever has not declared yet may have it.
Instant RoundEngine::HardDeadline(const Entry& entry, uint32_t rank) const {
  const Rounds& rounds = entry.tensor.rounds();
  const Peer* peer = host_->PeerOfRank(rank);
  if (!rounds.begun() || peer == nullptr || !HasValues(entry)) return Instant::Infinite();
  return entry.stragglers.Deadline(std::max(rounds.begun_at(), entry.values_since),
                                   peer->connection->stats().smoothed_rtt,
                                   rounds.Count(Rounds::Part::kClosed), membership_->joined());
}

void RoundEngine::CountAsLost(Entry& entry, uint32_t rank) {
  const auto missing = entry.tensor.chunks() - entry.tensor.aggregator().contributed(rank).count();
  entry.tensor.OnWindowOver(rank, {.weight = membership_->member(rank).weight, .high_missing = missing});
  entry.tensor.rounds().tally().lost_chunks += missing;
  stats_.by_rank[rank].lost += missing;
}

// Whoever has not even opened his window when the round stops waiting. Windows that are open end by the close
// rule, which is asked again at the deadline.
void RoundEngine::LeaveStragglersOut(Entry& entry) {
  Rounds& rounds = entry.tensor.rounds();
  if (!rounds.begun() || !HasValues(entry)) return;
  for (uint32_t rank = 0; rank < membership_->world_size(); ++rank) {
    const Rounds::Part part = rounds.part(rank);
    if (part != Rounds::Part::kAwaited && part != Rounds::Part::kOpen) continue;
    const Instant deadline = HardDeadline(entry, rank);
    Peer* peer = host_->PeerOfRank(rank);
    if (part == Rounds::Part::kOpen) {
      if (peer == nullptr || deadline.IsInfinite()) continue;
      for (auto& [key, transfer] : peer->transfers) {
        if (transfer.tensor != &entry.tensor || transfer.round != rounds.number() ||
            !transfer.nacked.IsInfinite()) {
          continue;
        }
        transfer.check_at = std::min(transfer.check_at, deadline);
        CheckAt(transfer.check_at);
      }
    } else if (now_ < deadline) {
      CheckAt(deadline);
    } else {
      CountAsLost(entry, rank);
      std::vector<uint32_t> ready;
      rounds.OnExcluded(rank, entry.tensor.aggregator().contributed(rank), &ready);
      FinaliseReady(entry, ready);
    }
  }
}

void RoundEngine::HandleTimeout() {
  if (now_ < next_check_) return;
  next_check_ = Instant::Infinite();
  for (const auto& entry : tensors_) {
    LeaveStragglersOut(*entry);
    FinishRoundIfComplete(*entry);
  }
  for (uint32_t rank = 0; rank < membership_->world_size(); ++rank) {
    Peer* peer = host_->PeerOfRank(rank);
    if (peer == nullptr) continue;
    std::vector<transport::WindowKey> due;
    for (const auto& [key, transfer] : peer->transfers) {
      if (transfer.check_at <= now_) due.push_back(key);
      CheckAt(transfer.check_at <= now_ ? Instant::Infinite() : transfer.check_at);
    }
    for (const transport::WindowKey key : due) OnWindowProgress(*peer, key);
  }
}

}  // namespace longhaul::server
