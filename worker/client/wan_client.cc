#include "worker/client/wan_client.h"

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
#include "worker/client/worker_core.h"

namespace longhaul {
namespace internal {
namespace {

// A join that succeeds rarely takes longer; a probe's answer takes a round trip, of which most are shorter.
constexpr Duration kJoinHintEvery = std::chrono::seconds(1);
constexpr Duration kProbeWait = std::chrono::milliseconds(200);

// Descriptors of the erasure-code library are made once per process, before the first client's thread.
Result<codec::ErasureCoder*> SharedCoder() {
  static const Result<std::unique_ptr<codec::ErasureCodeLibrary>> coder = codec::ErasureCodeLibrary::Create();
  if (!coder.ok()) return coder.status();
  return static_cast<codec::ErasureCoder*>(coder->get());
}

worker::WorkerCoreOptions CoreOptions(const ServerClient::Options& options,
                                      const keys::LoadedSecurity& security,
                                      const std::shared_ptr<UserCalls>& calls,
                                      std::function<void()> ask_address) {
  const ConnectOptions& o = options.connect;
  const bool reconnects = o.reconnect_timeout > Duration(0);
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
  core.reconnect_timeout = o.reconnect_timeout;
  core.session = udp::EntropySeed();
  core.map_epoch = options.map_epoch;
  core.server = options.server;
  core.alignment = options.alignment;
  if (reconnects) core.ask_address = std::move(ask_address);
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

class WanClient final : public ServerClient {
 public:
  using State = worker::WorkerSession::State;

  WanClient(const Options& options, keys::LoadedSecurity security, codec::ErasureCoder* coder);
  ~WanClient() override;
  Status Open();

  Status WaitUntilJoined() override;
  std::string first_server() override;
  std::pair<uint64_t, std::vector<std::string>> shard_map() override;
  Operation BeginDeclare(const std::string& name, const TensorOptions& options,
                         std::shared_ptr<Tensor> tensor) override;
  void BeginLeave(const Status& why) override;
  void SetAddress(const std::string& server) override;

  Result<Tensor> Declare(const std::string& name, const TensorOptions& options) override;
  Operation Push(const Tensor& tensor, std::span<const float> gradient, const PushOptions& options) override;
  Operation Pull(const Tensor& tensor, std::span<float> out, const PullOptions& options) override;
  Operation PushPull(const Tensor& tensor, std::span<const float> gradient, std::span<float> out,
                     const PushOptions& options) override;
  Status SetScores(const Tensor& tensor, std::span<const float> scores) override;
  Result<TensorClock> Clock(const Tensor& tensor) override;
  Status Barrier(const std::string& name) override;
  Status Leave(const Status& why) override;
  Status status() override;
  ClientStats stats() override;
  std::optional<ClientStats> Ask() override;
  uint32_t rank() const override { return options_.connect.rank; }
  uint32_t world_size() const override { return options_.connect.world_size; }
  JobSpec settings() const override { return settings_; }  // these are fixed once Connect has returned
  Membership membership() override;
  uint64_t job() const override { return job_; }
  void AnswerHandOver(uint32_t phase, uint64_t round) override {
    (void)loop_->Post([this, phase, round] {
      if (core_) core_->AnswerHandOver(phase, round);
    });
  }
  Result<std::vector<float>> Owed(const Tensor& tensor, uint64_t first, size_t most) override;
  void Owe(const Tensor& tensor, uint64_t first, std::vector<float>&& values) override;
  void Vanish() override;

 private:
  std::string JoinHint();
  void OnShardMap(const control::ShardMap& map);
  void OnMembership(const Membership& membership);
  void OnState(State state);
  void Abandon(const Status& why);
  void EndOnOwnThread() override;
  // Runs `request` on the loop's thread with the promise of the operation that is returned.
  template <typename Request>
  Operation Launch(Request request);
  ClientStats StatsNow() const;  // on the loop's thread

  static worker::WorkerCore::Callback Ending(Promise promise) {
    return [promise = std::move(promise)](const Status& outcome, const OperationStats& stats) {
      promise->End(outcome, stats);
    };
  }

  // On the loop's thread. Name servers may be slow: in a thread of its own, one at a time.
  void AskAddress();

  const Options options_;
  keys::LoadedSecurity security_;  // outlives the core
  std::string server_name_;        // the loop's thread, once it runs
  std::future<void> resolving_;
  std::optional<worker::WorkerCore> core_;  // the loop's thread only; gone when that ran out of memory
  Address server_;
  std::unique_ptr<udp::FaultInjector> faults_;
  std::unique_ptr<udp::EventLoop> loop_;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kConnecting;
  Status failure_;
  ClientStats last_stats_;
  JobSpec settings_;
  Membership membership_;
  uint64_t job_ = 0;
  bool leaving_ = false;
  uint64_t map_epoch_ = 0;
  std::vector<std::string> servers_;
  std::string first_server_;
};

// --- Life ---

WanClient::WanClient(const Options& options, keys::LoadedSecurity security, codec::ErasureCoder* coder)
    : ServerClient(options.connect.log),
      options_(options),
      security_(std::move(security)),
      server_name_(options.connect.servers.front()),
      core_(
          std::in_place,
          [&] {
            auto core = CoreOptions(options, security_, calls_, [this] { AskAddress(); });
            core.on_membership = [this](const Membership& membership) { OnMembership(membership); };
            core.on_hand_over = options.hooks.on_hand_over;
            core.on_shard_map = [this](const control::ShardMap& map) { OnShardMap(map); };
            return core;
          }(),
          coder, Random(options.connect.seed == 0 ? udp::EntropySeed() : options.connect.seed)) {}

Status WanClient::Open() {
  const ConnectOptions& options = options_.connect;
  Result<Address> server = udp::ResolvePeer(options.servers.front());
  if (!server.ok()) return server.status();
  server_ = *server;
  const auto open = [bind = udp::UdpSocket::AnyAddressFor(*server)] { return udp::UdpSocket::Open(bind); };
  Result<udp::UdpSocket> socket = open();
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
      udp::EventLoop::Create(&*core_, *std::move(socket), faults_.get(), {.open_socket = open});
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

// Says every second why there may be no answer, when that changes.
Status WanClient::WaitUntilJoined() {
  std::unique_lock lock(mutex_);
  std::string said;
  // Ends by itself: the core gives up after connect_timeout.
  while (!changed_.wait_for(lock, kJoinHintEvery, [this] { return state_ != State::kConnecting; })) {
    lock.unlock();
    const std::string hint = JoinHint();
    if (!hint.empty() && hint != said) {
      calls_->Log(LogLevel::kWarning, "no answer from " + options_.connect.servers.front() + " yet: " + hint);
    }
    said = hint;
    lock.lock();
  }
  if (state_ == State::kFailed) return failure_;
  if (state_ == State::kLeft) return {StatusCode::kAborted, "the server ended the job"};
  return Status::Ok();
}

std::string WanClient::first_server() {
  const std::lock_guard lock(mutex_);
  return first_server_;
}

std::pair<uint64_t, std::vector<std::string>> WanClient::shard_map() {
  const std::lock_guard lock(mutex_);
  return {map_epoch_, servers_};
}

void WanClient::OnShardMap(const control::ShardMap& map) {
  const std::vector<std::string> servers(map.servers().begin(), map.servers().end());
  {
    const std::lock_guard lock(mutex_);
    map_epoch_ = map.epoch();
    servers_ = servers;
  }
  if (options_.on_servers) options_.on_servers(servers);
}

Membership WanClient::membership() {
  const std::lock_guard lock(mutex_);
  return membership_;
}

// A server that was started again says what this client knows already.
void WanClient::OnMembership(const Membership& membership) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(membership_, membership).ranks == membership.ranks) return;
  }
  if (options_.map_epoch == 0) calls_->Call("membership", options_.connect.on_membership, membership);
}

void WanClient::SetAddress(const std::string& server) {
  (void)loop_->Post([this, server] {
    if (std::exchange(server_name_, server) != server) AskAddress();
  });
}

std::string WanClient::JoinHint() {
  auto hint = std::make_shared<std::promise<std::string>>();
  std::future<std::string> answer = hint->get_future();
  const auto ask = [this, hint, probe = udp::Probe(server_, kProbeWait)] {
    hint->set_value(core_->JoinHint(probe));
  };
  // Without a loop the promise is gone, and with it the answer.
  if (!loop_->Post(ask).ok() || answer.wait_for(kJoinHintEvery) != std::future_status::ready) return "";
  return answer.get();
}

void WanClient::AskAddress() {
  const bool busy =
      resolving_.valid() && resolving_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  if (busy) return;
  try {
    resolving_ = std::async(std::launch::async, [this, name = server_name_] {
      const Result<Address> found = udp::ResolvePeer(name);
      if (!found.ok()) return;  // the address before is tried again
      (void)loop_->Post([this, found = *found] {
        if (core_) core_->SetServer(found);
      });
    });
  } catch (const std::system_error&) {  // no thread: nor a new address
  }
}

WanClient::~WanClient() {
  if (!loop_) return;
  EndWith(Destroyed());
  if (OnOwnThread()) {
    thread_.detach();  // this is its last deed
  } else if (thread_.joinable()) {
    // Tells the server, ends what is pending; Stop lets the farewell leave and waits for no peer.
    (void)loop_->Post([this] { core_->Fail(Destroyed()); });
    loop_->Stop();
    thread_.join();
  }
  resolving_ = {};
  loop_.reset();  // what was posted and did not run ends here
}

void WanClient::Vanish() {
  EndWith(Destroyed());
  loop_->Stop();
  if (thread_.joinable()) thread_.join();
  Abandon(Destroyed());
}

void WanClient::EndOnOwnThread() {
  if (core_) core_->Fail(Destroyed());
  loop_->Stop();
}

// The loop has ended in the middle of an event: everything pending ends with it.
void WanClient::Abandon(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    state_ = State::kFailed;
    failure_ = why;
    changed_.notify_all();
  }
  core_.reset();
}

void WanClient::OnState(State state) {
  const bool failed = state == State::kFailed;
  const bool sent_on = failed && options_.map_epoch == 0 &&
                       !core_->first_server().empty();  // no failure: another server lets it in
  {
    const std::lock_guard lock(mutex_);
    // Written once, before Connect returns: readers need no lock.
    if (state_ == State::kConnecting && core_->joined()) {
      settings_ = core_->settings();
      job_ = core_->job();
    }
    // One that was lost before it let this worker in is still to be joined.
    const bool joins = state == State::kReconnecting && !core_->joined();
    state_ = joins ? State::kConnecting : state;
    if (failed) failure_ = core_->failure();
    if (failed) first_server_ = core_->first_server();
    changed_.notify_all();
  }
  if (state == State::kReconnecting && options_.hooks.on_lost) options_.hooks.on_lost();
  if (failed && !sent_on && options_.on_failed) options_.on_failed(core_->failure());
}

// --- Operations ---

template <typename Request>
Operation WanClient::Launch(Request request) {
  auto [operation, promise] = NewOperation();
  {
    const std::lock_guard lock(mutex_);
    if (leaving_) {
      promise->End(HasLeft(), {});
      return operation;
    }
  }
  const Status posted = loop_->Post(
      [promise = promise, request = std::move(request)]() mutable { request(std::move(promise)); });
  if (!posted.ok()) promise->End(posted, {});
  return operation;
}

Result<Tensor> WanClient::Declare(const std::string& name, const TensorOptions& options) {
  if (UserCalls::InCallback()) return InACallback("Declare");
  const auto tensor = std::make_shared<Tensor>();
  if (Status s = BeginDeclare(name, options, tensor).Wait(); !s.ok()) return s;
  return *tensor;
}

Operation WanClient::BeginDeclare(const std::string& name, const TensorOptions& options,
                                  std::shared_ptr<Tensor> tensor) {
  if (Status s = worker::CheckInitial(options.initial); !s.ok()) return Refused(s);
  *tensor = MakeTensor(name, options);
  worker::Declaration declaration{.name = name,
                                  .dtype = options.dtype,
                                  .wire_dtype = options.wire_dtype,
                                  .result_dtype = options.result_dtype,
                                  .priority = options.priority,
                                  .high_ranges = options.high_ranges,
                                  .high_share = options.high_share,
                                  .high_energy = options.high_energy,
                                  .topk_share = options.topk_share,
                                  .staleness = options.staleness,
                                  .quorum = options.quorum,
                                  .count = options.count,
                                  .optimizer = options.optimizer,
                                  .initial = options.initial};
  return Launch(
      [this, declaration = std::move(declaration), tensor = std::move(tensor)](const Promise& promise) {
        core_->Declare(declaration, [promise, tensor](const Result<worker::TensorHandle>& result) {
          if (result.ok()) SetHandle(*result, &*tensor);
          promise->End(result.status(), {});
        });
      });
}

Operation WanClient::Push(const Tensor& tensor, std::span<const float> gradient, const PushOptions& options) {
  if (Status s = CheckRequest(tensor, gradient); !s.ok()) return Refused(s);
  if (Status s = worker::CheckWeight(options); !s.ok()) return Refused(s);
  return Launch([this, handle = HandleOf(tensor), gradient, weight = options.weight.value_or(0)](
                    Promise promise) { core_->Push(handle, gradient, Ending(std::move(promise)), weight); });
}

Operation WanClient::Pull(const Tensor& tensor, std::span<float> out, const PullOptions& options) {
  if (Status s = CheckPull(tensor, out); !s.ok()) return Refused(s);
  return Launch([this, handle = HandleOf(tensor), out, options](Promise promise) {
    core_->Pull(handle, out, options, Ending(std::move(promise)));
  });
}

Result<TensorClock> WanClient::Clock(const Tensor& tensor) {
  if (UserCalls::InCallback()) return InACallback("Clock");
  if (Status s = CheckTensor(tensor); !s.ok()) return s;
  auto clock = std::make_shared<TensorClock>();
  const Status asked = Launch([this, handle = HandleOf(tensor), clock](const Promise& promise) {
                         core_->Clock(handle, [promise, clock](const Result<TensorClock>& result) {
                           if (result.ok()) *clock = *result;
                           promise->End(result.status(), {});
                         });
                       }).Wait();
  if (!asked.ok()) return asked;
  return *clock;
}

Operation WanClient::PushPull(const Tensor& tensor, std::span<const float> gradient, std::span<float> out,
                              const PushOptions& options) {
  if (Status s = CheckRequest(tensor, gradient, out); !s.ok()) return Refused(s);
  if (Status s = worker::CheckWeight(options); !s.ok()) return Refused(s);
  return Launch(
      [this, handle = HandleOf(tensor), gradient, out, weight = options.weight.value_or(0)](Promise promise) {
        core_->PushPull(handle, gradient, out, Ending(std::move(promise)), weight);
      });
}

Status WanClient::SetScores(const Tensor& tensor, std::span<const float> scores) {
  if (Status s = CheckScores(tensor, scores); !s.ok()) return s;
  return loop_->Post(
      [this, handle = HandleOf(tensor), copy = std::vector<float>(scores.begin(), scores.end())]() mutable {
        core_->SetScores(handle, std::move(copy));
      });
}

Status WanClient::Barrier(const std::string& name) {
  if (UserCalls::InCallback()) return InACallback("Barrier");
  return Launch([this, name](Promise promise) { core_->Barrier(name, Ending(std::move(promise))); }).Wait();
}

Result<std::vector<float>> WanClient::Owed(const Tensor& tensor, uint64_t first, size_t most) {
  const auto part = std::make_shared<std::vector<float>>();
  const auto post = [this](std::function<void()> command) { return loop_->Post(std::move(command)).ok(); };
  const bool copied = RunsSoon(post, [this, handle = HandleOf(tensor), first, most, part] {
    const std::span<const float> owed = core_->session().residual(handle);
    const std::span<const float> rest = owed.subspan(std::min<size_t>(first, owed.size()));
    part->assign(rest.begin(), rest.begin() + static_cast<ptrdiff_t>(std::min(most, rest.size())));
  });
  if (!copied) return Status(StatusCode::kUnavailable, "the client's thread does not say what is owed");
  return *part;
}

void WanClient::Owe(const Tensor& tensor, uint64_t first, std::vector<float>&& values) {
  (void)loop_->Post([this, handle = HandleOf(tensor), first, values = std::move(values)] {
    core_->Owe(handle, first, values);
  });
}

void WanClient::BeginLeave(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  (void)loop_->Post([this, why] { core_->Leave(why); });
}

Status WanClient::Leave(const Status& why) {
  if (UserCalls::InCallback()) return InACallback("Leave");
  if (Status s = worker::CheckCode(why); !s.ok()) return s;
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  if (why.ok()) WaitForOperations();
  const Status posted = loop_->Post([this, why] { core_->Leave(why); });
  if (!posted.ok()) return posted;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return state_ == State::kLeft || state_ == State::kFailed; });
  return failure_;
}

