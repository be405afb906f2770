// A worker whose job may go to other servers, as many as there are then, between two rounds (decision 0029).
//
//   Client --> MovingClient --> ClientImpl of these servers (one, or ShardedClient)
//                          \--> ... of the next ones, when these have handed the job over
//
//   kAsks  -> the highest round of its pushes; from the first push above it on every request waits
//   kHolds -> ... above that of all workers; nothing is on its way: answered
//   kEnds  -> answered; when the first server is lost: what is owed is taken along, all tensors are declared
//             at the next servers, and what waited begins there
//
// All workers stop at the same request when they run one program, and then every tensor is in one round at
// all servers. Whether the next servers go on with this job their numbers say (base/placement.h).
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/placement.h"
#include "base/units_text.h"
#include "transport/udp/clock.h"
#include "worker/client/arguments.h"
#include "worker/client/wan_client.h"
#include "worker/client/worker_core.h"

namespace longhaul::internal {
namespace {

using control::HandOver;

// Requests that wait for the next servers. As many as may be pending at one (WorkerCoreOptions).
constexpr size_t kMostHeld = 4096;
// The next servers are looked for under the addresses that their names have now: for so long at first, for
// twice as long with every try, up to the most. A handshake over a long path takes a second; a server that is
// not there yet is not noticed sooner than with the next try.
constexpr Duration kFirstTry = std::chrono::seconds(1);
constexpr Duration kLastTry = std::chrono::seconds(5);
constexpr Duration kBetweenTries = std::chrono::milliseconds(200);
// Tensors that are declared at the next servers at once: each waits a round trip.
constexpr size_t kDeclaredAtOnce = 16;

// What outlives the client where one of its callbacks destroys it.
class Moving : public std::enable_shared_from_this<Moving> {
 public:
  using Begin = std::function<Operation(ClientImpl&, const Tensor&)>;
  using Promise = std::shared_ptr<Completion>;

  Moving(ConnectOptions options, std::shared_ptr<UserCalls> calls)
      : options_(std::move(options)), calls_(std::move(calls)) {}

  Result<std::shared_ptr<ClientImpl>> Connect(const ConnectOptions& options, bool tries_again);
  void Start(std::shared_ptr<ClientImpl> servers);

  // --- Requests ---
  void Run(bool is_push, uint32_t handle, Begin begin, Promise promise);
  // A call that waits. The client that it is made of, or why there is none; then Over.
  Result<std::shared_ptr<ClientImpl>> Enter();
  void Over();
  uint32_t Know(const std::string& name, const TensorOptions& options, const Tensor& tensor);
  Tensor At(uint32_t handle);
  void KeepScores(uint32_t handle, std::span<const float> scores);

  // --- Questions ---
  std::shared_ptr<ClientImpl> servers();  // null while it moves
  Status failure();
  ClientStats before();
  bool OnMover();

  // --- The end ---
  // Nothing moves any more; what waits ends with `why`.
  void Close(const Status& why);
  std::shared_ptr<ClientImpl> Take();
  void Join();

 private:
  struct Known {
    std::string name;
    TensorOptions options;
    Tensor tensor;
    uint64_t next = 0;     // the round of the next push, as far as it is known
    uint64_t pending = 0;  // pushes
    std::vector<float> scores = {};
  };
  struct Held {
    bool is_push;
    uint32_t handle;
    Begin begin;
    Promise promise;
  };
  struct Owed {
    uint32_t handle;
    uint64_t first;
    std::vector<float> values;
  };

  void Launch(const Held& request);
  void OnEnded(const Held& request, const Operation& operation, const Status& outcome);
  void OnHandOver(uint32_t phase, uint64_t round);
  void OnLost();
  void Open();     // the servers go on: what waited begins
  void Release();  // ... up to a push that still waits
  void AnswerIfStill();
  void Move();
  // Asks again while the client's thread is too busy to answer.
  Result<std::vector<Owed>> TakeOwed(ClientImpl& from, Instant deadline);
  // Between two tries. False: there is to be no other one.
  bool Waits(Instant deadline);
  Result<std::shared_ptr<ClientImpl>> FindNext(uint64_t job, Instant deadline);
  Status DeclareAll(ClientImpl& at);
  void Fail(const Status& why);
  // The mutex is held.
  Status CheckOpen() const;
  bool IsAbove(const Held& request) const;  // the last round whose pushes do not wait

