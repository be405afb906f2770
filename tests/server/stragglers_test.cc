#include "server/tensor/stragglers.h"

#include <gtest/gtest.h>

#include <chrono>

namespace longhaul::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Instant kBegin = Instant::FromNanoseconds(5'000'000'000);

void Teach(Stragglers& stragglers, uint32_t rank, Duration taken) {
  for (size_t i = 0; i < CloseTimes::kEnough; ++i) stragglers.OnHighDone(rank, taken);
}

TEST(Stragglers, WithoutFactorAndBoundEveryoneIsWaitedFor) {
  Stragglers all(0, Duration(0), 4);
  for (uint32_t rank = 0; rank < 4; ++rank) Teach(all, rank, milliseconds(10));
  EXPECT_TRUE(all.Deadline(kBegin, milliseconds(1), 3, 4).IsInfinite());
}

TEST(Stragglers, ADeadlineIsAMultipleOfWhatTheOthersNeed) {
  Stragglers stragglers(3, Duration(0), 4);
  for (uint32_t rank = 0; rank < 3; ++rank) Teach(stragglers, rank, milliseconds(160));  // soft: 190 ms
  Teach(stragglers, 3, seconds(10));                                                     // one is always slow
  EXPECT_EQ(*stragglers.Usual(), milliseconds(190));
  EXPECT_EQ(stragglers.Deadline(kBegin, milliseconds(1), 3, 4), kBegin + milliseconds(570));
  // A worker behind a long path gets two round trips.
  EXPECT_EQ(stragglers.Deadline(kBegin, milliseconds(400), 3, 4), kBegin + milliseconds(990));
}

TEST(Stragglers, ASlowHalfDoesNotDecideWhatIsUsual) {
  Stragglers stragglers(1, Duration(0), 2);
  Teach(stragglers, 0, milliseconds(160));
  Teach(stragglers, 1, seconds(2));
  EXPECT_EQ(*stragglers.Usual(), milliseconds(190));
}

TEST(Stragglers, NobodyIsAStragglerBeforeHalfOfTheMembersAreDone) {
  Stragglers stragglers(2, Duration(0), 4);
  for (uint32_t rank = 0; rank < 4; ++rank) Teach(stragglers, rank, milliseconds(160));
  EXPECT_TRUE(stragglers.Deadline(kBegin, milliseconds(1), 1, 4).IsInfinite());
  EXPECT_FALSE(stragglers.Deadline(kBegin, milliseconds(1), 2, 4).IsInfinite());
  EXPECT_TRUE(stragglers.Deadline(kBegin, milliseconds(1), 0, 1).IsInfinite());
}

TEST(Stragglers, NobodyIsAStragglerBeforeTheUsualIsKnown) {
  Stragglers stragglers(2, Duration(0), 4);
  Teach(stragglers, 0, milliseconds(160));
  EXPECT_FALSE(stragglers.Usual());
  EXPECT_TRUE(stragglers.Deadline(kBegin, milliseconds(1), 3, 4).IsInfinite());
}

TEST(Stragglers, VeryShortRoundsHaveAGrace) {
  Stragglers stragglers(2, Duration(0), 2);
  for (uint32_t rank = 0; rank < 2; ++rank) Teach(stragglers, rank, Duration(0));
  EXPECT_EQ(stragglers.Deadline(kBegin, Duration(0), 1, 2), kBegin + milliseconds(53));
}

TEST(Stragglers, TheBoundHoldsForEverybodyAndFromTheFirstRoundOn) {
  Stragglers stragglers(0, seconds(1), 4);
  EXPECT_EQ(stragglers.Deadline(kBegin, milliseconds(1), 0, 4), kBegin + seconds(1));
  Stragglers both(100, seconds(1), 2);
  for (uint32_t rank = 0; rank < 2; ++rank) Teach(both, rank, milliseconds(160));
  EXPECT_EQ(both.Deadline(kBegin, milliseconds(1), 1, 2), kBegin + seconds(1));
}

TEST(Stragglers, TheGraceAfterAQuorumIsByHowMuchItsWorkersAreUsuallyApart) {
  Stragglers stragglers(0, Duration(0), 4, 3);
  EXPECT_EQ(stragglers.Grace(3, milliseconds(700)), milliseconds(700)) << "nothing is known: as long again";
  EXPECT_EQ(stragglers.Grace(3, milliseconds(7)), Stragglers::kGrace);
  Teach(stragglers, 0, milliseconds(160));  // soft: 190 ms
  Teach(stragglers, 1, milliseconds(320));  // 380
  EXPECT_EQ(stragglers.Grace(3, milliseconds(700)), milliseconds(700)) << "two are not three";
  Teach(stragglers, 2, milliseconds(480));  // 570
  EXPECT_EQ(stragglers.Grace(3, milliseconds(700)), milliseconds(410)) << "570 - 160";
  Teach(stragglers, 3, seconds(10));
  EXPECT_EQ(stragglers.Grace(3, milliseconds(700)), milliseconds(410)) << "a straggler is not of the quorum";
  EXPECT_EQ(stragglers.Grace(1, milliseconds(700)), Stragglers::kGrace);
}

}  // namespace
}  // namespace longhaul::server
