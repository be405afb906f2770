// What PathLoss may conclude, round trip by round trip.
#include <gtest/gtest.h>

#include "transport/core/rate/bbr/bbr_model.h"
#include "transport/core/rate/path_loss.h"

namespace longhaul::transport {
namespace {

using std::chrono::milliseconds;

constexpr int kPackets = 100;  // of a round trip: one that is slow enough answers

class Rounds {
 public:
  Rounds() : model_(RateOptions(), Random(1)), loss_(&model_) {}

  // Round trips at a rate, of packets of which every so manieth is lost; 0: none.
  void Send(int rounds, BbrState state, double mbps, double share) {
    for (int i = 0; i < rounds; ++i) Send(state, Bandwidth::Mbps(mbps), share);
  }
  // At the rate of the path, and at 0.7 of what it delivers, often enough that this is not forgotten
  // meanwhile.
  void Fast(int rounds, double share) { Send(rounds, BbrState::kProbeBwCruise, 100, share); }
  void Slow(int rounds, double share) {
    for (int i = 0; i < rounds; i += 3) {
      Send(1, BbrState::kProbeBwCruise, 100, share);
      Send(3, BbrState::kProbeBwDown, 70 * (1 - share), share);
    }
    Send(1, BbrState::kProbeBwCruise, 100, share);  // tells the fate of the last slow one
  }
  void SetRtt(Duration rtt) { rtt_ = rtt; }
  const PathLoss& loss() const { return loss_; }

 private:
  void Send(BbrState state, Bandwidth rate, double share) {
    const ByteCount packet = model_.options.max_datagram;
    BbrEvent& event = model_.event;
    model_.state = state;
    model_.bounded_rate = rate;
    loss_.OnPacketSent();
    owed_ += share * kPackets;
    const auto lost = static_cast<int>(owed_);
    owed_ -= lost;
    event.now += rtt_;
    event.path_rtt = rtt_;
    event.delivered_rate = event.sample_rate = rate * (1 - share);
    event.newly_lost = packet * int64_t{lost};
    event.newly_acked = packet * int64_t{kPackets - 1 - lost};
    event.delivered += event.newly_acked;
    model_.min_rtt_filter.Update(event.now, rtt_, MinRttFilter::kFilterLen, false);
    model_.rounds.CountLoss(event.newly_lost, ByteCount());
    for (int i = 0; i < lost; ++i) model_.rounds.CountLostPacket(number_ += 2);
    model_.rounds.Count(event);
    loss_.OnEventEnd();
    event.newly_lost = ByteCount();
    event.newly_acked = packet;
    event.delivered += packet;
    event.rs.prior_delivered = event.delivered;
    ASSERT_TRUE(model_.rounds.Advance(event));
    loss_.OnRoundEnd(share > 0.02);
    model_.rounds.Count(event);
    loss_.OnEventEnd();
  }

  BbrModel model_;
  PathLoss loss_;
  Duration rtt_ = milliseconds(40);
  double owed_ = 0;
  uint64_t number_ = 0;
};

TEST(RateInvariantsOfPathLoss, WithoutAnExperimentNothingIsThePaths) {
  Rounds rounds;
  rounds.Fast(50, 0.3);
  EXPECT_FALSE(rounds.loss().known());
  EXPECT_EQ(rounds.loss().floor(), 0);
  EXPECT_TRUE(rounds.loss().asks());
}

TEST(RateInvariantsOfPathLoss, WhatIsLostBelowTheDeliveredRateIsThePaths) {
  Rounds rounds;
  rounds.Slow(12, 0.2);
  ASSERT_TRUE(rounds.loss().known());
  EXPECT_NEAR(rounds.loss().floor(), 0.2, 0.02);
}

TEST(RateInvariantsOfPathLoss, HalfOfWhatIsSentIsTheMost) {
  Rounds rounds;
  rounds.Slow(12, 0.7);
  EXPECT_EQ(rounds.loss().floor(), 0.5);
}

TEST(RateInvariantsOfPathLoss, NotMoreThanTheLastExperimentsHaveShown) {
  Rounds rounds;
  rounds.Slow(12, 0.2);
  EXPECT_NEAR(rounds.loss().floor(), 0.2, 0.02);
  // One answer, and half a block of the smallest measurement.
  rounds.Send(1, BbrState::kProbeBwDown, 56, 0);
  rounds.Fast(1, 0);
  EXPECT_LE(rounds.loss().floor(), 0.05);
}

TEST(RateInvariantsOfPathLoss, NotMoreThanIsLostAtAll) {
  Rounds rounds;
  rounds.Slow(12, 0.2);
  EXPECT_NEAR(rounds.loss().floor(), 0.2, 0.02);
  rounds.Fast(30, 0);
  EXPECT_LE(rounds.loss().floor(), 0.02);
}

TEST(RateInvariantsOfPathLoss, AnAnswerThatTheNextOneContradictsIsForgotten) {
  Rounds rounds;
  rounds.Slow(24, 0);
  EXPECT_LE(rounds.loss().upper(), 0.02);
  rounds.Slow(3, 0.2);
  EXPECT_GE(rounds.loss().upper(), 0.18);
}

// One experiment among many may meet the end of an overload, or a burst: it takes more than one to raise l0.
TEST(RateInvariantsOfPathLoss, OneAnswerOfMoreLossIsNotYetBelieved) {
  Rounds rounds;
  rounds.Slow(24, 0);
  rounds.Send(1, BbrState::kProbeBwDown, 56, 0.2);
  rounds.Fast(1, 0.2);
  EXPECT_LE(rounds.loss().upper(), 0.03);
}

// Where several flows keep a queue full, one that steps back loses less: that part is theirs, not the path's.
TEST(RateInvariantsOfPathLoss, WhatFallsWithTheRateIsNotThePaths) {
  for (const bool elastic : {false, true}) {
    SCOPED_TRACE(elastic);
    Rounds rounds;
    for (int i = 0; i < 16; ++i) {
      rounds.Slow(3, 0.06);
      rounds.Fast(8, elastic ? 0.1 : 0.06);
    }
    if (elastic) {
      EXPECT_LE(rounds.loss().floor(), 0.03);
    } else {
      EXPECT_NEAR(rounds.loss().floor(), 0.06, 0.01);
    }
  }
}

TEST(RateInvariantsOfPathLoss, FlowsDoNotExcuseEachOthersOverloadForEver) {
  Rounds rounds;
  rounds.Slow(12, 0.2);
  ASSERT_NEAR(rounds.loss().floor(), 0.2, 0.02);
  EXPECT_LE(rounds.loss().Excused(), rounds.loss().floor() * 0.81);
  EXPECT_GE(rounds.loss().Excused(), rounds.loss().floor() * 0.7);
}

TEST(RateInvariantsOfPathLoss, OfAnotherPathNothingIsKnown) {
  Rounds rounds;
  rounds.Slow(12, 0.2);
  EXPECT_TRUE(rounds.loss().known());
  rounds.SetRtt(milliseconds(120));
  rounds.Fast(300, 0);  // until the minimum RTT of ten seconds is forgotten
  EXPECT_FALSE(rounds.loss().known());
  EXPECT_EQ(rounds.loss().floor(), 0);
}

}  // namespace
}  // namespace longhaul::transport
