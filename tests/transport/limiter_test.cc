// Where the time goes: how long each limiter held the sending back.
#include "tests/transport/connection_pair.h"

namespace longhaul::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

double Share(const ConnectionStats& stats, RateLimiter limiter) {
  Duration sum(0);
  for (const Duration d : stats.limited) sum += d;
  return static_cast<double>(stats.limited[static_cast<size_t>(limiter)].count()) /
         static_cast<double>(sum.count());
}

TEST(LimiterTest, AnIdleConnectionIsLimitedByItsApplication) {
  ConnectionPair pair({});
  ASSERT_TRUE(pair.Establish());
  pair.RunFor(seconds(1));
  EXPECT_GT(Share(pair.connection->stats(), RateLimiter::kApp), 0.95);
}

TEST(LimiterTest, ABulkTransferIsLimitedByPacing) {
  ConnectionPair pair({});
  ASSERT_TRUE(pair.Establish());
  pair.SendWindow({1, 0}, 3000, 0);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.outgoing.contains({1, 0}); }, seconds(10)));
  const ConnectionStats stats = pair.connection->stats();
  EXPECT_GT(Share(stats, RateLimiter::kPacing) + Share(stats, RateLimiter::kCwnd), 0.6);
  EXPECT_EQ(Share(stats, RateLimiter::kReceiveWindow), 0);
}

TEST(LimiterTest, ASmallReceiveWindowIsNamed) {
  ConnectionPair pair({});
  ASSERT_TRUE(pair.Establish());
  pair.server.connection->Grant(Bandwidth::Zero(), ByteCount(10'000));  // 1.6 Mbit/s at 50 ms
  pair.server_host->Pump();
  pair.RunFor(milliseconds(200));
  const Duration before = pair.connection->stats().limited[static_cast<size_t>(RateLimiter::kReceiveWindow)];
  EXPECT_EQ(before, Duration(0));
  pair.SendWindow({1, 0}, 200, 0);
  const Instant start = pair.now();
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.outgoing.contains({1, 0}); }, seconds(30)));
  const Duration limited = pair.connection->stats().limited[static_cast<size_t>(RateLimiter::kReceiveWindow)];
  EXPECT_GT(limited, (pair.now() - start) * 6 / 10);
  EXPECT_LE(limited, pair.now() - start);
}

TEST(LimiterTest, TheTimesAddUpToTheTimeThatPassed) {
  ConnectionPair pair({});
  ASSERT_TRUE(pair.Establish());
  const Instant start = pair.now();
  pair.SendWindow({1, 0}, 500, 500);
  pair.RunFor(seconds(5));
  Duration sum(0);
  for (const Duration d : pair.connection->stats().limited) sum += d;
  EXPECT_LE(sum, pair.now() - Instant());
  // Counted up to the connection's latest event, which is at most one keepalive old.
  EXPECT_GE(sum, pair.now() - start - ConnectionOptions().keepalive);
}

TEST(LimiterTest, TheReceiverCountsWhatTheNetworkLost) {
  ConnectionPair pair({.link = "rate 200mbit delay 25ms queue 50ms loss 5%", .worker = {}, .server = {}});
  ASSERT_TRUE(pair.Establish());
  pair.SendWindow({1, 0}, 4000, 0);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.outgoing.contains({1, 0}); }, seconds(30)));
  const ConnectionStats stats = pair.server.connection->stats();
  const double loss =
      1.0 - static_cast<double>(stats.packets_received) / static_cast<double>(stats.packets_expected);
  // And what STARTUP overflows of a queue of one BDP, in a transfer this short.
  EXPECT_GE(loss, 0.04);
  EXPECT_LE(loss, 0.09);
}

TEST(LimiterTest, TheReceiverSeesTheQueueOnTheWay) {
  // 20 Mbit/s into which the peer pours a window as large as it may: the queue stands.
  ConnectionPair pair({.link = "rate 20mbit delay 25ms queue 200ms", .worker = {}, .server = {}});
  ASSERT_TRUE(pair.Establish());
  pair.SendWindow({1, 0}, 2000, 0);
  Duration longest(0);
  ASSERT_TRUE(pair.RunUntil(
      [&] {
        if (pair.server.connection != nullptr) {
          longest = std::max(longest, pair.server.connection->stats().incoming_queue);
        }
        return pair.worker.outgoing.contains({1, 0});
      },
      seconds(30)));
  EXPECT_GT(longest, milliseconds(5));
  EXPECT_LE(longest, milliseconds(201));
}

}  // namespace
}  // namespace longhaul::transport
