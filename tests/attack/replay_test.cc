// An attacker has recorded everything and sends it again.
#include "tests/attack/support/attack_test.h"

namespace longhaul::attack {
namespace {

class Replay : public AttackTest {};

// Would gain: a gradient that counts twice, in its round or in a later one.
TEST_F(Replay, OfAllPacketsDuringTheSessionCountsNothingTwice) {
  StartTarget();
  StartPair();
  for (int i = 0; i < 5; ++i) Round();
  nlohmann::json before = AskServer();
  // From where they came, between the rounds and while one is under way.
  for (int i = 0; i < 5; ++i) {
    tap().InjectGently(Direction::kUp, tap().Recorded(Direction::kUp));
    tap().InjectGently(Direction::kDown, tap().Recorded(Direction::kDown));
    Round();
  }
  nlohmann::json after = AskServer();
  EXPECT_GE(
      after["traffic"].value("duplicates_dropped", 0) - before["traffic"].value("duplicates_dropped", 0),
      100);
  EXPECT_EQ(Change(before, after, "accepted"), 1) << "only the question itself is a new connection";
  FinishPair();
}

// Would gain: the connection, at another address.
TEST_F(Replay, FromAnotherAddressMovesNothing) {
  StartTarget();
  StartPair();
  for (int i = 0; i < 5; ++i) Round();
  nlohmann::json before = AskServer();
  ASSERT_TRUE(before.contains("members") && before["members"].size() == 2);
  const std::string peer = before["members"][0].value("peer", "");
  ASSERT_NE(peer, "");
  SpoofingSocket elsewhere(port());
  elsewhere.SendGently(LoopbackHost(77), tap().Recorded(Direction::kUp));
  for (int i = 0; i < 5; ++i) Round();
  (void)elsewhere.Receive(milliseconds(50));
  ExpectNoAmplifier(elsewhere);
  nlohmann::json after = AskServer();
  ASSERT_TRUE(after.contains("members") && after["members"].size() == 2);
  EXPECT_EQ(after["members"][0].value("peer", ""), peer);
  EXPECT_GE(
      after["traffic"].value("duplicates_dropped", 0) - before["traffic"].value("duplicates_dropped", 0), 100)
      << "they did come";
  EXPECT_EQ(Change(before, after, "accepted"), 1) << "only the question itself";
  FinishPair();
}

// Would gain: a member, a connection, a handshake that completes.
TEST_F(Replay, OfAWholeSessionAfterItsEndConnectsNobody) {
  StartTarget();
  StartPair();
  for (int i = 0; i < 5; ++i) Round();
  FinishPair();
  const std::vector<Bytes> session = tap().Recorded(Direction::kUp);
  ASSERT_GE(session.size(), 50u);
  nlohmann::json before = AskServer();
  SpoofingSocket elsewhere(port());
  elsewhere.SendGently(LoopbackHost(0), session);
  tap().InjectGently(Direction::kUp, session);
  const auto answers = elsewhere.Receive(milliseconds(200));
  EXPECT_FALSE(answers.empty()) << "the first INIT is good, so its sender is answered";
  ExpectNoAmplifier(elsewhere);
  nlohmann::json after = AskServer();
  EXPECT_EQ(Change(before, after, "accepted"), 1) << "only the question itself";
  EXPECT_EQ(after.value("joined", -1), 0);
  EXPECT_GE(Change(before, after, "unknown_connection_dropped"), static_cast<int64_t>(session.size()));
  EXPECT_LE(after["endpoint"].value("half_open", 99), 2) << "one for each address that showed the INIT";
  // The next job of this server has the same key: nothing of the old one counts in it either.
  StartPair();
  elsewhere.SendGently(LoopbackHost(0), session);
  tap().InjectGently(Direction::kUp, session);
  for (int i = 0; i < 5; ++i) Round();
  FinishPair();
}

TEST_F(Replay, OfAWholeSessionAtARestartedServerConnectsNobody) {
  StartTarget();
  StartPair();
  for (int i = 0; i < 5; ++i) Round();
  FinishPair();
  const std::vector<Bytes> session = tap().Recorded(Direction::kUp);
  server().Signal(SIGTERM);
  ExpectEnd(server(), 0);
  StartTarget();
  nlohmann::json before = AskServer();
  SpoofingSocket elsewhere(port());
  for (int i = 0; i < 3; ++i) elsewhere.SendGently(LoopbackHost(0), session);
  (void)elsewhere.Receive(milliseconds(200));
  ExpectNoAmplifier(elsewhere);
  nlohmann::json after = AskServer();
  EXPECT_EQ(Change(before, after, "accepted"), 1) << "only the question itself";
  EXPECT_EQ(after.value("joined", -1), 0);
  EXPECT_FALSE(server().FindEvent("join"));
  EXPECT_GE(Dropped(after) - Dropped(before), static_cast<int64_t>(session.size()));
  // Nor in the middle of the restarted server's own job.
  StartPair();
  for (int i = 0; i < 5; ++i) {
    elsewhere.SendGently(LoopbackHost(0), session);
    Round();
  }
  FinishPair();
}

}  // namespace
}  // namespace longhaul::attack
