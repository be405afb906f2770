#include "transport/core/path/dplpmtud.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace longhaul::transport {
namespace {

using State = Dplpmtud::State;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A path that carries datagrams up to `mtu` bytes, and loses some.
class Path {
 public:
  explicit Path(int64_t mtu, double loss = 0, uint64_t seed = 1) : mtu_(mtu), loss_(loss), random_(seed) {}

  void SetMtu(int64_t mtu) { mtu_ = mtu; }
  int probes() const { return probes_; }
  Instant now() const { return now_; }
  void Wait(Duration time) { now_ += time; }

  // Sends and answers probes until none is due; false when that never ends.
  bool Run(Dplpmtud* pmtu) {
    for (int i = 0; i < 200; ++i) {
      const std::optional<int64_t> bytes = pmtu->NextProbe();
      if (!bytes) return true;
      ++probes_;
      pmtu->OnProbeSent(number_);
      EXPECT_FALSE(pmtu->NextProbe().has_value()) << "one probe at a time";
      now_ += milliseconds(50);
      const bool arrives = *bytes <= mtu_ && !random_.Chance(loss_);
      if (arrives) {
        pmtu->OnAcked(number_, *bytes, now_);
      } else {
        pmtu->OnProbeLost(number_, now_);
      }
      ++number_;
      if (pmtu->failed()) return true;
    }
    return false;
  }

 private:
  int64_t mtu_;
  double loss_;
  Random random_;
  Instant now_;
  wire::PacketNumber number_ = 0;
  int probes_ = 0;
};

TEST(Dplpmtud, AProvenMaximumNeedsNoSearch) {
  Dplpmtud pmtu;
  EXPECT_FALSE(pmtu.NextProbe().has_value());
  pmtu.Start(Instant(), 1452, 1452);
  EXPECT_EQ(pmtu.state(), State::kSearchComplete);
  EXPECT_EQ(pmtu.plpmtu(), 1452);
  EXPECT_FALSE(pmtu.NextProbe().has_value());
  EXPECT_TRUE(pmtu.Deadline().IsInfinite());
}

TEST(Dplpmtud, OneProbeFindsTheMaximumOfAPathThatCarriesIt) {
  for (const int64_t max : {1344, 1452, 8952, 65507}) {
    Dplpmtud pmtu;
    Path path(max);
    pmtu.Start(path.now(), 1200, max);
    EXPECT_EQ(pmtu.state(), State::kSearching);
    EXPECT_TRUE(path.Run(&pmtu));
    EXPECT_EQ(pmtu.plpmtu(), max);
    EXPECT_EQ(path.probes(), 1);
    EXPECT_TRUE(pmtu.settled());
  }
}

TEST(Dplpmtud, FindsEveryPathToWithinAChunkStep) {
  for (const int64_t max : {1344, 1452, 8952}) {
    for (int64_t mtu = 1200; mtu <= max; mtu += 7) {
      SCOPED_TRACE(testing::Message() << "path " << mtu << ", allowed " << max);
      Dplpmtud pmtu;
      Path path(mtu);
      pmtu.Start(path.now(), 1200, max);
      ASSERT_TRUE(path.Run(&pmtu));
      EXPECT_EQ(pmtu.state(), State::kSearchComplete);
      EXPECT_LE(pmtu.plpmtu(), mtu);
      // As many chunk steps as the path has.
      EXPECT_EQ(pmtu.plpmtu() / Dplpmtud::kResolution, mtu / Dplpmtud::kResolution);
      EXPECT_LE(path.probes(), 12 * Dplpmtud::kMaxProbes);
      EXPECT_EQ(pmtu.Deadline().IsInfinite(), pmtu.plpmtu() == max);
    }
  }
}

TEST(Dplpmtud, LossCostsProbesAndRarelySize) {
  int found = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Dplpmtud pmtu;
    Path path(1452, 0.2, seed);
    pmtu.Start(path.now(), 1200, 1452);
    ASSERT_TRUE(path.Run(&pmtu));
    found += pmtu.plpmtu() == 1452 ? 1 : 0;
  }
  EXPECT_GE(found, 194);  // 0.8 % are missed: three probes lost
  EXPECT_LT(found, 200);
}

TEST(Dplpmtud, WhatIsNeededIsAskedForMoreOften) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Dplpmtud pmtu;
    Path path(1452, 0.2, seed);
    pmtu.Start(path.now(), 1200, 1452);
    pmtu.SetNeeded(1440);
    ASSERT_TRUE(path.Run(&pmtu));
    EXPECT_GE(pmtu.plpmtu(), 1440) << "seed " << seed;
  }
}

