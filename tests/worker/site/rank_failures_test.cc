// Ranks that die or stop in the middle of something, and ones that say what no client does.
#include <atomic>
#include <optional>
#include <thread>

#include "tests/offload/udp_support.h"
#include "tests/worker/site/fake_rank.h"
#include "worker/site/leadership.h"

namespace longhaul::site {
namespace {

constexpr size_t kCount = FakeRank::kCount;

class RankFailures : public ::testing::Test {
 protected:
  // Two clients as ranks 0 and 1, and the fake one as 2.
  void Start(Duration idle = std::chrono::seconds(10)) {
    server_.emplace(StartServer(1, EverythingReliable()));
    ConnectOptions connect = OptionsFor(*server_, 0, 1);
    connect.idle_timeout = idle;
    site_.emplace(connect, 3);
    clients_ = ConnectAll(*site_, 2);
    fake_ = std::make_unique<FakeRank>(*site_, uint8_t{2});
    tensors_.resize(2);
    InParallel(3, [this](size_t i) {
      if (i == 2) {
        index_ = fake_->Declare("w").tensor;
        return;
      }
      Result<Tensor> tensor = clients_[i].Declare("w", {.count = kCount});
      EXPECT_TRUE(tensor.ok()) << tensor.status().ToString();
      if (tensor.ok()) tensors_[i] = *tensor;
    });
  }
  void BeginSteps() {
    steps_.clear();
    for (size_t i = 0; i < 2; ++i) {
      gradient_[i].assign(kCount, i == 0 ? 2.0f : 4.0f);
      out_[i].assign(kCount, 0);
      steps_.push_back(clients_[i].PushPull(tensors_[i], gradient_[i], out_[i]));
    }
  }
  void ExpectMean(float mean) {
    for (size_t i = 0; i < 2; ++i) {
      const Status status = steps_[i].WaitFor(std::chrono::seconds(30));
      EXPECT_TRUE(status.ok()) << status.ToString();
      EXPECT_EQ(out_[i], std::vector<float>(kCount, mean));
    }
  }

