#include "server/tensor/patience.h"

#include <gtest/gtest.h>

#include <chrono>

#include "server/tensor/stragglers.h"

namespace longhaul::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr Duration kIdle = seconds(10);
const Instant kTurn = Instant::FromNanoseconds(5'000'000'000);

// Rounds in which each worker takes so long.
void Teach(Patience& patience, const std::vector<Duration>& turns, uint32_t rounds = Patience::kEnough) {
  for (uint32_t round = 0; round < rounds; ++round) {
    for (uint32_t rank = 0; rank < turns.size(); ++rank) patience.OnTurn(rank, turns[rank]);
  }
}

Duration Waits(const Patience& patience, uint32_t rank, Duration begun = Duration(0), uint64_t bytes = 0) {
  return patience.Deadline(rank, kTurn, kTurn + begun, bytes) - kTurn;
}

TEST(Patience, WithoutAFactorARoundWaitsForEver) {
  Patience none(0, kIdle, 2);
  Teach(none, {seconds(1), seconds(1)});
  EXPECT_TRUE(none.Deadline(0, kTurn, kTurn, 0).IsInfinite());
}

TEST(Patience, TheFirstRoundsHaveTenMinutesAndTheTimeForTheModel) {
  const Patience patience(4, kIdle, 2);
  EXPECT_EQ(Waits(patience, 1), minutes(10));
  EXPECT_EQ(Waits(patience, 1, Duration(0), 125'000'000 / 8), minutes(10) + seconds(1000)) << "125 Mbit";
  // Who computes for an hour before its first push may have a peer that takes four more.
  EXPECT_EQ(Waits(patience, 1, std::chrono::hours(1)), std::chrono::hours(5));
}

TEST(Patience, AWorkerThatDoesNothingIsWaitedForTwoMinutesWhenTheJobIsQuick) {
  Patience patience(4, kIdle, 4);
  Teach(patience, {seconds(1), seconds(1), seconds(1), seconds(1)});
  EXPECT_EQ(Waits(patience, 3), minutes(2));
  EXPECT_EQ(Waits(patience, 3, seconds(1)), minutes(2) + seconds(1)) << "from the first window on";
}

TEST(Patience, AJobThatIsSlowHasThePaceOfItsWorkers) {
  Patience patience(4, kIdle, 3);
  Teach(patience, {minutes(60), minutes(61), minutes(72)}, 60);
  EXPECT_GE(Waits(patience, 2, minutes(60)), minutes(240));
  EXPECT_LE(Waits(patience, 2, minutes(60)), minutes(300));
}

TEST(Patience, OneThatIsAlwaysSlowerHasItsOwnTime) {
  Patience patience(4, kIdle, 2);
  Teach(patience, {seconds(1), seconds(100)}, 20);
  EXPECT_GE(Waits(patience, 1), seconds(390));
}

// An evaluation, a checkpoint: once in a hundred rounds.
TEST(Patience, OneThatIsSlowNowAndThenHasThatTimeForRoundsToCome) {
  Patience patience(4, kIdle, 2);
  Teach(patience, {seconds(1), seconds(1)}, 20);
  patience.OnTurn(1, seconds(110));
  Teach(patience, {seconds(1), seconds(1)}, 100);
  EXPECT_GE(Waits(patience, 1), seconds(190));
  Teach(patience, {seconds(1), seconds(1)}, 400);
  EXPECT_EQ(Waits(patience, 1), minutes(2)) << "and not for ever";
}

// Else a worker that comes at the last moment has four times as long in the next round, and then sixteen.
TEST(Patience, NobodyEarnsMoreThanTenMinutesByBeingLate) {
  Patience patience(4, kIdle, 4);
  Teach(patience, {seconds(1), seconds(1), seconds(1), seconds(1)});
  Duration longest{0};
  for (int round = 0; round < 50; ++round) {
    longest = Waits(patience, 3);
    patience.OnTurn(3, longest - milliseconds(1));
    for (uint32_t rank = 0; rank < 3; ++rank) patience.OnTurn(rank, seconds(1));
  }
  EXPECT_LE(longest, minutes(10) + seconds(10));
  EXPECT_GT(longest, minutes(9)) << "it is a slow worker, not an idle one";
  EXPECT_EQ(Waits(patience, 0), minutes(2)) << "and that changes nothing for the others";
}

TEST(Patience, AMinorityDoesNotMakeTheOthersLate) {
  Patience patience(4, kIdle, 4);
  Teach(patience, {minutes(5), minutes(5), minutes(5), milliseconds(1)}, 60);
  EXPECT_GE(Waits(patience, 0), minutes(15)) << "whoever begins early";
}

// Ten million turns are as long as a year.
TEST(PatienceFactor, IsBoundedInTime) {
  Patience patience(1e7, seconds(10), 2);
  Stragglers stragglers(1e12, Duration(0), 2);
  for (int i = 0; i < 40; ++i) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      patience.OnTurn(rank, std::chrono::hours(3));
      stragglers.OnHighDone(rank, std::chrono::hours(3));
    }
  }
  const Instant turn = kTurn;
  EXPECT_GT(patience.Deadline(0, turn, turn, 0) - turn, std::chrono::hours(24 * 364));
  EXPECT_GT(stragglers.Deadline(turn, Duration(0), 1, 2) - turn, std::chrono::hours(24 * 364));
}

}  // namespace
}  // namespace longhaul::server
