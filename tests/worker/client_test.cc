// The public client API against a real server in the same process, over the loopback.
#include "longhaul/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <deque>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "longhaul/server.h"
#include "tests/worker/client_harness.h"

namespace longhaul {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// Declare waits for all workers, so each client declares in a thread of its own.
std::vector<Tensor> DeclareOnAll(std::vector<Client>& clients, const TensorOptions& options) {
  std::vector<Tensor> tensors(clients.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < clients.size(); ++i) {
    threads.emplace_back([&, i] {
      Result<Tensor> tensor = clients[i].Declare("w", options);
      ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
      tensors[i] = *tensor;
    });
  }
  for (std::thread& t : threads) t.join();
  return tensors;
}

TEST(ClientTest, SeveralClientsInOneProcessShareTheMeanOfTheirGradients) {
  constexpr size_t kCount = 50'000;
  Server server = StartServer(3, EverythingReliable());
  std::vector<Client> clients;
  for (uint32_t rank = 0; rank < 3; ++rank) clients.push_back(MustConnect(OptionsFor(server, rank, 3)));
  const std::vector<Tensor> tensors = DeclareOnAll(clients, {.count = kCount});
  EXPECT_EQ(clients[1].rank(), 1u);
  EXPECT_EQ(clients[1].world_size(), 3u);
  EXPECT_EQ(clients[1].settings().policy, LossPolicy::kResidual);

  std::vector<std::vector<float>> gradients(3), results(3, std::vector<float>(kCount));
  for (size_t i = 0; i < 3; ++i) gradients[i].assign(kCount, static_cast<float>(3 * i));
  for (int round = 0; round < 3; ++round) {
    std::vector<Operation> steps;
    for (size_t i = 0; i < 3; ++i) steps.push_back(clients[i].PushPull(tensors[i], gradients[i], results[i]));
    for (size_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(steps[i].Wait().ok()) << steps[i].Wait().ToString();
      EXPECT_TRUE(steps[i].done());
      EXPECT_EQ(results[i], std::vector<float>(kCount, 3.0f)) << "worker " << i << ", round " << round;
      EXPECT_EQ(steps[i].stats().round, static_cast<uint64_t>(round));
      EXPECT_EQ(steps[i].stats().bytes, ByteCount(2 * 4 * kCount));
      EXPECT_GT(steps[i].stats().seconds, 0.0);
    }
  }
  EXPECT_EQ(clients[0].stats().operations_succeeded, 4u) << "a declaration and three rounds";
  EXPECT_GT(clients[0].stats().packets_sent, 0u);
  for (Client& client : clients) EXPECT_TRUE(client.Leave().ok());
}

// What a client's callback has been called with.
class Members {
 public:
  MembershipCallback callback() {
    return [this](const Membership& m) {
      const std::lock_guard lock(mutex_);
      heard_.push_back(m);
    };
  }
  size_t calls() {
    const std::lock_guard lock(mutex_);
    return heard_.size();
  }
  bool WaitFor(const std::vector<uint32_t>& ranks) {
    for (const auto end = Clock::now() + seconds(20); Clock::now() < end;) {
      {
        const std::lock_guard lock(mutex_);
        if (!heard_.empty() && heard_.back().ranks == ranks) return true;
      }
      std::this_thread::sleep_for(milliseconds(2));
    }
    return false;
  }

 private:
  std::mutex mutex_;
  std::vector<Membership> heard_;
};

TEST(ClientTest, EveryWorkerKnowsWhichAreInAndItsPartOfTheData) {
  ServerOptions elastic = EverythingReliable();
  elastic.min_workers = 1;
  elastic.start_workers = 2;
  Server server = StartServer(4, elastic);
  std::deque<Members> members(3);
  const std::vector<uint32_t> ranks = {0, 3, 1};
  const auto connect = [&](size_t i) {
    ConnectOptions options = OptionsFor(server, ranks[i], 4);
    options.on_membership = members[i].callback();
    return MustConnect(options);
  };
  std::vector<Client> clients;
  clients.push_back(connect(0));
  EXPECT_EQ(clients[0].membership(), Membership()) << "the job has not started";
  clients.push_back(connect(1));
  DeclareOnAll(clients, {.count = 100});
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(members[i].calls(), 1u) << "before Declare returned";
    EXPECT_EQ(clients[i].membership().ranks, (std::vector<uint32_t>{0, 3}));
    EXPECT_EQ(clients[i].membership().shard_index, i);
    EXPECT_EQ(clients[i].membership().shard_count, 2u);
  }
  EXPECT_EQ(clients[0].membership().epoch, clients[1].membership().epoch);

