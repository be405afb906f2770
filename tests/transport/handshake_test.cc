// A handshake with several flights, whatever the network takes away.
//
//   worker ── INIT: 300 bytes ──▶ server      (sizes of the crypto stream)
//          ◀─ ACCEPT: 800 or 3000 ──
//          ── INIT: 100 ──▶
//          ◀─ NEW_CID ──
#include <gtest/gtest.h>

#include <optional>

#include "tests/transport/bare_pair.h"
#include "tests/transport/fake_security.h"
#include "tests/transport/loss_masks.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;

struct Sides {
  explicit Sides(const FakeSecurity::Options& options, uint64_t seed = 1)
      : worker(options, seed * 2), server(options, seed * 2 + 1) {}
  BarePair::Options PairOptions() {
    BarePair::Options o;
    o.worker_security = &worker;
    o.server_security = &server;
    return o;
  }
  FakeSecurity worker, server;
};

TEST(SecureHandshake, TakesTwoRoundTripsAndNamesThePeer) {
  Sides sides({});
  BarePair pair(sides.PairOptions());
  const Instant start = pair.now;
  ASSERT_TRUE(pair.RunUntil([&] { return pair.server.connected > 0; }, 1s));
  EXPECT_EQ(pair.now - start, 30ms);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.connected > 0; }, 1s));
  EXPECT_EQ(pair.now - start, 40ms);
  EXPECT_EQ(pair.connection->identity().kind, PeerIdentity::Kind::kPsk);
  EXPECT_EQ(pair.connection->identity().job, "job");
  EXPECT_EQ(pair.server.connection->identity().job, "job");
  EXPECT_EQ(pair.connection->max_datagram(), ByteCount(1452));
  EXPECT_EQ(pair.connection->stats().smoothed_rtt, 20ms);  // of the flights
  EXPECT_EQ(pair.server.connection->stats().smoothed_rtt, 20ms);
  EXPECT_EQ(pair.accepted, 1);
  EXPECT_EQ(pair.server_endpoint->stats().half_open, 0u);
}

TEST(SecureHandshake, ALongServerFlightTakesNoRoundTripMore) {
  FakeSecurity::Options options;
  options.server_flight = 3000;
  Sides sides(options);
  BarePair pair(sides.PairOptions());
  const Instant start = pair.now;
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.connected > 0; }, 1s));
  EXPECT_EQ(pair.now - start, 40ms);
}

// Longer than three times the INIT: the worker's answer to its first packets lets the rest leave.
TEST(SecureHandshake, AFlightBeyondTheAmplificationBoundWaitsForTheProofOfTheAddress) {
  FakeSecurity::Options options;
  options.server_flight = 20'000;
  options.client_first = 5000;
  options.client_last = 7000;
  Sides sides(options);
  BarePair pair(sides.PairOptions());
  const Instant start = pair.now;
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.connected > 0; }, 1s));
  EXPECT_LE(pair.now - start, 80ms);
}

TEST(SecureHandshake, MoreThan64KiBAreRefused) {
  FakeSecurity::Options options;
  options.server_flight = 70'000;
  Sides sides(options);
  BarePair pair(sides.PairOptions());
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.closed > 0; }, 5s));
  EXPECT_EQ(pair.worker.close_status.code(), StatusCode::kResourceExhausted)
      << pair.worker.close_status.ToString();
  EXPECT_EQ(pair.worker.connected + pair.accepted, 0);
}

// Every way to lose some of the first datagrams of both sides.
void ExpectEveryLossMaskEndsWell(size_t server_flight) {
  FakeSecurity::Options options;
  options.server_flight = server_flight;
  options.bodies = false;
  std::optional<Sides> sides;
  LossMasks masks;
  masks.RunAll(kMaskBits, [&] { return sides.emplace(options).PairOptions(); });
  masks.Print();
  ASSERT_EQ(masks.connected + masks.refused, 1u << kMaskBits);
  // The others lost all INITs of ten seconds, say, or all of a server that by then had given up.
  EXPECT_GE(masks.connected, (1u << kMaskBits) * 96 / 100);
  EXPECT_LE(masks.slowest, 15s);
}

TEST(SecureHandshake, EveryLossMaskOfTheFirstDatagramsEndsWell) { ExpectEveryLossMaskEndsWell(800); }

TEST(SecureHandshake, EveryLossMaskEndsWellWithAServerFlightOfThreeDatagrams) {
  ExpectEveryLossMaskEndsWell(3000);
}

// Of many handshakes: how many are done within ten seconds, and the median time of those.
void ExpectUnderLoss(double loss, double at_least, Duration median_at_most) {
  constexpr int kRuns = 400;
  std::vector<Duration> times;
  for (uint64_t seed = 1; seed <= kRuns; ++seed) {
    FakeSecurity::Options options;
    options.server_flight = seed % 2 == 0 ? 800 : 3000;
    Sides sides(options, seed);
    Random random(seed);
    BarePair::Options o = sides.PairOptions();
    o.seed = seed;
    o.delay = 25ms;
    o.lost = [&](int, bool, MutableByteSpan) { return random.Chance(loss); };
    BarePair pair(o);
    const Instant start = pair.now;
    if (pair.RunUntil([&] { return pair.BothConnected(); }, 10s)) {
      times.push_back(pair.now - start);
    } else {
      pair.Run(30s);
      EXPECT_EQ(pair.worker.closed, 1) << "seed " << seed;
      EXPECT_EQ(pair.server_endpoint->connection_count(), 0u) << "seed " << seed;
    }
  }
  std::sort(times.begin(), times.end());
  EXPECT_GE(static_cast<double>(times.size()), at_least * kRuns);
  EXPECT_LE(times[times.size() / 2], median_at_most);
}

TEST(SecureHandshake, SurvivesTenPercentLoss) { ExpectUnderLoss(0.1, 1.0, 110ms); }

TEST(SecureHandshake, SurvivesThirtyPercentLoss) { ExpectUnderLoss(0.3, 0.99, 1s); }

TEST(SecureHandshake, AFloodOfRepetitionsAnswersItselfNotWithAStorm) {
  // Everything arrives five times.
  Sides sides({});
  std::vector<std::pair<bool, std::vector<uint8_t>>> copies;
  BarePair::Options o = sides.PairOptions();
  o.lost = [&](int, bool from_worker, MutableByteSpan datagram) {
    copies.emplace_back(from_worker, std::vector<uint8_t>(datagram.begin(), datagram.end()));
    return false;
  };
  BarePair pair(o);
  for (int round = 0; round < 20; ++round) {
    pair.Run(5ms);
    const auto now = std::exchange(copies, {});
    for (int i = 0; i < 4; ++i) {
      for (const auto& [from_worker, bytes] : now) {
        pair.Inject(from_worker, from_worker ? pair.worker_address : pair.server_address, bytes);
      }
    }
  }
  EXPECT_TRUE(pair.BothConnected());
  EXPECT_LE(pair.connection->stats().handshake_flights, 3u);
  EXPECT_LE(pair.server.connection->stats().handshake_flights, 2u);
  EXPECT_EQ(pair.accepted, 1);
}

}  // namespace
}  // namespace longhaul::transport
