// What stands behind the handle of a client: one worker of its own on the WAN (wan_client.h), or a rank of a
// site (worker/site/site_client.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/user_calls.h"
#include "longhaul/client.h"
#include "worker/client/operation_state.h"
#include "worker/client/worker_state.h"

namespace longhaul::internal {

class ClientImpl {
 public:
  explicit ClientImpl(const LogCallback& log) : calls_(std::make_shared<UserCalls>(log)) {}
  virtual ~ClientImpl() = default;
  // The handle is gone. From one of its own callbacks the client goes on to its end by itself.
  static void Release(std::shared_ptr<ClientImpl> impl);
  // On a thread of the client's, which callbacks run on.
  virtual bool OnOwnThread() const { return std::this_thread::get_id() == thread_id_; }
  // REQUIRES: it was not moved from.
  static ClientImpl& Of(const Client& client) { return *client.impl_; }

  // As those of Client.
  virtual Result<Tensor> Declare(const std::string& name, const TensorOptions& options) = 0;
  virtual Operation Push(const Tensor& tensor, std::span<const float> gradient,
                         const PushOptions& options) = 0;
  virtual Operation Pull(const Tensor& tensor, std::span<float> out, const PullOptions& options) = 0;
  virtual Operation PushPull(const Tensor& tensor, std::span<const float> gradient, std::span<float> out,
                             const PushOptions& options) = 0;
  virtual Status SetScores(const Tensor& tensor, std::span<const float> scores) = 0;
  virtual Result<TensorClock> Clock(const Tensor& tensor) = 0;
  virtual Status Barrier(const std::string& name) = 0;
  virtual Status Leave(const Status& why) = 0;
  virtual uint32_t rank() const = 0;
  virtual uint32_t world_size() const = 0;
  virtual JobSpec settings() const = 0;
  virtual Membership membership() = 0;
  virtual Status status() = 0;
  virtual ClientStats stats() = 0;
  // As stats(), but nothing when the client's thread does not answer for 2 s, or has ended.
  virtual std::optional<ClientStats> Ask() = 0;
  // Of the server's jobs, the one that the client has joined: no two have the same. 0: the server does not
  // say.
  virtual uint64_t job() const { return 0; }
  // How many servers the job has.
  virtual uint32_t servers() const { return 1; }
  // To the first server (control.HandOver). Any thread.
  virtual void AnswerHandOver(uint32_t phase, uint64_t round) { (void)phase, (void)round; }
  // What WorkerState::Declared asks for; of a site's rank nothing is owed, but of the site.
  virtual Result<std::vector<float>> Owed(const Tensor&, uint64_t, size_t) { return std::vector<float>(); }
  virtual void Owe(const Tensor&, uint64_t, std::vector<float>&&) {}
  // As Client::Owed.
  virtual Status CopyOwed(const Tensor& tensor, std::span<float> out);
  void KeepState(const std::string& directory);
  const std::shared_ptr<WorkerState>& state() const { return state_; }  // null: none is kept
  // Ends everything without a word: to the server it is as if the process had died. On no thread of the
  // client's.
  virtual void Vanish() {}

  static Operation Refused(Status why);

 protected:
  using Promise = std::shared_ptr<Completion>;

  // Ends everything at once; called on its own thread, which destroys the client with `own_` when it is done.
  virtual void EndOnOwnThread() = 0;
  // Takes what keeps the client alive until then.
  virtual void KeepUntilTheEnd(std::shared_ptr<ClientImpl> self) { own_ = std::move(self); }

  // Whether `command`, which `post` gives to the client's thread, has run within 2 s. It may run later: what
  // it uses is its own.
  static bool RunsSoon(const std::function<bool(std::function<void()>)>& post, std::function<void()> command);

  static Status Destroyed() { return {StatusCode::kCancelled, "the client was destroyed"}; }
  static Status HasLeft() { return {StatusCode::kFailedPrecondition, "this worker has left the job"}; }
  static Status InACallback(const char* what);
  // Operations that get no other outcome have this one.
  void EndWith(const Status& why);
  // A new operation, and the promise of its end.
  std::pair<Operation, Promise> NewOperation();
  // Returns when no operation is pending. REQUIRES: none begins any more.
  void WaitForOperations();

  Tensor MakeTensor(const std::string& name, const TensorOptions& options) const;
  static void SetHandle(uint32_t handle, Tensor* tensor) { tensor->handle_ = handle; }
  static uint32_t HandleOf(const Tensor& tensor) { return tensor.handle_; }
  Status CheckTensor(const Tensor& tensor) const;
  // Also the spans; `out` may be empty.
  Status CheckRequest(const Tensor& tensor, std::span<const float> values,
                      std::span<const float> out = {}) const;
  Status CheckPull(const Tensor& tensor, std::span<const float> out) const;
  Status CheckScores(const Tensor& tensor, std::span<const float> scores) const;

  const std::shared_ptr<UserCalls> calls_;
  const std::shared_ptr<Outstanding> outstanding_ = std::make_shared<Outstanding>();
  std::thread::id thread_id_;           // set before any other thread has the client
  std::shared_ptr<WorkerState> state_;  // set with thread_id_
  std::shared_ptr<ClientImpl> own_;     // its own thread only; itself, when its end is that thread's
};

}  // namespace longhaul::internal
