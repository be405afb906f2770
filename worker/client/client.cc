#include "longhaul/client.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/user_calls.h"
#include "codec/fec/fec.h"
#include "transport/keys/load_security.h"
#include "transport/udp/clock.h"
#include "transport/udp/event_loop.h"
#include "transport/udp/fault_injector.h"
#include "transport/udp/probe.h"
#include "transport/udp/resolve.h"
#include "worker/client/arguments.h"
#include "worker/client/operation_state.h"
#include "worker/client/worker_core.h"

namespace longhaul {
namespace internal {
namespace {

// A join that succeeds rarely takes longer; a probe's answer takes a round trip, of which most are shorter.
constexpr Duration kJoinHintEvery = std::chrono::seconds(1);
constexpr Duration kSayEvery = std::chrono::seconds(5);
constexpr Duration kProbeWait = std::chrono::milliseconds(200);
// A loop answers at once, but for one whose callback blocks.
constexpr Duration kStatsWait = std::chrono::seconds(2);

Status Destroyed() { return {StatusCode::kCancelled, "the client was destroyed"}; }

Status InACallback(const char* what) {
  return {StatusCode::kFailedPrecondition, std::string(what) + " waits: not from a callback"};
}

// Descriptors of the erasure-code library are made once per process, before the first client's thread.
Result<codec::ErasureCoder*> SharedCoder() {
  static const Result<std::unique_ptr<codec::ErasureCodeLibrary>> coder = codec::ErasureCodeLibrary::Create();
  if (!coder.ok()) return coder.status();
  return static_cast<codec::ErasureCoder*>(coder->get());
}

worker::WorkerCoreOptions CoreOptions(const ConnectOptions& o, const keys::LoadedSecurity& security,
                                      const std::shared_ptr<UserCalls>& calls) {
  worker::WorkerCoreOptions core;
  core.job = security.job;
  core.security = security.security();
  core.site = o.site;
  core.rank = o.rank;
  core.world_size = o.world_size;
  core.incarnation = o.incarnation;
  core.weight = o.weight;
  core.connect_timeout = o.connect_timeout == Duration(0) ? o.idle_timeout : o.connect_timeout;
  core.wait_timeout = o.wait_timeout;
  core.say = [calls](const std::string& text) { calls->Log(LogLevel::kInfo, text); };
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
  // The handle is gone. From one of its own callbacks the client goes on to its end by itself.
  static void Release(std::shared_ptr<ClientImpl> impl);

  Result<Tensor> Declare(const std::string& name, const TensorOptions& options);
  Operation Push(const Tensor& tensor, std::span<const float> gradient);
  Operation Pull(const Tensor& tensor, std::span<float> out, const PullOptions& options);
  Operation PushPull(const Tensor& tensor, std::span<const float> gradient, std::span<float> out);
  Status SetScores(const Tensor& tensor, std::span<const float> scores);
  Status Barrier(const std::string& name);
  Status Leave(const Status& why);
  Status status();
  ClientStats stats();
  static Operation Refused(Status why);
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
  void Abandon(const Status& why);
  // Operations that get no other outcome have this one.
  void EndWith(const Status& why);
  // Runs `request` on the loop's thread with the promise of the operation that is returned.
  template <typename Request>
  Operation Launch(Request request);
  // Also the spans; `out` may be empty.
  Status CheckRequest(const Tensor& tensor, std::span<const float> values,
                      std::span<const float> out = {}) const;
  Status CheckTensor(const Tensor& tensor) const;
  ClientStats StatsNow() const;  // on the loop's thread
  bool OnLoopThread() const { return std::this_thread::get_id() == thread_id_; }

  static worker::WorkerCore::Callback Ending(Promise promise) {
    return [promise = std::move(promise)](const Status& outcome, const OperationStats& stats) {
      promise->End(outcome, stats);
    };
  }

  keys::LoadedSecurity security_;  // outlives the core
  const std::shared_ptr<UserCalls> calls_;
  std::shared_ptr<Outstanding> outstanding_ = std::make_shared<Outstanding>();
  const uint32_t rank_;
  const uint32_t world_size_;
  std::optional<worker::WorkerCore> core_;  // the loop's thread only; gone when that ran out of memory
  Address server_;
  std::unique_ptr<udp::FaultInjector> faults_;
  std::unique_ptr<udp::EventLoop> loop_;
  std::thread thread_;
  std::thread::id thread_id_;        // set by Connect before any other thread has the client
  std::shared_ptr<ClientImpl> own_;  // the loop's thread only; itself, when its end is that thread's

  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kConnecting;
  Status failure_;
  ClientStats last_stats_;
  JobSpec settings_;
  bool leaving_ = false;
};

// --- Life ---

Result<std::shared_ptr<ClientImpl>> ClientImpl::Connect(const ConnectOptions& options) {
  if (UserCalls::InCallback()) return InACallback("Connect");
  if (Status s = worker::CheckOptions(options); !s.ok()) return s;
  Result<codec::ErasureCoder*> coder = SharedCoder();
  if (!coder.ok()) return coder.status();
  Result<keys::LoadedSecurity> security = keys::LoadSecurity({.key_file = options.key_file,
                                                              .insecure = options.insecure,
                                                              .job = options.job,
                                                              .cipher = options.cipher,
                                                              .expected_server = options.server_name});
  if (!security.ok()) return security.status();
  auto impl = std::make_shared<ClientImpl>(options, *std::move(security), *coder);
  if (Status s = impl->Open(options); !s.ok()) return s;
  if (Status s = impl->WaitUntilJoined(options); !s.ok()) return s;
  return impl;
}

ClientImpl::ClientImpl(const ConnectOptions& options, keys::LoadedSecurity security,
                       codec::ErasureCoder* coder)
    : security_(std::move(security)),
      calls_(std::make_shared<UserCalls>(options.log)),
      rank_(options.rank),
      world_size_(options.world_size),
      core_(std::in_place, CoreOptions(options, security_, calls_), coder,
            Random(options.seed == 0 ? udp::EntropySeed() : options.seed)) {}

Status ClientImpl::Open(const ConnectOptions& options) {
  Result<Address> server = udp::ResolvePeer(options.servers.front());
  if (!server.ok()) return server.status();
  server_ = *server;
  Result<udp::UdpSocket> socket = udp::UdpSocket::Open(udp::UdpSocket::AnyAddressFor(*server));
  if (!socket.ok()) return socket.status();
  const auto warn = [this](const std::string& text) { calls_->Log(LogLevel::kWarning, text); };
  for (const std::string& warning : socket->warnings()) warn(warning);
  if (!options.fault.empty()) {
    Result<udp::FaultOptions> faults = udp::ParseFaults(options.fault);
    if (!faults.ok()) return faults.status();
    faults_ = std::make_unique<udp::FaultInjector>(*faults);
    warn("faults are injected into this worker's own traffic: " + options.fault);
  }
  Result<std::unique_ptr<udp::EventLoop>> loop =
      udp::EventLoop::Create(&*core_, *std::move(socket), faults_.get());
  if (!loop.ok()) return loop.status();
  loop_ = *std::move(loop);
  core_->SetStateListener([this](State state) { OnState(state); });
  core_->Start(udp::Now(), *server);
  try {
    thread_ = std::thread([this] {
      loop_->Run();
      if (!loop_->failure().ok()) Abandon(loop_->failure());
      const std::shared_ptr<ClientImpl> last = std::move(own_);
    });
  } catch (const std::system_error& error) {
    return {StatusCode::kInternal, std::string("no thread for the client: ") + error.what()};
  }
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
    if (!hint.empty() && hint != said) {
      calls_->Log(LogLevel::kWarning, "no answer from " + options.servers.front() + " yet: " + hint);
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
    hint->set_value(core_->JoinHint(probe));
  };
  // Without a loop the promise is gone, and with it the answer.
  if (!loop_->Post(ask).ok() || answer.wait_for(kJoinHintEvery) != std::future_status::ready) return "";
  return answer.get();
}

void ClientImpl::EndWith(const Status& why) {
  try {
    outstanding_->SetGone(why);
  } catch (const std::bad_alloc&) {  // then that is the reason
  }
}

ClientImpl::~ClientImpl() {
  if (!loop_) return;
  EndWith(Destroyed());
  if (OnLoopThread()) {
    thread_.detach();  // this is its last deed
  } else if (thread_.joinable()) {
    // Tells the server, ends what is pending; Stop lets the farewell leave and waits for no peer.
    (void)loop_->Post([this] { core_->Fail(Destroyed()); });
    loop_->Stop();
    thread_.join();
  }
  loop_.reset();  // what was posted and did not run ends here
}

void ClientImpl::Release(std::shared_ptr<ClientImpl> impl) {
  if (!impl || !impl->OnLoopThread()) return;
  // Nothing reads the caller's memory any more when this returns.
  impl->EndWith(Destroyed());
  if (impl->core_) impl->core_->Fail(Destroyed());
  impl->loop_->Stop();
  ClientImpl& self = *impl;
  self.own_ = std::move(impl);
}

// The loop has ended in the middle of an event: everything pending ends with it.
void ClientImpl::Abandon(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    state_ = State::kFailed;
    failure_ = why;
    changed_.notify_all();
  }
  core_.reset();
}

void ClientImpl::OnState(State state) {
  const std::lock_guard lock(mutex_);
  // Written once, before Connect returns: readers need no lock.
  if (state_ == State::kConnecting && core_->joined()) settings_ = core_->settings();
  state_ = state;
  if (state == State::kFailed) failure_ = core_->failure();
  changed_.notify_all();
}

// --- Operations ---

Operation ClientImpl::Refused(Status why) {
  return Operation(std::make_shared<OperationState>(std::move(why)));
}

template <typename Request>
Operation ClientImpl::Launch(Request request) {
  auto state = std::make_shared<OperationState>(calls_);
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

Status ClientImpl::CheckRequest(const Tensor& tensor, std::span<const float> values,
                                std::span<const float> out) const {
  for (const Status& check : {CheckTensor(tensor), worker::CheckMemory(values), worker::CheckMemory(out)}) {
    if (!check.ok()) return check;
  }
  if (!worker::Overlap(values, out)) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          "tensor " + tensor.name() + ": the result would overwrite the gradient, `out` overlaps `gradient`"};
}

Result<Tensor> ClientImpl::Declare(const std::string& name, const TensorOptions& options) {
  if (UserCalls::InCallback()) return InACallback("Declare");
  if (Status s = worker::CheckInitial(options.initial); !s.ok()) return s;
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
        core_->Declare(declaration, [promise, handle](const Result<worker::TensorHandle>& result) {
          if (result.ok()) *handle = *result;
          promise->End(result.status(), {});
        });
      });
  if (Status s = declared.Wait(); !s.ok()) return s;
  tensor.handle_ = *handle;
  return tensor;
}