  const ConnectOptions options_;
  const std::shared_ptr<UserCalls> calls_;

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::shared_ptr<ClientImpl> servers_;
  uint64_t generation_ = 0;  // of these servers; what earlier ones say is late
  std::vector<Known> tensors_;
  std::map<std::string, uint32_t> handles_;
  std::optional<uint64_t> limit_;  // the last round whose pushes do not wait
  bool may_answer_ = false;        // kHolds
  bool holds_ = false;             // every request waits
  bool answered_ = false;          // kHolds
  bool ends_ = false;              // kEnds
  bool closed_ = false;
  size_t pending_ = 0;  // requests, of these servers
  std::deque<Held> held_;
  Status failure_;
  ClientStats before_;  // of servers before these
  bool moves_ = false;
  std::thread mover_;
};

Result<std::shared_ptr<ClientImpl>> Moving::Connect(const ConnectOptions& options, bool tries_again) {
  uint64_t generation = 0;
  {
    const std::lock_guard lock(mutex_);
    generation = ++generation_;
  }
  const auto current = [weak = weak_from_this(), generation]() -> std::shared_ptr<Moving> {
    const auto self = weak.lock();
    if (!self) return nullptr;
    const std::lock_guard lock(self->mutex_);
    return self->generation_ == generation && self->servers_ ? self : nullptr;
  };
  return ConnectToTheseServers(options, {.on_hand_over =
                                             [current](uint32_t phase, uint64_t round) {
                                               if (const auto self = current())
                                                 self->OnHandOver(phase, round);
                                             },
                                         .on_lost =
                                             [current] {
                                               if (const auto self = current()) self->OnLost();
                                             },
                                         .tries_again = tries_again});
}

void Moving::Start(std::shared_ptr<ClientImpl> servers) {
  const std::lock_guard lock(mutex_);
  servers_ = std::move(servers);
}

// --- Requests ---

Status Moving::CheckOpen() const {
  if (!failure_.ok()) return failure_;
  return closed_ ? Status(StatusCode::kFailedPrecondition, "this worker has left the job") : Status();
}

bool Moving::IsAbove(const Held& request) const {
  const Known& tensor = tensors_[request.handle];
  return limit_ && request.is_push && tensor.next + tensor.pending > *limit_;
}

void Moving::Run(bool is_push, uint32_t handle, Begin begin, Promise promise) {
  bool held = false;
  const Held request{is_push, handle, std::move(begin), std::move(promise)};
  Status refusal;
  {
    const std::lock_guard lock(mutex_);
    Known& tensor = tensors_[handle];
    if (IsAbove(request)) holds_ = true;
    refusal = CheckOpen();
    if (refusal.ok() && !holds_) {
      ++pending_;
      if (is_push) ++tensor.pending;
    } else if (refusal.ok() && held_.size() >= kMostHeld) {
      refusal = Status(StatusCode::kResourceExhausted, "too many operations wait for the job's next servers");
    } else if (refusal.ok()) {
      held_.push_back(request);
      held = true;
    }
  }
  if (!refusal.ok()) return request.promise->End(refusal, {});
  held ? AnswerIfStill() : Launch(request);
}

void Moving::Launch(const Held& request) {
  std::shared_ptr<ClientImpl> servers;
  Tensor tensor;
  {
    const std::lock_guard lock(mutex_);
    servers = servers_;
    tensor = tensors_[request.handle].tensor;
  }
  const Operation one = servers ? request.begin(*servers, tensor)
                                : ClientImpl::Refused({StatusCode::kCancelled, "the client was destroyed"});
  one.Then([self = shared_from_this(), request, one](const Status& outcome) {
    self->OnEnded(request, one, outcome);
  });
}

void Moving::OnEnded(const Held& request, const Operation& operation, const Status& outcome) {
  const OperationStats stats = operation.stats();
  {
    const std::lock_guard lock(mutex_);
    Known& tensor = tensors_[request.handle];
    --pending_;
    if (request.is_push) --tensor.pending;
    if (request.is_push && outcome.ok()) tensor.next = std::max(tensor.next, stats.pushed_round + 1);
  }
  request.promise->End(outcome, stats);
  AnswerIfStill();
}

Result<std::shared_ptr<ClientImpl>> Moving::Enter() {
  std::unique_lock lock(mutex_);
  // Ends by itself: a hold ends with the first server's word, or its loss; a move by reconnect_timeout.
  changed_.wait(lock, [this] { return !CheckOpen().ok() || (!holds_ && servers_ != nullptr); });
  if (Status open = CheckOpen(); !open.ok()) return open;
  ++pending_;
  return servers_;
}

void Moving::Over() {
  {
    const std::lock_guard lock(mutex_);
    --pending_;
  }
  AnswerIfStill();
}

uint32_t Moving::Know(const std::string& name, const TensorOptions& options, const Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  const auto [known, is_new] = handles_.emplace(name, static_cast<uint32_t>(tensors_.size()));
  if (is_new) tensors_.push_back({name, options, tensor});
  tensors_[known->second].options.initial = {};  // the next servers have its values
  return known->second;
}

Tensor Moving::At(uint32_t handle) {
  const std::lock_guard lock(mutex_);
  return tensors_[handle].tensor;
}

void Moving::KeepScores(uint32_t handle, std::span<const float> scores) {
  const std::lock_guard lock(mutex_);
  tensors_[handle].scores.assign(scores.begin(), scores.end());
}

// --- What the first server says ---

void Moving::OnHandOver(uint32_t phase, uint64_t round) {
  std::shared_ptr<ClientImpl> servers;
  uint64_t highest = 0;
  {
    const std::lock_guard lock(mutex_);
    servers = servers_;
    for (const Known& tensor : tensors_) {
      const uint64_t begun = tensor.next + tensor.pending;
      highest = std::max(highest, begun == 0 ? 0 : begun - 1);
    }
    answered_ = false;
    ends_ = phase == HandOver::kEnds;
    may_answer_ = phase == HandOver::kHolds;
    // What it says now stays so until it hears of the others.
    if (phase == HandOver::kAsks) limit_ = highest;
    if (phase == HandOver::kHolds) limit_ = round;
  }
  switch (phase) {
    case HandOver::kAsks:
      return servers->AnswerHandOver(HandOver::kAsks, highest);
    case HandOver::kHolds:
      Release();  // up to that round
      return AnswerIfStill();
    case HandOver::kEnds:
      return servers->AnswerHandOver(HandOver::kEnds, round);
    default:
      return Open();
  }
}

void Moving::AnswerIfStill() {
  std::shared_ptr<ClientImpl> servers;
  uint64_t round = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!may_answer_ || !holds_ || pending_ > 0 || answered_ || !servers_) return;
    answered_ = true;
    servers = servers_;
    round = *limit_;
  }
  servers->AnswerHandOver(HandOver::kHolds, round);
}

