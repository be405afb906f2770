// The half of WorkerSession that is about tensors: declarations, pushes, pulls and the windows that carry
// them.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "codec/chunk.h"
#include "codec/send_order.h"
#include "codec/window_metadata.h"
#include "proto/utf8.h"
#include "transport/core/window/close_rule.h"
#include "worker/worker_session.h"

namespace longhaul::worker {
namespace {

using control::ControlMessage;

Status CheckDeclaration(const Declaration& d) {
  if (d.name.empty() || d.name.size() > wire::kMaxNameBytes) {
    return {StatusCode::kInvalidArgument, "a tensor's name has 1..256 bytes"};
  }
  if (!wire::IsPrintable(d.name)) {
    return {StatusCode::kInvalidArgument,
            "tensor " + wire::Printable(d.name, wire::kMaxNameBytes) + ": a name has no control characters"};
  }
  if (d.optimizer.empty() || d.optimizer.size() > wire::kMaxNameBytes || !wire::IsPrintable(d.optimizer)) {
    return {StatusCode::kInvalidArgument,
            "tensor " + d.name + ": an optimizer is 1..256 bytes without control characters"};
  }
  if (d.count == 0) return {StatusCode::kInvalidArgument, "tensor " + d.name + " has no elements"};
  if (d.dtype != DType::kFloat32) {
    return {StatusCode::kInvalidArgument, "tensor " + d.name + ": element type " +
                                              std::string(DTypeName(d.dtype)) +
                                              " is not supported yet, use float32"};
  }
  if (DTypeSize(d.wire_dtype) == 0) {
    return {StatusCode::kInvalidArgument, "tensor " + d.name + ": unknown wire type"};
  }
  if (d.result_dtype != DType::kFloat32) {
    return {StatusCode::kInvalidArgument, "tensor " + d.name +
                                              ": results travel as float32 in this version, not as " +
                                              std::string(DTypeName(d.result_dtype))};
  }
  for (const TensorOptions::Range& range : d.high_ranges) {
    if (range.first > d.count || range.count > d.count - range.first) {
      return {StatusCode::kInvalidArgument,
              "tensor " + d.name + ": a high range of " + std::to_string(range.count) + " elements from " +
                  std::to_string(range.first) + " ends beyond its " + std::to_string(d.count)};
    }
  }
  for (const std::optional<double>& share : {d.high_share, d.high_energy}) {
    if (!share || (*share >= 0 && *share <= 1)) continue;
    return {StatusCode::kInvalidArgument,
            "tensor " + d.name + ": the high share " + std::to_string(*share) + " is not in 0..1"};
  }
  if (!d.initial.empty() && d.initial.size() != d.count) {
    return {StatusCode::kInvalidArgument, "tensor " + d.name + " has " + std::to_string(d.count) +
                                              " elements, but " + std::to_string(d.initial.size()) +
                                              " initial values"};
  }
  return Status::Ok();
}

std::string Describe(uint64_t count, const std::string& optimizer, DType wire, DType result) {
  return std::to_string(count) + " elements, optimizer \"" + optimizer + "\", " +
         std::string(DTypeName(wire)) + " up and " + std::string(DTypeName(result)) + " down";
}

ByteCount TensorBytes(const TensorShape& shape) {
  return ByteCount(static_cast<int64_t>(shape.geometry.count * DTypeSize(shape.dtype)));
}

}  // namespace

// --- Declarations ---

void WorkerSession::Declare(const Declaration& declaration, DeclareCallback callback) {
  const auto found = handle_by_name_.find(declaration.name);
  const bool known = found != handle_by_name_.end();
  const TensorHandle handle = known ? found->second : static_cast<TensorHandle>(tensors_.size());
  auto done = [callback = std::move(callback), handle](const Status& outcome, const OperationStats&) {
    callback(outcome.ok() ? Result<TensorHandle>(handle) : Result<TensorHandle>(outcome));
  };
  Status refusal = CheckRunning();
  if (refusal.ok()) refusal = CheckDeclaration(declaration);
  // What the server has refused binds nobody: the next declaration of that name starts afresh.
  const bool refused_before = known && !tensors_[handle]->declared && tensors_[handle]->declaring.empty();
  if (refusal.ok() && known && !refused_before) {
    const TensorState& tensor = *tensors_[handle];
    if (tensor.shape.geometry.count != declaration.count || tensor.optimizer != declaration.optimizer ||
        tensor.wire_dtype != declaration.wire_dtype || tensor.result_dtype != declaration.result_dtype) {
      refusal = Status(StatusCode::kSettingsMismatch,
                       "tensor " + declaration.name + " was declared with " +
                           Describe(tensor.shape.geometry.count, tensor.optimizer, tensor.wire_dtype,
                                    tensor.result_dtype) +
                           ", now with " +
                           Describe(declaration.count, declaration.optimizer, declaration.wire_dtype,
                                    declaration.result_dtype));
    }
  } else if (refusal.ok() && !known && tensors_.size() >= options_.max_tensors) {
    refusal = Status(StatusCode::kResourceExhausted,
                     std::to_string(options_.max_tensors) + " tensors exist already");
  }
  if (!refusal.ok()) return operations_.Refuse(std::move(done), refusal);

  const OperationId operation = operations_.Begin(now_, std::move(done));
  if (!operations_.IsPending(operation)) return;
  if (known && tensors_[handle]->declared && tensors_[handle]->declaring.empty()) {
    operations_.Finish(operation, Status::Ok(), now_, rtt());
    return;
  }
  if (!known) {
    tensors_.push_back(std::make_unique<TensorState>());
    tensors_[handle]->name = declaration.name;
    handle_by_name_[declaration.name] = handle;
  }
  // An earlier declaration of the same name may wait for its answer: then this one waits along with it.
  TensorState& tensor = *tensors_[handle];
  const bool first = tensor.declaring.empty();
  tensor.declaring.push_back(operation);
  if (first) {
    tensor.optimizer = declaration.optimizer;
    tensor.shape.dtype = declaration.dtype;
    tensor.wire_dtype = declaration.wire_dtype;
    tensor.result_dtype = declaration.result_dtype;
    tensor.priority = declaration.priority;
    tensor.high_ranges = declaration.high_ranges;
    tensor.high_share = declaration.high_share;
    tensor.high_energy = declaration.high_energy;
    tensor.shape.geometry.count = declaration.count;
    tensor.initial = declaration.initial;
  }
  if (first && state_ == State::kStarted) SendDeclare(handle);
}

void WorkerSession::SendDeclare(TensorHandle handle) {
  TensorState& tensor = *tensors_[handle];
  tensor.declare_request = next_request_++;
  ControlMessage message;
  control::Declare& declare = *message.mutable_declare();
  declare.set_request(tensor.declare_request);
  declare.set_name(tensor.name);
  declare.set_dtype(static_cast<uint32_t>(tensor.shape.dtype));
  declare.set_count(tensor.shape.geometry.count);
  declare.set_optimizer(tensor.optimizer);
  declare.set_has_initial(!tensor.initial.empty());
  declare.set_wire_dtype(static_cast<uint32_t>(tensor.wire_dtype));
  declare.set_result_dtype(static_cast<uint32_t>(tensor.result_dtype));
  declare.set_priority(tensor.priority);
  SendMessage(message);
}

void WorkerSession::OnDeclared(const control::Declared& declared) {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& t) {
    return !t->declared && t->declare_request == declared.request() && declared.request() != 0;
  });
  if (found == tensors_.end()) return Fail(Unexpected("Declared"));
  TensorState& tensor = **found;
  const auto handle = static_cast<TensorHandle>(found - tensors_.begin());
  if (declared.code() != 0) {
    return FinishDeclare(tensor, Status(static_cast<StatusCode>(declared.code()), declared.message()));
  }
  tensor.shape.key = declared.key();
  tensor.shape.geometry.chunk_elements = codec::ChunkElementsFor(symbol_bytes_);
  tensor.next_round = tensor.completed_rounds = declared.next_round();
  tensor.LearnEpoch(declared.shift_epoch(), declared.shift_epoch_round());
  if ((tensor.shape.geometry.count - 1) / tensor.shape.geometry.chunk_elements >= wire::kMaxWindowChunks) {
    return FinishDeclare(tensor, Status(StatusCode::kInvalidArgument,
                                        "tensor " + tensor.name + " is too large for one window: split it"));
  }
  if (!handle_by_key_.emplace(declared.key(), handle).second)
    return Fail(Unexpected("the key of another tensor"));
  tensor.declared = true;
  PushPipeline::Settings pipeline = PushPipeline::SettingsOf(settings_, symbol_bytes_, options_.weight);
  pipeline.high_ranges = tensor.high_ranges;
  if (tensor.high_share || tensor.high_energy) {
    pipeline.high_share = tensor.high_share.value_or(settings_.high_share);
    pipeline.high_energy = tensor.high_energy.value_or(0);
  }
  pipeline.window_priority = codec::SendOrder(tensor.priority, tensor.shape.key);
  tensor.shape.format.gradient = tensor.wire_dtype;
  if (pipeline.priority == codec::PriorityPolicy::kTopK)
    tensor.shape.format.topk_share = settings_.topk_share;
  tensor.pipeline.emplace(tensor.shape, pipeline);
  if (settings_.downlink == "lossy") tensor.replica.emplace(tensor.shape.result(), settings_.hash_rounds);
  if (declared.send_initial() && !tensor.initial.empty()) {
    SendInitial(handle);
  } else {
    FinishDeclare(tensor, Status::Ok());
  }
}

