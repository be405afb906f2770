#include "server/grants/capacity_estimator.h"

#include <gtest/gtest.h>

namespace longhaul::server {
namespace {

using std::chrono::milliseconds;

constexpr Duration kRtt = milliseconds(20);

class CapacityEstimatorTest : public testing::Test {
 protected:
  // Eight senders that send `mbps` together; all see the same queue.
  ArrivalSample Shared(double mbps, Duration queue) {
    now_ += kRtt / 4;
    ArrivalSample s;
    s.now = now_;
    s.rtt = kRtt;
    s.arrival = Bandwidth::Mbps(mbps);
    s.sending = 8;
    s.queue = queue;
    const bool queued = queue > CapacityEstimator::QueueThreshold(kRtt);
    s.queued = queued ? 8 : 0;
    s.bound = estimator.known() ? 8 : 0;
    s.bound_queued = queued ? s.bound : 0;
    s.bound_free = queue < CapacityEstimator::NoQueue(kRtt) ? s.bound : 0;
    return s;
  }
  // n round trips through a link of `link` Mbit/s with senders that send what they may.
  void SendAllThatIsGranted(double link, int rtts) {
    double queue_ms = 0;
    for (int i = 0; i < rtts * 4; ++i) {
      const double sent = estimator.budget().mbps();
      queue_ms = std::max(0.0, queue_ms + (sent / link - 1) * 5);
      longest_ = std::max(longest_, queue_ms);
      estimator.OnSample(Shared(queue_ms > 0 ? link : sent, Duration(static_cast<int64_t>(queue_ms * 1e6))));
    }
  }

  CapacityEstimator estimator{{}};
  Instant now_;
  double longest_ = 0;
};

TEST_F(CapacityEstimatorTest, KnowsNothingWithoutAQueue) {
  for (int i = 0; i < 1000; ++i) estimator.OnSample(Shared(150, Duration(0)));
  EXPECT_FALSE(estimator.known());
  EXPECT_TRUE(estimator.budget().IsZero());
}

TEST_F(CapacityEstimatorTest, WhatArrivesUnderASharedQueueIsTheCapacity) {
  estimator.OnSample(Shared(200, milliseconds(8)));
  EXPECT_NEAR(estimator.capacity().mbps(), 200, 0.1);
  EXPECT_LT(estimator.budget(), estimator.capacity());  // the queue drains
  for (int i = 0; i < 8; ++i) estimator.OnSample(Shared(180, Duration(0)));
  EXPECT_EQ(estimator.budget(), estimator.capacity());
}

TEST_F(CapacityEstimatorTest, OneSenderIsNeverBounded) {
  for (int i = 0; i < 100; ++i) {
    ArrivalSample s = Shared(100, milliseconds(30));
    s.sending = s.queued = 1;
    estimator.OnSample(s);
  }
  EXPECT_FALSE(estimator.known());
}

TEST_F(CapacityEstimatorTest, QueuesOfTheirOwnAreNotShared) {
  for (int i = 0; i < 100; ++i) {
    ArrivalSample s = Shared(100, milliseconds(30));
    s.queued = 4;  // of eight
    estimator.OnSample(s);
  }
  EXPECT_FALSE(estimator.known());
}

TEST_F(CapacityEstimatorTest, ProbesWithoutBuildingMuchOfAQueue) {
  estimator.OnSample(Shared(200, milliseconds(8)));
  SendAllThatIsGranted(200, 400);
  EXPECT_NEAR(estimator.capacity().mbps(), 200, 10);
  EXPECT_LT(longest_, 10.0);  // half a bandwidth-delay product
}

TEST_F(CapacityEstimatorTest, FollowsALinkThatGrowsAndOneThatShrinks) {
  estimator.OnSample(Shared(100, milliseconds(8)));
  SendAllThatIsGranted(200, 100);
  EXPECT_GT(estimator.capacity().mbps(), 190);
  SendAllThatIsGranted(50, 10);
  EXPECT_LT(estimator.capacity().mbps(), 60);
}

TEST_F(CapacityEstimatorTest, GoesUpFastWhenOthersQueueButWhoIsBoundDoesNot) {
  estimator.OnSample(Shared(100, milliseconds(8)));
  for (int i = 0; i < 40; ++i) {  // ten round trips
    ArrivalSample s = Shared(100, Duration(0));
    s.bound = s.bound_free = 2;
    s.queued = 6;
    s.queue = milliseconds(20);
    estimator.OnSample(s);
  }
  EXPECT_GT(estimator.capacity().mbps(), 200);  // until less than half of it is used
  EXPECT_LT(estimator.capacity().mbps(), 260);
}

TEST_F(CapacityEstimatorTest, StaysWhenNobodyUsesWhatHeHas) {
  estimator.OnSample(Shared(100, milliseconds(8)));
  for (int i = 0; i < 400; ++i) {
    ArrivalSample s = Shared(60, Duration(0));
    s.bound = s.bound_free = 0;
    estimator.OnSample(s);
  }
  EXPECT_NEAR(estimator.capacity().mbps(), 100, 0.1);
}

TEST_F(CapacityEstimatorTest, CountsWhatIsSentNotWhatTheLinkUsuallyLoses) {
  for (int i = 0; i < 400; ++i) {
    ArrivalSample s = Shared(90, Duration(0));
    s.loss = 0.1;
    estimator.OnSample(s);
  }
  EXPECT_NEAR(estimator.usual_loss(), 0.1, 0.001);
  ArrivalSample s = Shared(180, milliseconds(8));
  s.loss = 0.1;
  estimator.OnSample(s);
  EXPECT_NEAR(estimator.capacity().mbps(), 200, 1);
}

TEST_F(CapacityEstimatorTest, LossBeyondTheUsualIsCongestionWhereABufferIsTooShortToQueue) {
  estimator.OnSample(Shared(200, milliseconds(8)));
  for (int i = 0; i < 40; ++i) estimator.OnSample(Shared(190, Duration(0)));
  const Bandwidth before = estimator.capacity();
  ArrivalSample s = Shared(100, milliseconds(1));
  s.loss = 0.2;
  estimator.OnSample(s);
  EXPECT_LT(estimator.capacity(), before * 0.6);
}

TEST_F(CapacityEstimatorTest, KeepsToItsBounds) {
  CapacityEstimator bounded({.floor = Bandwidth::Mbps(80), .cap = Bandwidth::Mbps(120)});
  bounded.OnSample(Shared(20, milliseconds(8)));
  EXPECT_EQ(bounded.capacity(), Bandwidth::Mbps(80));
  now_ += std::chrono::seconds(1);
  ArrivalSample s = Shared(500, milliseconds(8));
  s.bound = s.bound_queued = 8;
  bounded.OnSample(s);
  EXPECT_LE(bounded.capacity(), Bandwidth::Mbps(120));
}

}  // namespace
}  // namespace longhaul::server