  std::optional<Server> server_;
  std::optional<TestSite> site_;
  std::vector<Client> clients_;
  std::unique_ptr<FakeRank> fake_;
  uint32_t index_ = 0;
  std::vector<Tensor> tensors_;
  std::vector<Operation> steps_;
  std::vector<float> gradient_[2];
  std::vector<float> out_[2];
};

TEST_F(RankFailures, ASumThatLosesARankIsMadeAnewWithoutIt) {
  Start();
  BeginSteps();
  EXPECT_NE(fake_->AskStep(index_).mid, 0u);
  fake_.reset();  // after the go, before its gradient
  ExpectMean(3);
}

TEST_F(RankFailures, WhatARankHasAddedBeforeItDiesIsInWithItsWeightOrNotAtAll) {
  Start();
  BeginSteps();
  fake_->Contribute(fake_->AskStep(index_), 9);
  fake_.reset();
  for (const Operation& step : steps_) EXPECT_TRUE(step.WaitFor(std::chrono::seconds(30)).ok());
  EXPECT_TRUE(out_[0][0] == 3 || out_[0][0] == 5) << out_[0][0];
  EXPECT_EQ(out_[0], std::vector<float>(kCount, out_[0][0])) << "one set of ranks in all elements";
  EXPECT_EQ(out_[1], out_[0]);
}

TEST_F(RankFailures, ARankThatDiesBeforeItTakesItsResultKeepsNobodyWaiting) {
  Start();
  BeginSteps();
  SiteMessage step{.kind = SiteKind::kStep, .seq = fake_->seq() + 1, .tensor = index_, .value = 1};
  fake_->Contribute(fake_->AskStep(index_), 9);
  EXPECT_TRUE(fake_->Await(SiteKind::kDeliver, fake_->seq(), step).has_value());
  fake_.reset();
  ExpectMean(5);
  BeginSteps();
  ExpectMean(3);
}

TEST_F(RankFailures, ARankThatStopsInASumIsGivenUp) {
  Start(std::chrono::milliseconds(500));
  BeginSteps();
  EXPECT_NE(fake_->AskStep(index_).mid, 0u);
  ExpectMean(3);  // its device is open still
  EXPECT_NE(site_->log().find("rank 2 of the site did not answer in time: the site goes on with 2 ranks"),
            std::string::npos)
      << site_->log();
  SiteMessage step{.kind = SiteKind::kStep, .seq = fake_->seq() + 1, .tensor = index_, .value = 1};
  fake_->Say(step);
  EXPECT_TRUE(fake_->Await(SiteKind::kFailed, step.seq, step).has_value()) << "it learns it when it goes on";
}

TEST_F(RankFailures, RequestsThatNoClientMakesAreRefused) {
  Start();
  const auto ask = [this](SiteMessage message) {
    message.seq = fake_->NextSeq();
    fake_->Say(message);
    const auto end = fake_->Await(SiteKind::kEnd, message.seq, message);
    return end ? end->code : StatusCode::kOk;
  };
  EXPECT_EQ(ask({.kind = SiteKind::kStep, .tensor = 99}), StatusCode::kInvalidArgument);
  EXPECT_EQ(ask({.kind = SiteKind::kPull, .tensor = UINT32_MAX}), StatusCode::kInvalidArgument);
  EXPECT_EQ(ask({.kind = SiteKind::kScores, .tensor = index_, .value = kCount + 1}),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(ask({.kind = SiteKind::kDeclare, .text = "x", .body = {1, 2, 3}}),
            StatusCode::kProtocolViolation);
  EXPECT_EQ(ask({.kind = SiteKind::kDeclare, .text = "w", .body = EncodeOptions({.count = 5})}),
            StatusCode::kSettingsMismatch);
  EXPECT_EQ(
      ask({.kind = SiteKind::kDeclare, .text = "huge", .body = EncodeOptions({.count = uint64_t{1} << 40})}),
      StatusCode::kInvalidArgument);
  fake_->Say({.kind = SiteKind::kWelcome});
  fake_->Say({.kind = SiteKind::kGo, .seq = 1, .mid = 1, .ranks = 1});
  BeginSteps();
  fake_->Contribute(fake_->AskStep(index_), 9);
  EXPECT_TRUE(fake_->Await(SiteKind::kDeliver, fake_->seq()).has_value());
  fake_.reset();
  ExpectMean(5);
}

// The relay stops, as a process may; what the ranks have said meanwhile is not read yet when it goes on.
TEST_F(RankFailures, ARelayThatWasLateItselfGivesNoRankUp) {
  // A busy machine stops the ranks, too: for half a second where four processes share two cores.
  constexpr Duration kIdle =
      std::chrono::milliseconds(LONGHAUL_SLOWNESS > 3 ? 500 * LONGHAUL_SLOWNESS : 1500);
  Start(kIdle);
  fake_.reset();
  ASSERT_TRUE(site_->WaitForLog("rank 2 of the site has died"));
  site_->PauseAtNextLine(2 * kIdle);
  fake_ = std::make_unique<FakeRank>(*site_, uint8_t{2});
  fake_.reset();
  std::this_thread::sleep_for(3 * kIdle);
  BeginSteps();
  ExpectMean(3);
  EXPECT_EQ(site_->log().find("silent"), std::string::npos) << site_->log();
}

TEST_F(RankFailures, MessagesInAnothersNameAreRefusedAndCounted) {
  Start();
  const Place relay{0, 3};
  for (const SiteKind kind : {SiteKind::kLeave, SiteKind::kHello}) {
    fake_->SayAsItIs(relay, {.kind = kind, .rank = 1, .session = 1, .leader = LeadershipOf(1, 0), .seq = 99});
  }
  fake_->SayAsItIs(relay, {.kind = SiteKind::kBeat, .rank = 1, .session = 1, .leader = LeadershipOf(9, 1)});
  BeginSteps();
  fake_->Contribute(fake_->AskStep(index_), 9);
  EXPECT_TRUE(fake_->Await(SiteKind::kDeliver, fake_->seq()).has_value());
  fake_.reset();
  ExpectMean(5);
  EXPECT_TRUE(site_->WaitForLog("the last of rank 2 of node 0")) << site_->log();
}

// Of a job with another worker: the site's end is no failure of the job.
TEST(SiteEnd, ASiteThatHasLostARankLeavesInOrder) {
  Server server = StartServer(2, EverythingReliable());
  TestSite site(OptionsFor(server, 0, 2), 2);
  Result<Client> plain = Status(StatusCode::kInternal, "");
  std::thread joins([&] { plain = Client::Connect(OptionsFor(server, 1, 2)); });
  auto fake = std::make_unique<FakeRank>(site, uint8_t{1});
  Client client = MustConnect(site.Rank(0));
  joins.join();
  ASSERT_TRUE(plain.ok()) << plain.status().ToString();
  fake.reset();
  ASSERT_TRUE(site.WaitForLog("rank 1 of the site has died: the site goes on with 1 ranks"));
  EXPECT_TRUE(client.Leave().ok());
  { const Client gone = std::move(client); }
  Status end(StatusCode::kInternal, "");
  ASSERT_TRUE(site.WaitForEnd(&end));
  EXPECT_TRUE(end.ok()) << end.ToString();
  EXPECT_TRUE(plain->status().ok()) << plain->status().ToString();
  EXPECT_TRUE(plain->Leave().ok());
}

TEST(SiteEnd, ASiteWhoseLastRankDiesSaysSo) {
  Server server = StartServer(1, EverythingReliable());
  TestSite site(OptionsFor(server, 0, 1), 2);
  auto fake = std::make_unique<FakeRank>(site, uint8_t{1});
  Client client = MustConnect(site.Rank(0));
  EXPECT_TRUE(client.Leave().ok());
  fake.reset();
  { const Client gone = std::move(client); }
  Status end;
  ASSERT_TRUE(site.WaitForEnd(&end));
  EXPECT_EQ(end.code(), StatusCode::kPeerDead) << end.ToString();
  EXPECT_NE(end.message().find("rank 1 of the site has died"), std::string::npos) << end.ToString();
}

TEST(SiteEnd, TheRelayAnswersUntilTheRanksHaveClosedTheirDevices) {
  Server server = StartServer(1, EverythingReliable());
  TestSite site(OptionsFor(server, 0, 1), 1);
  auto fake = std::make_unique<FakeRank>(site, uint8_t{0});
  const SiteMessage leave{.kind = SiteKind::kLeave, .seq = fake->NextSeq()};
  for (int again = 0; again < 10; ++again) {  // as if each answer were lost
    fake->Say(leave);
    ASSERT_TRUE(fake->Await(SiteKind::kEnd, leave.seq, leave).has_value()) << again;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  fake.reset();
  Status end(StatusCode::kInternal, "");
  ASSERT_TRUE(site.WaitForEnd(&end));
  EXPECT_TRUE(end.ok()) << end.ToString();
}

// Two ranks that do what the test says, and a tensor that can be pulled.
class FakePulls : public ::testing::Test {
 protected:
  FakePulls() {
    InParallel(2, [this](size_t i) {
      ranks_[i] = std::make_unique<FakeRank>(site_, static_cast<uint8_t>(i));
      index_[i] = ranks_[i]->Declare("w", "sgd:lr=1").tensor;
    });
  }
  SiteMessage Pull(uint64_t min_round = 0) const {
    return {.kind = SiteKind::kPull, .tensor = index_[0], .value = min_round};
  }

  Server server_ = StartServer(1, EverythingReliable());
  TestSite site_{OptionsFor(server_, 0, 1), 2};
  std::unique_ptr<FakeRank> ranks_[2];
  uint32_t index_[2] = {};
};

TEST_F(FakePulls, OneOfALaterRoundDoesNotHaveAnEarliersValues) {
  SiteMessage go[2];
  InParallel(2, [&](size_t i) { go[i] = ranks_[i]->AskStep(index_[i], false); });
  SiteMessage pull[2] = {Pull(1), Pull(2)};  // while the step is under way
  for (size_t i = 0; i < 2; ++i) {
    (void)ranks_[i]->Ask(SiteKind::kPending, pull[i]);
    pull[i].seq = ranks_[i]->seq();
  }
  for (size_t i = 0; i < 2; ++i) ranks_[i]->Contribute(go[i], 3);
  const auto deliver = ranks_[0]->Await(SiteKind::kDeliver, pull[0].seq, pull[0]);
  ASSERT_TRUE(deliver.has_value());
  const auto answer = ranks_[1]->AskAgain(pull[1]);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->kind, SiteKind::kPending) << "there is no second round";
}

TEST_F(FakePulls, EachOfARankIsAnswered) {
  FakeRank& rank = *ranks_[0];
  SiteMessage deliver = rank.Ask(SiteKind::kDeliver, Pull());
  for (int i = 0; i < 2; ++i) (void)rank.Ask(SiteKind::kPending, Pull());
  for (uint64_t seq = rank.seq() - 2;; ++seq) {
    rank.Receive(deliver);
    rank.Close(seq);
    if (seq == rank.seq()) break;
    SiteMessage pull = Pull();
    pull.seq = seq + 1;
    const auto next = rank.Await(SiteKind::kDeliver, pull.seq, pull);
    ASSERT_TRUE(next.has_value()) << seq;
    deliver = *next;
  }
}

TEST_F(FakePulls, OneGoesOnWhenAnotherRankDies) {
  FakeRank& rank = *ranks_[0];
  SiteMessage pull = Pull();
  const SiteMessage deliver = rank.Ask(SiteKind::kDeliver, pull);
  pull.seq = rank.seq();
  ranks_[1].reset();
  ASSERT_TRUE(site_.WaitForLog("rank 1 of the site has died"));
  (void)rank.AskAgain(pull);  // what the relay does for the dead one is done
  rank.Receive(deliver);
  const auto answer = rank.AskAgain(pull);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->kind, SiteKind::kDeliver);
  rank.Close(pull.seq);
  (void)rank.Ask(SiteKind::kDeliver, Pull());
}

// The first rank that has any is asked for them.
TEST(SiteInitialValues, ARankThatDiesWhileItGivesThemIsFollowedByTheNext) {
  Server server = StartServer(1, EverythingReliable());
  TestSite site(OptionsFor(server, 0, 1), 3);
  auto fake = std::make_unique<FakeRank>(site, uint8_t{0});
  std::vector<Client> clients;
  for (const uint8_t rank : {uint8_t{1}, uint8_t{2}}) clients.push_back(MustConnect(site.Rank(rank)));
  const TensorOptions options{.count = kCount, .optimizer = "sgd:lr=1"};
  InParallel(3, [&](size_t i) {
    if (i == 2) {
      (void)fake->Ask(SiteKind::kUpload,
                      {.kind = SiteKind::kDeclare, .value = 1, .text = "w", .body = EncodeOptions(options)});
      fake.reset();
      return;
    }
    TensorOptions own = options;
    const std::vector<float> initial(kCount, 7);
    if (i == 1) own.initial = initial;
    const Result<Tensor> tensor = clients[i].Declare("w", own);
    ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
    std::vector<float> out(kCount);
    EXPECT_TRUE(clients[i].Pull(*tensor, out).Wait().ok());
    EXPECT_EQ(out, initial);
  });
}

TEST(SiteInitialValues, ALoneRankThatDiesWhileItGivesThemDeclaresNothing) {
  Server server = StartServer(1, EverythingReliable());
  TestSite site(OptionsFor(server, 0, 1), 1);
  TensorOptions options{.count = kCount, .optimizer = "sgd:lr=1"};
  {
    FakeRank dies(site, 0);
    (void)dies.Ask(SiteKind::kUpload,
                   {.kind = SiteKind::kDeclare, .value = 1, .text = "w", .body = EncodeOptions(options)});
  }
  Client next = MustConnect(site.Rank(0));
  const std::vector<float> initial(kCount, 7);
  options.initial = initial;
  const Result<Tensor> tensor = next.Declare("w", options);
  ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
  std::vector<float> out(kCount);
  EXPECT_TRUE(next.Pull(*tensor, out).Wait().ok());
  EXPECT_EQ(out, initial);
}

// Rank 0 is asked for its initial values, then rank 1 comes.
TEST(SiteInitialValues, ARankThatComesMeanwhileIsPartOfTheDeclaration) {
  Server server = StartServer(1, EverythingReliable());
  TestSite site(OptionsFor(server, 0, 1), 2);
  FakeRank giver(site, 0);
  { const FakeRank dies(site, 1); }
  ASSERT_TRUE(site.WaitForLog("rank 1 of the site has died"));
  const TensorOptions options{.count = kCount, .optimizer = "sgd:lr=1"};
  const SiteMessage upload =
      giver.Ask(SiteKind::kUpload,
                {.kind = SiteKind::kDeclare, .value = 1, .text = "w", .body = EncodeOptions(options)});
  FakeRank late(site, 1);
  (void)late.Ask(SiteKind::kPending,
                 {.kind = SiteKind::kDeclare, .text = "w", .body = EncodeOptions(options)});
  giver.Give(upload, 7);
  const uint64_t declared = giver.seq();
  const auto end = late.Await(SiteKind::kEnd, late.seq());
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(giver.Await(SiteKind::kEnd, declared));
  (void)giver.Ask(SiteKind::kPending, {.kind = SiteKind::kStep, .tensor = end->tensor, .value = 1});
  EXPECT_NE(late.AskStep(end->tensor).mid, 0u) << "of the step, not of the declaration";
}

// Its daemon has two nodes: a sum that has ended may have lost a rank that is not known yet.
TEST(SiteRetries, ASumThatEndsAgainAndAgainIsGivenUp) {
  constexpr Duration kIdle = std::chrono::milliseconds(500) * LONGHAUL_SLOWNESS;
  Server server = StartServer(1, EverythingReliable());
  ConnectOptions connect = OptionsFor(server, 0, 1);
  connect.idle_timeout = kIdle;
  TestSite site(connect, 1, 256, 2);
  FakeRank fake(site, 0);
  ConnectOptions any;
  any.offload = site.where();
  Client client = MustConnect(any);
  Result<Tensor> tensor = Status(StatusCode::kInternal, "");
  uint32_t index = 0;
  InParallel(2, [&](size_t i) {
    if (i == 0) tensor = client.Declare("w", {.count = kCount});
    if (i == 1) index = fake.Declare("w").tensor;
  });
  ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
  const std::vector<float> gradient(kCount, 1);
  std::atomic<bool> over{false};
  std::thread steps([&] {
    const Operation step = client.Push(*tensor, gradient);
    EXPECT_EQ(step.WaitFor(std::chrono::seconds(10) * LONGHAUL_SLOWNESS).code(), StatusCode::kInternal);
    over = true;
  });
  SiteMessage step{.kind = SiteKind::kStep, .tensor = index};
  SiteMessage go = fake.Ask(SiteKind::kGo, step);
  step.seq = fake.seq();
  const Instant begun = Now();
  for (int sums = 0; !over; ++sums) {
    fake.CancelCollective(go.mid);
    const auto next = fake.AskAgain(step);
    ASSERT_TRUE(next.has_value());
    if (next->kind == SiteKind::kGo) go = *next;
  }
  EXPECT_GT(Now() - begun, 2 * kIdle) << "not before";
  steps.join();
}

// As after a takeover in the middle of a barrier's end.
TEST(SiteLeader, ABarrierThatOneRankHasPassedIsOverForThoseThatWereAtIt) {
  Server server = StartServer(1, EverythingReliable());
  TestSite site(OptionsFor(server, 0, 1), 2);
  FakeRank through(site, 0, "b");
  FakeRank at(site, 1);
  SiteMessage again{.kind = SiteKind::kBarrier, .seq = at.NextSeq(), .value = 1, .text = "b"};
  at.Say(again);
  const auto end = at.Await(SiteKind::kEnd, again.seq, again, 250);  // before the other counts as silent
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->code, StatusCode::kOk);
  // It has passed the same, and was at the next one of that name.
  SiteMessage fresh{.kind = SiteKind::kBarrier, .seq = at.NextSeq(), .mid = 1, .value = 1, .text = "b"};
  at.Say(fresh);
  EXPECT_FALSE(at.Await(SiteKind::kEnd, fresh.seq, fresh, 20)) << "the next one of that name waits for all";
}

// A queue that holds a few: most of what is said at once is lost, and said again.
TEST(SiteLosses, WhatIsLostIsSaidAgain) {
  Server server = StartServer(1, EverythingReliable());
  TestSite site(OptionsFor(server, 0, 1), 2, 128);
  std::vector<Client> clients = ConnectAll(site, 2);
  constexpr size_t kTensors = 300;
  InParallel(2, [&](size_t rank) {
    std::vector<Tensor> tensors;
    for (size_t t = 0; t < kTensors; ++t) {
      Result<Tensor> tensor = clients[rank].Declare("t" + std::to_string(t), {.count = 10});
      ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
      tensors.push_back(*tensor);
    }
    const std::vector<float> gradient(10, rank == 0 ? 1.0f : 5.0f);
    std::vector<std::vector<float>> out(kTensors, std::vector<float>(10));
    std::vector<Operation> steps;
    for (size_t t = 0; t < kTensors; ++t)
      steps.push_back(clients[rank].PushPull(tensors[t], gradient, out[t]));
    for (const Operation& step : steps) EXPECT_TRUE(step.WaitFor(std::chrono::seconds(30)).ok());
    for (const auto& values : out) EXPECT_EQ(values, std::vector<float>(10, 3));
  });
}

// 40 MB: many segs, and memory beyond the first block.
TEST(SiteLosses, ALargeTensorGoesThrough) {
  Server server = StartServer(1, EverythingReliable());
  TestSite site(OptionsFor(server, 0, 1), 2);
  std::vector<Client> clients = ConnectAll(site, 2);
  constexpr size_t kLarge = 10'000'001;
  InParallel(2, [&](size_t rank) {
    Result<Tensor> tensor = clients[rank].Declare("w", {.count = kLarge});
    ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
    std::vector<float> gradient(kLarge), out(kLarge);
    for (size_t i = 0; i < kLarge; ++i)
      gradient[i] = static_cast<float>(i % 1000) + (rank == 0 ? 0.0f : 2.0f);
    const Status status = clients[rank].PushPull(*tensor, gradient, out).Wait();
    ASSERT_TRUE(status.ok()) << status.ToString();
    size_t wrong = 0;
    for (size_t i = 0; i < kLarge; ++i) wrong += out[i] != static_cast<float>(i % 1000) + 1;
    EXPECT_EQ(wrong, 0u);
  });
}

// Nodes of one rank each, whose daemons speak over the loopback.
class FewNodes : public ::testing::Test {
 protected:
  void Start(uint8_t nodes, Duration idle, uint32_t members = 1) {
    server_.emplace(StartServer(members, EverythingReliable()));
    ConnectOptions connect = OptionsFor(*server_, 0, members);
    connect.idle_timeout = idle;
    std::vector<std::shared_ptr<offload::UdpLink>> links;
    for (uint8_t node = 0; node < nodes; ++node) {
      senders_.push_back(std::make_unique<offload::FaultySender>(offload::FaultySender::Faults{}, node));
      offload::UdpLinkOptions options;
      options.node = node;
      options.bind = Address::V4(127, 0, 0, 1, 0);
      options.socket.force_buffers = false;
      options.socket.calls = senders_[node]->Calls();
      links.push_back(offload::UdpLink::Open(std::move(options)).value());
    }
    for (uint8_t node = 0; node < nodes; ++node) {
      for (uint8_t other = 0; other < nodes; ++other) {
        if (other != node) links[node]->SetPeer(other, links[other]->local_address());
      }
    }
    for (uint8_t node = 0; node < nodes; ++node) {
      auto options = DaemonOf(folder_.path() + "/node" + std::to_string(node) + ".sock", nodes, 1);
      options.link = std::move(links[node]);
      nodes_.push_back(std::make_unique<TestNode>(options, connect));
    }
  }
  // Nothing leaves it any more; of two, nothing arrives there either.
  void Cut(bool cut) {
    for (auto& sender : senders_) sender->Set({.loss = cut ? 1.0 : 0.0});
  }
  Client Connect(uint8_t node) {
    ConnectOptions options = nodes_[node]->Rank(0);
    options.idle_timeout = std::chrono::seconds(30);
    return MustConnect(options);
  }