void WorkerSession::FinishDeclare(TensorState& tensor, const Status& outcome) {
  tensor.initial = {};
  tensor.declare_request = 0;
  for (OperationId operation : std::exchange(tensor.declaring, {})) {
    operations_.Finish(operation, outcome, now_, rtt());
  }
}

void WorkerSession::SendInitial(TensorHandle handle) {
  TensorState& tensor = *tensors_[handle];
  if (!tensor.prepared) tensor.prepared = tensor.pipeline->BeginInitial(tensor.initial);
  ActivePush push;
  push.initial = true;
  tensor.initial_waits = !OpenPrepared(handle, &push);
}

// The window is described and its values wait in the pipeline; now or, for lack of a free window, later.
bool WorkerSession::OpenPrepared(TensorHandle handle, ActivePush* push) {
  TensorState& tensor = *tensors_[handle];
  push->window = tensor.prepared->key = {.id = next_window_, .generation = 0};
  if (!connection_->OpenWindow(*tensor.prepared).ok()) return false;
  ++next_window_;
  tensor.prepared.reset();
  LH_CHECK(tensor.pipeline->Submit(*connection_, push->window).ok());
  outgoing_[push->window] = handle;
  tensor.active = std::move(*push);
  return true;
}

// --- Requests ---

Status WorkerSession::CheckRequest(TensorHandle handle, size_t elements) const {
  if (Status s = CheckRunning(); !s.ok()) return s;
  if (handle >= tensors_.size() || !tensors_[handle]->declared) {
    return {StatusCode::kFailedPrecondition, "the tensor has not been declared"};
  }
  const TensorState& tensor = *tensors_[handle];
  if (elements == tensor.shape.geometry.count) return Status::Ok();
  return {StatusCode::kInvalidArgument, "tensor " + tensor.name + " has " +
                                            std::to_string(tensor.shape.geometry.count) +
                                            " elements, but the span has " + std::to_string(elements)};
}

