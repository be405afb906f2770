#include "longhaul/client.h"

#include <condition_variable>
#include <mutex>
#include <utility>

#include "worker/client/arguments.h"
#include "worker/client/client_impl.h"
#include "worker/client/wan_client.h"
#include "worker/site/site_client.h"

namespace longhaul {
namespace internal {
namespace {

constexpr Duration kSayEvery = std::chrono::seconds(5);
// A client's thread answers at once, but for one whose callback blocks.
constexpr Duration kSoon = std::chrono::seconds(2);

}  // namespace

void ClientImpl::Release(std::shared_ptr<ClientImpl> impl) {
  if (!impl || !impl->OnOwnThread()) return;
  // Nothing reads the caller's memory any more when this returns.
  impl->EndWith(Destroyed());
  impl->EndOnOwnThread();
  ClientImpl& self = *impl;
  self.KeepUntilTheEnd(std::move(impl));
}

void ClientImpl::KeepState(const std::string& directory) {
  const auto warn = [calls = calls_](const std::string& text) { calls->Log(LogLevel::kWarning, text); };
  state_ = std::make_shared<WorkerState>(WorkerState::Options{
      .directory = directory, .rank = rank(), .job = [this] { return job(); }, .warn = warn});
}

Operation ClientImpl::Refused(Status why) {
  return Operation(std::make_shared<OperationState>(std::move(why)));
}

Status ClientImpl::InACallback(const char* what) {
  return {StatusCode::kFailedPrecondition, std::string(what) + " waits: not from a callback"};
}

bool ClientImpl::RunsSoon(const std::function<bool(std::function<void()>)>& post,
                          std::function<void()> command) {
  struct Run {
    std::mutex mutex;
    std::condition_variable over;
    bool done = false;
  };
  const auto run = std::make_shared<Run>();
  const bool posted = post([run, command = std::move(command)] {
    command();
    const std::lock_guard lock(run->mutex);
    run->done = true;
    run->over.notify_all();
  });
  if (!posted) return false;
  std::unique_lock lock(run->mutex);
  return run->over.wait_for(lock, kSoon, [&] { return run->done; });
}

void ClientImpl::EndWith(const Status& why) {
  try {
    outstanding_->SetGone(why);
  } catch (const std::bad_alloc&) {  // then that is the reason
  }
}

std::pair<Operation, ClientImpl::Promise> ClientImpl::NewOperation() {
  auto state = std::make_shared<OperationState>(calls_);
  auto promise = std::make_shared<Completion>(state, outstanding_);
  return {Operation(std::move(state)), std::move(promise)};
}

void ClientImpl::WaitForOperations() {
  // Ends by itself: so does each of them.
  std::unique_lock lock(outstanding_->mutex);
  while (!outstanding_->changed.wait_for(lock, kSayEvery, [this] { return outstanding_->count == 0; })) {
    const std::string text = "Leave waits for " + std::to_string(outstanding_->count) + " operations";
    lock.unlock();
    calls_->Log(LogLevel::kInfo, text);
    lock.lock();
  }
}

Tensor ClientImpl::MakeTensor(const std::string& name, const TensorOptions& options) const {
  Tensor tensor;
  tensor.name_ = name;
  tensor.count_ = options.count;
  tensor.dtype_ = options.dtype;
  tensor.owner_ = this;
  tensor.has_optimizer_ = options.optimizer != TensorOptions().optimizer;
  return tensor;
}

Status ClientImpl::CheckTensor(const Tensor& tensor) const {
  if (tensor.owner_ == this) return Status::Ok();
  return {StatusCode::kInvalidArgument, tensor.owner_ == nullptr ? "the tensor was never declared"
                                                                 : "the tensor belongs to another client"};
}

Status ClientImpl::CheckRequest(const Tensor& tensor, std::span<const float> values,
                                std::span<const float> out) const {
  for (const Status& check : {CheckTensor(tensor), worker::CheckMemory(values), worker::CheckMemory(out)}) {
    if (!check.ok()) return check;
  }
  if (!worker::Overlap(values, out)) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          "tensor " + tensor.name() + ": the result would overwrite the gradient, `out` overlaps `gradient`"};
}

Status ClientImpl::CheckPull(const Tensor& tensor, std::span<const float> out) const {
  if (Status s = CheckRequest(tensor, out); !s.ok()) return s;
  if (tensor.has_optimizer_) return Status::Ok();
  return {StatusCode::kFailedPrecondition,
          "tensor " + tensor.name() + " has no optimizer: the server keeps no parameters to pull"};
}

Status ClientImpl::CopyOwed(const Tensor& tensor, std::span<float> out) {
  if (UserCalls::InCallback()) return {StatusCode::kFailedPrecondition, "Owed waits: not from a callback"};
  for (const Status& check : {CheckRequest(tensor, {}, out), status()}) {
    if (!check.ok()) return check;
  }
  if (out.size() != tensor.count()) {
    return {StatusCode::kInvalidArgument, "tensor " + tensor.name() + " has " +
                                              std::to_string(tensor.count()) +
                                              " elements, there is memory for " + std::to_string(out.size())};
  }
  for (uint64_t first = 0; first < out.size();) {
    const Result<std::vector<float>> run = Owed(tensor, first, WorkerState::kRun);
    if (!run.ok()) return run.status();
    if (run->empty()) {  // nothing is owed from here on
      std::ranges::fill(out.subspan(first), 0.0f);
      break;
    }
    std::ranges::copy(*run, out.subspan(first).begin());
    first += run->size();
  }
  return Status::Ok();
}

Status ClientImpl::CheckScores(const Tensor& tensor, std::span<const float> scores) const {
  if (Status s = CheckTensor(tensor); !s.ok()) return s;
  if (Status s = worker::CheckMemory(scores); !s.ok()) return s;
  return worker::CheckScores(scores, tensor.count_);
}

}  // namespace internal

