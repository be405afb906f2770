#include "server/grants/grants.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <optional>

#include "tests/transport/fake_connection.h"

namespace longhaul::server {
namespace {

using std::chrono::milliseconds;

constexpr ByteCount kReceiveWindow{64 << 20};
constexpr uint32_t kChunks = 1000;  // of a window

// n workers on fake connections behind a link that the test plays.
class Cluster {
 public:
  explicit Cluster(uint32_t n, GrantSettings settings = {.capacity = Bandwidth::Mbps(200)})
      : grants(settings, n, kReceiveWindow), n_(n) {
    for (uint32_t rank = 0; rank < n; ++rank) {
      connections.emplace_back(Address::V4(10, 0, 0, static_cast<uint8_t>(rank + 1), 9000));
      connections.back().stats_now.smoothed_rtt = milliseconds(20);
      peers.emplace_back(&connections.back());
      peers.back().rank = rank;
    }
    arrives_mbps.resize(n, 0);
  }
  void JoinAll() {
    for (Peer& peer : peers) grants.Join(now, peer);
    grants.Run(now);
  }
  void Open(uint32_t rank, uint32_t chunks = kChunks) {
    peers[rank].transfers[{1, 0}].closer = transport::WindowCloser(0, chunks, now);
    grants.OnWindow(now, rank);
    grants.Run(now);
  }
  void Close(uint32_t rank) {
    peers[rank].transfers.clear();
    grants.OnWindow(now, rank);
    grants.Run(now);
  }
  // Lets arrives_mbps arrive for so long.
  void Advance(Duration time) {
    const Instant end = now + time;
    while (now < end) {
      now += milliseconds(1);
      for (uint32_t rank = 0; rank < n_; ++rank) {
        const auto transfer = peers[rank].transfers.find({1, 0});
        if (transfer == peers[rank].transfers.end()) continue;
        transport::IncomingWindow window = transfer->second.closer.window();
        bits_[rank] += arrives_mbps[rank] * 1e3;
        while (bits_[rank] >= 1452 * 8) {
          bits_[rank] -= 1452 * 8;
          auto& stats = connections[rank].stats_now;
          ++stats.packets_received;
          ++stats.packets_expected;
          stats.bytes_received += 1452;
          auto& low = window.stats.low_received;
          low = std::min(low + 1, window.low_count);
        }
        transfer->second.closer.Observe(window, connections[rank].stats_now.smoothed_rtt, now);
      }
      if (now >= grants.NextTimeout()) grants.Run(now);
    }
  }
  double Granted(uint32_t rank) const {
    return connections[rank].grant ? connections[rank].grant->first.mbps() : 0;
  }
  double GrantedToAll() const {
    double sum = 0;
    for (uint32_t rank = 0; rank < n_; ++rank) sum += Granted(rank);
    return sum;
  }

  Grants grants;
  std::deque<transport::FakeConnection> connections;
  std::deque<Peer> peers;
  std::vector<double> arrives_mbps;
  Instant now = Instant() + std::chrono::seconds(1);