void WorkerSession::Push(TensorHandle handle, std::span<const float> gradient, Callback callback) {
  if (Status s = CheckRequest(handle, gradient.size()); !s.ok())
    return operations_.Refuse(std::move(callback), s);
  const OperationId operation = operations_.Begin(now_, std::move(callback));
  if (operations_.IsPending(operation)) waiting_pushes_.push_back({operation, handle, gradient, {}});
}

void WorkerSession::PushPull(TensorHandle handle, std::span<const float> gradient, std::span<float> out,
                             Callback callback) {
  Status status = CheckRequest(handle, gradient.size());
  if (status.ok()) status = CheckRequest(handle, out.size());
  if (!status.ok()) return operations_.Refuse(std::move(callback), status);
  const OperationId operation = operations_.Begin(now_, std::move(callback));
  if (operations_.IsPending(operation)) waiting_pushes_.push_back({operation, handle, gradient, out});
}

void WorkerSession::Pull(TensorHandle handle, std::span<float> out, uint64_t min_round, Callback callback) {
  if (Status s = CheckRequest(handle, out.size()); !s.ok()) return operations_.Refuse(std::move(callback), s);
  const OperationId operation = operations_.Begin(now_, std::move(callback));
  if (operations_.IsPending(operation)) waiting_pulls_.push_back({operation, handle, out, min_round});
}

