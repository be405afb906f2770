#include "server/tensor/shift_epochs.h"

#include <gtest/gtest.h>

namespace longhaul::server {
namespace {

TEST(ShiftEpochs, AChangeIsAnnouncedForOneWholeRound) {
  ShiftEpochs epochs(true, 2);
  epochs.Begin({true, true});
  EXPECT_EQ(epochs.epoch(), 0u);
  epochs.OnMemberChanged(1);  // during round 4
  EXPECT_EQ(epochs.change_round(), 0u);
  EXPECT_FALSE(epochs.OnRoundBegins(5));
  EXPECT_EQ(epochs.change_round(), 6u);
  EXPECT_TRUE(epochs.Takes(0, 0));
  EXPECT_TRUE(epochs.OnRoundBegins(6));
  epochs.Begin({true, false});
  EXPECT_EQ(epochs.epoch(), 1u);
  EXPECT_EQ(epochs.change_round(), 0u);
  EXPECT_FALSE(epochs.OnRoundBegins(7));
  EXPECT_EQ(epochs.change_round(), 0u);
}

TEST(ShiftEpochs, OnlyMembersOfTheEpochsBeginningCountAndOnlyInTheirEpoch) {
  ShiftEpochs epochs(true, 3);
  epochs.Begin({true, true, false});
  EXPECT_TRUE(epochs.Takes(0, 0));
  EXPECT_FALSE(epochs.Takes(0, 1));
  EXPECT_FALSE(epochs.Takes(2, 0));
  epochs.OnMemberChanged(2);  // joins
  epochs.OnMemberChanged(1);  // is replaced: the new incarnation knows no shift
  EXPECT_FALSE(epochs.Takes(2, 0));
  EXPECT_FALSE(epochs.Takes(1, 0));
  EXPECT_FALSE(epochs.OnRoundBegins(1));
  EXPECT_TRUE(epochs.OnRoundBegins(2));
  epochs.Begin({true, true, true});
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(epochs.Takes(rank, 1));
    EXPECT_FALSE(epochs.Takes(rank, 0));
  }
}

TEST(ShiftEpochs, AChangeBetweenAnnouncementAndBeginningNeedsNoSecondEpoch) {
  ShiftEpochs epochs(true, 2);
  epochs.Begin({true, true});
  epochs.OnMemberChanged(0);
  EXPECT_FALSE(epochs.OnRoundBegins(1));
  epochs.OnMemberChanged(1);
  EXPECT_TRUE(epochs.OnRoundBegins(2));
  epochs.Begin({true, true});
  EXPECT_FALSE(epochs.OnRoundBegins(3));
  EXPECT_EQ(epochs.change_round(), 0u);
}

TEST(ShiftEpochs, AChangeInTheFirstRoundOfAnEpochIsAnnouncedInTheNext) {
  ShiftEpochs epochs(true, 1);
  epochs.Begin({true});
  epochs.OnMemberChanged(0);
  EXPECT_FALSE(epochs.OnRoundBegins(1));
  EXPECT_TRUE(epochs.OnRoundBegins(2));
  epochs.Begin({true});
  epochs.OnMemberChanged(0);
  EXPECT_FALSE(epochs.OnRoundBegins(3));
  EXPECT_EQ(epochs.change_round(), 4u);
  EXPECT_TRUE(epochs.OnRoundBegins(4));
}

TEST(ShiftEpochs, PoliciesWithoutEpochsTakeEverything) {
  ShiftEpochs epochs(false, 1);
  epochs.OnMemberChanged(0);
  EXPECT_FALSE(epochs.OnRoundBegins(1));
  EXPECT_EQ(epochs.change_round(), 0u);
  EXPECT_TRUE(epochs.Takes(0, 17));
}

}  // namespace
}  // namespace longhaul::server
