// Requests of a site's ranks: taken once, answered until they are closed, forgotten with their rank.
#include "worker/site/rank_desk.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace longhaul::site {
namespace {

using std::chrono::seconds;

class Desk : public ::testing::Test {
 protected:
  Desk()
      : desk_(2, [this](uint8_t rank, const SiteMessage& m) { said_.push_back(m), to_.push_back(rank); }) {}
  SiteMessage Ask(uint8_t rank, uint64_t seq, SiteKind kind = SiteKind::kStep) {
    SiteMessage m;
    m.kind = kind;
    m.rank = rank;
    m.session = 10u + rank;
    m.seq = seq;
    return m;
  }
  SiteKind Last() const { return said_.back().kind; }

  std::vector<SiteMessage> said_;
  std::vector<uint8_t> to_;
  RankDesk desk_;
  Instant now_ = Instant() + seconds(100);
};

TEST_F(Desk, ARepeatedRequestIsTakenOnceAndItsAnswerRepeated) {
  desk_.Hello(0, 10, now_);
  EXPECT_TRUE(desk_.Take(Ask(0, 1)));
  EXPECT_EQ(said_.size(), 1u) << "what is taken is acknowledged";
  EXPECT_FALSE(desk_.Take(Ask(0, 1)));
  EXPECT_EQ(said_.size(), 2u);
  EXPECT_EQ(Last(), SiteKind::kPending);
  desk_.End(0, 1, {StatusCode::kAborted, "no"});
  EXPECT_EQ(Last(), SiteKind::kEnd);
  EXPECT_FALSE(desk_.Take(Ask(0, 1)));
  EXPECT_EQ(Last(), SiteKind::kEnd);
  EXPECT_EQ(said_.back().text, "no");
  EXPECT_EQ(said_.back().session, 10u);
}

TEST_F(Desk, AClosedRequestIsNotTakenAgain) {
  desk_.Hello(0, 10, now_);
  EXPECT_TRUE(desk_.Take(Ask(0, 1)));
  EXPECT_TRUE(desk_.Close(0, 1));
  EXPECT_EQ(Last(), SiteKind::kClosed);
  EXPECT_FALSE(desk_.Close(0, 1));
  EXPECT_FALSE(desk_.Take(Ask(0, 1)));
  EXPECT_EQ(Last(), SiteKind::kClosed);
  desk_.End(0, 1, Status::Ok());
  EXPECT_EQ(Last(), SiteKind::kClosed) << "nothing is open";
}

TEST_F(Desk, WhatIsOvertakenIsTakenAllTheSame) {
  desk_.Hello(0, 10, now_);
  EXPECT_TRUE(desk_.Take(Ask(0, 9)));
  EXPECT_TRUE(desk_.Take(Ask(0, 7)));
  EXPECT_FALSE(desk_.Take(Ask(0, 7))) << "once";
  EXPECT_TRUE(desk_.Close(0, 7));
  EXPECT_FALSE(desk_.Take(Ask(0, 7)));
  EXPECT_EQ(Last(), SiteKind::kClosed);
  SiteMessage later = Ask(0, 12);
  later.open_from = 6;
  EXPECT_TRUE(desk_.Take(later));
  EXPECT_FALSE(desk_.Take(Ask(0, 5))) << "the rank has closed it";
  EXPECT_TRUE(desk_.Take(Ask(0, 6)));
  EXPECT_FALSE(desk_.Close(0, 10)) << "given up before it was asked";
  EXPECT_FALSE(desk_.Take(Ask(0, 10)));
}

TEST_F(Desk, ASuccessorExpectsThoseThatWereHere) {
  desk_.Expect(2);
  EXPECT_EQ(desk_.missing_at_start(), 2u);
  desk_.Hello(0, 10, now_);
  EXPECT_FALSE(desk_.complete());
  EXPECT_FALSE(desk_.ExpectNoMore(0)) << "it is here";
  EXPECT_TRUE(desk_.ExpectNoMore(1));
  EXPECT_TRUE(desk_.complete());
  EXPECT_FALSE(desk_.ExpectNoMore(40));
}

TEST_F(Desk, ANewClientOfARankForgetsItsPredecessors) {
  EXPECT_TRUE(desk_.Hello(0, 10, now_));
  EXPECT_FALSE(desk_.Hello(0, 10, now_)) << "it only says that it lives";
  EXPECT_TRUE(desk_.Take(Ask(0, 5)));
  EXPECT_TRUE(desk_.Hello(0, 99, now_));
  EXPECT_FALSE(desk_.IsCurrent(Ask(0, 5), now_)) << "the predecessor's";
  SiteMessage fresh = Ask(0, 1);
  fresh.session = 99;
  EXPECT_TRUE(desk_.IsCurrent(fresh, now_));
  EXPECT_TRUE(desk_.Take(fresh));
}

TEST_F(Desk, TheSiteIsCompleteWhenAllHaveBeenHere) {
  desk_.Hello(1, 11, now_);
  EXPECT_EQ(desk_.missing_at_start(), 1u);
  EXPECT_FALSE(desk_.complete());
  desk_.Hello(0, 10, now_);
  EXPECT_TRUE(desk_.complete());
  desk_.Remove(0, {StatusCode::kPeerDead, "dead"});
  EXPECT_TRUE(desk_.complete());
  EXPECT_EQ(desk_.here(), 2u);
  EXPECT_EQ(desk_.missing_at_start(), 0u);
}

TEST_F(Desk, ARemovedRankIsToldWhy) {
  desk_.Hello(0, 10, now_);
  EXPECT_TRUE(desk_.Take(Ask(0, 1)));
  desk_.Remove(0, {StatusCode::kPeerDead, "silent"});
  EXPECT_FALSE(desk_.IsCurrent(Ask(0, 2), now_));
  EXPECT_EQ(Last(), SiteKind::kFailed);
  EXPECT_EQ(said_.back().text, "silent");
  EXPECT_FALSE(desk_.IsCurrent(Ask(0, 1, SiteKind::kTaken), now_));
  EXPECT_EQ(Last(), SiteKind::kClosed);
}

TEST_F(Desk, ARankThatHasLeftIsAnsweredAgain) {
  desk_.Hello(0, 10, now_);
  desk_.Remove(0, Status::Ok());
  const size_t said = said_.size();
  EXPECT_FALSE(desk_.IsCurrent(Ask(0, 7), now_));
  EXPECT_EQ(said_.size(), said) << "nothing to say to a step of it";
  EXPECT_FALSE(desk_.IsCurrent(Ask(0, 8, SiteKind::kLeave), now_));
  EXPECT_EQ(Last(), SiteKind::kEnd);
  EXPECT_EQ(said_.back().code, StatusCode::kOk);
}

TEST_F(Desk, SilentRanksAreFound) {
  desk_.Hello(0, 10, now_);
  desk_.Hello(1, 11, now_);
  EXPECT_TRUE(desk_.IsCurrent(Ask(1, 1), now_ + seconds(9)));
  EXPECT_EQ(desk_.SilentSince(now_ + seconds(5)), 1u);
  desk_.Remove(0, {StatusCode::kPeerDead, "silent"});
  EXPECT_EQ(desk_.SilentSince(now_ + seconds(5)), 0u);
}

TEST_F(Desk, SilenceIsForgivenWhereTheRelayWasLate) {
  desk_.Hello(0, 10, now_);
  desk_.ForgiveSilence(now_ + seconds(9));
  EXPECT_EQ(desk_.SilentSince(now_ + seconds(5)), 0u);
  EXPECT_EQ(desk_.SilentSince(now_ + seconds(10)), 1u) << "it begins anew";
}

TEST_F(Desk, WhoIsMissingIsSaidToThoseThatAskAgain) {
  desk_.Hello(0, 10, now_);
  EXPECT_TRUE(desk_.Take(Ask(0, 1)));
  desk_.SetMissing(0, 1, 2);
  EXPECT_FALSE(desk_.Take(Ask(0, 1)));
  EXPECT_EQ(said_.back().ranks, 2u);
  desk_.End(0, 1, Status::Ok());
  desk_.SetMissing(0, 1, 2);
  EXPECT_FALSE(desk_.Take(Ask(0, 1)));
  EXPECT_EQ(said_.back().ranks, 0u);
}

TEST_F(Desk, RanksThatTheSiteDoesNotHaveAreNotHere) {
  EXPECT_FALSE(desk_.Hello(2, 12, now_));
  EXPECT_FALSE(desk_.IsCurrent(Ask(2, 1), now_));
  desk_.Remove(40, {StatusCode::kPeerDead, "none"});
  EXPECT_EQ(desk_.here(), 0u);
}

TEST_F(Desk, OpenRequestsOfARankAreBounded) {
  desk_.Hello(0, 10, now_);
  for (uint64_t seq = 1; seq <= RankDesk::kMostOpen; ++seq) ASSERT_TRUE(desk_.Take(Ask(0, seq)));
  EXPECT_FALSE(desk_.Take(Ask(0, RankDesk::kMostOpen + 1)));
  EXPECT_TRUE(desk_.Close(0, 1));
  EXPECT_TRUE(desk_.Take(Ask(0, RankDesk::kMostOpen + 1))) << "it comes again when there is room";
}

}  // namespace
}  // namespace longhaul::site