void WorkerSession::SetScores(TensorHandle handle, std::span<const float> scores) {
  if (handle < tensors_.size() && tensors_[handle]->pipeline) tensors_[handle]->pipeline->SetScores(scores);
}

// --- Starting what waits ---

void WorkerSession::StartWaiting() {
  if (state_ != State::kStarted) return;
  for (TensorHandle handle = 0; handle < tensors_.size(); ++handle) {
    if (tensors_[handle]->initial_waits) SendInitial(handle);
  }
  // In order, but a tensor whose turn has not come does not hold up the others.
  for (auto it = waiting_pushes_.begin(); it != waiting_pushes_.end();) {
    if (active_pushes_ >= options_.max_active_pushes) break;
    const TensorState& tensor = *tensors_[it->handle];
    if (tensor.active || tensor.next_round > tensor.completed_rounds) {
      ++it;
      continue;
    }
    if (!StartPush(*it)) break;
    it = waiting_pushes_.erase(it);
  }
  while (!waiting_pulls_.empty() && active_pulls_.size() < options_.max_active_pulls) {
    StartPull(waiting_pulls_.front());
    waiting_pulls_.pop_front();
  }
}

bool WorkerSession::StartPush(const PushRequest& request) {
  TensorState& tensor = *tensors_[request.handle];
  const bool wants_result = !request.out.empty();
  if (!tensor.prepared) {
    tensor.prepared_round = tensor.next_round;
    auto prepared = tensor.pipeline->Begin(tensor.prepared_round, request.gradient, wants_result,
                                           tensor.EpochOf(tensor.prepared_round));
    if (!prepared.ok()) {
      operations_.Finish(request.operation,
                         Status(prepared.status().code(),
                                "push of tensor " + tensor.name + ": " + prepared.status().message()),
                         now_, rtt());
      return true;
    }
    tensor.prepared = *std::move(prepared);
  }
  ActivePush push;
  push.operation = request.operation;
  push.round = tensor.prepared_round;
  push.out = request.out;
  if (wants_result)
    push.result.emplace(tensor.shape, tensor.replica ? tensor.replica->writable() : request.out);
  // No window is free, or the connection is ending: the request keeps its place.
  if (!OpenPrepared(request.handle, &push)) return false;
  tensor.next_round = tensor.prepared_round + 1;
  ++active_pushes_;
  operations_.stats(request.operation).round = tensor.prepared_round;
  return true;
}

void WorkerSession::StartPull(const WaitingPull& waiting) {
  const uint32_t request = next_request_++;
  ControlMessage message;
  message.mutable_pull_request()->set_request(request);
  message.mutable_pull_request()->set_key(tensors_[waiting.handle]->shape.key);
  message.mutable_pull_request()->set_min_round(waiting.min_round);
  active_pulls_.emplace(
      request,
      ActivePull{
          waiting.operation, waiting.handle, {tensors_[waiting.handle]->shape, waiting.out}, std::nullopt});
  SendMessage(message);
}

// --- Gradient windows ---

