#include "worker/client/declarations.h"

#include <algorithm>
#include <utility>

#include "codec/chunk/chunk.h"
#include "codec/policy/loss_policy.h"
#include "codec/policy/priority.h"
#include "proto/utf8.h"

namespace longhaul::worker {
namespace {

Status CheckDeclaration(const Declaration& d) {
  if (d.name.empty() || d.name.size() > wire::kMaxNameBytes) {
    return {StatusCode::kInvalidArgument, "a tensor's name has 1..256 bytes"};
  }
  const auto invalid = [&d](const std::string& why) -> Status {
    return {StatusCode::kInvalidArgument, "tensor " + wire::Printable(d.name, wire::kMaxNameBytes) + why};
  };
  if (!wire::IsPrintable(d.name)) return invalid(": a name has no control characters");
  if (d.optimizer.empty() || d.optimizer.size() > wire::kMaxNameBytes || !wire::IsPrintable(d.optimizer)) {
    return invalid(": an optimizer is 1..256 bytes without control characters");
  }
  if (d.count == 0) return invalid(" has no elements");
  if (d.count > wire::kMaxElements) {
    return invalid(" has " + std::to_string(d.count) + " elements, more than 2^40");
  }
  if (d.dtype != DType::kFloat32) {
    return invalid(": element type " + std::string(DTypeName(d.dtype)) +
                   " is not supported yet, use float32");
  }
  if (DTypeBits(d.wire_dtype) == 0) return invalid(": unknown wire type");
  if (DTypeBits(d.result_dtype) == 0) return invalid(": unknown type of results");
  if (DTypeBits(d.result_dtype) < 16) {
    return invalid(": results travel as float32, bfloat16 or float16, not as " +
                   std::string(DTypeName(d.result_dtype)));
  }
  for (const TensorOptions::Range& range : d.high_ranges) {
    if (range.first > d.count || range.count > d.count - range.first) {
      return invalid(": a high range of " + std::to_string(range.count) + " elements from " +
                     std::to_string(range.first) + " ends beyond its " + std::to_string(d.count));
    }
  }
  for (const std::optional<double>& share : {d.high_share, d.high_energy}) {
    if (!share || (*share >= 0 && *share <= 1)) continue;
    return invalid(": the high share " + std::to_string(*share) + " is not in 0..1");
  }
  if (d.topk_share && !(*d.topk_share > 0 && *d.topk_share <= 1)) {
    return invalid(": the share " + std::to_string(*d.topk_share) +
                   " of elements that travel is not above 0 and at most 1");
  }
  if (d.staleness && (*d.staleness < -1 || *d.staleness > 1000)) {
    return invalid(": the staleness " + std::to_string(*d.staleness) + " is not in -1..1000");
  }
  if (d.quorum && *d.quorum > 1024)
    return invalid(": the quorum " + std::to_string(*d.quorum) + " is not in 0..1024");
  if (!d.initial.empty() && d.initial.size() != d.count) {
    return invalid(" has " + std::to_string(d.count) + " elements, but " + std::to_string(d.initial.size()) +
                   " initial values");
  }
  return Status::Ok();
}

std::string Describe(const Declaration& d) {
  return std::to_string(d.count) + " elements, optimizer \"" + d.optimizer + "\", " +
         std::string(DTypeName(d.wire_dtype)) + " up and " + std::string(DTypeName(d.result_dtype)) +
         " down" + (d.topk_share ? ", the largest " + std::to_string(*d.topk_share) : "") +
         (d.staleness ? ", staleness " + std::to_string(*d.staleness) : "") +
         (d.quorum ? ", quorum " + std::to_string(*d.quorum) : "");
}

Status CheckAgrees(const Declaration& earlier, const Declaration& now) {
  if (earlier.count == now.count && earlier.optimizer == now.optimizer &&
      earlier.wire_dtype == now.wire_dtype && earlier.result_dtype == now.result_dtype &&
      earlier.topk_share == now.topk_share && earlier.staleness == now.staleness &&
      earlier.quorum == now.quorum) {
    return Status::Ok();
  }
  return {StatusCode::kSettingsMismatch,
          "tensor " + now.name + " was declared with " + Describe(earlier) + ", now with " + Describe(now)};
}

}  // namespace

std::optional<std::pair<OperationId, TensorHandle>> Declarations::Declare(const Declaration& declaration,
                                                                          Callback callback, Status refusal,
                                                                          bool started) {
  const auto found = handle_by_name_.find(declaration.name);
  const bool known = found != handle_by_name_.end();
  const TensorHandle handle = known ? found->second : static_cast<TensorHandle>(tensors_.size());
  if (refusal.ok()) refusal = CheckDeclaration(declaration);
  // What the server has refused binds nothing: the next declaration of that name starts afresh.
  const bool refused_before = known && !tensors_[handle]->declared && tensors_[handle]->declaring.empty();
  if (refusal.ok() && known && !refused_before) {
    refusal = CheckAgrees(tensors_[handle]->declaration, declaration);
  } else if (refusal.ok() && !known && tensors_.size() >= link_.options.max_tensors) {
    refusal = Status(StatusCode::kResourceExhausted,
                     std::to_string(link_.options.max_tensors) + " tensors exist already");
  }
  auto done = [callback = std::move(callback), handle](const Status& outcome, const OperationStats&) {
    callback(outcome.ok() ? Result<TensorHandle>(handle) : Result<TensorHandle>(outcome));
  };
  const std::optional<OperationId> operation = link_.Begin(refusal, std::move(done));
  if (!operation) return std::nullopt;
  if (known && tensors_[handle]->declared && tensors_[handle]->declaring.empty()) {
    link_.Finish(*operation, Status::Ok());
    return std::nullopt;
  }
  if (!known) {
    tensors_.push_back(std::make_unique<TensorState>());
    handle_by_name_[declaration.name] = handle;
  }
  // An earlier declaration of the same name may wait for its answer: then this one waits along with it.
  TensorState& tensor = *tensors_[handle];
  tensor.declaring.push_back(*operation);
  const auto begun = std::pair(*operation, handle);
  if (tensor.declaring.size() > 1) return begun;
  tensor.declaration = declaration;
  tensor.shape.dtype = declaration.dtype;
  tensor.shape.geometry.count = declaration.count;
  if (started) Send(handle);
  return begun;
}

void Declarations::OnStart() {
  for (TensorHandle handle = 0; handle < tensors_.size(); ++handle) {
    if (!tensors_[handle]->declaring.empty() || tensors_[handle]->declared) Send(handle);
  }
}

void Declarations::OnConnectionLost() {
  handle_by_key_.clear();
  for (const auto& tensor : tensors_) {
    tensor->attached = false;
    tensor->declare_request = 0;
    if (!tensor->declaring.empty()) tensor->declared = false;  // its initial values were on their way
  }
}

Status Declarations::CheckGoesOn(const TensorState& tensor, const control::Declared& declared) const {
  const std::string which = ", which is back, ";
  if (declared.code() != 0) {
    return link_.Blame(static_cast<StatusCode>(declared.code()),
                       which + "refuses tensor " + tensor.name() + ": " + declared.message());
  }
  if (declared.next_round() < tensor.completed_rounds) {
    return link_.Blame(StatusCode::kDataLoss,
                       which + "has lost rounds: it is in round " + std::to_string(declared.next_round()) +
                           " of tensor " + tensor.name() + ", and this worker has the results of " +
                           std::to_string(tensor.completed_rounds) + " (does it run with --round-log?)");
  }
  if (tensor.offered && !declared.has_values()) {
    return link_.Blame(StatusCode::kDataLoss,
                       which + "has lost the initial values of tensor " + tensor.name());
  }
  return {};
}

void Declarations::Send(TensorHandle handle) {
  TensorState& tensor = *tensors_[handle];
  const Declaration& d = tensor.declaration;
  tensor.declare_request = link_.NextRequest();
  control::ControlMessage message;
  control::Declare& declare = *message.mutable_declare();
  declare.set_request(tensor.declare_request);
  declare.set_name(d.name);
  declare.set_dtype(static_cast<uint32_t>(d.dtype));
  declare.set_count(d.count);
  declare.set_optimizer(d.optimizer);
  declare.set_has_initial(!d.initial.empty());
  declare.set_wire_dtype(static_cast<uint32_t>(d.wire_dtype));
  declare.set_result_dtype(static_cast<uint32_t>(d.result_dtype));
  declare.set_priority(d.priority);
  if (d.topk_share) declare.set_topk_share(*d.topk_share);
  if (d.staleness) declare.set_staleness(*d.staleness);
  if (d.quorum) declare.set_quorum(*d.quorum);
  link_.Send(message);
}

std::optional<Declarations::Answer> Declarations::OnDeclared(const control::Declared& declared) {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& t) {
    return !t->attached && t->declare_request == declared.request() && declared.request() != 0;
  });
  if (found == tensors_.end()) return link_.Fail(link_.Unexpected("Declared")), std::nullopt;
  TensorState& tensor = **found;
  const auto handle = static_cast<TensorHandle>(found - tensors_.begin());
  const bool again = tensor.declared;
  if (again) {
    if (Status goes_on = CheckGoesOn(tensor, declared); !goes_on.ok())
      return link_.Fail(goes_on), std::nullopt;
  }
  if (declared.code() != 0) {
    const Status refusal(static_cast<StatusCode>(declared.code()), declared.message());
    return Finish(handle, refusal), std::nullopt;
  }
  tensor.shape.key = declared.key();
  tensor.shape.geometry.chunk_elements = codec::ChunkElementsFor(link_.symbol_bytes);
  tensor.completed_rounds = declared.next_round();
  tensor.next_round = std::max(again ? tensor.next_round : 0, tensor.completed_rounds);
  tensor.shift_epoch = declared.shift_epoch();
  tensor.shift_epoch_round = declared.shift_epoch_round();
  if (!FitsWindow(tensor.shape.geometry)) {
    const Status refusal(StatusCode::kInvalidArgument,
                         "tensor " + tensor.name() + " is too large for one window: split it");
    return Finish(handle, refusal), std::nullopt;
  }
  if (tensor.declaration.topk_share &&
      !codec::Remembers(link_.settings.policy)) {  // a server refuses it, too
    const Status refusal(StatusCode::kInvalidArgument, "tensor " + tensor.name() +
                                                           ": a share of the elements needs a policy that "
                                                           "remembers the others, residual or shift");
    return Finish(handle, refusal), std::nullopt;
  }
  if (!handle_by_key_.emplace(declared.key(), handle).second) {
    return link_.Fail(link_.Unexpected("the key of another tensor")), std::nullopt;
  }
  tensor.declared = tensor.attached = true;
  tensor.left_out = false;
  if (again) {
    tensor.pipeline->SetKey(declared.key(), codec::SendOrder(tensor.declaration.priority, declared.key()));
    return Answer{.handle = handle, .again = true};
  }
  MakePipeline(tensor);
  if (tensor.waits_for_all) link_.alignment->Set({link_.options.server, handle}, 0, tensor.next_round);
  if (declared.send_initial() && !tensor.declaration.initial.empty())
    return Answer{.handle = handle, .send_initial = true};
  return Finish(handle, Status::Ok()), std::nullopt;
}