void Moving::OnLost() {
  std::unique_lock lock(mutex_);
  if (!ends_ || closed_) {
    lock.unlock();
    return Open();  // it has forgotten, or will be another one
  }
  if (moves_) return;
  moves_ = true;
  // The move before has come to its end, but for what waited for it, which takes the mutex.
  std::thread before = std::move(mover_);
  lock.unlock();
  if (before.joinable()) before.join();
  lock.lock();
  if (closed_) return;
  try {
    mover_ = std::thread([self = shared_from_this()] { self->Move(); });
  } catch (const std::system_error& error) {
    lock.unlock();
    Fail({StatusCode::kInternal, std::string("no thread to go on with other servers: ") + error.what()});
  }
}

void Moving::Open() {
  {
    const std::lock_guard lock(mutex_);
    limit_.reset();
    ends_ = may_answer_ = false;
  }
  Release();
}

void Moving::Release() {
  // In the order in which they came: what comes meanwhile waits behind them.
  while (true) {
    std::optional<Held> next;
    {
      const std::lock_guard lock(mutex_);
      if (!held_.empty() && IsAbove(held_.front())) return;
      if (held_.empty()) {
        holds_ = false;
        changed_.notify_all();
        return;
      }
      next = std::move(held_.front());
      held_.pop_front();
      ++pending_;
      if (next->is_push) ++tensors_[next->handle].pending;
    }
    Launch(*next);
  }
}

// --- Other servers ---