void WorkerSession::OnWindowClosed(transport::Connection& connection, transport::WindowKey key,
                                   wire::CloseReason reason, const transport::WindowReceipt& receipt,
                                   const transport::WindowTxStats& stats) {
  (void)connection;
  const auto found = outgoing_.find(key);
  if (found == outgoing_.end()) return;
  const TensorHandle handle = found->second;
  outgoing_.erase(found);
  TensorState& tensor = *tensors_[handle];
  LH_CHECK(tensor.active.has_value());
  const PushPipeline::Outcome outcome = tensor.pipeline->OnClosed(receipt, stats);
  if (tensor.active->initial) {
    tensor.active.reset();
    // A server that has its values from elsewhere by now is as good.
    FinishDeclare(tensor,
                  receipt.high_complete || reason == wire::CloseReason::kExcluded
                      ? Status::Ok()
                      : Status(StatusCode::kAborted,
                               "the server did not take the initial values of tensor " + tensor.name));
    return;
  }
  OperationStats& s = operations_.stats(tensor.active->operation);
  s.bytes += TensorBytes(tensor.shape);
  s.wire_bytes += outcome.wire_bytes;
  s.chunks_sent = stats.high_sent + stats.low_sent;
  s.retransmissions = stats.retransmissions;
  s.repairs_sent = stats.repair_sent;
  s.lost_chunks = outcome.lost_chunks;
  tensor.active->window_closed = true;
  // Refused before the server wanted anything from it: the round went on without us, no result will come.
  if (reason == wire::CloseReason::kExcluded && !receipt.high_complete && !tensor.active->result_window) {
    return EndPush(
        handle, Status(StatusCode::kAborted, "round " + std::to_string(tensor.active->round) + " of tensor " +
                                                 tensor.name + " went on without this worker"));
  }
  FinishPushIfDone(handle);
}

// A push that came too late for its round counts in the one that was in progress.
void WorkerSession::CountIn(TensorState& tensor, uint64_t round) {
  tensor.active->round = round;
  tensor.next_round = std::max(tensor.next_round, round + 1);
  operations_.stats(tensor.active->operation).round = round;
}

void WorkerSession::OnPushTaken(const control::PushTaken& taken) {
  const auto found = handle_by_key_.find(taken.key());
  if (found == handle_by_key_.end()) return Fail(Unexpected("PushTaken"));
  TensorState& tensor = *tensors_[found->second];
  const transport::WindowKey window{taken.window(), static_cast<uint8_t>(taken.generation())};
  if (!tensor.active || tensor.active->window != window) {
    // A CLOSE that gave the push up overtook this. It has counted, as far as it had come: not again in that
    // round.
    tensor.next_round = std::max(tensor.next_round, taken.round() + 1);
    return;
  }
  const bool awaited = !tensor.active->initial && !tensor.active->result && !tensor.active->taken;
  if (!awaited || taken.round() < tensor.active->round) return Fail(Unexpected("PushTaken"));
  tensor.active->taken = true;
  CountIn(tensor, taken.round());
  FinishPushIfDone(found->second);
}

void WorkerSession::FinishPushIfDone(TensorHandle handle) {
  TensorState& tensor = *tensors_[handle];
  const ActivePush& push = *tensor.active;
  if (!push.window_closed || !(push.result ? push.result_over : push.taken)) return;
  EndPush(handle, Status::Ok());
}

void WorkerSession::EndPush(TensorHandle handle, const Status& outcome) {
  TensorState& tensor = *tensors_[handle];
  const ActivePush push = *std::exchange(tensor.active, std::nullopt);
  if (push.result_window) incoming_.erase(*push.result_window);
  --active_pushes_;
  OperationStats& s = operations_.stats(push.operation);
  if (tensor.report && tensor.report_round == push.round) s.round_info = tensor.report;
  operations_.Finish(push.operation, outcome, now_, rtt());
}

// --- Result windows ---

Result<WorkerSession::IncomingUse> WorkerSession::FindUse(const codec::WindowMetadata& metadata) {
  if (metadata.request != 0) {
    const auto pull = active_pulls_.find(metadata.request);
    if (pull == active_pulls_.end()) return Status(StatusCode::kNotFound, "nobody waits for this pull");
    return IncomingUse{pull->second.handle, metadata.request};
  }
  const auto key = handle_by_key_.find(metadata.key);
  if (key == handle_by_key_.end()) return Status(StatusCode::kNotFound, "no such tensor");
  const std::optional<ActivePush>& push = tensors_[key->second]->active;
  if (!push || !push->result || push->result_window || push->round > metadata.round) {
    return Status(StatusCode::kNotFound, "nobody waits for the result of this round");
  }
  return IncomingUse{key->second, 0};
}

PullAssembler* WorkerSession::AssemblerOf(const IncomingUse& use) {
  if (use.request == 0) return &*tensors_[use.handle]->active->result;
  return &active_pulls_.at(use.request).assembler;
}

OperationId WorkerSession::OperationOf(const IncomingUse& use) const {
  if (use.request == 0) return tensors_[use.handle]->active->operation;
  return active_pulls_.at(use.request).operation;
}

