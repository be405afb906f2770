// The simulated path does what its options say; controllers are judged elsewhere.
#include "tests/sim/rate/rate_sim.h"

#include <gtest/gtest.h>

#include <vector>

namespace longhaul::transport::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

Instant At(Duration time) { return Instant() + time; }

// --- The bottleneck alone ---

TEST(BottleneckTest, TheQueueServesAtItsRateAndDropsWhatDoesNotFit) {
  LinkOptions link;
  link.rate = Bandwidth::BytesPerSecond(kDatagram.value() * 1000);  // a packet a millisecond
  link.buffer = kDatagram * int64_t{10};
  Bottleneck path(link, Random(1));
  for (int i = 1; i <= 10; ++i) {
    const auto verdict = path.Offer(Instant());
    EXPECT_EQ(verdict.fate, Bottleneck::Fate::kArrives);
    EXPECT_EQ(verdict.leaves, At(milliseconds(i)));
    EXPECT_EQ(verdict.delay, link.rtt / 2);
  }
  EXPECT_EQ(path.Offer(Instant()).fate, Bottleneck::Fate::kQueueDrop);
  EXPECT_EQ(path.MeanQueue(), microseconds(4500));
  EXPECT_EQ(path.MinQueue(), Duration(0));
  EXPECT_EQ(path.Offer(At(milliseconds(1))).fate, Bottleneck::Fate::kArrives);
}

TEST(BottleneckTest, BurstsHaveTheirMeanLengthAndShare) {
  const LinkOptions link{.loss = 0.05, .mean_burst = 10};
  Bottleneck path(link, Random(7));
  int lost = 0;
  int bursts = 0;
  bool before = false;
  constexpr int kPackets = 400'000;
  for (int i = 0; i < kPackets; ++i) {
    const bool now = path.Offer(At(milliseconds(i))).fate == Bottleneck::Fate::kLost;
    lost += now;
    bursts += now && !before;
    before = now;
  }
  EXPECT_NEAR(static_cast<double>(lost) / kPackets, 0.05, 0.005);
  EXPECT_NEAR(static_cast<double>(lost) / bursts, 10, 0.7);
}

