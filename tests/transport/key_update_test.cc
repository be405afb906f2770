// When keys change, and that nothing is lost by it, on either side or on both at once.
#include "transport/core/key_update.h"

#include <gtest/gtest.h>

#include "tests/transport/connection_pair.h"
#include "tests/transport/fake_security.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;

TEST(KeyUpdatePolicy, IsDueByPacketsBytesOrAgeButNeverUnconfirmed) {
  const Instant start = Instant() + 1s;
  KeyUpdatePolicy policy({.packets = 3, .bytes = 10'000, .age = 60s});
  for (wire::PacketNumber n = 0; n < 5; ++n) policy.OnPacketSent(n, false, 100, start);
  EXPECT_FALSE(policy.Due(false, start)) << "nothing was acknowledged";
  policy.OnPacketAcked(4);
  EXPECT_TRUE(policy.Due(false, start));
  EXPECT_FALSE(policy.Due(true, start)) << "once is enough";
  policy.OnPacketSent(5, true, 9'000, start);
  policy.OnPacketAcked(4);
  policy.OnPacketSent(6, true, 1'000, start);
  EXPECT_FALSE(policy.Due(true, start)) << "4 is of the phase before";
  policy.OnPacketAcked(5);
  EXPECT_TRUE(policy.Due(true, start)) << "by bytes";
  // The peer is first, and its packet comes before our next one: going on at once would leave it two phases
  // behind.
  EXPECT_FALSE(policy.Due(false, start));
  policy.OnPacketSent(7, false, 1, start + 10s);
  policy.OnPacketAcked(7);
  EXPECT_FALSE(policy.Due(false, start + 69s));
  EXPECT_TRUE(policy.Due(false, start + 70s)) << "by age";
}

void Transfer(ConnectionPair& pair) {
  ASSERT_TRUE(pair.Establish());
  for (uint32_t id = 1; id <= 3; ++id) {
    pair.SendWindow({id, 0}, 800, 200);
    pair.SendWindowFrom(*pair.server.connection, {100 + id, 0}, 800, 200, 20, 1392);
    pair.server_host->Pump();
    ASSERT_TRUE(pair.RunUntil(
        [&] {
          return pair.worker.outgoing.contains({id, 0}) && pair.server.outgoing.contains({100 + id, 0});
        },
        60s));
    pair.ExpectDelivered(pair.server, {id, 0}, 800);
    pair.ExpectDelivered(pair.worker, {100 + id, 0}, 800);
  }
  pair.ExpectNoTimeViolation();
}

TEST(KeyUpdate, OnBothSidesAtOnceUnderLossAndReorderingLosesNothing) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    FakeSecurity worker({}, seed), server({}, seed + 100);
    ConnectionPair::Options options;
    options.seed = seed;
    options.link = "rate 200mbit delay 10ms 2ms jitter-reorders loss 3% duplicate 1%";
    options.worker_security = &worker;
    options.server_security = &server;
    options.worker.key_update.packets = options.server.key_update.packets = 150;
    ConnectionPair pair(options);
    Transfer(pair);
    const ConnectionStats w = pair.connection->stats(), s = pair.server.connection->stats();
    EXPECT_GE(w.key_updates + s.key_updates, 8u);
    EXPECT_GT(w.key_updates, 0u);
    EXPECT_GT(s.key_updates, 0u);
    EXPECT_GE(w.peer_key_updates, 8u);
    // A phase is much longer than what is reordered, so hardly a packet meets keys that are gone.
    EXPECT_LE(w.bad_tag_dropped + s.bad_tag_dropped, 5u);
  }
}

TEST(KeyUpdate, OneSideAloneTakesTheOtherAlong) {
  FakeSecurity worker({}), server({}, 2);
  ConnectionPair::Options options;
  options.worker_security = &worker;
  options.server_security = &server;
  options.worker.key_update.bytes = 200'000;
  ConnectionPair pair(options);
  Transfer(pair);
  EXPECT_GE(pair.connection->stats().key_updates, 5u);
  EXPECT_EQ(pair.server.connection->stats().key_updates, 0u);
  EXPECT_GE(pair.server.connection->stats().peer_key_updates, pair.connection->stats().key_updates - 1);
  EXPECT_GE(pair.connection->stats().peer_key_updates, pair.connection->stats().key_updates - 1);
  EXPECT_EQ(pair.connection->stats().bad_tag_dropped + pair.server.connection->stats().bad_tag_dropped, 0u);
}

}  // namespace
}  // namespace longhaul::transport
