// The steps by which a job's servers hand it over together, without connections.
#include "server/job/hand_over_desk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "tests/transport/fake_connection.h"

namespace longhaul::server {
namespace {

using control::HandOver;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Instant At(int64_t ms) { return Instant::FromNanoseconds(ms * 1000000); }

constexpr uint32_t kWorkers = 3;

class HandOverDeskTest : public ::testing::Test, public RoundEngineHost, public ServerEvents {
 protected:
  void SetUp() override {
    connection.identity_now.kind = transport::PeerIdentity::Kind::kPsk;
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      peers[rank].rank = rank;
      peers[rank].takes_hand_over = true;
    }
    for (uint32_t rank : {0u, 1u}) {  // of three; the third one is not in
      JoinRequest join;
      join.job = "default";
      join.rank = rank;
      join.world_size = kWorkers;
      join.incarnation = 0;
      join.peer = Address::V4(127, 0, 0, 1, static_cast<uint16_t>(40000 + rank));
      ASSERT_TRUE(membership.Join(join, At(0)).ok());
      in[rank] = true;
    }
  }
  // Ok: it has begun.
  Status Begin(bool logs = true, bool running = true) {
    control::HandOverRequest request;
    request.set_timeout(1'000'000'000);
    refused = {};
    keeper.logs = logs;
    desk.OnRequest(by, request, &keeper, running, At(0));
    return std::exchange(refused, {});
  }
  void Answers(uint32_t rank, uint32_t phase, uint64_t round = 0) {
    HandOver answer;
    answer.set_phase(phase);
    answer.set_round(round);
    desk.OnAnswer(peers[rank], answer);
  }
  // What the two heard since the last call.
  std::vector<std::string> TakeSaid() { return std::exchange(said, {}); }

  // --- RoundEngineHost ---
  void Send(Peer& peer, const control::ControlMessage& message) override {
    if (message.has_handed_over()) return said.push_back(message.handed_over().what());
    said.push_back(std::to_string(peer.rank) + ": " + std::to_string(message.hand_over().phase()) + " " +
                   std::to_string(message.hand_over().round()));
  }
  void Disconnect(Peer& peer, const Status& why) override {
    EXPECT_EQ(&peer, &by);
    refused = why;
  }
  void RequestAbort(const Status&) override {}
  Peer* PeerOfRank(uint32_t rank) override { return in[rank] ? &peers[rank] : nullptr; }
  void OnTensorRound(const TensorRound&) override {}
  using ServerEvents::OnLeftOut, ServerEvents::OnRejected, ServerEvents::OnWeightBounded;
  void OnRejected(const Rejection&) override {}
  void OnWeightBounded(uint32_t, float, float) override {}
  void OnLeftOut(const LeftOut&) override {}

  // --- ServerEvents ---
  void OnHandOver() override { ++ends; }
  void OnHandOverAsked(const std::string&, const Status& why) override { asked.push_back(why); }

  struct Keeper : ImageKeeper {
    bool Ready() const override { return true; }
    void Keep(std::shared_ptr<const JobImage>) override {}
    void OnSkipped() override {}
    KeeperStats stats() const override { return {}; }
    const TensorImage* Find(const std::string&) const override { return nullptr; }
    TensorImage Take(const std::string&) override { return {}; }
    void OnJobOver() override {}
    bool Logs() const override { return logs; }
    bool logs = true;
  } keeper;
  ServerSettings settings;
  Membership membership{"default", kWorkers, 1};
  ServerDesk servers{settings, this, nullptr};
  HandOverDesk desk{settings, membership, servers, this, this};
  transport::FakeConnection connection{Address::V4(127, 0, 0, 1, 40200)};
  std::array<Peer, kWorkers> peers = {Peer(nullptr), Peer(nullptr), Peer(nullptr)};
  std::array<bool, kWorkers> in = {};
  Peer by{&connection};
  std::vector<std::string> said;
  std::vector<Status> asked;
  Status refused;
  int ends = 0;
};

TEST_F(HandOverDeskTest, BringsAllToOnePointAndEnds) {
  ASSERT_EQ(Begin(), Status());
  EXPECT_THAT(TakeSaid(), ElementsAre("0: 1 0", "1: 1 0"));
  Answers(0, HandOver::kAsks, 7);
  desk.Run(At(1));
  EXPECT_THAT(TakeSaid(), IsEmpty()) << "not before all have said it";
  Answers(1, HandOver::kAsks, 9);
  Answers(1, HandOver::kHolds);  // not asked for yet
  desk.Run(At(2));
  EXPECT_THAT(TakeSaid(), ElementsAre("0: 2 9", "1: 2 9"));
  Answers(0, HandOver::kHolds, 9);
  Answers(1, HandOver::kAsks, 12);  // late
  desk.Run(At(3));
  EXPECT_THAT(TakeSaid(), IsEmpty());
  Answers(1, HandOver::kHolds, 9);
  desk.Run(At(4));
  EXPECT_THAT(TakeSaid(), ElementsAre("0: 3 9", "1: 3 9"));
  Answers(0, HandOver::kEnds, 9);
  Answers(1, HandOver::kEnds, 9);
  desk.Run(At(5));
  EXPECT_THAT(TakeSaid(),
              ElementsAre("after round 9: 1 servers have ended, the workers wait for the next ones"));
  // The operator's tool has time to read it.
  desk.Run(At(5) + HandOverDesk::kAnswer - std::chrono::milliseconds(1));
  EXPECT_EQ(ends, 0);
  desk.Run(At(5) + HandOverDesk::kAnswer);
  desk.Run(At(9000));
  EXPECT_EQ(ends, 1) << "once";
  EXPECT_THAT(asked, ElementsAre(Status()));
}

TEST_F(HandOverDeskTest, GoesOnWhenOneDoesNotComeAlongInTime) {
  ASSERT_EQ(Begin(), Status());
  Answers(1, HandOver::kAsks, 4);
  TakeSaid();
  desk.Run(At(999));
  EXPECT_TRUE(desk.active());
  desk.Run(At(1000));
  EXPECT_FALSE(desk.active());
  EXPECT_THAT(TakeSaid(), ElementsAre("0: 0 4", "1: 0 4"));
  EXPECT_EQ(refused.code(), StatusCode::kAborted);
  EXPECT_THAT(refused.message(), HasSubstr("no word from worker rank 0"));
  EXPECT_THAT(refused.message(), Not(HasSubstr("more")));
  EXPECT_THAT(asked, ElementsAre(Status(), refused));
  EXPECT_EQ(Begin(), Status()) << "another try";
}

TEST_F(HandOverDeskTest, GoesOnWhenAWorkerComesOrGoes) {
  ASSERT_EQ(Begin(), Status());
  desk.OnChange("worker rank 2 has come meanwhile");
  EXPECT_FALSE(desk.active());
  EXPECT_THAT(refused.message(), HasSubstr("rank 2 has come meanwhile"));
  // The operator's connection is gone as well.
  ASSERT_EQ(Begin(), Status());
  desk.Forget(by);
  desk.OnChange("worker rank 0 is gone meanwhile");
  EXPECT_EQ(refused, Status());
  EXPECT_THAT(asked.back().message(), HasSubstr("rank 0 is gone meanwhile"));
  // When the servers end it is too late.
  ASSERT_EQ(Begin(), Status());
  for (const uint32_t phase : {HandOver::kAsks, HandOver::kHolds, HandOver::kEnds}) {
    for (uint32_t rank : {0u, 1u}) Answers(rank, phase);
    desk.Run(At(1));
  }
  desk.OnChange("worker rank 1 is gone meanwhile");
  EXPECT_TRUE(desk.active());
  desk.Run(At(1) + HandOverDesk::kAnswer);
  EXPECT_EQ(ends, 1);
}

TEST_F(HandOverDeskTest, RefusesWhatWouldLoseSomething) {
  const auto why = [this](bool logs = true, bool running = true) {
    const Status outcome = Begin(logs, running);
    EXPECT_EQ(outcome.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(TakeSaid(), IsEmpty());
    return outcome.message();
  };
  EXPECT_THAT(why(false), HasSubstr("no round log"));
  EXPECT_THAT(why(true, false), HasSubstr("no job runs"));
  settings.downlink = Downlink::kLossy;
  EXPECT_THAT(why(), HasSubstr("lossy downlink"));
  settings.downlink = Downlink::kReliable;
  settings.staleness = 3;
  EXPECT_THAT(why(), HasSubstr("bounded staleness"));
  settings.staleness = -1;
  peers[1].takes_hand_over = false;
  EXPECT_THAT(why(), HasSubstr("rank 1"));
  peers[1].takes_hand_over = true;
  settings.place = {.servers = 2, .server = 1, .first_server = "ams:7700"};
  EXPECT_THAT(why(), HasSubstr("that is ams:7700"));
  settings.place = {};
  EXPECT_EQ(Begin(), Status());
  EXPECT_EQ(Begin().code(), StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace longhaul::server