// --- Questions ---

Status WanClient::status() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kFailed) return failure_;
  if (leaving_ || state_ == State::kLeft) {
    return HasLeft();
  }
  return Status::Ok();
}

ClientStats WanClient::StatsNow() const {
  if (!core_) return {};
  ClientStats stats = core_->stats();
  stats.callbacks_threw = calls_->threw();
  return stats;
}

std::optional<ClientStats> WanClient::Ask() {
  if (OnOwnThread()) return StatsNow();
  const auto answer = std::make_shared<ClientStats>();
  const auto post = [this](std::function<void()> command) { return loop_->Post(std::move(command)).ok(); };
  if (!RunsSoon(post, [this, answer] { *answer = StatsNow(); })) return std::nullopt;
  return *answer;
}

ClientStats WanClient::stats() {
  const std::optional<ClientStats> now = Ask();
  const std::lock_guard lock(mutex_);
  if (now) last_stats_ = *now;
  return last_stats_;
}

}  // namespace

Result<std::shared_ptr<ServerClient>> ServerClient::Start(const Options& options) {
  Result<codec::ErasureCoder*> coder = SharedCoder();
  if (!coder.ok()) return coder.status();
  Result<keys::LoadedSecurity> security =
      keys::LoadSecurity({.key_file = options.connect.key_file,
                          .insecure = options.connect.insecure,
                          .job = options.connect.job,
                          .cipher = options.connect.cipher,
                          .expected_server = options.connect.server_name});
  if (!security.ok()) return security.status();
  auto client = std::make_shared<WanClient>(options, *std::move(security), *coder);
  if (Status s = client->Open(); !s.ok()) return s;
  return std::shared_ptr<ServerClient>(std::move(client));
}

}  // namespace internal
}  // namespace longhaul