  Folder folder_;
  std::optional<Server> server_;
  std::vector<std::unique_ptr<offload::FaultySender>> senders_;  // outlive the nodes
  std::vector<std::unique_ptr<TestNode>> nodes_;
};

constexpr Duration kNodesIdle = std::chrono::milliseconds(1500) * LONGHAUL_SLOWNESS;

// Its successor has its place at the server before it has heard of it. A worker keeps the round open.
TEST_F(FewNodes, ALeaderThatWasReplacedWithoutItsKnowledgeFailsNoRank) {
  Start(2, kNodesIdle, 2);
  Result<Client> plain = Status(StatusCode::kInternal, "");
  std::thread joins([&] { plain = Client::Connect(OptionsFor(*server_, 1, 2)); });
  Client clients[] = {Connect(0), Connect(1)};
  joins.join();
  ASSERT_TRUE(plain.ok()) << plain.status().ToString();
  Client* const all[] = {&clients[0], &clients[1], &*plain};
  Tensor tensors[3];
  InParallel(3, [&](size_t i) {
    tensors[i] = all[i]->Declare("w", {.count = kCount, .optimizer = "sgd:lr=1"}).value();
  });
  const std::vector<float> gradient(kCount, 2);
  std::vector<float> out[3];
  const auto step = [&](size_t i) {
    out[i].assign(kCount, 0);
    return all[i]->PushPull(tensors[i], gradient, out[i]);
  };
  InParallel(3, [&](size_t i) { EXPECT_TRUE(step(i).Wait().ok()); });
  const Operation waits[] = {step(0), step(1)};
  EXPECT_EQ(waits[0].WaitFor(std::chrono::milliseconds(200)).code(), StatusCode::kDeadlineExceeded);
  Status passed[3];
  std::vector<std::thread> barriers;
  for (size_t i = 0; i < 2; ++i) barriers.emplace_back([&, i] { passed[i] = all[i]->Barrier("b"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until the server has it
  Cut(true);
  ASSERT_TRUE(nodes_[1]->WaitForLog("the site is member"));
  Cut(false);
  for (const Operation& operation : waits) {
    EXPECT_EQ(operation.WaitFor(Leadership::SilenceOf(kNodesIdle) / 2).code(), StatusCode::kDeadlineExceeded);
  }
  EXPECT_TRUE(step(2).Wait().ok());
  passed[2] = plain->Barrier("b");
  for (std::thread& barrier : barriers) barrier.join();
  for (const Status& status : passed) EXPECT_TRUE(status.ok()) << status.ToString();
  for (const Operation& operation : waits) {
    const Status status = operation.WaitFor(std::chrono::seconds(20));
    EXPECT_TRUE(status.ok()) << status.ToString() << "\n" << nodes_[0]->log() << nodes_[1]->log();
  }
}

// A rank whose device is open, and that says nothing to the successor.
TEST_F(FewNodes, ARankThatDoesNotTurnToTheSuccessorIsGivenUp) {
  Start(3, kNodesIdle);
  FakeRank first(*nodes_[0], 0), silent(*nodes_[2], 0);
  Client client = Connect(1);
  Result<Tensor> tensor = Status(StatusCode::kInternal, "");
  InParallel(3, [&](size_t i) {
    if (i == 0) (void)first.Declare("w");
    if (i == 1) tensor = client.Declare("w", {.count = kCount});
    if (i == 2) (void)silent.Declare("w");
  });
  ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
  nodes_[0]->EndDaemon();
  const std::vector<float> gradient(kCount, 2);
  std::vector<float> out(kCount);
  const Status status = client.PushPull(*tensor, gradient, out).WaitFor(std::chrono::seconds(20));
  EXPECT_TRUE(status.ok()) << status.ToString() << "\n" << nodes_[1]->log();
  EXPECT_EQ(out, gradient);
  EXPECT_NE(nodes_[1]->log().find("rank 2 of the site was silent for"), std::string::npos)
      << nodes_[1]->log();
}

TEST_F(FewNodes, TheLeaderAnswersUntilRanksOfOtherNodesHaveClosedTheirDevices) {
  Start(2, kNodesIdle);
  auto near = std::make_unique<FakeRank>(*nodes_[0], uint8_t{0});
  auto far = std::make_unique<FakeRank>(*nodes_[1], uint8_t{0});
  (void)near->Ask(SiteKind::kEnd, {.kind = SiteKind::kLeave});
  near.reset();
  const SiteMessage leave{.kind = SiteKind::kLeave, .seq = far->NextSeq()};
  for (int again = 0; again < 20; ++again) {  // as if each answer were lost
    far->Say(leave);
    ASSERT_TRUE(far->Await(SiteKind::kEnd, leave.seq, leave).has_value()) << again;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  far.reset();
  Status end(StatusCode::kInternal, "");
  for (const auto& node : nodes_) ASSERT_TRUE(node->WaitForEnd(&end));
  EXPECT_TRUE(end.ok()) << end.ToString();
}

// It says that it has its values before the relay knows that they have been sent.
TEST_F(FewNodes, APullThatIsClosedBeforeItIsReceivedHoldsUpNoOther) {
  Start(2, 20 * kNodesIdle);  // a rank that is given up would set it free
  FakeRank ranks[] = {{*nodes_[0], 0}, {*nodes_[1], 0}};
  SiteMessage declared[2];
  InParallel(2, [&](size_t i) { declared[i] = ranks[i].Declare("w", "sgd:lr=1"); });
  const SiteMessage pull{.kind = SiteKind::kPull, .tensor = declared[1].tensor};
  const SiteMessage deliver = ranks[1].Ask(SiteKind::kDeliver, pull);
  ranks[1].Close(ranks[1].seq());
  ranks[1].Receive(deliver);
  (void)ranks[1].Ask(SiteKind::kDeliver, pull);
}

// The next one, node 1, is dead, and not silent for long enough to be known as that.
TEST_F(FewNodes, ALeaderThatEndsWithoutASuccessorTellsTheOthers) {
  Start(3, std::chrono::seconds(24));
  FakeRank ranks[] = {{*nodes_[0], 0}, {*nodes_[1], 0}, {*nodes_[2], 0}};
  nodes_[1]->EndDaemon();
  const Instant begun = Now();
  nodes_[0]->EndRelay();
  EXPECT_LT(Now() - begun, std::chrono::seconds(5) * LONGHAUL_SLOWNESS) << "it waits for 2 s";
  Status end;
  ASSERT_TRUE(nodes_[2]->WaitForEnd(&end));
  EXPECT_EQ(end.code(), StatusCode::kCancelled) << end.ToString();
  EXPECT_EQ(end.message(), "the site's relay ends");
}

}  // namespace
}  // namespace longhaul::site