// Its result comes in one; a window that does not open would be waited for without an end. The bytes bind a
// worker that came back with smaller datagrams than the job's, for which our windows have no room.
bool Declarations::FitsWindow(const codec::ChunkGeometry& geometry) const {
  const uint64_t chunks = (geometry.count - 1) / geometry.chunk_elements + 1;
  const auto bytes = static_cast<uint64_t>(link_.options.connection.max_window_bytes.value());
  return chunks <= wire::kMaxWindowChunks && chunks * link_.symbol_bytes <= bytes;
}

void Declarations::MakePipeline(TensorState& tensor) {
  const Declaration& d = tensor.declaration;
  PushPipeline::Settings pipeline;
  static_cast<JobSpec&>(pipeline) = link_.settings;
  pipeline.symbol_bytes = link_.symbol_bytes;
  pipeline.weight = link_.options.weight;
  pipeline.rank = link_.options.rank;
  pipeline.world_size = link_.options.world_size;
  pipeline.high_ranges = d.high_ranges;
  if (d.high_share || d.high_energy) {
    pipeline.high_share = d.high_share.value_or(link_.settings.high_share);
    pipeline.high_energy = d.high_energy.value_or(0);
  }
  pipeline.window_priority = codec::SendOrder(d.priority, tensor.shape.key);
  tensor.shape.format.gradient = d.wire_dtype;
  tensor.shape.format.result = d.result_dtype;
  if (d.topk_share) pipeline.priority = Priority::kTopK;
  if (pipeline.priority == Priority::kTopK)
    tensor.shape.format.topk_share = d.topk_share.value_or(link_.settings.topk_share);
  tensor.asynchronous = d.staleness.value_or(link_.settings.staleness) != 0;
  tensor.pipeline.emplace(tensor.shape, pipeline);
  if (link_.settings.downlink == Downlink::kLossy) {
    tensor.replica.emplace(tensor.shape.result(), link_.settings.hash_rounds);
  }
  // A replica learns by windows of results only.
  const JobSpec& job = link_.settings;
  tensor.waits_for_all = !tensor.asynchronous && !tensor.replica && job.straggler_factor == 0 &&
                         job.round_bound == Duration(0) && d.quorum.value_or(job.quorum) == 0;
}

