#include "server/tensor/rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace longhaul::server {
namespace {

using Chunks = std::vector<uint32_t>;
using Part = Rounds::Participation;

// Three chunks, three workers, all of them members.
struct ThreeWorkers : testing::Test {
  ThreeWorkers() {
    for (uint32_t rank = 0; rank < 3; ++rank) rounds.OnMemberJoined(rank);
  }
  // Whatever happened, the counts are those of a look at all ranks.
  ~ThreeWorkers() override {
    for (const Part part : {Part::kAbsent, Part::kAwaited, Part::kOpen, Part::kClosed, Part::kLagging}) {
      uint32_t count = 0;
      for (uint32_t rank = 0; rank < 3; ++rank) count += rounds.participation(rank) == part ? 1 : 0;
      EXPECT_EQ(rounds.Count(part), count);
    }
  }
  Chunks Contribute(uint32_t rank, const Chunks& chunks) {
    Chunks ready;
    for (uint32_t chunk : chunks) {
      EXPECT_TRUE(in[rank].Set(chunk));
      if (rounds.OnContribution(rank, chunk, in)) ready.push_back(chunk);
    }
    return ready;
  }
  void Open(uint32_t rank) { rounds.OnWindowOpened(rank, Instant()); }
  Chunks Swept() {
    Chunks ready;
    while (rounds.HasSweep()) rounds.Sweep(in, SIZE_MAX, &ready);
    return ready;
  }
  Chunks Exclude(uint32_t rank) {
    rounds.OnExcluded(rank, in[rank]);
    return Swept();
  }
  Chunks Close(uint32_t rank) {
    rounds.OnWindowClosed(rank, in[rank]);
    return Swept();
  }
  Chunks Gone(uint32_t rank) {
    rounds.OnMemberGone(rank, in[rank]);
    return Swept();
  }
  void Finish(const Chunks& chunks) {
    for (uint32_t chunk : chunks) rounds.MarkFinal(chunk);
  }
  void NextRound() {
    rounds.Next();
    for (auto& bits : in) bits = transport::ChunkBitmap(3);
  }
  void OpenAll() {
    for (uint32_t rank = 0; rank < 3; ++rank) Open(rank);
  }

