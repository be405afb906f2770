// The tensors of a worker's session, and how they are declared: said to the server, answered, and given what
// their pushes need.
//
// Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "longhaul/status.h"
#include "worker/client/server_link.h"
#include "worker/client/tensor_state.h"

namespace longhaul::worker {

class Declarations {
 public:
  using Callback = std::function<void(const Result<TensorHandle>&)>;

  explicit Declarations(ServerLink* link) : link_(*link) {}

  // refusal: why the session takes no requests, or Ok. Before the job has started the server hears of it in
  // OnStart. None: the operation has ended at once.
  std::optional<std::pair<OperationId, TensorHandle>> Declare(const Declaration& declaration,
                                                              Callback callback, Status refusal,
                                                              bool started);
  // Also what the server of an earlier connection knew.
  void OnStart();
  // Nothing is known to a server until it is said again.
  void OnConnectionLost();
  struct Answer {
    TensorHandle handle = 0;
    bool send_initial = false;  // the server wants the values now; the declaration ends with Finish
    bool again = false;         // it was declared before, to an earlier connection's server
  };
  std::optional<Answer> OnDeclared(const control::Declared& declared);
  // The declaration ends, for all that wait for it.
  void Finish(TensorHandle handle, const Status& outcome);

  TensorState& at(TensorHandle handle) { return *tensors_[handle]; }
  const TensorState& at(TensorHandle handle) const { return *tensors_[handle]; }
  size_t size() const { return tensors_.size(); }
  // By the server's name for it; none: no such tensor is declared.
  std::optional<TensorHandle> Find(uint32_t key) const;
  // Ok when the tensor is declared and has so many elements.
  Status CheckDeclared(TensorHandle handle) const;
  Status CheckElements(TensorHandle handle, size_t elements) const;
  // The job is over: nothing is under way any more.
  void End();

 private:
  void Send(TensorHandle handle);
  bool FitsWindow(const codec::ChunkGeometry& geometry) const;
  void MakePipeline(TensorState& tensor);
  // Ok, or why this worker cannot go on with a server that answers this.
  Status CheckGoesOn(const TensorState& tensor, const control::Declared& declared) const;

  ServerLink& link_;
  std::vector<std::unique_ptr<TensorState>> tensors_;  // by handle
  std::unordered_map<std::string, TensorHandle> handle_by_name_;
  std::unordered_map<uint32_t, TensorHandle> handle_by_key_;
};

}  // namespace longhaul::worker