void Declarations::Finish(TensorHandle handle, const Status& outcome) {
  TensorState& tensor = *tensors_[handle];
  tensor.declaration.initial = {};
  tensor.declare_request = 0;
  for (const OperationId operation : std::exchange(tensor.declaring, {})) link_.Finish(operation, outcome);
}

std::optional<TensorHandle> Declarations::Find(uint32_t key) const {
  const auto found = handle_by_key_.find(key);
  return found == handle_by_key_.end() ? std::nullopt : std::optional(found->second);
}

Status Declarations::CheckDeclared(TensorHandle handle) const {
  if (handle < tensors_.size() && tensors_[handle]->declared) return Status::Ok();
  return {StatusCode::kFailedPrecondition, "the tensor has not been declared"};
}

Status Declarations::CheckElements(TensorHandle handle, size_t elements) const {
  if (Status declared = CheckDeclared(handle); !declared.ok()) return declared;
  const TensorState& tensor = *tensors_[handle];
  if (elements == tensor.declaration.count) return Status::Ok();
  return {StatusCode::kInvalidArgument, "tensor " + tensor.name() + " has " +
                                            std::to_string(tensor.declaration.count) +
                                            " elements, but the span has " + std::to_string(elements)};
}

void Declarations::End() {
  for (const auto& tensor : tensors_) {
    tensor->push = {};
    tensor->declaring.clear();
    if (tensor->pipeline) tensor->pipeline->Abandon();
  }
}

}  // namespace longhaul::worker
