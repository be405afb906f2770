#include "transport/core/rate/round_memory.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"

namespace longhaul::transport {
namespace {

const PathHinge kModel = [] {
  PathHinge h;
  h.floor = 0.1;
  h.capacity = 100;
  h.noise = 0.09;
  return h;
}();

RememberedRound Round(double sent, double yield, double packets = 100) {
  return {.sent = sent, .yield = yield, .loss = 0.1, .packets = packets};
}

TEST(RoundMemory, KeepsTheNewestOfEachPhase) {
  RoundMemory memory;
  for (int i = 0; i < 100; ++i) memory.Add(RatePhase::kCruise, Round(100 + i, 0.9), std::nullopt);
  memory.Add(RatePhase::kUp, Round(125, 0.7), std::nullopt);
  ASSERT_EQ(memory.Of(RatePhase::kCruise).size(), RoundMemory::kRoundsPerPhase);
  EXPECT_EQ(memory.Of(RatePhase::kCruise).front().sent, 100 + 100 - 48);
  EXPECT_EQ(memory.Of(RatePhase::kCruise).back().sent, 199);
  EXPECT_EQ(memory.Of(RatePhase::kUp).size(), 1u);
  EXPECT_EQ(memory.size(), RoundMemory::kRoundsPerPhase + 1);
}

TEST(RoundMemory, NothingOutlivesTheBoundOfAge) {
  RoundMemory memory;
  memory.Add(RatePhase::kUp, Round(125, 0.7), std::nullopt);
  for (uint64_t i = 0; i < RoundMemory::kMaxAge; ++i)
    memory.Add(RatePhase::kCruise, Round(100, 0.9), std::nullopt);
  EXPECT_EQ(memory.Of(RatePhase::kUp).size(), 1u);
  memory.Add(RatePhase::kCruise, Round(100, 0.9), std::nullopt);
  EXPECT_EQ(memory.Of(RatePhase::kUp).size(), 0u);
}

TEST(RoundMemory, AChangeForgetsWhatWasBeforeIt) {
  RoundMemory memory;
  for (int i = 0; i < 40; ++i) memory.Add(RatePhase::kCruise, Round(100, 0.9), kModel);
  memory.Add(RatePhase::kUp, Round(125, 0.72), kModel);
  EXPECT_FALSE(memory.InDoubt());
  int rounds = 0;
  for (; memory.changes() == 0 && rounds < 10; ++rounds)
    memory.Add(RatePhase::kCruise, Round(100, 0.45), kModel);
  EXPECT_EQ(rounds, 3) << "three rounds at the bound of one round's deviation";
  EXPECT_EQ(memory.Of(RatePhase::kCruise).size(), 3u) << "those since the change, no other";
  EXPECT_EQ(memory.Of(RatePhase::kUp).size(), 0u);
  EXPECT_FALSE(memory.InDoubt());
}

TEST(RoundMemory, OneStalledRoundIsNoChange) {
  RoundMemory memory;
  for (int i = 0; i < 40; ++i) memory.Add(RatePhase::kCruise, Round(100, 0.9), kModel);
  memory.Add(RatePhase::kCruise, Round(100, 0.0, 1e6), kModel);
  for (int i = 0; i < 40; ++i) memory.Add(RatePhase::kCruise, Round(100, 0.9), kModel);
  EXPECT_EQ(memory.changes(), 0u);
}

TEST(RoundMemory, WithoutAModelThereIsNothingToContradict) {
  RoundMemory memory;
  Random random(3);
  for (int i = 0; i < 500; ++i) memory.Add(RatePhase::kCruise, Round(100, random.Uniform()), std::nullopt);
  EXPECT_EQ(memory.changes(), 0u);
}

TEST(RoundMemory, ChanceAloneIsNoChange) {
  // 40 paths of 500 rounds that are as the model says.
  uint64_t changes = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    RoundMemory memory;
    for (int i = 0; i < 500; ++i) {
      const auto phase = static_cast<RatePhase>(random.Below(3));
      const double s = phase == RatePhase::kUp ? 125 : phase == RatePhase::kDown ? 90 : 99;
      int arrived = 0;
      for (int p = 0; p < 60; ++p) arrived += random.Chance(0.9) ? 1 : 0;
      memory.Add(phase, Round(s, arrived / 60.0 * std::min(1.0, 100 / s), 60), kModel);
    }
    changes += memory.changes();
  }
  EXPECT_LE(changes, 2u) << "of 20000 rounds";
}

}  // namespace
}  // namespace longhaul::transport
