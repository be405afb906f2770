// Members of the job against each other: one member wants another's rank, and with it the weight of its
// gradients.
#include <functional>

#include "tests/attack/support/certified_test.h"

namespace longhaul::attack {
namespace {

template <typename Job>
class TryToJoin : public Job {
 protected:
  Result<Client> Try(uint32_t rank, std::optional<uint64_t> incarnation, const std::string& key) {
    ConnectOptions options;
    options.servers = {this->address()};
    options.rank = rank;
    options.world_size = 2;
    options.incarnation = incarnation;
    options.key_file = key;
    options.connect_timeout = kPatience;
    return Client::Connect(options);
  }
  // Of the running pair: this attempt is refused and counted, and the rank stays whose it was.
  void ExpectRefused(uint32_t rank, std::optional<uint64_t> incarnation, const std::string& key,
                     StatusCode why) {
    ExpectRefused(rank, why, [&] { return Try(rank, incarnation, key).status(); });
  }
  void ExpectRefused(uint32_t rank, StatusCode why, const std::function<Status()>& attempt) {
    const nlohmann::json before = this->AskServer();
    const Status refused = attempt();
    ASSERT_EQ(refused.code(), why) << refused.ToString();
    this->Round();
    const nlohmann::json after = this->AskServer();
    EXPECT_EQ(after.value("joins_refused", -1), before.value("joins_refused", -1) + 1);
    EXPECT_EQ(after.value("joined", -1), 2);
    ASSERT_GT(before["members"].size(), rank);
    ASSERT_GT(after["members"].size(), rank);
    for (const char* of_holder : {"peer", "identity", "incarnation", "state"}) {
      ASSERT_TRUE(before["members"][rank].contains(of_holder)) << of_holder;
      EXPECT_EQ(after["members"][rank][of_holder], before["members"][rank][of_holder]) << of_holder;
    }
  }
};

class Takeover : public TryToJoin<AttackTest> {};

TEST_F(Takeover, OfARankNeedsANewerIncarnation) {
  StartTarget();
  StartPair();
  Round();
  ExpectRefused(1, 0, key_file(), StatusCode::kAlreadyExists);
  FinishPair();
}

// Would gain: the rank of a worker that lives, by the rule that lets a restarted one in.
TEST_F(Takeover, OfALiveWorkerByARestartIsRefused) {
  StartTarget();
  StartPair();
  for (int attempt = 0; attempt < 5; ++attempt) {
    Round();
    ExpectRefused(1, std::nullopt, key_file(), StatusCode::kAlreadyExists);
  }
  FinishPair();
}

// Would gain: a rank that its worker cannot have again.
TEST_F(Takeover, WithTheLargestIncarnationBlocksNoRank) {
  StartTarget({{"--min-workers", "1"}});
  StartPair();
  auto thief = Try(1, UINT64_MAX, key_file());
  ASSERT_TRUE(thief.ok()) << "with one shared key who says a higher number takes over: "
                          << thief.status().ToString();
  EXPECT_EQ(Try(1, UINT64_MAX, key_file()).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(Try(1, std::nullopt, key_file()).status().code(), StatusCode::kAlreadyExists) << "it lives";
  ASSERT_TRUE(thief->Leave(Status(StatusCode::kCancelled, "gone")).ok());
  ASSERT_TRUE(e2e::Eventually([&] { return AskServer().value("joined", -1) == 1; }));
  EXPECT_TRUE(Try(1, std::nullopt, key_file()).ok()) << "a plain restart";
}

// Would gain: the share of a worker that was replaced, for its predecessor, as soon as the rank is free. A
// job that needs one worker only goes on without it.
TEST_F(Takeover, ByAnOlderIncarnationIsRefusedAlsoWhenTheRankIsAway) {
  StartTarget({{"--min-workers", "1"}});
  auto first = Try(0, 7, key_file());
  auto second = Try(1, 0, key_file());
  ASSERT_TRUE(first.ok() && second.ok()) << first.status().ToString() << second.status().ToString();
  ASSERT_TRUE(server().WaitForEvent("start")) << server().Everything();
  const auto expect_refused = [&](uint64_t incarnation) {
    const auto refused = Try(0, incarnation, key_file());
    ASSERT_FALSE(refused.ok()) << "incarnation " << incarnation;
    EXPECT_EQ(refused.status().code(), StatusCode::kAlreadyExists) << refused.status().ToString();
  };
  for (const uint64_t older : {0, 6, 7}) expect_refused(older);
  EXPECT_TRUE(first->status().ok()) << first->status().ToString();
  ASSERT_TRUE(first->Leave(Status(StatusCode::kCancelled, "gone")).ok());
  ASSERT_TRUE(e2e::Eventually([&] { return AskServer().value("joined", -1) == 1; }));
  for (const uint64_t older : {0, 6}) expect_refused(older);
  const nlohmann::json after = AskServer();
  EXPECT_EQ(after.value("joins_refused", -1), 5);
  EXPECT_EQ(after.value("joined", -1), 1);
  ASSERT_TRUE(after.contains("members") && after["members"].size() == 2);
  EXPECT_EQ(after["members"][0].value("incarnation", -1), 7);
  EXPECT_EQ(after["members"][0].value("state", ""), "lost");
  // And it is the incarnation that kept them out.
  EXPECT_TRUE(Try(0, 8, key_file()).ok());
}

// With certificates the newest incarnation is worth nothing to a peer with another identity.
class CertifiedTakeover : public TryToJoin<CertifiedTest> {};

TEST_F(CertifiedTakeover, NeedsTheSameIdentity) {
  StartTarget();
  StartPair();
  Round();
  ExpectRefused(1, 1000, KeyOf("intruder"), StatusCode::kPermissionDenied);
  ExpectRefused(1, 1000, KeyOf("worker0"), StatusCode::kPermissionDenied);  // a member takes a second rank
  FinishPair();
}

// Would gain: a member whose certificate is no worker's. Our own client does not even try.
TEST_F(CertifiedTakeover, AToolIsNoWorker) {
  StartTarget();
  EXPECT_EQ(Try(0, 0, KeyOf("tool")).status().code(), StatusCode::kPermissionDenied);
  const auto join = [&] { return JoinAsTool(port(), KeyOf("tool"), 1, 1000, kPatience); };
  const Status refused = join();
  EXPECT_EQ(refused.code(), StatusCode::kPermissionDenied) << refused.ToString();
  EXPECT_THAT(refused.message(),
              ::testing::HasSubstr("the certificate of tool tool is not for joining the job"));
  const nlohmann::json waiting = AskServer();
  EXPECT_EQ(waiting.value("joined", -1), 0);
  EXPECT_EQ(waiting.value("joins_refused", -1), 1);
  // Nor when there is a job to take part in.
  StartPair();
  Round();
  ExpectRefused(1, StatusCode::kPermissionDenied, join);
  FinishPair();
}

}  // namespace
}  // namespace longhaul::attack