void Moving::Move() {
  const Instant begin = udp::Now();
  std::shared_ptr<ClientImpl> servers;
  {
    const std::lock_guard lock(mutex_);
    servers = servers_;
  }
  calls_->Log(LogLevel::kInfo, "the job goes to other servers: this worker waits for them for " +
                                   SecondsText(options_.reconnect_timeout));
  const Instant deadline = begin + options_.reconnect_timeout;
  auto owed = TakeOwed(*servers, deadline);
  if (!owed.ok()) return Fail(owed.status());
  const uint64_t job = servers->job();
  const ClientStats stats = servers->stats();
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    servers_.reset();
    AddClientCounts(stats, &before_);
  }
  servers->Vanish();
  servers.reset();
  auto next = FindNext(job, deadline);
  if (!next.ok()) return Fail(next.status());
  if (Status declared = DeclareAll(**next); !declared.ok()) return Fail(declared);
  for (Owed& each : *owed) (*next)->Owe(At(each.handle), each.first, std::move(each.values));
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    // From here on these servers are heard.
    limit_.reset();
    ends_ = may_answer_ = moves_ = false;
    servers_ = *next;
  }
  calls_->Log(LogLevel::kInfo, "the job goes on at " + std::to_string((*next)->servers()) +
                                   " servers, after " + SecondsText(udp::Now() - begin));
  Release();
}

Result<std::vector<Moving::Owed>> Moving::TakeOwed(ClientImpl& from, Instant deadline) {
  std::vector<Owed> all;
  uint32_t tensors = 0;
  {
    const std::lock_guard lock(mutex_);
    tensors = static_cast<uint32_t>(tensors_.size());
  }
  for (uint32_t handle = 0; handle < tensors; ++handle) {
    const Tensor tensor = At(handle);
    for (uint64_t first = 0; first < tensor.count();) {
      auto run = from.Owed(tensor, first, WorkerState::kRun);
      if (!run.ok() && Waits(deadline)) continue;
      if (!run.ok()) return run.status();
      if (run->empty()) break;  // nothing is owed of it
      const uint64_t count = run->size();
      const bool any = std::ranges::any_of(*run, [](float value) { return value != 0; });
      if (any) all.push_back({handle, first, *std::move(run)});
      first += count;
    }
  }
  return all;
}

bool Moving::Waits(Instant deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kBetweenTries, [this] { return closed_; });
  return !closed_ && udp::Now() < deadline;
}

Result<std::shared_ptr<ClientImpl>> Moving::FindNext(uint64_t job, Instant deadline) {
  Status last(StatusCode::kUnavailable, "no answer");
  for (Duration limit = kFirstTry;; limit = std::min(2 * limit, kLastTry)) {
    ConnectOptions options = options_;
    options.connect_timeout = std::clamp<Duration>(deadline - udp::Now(), kBetweenTries, limit);
    auto next = Connect(options, true);
    if (next.ok()) {
      std::vector<uint64_t> numbers;
      for (uint32_t server = 0; server < (*next)->servers(); ++server)
        numbers.push_back(NextJobNumber(job, server));
      // These servers, started again, go on with it as well: nothing was on its way.
      if ((*next)->job() == JobIdentity(numbers) || (*next)->job() == job) return next;
      return Status(
          StatusCode::kAborted,
          "the servers that are there now have another job: that of this worker is gone (do they run "
          "with --round-log on what `longhaul checkpoint reshard` has written?)");
    }
    last = next.status();
    if (Waits(deadline)) continue;
    return Status(StatusCode::kPeerDead, "the servers that were to go on with the job have not come within " +
                                             SecondsText(options_.reconnect_timeout) + ": " +
                                             last.ToString());
  }
}

Status Moving::DeclareAll(ClientImpl& at) {
  std::vector<Known> known;
  {
    const std::lock_guard lock(mutex_);
    known = tensors_;
  }
  for (size_t first = 0; first < known.size(); first += kDeclaredAtOnce) {
    std::vector<std::future<Result<Tensor>>> declared;
    const size_t end = std::min(first + kDeclaredAtOnce, known.size());
    for (size_t i = first; i < end; ++i) {
      declared.push_back(std::async(std::launch::async | std::launch::deferred,
                                    [&at, &each = known[i]] { return at.Declare(each.name, each.options); }));
    }
    Status outcome;
    for (size_t i = first; i < end; ++i) {
      auto tensor = declared[i - first].get();
      if (!tensor.ok()) {
        outcome = tensor.status();
        continue;
      }
      const std::lock_guard lock(mutex_);
      tensors_[i].tensor = *tensor;
      if (!tensors_[i].scores.empty()) (void)at.SetScores(*tensor, tensors_[i].scores);
    }
    if (!outcome.ok()) return outcome;
  }
  return {};
}

