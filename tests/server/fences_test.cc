#include "server/member/fences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace longhaul::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

TEST(Fences, TheLastOfARankAreRemembered) {
  Fences fences(2);
  EXPECT_FALSE(fences.IsKnown(1));
  for (uint64_t session = 1; session <= Fences::kMost + 3; ++session) fences.OnJoined(1, session);
  EXPECT_TRUE(fences.IsKnown(1));
  EXPECT_THAT(fences.replaced(1), ElementsAre(3, 4, 5, 6, 7, 8, 9, 10));
  EXPECT_TRUE(fences.MayJoin(1, 2).ok()) << "forgotten";
  EXPECT_EQ(fences.MayJoin(1, 3).code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(fences.MayJoin(1, 11).ok()) << "it has the rank";
  EXPECT_THAT(fences.replaced(0), IsEmpty());
}

TEST(Fences, AWorkerWithoutASessionIsNotRefused) {
  Fences fences(1);
  for (const uint64_t session : {5, 0, 5}) fences.OnJoined(0, session);
  EXPECT_TRUE(fences.MayJoin(0, 0).ok());
}

TEST(Fences, WhatAServerLeftIsBoundedToo) {
  Fences fences(1);
  fences.Restore({});
  EXPECT_FALSE(fences.IsKnown(0));
  fences.Restore({{.last = 9, .replaced = std::vector<uint64_t>(100, 4)}});
  EXPECT_THAT(fences.replaced(0), SizeIs(Fences::kMost));
  EXPECT_FALSE(fences.MayJoin(0, 4).ok());
}

// One tensor has been pushed by the successor, the other one has not.
TEST(Fences, ARanksLastSessionIsTheOneThatNoTensorSaysWasReplaced) {
  const TensorImage old{.name = "v", .counted = {{.session = 1}, {.session = 20, .replaced = {10}}}};
  const TensorImage later{.name = "w", .counted = {{.session = 1}, {.session = 30, .replaced = {10, 20}}}};
  for (const auto& tensors : {std::vector{old, later}, std::vector{later, old}}) {
    const auto sessions = SessionsOf(tensors, 2);
    ASSERT_EQ(sessions.size(), 2u);
    EXPECT_EQ(sessions[0], (RankSessions{.last = 1}));
    EXPECT_EQ(sessions[1], (RankSessions{.last = 30, .replaced = {10, 20}}));
  }
  EXPECT_THAT(SessionsOf({}, 3), SizeIs(3));
}

}  // namespace
}  // namespace longhaul::server