Status WorkerSession::OnWindowOpened(transport::Connection& connection, transport::WindowKey key,
                                     const wire::WindowOpenFrame& open) {
  (void)connection;
  Result<codec::WindowMetadata> metadata = codec::DecodeWindowMetadata(open.metadata);
  if (!metadata.ok()) {
    Fail(Status(StatusCode::kProtocolViolation, ServerName() + ": " + metadata.status().message()));
    return metadata.status();
  }
  Result<IncomingUse> use = FindUse(*metadata);
  if (!use.ok()) return use.status();
  TensorState& tensor = *tensors_[use->handle];
  if (Status s = PullAssembler::CheckWindow(tensor.shape, *metadata, open); !s.ok()) {
    Fail(Status(s.code(), ServerName() + ", tensor " + tensor.name + ": " + s.message()));
    return s;
  }
  use->partial = open.low_count > 0;
  if (use->partial) {
    if (Status s = CheckPartial(tensor, *metadata); !s.ok()) {
      Fail(Status(s.code(), ServerName() + ", tensor " + tensor.name + ": " + s.message()));
      return s;
    }
  }
  if (use->request == 0) {
    tensor.active->result_window = key;
    CountIn(tensor, metadata->round);
    tensor.LearnEpoch(metadata->shift_epoch, metadata->shift_epoch_round);
  } else {
    ActivePull& pull = active_pulls_.at(use->request);
    if (pull.window) return Status(StatusCode::kAlreadyExists, "this pull has its window");
    pull.window = key;
    operations_.stats(pull.operation).round = metadata->round;
  }
  incoming_[key] = *use;
  return Status::Ok();
}

transport::ChunkVerdict WorkerSession::OnChunk(transport::Connection& connection, transport::WindowKey key,
                                               wire::ReliabilityClass reliability, uint32_t sequence,
                                               ByteSpan chunk, bool repaired) {
  (void)reliability;
  (void)sequence;
  const auto found = incoming_.find(key);
  if (found == incoming_.end()) return transport::ChunkVerdict::kRefused;
  const IncomingUse use = found->second;
  PullAssembler& assembler = *AssemblerOf(use);
  if (Status s = assembler.OnChunk(chunk); !s.ok()) {
    Fail(Status(s.code(), ServerName() + ", tensor " + tensors_[use.handle]->name + ": " + s.message()));
    return transport::ChunkVerdict::kRefused;
  }
  OperationStats& s = operations_.stats(OperationOf(use));
  s.chunks_received = assembler.chunks_received();
  s.repaired_chunks += repaired ? 1 : 0;
  if (!repaired) s.wire_bytes += ByteCount(static_cast<int64_t>(chunk.size()));
  if (!assembler.complete()) return transport::ChunkVerdict::kTaken;
  incoming_.erase(found);
  connection.CloseWindow(key, wire::CloseReason::kComplete);
  OnResultOver(use);
  return transport::ChunkVerdict::kTaken;
}

Status WorkerSession::CheckPartial(const TensorState& tensor, const codec::WindowMetadata& metadata) const {
  if (tensor.replica && metadata.request == 0) return tensor.replica->CheckPartial(metadata.round);
  return {StatusCode::kProtocolViolation, "values that nothing replaces may lose chunks on their way"};
}

// When a result that may lose chunks is enough: by the rule for gradients, but not before the server is
// finished with it. Until then chunks may be left that are not even final, and so the round may not be over.
void WorkerSession::OnWindowProgress(transport::Connection& connection, transport::WindowKey key) {
  const auto found = incoming_.find(key);
  if (found == incoming_.end() || !found->second.partial) return;
  IncomingUse& use = found->second;
  use.check_at = Instant::Infinite();
  const auto window = connection.incoming(key);
  if (!window || !window->sender_finished) return;
  if (use.finished.IsInfinite()) {
    use.finished = now_;
    use.nack_at = now_ + rtt();
  }
  if (!window->high_complete) {
    // By this side's clock: the server's own probes back off, and nothing low follows that would show a loss.
    if (now_ >= use.nack_at) {
      connection.RequestMissing(key);
      use.nack_at = now_ + std::max(rtt(), transport::kMinCloseGrace);
    }
    use.check_at = use.nack_at;
    return;
  }
  const transport::CloseDecision decision = transport::EvaluateClose(*window,
                                                                     {.energy_ratio = settings_.close_ratio,
                                                                      .energy_received = window->low_ratio,
                                                                      .smoothed_rtt = rtt(),
                                                                      .last_chunk = use.finished,
                                                                      .finished = use.finished},
                                                                     now_);
  if (!decision.close) {
    use.check_at = decision.check_again;
    return;
  }
  const IncomingUse over = use;
  incoming_.erase(found);
  connection.CloseWindow(key, *decision.close);
  OnResultOver(over);
}

