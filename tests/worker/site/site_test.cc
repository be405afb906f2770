// Sites in this process and a real server, over the loopback and shared memory.
#include "tests/worker/site/site_harness.h"

#include <limits>
#include <numeric>
#include <optional>

namespace longhaul::site {
namespace {

std::vector<float> Ramp(size_t count, float first) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST(Site, TwoRanksAreOneMemberWhoseSumCrossesOnce) {
  Server server = StartServer(1, EverythingReliable());
  TestSite site(OptionsFor(server, 0, 1), 2);
  std::vector<Client> clients = ConnectAll(site, 2);
  EXPECT_EQ(clients[0].world_size(), 2u);
  EXPECT_EQ(clients[1].rank(), 1u);
  constexpr size_t kCount = 10'000;
  std::vector<std::vector<float>> out(2, std::vector<float>(kCount));
  InParallel(2, [&](size_t rank) {
    Result<Tensor> tensor = clients[rank].Declare("w", {.count = kCount});
    ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
    const std::vector<float> gradient = Ramp(kCount, rank == 0 ? 1.0f : 3.0f);
    for (uint64_t round = 0; round < 3; ++round) {
      Operation step = clients[rank].PushPull(*tensor, gradient, out[rank]);
      const Status status = step.Wait();
      ASSERT_TRUE(status.ok()) << status.ToString();
      EXPECT_EQ(step.stats().round, round);
    }
  });
  EXPECT_EQ(out[0], Ramp(kCount, 2.0f));
  EXPECT_EQ(out[1], out[0]);
  InParallel(2, [&](size_t rank) { EXPECT_TRUE(clients[rank].Leave().ok()); });
  const int64_t sent = site.stats().chunk_bytes_sent.value();
  EXPECT_LT(sent, 3 * static_cast<int64_t>(kCount * sizeof(float)) * 11 / 10) << "the sum crosses once";
  EXPECT_GT(sent, 3 * static_cast<int64_t>(kCount * sizeof(float)) - 1);
}

// One rank of each site; what(rank) returns the tensor of that rank after its steps.
Tensor MustDeclare(Client& client, const std::string& name, const TensorOptions& options) {
  Result<Tensor> tensor = client.Declare(name, options);
  EXPECT_TRUE(tensor.ok()) << tensor.status().ToString();
  return tensor.ok() ? *tensor : Tensor();
}

Status Step(Client& client, const Tensor& tensor, const std::vector<float>& gradient, std::vector<float>& out,
            const PushOptions& options = {}) {
  out.resize(gradient.size());
  return client.PushPull(tensor, gradient, out, options).Wait();
}

class SiteOfTwo : public ::testing::Test {
 protected:
  static constexpr size_t kCount = 1000;

  void Start(ServerOptions options = EverythingReliable(), float weight0 = 1, float weight1 = 1,
             Duration idle = std::chrono::seconds(10), Duration wait = std::chrono::minutes(30)) {
    server_.emplace(StartServer(1, options));
    site_.emplace(OptionsFor(*server_, 0, 1), 2);
    for (uint8_t rank = 0; rank < 2; ++rank) {
      ConnectOptions connect = site_->Rank(rank);
      connect.weight = rank == 0 ? weight0 : weight1;
      connect.idle_timeout = idle;
      connect.wait_timeout = wait;
      clients_.push_back(MustConnect(connect));
    }
  }
  void DeclareAll(const TensorOptions& options = {.count = kCount}) {
    tensors_.resize(2);
    InParallel(2, [&](size_t rank) { tensors_[rank] = MustDeclare(clients_[rank], "w", options); });
  }
  // A step of both, of constant gradients.
  void StepAll(float first, float second) {
    InParallel(2, [&](size_t rank) {
      const std::vector<float> gradient(kCount, rank == 0 ? first : second);
      const Status status = Step(clients_[rank], tensors_[rank], gradient, out_[rank]);
      EXPECT_TRUE(status.ok()) << status.ToString();
    });
  }

