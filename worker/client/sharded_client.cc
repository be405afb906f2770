// A worker of a job with one or more servers: of several it has a ServerClient each, cuts tensors by
// base/placement.h and puts together what comes back (decision 0029).
//
//   Client --> ShardedClient --> ServerClient 0 (first: rank, barriers) --> server 0
//                            \-> ServerClient 1 ...                     --> server 1
//
// Each has its own thread and its own rate controller: what is encoded and sealed for one server does not
// wait for what is for another, and a worker with a link as wide as all of the servers' has as many cores at
// work as it needs. An operation is over when all its parts are; the first error counts. When one server is
// lost for good, the worker leaves the others with its reason.
#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/counters.h"
#include "base/placement.h"
#include "worker/client/arguments.h"
#include "worker/client/wan_client.h"

namespace longhaul::internal {
namespace {

// Of sessions in threads of their own.
class SharedAlignment final : public worker::RoundAlignment {
 public:
  void Set(Part part, uint64_t pushes, uint64_t round) override {
    const std::lock_guard lock(mutex_);
    RoundAlignment::Set(part, pushes, round);
  }
  uint64_t Ahead(Part part) const override {
    const std::lock_guard lock(mutex_);
    return RoundAlignment::Ahead(part);
  }

 private:
  mutable std::mutex mutex_;
};

// What the servers' threads share; a client that is destroyed is not in it any more.
class Servers {
 public:
  void Set(std::vector<ServerClient*> clients) {
    const std::lock_guard lock(mutex_);
    clients_ = std::move(clients);
    if (!failure_.ok()) TellAll();
  }
  void Forget() {
    const std::lock_guard lock(mutex_);
    clients_.clear();
  }
  void OnFailed(const Status& why) {
    const std::lock_guard lock(mutex_);
    if (left_ || !failure_.ok()) return;
    failure_ = why;
    TellAll();
  }
  // The first of them has said where they are.
  void OnAddresses(const std::vector<std::string>& addresses) {
    const std::lock_guard lock(mutex_);
    for (size_t i = 1; i < std::min(clients_.size(), addresses.size()); ++i) {
      clients_[i]->SetAddress(addresses[i]);
    }
  }
  // What ends from now on is no failure.
  void Leave() {
    const std::lock_guard lock(mutex_);
    left_ = true;
  }
  bool left() {
    const std::lock_guard lock(mutex_);
    return left_;
  }
  // Ok while none has failed.
  Status failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  void TellAll() {
    for (ServerClient* client : clients_) client->BeginLeave(failure_);
  }

  std::mutex mutex_;
  std::vector<ServerClient*> clients_;
  Status failure_;
  bool left_ = false;
};

struct Counts {
  std::atomic<uint64_t> started = 0;
  std::atomic<uint64_t> succeeded = 0;
  std::atomic<uint64_t> failed = 0;
};

void Add(const OperationStats::RoundInfo& part, OperationStats::RoundInfo* sum) {
  sum->contributors = std::min(sum->contributors, part.contributors);
  sum->excluded = std::max(sum->excluded, part.excluded);
  if (part.lost_chunks > sum->lost_chunks) sum->fill_reason = part.fill_reason;
  sum->repaired_chunks += part.repaired_chunks;
  sum->filled_chunks += part.filled_chunks;
  sum->tolerated_chunks += part.tolerated_chunks;
  sum->rejected_chunks += part.rejected_chunks;
  sum->low_chunks += part.low_chunks;
  sum->low_lost += part.low_lost;
  sum->lost_chunks += part.lost_chunks;
  sum->loss = sum->low_chunks == 0 ? 0 : static_cast<double>(sum->low_lost) / sum->low_chunks;
}

void Add(const OperationStats& part, OperationStats* sum) {
  sum->round = std::min(sum->round, part.round);
  sum->pushed_round = std::min(sum->pushed_round, part.pushed_round);
  sum->bytes += part.bytes;
  sum->wire_bytes += part.wire_bytes;
  sum->chunks_sent += part.chunks_sent;
  sum->chunks_received += part.chunks_received;
  sum->retransmissions += part.retransmissions;
  sum->repairs_sent += part.repairs_sent;
  sum->repaired_chunks += part.repaired_chunks;
  sum->lost_chunks += part.lost_chunks;
  sum->lost_result_chunks += part.lost_result_chunks;
  sum->rtt = std::max(sum->rtt, part.rtt);
  sum->seconds = std::max(sum->seconds, part.seconds);
  if (!part.round_info) return;
  if (sum->round_info) return Add(*part.round_info, &*sum->round_info);
  sum->round_info = part.round_info;
}

// An operation with one part at each of some servers. The last part ends it.
class Fan {
 public:
  using Promise = std::shared_ptr<Completion>;
  Fan(Promise promise, size_t parts, std::shared_ptr<Servers> servers, std::shared_ptr<Counts> counts)
      : promise_(std::move(promise)),
        left_(parts),
        servers_(std::move(servers)),
        counts_(std::move(counts)) {}

