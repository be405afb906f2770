#include "server/tensor/clocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace longhaul::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Clocks Of(int32_t staleness, uint32_t ranks) {
  Clocks clocks(staleness, ranks);
  for (uint32_t rank = 0; rank < ranks; ++rank) clocks.OnMemberJoined(rank);
  return clocks;
}

TEST(Clocks, AWorkerMayGoOnWhileItIsAtMostTheStalenessAheadOfTheSlowest) {
  Clocks clocks = Of(2, 3);
  for (int push = 0; push < 2; ++push) {
    clocks.Advance(0);
    EXPECT_TRUE(clocks.MayGoOn(0)) << push;
  }
  clocks.Advance(0);
  EXPECT_FALSE(clocks.MayGoOn(0));
  EXPECT_THAT(clocks.Behind(1), ElementsAre(1, 2));
  clocks.Advance(1);
  EXPECT_FALSE(clocks.MayGoOn(0)) << "the slowest has not moved";
  EXPECT_TRUE(clocks.MayGoOn(1));
  clocks.Advance(2);
  EXPECT_TRUE(clocks.MayGoOn(0));
  EXPECT_THAT(clocks.Behind(1), IsEmpty());
  EXPECT_EQ(clocks.Slowest(), 1u);
  EXPECT_EQ(clocks.Fastest(), 3u);
}

TEST(Clocks, WithoutABoundAllMayGoOn) {
  Clocks clocks = Of(Clocks::kNoBound, 2);
  for (int push = 0; push < 1000; ++push) clocks.Advance(0);
  EXPECT_TRUE(clocks.MayGoOn(0));
}

TEST(Clocks, AMemberThatIsGoneHoldsNoOneAndOneThatComesBeginsWhereTheSlowestIs) {
  Clocks clocks = Of(1, 3);
  for (int push = 0; push < 5; ++push) clocks.Advance(0);
  for (int push = 0; push < 4; ++push) clocks.Advance(1);
  EXPECT_FALSE(clocks.MayGoOn(0));
  clocks.OnMemberGone(2);
  EXPECT_TRUE(clocks.MayGoOn(0));
  EXPECT_EQ(clocks.members(), 2u);
  clocks.OnMemberJoined(2);
  EXPECT_EQ(clocks.of(2), 4u);
  EXPECT_TRUE(clocks.MayGoOn(0)) << "a newcomer does not hold the others at once";
  EXPECT_TRUE(clocks.MayGoOn(2));
}

TEST(Clocks, WithoutAMemberNothingIsSlow) {
  Clocks clocks(0, 2);
  EXPECT_EQ(clocks.Slowest(), 0u);
  EXPECT_EQ(clocks.Fastest(), 0u);
  clocks.Restore(1, 7);
  clocks.OnMemberJoined(1);
  EXPECT_EQ(clocks.of(1), 7u) << "an earlier server has counted them";
}

}  // namespace
}  // namespace longhaul::server