 private:
  uint32_t n_;
  std::map<uint32_t, double> bits_;
};

// 200 Mbit/s of IP packets are so much UDP payload.
constexpr double kPayload = 200.0 * 1452 / 1480;

TEST(GrantsTest, EveryoneHoldsAnEqualPartBeforeTheFirstRound) {
  Cluster cluster(8);
  cluster.JoinAll();
  for (uint32_t rank = 0; rank < 8; ++rank) EXPECT_NEAR(cluster.Granted(rank), kPayload / 8, 0.1);
  EXPECT_LE(cluster.GrantedToAll(), kPayload);
}

TEST(GrantsTest, WhoJoinsEarlyDoesNotGetThePartOfThoseWhoAreStillToCome) {
  Cluster cluster(8);
  cluster.grants.Join(cluster.now, cluster.peers[0]);
  cluster.grants.Run(cluster.now);
  EXPECT_NEAR(cluster.Granted(0), kPayload / 8, 0.1);
}

TEST(GrantsTest, NobodyIsBoundedWhenTheCapacityIsUnknown) {
  Cluster cluster(4, {});
  cluster.JoinAll();
  for (uint32_t rank = 0; rank < 4; ++rank) cluster.Open(rank);
  cluster.arrives_mbps.assign(4, 25);
  cluster.Advance(milliseconds(200));
  for (uint32_t rank = 0; rank < 4; ++rank) EXPECT_FALSE(cluster.connections[rank].grant);
  EXPECT_TRUE(cluster.grants.stats().capacity.IsZero());
}

TEST(GrantsTest, SwitchedOffItSaysNothing) {
  Cluster cluster(4, {.enabled = false, .capacity = Bandwidth::Mbps(100)});
  cluster.JoinAll();
  cluster.Open(0);
  cluster.Advance(milliseconds(100));
  for (uint32_t rank = 0; rank < 4; ++rank) EXPECT_FALSE(cluster.connections[rank].grant);
  EXPECT_TRUE(cluster.grants.NextTimeout().IsInfinite());
}

TEST(GrantsTest, AllWhoBeginTogetherKeepTheirParts) {
  Cluster cluster(8);
  cluster.JoinAll();
  const uint64_t before = cluster.grants.stats().updates;
  for (uint32_t rank = 0; rank < 8; ++rank) cluster.Open(rank);
  cluster.arrives_mbps.assign(8, 24);
  cluster.Advance(milliseconds(200));
  for (uint32_t rank = 0; rank < 8; ++rank) EXPECT_NEAR(cluster.Granted(rank), kPayload / 8, 1.5);
  EXPECT_LE(cluster.grants.stats().updates, before + 16);  // nothing changed, so hardly anything is said
}

TEST(GrantsTest, WhoHasMoreLeftGetsMore) {
  Cluster cluster(2);
  cluster.JoinAll();
  cluster.Open(0, 3000);
  cluster.Open(1, 1000);
  cluster.arrives_mbps = {98, 98};
  cluster.Advance(milliseconds(25));
  cluster.arrives_mbps = {150, 48};
  cluster.Advance(milliseconds(25));
  EXPECT_GT(cluster.Granted(0), 2.5 * cluster.Granted(1));
  EXPECT_LE(cluster.GrantedToAll(), kPayload);
}

TEST(GrantsTest, AWorkerThatStopsGivesItsShareBackAtOnce) {
  Cluster cluster(4);
  cluster.JoinAll();
  for (uint32_t rank = 0; rank < 4; ++rank) cluster.Open(rank, 10'000);
  cluster.arrives_mbps.assign(4, 48);
  cluster.Advance(milliseconds(100));
  const double before = cluster.Granted(1);
  cluster.Close(0);
  EXPECT_NEAR(cluster.Granted(1), before * 4 / 3, 2);
  cluster.peers[1].transfers.clear();
  cluster.grants.Leave(cluster.now, 1);
  cluster.grants.Run(cluster.now);
  EXPECT_NEAR(cluster.Granted(2), before * 2, 4);
}

TEST(GrantsTest, AShareIsGivenBackWhenAllThatIsLeftIsInFlight) {
  Cluster cluster(2);
  cluster.JoinAll();
  cluster.Open(0, 600);  // 870 KB
  cluster.Open(1, 20'000);
  cluster.arrives_mbps = {98, 98};
  cluster.Advance(milliseconds(58));  // 0 lacks 160 KB, and 245 KB are on their way
  EXPECT_GT(cluster.Granted(1), 0.95 * kPayload);
}

TEST(GrantsTest, ALatecomerHoldsLittleWhileOthersSend) {
  Cluster cluster(8);
  cluster.JoinAll();
  for (uint32_t rank = 0; rank < 4; ++rank) cluster.Open(rank, 10'000);
  cluster.arrives_mbps.assign(8, 24);
  cluster.Advance(milliseconds(10));
  EXPECT_NEAR(cluster.Granted(7), kPayload / 8, 0.5);  // expected: the others have just begun
  cluster.Advance(milliseconds(60));
  cluster.arrives_mbps.assign(8, 48);
  cluster.Advance(milliseconds(60));
  EXPECT_LE(cluster.Granted(7), kPayload * Grants::kLatecomers / 4 + 0.1);
  EXPECT_NEAR(cluster.Granted(0), kPayload / 4, 3);
  // Should all latecomers begin now, the sum is an eighth more for one round trip, and then none.
  EXPECT_LE(cluster.GrantedToAll(), kPayload * (1 + Grants::kLatecomers));
  cluster.Open(7);
  EXPECT_GT(cluster.Granted(7), 5);
}

TEST(GrantsTest, WhatOnesOwnPathDoesNotTakeGoesToTheOthersAndComesBack) {
  Cluster cluster(4);
  cluster.JoinAll();
  for (uint32_t rank = 0; rank < 4; ++rank) cluster.Open(rank, 100'000);
  for (int i = 0; i < 40; ++i) {
    for (uint32_t rank = 0; rank < 4; ++rank) {
      cluster.arrives_mbps[rank] = std::min(rank == 0 ? 10.0 : 1e9, cluster.Granted(rank));
    }
    cluster.Advance(milliseconds(10));
  }
  EXPECT_LT(cluster.Granted(0), 15);
  EXPECT_GT(cluster.Granted(0), 10.5);  // room to grow
  EXPECT_GT(cluster.Granted(1), 1.2 * kPayload / 4);
  EXPECT_LE(cluster.GrantedToAll(), kPayload * 1.001);
  for (int i = 0; i < 60; ++i) {  // its path has become wide
    for (uint32_t rank = 0; rank < 4; ++rank) cluster.arrives_mbps[rank] = cluster.Granted(rank);
    cluster.Advance(milliseconds(10));
  }
  EXPECT_GT(cluster.Granted(0), 0.8 * kPayload / 4);
}

TEST(GrantsTest, WhoIsSlowIsNotKeptSlowWhenNobodyElseWantsTheRest) {
  Cluster cluster(2);
  cluster.JoinAll();
  cluster.Open(0, 100'000);
  cluster.Open(1, 4'000);
  for (int i = 0; i < 30; ++i) {  // 0 is held back, for example by its processor
    cluster.arrives_mbps = {5, cluster.Granted(1)};
    cluster.Advance(milliseconds(10));
  }
  EXPECT_LT(cluster.Granted(0), 10);
  cluster.Close(1);
  cluster.Advance(milliseconds(40));
  EXPECT_GT(cluster.Granted(0), 0.9 * kPayload);
}

TEST(GrantsTest, CapsAndFloorsHold) {
  Cluster cluster(2, {.capacity = Bandwidth::Mbps(200),
                      .worker_floor = Bandwidth::Mbps(20),
                      .worker_cap = Bandwidth::Mbps(50)});
  cluster.JoinAll();
  cluster.Open(0, 100'000);
  cluster.Open(1, 2'000);
  cluster.arrives_mbps = {50, 20};
  cluster.Advance(milliseconds(300));
  EXPECT_NEAR(cluster.Granted(0), 50, 0.1);
  EXPECT_GE(cluster.Granted(1), 19);
}

// 200 Mbit/s of two jobs, weights 3 and 1.
TEST(GrantsTest, JobsOnOneLinkHaveTheirPartsOfIt) {
  const auto total = std::make_shared<LinkShare::Total>(0);
  const auto settings = [&total](uint32_t weight) {
    return GrantSettings{.capacity = Bandwidth::Mbps(200),
                         .link = std::make_shared<LinkShare>(total, weight)};
  };
  Cluster a(2, settings(3));
  std::optional<Cluster> b(std::in_place, 2, settings(1));
  a.JoinAll();
  EXPECT_NEAR(a.GrantedToAll(), kPayload, 0.2) << "no worker of b is in";
  b->JoinAll();
  EXPECT_NEAR(b->GrantedToAll(), kPayload / 4, 0.2);
  EXPECT_NEAR(b->grants.stats().capacity.mbps(), 50, 0.1);
  a.Open(0, 100'000);
  a.arrives_mbps = {100, 0};
  a.Advance(milliseconds(100));
  EXPECT_LE(a.GrantedToAll(), kPayload * 3 / 4 * 1.2) << "late workers' eighth included";
  EXPECT_GT(a.Granted(0), kPayload * 0.6);
  b.reset();  // the job ends
  a.Advance(milliseconds(100));
  EXPECT_GT(a.Granted(0), kPayload * 0.8);
}

TEST(GrantsTest, UpdatesOfOneWorkerAreHalfARoundTripApart) {
  Cluster cluster(2);
  cluster.JoinAll();
  cluster.Open(0, 3000);
  cluster.Open(1, 3000);
  uint64_t updates = cluster.grants.stats().updates;
  // Arrivals that jump about: the weights change all the time.
  for (int i = 0; i < 50; ++i) {
    cluster.arrives_mbps = {i % 2 == 0 ? 150.0 : 10.0, i % 2 == 0 ? 10.0 : 150.0};
    cluster.Advance(milliseconds(4));
  }
  updates = cluster.grants.stats().updates - updates;
  EXPECT_LE(updates, 2u * (200 / 10 + 2));
}

TEST(GrantsTest, TheReceiveWindowIsWhatTheRateNeedsAndNeverTooSmall) {
  Cluster cluster(8);
  cluster.JoinAll();
  for (uint32_t rank = 0; rank < 8; ++rank) cluster.Open(rank);
  const auto grant = *cluster.connections[0].grant;
  EXPECT_GE(grant.second, grant.first * milliseconds(40));
  EXPECT_LE(grant.second, grant.first * milliseconds(300));

  Cluster slow(8, {.capacity = Bandwidth::Mbps(1)});
  slow.JoinAll();
  EXPECT_GE(slow.connections[0].grant->second, ByteCount(16 * 1452));

  Cluster fast(8, {.capacity = Bandwidth::Mbps(100'000)});
  fast.JoinAll();
  ByteCount sum;
  for (const auto& connection : fast.connections) sum += connection.grant->second;
  EXPECT_LE(sum, kReceiveWindow);
}

}  // namespace
}  // namespace longhaul::server
