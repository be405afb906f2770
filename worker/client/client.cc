#include "longhaul/client.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "codec/fec/fec.h"
#include "proto/utf8.h"
#include "transport/keys/load_security.h"
#include "transport/udp/clock.h"
#include "transport/udp/event_loop.h"
#include "transport/udp/fault_injector.h"
#include "transport/udp/probe.h"
#include "transport/udp/resolve.h"
#include "worker/client/worker_core.h"

namespace longhaul {
namespace internal {

// What all handles of one operation share.
struct OperationState {
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;  // outcome and stats are fixed
  bool done = false;   // and the callbacks have run
  std::thread::id completing;
  Status outcome;
  OperationStats stats;
  std::vector<std::function<void(const Status&)>> callbacks;

  // The first call counts, later ones do nothing.
  void Complete(const Status& status, const OperationStats& final_stats) {
    std::unique_lock lock(mutex);
    if (ended) return;
    ended = true;
    completing = std::this_thread::get_id();
    outcome = status;
    stats = final_stats;
    // Before anything that waits goes on: it may take away what the callbacks use.
    while (!callbacks.empty()) {
      const auto to_call = std::exchange(callbacks, {});
      lock.unlock();
      for (const auto& callback : to_call) callback(status);
      lock.lock();
    }
    done = true;
    changed.notify_all();
  }
  // A callback sees its own operation done. REQUIRES: the mutex is held.
  bool Done() const { return done || (ended && completing == std::this_thread::get_id()); }
};

namespace {

// Operations that have begun and not ended, for Leave.
struct Outstanding {
  std::mutex mutex;
  std::condition_variable changed;
  size_t count = 0;

  void Add() {
    const std::lock_guard lock(mutex);
    ++count;
  }
  void Remove() {
    const std::lock_guard lock(mutex);
    --count;
    changed.notify_all();
  }
};

// Completes the operation; its destructor completes it with kCancelled.
class Completion {
 public:
  Completion(std::shared_ptr<OperationState> state, std::shared_ptr<Outstanding> outstanding)
      : state_(std::move(state)), outstanding_(std::move(outstanding)) {
    outstanding_->Add();
  }
  ~Completion() {
    End(Status(StatusCode::kCancelled, "the client was destroyed"), {});
    outstanding_->Remove();
  }
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  void End(const Status& outcome, const OperationStats& stats) { state_->Complete(outcome, stats); }

