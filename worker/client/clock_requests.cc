#include "worker/client/clock_requests.h"

#include <utility>

namespace longhaul::worker {

std::optional<OperationId> ClockRequests::Ask(TensorHandle handle, Callback callback, const Status& refusal) {
  auto clock = std::make_shared<TensorClock>();
  const auto operation = link_.Begin(
      refusal, [callback = std::move(callback), clock](const Status& outcome, const OperationStats&) {
        callback(outcome.ok() ? Result<TensorClock>(*clock) : Result<TensorClock>(outcome));
      });
  if (!operation) return std::nullopt;
  pending_[link_.NextRequest()] = {*operation, handle, clock};
  Send(handle);
  return operation;
}

void ClockRequests::Send(TensorHandle handle) {
  if (!tensors_.at(handle).attached) return;
  for (const auto& [request, pending] : pending_) {
    if (pending.handle != handle) continue;
    control::ControlMessage message;
    message.mutable_clock_request()->set_request(request);
    message.mutable_clock_request()->set_key(tensors_.at(handle).shape.key);
    link_.Send(message);
  }
}

void ClockRequests::OnReply(const control::ClockReply& reply) {
  const auto found = pending_.find(reply.request());
  if (found == pending_.end()) return;  // it was asked for twice
  *found->second.clock = {
      .own = reply.own(), .slowest = reply.slowest(), .fastest = reply.fastest(), .members = reply.members()};
  link_.Finish(found->second.operation, Status::Ok());
  pending_.erase(found);
}

void ClockRequests::End() { pending_.clear(); }

}  // namespace longhaul::worker