TEST(Dplpmtud, WhatThePeerSendsIsAskedForAgain) {
  Dplpmtud pmtu;
  Path path(1400);
  pmtu.Start(path.now(), 1200, 1452);
  ASSERT_TRUE(path.Run(&pmtu));
  ASSERT_EQ(pmtu.plpmtu(), 1392);
  pmtu.OnPeerDatagram(1440, path.now());
  ASSERT_EQ(pmtu.NextProbe(), 1452);
  path.SetMtu(1452);
  ASSERT_TRUE(path.Run(&pmtu));
  EXPECT_EQ(pmtu.plpmtu(), 1452);
  pmtu.OnPeerDatagram(1440, path.now());
  EXPECT_TRUE(pmtu.settled());

  Dplpmtud lossy;
  lossy.Start(path.now(), 1200, 1452);
  lossy.OnPeerDatagram(1452, path.now());
  for (wire::PacketNumber n = 0; n < Dplpmtud::kMaxNeededProbes; ++n) {
    ASSERT_EQ(lossy.NextProbe(), 1452);
    lossy.OnProbeSent(n);
    lossy.OnProbeLost(n, path.now());
  }
  EXPECT_TRUE(lossy.Refuted(1452));
}

TEST(Dplpmtud, TheRaiseTimerSearchesAgain) {
  Dplpmtud pmtu;
  Path path(1300);
  pmtu.Start(path.now(), 1200, 1452);
  ASSERT_TRUE(path.Run(&pmtu));
  ASSERT_EQ(pmtu.plpmtu() / 16, 1300 / 16);
  EXPECT_EQ(pmtu.Deadline(), path.now() + Dplpmtud::kRaiseTimer);
  path.SetMtu(1500);
  path.Wait(Dplpmtud::kRaiseTimer - seconds(1));
  pmtu.OnTimeout(path.now());
  EXPECT_FALSE(pmtu.NextProbe().has_value());
  path.Wait(seconds(1));
  pmtu.OnTimeout(path.now());
  ASSERT_TRUE(path.Run(&pmtu));
  EXPECT_EQ(pmtu.plpmtu(), 1452);
}

TEST(Dplpmtud, ABlackHoleFallsBackToTheBaseAndSearchesAgain) {
  for (const int64_t mtu : {1200, 1250, 1372, 1440}) {
    SCOPED_TRACE(mtu);
    Dplpmtud pmtu;
    Path path(mtu);
    pmtu.Start(path.now(), 1452, 1452);
    pmtu.OnBlackHole();
    EXPECT_EQ(pmtu.state(), State::kBase);
    EXPECT_EQ(pmtu.plpmtu(), 1200);
    EXPECT_FALSE(pmtu.Refuted(1452));
    ASSERT_TRUE(path.Run(&pmtu));
    EXPECT_EQ(pmtu.plpmtu() / 16, mtu / 16);
    EXPECT_TRUE(pmtu.Refuted(1452));
  }
}

TEST(Dplpmtud, AFalseAlarmCostsTwoProbes) {
  Dplpmtud pmtu;
  Path path(1452);
  pmtu.Start(path.now(), 1452, 1452);
  pmtu.OnBlackHole();
  ASSERT_TRUE(path.Run(&pmtu));
  EXPECT_EQ(pmtu.plpmtu(), 1452);
  EXPECT_EQ(path.probes(), 2);
}

TEST(Dplpmtud, APathBelowTheMinimumIsAnErrorAndThenAFailure) {
  Dplpmtud pmtu;
  Path path(599);
  pmtu.Start(path.now(), 1452, 1452);
  pmtu.OnBlackHole();
  ASSERT_TRUE(path.Run(&pmtu));
  EXPECT_EQ(pmtu.state(), State::kError);
  EXPECT_TRUE(pmtu.failed());
  EXPECT_EQ(path.probes(), Dplpmtud::kMaxProbes + Dplpmtud::kMaxMinProbes);
}

