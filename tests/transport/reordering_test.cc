// Packets that overtake others by half a round trip, in both directions: windows take little longer than
// without, and when order returns they take as long as before at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "tests/transport/connection_pair.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;

constexpr uint32_t kChunks = 300;

class Reordering : public testing::Test {
 protected:
  Duration Windows(ConnectionPair* pair, uint32_t count) {
    const Instant begin = pair->now();
    for (uint32_t i = 0; i < count; ++i) {
      const WindowKey key{++id_, 0};
      pair->SendWindow(key, kChunks, 0, 20);
      EXPECT_TRUE(pair->RunUntil([&] { return pair->worker.outgoing.contains(key); }, 60s));
      pair->RunFor(30ms);
    }
    return (pair->now() - begin) / count - 30ms;
  }
  static ConnectionPair::Options Options(const std::string& link, uint64_t seed) {
    ConnectionPair::Options options;
    options.link = link;
    options.seed = seed;
    return options;
  }

  uint32_t id_ = 0;
};

TEST_F(Reordering, AThirdThatOvertakesCostsLittle) {
  const std::string path = "rate 33mbit delay 10ms loss 1%";
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    ConnectionPair plain(Options(path, seed));
    ASSERT_TRUE(plain.Establish());
    const Duration usual = Windows(&plain, 20);
    ConnectionPair pair(Options(path + " reorder 30%", seed));
    ASSERT_TRUE(pair.Establish());
    const Duration reordered = Windows(&pair, 30);
    pair.network().SetLinkBothWays(pair.worker_site(), pair.server_site(),
                                   wan::ParseLinkOptions(path).value());
    Windows(&pair, 4);  // two thirds of a second
    const Duration after = Windows(&pair, 10);
    std::printf("  a window takes %.0f ms; where 30 %% overtake %.0f ms, then %.0f ms\n",
                std::chrono::duration<double, std::milli>(usual).count(),
                std::chrono::duration<double, std::milli>(reordered).count(),
                std::chrono::duration<double, std::milli>(after).count());
    EXPECT_LE(reordered, usual * 5);
    EXPECT_LE(after, usual * 3 / 2);
  }
}

// Without a pause, too: what was the minimum among overtakers is none when they are gone.
TEST_F(Reordering, ABusyFlowForgetsThemWhenOrderReturns) {
  const std::string path = "rate 33mbit delay 10ms";
  ConnectionPair pair(Options(path + " reorder 30%", 1));
  ASSERT_TRUE(pair.Establish());
  pair.SendWindow({1, 0}, 15'000, 0, 20);  // five seconds
  pair.RunFor(2s);
  EXPECT_LT(pair.connection->stats().rate.min_rtt, 18ms) << "their mean";
  pair.network().SetLinkBothWays(pair.worker_site(), pair.server_site(), wan::ParseLinkOptions(path).value());
  pair.RunFor(1500ms);
  ASSERT_FALSE(pair.worker.outgoing.contains({1, 0}));
  EXPECT_GE(pair.connection->stats().rate.min_rtt, 20ms);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.outgoing.contains({1, 0}); }, 60s));
}

// Overtaking by chance is no rule: the minimum neither falls to the overtaker's time nor rises to the mean.
TEST_F(Reordering, AFewThatOvertakeDoNotMoveTheMinimum) {
  for (const char* share : {"0.01%", "0.03%", "0.1%", "1%"}) {
    ConnectionPair pair(Options(std::string("rate 33mbit delay 10ms queue 1s reorder ") + share, 1));
    ASSERT_TRUE(pair.Establish());
    pair.SendWindow({++id_, 0}, 60'000, 0, 20);
    pair.RunFor(2s);
    Duration least = Duration::max(), largest{0}, smoothed{0};
    for (int i = 0; i < 160; ++i) {
      pair.RunFor(100ms);
      const ConnectionStats stats = pair.connection->stats();
      least = std::min(least, stats.rate.min_rtt);
      largest = std::max(largest, stats.rate.min_rtt);
      smoothed = std::max(smoothed, stats.smoothed_rtt);
    }
    const auto ms = [](Duration d) { return std::chrono::duration<double, std::milli>(d).count(); };
    std::printf("  %s overtake: minimum %.1f to %.1f ms, smoothed at most %.1f ms\n", share, ms(least),
                ms(largest), ms(smoothed));
    const bool often = std::string(share) == "1%";  // a packet in each flight: now and then by rule
    EXPECT_GE(least, often ? 14ms : 19ms);
    EXPECT_LE(largest, often ? 32ms : 24ms);
    EXPECT_LE(smoothed, often ? 100ms : 40ms);
  }
}

}  // namespace
}  // namespace longhaul::transport
