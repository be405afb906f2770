// When keys change, and that nothing is lost by it, on either side or on both at once.
#include "transport/core/security/key_update.h"

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

// --- What no key update mends (RFC 9001 §6.6) ---

struct Limited {
  static FakeSecurity::Options With(FakeProtection::Limits limits) {
    FakeSecurity::Options options;
    options.limits = limits;
    return options;
  }
  explicit Limited(FakeProtection::Limits limits, uint64_t update_packets = UINT64_MAX)
      : worker({}), server(With(limits), 2) {
    ConnectionPair::Options options;
    options.link = "rate 20mbit delay 5ms queue 50ms";  // few packets leave while an update is confirmed
    options.worker_security = &worker;
    options.server_security = &server;
    options.worker.key_update.packets = options.server.key_update.packets = update_packets;
    pair.emplace(options);
    EXPECT_TRUE(pair->Establish());
  }
  void Forge(int packets) {
    for (int i = 0; i < packets; ++i) {
      std::vector<uint8_t> forged(64);
      ByteWriter out(forged);
      wire::Encode(wire::ShortHeader{.destination = pair->server.connection->local_id(),
                                     .packet_number = static_cast<wire::PacketNumber>(1000 + i)},
                   out);
      pair->server_endpoint->HandleDatagram(pair->now(), pair->worker_address, forged, {});
      pair->server_host->Pump();
    }
  }
  void ExpectEnd(const std::string& reason) {
    EXPECT_TRUE(pair->RunUntil([&] { return pair->server.closed > 0 && pair->worker.closed > 0; }, 5s));
    EXPECT_EQ(pair->server.close_status.code(), StatusCode::kAeadLimitReached);
    EXPECT_NE(pair->server.close_status.message().find(reason), std::string::npos)
        << pair->server.close_status.ToString();
    EXPECT_EQ(pair->worker.close_status.code(), StatusCode::kAeadLimitReached) << "and the peer is told";
  }
  FakeSecurity worker, server;
  std::optional<ConnectionPair> pair;
};

TEST(AeadLimits, TooManyForgedPacketsEndTheConnectionByName) {
  Limited limited({.forged = 20});
  limited.Forge(19);
  limited.pair->RunFor(100ms);
  EXPECT_EQ(limited.pair->server.closed, 0);
  limited.Forge(1);
  limited.ExpectEnd("forged");
}

TEST(AeadLimits, TooMuchSealedWithOneKeyEndsTheConnectionByName) {
  Limited limited({.sealed = 300});
  limited.pair->SendWindowFrom(*limited.pair->server.connection, {1, 0}, 800, 0, 0, 1392);
  limited.pair->server_host->Pump();
  limited.ExpectEnd("sealed");
}

TEST(AeadLimits, KeyUpdatesKeepTheLimitOfOneKeyAway) {
  Limited limited({.sealed = 300}, 100);
  limited.pair->SendWindowFrom(*limited.pair->server.connection, {1, 0}, 2000, 0, 0, 1392);
  limited.pair->server_host->Pump();
  EXPECT_TRUE(limited.pair->RunUntil([&] { return limited.pair->server.outgoing.contains({1, 0}); }, 60s));
  EXPECT_EQ(limited.pair->server.closed, 0);
}

}  // namespace
}  // namespace longhaul::transport
