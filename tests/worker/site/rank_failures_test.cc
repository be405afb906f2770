// Ranks that die or stop in the middle of something, and ones that say what no client does.
#include <optional>

#include "tests/worker/site/fake_rank.h"

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
  EXPECT_NE(site_->log().find("the site goes on with 2 ranks"), std::string::npos) << site_->log();
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

}  // namespace
}  // namespace longhaul::site