 private:
  std::shared_ptr<OperationState> state_;
  std::shared_ptr<Outstanding> outstanding_;
};

// A join that succeeds rarely takes longer; a probe's answer takes a round trip, of which most are shorter.
constexpr Duration kJoinHintEvery = std::chrono::seconds(1);
constexpr Duration kProbeWait = std::chrono::milliseconds(200);

// Descriptors of the erasure-code library are made once per process, before the first client's thread.
Result<codec::ErasureCoder*> SharedCoder() {
  static const Result<std::unique_ptr<codec::ErasureCodeLibrary>> coder = codec::ErasureCodeLibrary::Create();
  if (!coder.ok()) return coder.status();
  return static_cast<codec::ErasureCoder*>(coder->get());
}

Status CheckOptions(const ConnectOptions& o) {
  const auto invalid = [](std::string text) { return Status(StatusCode::kInvalidArgument, std::move(text)); };
  if (o.servers.size() != 1)
    return invalid("exactly one server address is needed, not " + std::to_string(o.servers.size()));
  if (o.job.size() > wire::kMaxNameBytes) return invalid("the job's name has at most 256 bytes");
  if (o.site.size() > wire::kMaxNameBytes) return invalid("the site's name has at most 256 bytes");
  if (!wire::IsPrintable(o.job)) return invalid("the job's name has control characters");
  if (!wire::IsPrintable(o.site)) return invalid("the site's name has control characters");
  if (o.world_size == 0 || o.world_size > 65536) return invalid("world_size must be in 1..65536");
  if (o.rank >= o.world_size) {
    return invalid("rank " + std::to_string(o.rank) + " is not below world_size " +
                   std::to_string(o.world_size));
  }
  if (!(o.weight >= kMinWeight && o.weight <= kMaxWeight)) return invalid("weight must be in 1e-6..1e9");
  if (o.idle_timeout < std::chrono::milliseconds(100) || o.idle_timeout > std::chrono::hours(24)) {
    return invalid("idle_timeout must be in 0.1 s..24 h");
  }
  if (o.connect_timeout < Duration(0)) return invalid("connect_timeout must not be negative");
  if (o.datagram_bytes < 1200 || o.datagram_bytes > 65507)
    return invalid("datagram_bytes must be in 1200..65507");
  if (!o.rate_cap.IsZero() && o.rate_floor > o.rate_cap) return invalid("rate_floor is above rate_cap");
  return Status::Ok();
}

Status CheckScores(std::span<const float> scores, uint64_t count) {
  if (scores.empty() || scores.size() > std::min<uint64_t>(count, wire::kMaxWindowChunks)) {
    return {StatusCode::kInvalidArgument, std::to_string(scores.size()) + " scores for a tensor of " +
                                              std::to_string(count) +
                                              " elements: 1 to 2^20, not more than elements"};
  }
  const auto bad = std::ranges::find_if(scores, [](float s) { return !(s >= 0 && std::isfinite(s)); });
  if (bad == scores.end()) return Status::Ok();
  return {StatusCode::kInvalidArgument, "score " + std::to_string(bad - scores.begin()) + " is " +
                                            std::to_string(*bad) + ", which is negative or not finite"};
}

bool Overlap(std::span<const float> a, std::span<const float> b) {
  const std::less<const float*> before;  // also of different arrays
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
         before(b.data(), a.data() + a.size());
}

worker::WorkerCoreOptions CoreOptions(const ConnectOptions& o, const keys::LoadedSecurity& security) {
  worker::WorkerCoreOptions core;
  core.job = security.job;
  core.security = security.security.get();
  core.site = o.site;
  core.rank = o.rank;
  core.world_size = o.world_size;
  core.incarnation = o.incarnation;
  core.weight = o.weight;
  core.connect_timeout = o.connect_timeout == Duration(0) ? o.idle_timeout : o.connect_timeout;
  core.connection.idle_timeout = o.idle_timeout;
  core.connection.keepalive = std::min<Duration>(core.connection.keepalive, o.idle_timeout / 4);
  core.connection.max_datagram = ByteCount(o.datagram_bytes);
  core.connection.rate.control = o.rate_controller;
  if (!o.rate_cap.IsZero()) core.connection.rate.cap = o.rate_cap;
  if (!o.rate_floor.IsZero()) core.connection.rate.floor = o.rate_floor;
  core.connection.rate.floor = std::min(core.connection.rate.floor, core.connection.rate.cap);
  return core;
}

}  // namespace

class ClientImpl {
 public:
  using State = worker::WorkerSession::State;

  static Result<std::shared_ptr<ClientImpl>> Connect(const ConnectOptions& options);
  ClientImpl(const ConnectOptions& options, keys::LoadedSecurity security, codec::ErasureCoder* coder);
  ~ClientImpl();

  Result<Tensor> Declare(const std::string& name, const TensorOptions& options);
  Operation Push(const Tensor& tensor, std::span<const float> gradient);
  Operation Pull(const Tensor& tensor, std::span<float> out, const PullOptions& options);
  Operation PushPull(const Tensor& tensor, std::span<const float> gradient, std::span<float> out);
  Status SetScores(const Tensor& tensor, std::span<const float> scores);
  Status Barrier(const std::string& name);
  Status Leave(const Status& why);
  Status status();
  ClientStats stats();
  uint32_t rank() const { return rank_; }
  uint32_t world_size() const { return world_size_; }
  const JobSpec& settings() const { return settings_; }  // fixed once Connect has returned

 private:
  using Promise = std::shared_ptr<Completion>;

  Status Open(const ConnectOptions& options);
  // Says every second why there may be no answer, when that changes.
  Status WaitUntilJoined(const ConnectOptions& options);
  std::string JoinHint();
  void OnState(State state);
  // Runs `request` on the loop's thread with the promise of the operation that is returned.
  template <typename Request>
  Operation Launch(Request request);
  Operation Refused(const Status& why);
  Status CheckTensor(const Tensor& tensor) const;
  bool OnLoopThread() const { return std::this_thread::get_id() == thread_id_; }

  static worker::WorkerCore::Callback Ending(Promise promise) {
    return [promise = std::move(promise)](const Status& outcome, const OperationStats& stats) {
      promise->End(outcome, stats);
    };
  }