TEST(BottleneckTest, LossOfAcksIsItsOwn) {
  LinkOptions link;
  link.ack_loss = 0.5;
  Bottleneck path(link, Random(3));
  int lost = 0;
  for (int i = 0; i < 10'000; ++i) lost += path.LosesAck();
  EXPECT_NEAR(lost, 5000, 200);
  EXPECT_EQ(path.Offer(Instant()).fate, Bottleneck::Fate::kArrives);
}

TEST(BottleneckTest, APolicerPassesItsBurstAndThenItsRate) {
  const LinkOptions link{.rate = Bandwidth::Mbps(1000),
                         .policer_rate = Bandwidth::BytesPerSecond(kDatagram.value() * 100),
                         .policer_burst = kDatagram * int64_t{20}};
  Bottleneck path(link, Random(1));
  int passed = 0;
  for (int i = 0; i < 10'000; ++i)
    passed += path.Offer(At(milliseconds(i))).fate == Bottleneck::Fate::kArrives;
  EXPECT_NEAR(passed, 1020, 1);
}

TEST(BottleneckTest, AcksComeInBatches) {
  LinkOptions link;
  link.ack_batch = milliseconds(10);
  const Bottleneck path(link, Random(1));
  EXPECT_EQ(path.AckArrival(At(milliseconds(11))), At(milliseconds(20)));
  EXPECT_EQ(path.AckArrival(At(milliseconds(20))), At(milliseconds(20)));
}

TEST(BottleneckTest, MarksAboveItsThreshold) {
  const LinkOptions link{.rate = Bandwidth::BytesPerSecond(kDatagram.value() * 1000),
                         .buffer = kDatagram * int64_t{100},
                         .mark_above = milliseconds(3)};
  Bottleneck path(link, Random(1));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(path.Offer(Instant()).marked, i > 3) << i;
}

TEST(BottleneckTest, JitterInOrderLetsNothingOvertake) {
  LinkOptions link;
  link.jitter = milliseconds(5);
  link.jitter_in_order = true;
  Bottleneck path(link, Random(1));
  Instant latest;
  Duration most{0};
  int together = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto verdict = path.Offer(At(microseconds(200) * i));
    const Instant arrives = verdict.leaves + verdict.delay;
    EXPECT_GE(arrives, latest);
    together += arrives == latest;
    latest = arrives;
    most = std::max(most, verdict.delay - link.rtt / 2);
  }
  EXPECT_NEAR(static_cast<double>(most.count()) / 1e6, 4.9, 0.1);
  // The delay falls every second time, by a third of `jitter` in the mean: eight of the 25 packets that share
  // a delay come with the last one of the delay before.
  EXPECT_NEAR(together, 20'000 / 25 * 4, 800);
}

// --- Applications ---

TEST(ApplicationTest, ProducesItsRateWhileOn) {
  FlowOptions flow;
  flow.app_rate = Bandwidth::BytesPerSecond(kDatagram.value() * 100);
  flow.on = milliseconds(500);
  flow.off = milliseconds(1500);
  Application app(flow);
  int sent = 0;
  for (int ms = 0; ms <= 10'000; ++ms) {
    while (app.HasData(At(milliseconds(ms)), true)) {
      app.OnSent();
      ++sent;
    }
  }
  EXPECT_NEAR(sent, 250, 1);  // five times half a second
  app.SetPaused(true);
  EXPECT_FALSE(app.HasData(At(seconds(100)), true));
  EXPECT_TRUE(app.NextData(At(seconds(100))).IsInfinite());
}

// --- Whole runs ---

TEST(RateSim, TheSameSeedGivesTheSameRun) {
  std::vector<int64_t> arrived;
  for (const uint64_t seed : {5, 5, 6}) {
    const LinkOptions link{.loss = 0.02, .jitter = milliseconds(1), .seed = seed};
    Simulation simulation(link);
    simulation.AddFlow({});
    simulation.AddFlow({});
    simulation.RunUntil(At(seconds(3)));
    arrived.push_back(simulation.stats(0).arrived.value());
  }
  EXPECT_EQ(arrived[0], arrived[1]);
  EXPECT_NE(arrived[0], arrived[2]);
}

TEST(RateSim, AFlowHasItsOwnRoundTripTime) {
  Simulation simulation({});
  FlowOptions far;
  far.extra_rtt = milliseconds(30);
  simulation.AddFlow(far);
  simulation.RunUntil(At(seconds(1)));
  EXPECT_NEAR(static_cast<double>(simulation.flow(0).rtt().min_rtt().count()) / 1e6, 50, 1);
}

TEST(RateSim, ALongerPathIsFelt) {
  Simulation simulation({});
  simulation.AddFlow({});
  simulation.At(At(seconds(1)), [&] { simulation.SetRtt(milliseconds(60)); });
  simulation.RunUntil(At(seconds(3)));
  EXPECT_GE(simulation.flow(0).rtt().latest_rtt(), milliseconds(60));
}

TEST(RateSim, NothingArrivesDuringAnOutage) {
  Simulation simulation({});
  simulation.AddFlow({});
  simulation.At(At(seconds(1)), [&] { simulation.SetDown(true); });
  simulation.At(At(seconds(2)), [&] { simulation.SetDown(false); });
  simulation.RunUntil(At(milliseconds(1200)));
  simulation.ResetStats();
  simulation.RunUntil(At(milliseconds(2000)));
  EXPECT_EQ(simulation.stats(0).arrived, ByteCount());
  EXPECT_GT(simulation.stats(0).sent, ByteCount());  // probes
  simulation.RunUntil(At(seconds(4)));
  EXPECT_GT(simulation.stats(0).arrived, ByteCount());
}

TEST(RateSim, AStalledSenderSendsNothingAndIsApplicationLimited) {
  Simulation simulation({});
  simulation.AddFlow({});
  simulation.RunUntil(At(seconds(1)));
  EXPECT_FALSE(simulation.flow(0).sampler().is_app_limited());
  simulation.Stall(0, milliseconds(50));
  simulation.ResetStats();
  simulation.RunUntil(At(milliseconds(1049)));
  EXPECT_EQ(simulation.stats(0).sent, ByteCount());
  simulation.RunUntil(At(milliseconds(1051)));
  EXPECT_GT(simulation.stats(0).sent, ByteCount());
  EXPECT_TRUE(simulation.flow(0).sampler().is_app_limited());
}

TEST(RateSim, AStallIsMarkedAsAConnectionMarksIt) {
  FlowOptions flow;
  flow.stall_marks = StallMarks::kPacer;
  for (const int ms : {1, 50}) {
    Simulation simulation({});
    simulation.AddFlow(flow);
    simulation.RunUntil(At(seconds(1)));
    simulation.Stall(0, milliseconds(ms));
    simulation.RunUntil(At(seconds(1) + milliseconds(ms) + microseconds(100)));
    // The pacer's credit covers a millisecond.
    EXPECT_EQ(simulation.flow(0).sampler().is_app_limited(), ms == 50) << ms;
  }
}

TEST(RateSim, AStalledReceiverReadsTogetherAndAcknowledgesOnce) {
  Simulation simulation({});
  simulation.AddFlow({});
  simulation.RunUntil(At(seconds(1)));
  simulation.StallReceiver(0, milliseconds(8));
  simulation.ResetStats();
  simulation.RunUntil(At(milliseconds(1007)));
  EXPECT_EQ(simulation.stats(0).arrived, ByteCount());
  EXPECT_GT(simulation.stats(0).sent, ByteCount());  // the sender knows nothing of it
  simulation.RunUntil(At(milliseconds(1008)));
  const ByteCount waited = simulation.stats(0).arrived;
  EXPECT_NEAR(waited / (Bandwidth::Mbps(100) * milliseconds(8)), 1, 0.1);
  // ACKs of before are read within half a round trip; the next one names all that waited.
  simulation.RunUntil(At(milliseconds(1017)));
  ByteCount acked;
  simulation.flow(0).SetObserver([&](const CongestionEvent& e) { acked = std::max(acked, e.acked); });
  simulation.RunUntil(At(milliseconds(1019)));
  EXPECT_GE(acked, waited);
}

TEST(RateSim, AnApplicationOfTenMegabitsSendsTen) {
  Simulation simulation({});
  FlowOptions flow;
  flow.app_rate = Bandwidth::Mbps(10);
  simulation.AddFlow(flow);
  simulation.RunUntil(At(seconds(2)));
  simulation.ResetStats();
  simulation.RunUntil(At(seconds(4)));
  EXPECT_NEAR(simulation.Goodput(0).mbps(), 10, 0.1);
  simulation.SetPaused(0, true);
  simulation.RunUntil(At(seconds(5)));
  simulation.ResetStats();
  simulation.RunUntil(At(seconds(6)));
  EXPECT_EQ(simulation.stats(0).arrived, ByteCount());
}

TEST(RateSim, AFilterLosesAndDelaysWhatItNames) {
  LinkOptions link;
  link.buffer_bdp = 20;  // no other loss
  Simulation simulation(link);
  simulation.AddFlow({});
  simulation.flow(0).SetFilter([](uint64_t number, Instant) {
    return number == 6000 ? PacketFate{.lost = true}
                          : PacketFate{.extra = milliseconds(number == 7000 ? 50 : 0)};
  });
  simulation.RunUntil(At(seconds(2)));
  EXPECT_EQ(simulation.stats(0).queue_drops, ByteCount());
  EXPECT_EQ(simulation.loss(0).packets_lost(), 2u);
  EXPECT_EQ(simulation.loss(0).packets_spurious(), 1u);
}

TEST(RateSim, ASlowerLinkServesWhatAlreadyQueues) {
  LinkOptions link;
  link.buffer = kDatagram * int64_t{1000};
  Simulation simulation(link);
  simulation.AddFlow({});
  simulation.RunUntil(At(seconds(2)));
  simulation.SetRate(Bandwidth::Mbps(1));
  simulation.ResetStats();
  simulation.RunUntil(At(seconds(3)));
  // What had left the queue before is at most one-way delay old.
  EXPECT_LE(simulation.stats(0).arrived,
            Bandwidth::Mbps(100) * milliseconds(10) + Bandwidth::Mbps(1) * seconds(1));
}

TEST(RateSim, JainsIndex) {
  EXPECT_DOUBLE_EQ(JainIndex({0.5, 0.5}), 1);
  EXPECT_DOUBLE_EQ(JainIndex({1, 0, 0, 0}), 0.25);
}

}  // namespace
}  // namespace longhaul::transport::sim