Instant WorkerSession::NextWindowCheck() const {
  Instant next = Instant::Infinite();
  for (const auto& [key, use] : incoming_) next = std::min(next, use.check_at);
  return next;
}

void WorkerSession::OnResultOver(const IncomingUse& use) {
  operations_.stats(OperationOf(use)).bytes += TensorBytes(tensors_[use.handle]->shape);
  if (use.request == 0) return EndPushResult(use.handle);
  const OperationId operation = OperationOf(use);
  active_pulls_.erase(use.request);
  operations_.Finish(operation, Status::Ok(), now_, rtt());
}

void WorkerSession::EndPushResult(TensorHandle handle) {
  TensorState& tensor = *tensors_[handle];
  ActivePush& push = *tensor.active;
  push.result_over = true;
  if (tensor.replica) {
    const uint32_t lost = tensor.shape.result().chunks() - push.result->chunks_received();
    operations_.stats(push.operation).lost_result_chunks = lost;
    totals_.result_chunks_lost += lost;
    std::ranges::copy(tensor.replica->values(), push.out.begin());
    const Status agrees = tensor.replica->OnResult(push.round, push.result->received());
    if (!agrees.ok()) return FailReplica(tensor, agrees);
  }
  tensor.completed_rounds = std::max(tensor.completed_rounds, push.round + 1);
  FinishPushIfDone(handle);
}

void WorkerSession::FailReplica(const TensorState& tensor, const Status& why) {
  Fail(Status(why.code(), ServerName() + ", tensor " + tensor.name + ": " + why.message()));
}

void WorkerSession::OnPullRefused(const control::PullRefused& refused) {
  const auto pull = active_pulls_.find(refused.request());
  if (pull == active_pulls_.end()) return;
  const OperationId operation = pull->second.operation;
  if (pull->second.window) incoming_.erase(*pull->second.window);
  active_pulls_.erase(pull);
  const auto code = static_cast<StatusCode>(refused.code());
  operations_.Finish(operation,
                     Status(code == StatusCode::kOk ? StatusCode::kAborted : code, refused.message()), now_,
                     rtt());
}

void WorkerSession::OnRoundReport(const control::RoundReport& report) {
  const auto found = handle_by_key_.find(report.key());
  if (found == handle_by_key_.end()) return;
  TensorState& tensor = *tensors_[found->second];
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
  if (!tensor.active) tensor.next_round = std::max(tensor.next_round, tensor.completed_rounds);
  if (report.has_state_hash() && tensor.replica) {
    if (Status s = tensor.replica->OnServerHash(report.round(), report.state_hash()); !s.ok()) {
      return FailReplica(tensor, s);
    }
  }
  if (report.has_replica_hash() && report.round() > 0 && tensor.replica) {
    if (Status s = tensor.replica->OnReplicaHash(report.round() - 1, report.replica_hash()); !s.ok()) {
      return FailReplica(tensor, s);
    }
  }
  ++totals_.rounds_reported;
  totals_.round_repaired_chunks += info.repaired_chunks;
  totals_.round_filled_chunks += info.filled_chunks;
  totals_.round_lost_chunks += info.lost_chunks;
  totals_.round_tolerated_chunks += info.tolerated_chunks;
  totals_.round_rejected_chunks += info.rejected_chunks;
}

std::span<const float> WorkerSession::residual(TensorHandle handle) const {
  if (handle >= tensors_.size() || !tensors_[handle]->pipeline) return {};
  return tensors_[handle]->pipeline->residual();
}

}  // namespace longhaul::worker
