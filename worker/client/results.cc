#include "worker/client/results.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

namespace longhaul::worker {

// --- Pulls ---

void Results::StartWaiting() {
  for (const OperationId operation : pushes_.TakeUnwanted()) DropPullOfPush(operation);
  for (const TensorHandle handle : pushes_.TakeWanted()) {
    const TensorState& tensor = tensors_.at(handle);
    AddPull({.operation = tensor.push.operation,
             .handle = handle,
             .out = tensor.push.out,
             .of_push = true,
             .own_pushes = tensor.connection_pushes});
  }
  for (const TensorHandle handle : pushes_.TakeFetched()) {
    const TensorState& tensor = tensors_.at(handle);
    AddPull({.operation = tensor.push.operation,
             .handle = handle,
             .out = tensor.push.out,
             .min_round = tensor.completed_rounds,
             .of_push = true});
  }
  while (!waiting_pulls_.empty() &&
         (active_pulls_.size() < link_.options.max_active_pulls || waiting_pulls_.front().of_push) &&
         tensors_.at(waiting_pulls_.front().handle).attached) {
    const uint32_t request = link_.NextRequest();
    Pull& pull = active_pulls_[request] = waiting_pulls_.front();
    waiting_pulls_.pop_front();
    const TensorShape& shape = tensors_.at(pull.handle).shape;
    pull.assembler.emplace(shape, pull.out);
    control::ControlMessage message;
    message.mutable_pull_request()->set_request(request);
    message.mutable_pull_request()->set_key(shape.key);
    message.mutable_pull_request()->set_min_round(pull.min_round);
    message.mutable_pull_request()->set_own_pushes(pull.own_pushes);
    if (pull.max_staleness) message.mutable_pull_request()->set_max_staleness(*pull.max_staleness);
    link_.Send(message);
  }
}

uint32_t Results::RequestOf(OperationId operation) const {
  const auto found = std::ranges::find_if(
      active_pulls_, [operation](const auto& pull) { return pull.second.operation == operation; });
  return found == active_pulls_.end() ? 0 : found->first;
}

void Results::DropPull(OperationId operation, const Status& outcome) {
  const auto same = [operation](const Pull& pull) { return pull.operation == operation; };
  if (std::erase_if(waiting_pulls_, same) > 0) link_.Finish(operation, outcome);
}

void Results::DropPullOfPush(OperationId operation) {
  std::erase_if(waiting_pulls_, [operation](const Pull& pull) { return pull.operation == operation; });
  if (const uint32_t request = RequestOf(operation); request != 0) {
    if (const auto window = active_pulls_.at(request).window) incoming_.erase(*window);
    active_pulls_.erase(request);
  }
}

void Results::OnPullRefused(const control::PullRefused& refused) {
  const auto pull = active_pulls_.find(refused.request());
  if (pull == active_pulls_.end()) return;
  const auto [operation, handle, of_push] =
      std::tuple(pull->second.operation, pull->second.handle, pull->second.of_push);
  if (pull->second.window) incoming_.erase(*pull->second.window);
  active_pulls_.erase(pull);
  const auto code = static_cast<StatusCode>(refused.code());
  const Status why(code == StatusCode::kOk ? StatusCode::kAborted : code, refused.message());
  if (of_push) return pushes_.OnResultFetched(handle, why);
  link_.Finish(operation, why);
}

void Results::OnConnectionLost() {
  incoming_.clear();
  for (auto it = active_pulls_.rbegin(); it != active_pulls_.rend(); ++it) {
    it->second.assembler.reset();
    it->second.window.reset();
    waiting_pulls_.push_front(std::move(it->second));
  }
  active_pulls_.clear();
  // A push that is made again asks again; one that has counted is in the values of the rounds after it.
  std::erase_if(waiting_pulls_, [this](const Pull& pull) {
    const TensorPush& push = tensors_.at(pull.handle).push;
    return pull.of_push && push.is_step && push.stage == PushStage::kWaiting;
  });
  for (Pull& pull : waiting_pulls_) {
    if (std::exchange(pull.own_pushes, 0) > 0) pull.min_round = tensors_.at(pull.handle).push.round + 1;
  }
}

void Results::End() {
  waiting_pulls_.clear();
  active_pulls_.clear();
  incoming_.clear();
}

// --- Windows ---

std::optional<Results::Use> Results::FindUse(const codec::WindowMetadata& metadata) {
  if (metadata.request != 0) {
    const auto found = active_pulls_.find(metadata.request);
    if (found == active_pulls_.end()) return std::nullopt;
    Pull& pull = found->second;
    return Use{pull.handle, metadata.request, pull.operation, &*pull.assembler};
  }
  const std::optional<TensorHandle> handle = tensors_.Find(metadata.key);
  if (!handle || !pushes_.Awaits(*handle, metadata.round)) return std::nullopt;
  TensorPush& push = tensors_.at(*handle).push;
  return Use{*handle, 0, push.operation, &*push.result};
}

Status Results::CheckWindow(const TensorState& tensor, const codec::WindowMetadata& metadata,
                            const wire::WindowOpenFrame& open) const {
  if (Status s = PullAssembler::CheckWindow(tensor.shape, metadata, open); !s.ok()) return s;
  if (open.low_count == 0) return Status::Ok();
  if (tensor.replica && metadata.request == 0) return tensor.replica->CheckPartial(metadata.round);
  return {StatusCode::kProtocolViolation, "values that nothing replaces may lose chunks on their way"};
}

bool Results::OnWindowOpened(const transport::event::WindowOpened& opened) {
  const auto& [key, open] = opened;
  const Result<codec::WindowMetadata> metadata = codec::DecodeWindowMetadata(open.metadata);
  if (!metadata.ok()) {
    link_.Fail(link_.Blame(StatusCode::kProtocolViolation, ": " + metadata.status().message()));
    return false;
  }
  std::optional<Use> use = FindUse(*metadata);
  if (!use) return false;
  const TensorState& tensor = tensors_.at(use->handle);
  if (Status s = CheckWindow(tensor, *metadata, open); !s.ok()) {
    link_.FailTensor(tensor.name(), s);
    return false;
  }
  if (use->request == 0) {
    pushes_.OnResultOpened(use->handle, key, *metadata);
  } else {
    Pull& pull = active_pulls_.at(use->request);
    if (pull.window) return false;  // it has one
    pull.window = key;
    // Of a push in place of a round's result: that of the round before this version.
    const bool result = pull.of_push && !tensor.push.is_step && metadata->round > 0;
    link_.operations.stats(pull.operation).round = metadata->round - (result ? 1 : 0);
  }
  use->partial = open.low_count > 0;
  use->closer = transport::WindowCloser(open.high_count, open.low_count, link_.now);
  incoming_[key] = *use;
  return true;
}

transport::ChunkVerdict Results::OnChunk(const transport::event::Chunk& chunk) {
  const auto found = incoming_.find(chunk.key);
  if (found == incoming_.end()) return transport::ChunkVerdict::kRefused;
  const Use& use = found->second;
  PullAssembler& assembler = *use.assembler;
  if (Status s = assembler.OnChunk(chunk.bytes); !s.ok()) {
    link_.FailTensor(tensors_.at(use.handle).name(), s);
    return transport::ChunkVerdict::kRefused;
  }
  OperationStats& s = link_.operations.stats(use.operation);
  s.chunks_received = assembler.chunks_received();
  s.repaired_chunks += chunk.repaired ? 1 : 0;
  if (!chunk.repaired) s.wire_bytes += ByteCount(static_cast<int64_t>(chunk.bytes.size()));
  if (assembler.complete()) Close(chunk.key, wire::CloseReason::kComplete);
  return transport::ChunkVerdict::kTaken;
}

void Results::OnWindowState(const transport::event::WindowState& state) {
  const auto found = incoming_.find(state.key);
  if (found == incoming_.end()) return;
  found->second.closer.Observe(state.window, state.smoothed_rtt, link_.now);
  CheckClose(state.key);
}

void Results::CheckClose(transport::WindowKey key) {
  const auto found = incoming_.find(key);
  if (found == incoming_.end() || !found->second.partial) return;
  transport::WindowCloser& closer = found->second.closer;
  const transport::CloseDecision decision = closer.EvaluateFinished(
      {.energy_ratio = link_.settings.close_ratio, .energy_received = closer.window().low_ratio}, link_.now);
  if (decision.nack) link_.connection()->RequestMissing(key);
  if (decision.close) Close(key, *decision.close);
}

void Results::Close(transport::WindowKey key, wire::CloseReason reason) {
  const auto found = incoming_.find(key);
  const Use use = found->second;
  incoming_.erase(found);
  link_.connection()->CloseWindow(key, reason);
  link_.operations.stats(use.operation).bytes += tensors_.at(use.handle).shape.bytes();
  if (use.request == 0) return pushes_.OnResultOver(use.handle);
  const bool of_push = active_pulls_.at(use.request).of_push;
  active_pulls_.erase(use.request);
  if (of_push) return pushes_.OnResultFetched(use.handle, Status::Ok());
  link_.Finish(use.operation, Status::Ok());
}

// --- Time ---

Instant Results::NextTimeout() const {
  Instant next = Instant::Infinite();
  for (const auto& [key, use] : incoming_) next = std::min(next, use.closer.check_at());
  return next;
}

void Results::HandleTimeout() {
  std::vector<transport::WindowKey> due;
  for (const auto& [key, use] : incoming_) {
    if (use.closer.check_at() <= link_.now) due.push_back(key);
  }
  for (const transport::WindowKey key : due) {
    if (link_.connection() != nullptr) CheckClose(key);
  }
}

// --- Rounds ---

void Results::OnRoundReport(const control::RoundReport& report) {
  const std::optional<TensorHandle> handle = tensors_.Find(report.key());
  if (!handle) return;
  TensorState& tensor = tensors_.at(*handle);
  OperationStats::RoundInfo info;
  info.last_rank = report.last_rank();
  info.contributors = report.contributors();
  info.repaired_chunks = report.repaired_chunks();
  info.filled_chunks = report.filled_chunks();
  info.tolerated_chunks = report.tolerated_chunks();
  info.rejected_chunks = report.rejected_chunks();
  info.fill_reason = report.fill_reason();
  info.excluded = report.excluded();
  info.lost_chunks = report.lost_chunks();
  info.loss = report.loss();
  info.low_chunks = report.low_chunks();
  info.low_lost = report.low_lost();
  tensor.LearnEpoch(report.shift_epoch(), report.shift_epoch_round());
  tensor.report = info;
  tensor.report_round = report.round();
  tensor.completed_rounds = std::max(tensor.completed_rounds, report.round() + 1);
  // A worker that was left out of a round goes on with the next one.
  pushes_.GoOnWith(*handle, tensor.completed_rounds);
  if (report.has_state_hash() && tensor.replica) {
    const Status agrees = tensor.replica->OnServerHash(report.round(), report.state_hash());
    if (!agrees.ok()) return link_.FailTensor(tensor.name(), agrees);
  }
  if (report.has_replica_hash() && report.round() > 0 && tensor.replica) {
    const Status agrees = tensor.replica->OnReplicaHash(report.round() - 1, report.replica_hash());
    if (!agrees.ok()) return link_.FailTensor(tensor.name(), agrees);
  }
  ++link_.totals.rounds_reported;
  link_.totals.round_repaired_chunks += info.repaired_chunks;
  link_.totals.round_filled_chunks += info.filled_chunks;
  link_.totals.round_lost_chunks += info.lost_chunks;
  link_.totals.round_tolerated_chunks += info.tolerated_chunks;
  link_.totals.round_rejected_chunks += info.rejected_chunks;
}

}  // namespace longhaul::worker