  Rounds rounds{3, 3};
  transport::ChunkBitmap in[3] = {transport::ChunkBitmap(3), transport::ChunkBitmap(3),
                                  transport::ChunkBitmap(3)};
};

TEST_F(ThreeWorkers, AChunkIsFinalWhenTheLastWorkerContributesIt) {
  OpenAll();
  EXPECT_EQ(Contribute(0, {0, 1, 2}), Chunks{});
  EXPECT_EQ(Contribute(1, {1, 0}), Chunks{});
  EXPECT_EQ(Contribute(2, {1}), Chunks{1});
  EXPECT_FALSE(rounds.AllFinal());
}

TEST_F(ThreeWorkers, ALostChunkIsFinalWhenTheWindowThatLostItCloses) {
  OpenAll();
  Finish(Contribute(0, {0, 1, 2}));
  Finish(Contribute(1, {0, 1, 2}));
  EXPECT_EQ(Contribute(2, {0, 2}), (Chunks{0, 2}));
  Finish({0, 2});
  EXPECT_EQ(Close(2), Chunks{1});
  Finish({1});
  EXPECT_TRUE(rounds.AllFinal());
  EXPECT_THAT(rounds.final_order(), testing::ElementsAre(0, 2, 1));
  EXPECT_EQ(rounds.last_rank(), 2u);
}

TEST_F(ThreeWorkers, AWorkerThatDiesReleasesWhatItHadNotContributedAndNobodyWaitsForItAgain) {
  OpenAll();
  Contribute(0, {0, 1, 2});
  Contribute(1, {0, 1, 2});
  Finish(Contribute(2, {1}));
  EXPECT_EQ(Gone(2), (Chunks{0, 2}));
  Finish({0, 2});
  NextRound();
  EXPECT_EQ(rounds.number(), 1u);
  EXPECT_EQ(rounds.participation(2), Part::kAbsent);
  Open(0);
  Open(1);
  EXPECT_EQ(Contribute(0, {0}), Chunks{});
  EXPECT_EQ(Contribute(1, {0}), Chunks{0});
}

TEST_F(ThreeWorkers, AReplacedWorkerIsAwaitedAgainInTheSameRound) {
  OpenAll();
  Contribute(0, {0, 1, 2});
  Contribute(1, {0, 1, 2});
  EXPECT_EQ(Contribute(2, {1}), Chunks{1});
  EXPECT_TRUE(rounds.OnMemberReplaced(2));
  EXPECT_EQ(rounds.participation(2), Part::kAwaited);
  Open(2);
  EXPECT_EQ(Contribute(2, {2, 0}), (Chunks{2, 0})) << "chunk 1 of the old incarnation stays in";
}

TEST_F(ThreeWorkers, AReplacedWorkerWhoseWindowIsOverTakesPartFromTheNextRound) {
  OpenAll();
  Contribute(2, {0, 1, 2});
  Close(2);
  EXPECT_FALSE(rounds.OnMemberReplaced(2));
}

// Which may wait for it, by way of another tensor or server.
TEST_F(ThreeWorkers, AWorkerThatJoinsTakesPartInARoundThatWaitsForAnotherWindow) {
  Open(0);
  Contribute(0, {0, 1});
  Gone(2);
  EXPECT_FALSE(rounds.OnMemberJoined(2, true)) << "it has contributed";
  Gone(2);
  EXPECT_TRUE(rounds.OnMemberJoined(2));
  Open(2);
  Contribute(0, {2});
  Contribute(2, {0, 1});
  Open(1);
  Finish(Contribute(1, {0}));
  Gone(2);
  EXPECT_FALSE(rounds.OnMemberJoined(2)) << "a chunk is final";
}

TEST_F(ThreeWorkers, AWorkerThatJoinsWhenAllWindowsAreOpenTakesPartFromTheNextRound) {
  OpenAll();
  Gone(2);
  EXPECT_FALSE(rounds.OnMemberJoined(2));
  Contribute(0, {0, 1, 2});
  Finish(Contribute(1, {0, 1, 2}));
  EXPECT_TRUE(rounds.AllFinal());
  NextRound();
  EXPECT_EQ(rounds.participation(2), Part::kAwaited);
}

TEST_F(ThreeWorkers, ChunksThatCouldNotBeFinishedAreCollectedLater) {
  OpenAll();
  for (uint32_t rank = 0; rank < 3; ++rank) Contribute(rank, {0, 2});
  rounds.BeginSweep();
  EXPECT_EQ(Swept(), (Chunks{0, 2}));
}

TEST_F(ThreeWorkers, NobodyWaitsForALaggingWorkerUntilItOpensItsWindow) {
  Open(0);
  Open(1);
  Contribute(0, {0, 1, 2});
  Contribute(1, {0, 1, 2});
  EXPECT_EQ(Exclude(2), (Chunks{0, 1, 2}));
  Finish({0, 1, 2});
  NextRound();
  EXPECT_EQ(rounds.participation(2), Part::kLagging);
  Open(0);
  Open(1);
  Contribute(0, {0, 1, 2});
  Finish(Contribute(1, {1}));
  // It comes when chunk 1 is final: it may still contribute to the others, which wait for it from now on.
  Open(2);
  EXPECT_EQ(rounds.participation(2), Part::kOpen);
  EXPECT_EQ(Contribute(1, {0, 2}), Chunks{});
  EXPECT_EQ(Contribute(2, {2}), Chunks{2});
  Finish({2});
  EXPECT_EQ(Close(2), Chunks{0});
  Finish({0});
  NextRound();
  EXPECT_EQ(rounds.participation(2), Part::kAwaited);
}

TEST_F(ThreeWorkers, ALaggingWorkersPredecessorMayHaveContributedAlready) {
  OpenAll();
  Contribute(0, {0, 1, 2});
  Contribute(1, {0, 1, 2});
  Finish(Contribute(2, {1}));
  EXPECT_TRUE(rounds.OnMemberReplaced(2));
  EXPECT_EQ(Exclude(2), (Chunks{0, 2}));
  EXPECT_TRUE(rounds.OnMemberReplaced(2));  // and replaced once more while it lags
  Open(2);
  EXPECT_EQ(Contribute(2, {2}), Chunks{2});
  Finish({2});
  EXPECT_EQ(Close(2), Chunks{0});
  Finish({0});
  EXPECT_TRUE(rounds.AllFinal());
}

TEST_F(ThreeWorkers, SomebodyIsAlwaysWaitedFor) {
  Open(0);
  Exclude(1);
  Exclude(2);
  Finish(Contribute(0, {0, 1, 2}));
  EXPECT_EQ(Gone(0), Chunks{});
  NextRound();
  EXPECT_EQ(rounds.Count(Part::kAwaited), 2u);
  EXPECT_EQ(Gone(1), Chunks{});
  EXPECT_EQ(rounds.Count(Part::kAwaited), 1u);
}

TEST_F(ThreeWorkers, ALaggingWorkerThatGoesIsNoMemberAnyMore) {
  Open(0);
  Exclude(1);
  EXPECT_EQ(Gone(1), Chunks{});
  EXPECT_EQ(rounds.participation(1), Part::kAbsent);
  Contribute(0, {0, 1, 2});
  Finish(Exclude(2));
  NextRound();
  EXPECT_EQ(rounds.participation(1), Part::kAbsent);
  EXPECT_EQ(rounds.participation(2), Part::kLagging);
}

// Two of three workers close a round.
struct TwoOfThree : ThreeWorkers {
  TwoOfThree() {
    rounds = Rounds(3, 3, {.quorum = 2});
    for (uint32_t rank = 0; rank < 3; ++rank) rounds.OnMemberJoined(rank);
  }
  void Whole(uint32_t rank) {
    Open(rank);
    Finish(Contribute(rank, {0, 1, 2}));
    Finish(Close(rank));
  }
};

TEST_F(TwoOfThree, OneThatLagsIsNotWaitedForAsLongAsTheOthersAreAQuorum) {
  Whole(0);
  EXPECT_EQ(rounds.windows_in(), 1u);
  Whole(1);
  EXPECT_EQ(rounds.windows_in(), 2u);
  Finish(Exclude(2));
  ASSERT_TRUE(rounds.AllFinal());
  NextRound();
  EXPECT_EQ(rounds.windows_in(), 0u);
  EXPECT_EQ(rounds.participation(2), Part::kLagging);
  Gone(1);
  EXPECT_EQ(rounds.participation(2), Part::kAwaited) << "one alone is no quorum of two";
  EXPECT_EQ(rounds.Quorum(), 2u);
  Gone(0);
  EXPECT_EQ(rounds.Quorum(), 1u) << "of those that are left";
}

TEST_F(TwoOfThree, AMemberThatIsGoneIsNoWindowThatIsIn) {
  Whole(0);
  Gone(1);
  EXPECT_EQ(rounds.windows_in(), 1u);
  EXPECT_EQ(rounds.participation(2), Part::kAwaited);
}

}  // namespace
}  // namespace longhaul::server
