// Bugs of other stacks' rate control, as their users met them: each scenario here once broke one of them. The
// seventh of the family, segmentation offload that fails after it has worked (quinn #2399), is a matter of
// sockets: DatagramSender.SegmentationMayFailAfterItHasWorked in tests/udp/socket_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/sim/rate/rate_sim.h"

namespace longhaul::transport {
namespace {

using sim::FlowOptions;
using sim::kDatagram;
using sim::LinkOptions;
using sim::Simulation;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

class RateRegression : public testing::TestWithParam<RateControl> {
 protected:
  std::unique_ptr<Simulation> Start(const LinkOptions& link, FlowOptions flow = {}) {
    flow.rate.control = GetParam();
    auto simulation = std::make_unique<Simulation>(link);
    simulation->AddFlow(flow);
    return simulation;
  }
  // Goodput of each second (or other slot), in Mbit/s.
  static std::vector<double> Slots(Simulation* simulation, int count, Duration slot = seconds(1)) {
    std::vector<double> mbps;
    for (int i = 0; i < count; ++i) {
      simulation->ResetStats();
      simulation->RunUntil(simulation->now() + slot);
      mbps.push_back(simulation->Goodput(0).mbps());
    }
    return mbps;
  }
  static double Mean(const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  }
};

// CUBIC takes every loss for congestion: on these paths it collapses by design.
class LossRegression : public RateRegression {};

// picoquic #1612: on loopback, with batches of segments that share a send time, every sample fell a little
// short; the maximum of ten rounds forgot the better ones, and the rate went down step by step to 5 Mbit/s.
TEST_P(RateRegression, LoopbackWithSegmentationOffloadDoesNotCollapse) {
  LinkOptions link{.rate = Bandwidth::Mbps(4000), .rtt = microseconds(100)};
  link.buffer = ByteCount(4 << 20);  // a socket's
  FlowOptions flow;
  flow.offload = true;
  auto simulation = Start(link, flow);
  // The CPU is busy elsewhere for 2 ms of every 20: twenty round trips.
  for (int i = 1; i < 150; ++i) {
    simulation->At(Instant() + milliseconds(20) * i, [&] { simulation->Stall(0, milliseconds(2)); });
  }
  simulation->RunUntil(Instant() + milliseconds(200));
  const std::vector<double> mbps = Slots(simulation.get(), 4, milliseconds(700));
  for (const double slot : mbps) EXPECT_GE(slot, 3200);  // measured 3700
  EXPECT_GE(mbps.back(), mbps.front() * 0.8);            // it does not go down step by step
}

// picoquic #2118: on a path of microseconds the window froze at five packets, since a delay test that noise
// fails for ever kept the flow from probing: 50 Mbit/s for good.
TEST_P(RateRegression, UltraLowRoundTripTimesDoNotFreezeTheWindow) {
  LinkOptions link{.rate = Bandwidth::Mbps(2000), .rtt = microseconds(20)};
  link.jitter = microseconds(200);  // the scheduler's: ten times the path
  link.buffer = ByteCount(1 << 20);
  auto simulation = Start(link);
  simulation->RunUntil(Instant() + milliseconds(500));
  ByteCount largest;
  simulation->ResetStats();
  simulation->RunUntil(Instant() + milliseconds(2500), [&] {
    largest = std::max(largest, simulation->controller(0).cwnd());
    return false;
  });
  EXPECT_GE(largest, kDatagram * int64_t{20});
  EXPECT_GE(simulation->Goodput(0).mbps(), 1000);  // measured 2000
}

// Our own: a busy host delayed packets by its scheduler's ticks, round after round; on a path of microseconds
// that looks like a standing queue that others keep. Yielding to it by 3 % a round ended at 2 Mbit/s, where
// the peer's ACK delay was all of the RTT and kept it there.
TEST_P(RateRegression, ABusyHostIsNoStandingQueue) {
  const LinkOptions link{
      .rate = Bandwidth::Mbps(2000), .rtt = microseconds(20), .buffer = ByteCount(4 << 20)};
  FlowOptions flow;
  flow.offload = true;
  auto simulation = Start(link, flow);
  simulation->RunUntil(Instant() + milliseconds(300));
  // Scheduled for a moment every 4 ms: no ACK is read sooner.
  Instant now = simulation->now();
  for (; now < Instant() + milliseconds(900); now = now + milliseconds(4)) {
    simulation->At(now, [&] { simulation->Stall(0, microseconds(3900)); });
  }
  Bandwidth least = Bandwidth::Max();
  simulation->RunUntil(now, [&] {
    least = std::min(least, simulation->controller(0).pacing_rate());
    return false;
  });
  EXPECT_GE(least.mbps(), 2000.0 / 17);                                   // without a bound 37, and falling
  EXPECT_GE(Slots(simulation.get(), 1, milliseconds(50)).front(), 1000);  // measured 1800
}

// picoquic #993: 1722 of the first 5328 packets were lost, on a path of 50 Mbit/s with a small buffer,
// because STARTUP took no notice of loss.
TEST_P(RateRegression, StartupDoesNotLoseAThirdOfWhatItSends) {
  for (const double buffer : {0.25, 0.5, 1.0, 2.0}) {
    SCOPED_TRACE(testing::Message() << buffer << " BDP");
    const LinkOptions link{.rate = Bandwidth::Mbps(50), .rtt = milliseconds(60), .buffer_bdp = buffer};
    auto simulation = Start(link);
    ASSERT_TRUE(simulation->RunUntil(Instant() + seconds(30),
                                     [&] { return simulation->stats(0).sent >= kDatagram * int64_t{5328}; }));
    // Measured 0.09. longhaul asks whose loss it is before it ends STARTUP: 0.17 in a quarter of a BDP.
    EXPECT_LE(simulation->OwnLoss(), GetParam() == RateControl::kLonghaul ? 0.18 : 0.11);
    EXPECT_LE(simulation->now(), Instant() + seconds(4));  // at the full rate 1.24 s
  }
}

// xquic #552: a 32-bit count of delivered bytes wrapped after 4.3 GB; no round ended any more and the flow
// crept at 20 Mbit/s for ever.
TEST_P(RateRegression, TheRateSurvivesFourGigabytes) {
  const LinkOptions link{.rate = Bandwidth::Mbps(10'000), .rtt = milliseconds(5)};
  FlowOptions flow;
  flow.rate.max_datagram = ByteCount(8896);  // jumbo frames, for fewer events
  auto simulation = Start(link, flow);
  ASSERT_TRUE(simulation->RunUntil(Instant() + seconds(60), [&] {
    return simulation->flow(0).sampler().delivered() > ByteCount(4'000'000'000);
  }));
  const double before = Mean(Slots(simulation.get(), 2, milliseconds(100)));
  ASSERT_TRUE(simulation->RunUntil(simulation->now() + seconds(5), [&] {
    return simulation->flow(0).sampler().delivered() > ByteCount((int64_t{1} << 32) + 100'000'000);
  }));
  std::set<std::string_view> states;
  simulation->RunUntil(simulation->now() + seconds(1), [&] {
    states.insert(simulation->controller(0).Snapshot().state);
    return false;
  });
  const double after = Mean(Slots(simulation.get(), 4, milliseconds(100)));
  EXPECT_GE(before, 5000);
  EXPECT_GE(after, before * 0.8);
  if (GetParam() != RateControl::kCubic) {
    EXPECT_TRUE(states.contains("probe_bw_up"));  // rounds still end: there are 62 between two probes
  }
}

// quiche #950: one percent of random loss, and the bit rate collapsed.
TEST_P(LossRegression, OnePercentOfLossDoesNotCollapseTheRate) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const LinkOptions link{.rtt = milliseconds(50), .loss = 0.01, .seed = seed};
    auto simulation = Start(link);
    simulation->RunUntil(Instant() + seconds(3));
    const std::vector<double> mbps = Slots(simulation.get(), 20);
    const bool bbr = GetParam() == RateControl::kBbr;
    // A loss rate of 1 % over any one round trip is beyond 2 % now and then: BBR pays for each of these.
    EXPECT_GE(Mean(mbps), bbr ? 70 : 90);
    EXPECT_GE(*std::min_element(mbps.begin(), mbps.end()), bbr ? 25 : 60);
  }
}

// quiche #2319: with experiments that left the draft, high loss made the bandwidth estimate wrong and erratic
// and filled the buffer.
TEST_P(LossRegression, HighLossDoesNotMakeTheEstimateErratic) {
  for (const double loss : {0.10, 0.20}) {
    SCOPED_TRACE(loss);
    const LinkOptions link{.rtt = milliseconds(50), .buffer_bdp = 4, .loss = loss};
    auto simulation = Start(link);
    simulation->RunUntil(Instant() + seconds(4));
    simulation->ResetStats();
    Bandwidth largest;
    simulation->RunUntil(Instant() + seconds(14), [&] {
      largest = std::max(largest, simulation->controller(0).Snapshot().bandwidth);
      return false;
    });
    EXPECT_LE(simulation->MeanQueueBdp(), 0.5);
    EXPECT_LE(largest.mbps(), 125);
    if (GetParam() == RateControl::kBbr) continue;  // beyond its 2 % it collapses, by design
    const std::vector<double> mbps = Slots(simulation.get(), 10);
    const double mean = Mean(mbps);
    EXPECT_GE(mean, 85 * (1 - loss));
    for (const double slot : mbps) EXPECT_NEAR(slot, mean, mean * 0.2);
  }
}

INSTANTIATE_TEST_SUITE_P(Controllers, RateRegression,
                         testing::Values(RateControl::kLonghaul, RateControl::kBbr, RateControl::kCubic),
                         [](const auto& p) { return std::string(NameOf(p.param)); });

INSTANTIATE_TEST_SUITE_P(Controllers, LossRegression,
                         testing::Values(RateControl::kLonghaul, RateControl::kBbr),
                         [](const auto& p) { return std::string(NameOf(p.param)); });

}  // namespace
}  // namespace longhaul::transport