Operation ClientImpl::Push(const Tensor& tensor, std::span<const float> gradient) {
  if (Status s = CheckRequest(tensor, gradient); !s.ok()) return Refused(s);
  return Launch([this, handle = tensor.handle_, gradient](Promise promise) {
    core_->Push(handle, gradient, Ending(std::move(promise)));
  });
}

Operation ClientImpl::Pull(const Tensor& tensor, std::span<float> out, const PullOptions& options) {
  if (Status s = CheckRequest(tensor, out); !s.ok()) return Refused(s);
  if (!tensor.has_optimizer_) {
    return Refused(
        Status(StatusCode::kFailedPrecondition,
               "tensor " + tensor.name() + " has no optimizer: the server keeps no parameters to pull"));
  }
  return Launch([this, handle = tensor.handle_, out, min_round = options.min_round](Promise promise) {
    core_->Pull(handle, out, min_round, Ending(std::move(promise)));
  });
}

Operation ClientImpl::PushPull(const Tensor& tensor, std::span<const float> gradient, std::span<float> out) {
  if (Status s = CheckRequest(tensor, gradient, out); !s.ok()) return Refused(s);
  return Launch([this, handle = tensor.handle_, gradient, out](Promise promise) {
    core_->PushPull(handle, gradient, out, Ending(std::move(promise)));
  });
}