// --- The end ---

void Moving::Fail(const Status& why) {
  std::deque<Held> held;
  {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = why;
    held.swap(held_);
    changed_.notify_all();
  }
  for (const Held& request : held) request.promise->End(why, {});
}

void Moving::Close(const Status& why) {
  std::deque<Held> held;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    held.swap(held_);
    changed_.notify_all();
  }
  for (const Held& request : held) request.promise->End(why, {});
}

std::shared_ptr<ClientImpl> Moving::servers() {
  const std::lock_guard lock(mutex_);
  return servers_;
}

std::shared_ptr<ClientImpl> Moving::Take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(servers_, nullptr);
}

Status Moving::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

ClientStats Moving::before() {
  const std::lock_guard lock(mutex_);
  return before_;
}

bool Moving::OnMover() {
  const std::lock_guard lock(mutex_);
  return mover_.get_id() == std::this_thread::get_id();
}

// Within kLastTry: an attempt ends by itself.
void Moving::Join() {
  std::thread mover;
  {
    const std::lock_guard lock(mutex_);
    mover = std::move(mover_);
  }
  if (!mover.joinable()) return;
  mover.get_id() == std::this_thread::get_id() ? mover.detach() : mover.join();
}

// --- The client ---

class MovingClient final : public ClientImpl {
 public:
  MovingClient(const ConnectOptions& options, const ClientImpl& first, std::shared_ptr<Moving> moving)
      : ClientImpl(options.log),
        rank_(first.rank()),
        world_size_(first.world_size()),
        settings_(first.settings()),
        moving_(std::move(moving)) {}
  ~MovingClient() override {
    moving_->Close(Destroyed());
    moving_->Join();
    moving_->Take();
  }

  Result<Tensor> Declare(const std::string& name, const TensorOptions& options) override {
    if (UserCalls::InCallback()) return InACallback("Declare");
    return Call([&](ClientImpl& servers) -> Result<Tensor> {
      const Result<Tensor> declared = servers.Declare(name, options);
      if (!declared.ok()) return declared;
      Tensor tensor = MakeTensor(name, options);
      SetHandle(moving_->Know(name, options, *declared), &tensor);
      return tensor;
    });
  }
  Operation Push(const Tensor& tensor, std::span<const float> gradient, const PushOptions& options) override {
    return Run(true, tensor, [gradient, options](ClientImpl& servers, const Tensor& t) {
      return servers.Push(t, gradient, options);
    });
  }
  Operation Pull(const Tensor& tensor, std::span<float> out, const PullOptions& options) override {
    return Run(false, tensor, [out, options](ClientImpl& servers, const Tensor& t) {
      return servers.Pull(t, out, options);
    });
  }
  Operation PushPull(const Tensor& tensor, std::span<const float> gradient, std::span<float> out,
                     const PushOptions& options) override {
    return Run(true, tensor, [gradient, out, options](ClientImpl& servers, const Tensor& t) {
      return servers.PushPull(t, gradient, out, options);
    });
  }
  Status SetScores(const Tensor& tensor, std::span<const float> scores) override {
    if (Status s = CheckScores(tensor, scores); !s.ok()) return s;
    moving_->KeepScores(HandleOf(tensor), scores);
    const auto servers = moving_->servers();
    return servers ? servers->SetScores(moving_->At(HandleOf(tensor)), scores) : moving_->failure();
  }
  Result<TensorClock> Clock(const Tensor& tensor) override {
    if (UserCalls::InCallback()) return InACallback("Clock");
    if (Status s = CheckTensor(tensor); !s.ok()) return s;
    return Call([&](ClientImpl& servers) { return servers.Clock(moving_->At(HandleOf(tensor))); });
  }
  Status CopyOwed(const Tensor& tensor, std::span<float> out) override {
    if (UserCalls::InCallback()) return InACallback("Owed");
    if (Status s = CheckRequest(tensor, {}, out); !s.ok()) return s;
    return Call([&](ClientImpl& servers) { return servers.CopyOwed(moving_->At(HandleOf(tensor)), out); });
  }
  Status Barrier(const std::string& name) override {
    if (UserCalls::InCallback()) return InACallback("Barrier");
    const auto servers = moving_->Enter();
    if (!servers.ok()) return servers.status();
    const Status outcome = (*servers)->Barrier(name);
    moving_->Over();
    return outcome;
  }
  Status Leave(const Status& why) override {
    if (UserCalls::InCallback()) return InACallback("Leave");
    if (Status s = worker::CheckCode(why); !s.ok()) return s;
    if (why.ok()) WaitForOperations();
    moving_->Close({StatusCode::kCancelled, "this worker has left the job"});
    moving_->Join();
    const auto servers = moving_->servers();
    return servers ? servers->Leave(why) : moving_->failure();
  }
  uint32_t rank() const override { return rank_; }
  uint32_t world_size() const override { return world_size_; }
  JobSpec settings() const override { return settings_; }
  Membership membership() override {
    const auto servers = moving_->servers();
    return servers ? servers->membership() : Membership();
  }
  Status status() override {
    const auto servers = moving_->servers();
    const Status failure = moving_->failure();
    return failure.ok() && servers ? servers->status() : failure;
  }
  ClientStats stats() override {
    const auto servers = moving_->servers();
    return All(servers ? servers->stats() : ClientStats());
  }
  std::optional<ClientStats> Ask() override {
    const auto servers = moving_->servers();
    const auto now = servers ? servers->Ask() : std::nullopt;
    return now ? std::optional(All(*now)) : std::nullopt;
  }
  uint64_t job() const override {
    const auto servers = moving_->servers();
    return servers ? servers->job() : 0;
  }
  uint32_t servers() const override {
    const auto servers = moving_->servers();
    return servers ? servers->servers() : 0;
  }
  Result<std::vector<float>> Owed(const Tensor& tensor, uint64_t first, size_t most) override {
    const auto servers = moving_->servers();
    if (!servers) return Status(StatusCode::kUnavailable, "the job goes to other servers");
    return servers->Owed(moving_->At(HandleOf(tensor)), first, most);
  }
  void Owe(const Tensor& tensor, uint64_t first, std::vector<float>&& values) override {
    if (const auto servers = moving_->servers())
      servers->Owe(moving_->At(HandleOf(tensor)), first, std::move(values));
  }
  void Vanish() override {
    EndWith(Destroyed());
    moving_->Close(Destroyed());
    moving_->Join();
    if (const auto servers = moving_->servers()) servers->Vanish();
  }
  bool OnOwnThread() const override {
    const auto servers = moving_->servers();
    return moving_->OnMover() || (servers && servers->OnOwnThread());
  }

