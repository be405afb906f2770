// ECN from end to end, in virtual time: a link that marks, and links that spoil the marks.
#include <gtest/gtest.h>

#include "tests/transport/connection_pair.h"

namespace longhaul::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using wan::Ecn;

struct Link {
  ConnectionPair::Options options;
  wan::VirtualNetwork::EcnRule forward;  // worker to server
};

// Sends windows one after the other for a while.
struct Transfer {
  explicit Transfer(Link link) : pair(link.options) {
    pair.network().SetEcnRule(pair.worker_site(), pair.server_site(), std::move(link.forward));
    EXPECT_TRUE(pair.Establish());
  }
  void Run(uint32_t windows) {
    for (uint32_t id = 1; id <= windows; ++id) {
      pair.SendWindow({id, 0}, 500, 500);
      EXPECT_TRUE(pair.RunUntil([&] { return pair.worker.outgoing.contains({id, 0}); }, seconds(20)));
    }
  }
  ConnectionStats stats() const { return pair.connection->stats(); }
  ConnectionPair pair;
};

Link Plain() { return {}; }

TEST(EcnEndToEnd, ACleanPathIsFoundCapableInBothDirections) {
  Transfer t(Plain());
  t.Run(2);
  EXPECT_EQ(t.stats().ecn_state, "capable");
  EXPECT_EQ(t.stats().ecn_ce, 0u);
  // The server has sent little; what it sent was marked and came through.
  const std::string_view server = t.pair.server.connection->stats().ecn_state;
  EXPECT_TRUE(server == "capable" || server == "testing") << server;
}

TEST(EcnEndToEnd, ItCanBeSwitchedOff) {
  Link link = Plain();
  link.options.worker.ecn = false;
  int marked = 0;
  link.forward = [&marked](Instant, Ecn ecn, Duration) {
    marked += ecn != Ecn::kNotEct ? 1 : 0;
    return ecn;
  };
  Transfer t(link);
  t.Run(1);
  EXPECT_EQ(t.stats().ecn_state, "off");
  EXPECT_EQ(marked, 0);
}

// A queue that marks from 5 ms on, as CoDel does, against the same queue that only drops.
TEST(EcnEndToEnd, AQueueThatMarksSlowsCubicWithoutLoss) {
  const auto run = [](bool marks) {
    Link link;
    link.options.link = "rate 50mbit delay 10ms queue 40ms";
    link.options.worker.rate.control = RateControl::kCubic;
    if (marks) {
      link.forward = [](Instant, Ecn ecn, Duration queue) {
        return ecn == Ecn::kEct0 && queue > milliseconds(5) ? Ecn::kCe : ecn;
      };
    }
    Transfer t(link);
    t.Run(20);
    return t.stats();
  };
  const ConnectionStats drops = run(false);
  const ConnectionStats marks = run(true);
  EXPECT_EQ(drops.ecn_ce, 0u);
  EXPECT_GT(drops.packets_lost, 0u);
  EXPECT_EQ(marks.ecn_state, "capable");
  EXPECT_GT(marks.ecn_ce, 0u);
  EXPECT_EQ(marks.packets_lost, 0u);
  EXPECT_LT(marks.smoothed_rtt, drops.smoothed_rtt);
}

TEST(EcnEndToEnd, APathThatBleachesIsLeftAlone) {
  Link link = Plain();
  uint64_t marked = 0;
  uint64_t seen = 0;
  link.forward = [&](Instant, Ecn ecn, Duration) {
    ++seen;
    marked += ecn == Ecn::kEct0 ? 1 : 0;
    return Ecn::kNotEct;
  };
  Transfer t(link);
  t.Run(3);
  EXPECT_EQ(t.stats().ecn_state, "failed");
  EXPECT_LE(marked, 64u);  // a batch
  EXPECT_GE(seen, 3000u);
  EXPECT_EQ(t.stats().packets_lost, 0u);
}

TEST(EcnEndToEnd, APathThatManglesTheMarkIsLeftAlone) {
  Link link = Plain();
  link.forward = [](Instant, Ecn ecn, Duration) { return ecn == Ecn::kEct0 ? Ecn::kEct1 : ecn; };
  Transfer t(link);
  t.Run(2);
  EXPECT_EQ(t.stats().ecn_state, "failed");
}

TEST(EcnEndToEnd, MarksOnWhatWasNotMarkedAreNotBelieved) {
  Link link = Plain();
  link.options.worker.ecn = false;
  link.forward = [](Instant, Ecn, Duration) { return Ecn::kCe; };
  Transfer t(link);
  t.Run(2);
  EXPECT_EQ(t.stats().ecn_ce, 0u);
}

TEST(EcnEndToEnd, LossReorderingAndDuplicatesDoNotFailIt) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    Link link;
    link.options.seed = seed;
    // Not with packets that skip the delay: they make the minimum RTT wrong and the rate collapses.
    link.options.link =
        "rate 200mbit delay 25ms jitter 2ms jitter-reorders queue 50ms loss 10% duplicate 1% corrupt 0.1%";
    Transfer t(link);
    t.Run(3);
    EXPECT_EQ(t.stats().ecn_state, "capable");
  }
}

}  // namespace
}  // namespace longhaul::transport