Status ClientImpl::SetScores(const Tensor& tensor, std::span<const float> scores) {
  if (Status s = CheckTensor(tensor); !s.ok()) return s;
  if (Status s = worker::CheckMemory(scores); !s.ok()) return s;
  if (Status s = worker::CheckScores(scores, tensor.count_); !s.ok()) return s;
  return loop_->Post(
      [this, handle = tensor.handle_, copy = std::vector<float>(scores.begin(), scores.end())]() mutable {
        core_->SetScores(handle, std::move(copy));
      });
}

Status ClientImpl::Barrier(const std::string& name) {
  if (UserCalls::InCallback()) return InACallback("Barrier");
  return Launch([this, name](Promise promise) { core_->Barrier(name, Ending(std::move(promise))); }).Wait();
}

Status ClientImpl::Leave(const Status& why) {
  if (UserCalls::InCallback()) return InACallback("Leave");
  if (Status s = worker::CheckCode(why); !s.ok()) return s;
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  if (why.ok()) {
    // Ends by itself: so does each of them.
    std::unique_lock lock(outstanding_->mutex);
    while (!outstanding_->changed.wait_for(lock, kSayEvery, [this] { return outstanding_->count == 0; })) {
      const std::string text = "Leave waits for " + std::to_string(outstanding_->count) + " operations";
      lock.unlock();
      calls_->Log(LogLevel::kInfo, text);
      lock.lock();
    }
  }
  const Status posted = loop_->Post([this, why] { core_->Leave(why); });
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

ClientStats ClientImpl::StatsNow() const {
  if (!core_) return {};
  ClientStats stats = core_->stats();
  stats.callbacks_threw = calls_->threw();
  return stats;
}

ClientStats ClientImpl::stats() {
  if (OnLoopThread()) return StatsNow();
  auto answer = std::make_shared<std::promise<ClientStats>>();
  std::future<ClientStats> ready = answer->get_future();
  const Status posted = loop_->Post([this, answer] { answer->set_value(StatsNow()); });
  const bool answered = posted.ok() && ready.wait_for(kStatsWait) == std::future_status::ready;
  const std::lock_guard lock(mutex_);
  if (answered) last_stats_ = ready.get();
  return last_stats_;
}

}  // namespace internal

