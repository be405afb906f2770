#include "worker/client/pushes.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/reached.h"

namespace longhaul::worker {

// --- Beginning ---

void Pushes::StartInitial(TensorHandle handle) {
  TensorState& tensor = tensors_.at(handle);
  tensor.pipeline->BeginInitial(tensor.declaration.initial);
  tensor.push = {};
  tensor.push.stage = PushStage::kEncoding;
  tensor.push.initial = true;
  encoding_.push_back(handle);
}

void Pushes::StartWaiting() {
  // One that the server does not know yet does not hold up those behind it.
  for (auto it = waiting_for_window_.begin(); it != waiting_for_window_.end();) {
    if (OpenWindow(*it)) {
      it = waiting_for_window_.erase(it);
    } else if (tensors_.at(*it).attached) {
      break;
    } else {
      ++it;
    }
  }
  // In order, but a tensor whose turn has not come does not hold up the others.
  for (auto it = waiting_.begin(); it != waiting_.end() && active_ < link_.options.max_active_pushes;) {
    const TensorState& tensor = tensors_.at(it->handle);
    if (!tensor.attached || tensor.push.stage != PushStage::kNone ||
        (!tensor.asynchronous && tensor.next_round > tensor.completed_rounds)) {
      ++it;
      continue;
    }
    StartPush(*it);
    it = waiting_.erase(it);
  }
}

void Pushes::StartPush(const Request& request) {
  TensorState& tensor = tensors_.at(request.handle);
  // Rounds that were over while a push that was passed over had not ended.
  GoOnWith(request.handle, tensor.completed_rounds);
  tensor.push = {};
  tensor.push.operation = request.operation;
  tensor.push.round = tensor.next_round;
  if (tensor.waits_for_all && !tensor.left_out) {
    const uint64_t ahead = link_.alignment->Ahead({link_.options.server, request.handle});
    tensor.push.round -= tensor.aggregates() ? std::min<uint64_t>(ahead, 1) : ahead;  // its result is kept
    tensor.push.ahead = ahead > 0;
  }
  ++tensor.pushes;
  tensor.push.gradient = request.gradient;
  tensor.push.weight = request.weight;
  tensor.push.out = request.out;
  tensor.push.is_step = tensor.asynchronous;
  if (!request.out.empty()) tensor.push.result_stage = ResultStage::kAwaited;
  BeginEncoding(request.handle);
  Note(request.handle);
  ++active_;
}

void Pushes::Note(TensorHandle handle) {
  const TensorState& tensor = tensors_.at(handle);
  if (!tensor.waits_for_all) return;
  const bool pushing = tensor.push.stage != PushStage::kNone && !tensor.push.initial;
  const uint64_t next = pushing ? tensor.push.round + 1 : tensor.next_round;
  link_.alignment->Set({link_.options.server, handle}, tensor.pushes, next);
}

void Pushes::GoOnWith(TensorHandle handle, uint64_t round) {
  TensorState& tensor = tensors_.at(handle);
  const TensorPush& push = tensor.push;
  if (push.started()) return;
  const bool waits = push.stage != PushStage::kNone && !push.initial && !push.ahead;
  if (round > (waits ? push.round : tensor.next_round)) tensor.left_out = true;
  tensor.next_round = std::max(tensor.next_round, round);
  Note(handle);
}

bool Pushes::IsPassed(const TensorState& tensor) {
  return tensor.waits_for_all && !tensor.left_out && !tensor.push.initial &&
         tensor.push.round < tensor.completed_rounds;
}

void Pushes::PassOver(TensorHandle handle) {
  LH_REACHED("a push is passed over whose round is over");
  TensorState& tensor = tensors_.at(handle);
  ++link_.totals.pushes_passed_over;
  link_.operations.stats(tensor.push.operation).chunks_sent = 0;  // what a dead server had is in no round
  SetRound(tensor.push);
  Conclude(handle, transport::ChunkBitmap(tensor.shape.gradient().chunks()));
}

void Pushes::Conclude(TensorHandle handle, transport::ChunkBitmap counted) {
  TensorState& tensor = tensors_.at(handle);
  TensorPush& push = tensor.push;
  OperationStats& s = link_.operations.stats(push.operation);
  if (counted.size() > 0) s.lost_chunks = counted.size() - counted.count();
  s.chunks_sent = std::max(s.chunks_sent, counted.count());  // of a window that a dead server had not closed
  tensor.pipeline->OnCounted(std::move(counted));
  if (push.result_stage == ResultStage::kNone || push.is_step) push.taken = true;
  Settle(handle);
  if (push.result_stage != ResultStage::kAwaited) return;
  if (!tensor.aggregates() || tensor.completed_rounds == push.round + 1) return fetched_.push_back(handle);
  push.refusal =
      Status(StatusCode::kAborted, "round " + std::to_string(push.round) + " of tensor " + tensor.name() +
                                       " is over, and its result is gone: the server is in round " +
                                       std::to_string(tensor.completed_rounds));
}

void Pushes::BeginEncoding(TensorHandle handle) {
  TensorState& tensor = tensors_.at(handle);
  TensorPush& push = tensor.push;
  push.stage = PushStage::kEncoding;
  const bool wants_result = !push.out.empty() && !push.is_step;
  tensor.pipeline->Begin(push.round, push.gradient, wants_result, tensor.EpochOf(push.round), push.weight);
  encoding_.push_back(handle);
}

bool Pushes::OpenWindow(TensorHandle handle) {
  TensorState& tensor = tensors_.at(handle);
  TensorPush& push = tensor.push;
  // Before it is declared again: its round is that of the push before, which may have counted.
  if (push.ahead) return PassOver(handle), true;
  if (!tensor.attached) return false;
  if (IsPassed(tensor)) return PassOver(handle), true;
  transport::WindowOptions window = tensor.pipeline->window();
  push.window = window.key = {.id = next_window_, .generation = 0};
  const Status opened = link_.connection()->OpenWindow(window);
  if (opened.code() == StatusCode::kInvalidArgument)
    link_.FailTensor(tensor.name(), opened);  // it never will
  if (!opened.ok()) return false;
  ++next_window_;
  push.stage = PushStage::kOpen;
  tensor.left_out = false;
  outgoing_[push.window] = handle;
  if (encoding_.empty() || encoding_.front() != handle) encoding_.push_back(handle);
  if (push.initial) return true;
  if (push.is_step) {
    ++tensor.connection_pushes;
    if (push.result_stage == ResultStage::kAwaited) wanted_.push_back(handle);
    SetRound(push);
    return true;
  }
  if (push.result_stage == ResultStage::kAwaited) {
    push.result.emplace(tensor.shape, tensor.replica ? tensor.replica->writable() : push.out);
  }
  tensor.next_round = std::max(tensor.next_round, push.round + 1);
  SetRound(push);
  return true;
}

// --- Work, in slices ---

void Pushes::Work() {
  WorkBudget budget;
  const auto work = [&](std::deque<TensorHandle>& queue, bool (Pushes::*on)(TensorHandle, WorkBudget&)) {
    while (!queue.empty() && !budget.spent() && link_.failure().ok()) {
      if ((this->*on)(queue.front(), budget)) queue.pop_front();
    }
  };
  work(copying_, &Pushes::WorkOnResult);
  work(settling_, &Pushes::WorkOnPush);
  work(encoding_, &Pushes::WorkOnPush);
}

bool Pushes::WorkOnPush(TensorHandle handle, WorkBudget& budget) {
  TensorState& tensor = tensors_.at(handle);
  switch (tensor.push.stage) {
    case PushStage::kEncoding:
      if (!tensor.pipeline->Survey(budget)) return false;
      OnEncoded(handle);
      return tensor.push.stage != PushStage::kOpen;
    case PushStage::kOpen:
      // It fails only when the connection is ending: OnClosed comes.
      return !tensor.pipeline->Submit(*link_.connection(), tensor.push.window, budget).ok() ||
             tensor.pipeline->submitted();
    case PushStage::kSettling:
      if (!tensor.pipeline->Settle(budget)) return false;
      tensor.push.stage = PushStage::kAwaiting;
      EndIfOver(handle);
      return true;
    case PushStage::kNone:
    case PushStage::kWaiting:
    case PushStage::kClosed:
    case PushStage::kAwaiting:
      break;
  }
  return true;
}

void Pushes::OnEncoded(TensorHandle handle) {
  TensorState& tensor = tensors_.at(handle);
  if (const Status& refusal = tensor.pipeline->refusal(); !refusal.ok()) {
    --tensor.pushes;
    return EndPush(handle,
                   Status(refusal.code(), "push of tensor " + tensor.name() + ": " + refusal.message()));
  }
  tensor.push.stage = PushStage::kWaiting;
  if (!waiting_for_window_.empty() || !OpenWindow(handle)) waiting_for_window_.push_back(handle);
}

bool Pushes::WorkOnResult(TensorHandle handle, WorkBudget& budget) {
  TensorState& tensor = tensors_.at(handle);
  TensorPush& push = tensor.push;
  const codec::ChunkGeometry geometry = tensor.shape.result();
  for (; push.copied < geometry.chunks(); ++push.copied) {
    if (budget.spent()) return false;
    const std::span<const float> values = geometry.Elements(tensor.replica->values(), push.copied);
    std::ranges::copy(values, geometry.Elements(push.out, push.copied).begin());
    const Status agrees =
        tensor.replica->OnResultChunk(push.copied, push.result->received().Test(push.copied));
    if (!agrees.ok()) return link_.FailTensor(tensor.name(), agrees), true;
    budget.Spend(WorkBudget::kPerChunk + values.size());
  }
  if (const Status agrees = tensor.replica->FinishResult(); !agrees.ok())
    return link_.FailTensor(tensor.name(), agrees), true;
  push.result_stage = ResultStage::kOver;
  EndIfOver(handle);
  return true;
}

// --- What the server says ---

void Pushes::OnWindowClosed(const transport::event::WindowClosed& closed) {
  const auto& [key, reason, receipt_at, stats] = closed;
  const transport::WindowReceipt& receipt = *receipt_at;
  const auto found = outgoing_.find(key);
  if (found == outgoing_.end()) return;
  const TensorHandle handle = found->second;
  outgoing_.erase(found);
  TensorState& tensor = tensors_.at(handle);
  TensorPush& push = tensor.push;
  LH_CHECK(push.stage == PushStage::kOpen);
  const PushPipeline::Outcome outcome = tensor.pipeline->OnClosed(receipt, stats);
  if (push.initial) {
    tensor.pipeline->Abandon();
    push = {};
    tensor.offered = receipt.high_complete;
    // A server that has its values from elsewhere by now is as good.
    const bool good = receipt.high_complete || reason == wire::CloseReason::kExcluded;
    const Status lost(StatusCode::kAborted,
                      "the server did not take the initial values of tensor " + tensor.name());
    return tensors_.Finish(handle, good ? Status::Ok() : lost);
  }
  OperationStats& s = link_.operations.stats(push.operation);
  s.bytes += tensor.shape.bytes();
  s.wire_bytes += outcome.wire_bytes;
  s.chunks_sent = stats.high_sent + stats.low_sent;
  s.retransmissions = stats.retransmissions;
  s.repairs_sent = stats.repairs_sent;
  s.lost_chunks = outcome.lost_chunks;
  // Refused before the server wanted anything from it: the round went on without this worker, no result
  // comes.
  if (reason == wire::CloseReason::kExcluded && !receipt.high_complete && !push.result_window) {
    push.refusal = Status(StatusCode::kAborted, "round " + std::to_string(push.round) + " of tensor " +
                                                    tensor.name() + " went on without this worker");
  }
  push.stage = PushStage::kClosed;
  if (link_.options.reconnect_timeout == Duration(0) || push.told() || !push.refusal.ok()) Settle(handle);
}

void Pushes::Settle(TensorHandle handle) {
  tensors_.at(handle).push.stage = PushStage::kSettling;
  settling_.push_back(handle);
}

void Pushes::OnPushTaken(const control::PushTaken& taken) {
  const std::optional<TensorHandle> handle = tensors_.Find(taken.key());
  if (!handle) return link_.Fail(link_.Unexpected("PushTaken"));
  TensorState& tensor = tensors_.at(*handle);
  const transport::WindowKey window{taken.window(), static_cast<uint8_t>(taken.generation())};
  if (!tensor.push.started() || tensor.push.window != window) {
    // A CLOSE that gave the push up overtook this. It has counted, as far as it had come: not again in that
    // round.
    tensor.next_round = std::max(tensor.next_round, taken.round() + 1);
    return Note(*handle);
  }
  const bool awaited = !tensor.push.initial && !tensor.push.result && !tensor.push.taken;
  if (!awaited || (taken.round() < tensor.push.round && !tensor.push.is_step))
    return link_.Fail(link_.Unexpected("PushTaken"));
  tensor.push.taken = true;
  if (tensor.push.is_step) tensor.completed_rounds = std::max(tensor.completed_rounds, taken.round() + 1);
  CountIn(*handle, taken.round());
  if (tensor.push.stage == PushStage::kClosed) Settle(*handle);
  EndIfOver(*handle);
}

void Pushes::SetRound(const TensorPush& push) {
  OperationStats& s = link_.operations.stats(push.operation);
  s.pushed_round = push.round;
  // A step's values say themselves how many steps are in them.
  if (!push.is_step || push.result_stage == ResultStage::kNone) s.round = push.round;
}

void Pushes::CountIn(TensorHandle handle, uint64_t round) {
  TensorState& tensor = tensors_.at(handle);
  tensor.push.round = round;
  tensor.next_round = std::max(tensor.next_round, round + 1);
  Note(handle);
  SetRound(tensor.push);
}

// --- The result's side ---

bool Pushes::Awaits(TensorHandle handle, uint64_t round) const {
  const TensorPush& push = tensors_.at(handle).push;
  return push.result && !push.result_window && push.refusal.ok() && push.round <= round;
}

void Pushes::OnResultOpened(TensorHandle handle, transport::WindowKey window,
                            const codec::WindowMetadata& metadata) {
  TensorState& tensor = tensors_.at(handle);
  tensor.push.result_window = window;
  CountIn(handle, metadata.round);
  tensor.LearnEpoch(metadata.shift_epoch, metadata.shift_epoch_round);
}

void Pushes::OnResultOver(TensorHandle handle) {
  TensorState& tensor = tensors_.at(handle);
  TensorPush& push = tensor.push;
  tensor.completed_rounds = std::max(tensor.completed_rounds, push.round + 1);
  if (!tensor.replica) {
    push.result_stage = ResultStage::kOver;
    if (push.stage == PushStage::kClosed) Settle(handle);
    return EndIfOver(handle);
  }
  const uint32_t lost = tensor.shape.result().chunks() - push.result->chunks_received();
  link_.operations.stats(push.operation).lost_result_chunks = lost;
  link_.totals.result_chunks_lost += lost;
  push.result_stage = ResultStage::kCopying;
  if (push.stage == PushStage::kClosed) Settle(handle);
  tensor.replica->BeginResult(push.round);
  copying_.push_back(handle);
}

// --- Another connection ---

void Pushes::OnConnectionLost() {
  outgoing_.clear();
  wanted_.clear();
  for (TensorHandle handle = 0; handle < tensors_.size(); ++handle) {
    TensorState& tensor = tensors_.at(handle);
    TensorPush& push = tensor.push;
    tensor.connection_pushes = 0;
    if (push.initial) {
      tensor.pipeline->Abandon();
      push = {};
      continue;
    }
    if (push.stage != PushStage::kOpen && push.stage != PushStage::kClosed) continue;
    tensor.pipeline->Rewind();
    push.stage = PushStage::kWaiting;
    push.result_window.reset();
    waiting_for_window_.push_back(handle);
  }
  // A window that waits for its turn was no initial one's, or is gone.
  const auto gone = [this](TensorHandle handle) {
    return tensors_.at(handle).push.stage != PushStage::kWaiting;
  };
  std::erase_if(waiting_for_window_, gone);
  std::erase_if(encoding_, [this](TensorHandle handle) {
    return tensors_.at(handle).push.stage != PushStage::kEncoding;
  });
}

void Pushes::OnDeclaredAgain(TensorHandle handle, const control::Declared& declared) {
  TensorState& tensor = tensors_.at(handle);
  TensorPush& push = tensor.push;
  const bool shifts = link_.settings.policy == LossPolicy::kShift;
  const bool encoded = push.stage == PushStage::kWaiting;
  const bool counted = declared.has_counted() && declared.counted_round() >= push.round;
  if (encoded && (counted || push.told())) {  // never again
    std::erase(waiting_for_window_, handle);
    transport::ChunkBitmap chunks(counted ? tensor.shape.gradient().chunks() : 0);
    const std::string& bytes = declared.counted_chunks();
    if (bytes.empty()) {
      chunks.SetAll();
    } else {
      for (uint32_t c = 0; c < std::min<size_t>(chunks.size(), bytes.size() * 8); ++c) {
        if (static_cast<uint8_t>(bytes[c / 8]) >> (c % 8) & 1) chunks.Set(c);
      }
    }
    if (counted) CountIn(handle, declared.counted_round());
    return Conclude(handle, std::move(chunks));
  }
  if (shifts) {
    const bool begun = encoded || push.stage == PushStage::kEncoding;
    if (begun) {
      std::erase(waiting_for_window_, handle);
      std::erase(encoding_, handle);
      tensor.pipeline->Abandon();
    }
    if (tensor.pipeline->idle()) tensor.pipeline->ForgetEpoch();
    if (begun) BeginEncoding(handle);
  }
  Note(handle);
}

void Pushes::OnResultFetched(TensorHandle handle, const Status& outcome) {
  TensorPush& push = tensors_.at(handle).push;
  if (outcome.ok()) {
    push.result_stage = ResultStage::kOver;
  } else {
    push.refusal = outcome;
  }
  EndIfOver(handle);
}

// --- The end ---

void Pushes::EndIfOver(TensorHandle handle) {
  const TensorPush& push = tensors_.at(handle).push;
  if (push.over()) EndPush(handle, Status(push.refusal));
}

// No result window is open any more: a push that awaits one ends after it.
void Pushes::EndPush(TensorHandle handle, const Status& outcome) {
  TensorState& tensor = tensors_.at(handle);
  const TensorPush push = std::exchange(tensor.push, {});
  --active_;
  OperationStats& s = link_.operations.stats(push.operation);
  if (push.is_step && push.result_stage == ResultStage::kAwaited) unwanted_.push_back(push.operation);
  if (tensor.report && tensor.report_round == push.round) s.round_info = tensor.report;
  link_.Finish(push.operation, outcome);
  Note(handle);
}

void Pushes::CancelWindows() {
  for (const auto& [key, handle] : outgoing_) link_.connection()->CancelWindow(key);
}

void Pushes::End() {
  waiting_.clear();
  copying_.clear();
  settling_.clear();
  encoding_.clear();
  waiting_for_window_.clear();
  outgoing_.clear();
  wanted_.clear();
  fetched_.clear();
  unwanted_.clear();
  active_ = 0;
}

}  // namespace longhaul::worker
