// A session's questions for a tensor's clocks: asked when the server of the connection knows the tensor, and
// again by another connection. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "longhaul/stats.h"
#include "longhaul/status.h"
#include "worker/client/declarations.h"
#include "worker/client/server_link.h"

namespace longhaul::worker {

class ClockRequests {
 public:
  using Callback = std::function<void(const Result<TensorClock>&)>;

  ClockRequests(ServerLink* link, Declarations* tensors) : link_(*link), tensors_(*tensors) {}

  // None: it has ended, with the refusal. REQUIRES: the tensor is declared, where the refusal is Ok.
  std::optional<OperationId> Ask(TensorHandle handle, Callback callback, const Status& refusal);
  // The server of this connection knows the tensor.
  void Send(TensorHandle handle);
  void OnReply(const control::ClockReply& reply);
  void End();

 private:
  struct Pending {
    OperationId operation = 0;
    TensorHandle handle = 0;
    std::shared_ptr<TensorClock> clock;
  };

  ServerLink& link_;
  Declarations& tensors_;
  std::map<uint32_t, Pending> pending_;  // by request
};

}  // namespace longhaul::worker