 private:
  void EndOnOwnThread() override {
    moving_->Close(Destroyed());
    auto servers = moving_->Take();
    if (servers && servers->OnOwnThread()) ClientImpl::Release(std::move(servers));
  }
  void KeepUntilTheEnd(std::shared_ptr<ClientImpl>) override {}  // no thread needs it

  Operation Run(bool is_push, const Tensor& tensor, Moving::Begin begin) {
    if (Status s = CheckTensor(tensor); !s.ok()) return Refused(s);
    auto [operation, promise] = NewOperation();
    moving_->Run(is_push, HandleOf(tensor), std::move(begin), std::move(promise));
    return operation;
  }
  template <typename Question>
  auto Call(const Question& question) -> decltype(question(std::declval<ClientImpl&>())) {
    const auto servers = moving_->Enter();
    if (!servers.ok()) return servers.status();
    auto answer = question(**servers);
    moving_->Over();
    return answer;
  }
  ClientStats All(ClientStats now) const {
    AddClientCounts(moving_->before(), &now);
    now.callbacks_threw += calls_->threw();
    return now;
  }

  const uint32_t rank_;
  const uint32_t world_size_;
  const JobSpec settings_;
  const std::shared_ptr<Moving> moving_;
};

}  // namespace

Result<std::shared_ptr<ClientImpl>> ConnectToServers(const ConnectOptions& options) {
  if (options.reconnect_timeout == Duration(0)) return ConnectToTheseServers(options, {});
  const auto moving = std::make_shared<Moving>(options, std::make_shared<UserCalls>(options.log));
  auto servers = moving->Connect(options, false);
  if (!servers.ok()) return servers.status();
  auto client = std::make_shared<MovingClient>(options, **servers, moving);
  moving->Start(*std::move(servers));
  return std::shared_ptr<ClientImpl>(std::move(client));
}

}  // namespace longhaul::internal
