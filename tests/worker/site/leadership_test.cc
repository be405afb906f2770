// Who leads a site of several nodes, in virtual time: beats that arrive, and silence.
#include "worker/site/leadership.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <vector>

namespace longhaul::site {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kSilence = seconds(1);

// Relays whose beats all arrive, unless a node is cut off.
class Relays : public ::testing::Test {
 protected:
  explicit Relays(uint8_t nodes = 3) {
    for (uint8_t node = 0; node < nodes; ++node) Start(node, nodes);
  }
  void Start(uint8_t node, uint8_t nodes = 3) {
    if (relays_.size() <= node) relays_.resize(node + 1u);
    relays_[node].emplace(node, nodes, ++sessions_, kSilence, now_);
  }
  // Beats of all for so long; who claims is noted.
  void Run(Duration time) {
    for (const Instant end = now_ + time; now_ < end; now_ = now_ + Leadership::kBeatEvery) {
      for (uint8_t from = 0; from < relays_.size(); ++from) {
        if (!relays_[from] || stopped_ == from) continue;
        relays_[from]->OnLook(now_);
        if (relays_[from]->Claim(now_)) claims_.push_back(from);
        const SiteMessage beat = relays_[from]->Beat({.ranks = uint64_t{3} << 2 * from});
        for (uint8_t to = 0; to < relays_.size(); ++to) {
          if (to == from || !relays_[to] || cut_ == from || cut_ == to || stopped_ == to) continue;
          restarts_ += relays_[to]->OnBeat(beat, now_);
        }
      }
    }
  }
  uint64_t LeaderOf(uint8_t node) const { return relays_[node]->leader(); }