  std::optional<Server> server_;
  std::optional<TestSite> site_;
  std::vector<Client> clients_;
  std::vector<Tensor> tensors_;
  std::vector<float> out_[2];
};

TEST_F(SiteOfTwo, ContributionsCountByTheirWeights) {
  Start(EverythingReliable(), 1, 3);
  DeclareAll();
  StepAll(8, 4);
  EXPECT_FLOAT_EQ(out_[0][0], (8 * 1 + 4 * 3) / 4.0f);
  EXPECT_EQ(out_[0], out_[1]);
  // And by those of single contributions.
  InParallel(2, [&](size_t rank) {
    const std::vector<float> gradient(kCount, rank == 0 ? 8.0f : 4.0f);
    EXPECT_TRUE(
        Step(clients_[rank], tensors_[rank], gradient, out_[rank], {.weight = rank == 0 ? 3.0f : 1.0f}).ok());
  });
  EXPECT_FLOAT_EQ(out_[1][kCount - 1], (8 * 3 + 4 * 1) / 4.0f);
}

TEST_F(SiteOfTwo, ResultsOf16BitsComeRoundedToEveryRank) {
  Start();
  DeclareAll({.wire_dtype = DType::kBFloat16,
              .result_dtype = DType::kBFloat16,
              .count = kCount,
              .optimizer = "sgd:lr=0.0625"});
  for (int round = 1; round <= 3; ++round) {
    StepAll(-1, -33);  // the mean is exact in bfloat16: steps of 17 / 16
    EXPECT_EQ(out_[0], out_[1]);
  }
  EXPECT_EQ(out_[0], std::vector<float>(kCount, 3.1875f));
  for (int round = 0; round < 10; ++round) StepAll(-0.0625f, -0.0625f);  // of 2^-8: a quarter of what shows
  EXPECT_EQ(out_[0], std::vector<float>(kCount, 3.21875f)) << "3.2265625, half way, to the even one";
  EXPECT_LT(site_->stats().chunk_bytes_received.value(), 13 * 2.2 * kCount);
}

TEST_F(SiteOfTwo, AContributionWithoutAResultIsOneToo) {
  Start();
  DeclareAll({.count = kCount, .optimizer = "sgd:lr=1"});
  const std::vector<float> gradient(kCount, 1);
  Operation push = clients_[0].Push(tensors_[0], gradient);
  EXPECT_TRUE(Step(clients_[1], tensors_[1], gradient, out_[1]).ok());
  EXPECT_TRUE(push.Wait().ok());
  EXPECT_EQ(out_[1], std::vector<float>(kCount, -1));
  InParallel(2, [&](size_t rank) { EXPECT_TRUE(clients_[rank].Push(tensors_[rank], gradient).Wait().ok()); });
  std::vector<float> pulled(kCount);
  EXPECT_TRUE(clients_[0].Pull(tensors_[0], pulled).Wait().ok());
  EXPECT_EQ(pulled, std::vector<float>(kCount, -2)) << "what was pushed is in what is pulled";
}

TEST_F(SiteOfTwo, InitialValuesOfAnyRankAreTaken) {
  Start();
  const std::vector<float> initial = Ramp(kCount, 5);
  tensors_.resize(2);
  InParallel(2, [&](size_t rank) {
    TensorOptions options{.count = kCount, .optimizer = "sgd:lr=1"};
    if (rank == 1) options.initial = initial;
    tensors_[rank] = MustDeclare(clients_[rank], "w", options);
  });
  InParallel(2, [&](size_t rank) {
    out_[rank].resize(kCount);
    Operation pull = clients_[rank].Pull(tensors_[rank], out_[rank]);
    EXPECT_TRUE(pull.Wait().ok());
    EXPECT_EQ(pull.stats().round, 0u);
  });
  EXPECT_EQ(out_[0], initial);
  EXPECT_EQ(out_[1], initial);
}

TEST_F(SiteOfTwo, PullsOfRanksThatStartTogetherCrossOnce) {
  Start();
  constexpr size_t kLarge = 250'000;
  DeclareAll({.count = kLarge, .optimizer = "sgd:lr=1"});
  InParallel(2, [&](size_t rank) {
    out_[rank].resize(kLarge);
    EXPECT_TRUE(clients_[rank].Pull(tensors_[rank], out_[rank]).Wait().ok());
  });
  EXPECT_LT(site_->stats().chunk_bytes_received.value(), 1'500'000) << "of 1 MB";
  // Another one of the same rank sees what is new.
  EXPECT_TRUE(clients_[0].Pull(tensors_[0], out_[0]).Wait().ok());
  EXPECT_GT(site_->stats().chunk_bytes_received.value(), 1'900'000);
}

TEST_F(SiteOfTwo, BarriersAreTheJobs) {
  Start();
  std::atomic<bool> first{false};
  std::thread waits([&] {
    const Status status = clients_[0].Barrier("b");
    EXPECT_TRUE(status.ok()) << status.ToString();
    first = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(first);
  EXPECT_TRUE(clients_[1].Barrier("b").ok());
  waits.join();
}

TEST_F(SiteOfTwo, ScoresOfARankReachTheServersClient) {
  Start();
  DeclareAll();
  const std::vector<float> scores(10, 1);
  EXPECT_TRUE(clients_[0].SetScores(tensors_[0], scores).ok());
  StepAll(1, 3);
  EXPECT_FLOAT_EQ(out_[0][7], 2);
  EXPECT_EQ(clients_[0].SetScores(tensors_[0], {}).code(), StatusCode::kInvalidArgument);
}

TEST_F(SiteOfTwo, TheSiteOwesAndItsRanksDoNot) {
  Start();
  DeclareAll();
  StepAll(1, 3);
  std::vector<float> owed(tensors_[0].count(), 7);
  EXPECT_EQ(clients_[0].Owed(tensors_[0], owed), Status());
  EXPECT_EQ(owed, std::vector<float>(owed.size(), 0));
}

TEST_F(SiteOfTwo, TensorsInAnotherOrderAtEveryRank) {
  Start();
  constexpr size_t kTensors = 20;
  InParallel(2, [&](size_t rank) {
    std::vector<Tensor> tensors;
    // Declarations wait for each other: the same order.
    for (size_t t = 0; t < kTensors; ++t) {
      tensors.push_back(MustDeclare(clients_[rank], "t" + std::to_string(t), {.count = kCount}));
    }
    const std::vector<float> gradient(kCount, rank == 0 ? 1.0f : 5.0f);
    std::vector<std::vector<float>> out(kTensors, std::vector<float>(kCount));
    for (int round = 0; round < 5; ++round) {
      std::vector<Operation> steps;
      for (size_t i = 0; i < kTensors; ++i) {
        const size_t t = rank == 0 ? i : kTensors - 1 - i;
        steps.push_back(clients_[rank].PushPull(tensors[t], gradient, out[t]));
      }
      for (const Operation& step : steps) EXPECT_TRUE(step.Wait().ok());
      for (const auto& values : out) EXPECT_EQ(values, std::vector<float>(kCount, 3));
    }
  });
}

// The engine knows messages within 1024 of the newest: numbers are given when a sum begins.
TEST_F(SiteOfTwo, ATensorMayRestFor2000RoundsOfAnother) {
  Start();
  InParallel(2, [&](size_t rank) {
    const Tensor idle = MustDeclare(clients_[rank], "idle", {.count = 10});
    const Tensor busy = MustDeclare(clients_[rank], "busy", {.count = 10});
    const std::vector<float> gradient(10, 2);
    std::vector<float> out(10);
    for (int round = 0; round < 2000; ++round) ASSERT_TRUE(Step(clients_[rank], busy, gradient, out).ok());
    const Status status = Step(clients_[rank], idle, gradient, out);
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(out, gradient);
  });
}

TEST_F(SiteOfTwo, ARankThatDiesIsInNoLaterSum) {
  Start();
  DeclareAll();
  StepAll(2, 4);
  EXPECT_FLOAT_EQ(out_[0][0], 3);
  // It waits for the other one, which never comes.
  std::vector<float> out(kCount);
  const std::vector<float> gradient(kCount, 7);
  Operation step = clients_[0].PushPull(tensors_[0], gradient, out);
  EXPECT_EQ(step.WaitFor(std::chrono::milliseconds(50)).code(), StatusCode::kDeadlineExceeded);
  clients_.pop_back();
  const Status status = step.Wait();
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(out, gradient);
  EXPECT_NE(site_->log().find("rank 1 of the site has died: the site goes on with 1 ranks"),
            std::string::npos)
      << site_->log();
  EXPECT_TRUE(clients_[0].Leave().ok());
  Status end;
  ASSERT_TRUE(site_->WaitForEnd(&end));
  EXPECT_TRUE(end.ok()) << "the rank that is left ended in order: " << end.ToString();
}

TEST_F(SiteOfTwo, ARestartedRankTakesItsPlace) {
  Start();
  DeclareAll();
  StepAll(2, 4);
  clients_.pop_back();
  clients_.push_back(MustConnect(site_->Rank(1)));
  tensors_[1] = MustDeclare(clients_[1], "w", {.count = kCount});
  StepAll(2, 6);
  EXPECT_FLOAT_EQ(out_[0][0], 4);
  EXPECT_FLOAT_EQ(out_[1][kCount - 1], 4);
}

TEST_F(SiteOfTwo, WhoIsWaitedForIsNamedAtTheWaitTimeout) {
  Start(EverythingReliable(), 1, 1, std::chrono::seconds(10), std::chrono::milliseconds(300));
  DeclareAll();
  const std::vector<float> gradient(kCount, 1);
  const Status status = Step(clients_[0], tensors_[0], gradient, out_[0]);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.ToString();
  EXPECT_NE(status.message().find("rank 1 of the site"), std::string::npos) << status.ToString();
  // Two names: that rank 0 has given up may reach the leader after rank 1 comes to the same barrier.
  EXPECT_EQ(clients_[0].Barrier("a").code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(clients_[1].Barrier("b").code(), StatusCode::kDeadlineExceeded);
  StepAll(3, 5);
  EXPECT_FLOAT_EQ(out_[0][0], 4) << "what was given up is not in it";
}

TEST_F(SiteOfTwo, PendingOperationsAreBoundedAlsoThoseOfOneTensor) {
  Start();
  DeclareAll({.count = 1});
  const std::vector<float> gradient(1, 1);
  std::vector<Operation> pushes;
  for (int i = 0; i <= 4096; ++i) pushes.push_back(clients_[0].Push(tensors_[0], gradient));
  EXPECT_EQ(pushes.back().WaitFor(std::chrono::seconds(10)).code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(pushes[4095].done());
}

TEST_F(SiteOfTwo, WhatCannotBeSummedIsRefusedAtItsRank) {
  Start();
  DeclareAll();
  std::vector<float> gradient(kCount, 1);
  gradient[500] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Step(clients_[0], tensors_[0], gradient, out_[0]).code(), StatusCode::kInvalidArgument);
  gradient[500] = 1e38f;
  EXPECT_EQ(Step(clients_[0], tensors_[0], gradient, out_[0]).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(clients_[0].Push(tensors_[0], std::vector<float>(3)).Wait().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(clients_[0].Push(tensors_[1], gradient).Wait().code(), StatusCode::kInvalidArgument);
  StepAll(1, 3);
  EXPECT_FLOAT_EQ(out_[1][500], 2);
}

TEST_F(SiteOfTwo, DeclarationsOfASiteAgree) {
  Start();
  Result<Tensor> first = Status(StatusCode::kInternal, "");
  std::thread declares([&] { first = clients_[0].Declare("w", {.count = 10}); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(clients_[1].Declare("w", {.count = 11}).status().code(), StatusCode::kSettingsMismatch);
  EXPECT_TRUE(clients_[1].Declare("w", {.count = 10}).ok());
  declares.join();
  EXPECT_TRUE(first.ok());
  EXPECT_TRUE(clients_[0].Declare("w", {.count = 10}).ok()) << "once more";
  EXPECT_EQ(clients_[0].Declare("x", {.count = uint64_t{1} << 39}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(SiteOfTwo, ARelayThatIsSilentIsNamed) {
  Start(EverythingReliable(), 1, 1, std::chrono::milliseconds(500));
  DeclareAll();
  site_->EndRelay();
  const std::vector<float> gradient(kCount, 1);
  const Status status = Step(clients_[0], tensors_[0], gradient, out_[0]);
  EXPECT_EQ(status.code(), StatusCode::kPeerDead) << status.ToString();
  EXPECT_NE(status.message().find("relay of the site"), std::string::npos) << status.ToString();
  EXPECT_EQ(clients_[0].status(), status);
}

TEST_F(SiteOfTwo, ADaemonThatEndsIsNamed) {
  Start();
  DeclareAll();
  const std::vector<float> gradient(kCount, 1);
  std::vector<float> out(kCount);
  Operation step = clients_[0].PushPull(tensors_[0], gradient, out);
  EXPECT_FALSE(step.done());
  site_->EndDaemon();
  const Status status = step.Wait();
  EXPECT_EQ(status.code(), StatusCode::kPeerDead) << status.ToString();
  EXPECT_NE(status.message().find("longhaul-offload"), std::string::npos) << status.ToString();
  EXPECT_EQ(clients_[1].Push(tensors_[1], gradient).Wait().code(), StatusCode::kPeerDead);
}

TEST_F(SiteOfTwo, TheEndOfTheServerIsTheEndOfAll) {
  Start();
  DeclareAll();
  const std::vector<float> gradient(kCount, 1);
  std::vector<float> out(kCount);
  Operation step = clients_[0].PushPull(tensors_[0], gradient, out);
  EXPECT_FALSE(step.done());
  server_.reset();
  const Status status = step.Wait();
  EXPECT_FALSE(status.ok());
  for (int i = 0; i < 500 && clients_[1].status().ok(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(clients_[1].status().ok());
  Status end;
  ASSERT_TRUE(site_->WaitForEnd(&end));
  EXPECT_EQ(end, status) << status.ToString();
}

TEST_F(SiteOfTwo, TheSiteLeavesWhenItsLastRankDoes) {
  Start();
  DeclareAll();
  StepAll(1, 1);
  EXPECT_TRUE(clients_[0].Leave().ok());
  EXPECT_EQ(clients_[0].Push(tensors_[0], out_[0]).Wait().code(), StatusCode::kFailedPrecondition);
  // The other one is the site now.
  const std::vector<float> gradient(kCount, 9);
  EXPECT_TRUE(Step(clients_[1], tensors_[1], gradient, out_[1]).ok());
  EXPECT_EQ(out_[1], gradient);
  EXPECT_TRUE(clients_[1].Leave().ok());
  clients_.clear();
  Status end(StatusCode::kInternal, "");
  ASSERT_TRUE(site_->WaitForEnd(&end));
  EXPECT_TRUE(end.ok()) << end.ToString();
}

TEST_F(SiteOfTwo, ACallbackMayEndItsClient) {
  Start();
  DeclareAll();
  const std::vector<float> gradient(kCount, 1);
  std::vector<float> out(kCount);
  Operation push = clients_[1].Push(tensors_[1], gradient);
  std::atomic<bool> ended{false};
  auto client = std::make_unique<Client>(std::move(clients_[0]));
  Operation step = client->PushPull(tensors_[0], gradient, out);
  step.Then([&](const Status&) {
    client.reset();
    ended = true;
  });
  EXPECT_TRUE(step.Wait().ok());
  for (int i = 0; i < 500 && !ended; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(ended);
  EXPECT_TRUE(push.Wait().ok());
}

TEST(Site, IsOneMemberAmongOthers) {
  Server server = StartServer(2, EverythingReliable());
  TestSite site(OptionsFor(server, 0, 2), 2);
  Result<Client> plain = Status(StatusCode::kInternal, "");
  std::thread joins([&] { plain = Client::Connect(OptionsFor(server, 1, 2)); });
  std::vector<Client> clients = ConnectAll(site, 2);
  joins.join();
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(clients[0].world_size(), 4u) << "sites, as large as this one";
  std::vector<std::vector<float>> out(3);
  InParallel(3, [&](size_t i) {
    Client& client = i < 2 ? clients[i] : *plain;
    const Tensor tensor = MustDeclare(client, "w", {.count = 100});
    // 1, 2 and 6: the mean is 3 if the site's sum has its ranks' weight, and 3.75 if it counts as one.
    const std::vector<float> gradient(100, i == 0 ? 1.0f : i == 1 ? 2.0f : 6.0f);
    EXPECT_TRUE(Step(client, tensor, gradient, out[i]).ok());
  });
  for (const auto& values : out) EXPECT_FLOAT_EQ(values[50], 3);
}

TEST(Site, RanksThatItDoesNotHaveAreRefused) {
  Server server = StartServer(1);
  TestSite site(OptionsFor(server, 0, 1), 1);
  ConnectOptions any;
  any.offload = site.where();
  Client first = MustConnect(any);
  EXPECT_EQ(Client::Connect(any).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Client::Connect(site.Rank(0)).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(Client::Connect(site.Rank(9)).status().code(), StatusCode::kInvalidArgument);
  any.servers = {"127.0.0.1:1"};
  const Status both = Client::Connect(any).status();
  EXPECT_EQ(both.code(), StatusCode::kInvalidArgument) << both.ToString();
  any = {};
  any.offload = "inproc:site";
  EXPECT_EQ(Client::Connect(any).status().code(), StatusCode::kInvalidArgument);
}

TEST(Site, WithoutARelayItSaysSo) {
  Server server = StartServer(1);
  TestSite site(OptionsFor(server, 0, 1), 1);
  site.EndRelay();
  ConnectOptions options = site.Rank(0);
  options.connect_timeout = std::chrono::milliseconds(200);
  const Status status = Client::Connect(options).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("within 0.2 s; does its longhaul-offload run with --server?"),
            std::string::npos)
      << status.ToString();
}

// Its relay answers once a second.
TEST(Site, ARankThatIsInIsNotBoundByTheConnectTimeout) {
  Server server = StartServer(1);
  TestSite site(OptionsFor(server, 0, 1), 1);
  ConnectOptions options = site.Rank(0);
  options.connect_timeout = std::chrono::milliseconds(300) * LONGHAUL_SLOWNESS;
  const Client client = MustConnect(options);
  std::this_thread::sleep_for(2 * options.connect_timeout);
  EXPECT_TRUE(client.status().ok()) << client.status().ToString();
}

TEST(Site, ARankThatComesWhenTheSiteHasFailedLearnsWhy) {
  std::optional<Server> server = StartServer(1);
  TestSite site(OptionsFor(*server, 0, 1), 2);
  const Client first = MustConnect(site.Rank(0));
  server.reset();
  for (int i = 0; i < 500 && first.status().ok(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(Client::Connect(site.Rank(1)).status(), first.status());
}

TEST(Site, AServerThatIsNotThereIsNamed) {
  ConnectOptions connect;
  connect.servers = {"127.0.0.1:9"};
  connect.insecure = true;
  connect.connect_timeout = std::chrono::milliseconds(300);
  TestSite site(connect, 1);
  const Status status = Client::Connect(site.Rank(0)).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
  EXPECT_NE(status.message().find("127.0.0.1:9"), std::string::npos) << status.ToString();
}

TEST(PushOptions, AContributionOfAPlainWorkerHasAWeightOfItsOwn) {
  Server server = StartServer(2, EverythingReliable());
  std::vector<float> out[2];
  std::optional<Client> clients[2];  // neither goes before the other has its result
  InParallel(2, [&](size_t rank) {
    Client& client = clients[rank].emplace(MustConnect(OptionsFor(server, static_cast<uint32_t>(rank), 2)));
    const Tensor tensor = MustDeclare(client, "w", {.count = 100});
    const std::vector<float> gradient(100, rank == 0 ? 1.0f : 5.0f);
    EXPECT_TRUE(Step(client, tensor, gradient, out[rank]).ok());
    EXPECT_FLOAT_EQ(out[rank][0], 3);
    EXPECT_TRUE(Step(client, tensor, gradient, out[rank], {.weight = rank == 0 ? 3.0f : 1.0f}).ok());
    EXPECT_FLOAT_EQ(out[rank][0], 2);
    EXPECT_EQ(Step(client, tensor, gradient, out[rank], {.weight = 0.0f}).code(),
              StatusCode::kInvalidArgument);
  });
}

TEST(PushOptions, WithPolicyShiftTheWeightIsTheConnections) {
  ServerOptions options = EverythingReliable();
  options.job_spec.policy = LossPolicy::kShift;
  Server server = StartServer(1, options);
  Client client = MustConnect(OptionsFor(server, 0, 1));
  const Tensor tensor = MustDeclare(client, "w", {.count = 100});
  std::vector<float> out;
  EXPECT_EQ(Step(client, tensor, std::vector<float>(100, 1), out, {.weight = 2.0f}).code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(Step(client, tensor, std::vector<float>(100, 1), out, {.weight = 1.0f}).ok());
}

TEST(Site, WithPolicyShiftItsWeightIsWhatItJoinedWith) {
  ServerOptions options = EverythingReliable();
  options.job_spec.policy = LossPolicy::kShift;
  Server server = StartServer(1, options);
  ConnectOptions connect = OptionsFor(server, 0, 1);
  connect.weight = 5;  // whatever its ranks say
  TestSite site(connect, 2);
  std::vector<Client> clients = ConnectAll(site, 2);
  std::vector<std::vector<float>> out(2);
  InParallel(2, [&](size_t rank) {
    const Tensor tensor = MustDeclare(clients[rank], "w", {.count = 100});
    for (int round = 0; round < 3; ++round) {
      const Status status =
          Step(clients[rank], tensor, std::vector<float>(100, rank == 0 ? 1.0f : 3.0f), out[rank]);
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
  });
  EXPECT_FLOAT_EQ(out[0][0], 2);
}

}  // namespace
}  // namespace longhaul::site