  clients.push_back(connect(2));
  const std::vector<Tensor> tensors = DeclareOnAll(clients, {.count = 100});
  for (Members& each : members) EXPECT_TRUE(each.WaitFor({0, 1, 3}));
  EXPECT_EQ(clients[1].membership().shard_index, 2u);
  std::vector<std::vector<float>> results(3, std::vector<float>(100));
  std::vector<std::vector<float>> gradients;
  for (size_t i = 0; i < 3; ++i) gradients.emplace_back(100, static_cast<float>(3 * i));
  std::vector<Operation> steps;
  for (size_t i = 0; i < 3; ++i) steps.push_back(clients[i].PushPull(tensors[i], gradients[i], results[i]));
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(steps[i].Wait().ok());
    EXPECT_EQ(results[i], std::vector<float>(100, 3.0f)) << "of the three that are in";
  }
  EXPECT_TRUE(clients[0].Leave().ok());
  for (size_t i : {1u, 2u}) EXPECT_TRUE(members[i].WaitFor({1, 3}));
  EXPECT_EQ(clients[2].membership().shard_index, 0u);
  EXPECT_EQ(clients[2].membership().shard_count, 2u);
}

TEST(ClientTest, TheServerKeepsAndUpdatesTheParameters) {
  Server server = StartServer(1);
  Client client = MustConnect(OptionsFor(server, 0, 1));
  std::vector<float> initial(1000);
  std::iota(initial.begin(), initial.end(), 0.0f);
  Result<Tensor> w = client.Declare("w", {.count = 1000, .optimizer = "sgd:lr=0.5", .initial = initial});
  ASSERT_TRUE(w.ok()) << w.status().ToString();
  std::vector<float> model(1000);
  ASSERT_TRUE(client.Pull(*w, model).Wait().ok());
  EXPECT_EQ(model, initial);
  const std::vector<float> gradient(1000, 2.0f);
  ASSERT_TRUE(client.Push(*w, gradient).Wait().ok());
  ASSERT_TRUE(client.Pull(*w, model, {.min_round = 1}).Wait().ok());
  for (size_t i = 0; i < model.size(); ++i) ASSERT_EQ(model[i], initial[i] - 1.0f);
}

TEST(ClientTest, ADeadAddressIsNamedWithinTheTimeout) {
  ConnectOptions options;
  options.servers = {"127.0.0.1:9"};
  options.insecure = true;
  options.connect_timeout = milliseconds(300);
  const auto begun = Clock::now();
  Result<Client> client = Client::Connect(options);
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(client.status().message(), HasSubstr("127.0.0.1:9"));
  EXPECT_LT(Clock::now() - begun, seconds(5));
}