  keys::LoadedSecurity security_;  // outlives the core
  std::shared_ptr<Outstanding> outstanding_ = std::make_shared<Outstanding>();
  const uint32_t rank_;
  const uint32_t world_size_;
  worker::WorkerCore core_;  // the loop's thread only
  Address server_;
  std::unique_ptr<udp::FaultInjector> faults_;
  std::unique_ptr<udp::EventLoop> loop_;
  std::thread thread_;
  std::thread::id thread_id_;  // set by Connect before any other thread has the client

  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kConnecting;
  Status failure_;
  JobSpec settings_;
  bool leaving_ = false;
};

// --- Life ---

Result<std::shared_ptr<ClientImpl>> ClientImpl::Connect(const ConnectOptions& options) {
  if (Status s = CheckOptions(options); !s.ok()) return s;
  Result<codec::ErasureCoder*> coder = SharedCoder();
  if (!coder.ok()) return coder.status();
  Result<keys::LoadedSecurity> security = keys::LoadSecurity({.key_file = options.key_file,
                                                              .insecure = options.insecure,
                                                              .job = options.job,
                                                              .cipher = options.cipher});
  if (!security.ok()) return security.status();
  auto impl = std::make_shared<ClientImpl>(options, *std::move(security), *coder);
  if (Status s = impl->Open(options); !s.ok()) return s;
  if (Status s = impl->WaitUntilJoined(options); !s.ok()) return s;
  return impl;
}

ClientImpl::ClientImpl(const ConnectOptions& options, keys::LoadedSecurity security,
                       codec::ErasureCoder* coder)
    : security_(std::move(security)),
      rank_(options.rank),
      world_size_(options.world_size),
      core_(CoreOptions(options, security_), coder,
            Random(options.seed == 0 ? udp::EntropySeed() : options.seed)) {}

Status ClientImpl::Open(const ConnectOptions& options) {
  Result<Address> server = udp::ResolvePeer(options.servers.front());
  if (!server.ok()) return server.status();
  server_ = *server;
  Result<udp::UdpSocket> socket = udp::UdpSocket::Open(udp::UdpSocket::AnyAddressFor(*server));
  if (!socket.ok()) return socket.status();
  const auto warn = [&options](const std::string& text) {
    if (options.log) options.log(LogLevel::kWarning, text);
  };
  for (const std::string& warning : socket->warnings()) warn(warning);
  if (!options.fault.empty()) {
    Result<udp::FaultOptions> faults = udp::ParseFaults(options.fault);
    if (!faults.ok()) return faults.status();
    faults_ = std::make_unique<udp::FaultInjector>(*faults);
    warn("faults are injected into this worker's own traffic: " + options.fault);
  }
  Result<std::unique_ptr<udp::EventLoop>> loop =
      udp::EventLoop::Create(&core_, *std::move(socket), faults_.get());
  if (!loop.ok()) return loop.status();
  loop_ = *std::move(loop);
  core_.SetStateListener([this](State state) { OnState(state); });
  core_.Start(udp::Now(), *server);
  thread_ = std::thread([this] { loop_->Run(); });
  thread_id_ = thread_.get_id();
  return Status::Ok();
}

Status ClientImpl::WaitUntilJoined(const ConnectOptions& options) {
  std::unique_lock lock(mutex_);
  std::string said;
  // Ends by itself: the core gives up after connect_timeout.
  while (!changed_.wait_for(lock, kJoinHintEvery, [this] { return state_ != State::kConnecting; })) {
    lock.unlock();
    const std::string hint = JoinHint();
    if (!hint.empty() && hint != said && options.log) {
      options.log(LogLevel::kWarning, "no answer from " + options.servers.front() + " yet: " + hint);
    }
    said = hint;
    lock.lock();
  }
  if (state_ == State::kFailed) return failure_;
  if (state_ == State::kLeft) return {StatusCode::kAborted, "the server ended the job"};
  return Status::Ok();
}

std::string ClientImpl::JoinHint() {
  auto hint = std::make_shared<std::promise<std::string>>();
  std::future<std::string> answer = hint->get_future();
  const auto ask = [this, hint, probe = udp::Probe(server_, kProbeWait)] {
    hint->set_value(core_.JoinHint(probe));
  };
  // Without a loop the promise is gone, and with it the answer.
  if (!loop_->Post(ask).ok() || answer.wait_for(kJoinHintEvery) != std::future_status::ready) return "";
  return answer.get();
}

ClientImpl::~ClientImpl() {
  if (!loop_) return;
  if (thread_.joinable()) {
    // Tells the server, ends what is pending; Stop lets the farewell leave and waits for no peer.
    (void)loop_->Post([this] { core_.Fail(Status(StatusCode::kCancelled, "the client was destroyed")); });
    (void)loop_->Post([this] { loop_->Stop(); });
    thread_.join();
  }
  loop_.reset();  // what was posted and did not run ends here
}

void ClientImpl::OnState(State state) {
  const std::lock_guard lock(mutex_);
  // Written once, before Connect returns: readers need no lock.
  if (state_ == State::kConnecting && core_.joined()) settings_ = core_.settings();
  state_ = state;
  if (state == State::kFailed) failure_ = core_.failure();
  changed_.notify_all();
}

// --- Operations ---

Operation ClientImpl::Refused(const Status& why) {
  auto state = std::make_shared<OperationState>();
  state->Complete(why, {});
  return Operation(std::move(state));
}

template <typename Request>
Operation ClientImpl::Launch(Request request) {
  auto state = std::make_shared<OperationState>();
  auto promise = std::make_shared<Completion>(state, outstanding_);
  {
    const std::lock_guard lock(mutex_);
    if (leaving_) {
      promise->End(Status(StatusCode::kFailedPrecondition, "this worker has left the job"), {});
      return Operation(std::move(state));
    }
  }
  const Status posted =
      loop_->Post([promise, request = std::move(request)]() mutable { request(std::move(promise)); });
  if (!posted.ok()) promise->End(posted, {});
  return Operation(std::move(state));
}

Status ClientImpl::CheckTensor(const Tensor& tensor) const {
  if (tensor.owner_ == this) return Status::Ok();
  return {StatusCode::kInvalidArgument, tensor.owner_ == nullptr ? "the tensor was never declared"
                                                                 : "the tensor belongs to another client"};
}

Result<Tensor> ClientImpl::Declare(const std::string& name, const TensorOptions& options) {
  if (OnLoopThread()) return Status(StatusCode::kFailedPrecondition, "Declare waits: not from a callback");
  Tensor tensor;
  tensor.name_ = name;
  tensor.count_ = options.count;
  tensor.dtype_ = options.dtype;
  tensor.owner_ = this;
  tensor.has_optimizer_ = options.optimizer != TensorOptions().optimizer;
  auto handle = std::make_shared<std::atomic<uint32_t>>(UINT32_MAX);
  worker::Declaration declaration{.name = name,
                                  .dtype = options.dtype,
                                  .wire_dtype = options.wire_dtype,
                                  .result_dtype = options.result_dtype,
                                  .priority = options.priority,
                                  .high_ranges = options.high_ranges,
                                  .high_share = options.high_share,
                                  .high_energy = options.high_energy,
                                  .count = options.count,
                                  .optimizer = options.optimizer,
                                  .initial = options.initial};
  const Operation declared =
      Launch([this, declaration = std::move(declaration), handle](const Promise& promise) {
        core_.Declare(declaration, [promise, handle](const Result<worker::TensorHandle>& result) {
          if (result.ok()) *handle = *result;
          promise->End(result.status(), {});
        });
      });
  if (Status s = declared.Wait(); !s.ok()) return s;
  tensor.handle_ = *handle;
  return tensor;
}

Operation ClientImpl::Push(const Tensor& tensor, std::span<const float> gradient) {
  if (Status s = CheckTensor(tensor); !s.ok()) return Refused(s);
  return Launch([this, handle = tensor.handle_, gradient](Promise promise) {
    core_.Push(handle, gradient, Ending(std::move(promise)));
  });
}

Operation ClientImpl::Pull(const Tensor& tensor, std::span<float> out, const PullOptions& options) {
  if (Status s = CheckTensor(tensor); !s.ok()) return Refused(s);
  if (!tensor.has_optimizer_) {
    return Refused(
        Status(StatusCode::kFailedPrecondition,
               "tensor " + tensor.name() + " has no optimizer: the server keeps no parameters to pull"));
  }
  return Launch([this, handle = tensor.handle_, out, min_round = options.min_round](Promise promise) {
    core_.Pull(handle, out, min_round, Ending(std::move(promise)));
  });
}

Operation ClientImpl::PushPull(const Tensor& tensor, std::span<const float> gradient, std::span<float> out) {
  if (Status s = CheckTensor(tensor); !s.ok()) return Refused(s);
  if (Overlap(gradient, out)) {
    return Refused(
        Status(StatusCode::kInvalidArgument, "tensor " + tensor.name() +
                                                 ": the result would overwrite the gradient, `out` "
                                                 "overlaps `gradient`"));
  }
  return Launch([this, handle = tensor.handle_, gradient, out](Promise promise) {
    core_.PushPull(handle, gradient, out, Ending(std::move(promise)));
  });
}

Status ClientImpl::SetScores(const Tensor& tensor, std::span<const float> scores) {
  if (Status s = CheckTensor(tensor); !s.ok()) return s;
  if (Status s = CheckScores(scores, tensor.count_); !s.ok()) return s;
  return loop_->Post(
      [this, handle = tensor.handle_, copy = std::vector<float>(scores.begin(), scores.end())]() mutable {
        core_.SetScores(handle, std::move(copy));
      });
}

Status ClientImpl::Barrier(const std::string& name) {
  if (OnLoopThread()) return {StatusCode::kFailedPrecondition, "Barrier waits: not from a callback"};
  return Launch([this, name](Promise promise) { core_.Barrier(name, Ending(std::move(promise))); }).Wait();
}

Status ClientImpl::Leave(const Status& why) {
  if (OnLoopThread()) return {StatusCode::kFailedPrecondition, "Leave waits: not from a callback"};
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  if (why.ok()) {
    std::unique_lock lock(outstanding_->mutex);
    outstanding_->changed.wait(lock, [this] { return outstanding_->count == 0; });
  }
  const Status posted = loop_->Post([this, why] { core_.Leave(why); });
  if (!posted.ok()) return posted;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return state_ == State::kLeft || state_ == State::kFailed; });
  return failure_;
}