// --- Client ---

namespace {

Status Moved() { return {StatusCode::kFailedPrecondition, "this client has been moved from"}; }

}  // namespace

Client::Client(std::shared_ptr<internal::ClientImpl> impl) : impl_(std::move(impl)) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&& other) noexcept {
  if (this != &other) internal::ClientImpl::Release(std::exchange(impl_, std::move(other.impl_)));
  return *this;
}
Client::~Client() { internal::ClientImpl::Release(std::move(impl_)); }

Result<Client> Client::Connect(const ConnectOptions& options) {
  Result<std::shared_ptr<internal::ClientImpl>> impl = internal::ClientImpl::Connect(options);
  if (!impl.ok()) return impl.status();
  return Client(*std::move(impl));
}

Result<Tensor> Client::Declare(const std::string& name, const TensorOptions& options) {
  return impl_ ? impl_->Declare(name, options) : Moved();
}
Operation Client::Push(const Tensor& tensor, std::span<const float> gradient) {
  return impl_ ? impl_->Push(tensor, gradient) : internal::ClientImpl::Refused(Moved());
}
Operation Client::Pull(const Tensor& tensor, std::span<float> out, const PullOptions& options) {
  return impl_ ? impl_->Pull(tensor, out, options) : internal::ClientImpl::Refused(Moved());
}
Operation Client::PushPull(const Tensor& tensor, std::span<const float> gradient, std::span<float> out) {
  return impl_ ? impl_->PushPull(tensor, gradient, out) : internal::ClientImpl::Refused(Moved());
}
Status Client::SetScores(const Tensor& tensor, std::span<const float> scores) {
  return impl_ ? impl_->SetScores(tensor, scores) : Moved();
}
Status Client::Barrier(const std::string& name) { return impl_ ? impl_->Barrier(name) : Moved(); }
Status Client::Leave(const Status& why) { return impl_ ? impl_->Leave(why) : Moved(); }
uint32_t Client::rank() const { return impl_ ? impl_->rank() : 0; }
uint32_t Client::world_size() const { return impl_ ? impl_->world_size() : 0; }
JobSpec Client::settings() const { return impl_ ? impl_->settings() : JobSpec(); }
Status Client::status() const { return impl_ ? impl_->status() : Moved(); }
ClientStats Client::stats() const { return impl_ ? impl_->stats() : ClientStats(); }

}  // namespace longhaul
