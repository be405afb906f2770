// The leader of a site in the test's hands, and what ranks keep of one.
#include "worker/site/site_leader.h"

#include <mutex>
#include <optional>

#include "tests/worker/site/fake_rank.h"
#include "worker/site/client_tensors.h"

namespace longhaul::site {
namespace {

std::unique_ptr<Mailbox> MailboxOf(const TestNode& node, uint8_t slot) {
  return Mailbox::Open(offload::Device::Open(node.where(), {.node = 0, .rank = slot, .site = {}}).value())
      .value();
}

// In the place of the relay of a site of one rank.
class LeaderAlone : public ::testing::Test {
 protected:
  static constexpr uint64_t kLeader = LeadershipOf(1, 0);

  LeaderAlone() {
    site_.EndRelay();
    mailbox_ = MailboxOf(site_, 1);
    options_.connect = OptionsFor(server_, 0, 1);
    options_.connect.log = [this](LogLevel, std::string_view line) {
      if (line.starts_with("the site is")) connected_ = true;
    };
    options_.shape = SiteShape::Of(mailbox_->device().site());
    options_.leader = kLeader;
  }
  ~LeaderAlone() override { End(); }
  void Lead() {
    leader_.emplace(options_, mailbox_.get(), [this] { mailbox_->Wake(); });
    leader_->Connect();
    thread_ = std::thread([this] {
      while (!stop_) {
        {
          const std::lock_guard lock(mutex_);
          leader_->RunDone();
          mailbox_->Poll([] {},
                         [this](const SiteMessage& m) {
                           session_ = m.session;
                           leader_->OnMessage(m);
                         },
                         [this](const offload::Completion& c) { leader_->OnCompletion(c); });
          leader_->Look(Now());
        }
        mailbox_->Wait(std::chrono::milliseconds(5));
      }
    });
    for (int i = 0; i < 2000 && !connected_; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_TRUE(connected_);
  }
  void End() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    leader_.reset();
  }
  // Within so much time, as it says to its ranks.
  bool IsOverWithin(Duration limit) {
    for (const Instant end = Now() + limit; Now() < end;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      const std::lock_guard lock(mutex_);
      if (!leader_->over().IsInfinite()) return true;
    }
    return false;
  }

  Server server_ = StartServer(1, EverythingReliable());
  TestSite site_{OptionsFor(server_, 0, 1), 1};
  std::unique_ptr<Mailbox> mailbox_;
  SiteLeader::Options options_;
  std::optional<SiteLeader> leader_;
  uint64_t session_ = 0;  // of the rank that spoke last; under the lock
  std::atomic<bool> connected_{false};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::thread thread_;
};

// A rank that has left in order makes the site leave when the others have, not before they have turned to it.
TEST_F(LeaderAlone, ASuccessorStaysForTheRanksThatItExpects) {
  options_.expected = 1;
  options_.any_left = true;
  Lead();
  EXPECT_FALSE(IsOverWithin(std::chrono::milliseconds(300)));
  FakeRank rank(site_, 0);
  (void)rank.Declare("w");
}

TEST_F(LeaderAlone, AClientThatASuccessorMayHaveReplacedFailsTheRanksLater) {
  options_.grace = std::chrono::milliseconds(1000) * LONGHAUL_SLOWNESS;
  Lead();
  ConnectOptions successor = options_.connect;
  successor.incarnation = 5;
  const Client other = MustConnect(successor);
  EXPECT_FALSE(IsOverWithin(options_.grace / 2));
  EXPECT_TRUE(IsOverWithin(options_.grace * 5));
}

// The rank takes no part in the delivery of its result, so that it goes on.
TEST_F(LeaderAlone, ItsEndEndsItsCollectivesAndGivesTheirMemoryBack) {
  Lead();
  {
    FakeRank rank(site_, 0);
    const uint32_t tensor = rank.Declare("w").tensor;
    rank.Contribute(rank.AskStep(tensor), 1);
    EXPECT_TRUE(rank.Await(SiteKind::kDeliver, rank.seq()).has_value());
    End();
    const auto other = mailbox_->device().Allocate(4096, "longhaul-site-" + std::to_string(kLeader) + "/0");
    EXPECT_TRUE(other.ok()) << "the name is free: " << other.status().ToString();
  }
}

// It was on its way while the ranks turned to the successor.
TEST_F(LeaderAlone, WhatAnEarlierOneSaysIsNotHeard) {
  options_.leader = LeadershipOf(2, 0);
  Lead();
  Client client = MustConnect(site_.Rank(0));
  {
    const std::lock_guard lock(mutex_);
    SiteMessage failed{.kind = SiteKind::kFailed, .session = session_, .leader = LeadershipOf(1, 0)};
    failed.SetStatus({StatusCode::kAborted, "of an earlier one"});
    EXPECT_TRUE(mailbox_->Send({0, 0}, failed));
  }
  EXPECT_EQ(client.Declare("w", {.count = 10}).status(), Status());
  EXPECT_EQ(client.status(), Status());
}

// More than a device has regions.
TEST(ClientTensors, ResultsOfLeadersThatAreGoneGoBack) {
  Server server = StartServer(1);
  TestSite site(OptionsFor(server, 0, 1), 1);
  site.EndRelay();
  const auto mailbox = MailboxOf(site, 0);
  ClientTensors tensors;
  ClientTensors::State& tensor = *tensors.Find(tensors.IndexOf("w", {}));
  for (uint64_t leader = 1; leader < 1200; ++leader) {
    tensors.TurnTo(leader);
    const SiteMessage declared{.kind = SiteKind::kEnd, .body = EncodePlace({0, 4096, 0})};
    const Status taken = tensors.TakeDeclared(mailbox->device(), declared, tensor, 10);
    ASSERT_TRUE(taken.ok()) << leader << ": " << taken.ToString();
  }
}

}  // namespace
}  // namespace longhaul::site
