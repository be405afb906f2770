// Who waits where, and how many names each member may open.
#include "server/job/barriers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace longhaul::server {
namespace {

using testing::HasSubstr;

constexpr size_t kMost = Barriers::kMaxPerMember;

std::string Junk(size_t i) { return "junk" + std::to_string(i); }

// Opens as many as it may.
void Hoard(Barriers& barriers, uint32_t rank) {
  for (uint32_t i = 0; i < kMost; ++i) {
    ASSERT_TRUE(barriers.Wait(Junk(rank * kMost + i), {rank, i}, Instant()).ok()) << i;
  }
}

TEST(Barriers, OneThatHoardsIsRefusedByNameAndTheOthersAreNot) {
  Barriers barriers(4);
  Hoard(barriers, 2);
  const Status refused = barriers.Wait("one more", {2, 99}, Instant());
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("worker rank 2 holds 64 of 64 barriers"));
  EXPECT_TRUE(barriers.Wait("epoch", {0, 1}, Instant()).ok()) << "the honest one who comes next";
  EXPECT_TRUE(barriers.Wait("epoch", {2, 100}, Instant()).ok()) << "what another has opened can be joined";
}

TEST(Barriers, TwoThatHoardTakeNothingFromTheOthersEither) {
  Barriers barriers(4);
  Hoard(barriers, 2);
  Hoard(barriers, 3);
  for (uint32_t i = 0; i < kMost; ++i) {
    EXPECT_TRUE(barriers.Wait(Junk(2 * kMost + i), {3, 100 + i}, Instant()).ok());
  }
  Hoard(barriers, 0);
}

// Else a member that starts its process again and again has as many names as it likes, kept alive by another.
TEST(Barriers, ANameCountsForTheRankThatOpenedItAlsoWhenItsProcessIsGone) {
  Barriers barriers(4);
  Hoard(barriers, 2);
  for (uint32_t i = 0; i < kMost; ++i)
    ASSERT_TRUE(barriers.Wait(Junk(2 * kMost + i), {3, i}, Instant()).ok());
  barriers.Forget(2);
  EXPECT_EQ(barriers.Wait("one more", {2, 1}, Instant()).code(), StatusCode::kResourceExhausted);
  barriers.Forget(3);
  EXPECT_TRUE(barriers.Wait("one more", {2, 1}, Instant()).ok()) << "nobody waits there any more";
}

TEST(Barriers, WhatIsReleasedOrGivenUpCountsForNobody) {
  Barriers barriers(2);
  for (size_t round = 0; round < 3 * kMost; ++round) {
    ASSERT_TRUE(barriers.Wait("epoch", {0, 1}, Instant()).ok()) << round;
    ASSERT_TRUE(barriers.Wait("epoch", {1, 2}, Instant()).ok()) << round;
    EXPECT_EQ(barriers.Release(2).size(), 2u);
    ASSERT_TRUE(barriers.Wait("alone", {0, 3}, Instant()).ok()) << round;
    EXPECT_EQ(barriers.GiveUp({0, 3})->first, "alone");
  }
  EXPECT_EQ(barriers.Fullest(), nullptr);
}

// What is said of a wait names the missing ranks: a name that one member opens for itself must not hide the
// others'.
TEST(Barriers, TheOneWhereMostWaitIsSaid) {
  Barriers barriers(4);
  ASSERT_TRUE(barriers.Wait("junk", {3, 1}, Instant()).ok());
  ASSERT_TRUE(barriers.Wait("epoch", {0, 1}, Instant() + std::chrono::seconds(1)).ok());
  EXPECT_EQ(barriers.Fullest()->first, "junk") << "opened first";
  ASSERT_TRUE(barriers.Wait("epoch", {1, 1}, Instant() + std::chrono::seconds(2)).ok());
  EXPECT_EQ(barriers.Fullest()->first, "epoch");
}

TEST(Barriers, WhoGivesUpIsNotCountedAmongThoseWhoHaveArrived) {
  Barriers barriers(2);
  ASSERT_TRUE(barriers.Wait("epoch", {0, 1}, Instant()).ok());
  EXPECT_FALSE(barriers.GiveUp({0, 2}));
  EXPECT_FALSE(barriers.GiveUp({1, 1}));
  ASSERT_TRUE(barriers.GiveUp({0, 1}));
  ASSERT_TRUE(barriers.Wait("epoch", {1, 1}, Instant()).ok());
  EXPECT_TRUE(barriers.Release(2).empty());
}

TEST(Barriers, WaitingTwiceAtOneIsRefused) {
  Barriers barriers(2);
  ASSERT_TRUE(barriers.Wait("epoch", {0, 1}, Instant()).ok());
  EXPECT_EQ(barriers.Wait("epoch", {0, 2}, Instant()).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(barriers.Release(2).empty()) << "it is one worker";
}

TEST(Barriers, InLargeJobsAllOfThemTogetherAreBounded) {
  EXPECT_EQ(Barriers::MaxPerMember(1), 64u);
  EXPECT_EQ(Barriers::MaxPerMember(64), 64u);
  EXPECT_EQ(Barriers::MaxPerMember(1024), 4u);
}

}  // namespace
}  // namespace longhaul::server