  void OnPart(const Status& outcome, const OperationStats& stats) {
    std::unique_lock lock(mutex_);
    any_ok_ |= outcome.ok();
    if (outcome_.ok()) outcome_ = outcome;
    std::exchange(has_stats_, true) ? Add(stats, &stats_) : void(stats_ = stats);
    if (--left_ > 0) return;
    lock.unlock();
    End();
  }

 private:
  void End() {
    // The one server's error is why the others' parts were given up.
    if (const Status failure = servers_->failure(); !outcome_.ok() && !failure.ok()) outcome_ = failure;
    if (outcome_.code() == StatusCode::kInvalidArgument && any_ok_) {
      // Some parts count and some do not: the next push would be of one round here and of another one there.
      outcome_ = {StatusCode::kInvalidArgument,
                  outcome_.message() + " (parts of it have been taken by other servers)"};
      servers_->OnFailed(outcome_);
    }
    ++(outcome_.ok() ? counts_->succeeded : counts_->failed);
    promise_->End(outcome_, stats_);
  }

  Promise promise_;
  std::mutex mutex_;  // guards the rest until the last part is here
  size_t left_;
  bool any_ok_ = false;
  bool has_stats_ = false;
  Status outcome_;
  OperationStats stats_;
  std::shared_ptr<Servers> servers_;
  std::shared_ptr<Counts> counts_;
};

class ShardedClient final : public ClientImpl {
 public:
  ShardedClient(const ConnectOptions& options, std::shared_ptr<Servers> servers,
                std::vector<std::shared_ptr<ServerClient>> clients)
      : ClientImpl(options.log),
        weight_(options.weight),
        servers_(std::move(servers)),
        clients_(std::move(clients)) {
    std::vector<ServerClient*> all;
    for (const auto& client : clients_) all.push_back(client.get());
    servers_->Set(std::move(all));
  }
  ~ShardedClient() override { servers_->Forget(); }

  Result<Tensor> Declare(const std::string& name, const TensorOptions& options) override;
  Operation Push(const Tensor& tensor, std::span<const float> gradient, const PushOptions& options) override;
  Operation Pull(const Tensor& tensor, std::span<float> out, const PullOptions& options) override;
  Operation PushPull(const Tensor& tensor, std::span<const float> gradient, std::span<float> out,
                     const PushOptions& options) override;
  Status SetScores(const Tensor& tensor, std::span<const float> scores) override;
  Result<TensorClock> Clock(const Tensor& tensor) override;
  Status Barrier(const std::string& name) override { return Named(first().Barrier(name)); }
  Status Leave(const Status& why) override;
  uint32_t rank() const override { return first().rank(); }
  uint32_t world_size() const override { return first().world_size(); }
  JobSpec settings() const override { return first().settings(); }
  Membership membership() override { return first().membership(); }
  Status status() override;
  ClientStats stats() override;
  std::optional<ClientStats> Ask() override;
  uint64_t job() const override;
  uint32_t servers() const override { return static_cast<uint32_t>(clients_.size()); }
  void AnswerHandOver(uint32_t phase, uint64_t round) override { first().AnswerHandOver(phase, round); }
  Result<std::vector<float>> Owed(const Tensor& tensor, uint64_t first, size_t most) override;
  void Owe(const Tensor& tensor, uint64_t first, std::vector<float>&& values) override;
  void Vanish() override;
  bool OnOwnThread() const override {
    return std::ranges::any_of(clients_, [](const auto& client) { return client && client->OnOwnThread(); });
  }

