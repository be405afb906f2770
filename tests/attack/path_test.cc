// The path changes under real sockets: what it carries, how it marks, and the address behind it. A relay on
// the loopback interface is the path of one of two workers; every sum of every round must be exact.
#include <gmock/gmock.h>

#include <atomic>

#include "tests/attack/support/attack_test.h"

namespace longhaul::attack {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Le;

class Path : public AttackTest {
 protected:
  // What the server has counted on its connection to the worker behind the relay.
  nlohmann::json BehindRelay() {
    const nlohmann::json status = AskServer();
    EXPECT_TRUE(status.contains("members") && status["members"].size() == 2) << status.dump();
    if (!status.contains("members")) return nlohmann::json::object();
    return status["members"][0].value("traffic", nlohmann::json::object());
  }
  void Rounds(int count) {
    for (int i = 0; i < count && !HasFatalFailure(); ++i) Round();
  }
};

TEST_F(Path, APathThatSwallowsLargeDatagramsIsMeasuredByProbes) {
  constexpr int64_t kCarries = 1300;
  StartTarget();
  StartPair([](Passing& p) { p.drop = p.bytes.size() > kCarries; });
  Rounds(5);
  const nlohmann::json member = BehindRelay();
  EXPECT_GE(member.value("mtu_probes_lost", 0), 1) << member.dump();
  FinishPair();
}

TEST_F(Path, ABlackHoleInMidJobCutsTheChunksOfItsWorker) {
  std::atomic<bool> narrow = false;
  StartTarget();
  StartPair([&](Passing& p) { p.drop = narrow && p.bytes.size() > 1250; });
  Rounds(3);
  narrow = true;
  Rounds(5);
  EXPECT_GT(BehindRelay().value("chunks_joined", 0), 0);
  FinishPair();
}

TEST_F(Path, ThatCarriesMarksIsFoundCapable) {
  StartTarget();
  StartPair();
  Rounds(5);
  EXPECT_EQ(BehindRelay().value("ecn_state", ""), "capable");
  FinishPair();
}

TEST_F(Path, ThatMarksCongestionIsHeard) {
  std::atomic<uint64_t> marked = 0, seen = 0;
  StartTarget();
  StartPair([&](Passing& p) {
    if (p.direction == Direction::kDown && p.ecn == 2 && ++seen > 100 && seen % 5 == 0) {
      p.ecn = 3;
      ++marked;
    }
  });
  Rounds(20);
  const nlohmann::json member = BehindRelay();
  ASSERT_GT(marked, 0u) << "the server marked nothing as ECN-capable: " << member.dump();
  EXPECT_EQ(member.value("ecn_state", ""), "capable");
  EXPECT_THAT(member.value("ecn_ce", uint64_t{0}), AllOf(Ge(marked * 9 / 10), Le(marked.load())));
  FinishPair();
}

TEST_F(Path, ThatBleachesMarksIsLeftAlone) {
  StartTarget();
  StartPair([](Passing& p) { p.ecn = 0; });
  Rounds(5);
  EXPECT_EQ(BehindRelay().value("ecn_state", ""), "failed");
  FinishPair();
}

TEST_F(Path, ARebindingNatMovesTheConnection) {
  StartTarget();
  StartPair();
  Rounds(3);
  const nlohmann::json before = BehindRelay();
  tap().Rebind();
  Rounds(3);
  tap().Rebind();
  Rounds(3);
  const nlohmann::json after = BehindRelay();
  EXPECT_EQ(after.value("migrations", 0), before.value("migrations", 0) + 2);
  FinishPair();
}

}  // namespace
}  // namespace longhaul::attack
