// More INITs than a server can answer, while a job trains. How fast the rounds stay is measured by
// longhaul_attack_bench; here it is about safety: the job ends right, nothing grows, members get in.
#include <algorithm>
#include <iostream>

#include "tests/attack/support/attack_test.h"
#include "tests/attack/support/flood.h"

namespace longhaul::attack {
namespace {

constexpr double kPerSecond = 100'000.0 / kSlowness;
constexpr Duration kFlood = seconds(3);

class FloodTest : public AttackTest {
 protected:
  // Rounds, right to the bit, as long as the flood lasts; memory and half-open handshakes bounded.
  void ExpectJobUnderFlood(std::vector<Bytes> inits) {
    StartTarget();
    StartPair();
    Round();
    const nlohmann::json before = AskServer();
    const int64_t memory = Memory();
    Flood flood(port(), {.per_second = kPerSecond, .hosts = 50'000, .datagrams = std::move(inits)}, kFlood);
    int rounds = 0;
    int questions = 0;
    int64_t peak = memory;
    for (const auto end = e2e::Clock::now() + kFlood; e2e::Clock::now() < end; ++rounds) {
      Round();  // right to the bit
      ASSERT_FALSE(HasFatalFailure());
      peak = std::max(peak, Memory());
      if (rounds % 64 != 0) continue;
      ++questions;
      EXPECT_LE(AskServer()["endpoint"].value("half_open", 999), 64) << "and newcomers of the job get in";
    }
    flood.Stop();
    const nlohmann::json after = AskServer();
    RecordProperty("rounds", rounds);
    RecordProperty("per_second", static_cast<int>(flood.per_second()));
    std::cout << static_cast<int64_t>(flood.per_second()) << " INITs per second, " << rounds << " rounds, "
              << Change(before, after, "datagrams_received") << " of " << flood.sent() << " taken in, "
              << Change(before, after, "retries_sent") << " retries, memory " << (peak - memory) / 1024
              << " KiB more\n";
    // That it was a flood: sent, taken in by the server, and answered with what is meant for it.
    EXPECT_GT(flood.per_second(), 10'000 / kSlowness);
    EXPECT_GT(Change(before, after, "datagrams_received"), 10'000 / kSlowness);
    EXPECT_GT(Dropped(after) - Dropped(before) + Change(before, after, "retries_sent") +
                  Change(before, after, "retries_limited"),
              10'000 / kSlowness);
    EXPECT_GT(rounds, 3);
    EXPECT_LE(peak - memory, kFlatBytes);
    EXPECT_LE(after["endpoint"].value("half_open", 999), 64);
    EXPECT_EQ(Change(before, after, "accepted"), questions + 1) << "nobody but who asked for the status";
    (void)flood.socket().Receive(milliseconds(10));
    ExpectNoAmplifier(flood.socket());
    Round();
    FinishPair();
  }
};

// Would gain: the server's processor, so that rounds stop.
TEST_F(FloodTest, OfInitsThatNoKeyHasMade) {
  std::vector<Bytes> inits;
  for (uint64_t i = 0; i < 1024; ++i) inits.push_back(NoiseInit(0x1000 + i));
  ExpectJobUnderFlood(std::move(inits));
}

// Would gain: that no worker at the address that the noise claims to be from can join. (This flood comes in
// bursts, between which a newcomer may have luck even without a cookie; tests/transport has one without
// pauses.)
TEST_F(FloodTest, InANewcomersNameDoesNotKeepItOut) {
  StartTarget();
  StartPair();
  Round();
  const nlohmann::json before = AskServer();
  std::vector<Bytes> inits;
  for (uint64_t i = 0; i < 1024; ++i) inits.push_back(NoiseInit(0x1000 + i));
  Flood flood(port(),
              {.per_second = 30'000.0 / kSlowness,
               .hosts = 1,
               .first_host = kProbeIndex,
               .datagrams = std::move(inits)},
              seconds(30));
  ASSERT_TRUE(e2e::Eventually([&] { return flood.sent() > 10'000; })) << "the address has nothing left";
  for (int i = 0; i < 5; ++i) {
    Round();
    (void)AskServer();  // a newcomer
  }
  const nlohmann::json during = AskServer();
  flood.Stop();
  EXPECT_GE(Change(before, during, "failures_limited"), 1000) << "too slow a flood";
  EXPECT_GE(Change(before, during, "retries_sent"), 1000);
  EXPECT_EQ(Change(before, during, "accepted"), 6) << "who asked, and nobody else";
  (void)flood.socket().Receive(milliseconds(10));
  ExpectNoAmplifier(flood.socket());
  FinishPair();
}

// The worst that an insider, or an attacker with recorded INITs, can do from outside: they open.
TEST_F(FloodTest, OfInitsThatOpen) {
  Forger forger(key_file());
  std::vector<Bytes> inits;
  for (uint64_t i = 0; i < 1024; ++i) inits.push_back(forger.Init(0x1000 + i));
  ExpectJobUnderFlood(std::move(inits));
}

}  // namespace
}  // namespace longhaul::attack