 private:
  struct Part {
    Shard shard;
    std::shared_ptr<Tensor> tensor;
  };
  using Parts = std::vector<Part>;

  // The last client's thread is the one that this runs on, and ends by itself.
  void EndOnOwnThread() override;
  void KeepUntilTheEnd(std::shared_ptr<ClientImpl>) override {}  // no thread needs it

  ServerClient& first() const { return *clients_.front(); }
  // An error that has ended the client is why.
  Status Named(const Status& outcome) {
    const Status failure = servers_->failure();
    return outcome.ok() || failure.ok() ? outcome : failure;
  }
  std::shared_ptr<const Parts> PartsOf(const Tensor& tensor);
  // begin: of each part, the server's operation.
  template <typename Begin>
  Operation FanOut(const Parts& parts, Begin begin);
  Status CheckLength(const Tensor& tensor, size_t elements) const;
  Status CheckPush(const Tensor& tensor, std::span<const float> gradient, const PushOptions& options) const;
  template <typename T>
  static std::span<T> Of(const Part& part, std::span<T> values) {
    return values.subspan(part.shard.first, part.shard.count);
  }
  ClientStats Sum(const std::vector<ClientStats>& each) const;

  const float weight_;
  const std::shared_ptr<Servers> servers_;
  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  std::vector<std::shared_ptr<ServerClient>> clients_;  // by number in the shard map