namespace {

Status Moved() { return {StatusCode::kFailedPrecondition, "this client has been moved from"}; }

// A push, which the state that is kept learns of before it begins and when it is over.
template <typename Begin>
Operation Told(const std::shared_ptr<internal::WorkerState>& state, Begin begin) {
  if (!state) return begin();
  state->BeginPush();
  const Operation push = begin();
  push.Then([state](const Status&) { state->EndPush(); });
  return push;
}

}  // namespace

Client::Client(std::shared_ptr<internal::ClientImpl> impl) : impl_(std::move(impl)) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&& other) noexcept {
  if (this != &other) internal::ClientImpl::Release(std::exchange(impl_, std::move(other.impl_)));
  return *this;
}
Client::~Client() { internal::ClientImpl::Release(std::move(impl_)); }

Result<Client> Client::Connect(const ConnectOptions& options) {
  if (UserCalls::InCallback()) {
    return Status(StatusCode::kFailedPrecondition, "Connect waits: not from a callback");
  }
  if (Status s = worker::CheckOptions(options); !s.ok()) return s;
  if (!options.state_dir.empty()) {
    const Status made = SystemFiles().MakeDirectory(options.state_dir);
    if (!made.ok() && made.code() != StatusCode::kAlreadyExists) return made;
  }
  Result<std::shared_ptr<internal::ClientImpl>> impl =
      options.offload.empty() ? internal::ConnectToServers(options) : internal::ConnectToSite(options);
  if (!impl.ok()) return impl.status();
  if (!options.state_dir.empty()) (*impl)->KeepState(options.state_dir);
  return Client(*std::move(impl));
}

Result<Tensor> Client::Declare(const std::string& name, const TensorOptions& options) {
  if (!impl_) return Moved();
  Result<Tensor> tensor = impl_->Declare(name, options);
  if (!tensor.ok() || !impl_->state()) return tensor;
  internal::ClientImpl* const impl = impl_.get();
  impl->state()->OnDeclared(
      {name, options.count,
       [impl, t = *tensor](uint64_t first, size_t most) { return impl->Owed(t, first, most); },
       [impl, t = *tensor](uint64_t first, std::vector<float> v) { impl->Owe(t, first, std::move(v)); }});
  return tensor;
}
Operation Client::Push(const Tensor& tensor, std::span<const float> gradient, const PushOptions& options) {
  if (!impl_) return internal::ClientImpl::Refused(Moved());
  return Told(impl_->state(), [&] { return impl_->Push(tensor, gradient, options); });
}
Operation Client::Pull(const Tensor& tensor, std::span<float> out, const PullOptions& options) {
  return impl_ ? impl_->Pull(tensor, out, options) : internal::ClientImpl::Refused(Moved());
}
Operation Client::PushPull(const Tensor& tensor, std::span<const float> gradient, std::span<float> out,
                           const PushOptions& options) {
  if (!impl_) return internal::ClientImpl::Refused(Moved());
  return Told(impl_->state(), [&] { return impl_->PushPull(tensor, gradient, out, options); });
}
Status Client::SetScores(const Tensor& tensor, std::span<const float> scores) {
  return impl_ ? impl_->SetScores(tensor, scores) : Moved();
}
Result<TensorClock> Client::Clock(const Tensor& tensor) { return impl_ ? impl_->Clock(tensor) : Moved(); }
Status Client::Owed(const Tensor& tensor, std::span<float> out) {
  return impl_ ? impl_->CopyOwed(tensor, out) : Moved();
}
Status Client::SaveState(std::span<const std::byte> blob) {
  if (!impl_) return Moved();
  if (UserCalls::InCallback())
    return {StatusCode::kFailedPrecondition, "SaveState waits: not from a callback"};
  if (!impl_->state()) return {StatusCode::kFailedPrecondition, "state_dir is empty: no state is kept"};
  if (Status s = impl_->status(); !s.ok()) return s;
  return impl_->state()->Save({reinterpret_cast<const uint8_t*>(blob.data()), blob.size()});
}
std::vector<std::byte> Client::LoadedState() const {
  if (!impl_ || !impl_->state()) return {};
  const std::span<const std::byte> blob = std::as_bytes(std::span(impl_->state()->blob()));
  return {blob.begin(), blob.end()};
}
Status Client::Barrier(const std::string& name) { return impl_ ? impl_->Barrier(name) : Moved(); }
Status Client::Leave(const Status& why) { return impl_ ? impl_->Leave(why) : Moved(); }
uint32_t Client::rank() const { return impl_ ? impl_->rank() : 0; }
uint32_t Client::world_size() const { return impl_ ? impl_->world_size() : 0; }
JobSpec Client::settings() const { return impl_ ? impl_->settings() : JobSpec(); }
Membership Client::membership() const { return impl_ ? impl_->membership() : Membership(); }
Status Client::status() const { return impl_ ? impl_->status() : Moved(); }
ClientStats Client::stats() const { return impl_ ? impl_->stats() : ClientStats(); }
bool Client::Answers() const { return impl_ && (impl_->Ask().has_value() || !impl_->status().ok()); }

}  // namespace longhaul
