#include "server/member/membership.h"

#include <gtest/gtest.h>

namespace longhaul::server {
namespace {

using Admission = Membership::Admission;

Instant At(int64_t ms) { return Instant::FromNanoseconds(ms * 1000000); }

JoinRequest Worker(uint32_t rank, uint64_t incarnation = 0, uint16_t port = 40000) {
  return {.job = "mnist",
          .rank = rank,
          .world_size = 2,
          .incarnation = incarnation,
          .site = "B",
          .weight = 1,
          .peer = Address::V4(127, 0, 0, 1, port)};
}

JoinRequest Unnumbered(uint32_t rank, uint16_t port = 40000) {
  JoinRequest request = Worker(rank, 0, port);
  request.incarnation.reset();
  return request;
}

TEST(Membership, TheStartBarrierOpensOnceWhenEveryRankIsIn) {
  Membership membership("mnist", 2, 2);
  ASSERT_TRUE(membership.Join(Worker(1), At(0)).ok());
  EXPECT_FALSE(membership.TryStart({}));
  ASSERT_TRUE(membership.Join(Worker(0), At(0)).ok());
  EXPECT_TRUE(membership.TryStart({}));
  EXPECT_FALSE(membership.TryStart({}));
}

TEST(Membership, EnoughWorkersStartWithoutTheOthersWhenNoneCame) {
  Membership membership("mnist", 3, 1, 1, 2);
  const auto of_three = [](uint32_t rank) {
    JoinRequest request = Worker(rank);
    request.world_size = 3;
    return request;
  };
  ASSERT_TRUE(membership.Join(of_three(2), At(0)).ok());
  EXPECT_FALSE(membership.TryStart(At(100'000))) << "one is too few";
  ASSERT_TRUE(membership.Join(of_three(0), At(100'000)).ok());
  EXPECT_FALSE(membership.TryStart(At(100'999)));
  EXPECT_TRUE(membership.TryStart(At(101'000)));
  EXPECT_EQ(membership.Joined(), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(*membership.Join(of_three(1), At(200'000)), Admission::kNew);
}

TEST(Membership, WorkersOfAnEarlierAttemptOfTheJobAreRefused) {
  Membership membership("mnist", 2, 2, 1, 0, 5);
  const Status older = membership.Join(Worker(1, 4), At(0)).status();
  EXPECT_EQ(
      older.ToString(),
      "AlreadyExists: rank 1 has incarnation 4, and is of an earlier attempt of the job: this server takes 5 "
      "and later (--min-incarnation)");
  EXPECT_EQ(membership.Join(Unnumbered(1), At(0)).status().code(), StatusCode::kAlreadyExists);
  EXPECT_FALSE(membership.IsJoined(1));
  EXPECT_EQ(*membership.Join(Worker(1, 5), At(0)), Admission::kNew);
  membership.Reset();
  EXPECT_FALSE(membership.Join(Worker(1, 4), At(0)).ok()) << "the server's next job, too";
}

TEST(Membership, ASecondWorkerOfARankIsInOnlyWhenTheFirstIsSilent) {
  Membership membership("mnist", 2, 2);
  ASSERT_TRUE(membership.Join(Worker(1), At(0)).ok());
  for (const JoinRequest& second : {Worker(1, 0, 40001), Unnumbered(1, 40001)}) {
    EXPECT_EQ(*membership.Join(second, At(1200)), Admission::kContested);
    EXPECT_EQ(membership.member(1).peer.port, 40000) << "nothing has changed";
  }
  const Status taken = membership.Taken(1, std::chrono::milliseconds(200));
  EXPECT_EQ(taken.code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(taken.message(),
            "rank 1 is taken by 127.0.0.1:40000 (incarnation 0), which lives: it answered within 0.2 s; a "
            "higher --incarnation replaces it all the same");
  EXPECT_EQ(*membership.Join(Unnumbered(1, 40001), At(1300), /*holder_silent=*/true), Admission::kReplaces);
  EXPECT_EQ(membership.member(1).peer.port, 40001);
  EXPECT_EQ(membership.member(1).incarnation, 1u) << "numbered by the server";
  EXPECT_EQ(membership.joined(), 1u);
}

JoinRequest Process(uint32_t rank, uint64_t session) {
  JoinRequest request = Unnumbered(rank);
  request.session = session;
  return request;
}

// A server that stood still for longer than its workers wait has their old connections and their new ones.
TEST(Membership, AnotherConnectionOfTheSameProcessNeedsNotWaitForTheOneBefore) {
  Membership membership("mnist", 2, 2);
  ASSERT_TRUE(membership.Join(Process(1, 7), At(0)).ok());
  EXPECT_EQ(*membership.Join(Process(1, 8), At(1)), Admission::kContested);
  EXPECT_EQ(*membership.Join(Process(1, 0), At(1)), Admission::kContested);
  EXPECT_EQ(*membership.Join(Process(1, 7), At(1)), Admission::kReplaces);
  ASSERT_TRUE(membership.Join(Process(0, 0), At(0)).ok());
  EXPECT_EQ(*membership.Join(Process(0, 0), At(1)), Admission::kContested) << "of which none says a number";
}

TEST(Membership, AProcessThatAnotherOneHasFollowedIsRefused) {
  Membership membership("mnist", 2, 1);
  ASSERT_TRUE(membership.Join(Process(1, 11), At(0)).ok());
  membership.Leave(1);
  ASSERT_TRUE(membership.Join(Process(1, 12), At(0)).ok());
  membership.Leave(1);
  ASSERT_TRUE(membership.Join(Process(1, 11), At(0)).ok()) << "nothing has counted before the start";
  ASSERT_TRUE(membership.Join(Process(0, 1), At(0)).ok());
  ASSERT_TRUE(membership.TryStart({}));
  membership.Lose(1);
  EXPECT_EQ(*membership.Join(Process(1, 11), At(1)), Admission::kNew) << "the same one comes back";
  ASSERT_EQ(*membership.Join(Process(1, 13), At(1), /*holder_silent=*/true), Admission::kReplaces);
  for (int i = 0; i < 2; ++i) {
    const Status refused = membership.Join(Process(1, 11), At(2), /*holder_silent=*/true).status();
    EXPECT_EQ(refused.code(), StatusCode::kAlreadyExists);
    EXPECT_NE(refused.message().find("another process has followed this one as rank 1"), std::string::npos);
    if (i == 0) membership.Lose(1);  // the free rank does not help
  }
  EXPECT_TRUE(membership.Join(Process(1, 13), At(3)).ok());
  membership.Reset();
  EXPECT_TRUE(membership.Join(Process(1, 11), At(4)).ok()) << "of another job";
}

TEST(Membership, AJobThatGoesOnKnowsItsProcesses) {
  Membership membership("mnist", 2, 2);
  membership.GoOn({{.last = 1}, {.last = 12, .replaced = {11}}});
  EXPECT_FALSE(membership.Join(Process(1, 11), At(0)).ok());
  ASSERT_TRUE(membership.Join(Process(1, 13), At(0)).ok());
  membership.Leave(1);
  EXPECT_FALSE(membership.Join(Process(1, 12), At(0)).ok()) << "followed before all are back";
  EXPECT_TRUE(membership.Join(Process(1, 13), At(0)).ok());
}

TEST(Membership, AJobThatGoesOnStartsWithoutARankThatIsGone) {
  Membership membership("mnist", 3, 2);
  const auto of_three = [](uint32_t rank, uint64_t session) {
    JoinRequest request = Process(rank, session);
    request.world_size = 3;
    return request;
  };
  membership.GoOn({{.last = 1}, {}, {}});
  ASSERT_TRUE(membership.Join(of_three(0, 1), At(0)).ok());
  EXPECT_FALSE(membership.TryStart(At(60'000))) << "two are needed";
  ASSERT_TRUE(membership.Join(of_three(1, 2), At(70'000)).ok());
  EXPECT_FALSE(membership.TryStart(At(79'000))) << "the third may be on its way";
  EXPECT_TRUE(membership.TryStart(At(80'000)));
  EXPECT_TRUE(membership.Join(of_three(2, 3), At(90'000)).ok()) << "it may come later";
  membership.Reset();
  ASSERT_TRUE(membership.Join(of_three(0, 1), At(0)).ok());
  ASSERT_TRUE(membership.Join(of_three(1, 2), At(0)).ok());
  EXPECT_FALSE(membership.TryStart(At(60'000))) << "the next job begins with all";
  membership.Reset();
  membership.GoOn(std::vector<RankSessions>(3));
  ASSERT_TRUE(membership.Join(of_three(0, 1), At(0)).ok());
  ASSERT_TRUE(membership.Join(of_three(1, 2), At(0)).ok());
  EXPECT_FALSE(membership.TryStart(At(60'000))) << "the third may have the initial values";
}

TEST(Membership, AJobThatGoesOnWaitsForAQuorumAndNotLongForTheOthers) {
  Membership membership("mnist", 2, 1);
  membership.GoOn(std::vector<RankSessions>(2, {.last = 1}), /*quorum=*/1);
  ASSERT_TRUE(membership.Join(Process(1, 7), At(0)).ok());
  EXPECT_FALSE(membership.TryStart(At(199)));
  EXPECT_TRUE(membership.TryStart(At(200)));
  Membership both("mnist", 2, 1);
  both.GoOn(std::vector<RankSessions>(2, {.last = 1}), /*quorum=*/2);
  ASSERT_TRUE(both.Join(Process(1, 7), At(0)).ok());
  EXPECT_FALSE(both.TryStart(At(9'999))) << "no round would close without the other";
  EXPECT_TRUE(both.TryStart(At(10'000)));
}

TEST(Membership, SilenceDoesNotHelpAnOlderIncarnation) {
  Membership membership("mnist", 2, 2);
  ASSERT_TRUE(membership.Join(Worker(1, 3), At(0)).ok());
  EXPECT_EQ(membership.Join(Worker(1, 2), At(0), /*holder_silent=*/true).status().code(),
            StatusCode::kAlreadyExists);
}

// Would gain, for a member with the shared key: a rank that no worker can have again.
TEST(Membership, TheLargestIncarnationBlocksNoRank) {
  Membership membership("mnist", 2, 1);
  ASSERT_TRUE(membership.Join(Worker(0), At(0)).ok());
  ASSERT_TRUE(membership.Join(Worker(1, UINT64_MAX), At(0)).ok());
  ASSERT_TRUE(membership.TryStart({}));
  EXPECT_EQ(*membership.Join(Unnumbered(1), At(0)), Admission::kContested);
  EXPECT_EQ(*membership.Join(Unnumbered(1), At(0), /*holder_silent=*/true), Admission::kReplaces);
  EXPECT_EQ(membership.member(1).incarnation, UINT64_MAX) << "and does not wrap";
  membership.Lose(1);
  EXPECT_EQ(*membership.Join(Unnumbered(1), At(0)), Admission::kNew);
}

// The same command line, again and again.
TEST(Membership, RestartsAreNumberedByTheServer) {
  Membership membership("mnist", 2, 1);
  ASSERT_TRUE(membership.Join(Worker(0), At(0)).ok());
  ASSERT_TRUE(membership.Join(Unnumbered(1), At(0)).ok());
  ASSERT_TRUE(membership.TryStart({}));
  for (uint64_t restart = 1; restart <= 12; ++restart) {
    ASSERT_TRUE(membership.Join(Unnumbered(1), At(0), /*holder_silent=*/true).ok());
    EXPECT_EQ(membership.member(1).incarnation, restart);
  }
  EXPECT_FALSE(membership.Join(Worker(1, 11), At(0)).ok()) << "a number that was here before";
}

TEST(Membership, AHigherIncarnationReplacesAndTheOldOneCannotComeBack) {
  Membership membership("mnist", 2, 2);
  ASSERT_TRUE(membership.Join(Worker(1, 3), At(0)).ok());
  const auto replaced = membership.Join(Worker(1, 4, 40001), At(0));
  ASSERT_TRUE(replaced.ok());
  EXPECT_EQ(*replaced, Admission::kReplaces);
  EXPECT_EQ(membership.joined(), 1u);
  EXPECT_FALSE(membership.Join(Worker(1, 3), At(0)).ok());
}

TEST(Membership, MismatchesAreRefusedWithBothValuesPrinted) {
  Membership membership("mnist", 2, 2);
  JoinRequest other = Worker(0);
  other.job = "resnet";
  EXPECT_EQ(membership.Join(other, At(0)).status().ToString(),
            "SettingsMismatch: the worker's job is \"resnet\", the server's is \"mnist\"");
  other = Worker(0);
  other.world_size = 8;
  EXPECT_EQ(membership.Join(other, At(0)).status().ToString(),
            "SettingsMismatch: the worker's world size is 8, the server's is 2");
}

TEST(Membership, ALostWorkerMayComeBackButNotAnOlderIncarnationOfIt) {
  Membership membership("mnist", 2, 1);
  ASSERT_TRUE(membership.Join(Worker(0), At(0)).ok());
  ASSERT_TRUE(membership.Join(Worker(1, 5), At(0)).ok());
  ASSERT_TRUE(membership.TryStart({}));
  membership.Lose(1);
  EXPECT_TRUE(membership.EnoughWorkers());
  EXPECT_EQ(membership.member(1).state, Member::State::kLost);
  EXPECT_EQ(membership.Join(Worker(1, 4), At(0)).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(*membership.Join(Worker(1, 5), At(0)), Admission::kNew);
  membership.Lose(0);
  membership.Lose(1);
  EXPECT_FALSE(membership.EnoughWorkers());
}

JoinRequest Named(const std::string& name, uint32_t rank, uint64_t incarnation = 0) {
  JoinRequest request = Worker(rank, incarnation);
  request.identity = {transport::PeerIdentity::Kind::kCertificate, "mnist", "worker", name};
  return request;
}

TEST(Membership, ARankBelongsToWhoTookItFirstUntilTheJobIsOver) {
  Membership membership("mnist", 2, 1);
  ASSERT_TRUE(membership.Join(Named("fra", 0), At(0)).ok());
  ASSERT_TRUE(membership.Join(Named("ams", 1), At(0)).ok());
  ASSERT_TRUE(membership.TryStart({}));
  const Status thief = membership.Join(Named("ams", 0, 99), At(0)).status();
  EXPECT_EQ(thief.ToString(),
            "PermissionDenied: rank 0 belongs to \"fra\" until the job is over, and this is \"ams\"");
  EXPECT_EQ(*membership.Join(Named("fra", 0, 1), At(0)), Admission::kReplaces);
  EXPECT_EQ(membership.member(0).identity.name, "fra");
  membership.Lose(0);
  EXPECT_EQ(membership.Join(Named("ams", 0, 99), At(0)).status().code(), StatusCode::kPermissionDenied);
  membership.Leave(1);
  EXPECT_EQ(membership.Join(Named("fra", 1, 99), At(0)).status().code(), StatusCode::kPermissionDenied)
      << "after a goodbye too: what it contributed is in the model";
  membership.Reset();
  EXPECT_TRUE(membership.Join(Named("ams", 0), At(0)).ok());
  EXPECT_EQ(membership.Describe(0), "worker rank 0 (ams, site B, 127.0.0.1:40000)");
}

TEST(Membership, BeforeTheStartARankIsKeptForWhoIsLostAndGivenBackByWhoLeaves) {
  Membership membership("mnist", 3, 3);
  const auto join = [&](JoinRequest request) {
    request.world_size = 3;
    return membership.Join(request, At(0)).status().code();
  };
  ASSERT_EQ(join(Named("fra", 0)), StatusCode::kOk);
  ASSERT_EQ(join(Named("ams", 1)), StatusCode::kOk);
  EXPECT_EQ(join(Named("ams", 2)), StatusCode::kPermissionDenied) << "one certificate, one rank";
  ASSERT_EQ(join(Named("lon", 2)), StatusCode::kOk);
  membership.Lose(0);
  EXPECT_EQ(join(Named("nyc", 0)), StatusCode::kPermissionDenied);
  membership.Leave(1);
  EXPECT_EQ(join(Named("nyc", 1)), StatusCode::kOk);
  membership.Lose(1);
  membership.Lose(2);
  EXPECT_EQ(join(Named("nyc", 0)), StatusCode::kOk)
      << "nobody was in: there is no job that they could be kept for";
}

TEST(Membership, ASuccessorCountsItsOwnIncarnations) {
  Membership membership("mnist", 2, 1);
  membership.SetAllow(AllowList::Parse({"fra:0+fra2", "nyc:1x8"}).value());
  EXPECT_EQ(membership.stands_for(), (std::vector<uint32_t>{1, 8})) << "nyc is a site's engine";
  ASSERT_TRUE(membership.Join(Named("fra", 0, 7), At(0)).ok());
  ASSERT_TRUE(membership.Join(Named("nyc", 1), At(0)).ok());
  ASSERT_TRUE(membership.TryStart({}));
  EXPECT_EQ(membership.Join(Named("fra2", 0, 99), At(0)).status().code(), StatusCode::kPermissionDenied);
  membership.Lose(0);
  EXPECT_EQ(membership.Join(Named("fra", 0, 6), At(0)).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(*membership.Join(Named("fra2", 0, 0), At(0)), Admission::kNew);
  EXPECT_EQ(membership.Describe(0), "worker rank 0 (fra2, site B, 127.0.0.1:40000)");
}

TEST(Membership, WithoutNamesOnlyTheIncarnationCounts) {
  Membership membership("mnist", 2, 2);
  JoinRequest shared = Worker(0);
  shared.identity = {transport::PeerIdentity::Kind::kPsk, "mnist", "", ""};
  ASSERT_TRUE(membership.Join(shared, At(0)).ok());
  EXPECT_EQ(*membership.Join(shared, At(0)), Admission::kContested);
  shared.incarnation = 1;
  EXPECT_EQ(*membership.Join(shared, At(0)), Admission::kReplaces);
}

TEST(Membership, BeforeTheStartALostPlaceIsEmptyAgain) {
  Membership membership("mnist", 2, 2);
  ASSERT_TRUE(membership.Join(Worker(1, 5), At(0)).ok());
  membership.Lose(1);
  EXPECT_TRUE(membership.Join(Worker(1, 0), At(0)).ok());
  EXPECT_EQ(membership.Describe(1), "worker rank 1 (site B, 127.0.0.1:40000)");
}

TEST(Membership, ARankStandsForOneWorkerUnlessMoreAreAdmitted) {
  Membership membership("mnist", 4, 4, 0);
  EXPECT_EQ(membership.WeightTimes(), 3);
  EXPECT_EQ(membership.WeightShare(2), 0.5) << "three against three others";
  membership.SetStandsFor(2, 5);
  EXPECT_EQ(membership.stands_for(), (std::vector<uint32_t>{1, 1, 5, 1}));
  EXPECT_EQ(membership.WeightShare(2), 15.0 / 18);
  EXPECT_EQ(membership.WeightShare(0), 3.0 / 10);
  membership.Reset();
  EXPECT_EQ(membership.WeightShare(2), 15.0 / 18) << "what was admitted stays";
}

TEST(Membership, TheShareThatTheOperatorWantsIsThatOfOneWorker) {
  EXPECT_DOUBLE_EQ(Membership("mnist", 10, 1, 0.25).WeightShare(0), 0.25);
  EXPECT_DOUBLE_EQ(Membership("mnist", 5, 1, 0.1).WeightShare(0), 0.2) << "no less than an even share";
  EXPECT_EQ(Membership("mnist", 5, 1, 1).WeightShare(0), 1);
  EXPECT_EQ(Membership("mnist", 1, 1, 0).WeightShare(0), 1) << "alone";
}

}  // namespace
}  // namespace longhaul::server