TEST(ClientTest, RefusesImpossibleOptionsByName) {
  const auto status = [](auto change) {
    ConnectOptions options;
    options.servers = {"127.0.0.1:9"};
    options.insecure = true;
    change(options);
    Result<Client> client = Client::Connect(options);
    EXPECT_EQ(client.status().code(), StatusCode::kInvalidArgument) << client.status().ToString();
    return client.status().message();
  };
  EXPECT_THAT(status([](ConnectOptions& o) { o.servers.clear(); }), HasSubstr("server"));
  EXPECT_THAT(status([](ConnectOptions& o) { o.servers = {"no-port"}; }), HasSubstr("no-port"));
  EXPECT_THAT(status([](ConnectOptions& o) { o.rank = 1; }), HasSubstr("rank 1"));
  EXPECT_THAT(status([](ConnectOptions& o) { o.job = std::string(257, 'j'); }), HasSubstr("job"));
  EXPECT_THAT(status([](ConnectOptions& o) { o.job = "a\nb"; }),
              HasSubstr("job's name has control characters"));
  EXPECT_THAT(status([](ConnectOptions& o) { o.site = "\x1b[2J"; }),
              HasSubstr("site's name has control characters"));
  EXPECT_THAT(status([](ConnectOptions& o) { o.weight = 0; }), HasSubstr("weight"));
  EXPECT_THAT(status([](ConnectOptions& o) { o.datagram_bytes = 100; }), HasSubstr("datagram_bytes"));
  EXPECT_THAT(status([](ConnectOptions& o) {
                o.rate_cap = Bandwidth::Mbps(1);
                o.rate_floor = Bandwidth::Mbps(2);
              }),
              HasSubstr("rate_floor"));
  EXPECT_THAT(status([](ConnectOptions& o) { o.idle_timeout = Duration(0); }), HasSubstr("idle_timeout"));
  EXPECT_THAT(status([](ConnectOptions& o) { o.fault = "nonsense=1"; }), HasSubstr("nonsense"));
  EXPECT_THAT(status([](ConnectOptions& o) { o.insecure = false; }), HasSubstr("no key"));
}

TEST(ClientTest, TheServersRefusalReachesTheCaller) {
  Server server = StartServer(2);
  Client first = MustConnect(OptionsFor(server, 0, 2));
  Result<Client> second = Client::Connect(OptionsFor(server, 0, 2));
  EXPECT_EQ(second.status().code(), StatusCode::kAlreadyExists) << second.status().ToString();
  EXPECT_THAT(second.status().message(), HasSubstr("rank 0 is taken"));
  Result<Client> stranger = Client::Connect(OptionsFor(server, 0, 5));
  EXPECT_EQ(stranger.status().code(), StatusCode::kSettingsMismatch);
  EXPECT_THAT(stranger.status().message(), HasSubstr("5"));
}

