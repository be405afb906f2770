#include "worker/client/round_alignment.h"

#include <gtest/gtest.h>

namespace longhaul::worker {
namespace {

using Part = RoundAlignment::Part;

TEST(RoundAlignmentTest, APartIsAheadByTheRoundsThatAnotherOneIsBehind) {
  RoundAlignment steps;
  steps.Set(Part(0, 0), 5, 8);
  EXPECT_EQ(steps.Ahead(Part(0, 0)), 0u);
  steps.Set(Part(1, 0), 5, 6);
  EXPECT_EQ(steps.Ahead(Part(0, 0)), 2u);
  EXPECT_EQ(steps.Ahead(Part(1, 0)), 0u);
}

// The first of a step's pushes has begun, the other one has not.
TEST(RoundAlignmentTest, PushesOfOneStepAreInOneRoundWhileSomeHaveNotBegun) {
  RoundAlignment steps;
  steps.Set(Part(0, 0), 6, 9);
  steps.Set(Part(0, 1), 5, 8);
  EXPECT_EQ(steps.Ahead(Part(0, 0)), 0u);
  EXPECT_EQ(steps.Ahead(Part(0, 1)), 0u);
  steps.Set(Part(0, 1), 5, 9);
  EXPECT_EQ(steps.Ahead(Part(0, 1)), 1u);
}

TEST(RoundAlignmentTest, TensorsThatAreNotPushedTogetherAreNoPartsOfAStep) {
  RoundAlignment steps;
  steps.Set(Part(0, 0), 7, 9);
  steps.Set(Part(0, 1), 5, 6);
  EXPECT_EQ(steps.Ahead(Part(0, 0)), 0u) << "pushed more often";
  steps.Set(Part(0, 0), 0, 105);
  steps.Set(Part(0, 1), 0, 10);
  EXPECT_EQ(steps.Ahead(Part(0, 0)), 0u) << "a newcomer to tensors of other rounds";
}

// As a server that lies may say them.
TEST(RoundAlignmentTest, RoundsAtTheEndOfNumbersAreNotNear) {
  RoundAlignment steps;
  steps.Set(Part(0, 0), 0, UINT64_MAX);
  steps.Set(Part(0, 1), 0, 1);
  EXPECT_EQ(steps.Ahead(Part(0, 0)), 0u);
  EXPECT_LE(steps.Ahead(Part(0, 1)), 1u) << "no round is before the first";
}

}  // namespace
}  // namespace longhaul::worker