  Instant now_ = Instant() + seconds(100);
  std::vector<std::optional<Leadership>> relays_;
  std::optional<uint8_t> cut_;
  std::optional<uint8_t> stopped_;
  std::vector<uint8_t> claims_;
  int restarts_ = 0;
  uint64_t sessions_ = 0;
};

TEST_F(Relays, TheFirstNodeLeadsAtTheStart) {
  Run(milliseconds(300));
  EXPECT_EQ(claims_, (std::vector<uint8_t>{0})) << "as soon as it has heard all others";
  for (uint8_t node = 0; node < 3; ++node) EXPECT_EQ(LeaderOf(node), LeadershipOf(1, 0));
  EXPECT_TRUE(relays_[0]->leads());
  EXPECT_FALSE(relays_[1]->leads());
  EXPECT_EQ(relays_[2]->ranks(1), uint64_t{3} << 2);
  Run(seconds(10));
  EXPECT_EQ(claims_.size(), 1u);
}

TEST_F(Relays, WhereOneIsNotThereYetTheFirstWaitsForTheSilence) {
  relays_[2].reset();
  Run(milliseconds(900));
  EXPECT_TRUE(claims_.empty());
  Run(milliseconds(300));
  EXPECT_EQ(claims_, (std::vector<uint8_t>{0}));
}

TEST_F(Relays, TheLowestThatLivesTakesOver) {
  Run(seconds(1));
  relays_[0].reset();
  Run(milliseconds(900));
  EXPECT_EQ(claims_.size(), 1u) << "silence is no death before its time";
  Run(milliseconds(400));
  EXPECT_EQ(claims_, (std::vector<uint8_t>{0, 1}));
  EXPECT_EQ(LeaderOf(2), LeadershipOf(2, 1));
  EXPECT_EQ(relays_[1]->alive(now_), 6u);
  relays_[1].reset();
  Run(seconds(2));
  EXPECT_EQ(claims_, (std::vector<uint8_t>{0, 1, 2}));
}

TEST_F(Relays, ADeadNodeThatDoesNotLeadChangesNothing) {
  Run(seconds(1));
  relays_[1].reset();
  Run(seconds(3));
  EXPECT_EQ(claims_.size(), 1u);
  EXPECT_EQ(relays_[0]->alive(now_), 5u);
}

TEST_F(Relays, ALeaderThatWasCutOffYieldsToItsSuccessor) {
  Run(seconds(1));
  cut_ = 0;
  Run(seconds(2));
  EXPECT_EQ(claims_, (std::vector<uint8_t>{0, 1}));
  EXPECT_TRUE(relays_[0]->leads()) << "it cannot know";
  cut_.reset();
  Run(milliseconds(200));
  EXPECT_FALSE(relays_[0]->leads());
  EXPECT_EQ(LeaderOf(0), LeadershipOf(2, 1));
  Run(seconds(3));
  EXPECT_EQ(claims_.size(), 2u) << "and does not take it back";
}

// What the others have said meanwhile is not read yet when it goes on.
TEST_F(Relays, OneThatWasStoppedItselfTakesNoOtherForDead) {
  Run(seconds(1));
  stopped_ = 1;
  Run(seconds(2));
  EXPECT_TRUE(relays_[1]->OnLook(now_));
  EXPECT_EQ(relays_[1]->alive(now_), 7u);
  EXPECT_FALSE(relays_[1]->Claim(now_));
  EXPECT_FALSE(relays_[1]->OnLook(now_ + Leadership::kBeatEvery)) << "once";
  relays_[0].reset();
  stopped_.reset();
  Run(seconds(2));
  EXPECT_EQ(claims_, (std::vector<uint8_t>{0, 1})) << "who stays silent is dead";
  // The lowest node, where another one leads.
  Start(0);
  Run(seconds(1));
  stopped_ = 0;
  Run(seconds(2));
  EXPECT_TRUE(relays_[0]->OnLook(now_));
  EXPECT_FALSE(relays_[0]->Claim(now_));
}

TEST_F(Relays, ALeaderThatIsRestartedDoesNotTakeUpItsPredecessorsLeadership) {
  Run(seconds(1));
  Start(0);
  Run(milliseconds(300));
  EXPECT_EQ(restarts_, 2) << "both others see that it is another process";
  EXPECT_EQ(claims_, (std::vector<uint8_t>{0, 0}));
  EXPECT_EQ(LeaderOf(2), LeadershipOf(2, 0)) << "a higher one, of the lowest node";
}

TEST_F(Relays, OneThatResignsIsFollowedAtOnce) {
  Run(seconds(1));
  for (uint8_t node = 1; node < 3; ++node) {
    relays_[node]->OnBeat(relays_[0]->Beat({.resigns = true}), now_);
  }
  EXPECT_FALSE(relays_[2]->Claim(now_));
  EXPECT_TRUE(relays_[1]->Claim(now_));
  EXPECT_TRUE(relays_[1]->resigned());
  relays_[0]->OnBeat(relays_[1]->Beat({}), now_);
  EXPECT_FALSE(relays_[0]->leads());
}

TEST_F(Relays, OneThatComesBackStandsBy) {
  Run(seconds(1));
  relays_[0].reset();
  Run(seconds(2));
  Start(0);
  Run(seconds(3));
  EXPECT_EQ(claims_, (std::vector<uint8_t>{0, 1}));
  EXPECT_EQ(LeaderOf(0), LeadershipOf(2, 1));
}

TEST_F(Relays, WhatALeaderKnewItsSuccessorKnows) {
  Run(seconds(1));
  relays_[0]->SetIncarnation(41);
  relays_[1]->OnBeat(relays_[0]->Beat({.complete = true, .any_left = true}), now_);
  relays_[0].reset();
  Run(seconds(2));
  EXPECT_EQ(relays_[1]->incarnation(), 41u);
  EXPECT_TRUE(relays_[2]->complete());
  EXPECT_TRUE(relays_[2]->any_left());
}

// The leader knows the server's idle time-out.
TEST_F(Relays, TheShortestSilenceThatOneKnowsCountsForAll) {
  Run(milliseconds(300));
  relays_[0]->LimitSilence(milliseconds(600));
  Run(milliseconds(200));
  EXPECT_EQ(relays_[2]->silence(), milliseconds(600));
  relays_[2]->LimitSilence(Duration(1));
  EXPECT_EQ(relays_[2]->silence(), Leadership::SilenceOf(Duration(0)));
}

TEST_F(Relays, ABeatThatWasOvertakenIsNone) {
  const SiteMessage first = relays_[1]->Beat({.ranks = 0});
  relays_[0]->OnBeat(relays_[1]->Beat({.ranks = 4}), now_);
  relays_[0]->OnBeat(first, now_);
  EXPECT_EQ(relays_[0]->ranks(1), 4u);
}

TEST_F(Relays, BeatsOfNodesThatTheSiteDoesNotHaveAreNone) {
  SiteMessage beat = relays_[1]->Beat({});
  beat.leader = LeadershipOf(9, 5);
  for (const uint8_t node : {uint8_t{0}, uint8_t{3}, uint8_t{63}}) {
    beat.rank = node;
    relays_[0]->OnBeat(beat, now_);
  }
  EXPECT_EQ(relays_[0]->alive(now_), 1u);
  EXPECT_EQ(LeaderOf(0), 0u);
}

TEST(Leadership, ASiteOfOneNodeIsLedAtOnce) {
  const Instant now = Instant() + seconds(5);
  Leadership only(0, 1, 7, kSilence, now);
  EXPECT_TRUE(only.Claim(now));
  EXPECT_FALSE(only.Claim(now));
  EXPECT_EQ(Leadership::SilenceOf(seconds(30)), seconds(10));
  EXPECT_EQ(Leadership::SilenceOf(milliseconds(300)), milliseconds(500)) << "five beats";
}

TEST(SiteShape, RanksAreNumberedNodeAfterNode) {
  const SiteShape shape{3, 2};
  EXPECT_EQ(shape.IndexOf({2, 1}), 5);
  EXPECT_EQ(shape.PlaceOf(5).node, 2);
  EXPECT_EQ(shape.PlaceOf(5).slot, 1);
  EXPECT_EQ(shape.RanksOf(1), 0b001100u);
  EXPECT_EQ(shape.SlotsOf(0b101000, 1), 0b10u);
  EXPECT_EQ(shape.NodesOf(0b101000), 0b110u);
  EXPECT_EQ(JobOfLeader(LeadershipOf(1, 2)), 0x4012);
}

}  // namespace
}  // namespace longhaul::site