  std::mutex mutex_;                                   // guards the rest
  std::vector<std::shared_ptr<const Parts>> tensors_;  // by handle
  std::map<std::string, uint32_t> handles_;
};

// --- Operations ---

template <typename Begin>
Operation ShardedClient::FanOut(const Parts& parts, Begin begin) {
  auto [operation, promise] = NewOperation();
  ++counts_->started;
  const auto fan = std::make_shared<Fan>(std::move(promise), parts.size(), servers_, counts_);
  for (const Part& part : parts) {
    const Operation one = begin(*clients_[part.shard.server], part);
    one.Then([fan, one](const Status& outcome) { fan->OnPart(outcome, one.stats()); });
  }
  return operation;
}

std::shared_ptr<const ShardedClient::Parts> ShardedClient::PartsOf(const Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  return tensors_[HandleOf(tensor)];
}

Result<Tensor> ShardedClient::Declare(const std::string& name, const TensorOptions& options) {
  if (UserCalls::InCallback()) return InACallback("Declare");
  // What is no tensor, the first server's client refuses in its words.
  const bool whole = options.initial.empty() || options.initial.size() == options.count;
  const auto outside = [&](const TensorOptions::Range& r) {
    return r.first > options.count || r.count > options.count - r.first;
  };
  if (options.count == 0 || !whole || std::ranges::any_of(options.high_ranges, outside)) {
    return first().Declare(name, options);
  }
  if (Status s = worker::CheckInitial(options.initial); !s.ok()) return s;
  auto parts = std::make_shared<Parts>();
  for (const Shard& shard : PlaceTensor(name, options.count, static_cast<uint32_t>(clients_.size()))) {
    parts->push_back({shard, std::make_shared<Tensor>()});
  }
  const Operation declared = FanOut(*parts, [&](ServerClient& server, const Part& part) {
    const uint64_t first = part.shard.first;
    const uint64_t end = first + part.shard.count;
    TensorOptions of_part = options;
    of_part.count = part.shard.count;
    if (!options.initial.empty()) of_part.initial = Of(part, options.initial);
    of_part.high_ranges.clear();
    for (const TensorOptions::Range& range : options.high_ranges) {
      const uint64_t from = std::max(range.first, first);
      const uint64_t to = std::min(range.first + range.count, end);
      if (from < to) of_part.high_ranges.push_back({from - first, to - from});
    }
    return server.BeginDeclare(name, of_part, part.tensor);
  });
  if (Status s = declared.Wait(); !s.ok()) return s;
  Tensor tensor = MakeTensor(name, options);
  const std::lock_guard lock(mutex_);
  const auto [known, is_new] = handles_.emplace(name, static_cast<uint32_t>(tensors_.size()));
  if (is_new) tensors_.push_back(std::move(parts));
  SetHandle(known->second, &tensor);
  return tensor;
}

Status ShardedClient::CheckLength(const Tensor& tensor, size_t elements) const {
  if (elements == tensor.count()) return {};
  return {StatusCode::kInvalidArgument, "tensor " + tensor.name() + " has " + std::to_string(tensor.count()) +
                                            " elements, but the span has " + std::to_string(elements)};
}

// All of it before any part is sent: servers that take theirs would be a round ahead of one that does not.
Status ShardedClient::CheckPush(const Tensor& tensor, std::span<const float> gradient,
                                const PushOptions& options) const {
  if (Status s = CheckLength(tensor, gradient.size()); !s.ok()) return s;
  if (Status s = worker::CheckWeight(options); !s.ok()) return s;
  return worker::CheckSummable(gradient, world_size(), options.weight.value_or(weight_));
}

Operation ShardedClient::Push(const Tensor& tensor, std::span<const float> gradient,
                              const PushOptions& options) {
  if (Status s = CheckRequest(tensor, gradient); !s.ok()) return Refused(s);
  if (Status s = CheckPush(tensor, gradient, options); !s.ok()) return Refused(s);
  return FanOut(*PartsOf(tensor), [&](ServerClient& server, const Part& part) {
    return server.Push(*part.tensor, Of(part, gradient), options);
  });
}

Operation ShardedClient::Pull(const Tensor& tensor, std::span<float> out, const PullOptions& options) {
  if (Status s = CheckPull(tensor, out); !s.ok()) return Refused(s);
  if (Status s = CheckLength(tensor, out.size()); !s.ok()) return Refused(s);
  return FanOut(*PartsOf(tensor), [&](ServerClient& server, const Part& part) {
    return server.Pull(*part.tensor, Of(part, out), options);
  });
}

Operation ShardedClient::PushPull(const Tensor& tensor, std::span<const float> gradient, std::span<float> out,
                                  const PushOptions& options) {
  if (Status s = CheckRequest(tensor, gradient, out); !s.ok()) return Refused(s);
  if (Status s = CheckPush(tensor, gradient, options); !s.ok()) return Refused(s);
  if (Status s = CheckLength(tensor, out.size()); !s.ok()) return Refused(s);
  return FanOut(*PartsOf(tensor), [&](ServerClient& server, const Part& part) {
    return server.PushPull(*part.tensor, Of(part, gradient), Of(part, out), options);
  });
}

Status ShardedClient::SetScores(const Tensor& tensor, std::span<const float> scores) {
  if (Status s = CheckScores(tensor, scores); !s.ok()) return s;
  const auto parts = PartsOf(tensor);
  for (const Part& part : *parts) {
    const Status set = clients_[part.shard.server]->SetScores(
        *part.tensor, worker::ScoresOf(scores, tensor.count(), part.shard.first, part.shard.count));
    if (!set.ok()) return set;
  }
  return {};
}

// Up to the end of the part that has the first element.
Result<std::vector<float>> ShardedClient::Owed(const Tensor& tensor, uint64_t first, size_t most) {
  for (const Part& part : *PartsOf(tensor)) {
    const uint64_t at = first - part.shard.first;  // of an element before the part: beyond it
    if (at < part.shard.count) return clients_[part.shard.server]->Owed(*part.tensor, at, most);
  }
  return std::vector<float>();
}

// The servers may be others than those that it was owed to: cut as they are now.
void ShardedClient::Owe(const Tensor& tensor, uint64_t first, std::vector<float>&& values) {
  for (const Part& part : *PartsOf(tensor)) {
    const uint64_t from = std::max(first, part.shard.first);
    const uint64_t to = std::min(first + values.size(), part.shard.first + part.shard.count);
    if (from >= to) continue;
    const auto begin = values.begin() + static_cast<ptrdiff_t>(from - first);
    clients_[part.shard.server]->Owe(*part.tensor, from - part.shard.first,
                                     {begin, begin + static_cast<ptrdiff_t>(to - from)});
  }
}

// A push has counted when all of its parts have: the least of each.
Result<TensorClock> ShardedClient::Clock(const Tensor& tensor) {
  if (UserCalls::InCallback()) return InACallback("Clock");
  if (Status s = CheckTensor(tensor); !s.ok()) return s;
  std::optional<TensorClock> clock;
  for (const Part& part : *PartsOf(tensor)) {
    const Result<TensorClock> one = clients_[part.shard.server]->Clock(*part.tensor);
    if (!one.ok()) return Named(one.status());
    if (!clock) clock = *one;
    clock = TensorClock{std::min(clock->own, one->own), std::min(clock->slowest, one->slowest),
                        std::min(clock->fastest, one->fastest), std::min(clock->members, one->members)};
  }
  return *clock;
}

Status ShardedClient::Leave(const Status& why) {
  if (UserCalls::InCallback()) return InACallback("Leave");
  if (Status s = worker::CheckCode(why); !s.ok()) return s;
  if (why.ok()) WaitForOperations();
  const Status failure = servers_->failure();
  servers_->Leave();
  for (const auto& client : clients_) client->BeginLeave(why);
  Status outcome = failure;
  for (const auto& client : clients_) {
    const Status left = client->Leave(why);
    if (outcome.ok()) outcome = left;
  }
  return outcome;
}

// --- Questions ---

Status ShardedClient::status() {
  if (const Status failure = servers_->failure(); !failure.ok()) return failure;
  if (servers_->left()) return HasLeft();
  for (const auto& client : clients_) {
    if (Status s = client->status(); !s.ok()) return s;
  }
  return {};
}

ClientStats ShardedClient::Sum(const std::vector<ClientStats>& each) const {
  ClientStats sum = each.front();
  for (size_t i = 1; i < each.size(); ++i) {
    const ClientStats& one = each[i];
    AddClientCounts(one, &sum);
    sum.bandwidth = sum.bandwidth + one.bandwidth;
    sum.fit_capacity = sum.fit_capacity + one.fit_capacity;
    sum.smoothed_rtt = std::max(sum.smoothed_rtt, one.smoothed_rtt);
    sum.min_rtt = std::max(sum.min_rtt, one.min_rtt);
    sum.latest_rtt = std::max(sum.latest_rtt, one.latest_rtt);
    sum.loss = std::max(sum.loss, one.loss);
    sum.longest_event = std::max(sum.longest_event, one.longest_event);
    for (Duration ClientStats::*time :
         {&ClientStats::limited_by_app, &ClientStats::limited_by_pacing, &ClientStats::limited_by_cwnd,
          &ClientStats::limited_by_receive_window, &ClientStats::limited_by_grant,
          &ClientStats::limited_by_cap}) {
      sum.*time += one.*time;
    }
  }
  sum.operations_started = counts_->started;
  sum.operations_succeeded = counts_->succeeded;
  sum.operations_failed = counts_->failed;
  sum.callbacks_threw += calls_->threw();
  return sum;
}

std::optional<ClientStats> ShardedClient::Ask() {
  std::vector<ClientStats> each;
  for (const auto& client : clients_) {
    const auto one = client->Ask();
    if (!one) return std::nullopt;
    each.push_back(*one);
  }
  return Sum(each);
}

ClientStats ShardedClient::stats() {
  std::vector<ClientStats> each;
  for (const auto& client : clients_) each.push_back(client->stats());
  return Sum(each);
}

uint64_t ShardedClient::job() const {
  std::vector<uint64_t> numbers;
  for (const auto& client : clients_) numbers.push_back(client->job());
  return JobIdentity(numbers);
}

void ShardedClient::Vanish() {
  EndWith(Destroyed());
  servers_->Forget();
  for (const auto& client : clients_) client->Vanish();
}

void ShardedClient::EndOnOwnThread() {
  servers_->Forget();
  std::vector<std::shared_ptr<ServerClient>> clients = std::move(clients_);
  for (auto& client : clients) {
    if (client->OnOwnThread()) ClientImpl::Release(std::move(client));
  }
}

// --- Connect ---

// Ok: all servers but the first have let this worker in.
Status JoinOthers(const ConnectOptions& options, const std::shared_ptr<Servers>& servers,
                  const std::shared_ptr<worker::RoundAlignment>& alignment, uint64_t epoch,
                  const std::vector<std::string>& addresses,
                  std::vector<std::shared_ptr<ServerClient>>* clients) {
  for (uint32_t server = 1; server < addresses.size(); ++server) {
    ServerClient::Options one{
        .connect = options, .map_epoch = epoch, .server = server, .alignment = alignment};
    one.connect.servers = {addresses[server]};
    const double share = 1.0 / static_cast<double>(addresses.size());
    one.connect.rate_cap = options.rate_cap * share;
    one.connect.rate_floor = options.rate_floor * share;
    if (options.seed != 0) one.connect.seed = options.seed + server;
    one.on_failed = [servers](const Status& why) { servers->OnFailed(why); };
    auto client = ServerClient::Start(one);
    if (!client.ok()) return client.status();
    clients->push_back(*std::move(client));
  }
  for (size_t server = 1; server < clients->size(); ++server) {
    if (Status joined = (*clients)[server]->WaitUntilJoined(); !joined.ok()) return joined;
  }
  return {};
}

}  // namespace

void AddClientCounts(const ClientStats& other, ClientStats* sum) {
  AddCounts<ClientStats>(kClientCounters, other, sum);
  sum->bytes_sent += other.bytes_sent;
  sum->bytes_received += other.bytes_received;
  sum->chunk_bytes_sent += other.chunk_bytes_sent;
  sum->chunk_bytes_received += other.chunk_bytes_received;
}

Result<std::shared_ptr<ClientImpl>> ConnectToTheseServers(const ConnectOptions& options,
                                                          const ServerHooks& hooks) {
  const auto servers = std::make_shared<Servers>();
  const auto alignment = std::make_shared<SharedAlignment>();
  ServerClient::Options one{.connect = options, .alignment = alignment, .hooks = hooks};
  one.on_failed = [servers](const Status& why) { servers->OnFailed(why); };
  one.on_servers = [servers](const std::vector<std::string>& addresses) { servers->OnAddresses(addresses); };
  auto first = ServerClient::Start(one);
  if (!first.ok()) return first.status();
  Status joined = (*first)->WaitUntilJoined();
  if (const std::string other = (*first)->first_server(); !joined.ok() && !other.empty()) {
    one.connect.servers = {other};
    first = ServerClient::Start(one);
    if (!first.ok()) return first.status();
    joined = (*first)->WaitUntilJoined();
  }
  if (!joined.ok()) return joined;
  const auto [epoch, addresses] = (*first)->shard_map();
  if (addresses.size() < 2) return std::shared_ptr<ClientImpl>(*std::move(first));
  std::vector<std::shared_ptr<ServerClient>> clients = {*std::move(first)};
  const Status all = JoinOthers(options, servers, alignment, epoch, addresses, &clients);
  if (all.ok())
    return std::shared_ptr<ClientImpl>(std::make_shared<ShardedClient>(options, servers, std::move(clients)));
  for (const auto& client : clients) {
    if (hooks.tries_again) {
      client->Vanish();
    } else {
      (void)client->Leave(all);
    }
  }
  return all;
}

}  // namespace longhaul::internal
