#include "server/member/rank_plan.h"

#include <gmock/gmock.h>

#include <map>
#include <random>

namespace longhaul::server {
namespace {

using ::testing::HasSubstr;
using transport::PeerIdentity;

const Address kHost = Address::V4(10, 0, 0, 7, 4000);

PeerIdentity Worker(const std::string& name, std::optional<RankRange> ranks = {}) {
  return {
      .kind = PeerIdentity::Kind::kCertificate, .job = "j", .role = "worker", .name = name, .ranks = ranks};
}

struct Plan : testing::Test {
  void Allow(const std::vector<std::string>& texts) { plan.Replace(AllowList::Parse(texts).value()); }
  // Takes the rank when it may; "" or the refusal.
  std::string Take(const PeerIdentity& who, uint32_t rank, bool held = false) {
    const Status may = plan.MayTake(who, kHost, rank, held);
    if (may.ok()) plan.Take(rank, who, kHost);
    EXPECT_TRUE(may.ok() || may.code() == StatusCode::kPermissionDenied);
    return may.message();
  }

  RankPlan plan{4};
};

// The finding: three members with one certificate took three ranks.
TEST_F(Plan, ACertificateHasOneRank) {
  EXPECT_EQ(Take(Worker("fra"), 0), "");
  EXPECT_THAT(Take(Worker("fra"), 1), HasSubstr("\"fra\" has rank 0 and may not take rank 1 as well"));
  EXPECT_EQ(Take(Worker("fra"), 0, true), "") << "a replacement of itself";
  EXPECT_EQ(Take(Worker("fra"), 0), "") << "after a loss";
  EXPECT_EQ(Take(Worker("nyc"), 1), "");
  EXPECT_EQ(Take(Worker("nyc"), 0), "rank 0 belongs to \"fra\" until the job is over, and this is \"nyc\"");
  plan.GiveBack(0);
  EXPECT_EQ(Take(Worker("fra"), 2), "") << "it has none now";
}

TEST_F(Plan, OneCertificateForSeveralRanksSaysSo) {
  EXPECT_EQ(Take(Worker("nyc", RankRange{1, 3}), 1), "");
  EXPECT_EQ(Take(Worker("nyc", RankRange{1, 3}), 3), "");
  EXPECT_THAT(Take(Worker("nyc", RankRange{1, 3}), 0), HasSubstr("its certificate is for ranks 1-3"));
  EXPECT_THAT(Take(Worker("fra", RankRange{0, 0}), 2), HasSubstr("its certificate is for rank 0"));
}

TEST_F(Plan, TheListSetsRanksAside) {
  Allow({"fra:0", "nyc:1-2", "ams"});
  EXPECT_THAT(Take(Worker("ams"), 0), HasSubstr("rank 0 is set aside for \"fra\""));
  EXPECT_THAT(Take(Worker("fra"), 3), HasSubstr("\"fra\" may not take rank 3: 'allow' says worker/fra:0"));
  EXPECT_THAT(Take(Worker("lon"), 3), HasSubstr("\"lon\" may not take rank 3"));
  EXPECT_EQ(Take(Worker("fra"), 0), "");
  EXPECT_EQ(Take(Worker("nyc"), 1), "");
  EXPECT_EQ(Take(Worker("nyc"), 2), "");
  EXPECT_EQ(Take(Worker("ams"), 3), "");
  // Both sides have to agree: the authority's operator and the server's.
  EXPECT_THAT(Take(Worker("nyc", RankRange{2, 3}), 1), HasSubstr("its certificate is for ranks 2-3"));
}

TEST_F(Plan, ASuccessorWaitsUntilItsPredecessorIsOut) {
  Allow({"fra:0+fra2", "nyc:1"});
  EXPECT_EQ(Take(Worker("fra2"), 0),
            "rank 0 is \"fra\"'s; \"fra2\" may take it when that one is lost, kicked or has left");
  EXPECT_EQ(Take(Worker("fra"), 0), "");
  EXPECT_NE(Take(Worker("fra2"), 0, true), "") << "fra is in";
  EXPECT_NE(Take(Worker("fra2"), 1), "") << "not its rank";
  EXPECT_EQ(Take(Worker("fra2"), 0), "") << "fra is lost";
  EXPECT_NE(Take(Worker("fra"), 0, true), "") << "now the successor is in";
  EXPECT_EQ(Take(Worker("fra"), 0), "") << "and now it is lost";
}

TEST_F(Plan, ASuccessorFollowsAnyRankOfAWorkerWithoutRanks) {
  Allow({"fra+spare", "nyc+spare"});
  EXPECT_EQ(Take(Worker("nyc"), 2), "");
  EXPECT_EQ(Take(Worker("fra"), 3), "");
  EXPECT_EQ(Take(Worker("spare"), 2), "");
  EXPECT_THAT(Take(Worker("spare"), 3), HasSubstr("\"spare\" has rank 2"));
  EXPECT_THAT(Take(Worker("nyc"), 0), "") << "its rank is the successor's, so it has none";
}

TEST_F(Plan, AKickedIdentityTakesNoRankUntilAReloadOrTheNextJob) {
  for (const bool reload : {true, false}) {
    EXPECT_EQ(Take(Worker("fra"), 0), "");
    EXPECT_TRUE(plan.Kick(0));
    EXPECT_THAT(Take(Worker("fra"), 0), HasSubstr("\"fra\" was kicked"));
    EXPECT_THAT(Take(Worker("fra"), 1), HasSubstr("\"fra\" was kicked"));
    EXPECT_NE(Take(Worker("nyc"), 0, true), "") << "still in";
    EXPECT_EQ(Take(Worker("nyc"), 0), "") << "no successor is named: any";
    reload ? plan.Replace({}) : plan.Reset();
    EXPECT_EQ(Take(Worker("fra"), 1), "") << (reload ? "reload" : "next job");
    plan.Reset();
  }
  EXPECT_FALSE(plan.Kick(2)) << "no one has it";
}

TEST_F(Plan, AKickedRankIsItsSuccessorsAlone) {
  Allow({"fra:0+fra2", "nyc+spare", "lon"});
  EXPECT_TRUE(plan.Kick(0)) << "before it ever came: the rank is set aside for it";
  EXPECT_EQ(Take(Worker("fra2"), 0), "");
  EXPECT_EQ(Take(Worker("nyc"), 1), "");
  EXPECT_TRUE(plan.Kick(1));
  EXPECT_THAT(Take(Worker("lon"), 1), HasSubstr("belongs to \"nyc\""));
  EXPECT_EQ(Take(Worker("spare"), 1), "");
}

TEST_F(Plan, WithoutNamesAKickIsOfTheRankAtItsHost) {
  const PeerIdentity shared{.kind = PeerIdentity::Kind::kPsk, .job = "j", .role = {}, .name = {}};
  Address port = kHost, other = kHost;
  port.port = 9;
  other.ip[15] ^= 1;
  plan.Take(0, shared, kHost);
  ASSERT_TRUE(plan.Kick(0));
  EXPECT_THAT(plan.MayTake(shared, port, 0, false).message(), HasSubstr("rank 0 of this host was kicked"));
  EXPECT_TRUE(plan.MayTake(shared, kHost, 1, false).ok()) << "another rank";
  EXPECT_TRUE(plan.MayTake(shared, other, 0, false).ok()) << "another host";
}

TEST_F(Plan, AReloadFreesTheRanksOfThoseThatItStruckOut) {
  Allow({"fra:0", "nyc:1", "ams", "lon+spare"});
  for (const auto& [name, rank] : {std::pair{"fra", 0u}, {"nyc", 1u}, {"ams", 2u}, {"lon", 3u}})
    ASSERT_EQ(Take(Worker(name), rank), "") << name;
  Allow({"fra:0", "ams:1", "spare"});
  EXPECT_EQ(plan.owner(0), "fra");
  EXPECT_FALSE(plan.HasOwner(1)) << "nyc's";
  EXPECT_FALSE(plan.HasOwner(2)) << "ams' ranks are others now";
  EXPECT_FALSE(plan.HasOwner(3));
  EXPECT_EQ(Take(Worker("ams"), 1), "");
  Allow({});
  EXPECT_EQ(plan.owner(1), "ams") << "no list: all may stay";
}

TEST_F(Plan, ARankMayStandForSeveralWorkers) {
  Allow({"fra:0", "nyc:1-2x8"});
  EXPECT_EQ(plan.WorkersOf(0), 1u);
  EXPECT_EQ(plan.WorkersOf(1), 8u);
  EXPECT_EQ(plan.WorkersOf(2), 8u);
  EXPECT_EQ(plan.WorkersOf(3), 1u);
}

// Any sequence of joins, losses, kicks and reloads, against what an operator may rely on.
TEST_F(Plan, WhateverHappensNoRankGoesToAnotherThanTheListSays) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::vector<std::vector<std::string>> lists = {
      {}, {"a:0+d", "b:1-2", "c"}, {"a+d", "b+d", "c:3"}, {"a:0-3"}, {"b", "c", "d:1"}};
  const char* const names[] = {"a", "b", "c", "d"};
  for (int game = 0; game < 200; ++game) {
    plan.Reset();
    const auto& texts = lists[random() % lists.size()];
    AllowList list = AllowList::Parse(texts).value();
    plan.Replace(list);
    std::map<uint32_t, std::string> in;
    for (int step = 0; step < 40; ++step) {
      const uint32_t rank = random() % 4;
      const std::string name = names[random() % 4];
      switch (random() % 4) {
        case 0:
          in.erase(rank);
          break;
        case 1:
          if (random() % 4 == 0 && plan.Kick(rank)) in.erase(rank);
          break;
        default:
          if (!plan.MayTake(Worker(name), kHost, rank, in.contains(rank)).ok()) break;
          ASSERT_TRUE(!in.contains(rank) || in[rank] == name) << "it was held by another";
          plan.Take(rank, Worker(name), kHost);
          in[rank] = name;
          ASSERT_TRUE(list.Allows("worker", name));
          const AllowEntry* const own = list.FindWorker(name);
          const AllowEntry* const aside = list.FindRank(rank);
          ASSERT_TRUE(!aside || aside->name == name || aside->successor == name) << name << rank;
          ASSERT_TRUE(!own || !own->ranks || own->ranks->Contains(rank));
          uint32_t held = 0;
          for (const auto& [r, n] : in) held += n == name;
          ASSERT_LE(held, own && own->ranks ? own->ranks->last - own->ranks->first + 1 : 1);
      }
    }
  }
}

}  // namespace
}  // namespace longhaul::server