// --- Questions ---

Status ClientImpl::status() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kFailed) return failure_;
  if (leaving_ || state_ == State::kLeft) {
    return {StatusCode::kFailedPrecondition, "this worker has left the job"};
  }
  return Status::Ok();
}

ClientStats ClientImpl::stats() {
  if (OnLoopThread()) return core_.stats();
  auto answer = std::make_shared<ClientStats>();
  auto state = std::make_shared<OperationState>();
  auto promise = std::make_shared<Completion>(state, std::make_shared<Outstanding>());
  const Status posted = loop_->Post([this, answer, promise] {
    *answer = core_.stats();
    promise->End(Status::Ok(), {});
  });
  if (!posted.ok()) return {};
  promise.reset();
  (void)Operation(state).Wait();
  return *answer;
}

}  // namespace internal

// --- Operation ---

Operation::Operation() : state_(std::make_shared<internal::OperationState>()) {
  state_->Complete(Status(StatusCode::kFailedPrecondition, "no operation"), {});
}

Status Operation::Wait() const {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->Done(); });
  return state_->outcome;
}

Status Operation::WaitFor(Duration limit) const {
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_for(lock, limit, [this] { return state_->Done(); })) {
    return {StatusCode::kDeadlineExceeded, "the operation is still on its way"};
  }
  return state_->outcome;
}