TEST(Dplpmtud, APathBelowTheBaseIsUsedAsFarAsItGoes) {
  for (const int64_t mtu : {600, 607, 972, 1100, 1199}) {
    for (const bool refused : {false, true}) {
      SCOPED_TRACE(testing::Message() << mtu << (refused ? " by the kernel" : " silently"));
      Dplpmtud pmtu;
      Path path(mtu);
      pmtu.Start(path.now(), 1452, 1452);
      refused ? pmtu.OnRefused(mtu + 1, path.now()) : pmtu.OnBlackHole();
      EXPECT_EQ(pmtu.plpmtu(), refused ? Dplpmtud::kMin : Dplpmtud::kBase);
      ASSERT_TRUE(path.Run(&pmtu));
      EXPECT_FALSE(pmtu.failed());
      EXPECT_TRUE(pmtu.settled());
      EXPECT_LE(pmtu.plpmtu(), mtu);
      EXPECT_GE(pmtu.plpmtu(), mtu - 2 * Dplpmtud::kResolution);
      // It grows again.
      path.SetMtu(1452);
      path.Wait(Dplpmtud::kRaiseTimer);
      pmtu.OnTimeout(path.now());
      ASSERT_TRUE(path.Run(&pmtu));
      EXPECT_EQ(pmtu.plpmtu(), 1452);
    }
  }
}

TEST(Dplpmtud, ASecondBlackHoleGoesToTheMinimum) {
  Dplpmtud pmtu;
  pmtu.Start(Instant(), 1452, 1452);
  pmtu.OnBlackHole();
  EXPECT_EQ(pmtu.plpmtu(), Dplpmtud::kBase);
  pmtu.OnBlackHole();
  EXPECT_EQ(pmtu.plpmtu(), Dplpmtud::kMin);
  pmtu.OnBlackHole();
  EXPECT_EQ(pmtu.plpmtu(), Dplpmtud::kMin);
  EXPECT_EQ(pmtu.NextProbe(), Dplpmtud::kMin);
}

TEST(Dplpmtud, WhatIsNeededIsTriedAgainSooner) {
  Dplpmtud pmtu;
  Path path(1300);
  pmtu.Start(path.now(), 1200, 1452);
  ASSERT_TRUE(path.Run(&pmtu));
  pmtu.SetNeeded(1440);
  EXPECT_EQ(pmtu.Deadline(), path.now() + Dplpmtud::kNeededRaiseTimer);
  pmtu.SetNeeded(1200);
  EXPECT_EQ(pmtu.Deadline(), path.now() + Dplpmtud::kRaiseTimer);
}

TEST(Dplpmtud, AnErrorThatPassesIsForgiven) {
  Dplpmtud pmtu;
  pmtu.Start(Instant(), 1452, 1452);
  pmtu.OnBlackHole();
  for (wire::PacketNumber n = 0; n < 5; ++n) {
    ASSERT_EQ(pmtu.NextProbe(), n < Dplpmtud::kMaxProbes ? 1200 : Dplpmtud::kMin);
    pmtu.OnProbeSent(n);
    pmtu.OnProbeLost(n, Instant());
  }
  EXPECT_EQ(pmtu.state(), State::kError);
  pmtu.OnProbeSent(5);
  pmtu.OnAcked(2, 1200, Instant());  // sent before: it says nothing
  EXPECT_EQ(pmtu.state(), State::kError);
  pmtu.OnAcked(5, Dplpmtud::kMin, Instant());
  EXPECT_EQ(pmtu.state(), State::kSearching);
  EXPECT_FALSE(pmtu.failed());
}

TEST(Dplpmtud, TheKernelsRefusalEndsAProbeAtOnce) {
  Dplpmtud pmtu;
  Path path(1400);
  pmtu.Start(path.now(), 1200, 1452);
  ASSERT_EQ(pmtu.NextProbe(), 1452);
  pmtu.OnProbeSent(1000);
  pmtu.OnRefused(1452, path.now());
  EXPECT_EQ(pmtu.NextProbe(), 1344);
  pmtu.OnProbeLost(1000, path.now());  // loss detection comes later and has nothing to add
  ASSERT_TRUE(path.Run(&pmtu));
  EXPECT_EQ(pmtu.plpmtu() / 16, 1400 / 16);
}

TEST(Dplpmtud, TheKernelsRefusalOfTheSizeInUseIsABlackHole) {
  Dplpmtud pmtu;
  Path path(1400);
  pmtu.Start(path.now(), 1452, 1452);
  pmtu.OnRefused(1440, path.now());
  EXPECT_EQ(pmtu.plpmtu(), 1200);
  EXPECT_TRUE(pmtu.Refuted(1440));
  ASSERT_TRUE(path.Run(&pmtu));
  EXPECT_EQ(pmtu.plpmtu() / 16, 1400 / 16);
}

