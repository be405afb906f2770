#include "worker/client/barrier_requests.h"

#include <utility>

#include "proto/utf8.h"

namespace longhaul::worker {

void BarrierRequests::Begin(const std::string& name, Operations::Callback callback, Status refusal,
                            bool started) {
  if (refusal.ok() && (name.empty() || name.size() > wire::kMaxNameBytes)) {
    refusal = Status(StatusCode::kInvalidArgument, "a barrier's name has 1..256 bytes");
  } else if (refusal.ok() && !wire::IsPrintable(name)) {
    refusal = Status(StatusCode::kInvalidArgument, "a barrier's name has no control characters");
  }
  const auto operation = link_.Begin(refusal, std::move(callback));
  if (!operation) return;
  const uint32_t request = link_.NextRequest();
  control::ControlMessage message;
  message.mutable_barrier()->set_request(request);
  message.mutable_barrier()->set_name(name);
  pending_[request] = {*operation, message};
  deadlines_.Begin({*operation, [request] { return request; },
                    [this, request](const Status& outcome) { Finish(request, outcome); }});
  if (started) link_.Send(message);
}

void BarrierRequests::OnStart() {
  for (const auto& [request, barrier] : pending_) link_.Send(barrier.message);
}

void BarrierRequests::Finish(uint32_t request, const Status& outcome) {
  const auto it = pending_.find(request);
  if (it == pending_.end()) return;
  link_.Finish(it->second.operation, outcome);
  pending_.erase(it);
}

}  // namespace longhaul::worker