bool Operation::done() const {
  const std::lock_guard lock(state_->mutex);
  return state_->Done();
}

void Operation::Then(std::function<void(const Status&)> callback) const {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->Done()) {
      state_->callbacks.push_back(std::move(callback));
      return;
    }
  }
  callback(state_->outcome);  // does not change any more
}

OperationStats Operation::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

// --- Client ---

Client::Client(std::shared_ptr<internal::ClientImpl> impl) : impl_(std::move(impl)) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

Result<Client> Client::Connect(const ConnectOptions& options) {
  Result<std::shared_ptr<internal::ClientImpl>> impl = internal::ClientImpl::Connect(options);
  if (!impl.ok()) return impl.status();
  return Client(*std::move(impl));
}

Result<Tensor> Client::Declare(const std::string& name, const TensorOptions& options) {
  return impl_->Declare(name, options);
}
Operation Client::Push(const Tensor& tensor, std::span<const float> gradient) {
  return impl_->Push(tensor, gradient);
}
Operation Client::Pull(const Tensor& tensor, std::span<float> out, const PullOptions& options) {
  return impl_->Pull(tensor, out, options);
}
Operation Client::PushPull(const Tensor& tensor, std::span<const float> gradient, std::span<float> out) {
  return impl_->PushPull(tensor, gradient, out);
}
Status Client::SetScores(const Tensor& tensor, std::span<const float> scores) {
  return impl_->SetScores(tensor, scores);
}
Status Client::Barrier(const std::string& name) { return impl_->Barrier(name); }
Status Client::Leave(const Status& why) { return impl_->Leave(why); }
uint32_t Client::rank() const { return impl_->rank(); }
uint32_t Client::world_size() const { return impl_->world_size(); }
JobSpec Client::settings() const { return impl_->settings(); }
Status Client::status() const { return impl_->status(); }
ClientStats Client::stats() const { return impl_->stats(); }

}  // namespace longhaul