TEST(ClientTest, WaitForGivesUpButTheOperationGoesOn) {
  Server server = StartServer(2);
  std::vector<Client> clients;
  for (uint32_t rank = 0; rank < 2; ++rank) clients.push_back(MustConnect(OptionsFor(server, rank, 2)));
  const std::vector<Tensor> tensors = DeclareOnAll(clients, {.count = 1000});
  const std::vector<float> gradient(1000, 1.0f);
  std::vector<float> out0(1000), out1(1000);
  const Operation alone = clients[0].PushPull(tensors[0], gradient, out0);
  EXPECT_EQ(alone.WaitFor(milliseconds(50)).code(), StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(alone.done());
  const Operation other = clients[1].PushPull(tensors[1], gradient, out1);
  EXPECT_TRUE(alone.WaitFor(seconds(10)).ok());
  EXPECT_TRUE(other.Wait().ok());
}

TEST(ClientTest, ManyThreadsMayWaitForOneOperation) {
  Server server = StartServer(1);
  Client client = MustConnect(OptionsFor(server, 0, 1));
  Result<Tensor> w = client.Declare("w", {.count = 200'000});
  ASSERT_TRUE(w.ok());
  const std::vector<float> gradient(200'000, 1.0f);
  std::vector<float> out(200'000);
  const Operation step = client.PushPull(*w, gradient, out);
  std::atomic<int> succeeded{0}, called{0};
  for (int i = 0; i < 3; ++i) {
    step.Then([&](const Status& s) { called += s.ok() ? 1 : 0; });
  }
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i) {
    waiters.emplace_back([&, copy = step] { succeeded += copy.Wait().ok() ? 1 : 0; });
  }
  for (std::thread& t : waiters) t.join();
  EXPECT_EQ(succeeded, 4);
  step.Then([&](const Status& s) { called += s.ok() ? 1 : 0; });  // late: at once
  // Leave waits for the background thread to be through with the callbacks.
  EXPECT_TRUE(client.Leave().ok());
  EXPECT_EQ(called, 4);
}

TEST(ClientTest, ThreadsMayUseOneClientAtTheSameTime) {
  constexpr int kThreads = 4;
  Server server = StartServer(1, EverythingReliable());
  Client client = MustConnect(OptionsFor(server, 0, 1));
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Result<Tensor> w = client.Declare("w" + std::to_string(t), {.count = 5000});
      ASSERT_TRUE(w.ok()) << w.status().ToString();
      const std::vector<float> gradient(5000, static_cast<float>(t));
      std::vector<float> out(5000);
      for (int round = 0; round < 10; ++round) {
        const Operation step = client.PushPull(*w, gradient, out);
        ASSERT_TRUE(step.Wait().ok());
        right += out == gradient ? 1 : 0;
        (void)client.stats();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(right, kThreads * 10);
}

TEST(ClientTest, EveryPendingOperationEndsWhenTheServerStops) {
  std::optional<Server> server = StartServer(2);
  std::vector<Client> clients;
  for (uint32_t rank = 0; rank < 2; ++rank) clients.push_back(MustConnect(OptionsFor(*server, rank, 2)));
  const std::vector<Tensor> tensors = DeclareOnAll(clients, {.count = 1000});
  const std::vector<float> gradient(1000, 1.0f);
  std::vector<float> out(1000);
  const Operation pending = clients[0].PushPull(tensors[0], gradient, out);
  EXPECT_FALSE(pending.done());
  server->Stop();
  const Status status = pending.WaitFor(seconds(10));
  EXPECT_EQ(status.code(), StatusCode::kAborted) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr(server->address()));
  EXPECT_EQ(clients[0].status().code(), StatusCode::kAborted);
  EXPECT_FALSE(clients[0].Push(tensors[0], gradient).Wait().ok()) << "and nothing waits afterwards";
}

TEST(ClientTest, DestroyingAClientEndsWhatIsPendingSoon) {
  Server server = StartServer(2);
  std::vector<Client> clients;
  for (uint32_t rank = 0; rank < 2; ++rank) clients.push_back(MustConnect(OptionsFor(server, rank, 2)));
  const std::vector<Tensor> tensors = DeclareOnAll(clients, {.count = 1000});
  const std::vector<float> gradient(1000, 1.0f);
  std::vector<float> out(1000);
  const Operation pending = clients[0].PushPull(tensors[0], gradient, out);
  const auto begun = Clock::now();
  clients.erase(clients.begin());
  EXPECT_LT(Clock::now() - begun, seconds(3));
  EXPECT_EQ(pending.Wait().code(), StatusCode::kCancelled);
  // The other client's request fails: the job needs both.
  std::vector<float> out1(1000);
  EXPECT_EQ(clients[0].PushPull(tensors[1], gradient, out1).WaitFor(seconds(10)).code(),
            StatusCode::kAborted);
}

TEST(ClientTest, LeavingEndsAPendingDeclarationOfAnotherThread) {
  Server server = StartServer(2);
  Client client = MustConnect(OptionsFor(server, 0, 2));
  Status declared;
  std::thread waiter([&] { declared = client.Declare("w", {.count = 10}).status(); });
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_TRUE(client.Leave(Status(StatusCode::kCancelled, "interrupted")).ok());
  waiter.join();
  EXPECT_FALSE(declared.ok());
  EXPECT_EQ(client.status().code(), StatusCode::kFailedPrecondition);
}

TEST(ClientTest, TrainsThroughLossAndDelay) {
  Server server = StartServer(2, {.fault = "drop=0.05,delay=5ms,seed=11"});
  std::vector<Client> clients;
  for (uint32_t rank = 0; rank < 2; ++rank) clients.push_back(MustConnect(OptionsFor(server, rank, 2)));
  constexpr size_t kCount = 100'000;
  const std::vector<Tensor> tensors = DeclareOnAll(clients, {.count = kCount});
  std::vector<std::vector<float>> gradients(2, std::vector<float>(kCount, 1.0f));
  std::vector<std::vector<float>> results(2, std::vector<float>(kCount));
  uint64_t lost = 0;
  for (int round = 0; round < 10; ++round) {
    std::vector<Operation> steps;
    for (size_t i = 0; i < 2; ++i) steps.push_back(clients[i].PushPull(tensors[i], gradients[i], results[i]));
    for (const Operation& step : steps) {
      ASSERT_TRUE(step.WaitFor(seconds(30)).ok()) << step.Wait().ToString();
      lost += step.stats().lost_chunks;
    }
    EXPECT_EQ(results[0], results[1]) << "all workers get the same update, bit by bit; round " << round;
  }
  EXPECT_GT(lost, 0u) << "5 % of the datagrams did not arrive";
}

TEST(ClientTest, AMadeUpOperationOrTensorIsAnError) {
  EXPECT_EQ(Operation().Wait().code(), StatusCode::kFailedPrecondition);
  Server server = StartServer(1);
  Client client = MustConnect(OptionsFor(server, 0, 1));
  std::vector<float> values(10);
  EXPECT_EQ(client.Push(Tensor(), values).Wait().code(), StatusCode::kInvalidArgument);
  Result<Tensor> w = client.Declare("w", {.count = 11});
  ASSERT_TRUE(w.ok());
  EXPECT_THAT(client.Push(*w, values).Wait().message(), HasSubstr("11 elements"));
}

// --- Explicit priority ---

// The last quarter of a tensor has the least energy, so that the job would let it be lost; its scores say
// otherwise.
class ExplicitPriority : public ::testing::Test {
 protected:
  static constexpr uint64_t kCount = 40 * 352;
  ExplicitPriority() {
    ServerOptions options;
    options.job_spec.policy = LossPolicy::kZero;
    options.job_spec.high_share = 0.25;
    options.job_spec.close_ratio = 0;
    server_.emplace(StartServer(1, options));
    ConnectOptions connect = OptionsFor(*server_, 0, 1);
    connect.fault = "drop=0.2,seed=5";
    connect.seed = 5;
    client_.emplace(MustConnect(connect));
    for (uint64_t i = 0; i < kCount; ++i) gradient_[i] = i < kCount / 4 * 3 ? 100.0f : 1.0f;
  }
  // Values that rounds lost of the tensor's first three quarters, and of the last one.
  std::pair<uint64_t, uint64_t> Lost(const Tensor& tensor) {
    std::pair<uint64_t, uint64_t> lost;
    for (int round = 0; round < 15; ++round) {
      const Status status = client_->PushPull(tensor, gradient_, out_).Wait();
      EXPECT_TRUE(status.ok()) << status.ToString();
      for (uint64_t i = 0; i < kCount; ++i)
        (i < kCount / 4 * 3 ? lost.first : lost.second) += out_[i] == 0 ? 1 : 0;
    }
    return lost;
  }
  std::optional<Server> server_;
  std::optional<Client> client_;
  std::vector<float> gradient_ = std::vector<float>(kCount);
  std::vector<float> out_ = std::vector<float>(kCount);
};

TEST_F(ExplicitPriority, WhatIsScoredIsNotLost) {
  const Tensor tensor = *client_->Declare("w", {.count = kCount});
  EXPECT_GT(Lost(tensor).second, 0u) << "else this shows nothing";
  ASSERT_TRUE(client_->SetScores(tensor, std::vector<float>{0, 0, 0, 1}).ok());
  const auto [others, last] = Lost(tensor);
  EXPECT_GT(others, 0u);
  EXPECT_EQ(last, 0u);
}

TEST_F(ExplicitPriority, ARangeOfATensorIsNotLost) {
  TensorOptions options;
  options.count = kCount;
  options.high_ranges = {{.first = kCount / 4 * 3, .count = kCount / 4}};
  const auto [others, last] = Lost(*client_->Declare("w", options));
  EXPECT_GT(others, 0u);
  EXPECT_EQ(last, 0u);
}

TEST_F(ExplicitPriority, ATensorMayHaveAHighShareOfItsOwn) {
  const auto [others, last] = Lost(*client_->Declare("w", {.high_share = 1, .count = kCount}));
  EXPECT_EQ(others + last, 0u);
  const Result<Tensor> refused = client_->Declare("v", {.high_share = 1.5, .count = kCount});
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("1.5"));
}

TEST_F(ExplicitPriority, ScoresThatAreNoneAreRefused) {
  const Tensor tensor = *client_->Declare("w", {.count = 3});
  EXPECT_THAT(client_->SetScores(tensor, {}).message(), HasSubstr("0 scores"));
  EXPECT_THAT(client_->SetScores(tensor, std::vector<float>(4, 1.0f)).message(), HasSubstr("4 scores"));
  for (const float bad : {-1.0f, std::nanf(""), HUGE_VALF}) {
    const Status status = client_->SetScores(tensor, std::vector<float>{1, bad});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("score 1 "));
  }
  EXPECT_EQ(client_->SetScores(Tensor(), std::vector<float>{1}).code(), StatusCode::kInvalidArgument);
}

// A callback may use what its giver takes away after Wait.
TEST(ClientTest, CallbacksHaveRunWhenWaitReturns) {
  Server server = StartServer(1, EverythingReliable());
  Client client = MustConnect(OptionsFor(server, 0, 1));
  const Tensor w = *client.Declare("w", {.count = 1000});
  const std::vector<float> gradient(1000, 1.0f);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> calls{0};
    std::vector<float> out(1000);
    const Operation step = client.PushPull(w, gradient, out);
    for (int i = 0; i < 3; ++i) {
      step.Then([&, step](const Status& status) {
        std::this_thread::sleep_for(milliseconds(2));
        EXPECT_TRUE(step.done()) << "for its own callback it is";
        calls += status.ok() ? 1 : 100;
      });
    }
    ASSERT_TRUE(step.Wait().ok());
    ASSERT_EQ(calls.load(), 3);
  }
}

TEST(ClientTest, TheContractsOfSpansAndPullsAreChecked) {
  Server server = StartServer(1);
  Client client = MustConnect(OptionsFor(server, 0, 1));
  const Tensor w = *client.Declare("w", {.count = 1000});
  std::vector<float> values(1500);
  const auto first = std::span(values).first(1000);
  for (const auto& out : {std::span(values).first(1000), std::span(values).last(1000)}) {
    const Status overlap = client.PushPull(w, first, out).Wait();
    EXPECT_EQ(overlap.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(overlap.message(), HasSubstr("overlaps"));
  }
  const Status pull = client.Pull(w, first).Wait();
  EXPECT_EQ(pull.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(pull.message(), HasSubstr("no optimizer"));
  EXPECT_TRUE(client.status().ok()) << "the client goes on";
}

// An embedded library writes nothing to the terminal.
TEST(ClientTest, LogsGoToTheCallbackOnly) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  std::mutex mutex;
  std::vector<std::string> lines;
  const LogCallback log = [&](LogLevel, std::string_view text) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(text);
  };
  for (const bool logs : {false, true}) {
    ServerOptions options;
    options.log = logs ? log : LogCallback();
    Server server = StartServer(1, options);
    ConnectOptions connect = OptionsFor(server, 0, 1);
    connect.log = options.log;
    connect.fault = "drop=0";
    {
      Client client = MustConnect(connect);
      EXPECT_TRUE(client.Leave().ok());
    }
    server.Stop();
    const std::lock_guard lock(mutex);
    if (!logs) {
      EXPECT_TRUE(lines.empty());
    }
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  EXPECT_THAT(all, HasSubstr("worker rank 0 joined"));
  EXPECT_THAT(all, HasSubstr("faults are injected"));
}

TEST(ClientTest, ErrorsNameTheOptionsOfTheApi) {
  const Result<Client> client = Client::Connect({.servers = {"127.0.0.1:7700"}});
  EXPECT_THAT(client.status().message(), testing::AllOf(HasSubstr("'key_file'"), HasSubstr("'insecure'")));
  ServerOptions options;
  options.listen = "0.0.0.0:0";
  options.insecure = true;
  const Result<Server> server = Server::Start(options);
  EXPECT_THAT(server.status().message(),
              testing::AllOf(HasSubstr("'key_file'"), HasSubstr("'insecure_bind'")));
  for (const Status& status : {client.status(), server.status()}) {
    EXPECT_EQ(status.message().find(" --key"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace longhaul