TEST(Dplpmtud, AProbeThatComesLateCounts) {
  Dplpmtud pmtu;
  pmtu.Start(Instant(), 1200, 1452);
  for (wire::PacketNumber n = 0; n < 3; ++n) {
    pmtu.OnProbeSent(n);
    pmtu.OnProbeLost(n, Instant());
  }
  EXPECT_TRUE(pmtu.Refuted(1452));
  pmtu.OnAcked(1, 1452, Instant());
  EXPECT_EQ(pmtu.plpmtu(), 1452);
  EXPECT_TRUE(pmtu.settled());
}

constexpr int kFew = BlackHoleDetector::kSuspicious;
constexpr Duration kRoundTrip = std::chrono::milliseconds(40);

// A sender that sends kPerRoundTrip packets in a round trip.
class BlackHoles : public testing::Test {
 protected:
  static constexpr wire::PacketNumber kPerRoundTrip = kFew - 1;

  void Acked(wire::PacketNumber number, int64_t bytes) { detector_.OnPacketAcked(number, bytes); }
  void Lost(wire::PacketNumber number, int64_t bytes) {
    detector_.OnPacketLost(number, bytes, Instant() + number * (kRoundTrip / kPerRoundTrip));
  }
  void LostFrom(wire::PacketNumber first, int count, int64_t bytes) {
    for (int i = 0; i < count; ++i) Lost(first + static_cast<unsigned>(i), bytes);
  }
  bool found() const { return detector_.found(kRoundTrip); }

  BlackHoleDetector detector_{1200};
};

TEST_F(BlackHoles, LargePacketsLostForARoundTripAreOne) {
  Acked(9, 1440);
  LostFrom(10, kFew, 1440);
  EXPECT_FALSE(found());  // of one round trip
  Lost(10 + kFew, 1440);
  EXPECT_TRUE(found());
  detector_.Reset(100);
  EXPECT_FALSE(found());
  LostFrom(50, 50, 1440);
  EXPECT_FALSE(found());  // sent before the sender reacted
  LostFrom(100, kFew + 1, 1440);
  EXPECT_TRUE(found());
}

TEST_F(BlackHoles, AFewOverALongTimeAreNone) {
  for (int i = 0; i < kFew - 1; ++i) Lost(10 * static_cast<unsigned>(i), 1440);
  EXPECT_FALSE(found());
  Lost(10 * (kFew - 1), 1440);
  EXPECT_TRUE(found());
}

// The end of a window at a queue that is full: whatever comes last is dropped, and nothing as large follows.
TEST_F(BlackHoles, AQueueThatOverflowsIsNone) {
  for (int window = 0; window < 10; ++window) {
    SCOPED_TRACE(window);
    const auto first = static_cast<wire::PacketNumber>(100 * window);
    Acked(first, 1440);
    // Twenty at once.
    for (int i = 1; i <= 20; ++i) {
      detector_.OnPacketLost(first + static_cast<unsigned>(i), 1440, Instant() + window * 10 * kRoundTrip);
    }
    EXPECT_FALSE(found());
  }
}

TEST_F(BlackHoles, WhatALaterPacketOfThatSizeOvertookIsOrdinaryLoss) {
  Acked(100, 1440);
  LostFrom(10, 50, 1452);
  EXPECT_FALSE(found());  // 1440 and 1452 are of one step
}

TEST_F(BlackHoles, AnArrivalOfThatSizeClearsTheSuspicion) {
  for (int round = 0; round < 10; ++round) {
    const auto base = static_cast<wire::PacketNumber>(100 * round);
    LostFrom(base, kFew - 1, 1440);
    Acked(base + 50, 1440);
    EXPECT_FALSE(found());
  }
}

TEST_F(BlackHoles, SmallerArrivalsDoNotClearIt) {
  for (unsigned i = 0; i < kFew; ++i) {
    Lost(2 * i, 1440);
    Acked(2 * i + 1, 1300);
  }
  EXPECT_TRUE(found());
}

TEST_F(BlackHoles, SmallPacketsSayNothing) {
  LostFrom(0, 100, 1200);
  EXPECT_FALSE(found());
}

TEST_F(BlackHoles, RandomLossOfABulkFlowIsNone) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    detector_ = BlackHoleDetector(1200);
    // Fates are known three packets late, as loss detection has it.
    std::vector<bool> lost;
    for (wire::PacketNumber n = 0; n < 20'000; ++n) {
      lost.push_back(random.Chance(0.2));
      if (!lost[n]) Acked(n, 1440);
      if (n >= 3 && lost[n - 3]) Lost(n - 3, 1440);
    }
    EXPECT_FALSE(found());
  }
}

}  // namespace
}  // namespace longhaul::transport
