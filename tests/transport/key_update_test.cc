// When keys change, and that nothing is lost by it, on either side or on both at once.
#include "transport/core/security/key_update.h"

#include <gtest/gtest.h>

#include "tests/transport/connection_pair.h"
#include "tests/transport/fake_security.h"
#include "transport/core/connection/key_changes.h"
#include "transport/core/security/integrity_tag.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;

TEST(KeyUpdatePolicy, IsDueByPacketsBytesOrAgeButNeverUnconfirmed) {
  const Instant start = Instant() + 1s;
  KeyUpdatePolicy policy({.packets = 3, .bytes = 10'000, .age = 60s, .spacing = 0s});
  for (wire::PacketNumber n = 0; n < 5; ++n) policy.OnPacketSent(n, false, 100, start);
  EXPECT_FALSE(policy.Due(false, start)) << "nothing was acknowledged";
  policy.OnPacketAcked(4, start);
  EXPECT_TRUE(policy.Due(false, start));
  EXPECT_FALSE(policy.Due(true, start)) << "once is enough";
  policy.OnPacketSent(5, true, 9'000, start);
  policy.OnPacketAcked(4, start);
  policy.OnPacketSent(6, true, 1'000, start);
  EXPECT_FALSE(policy.Due(true, start)) << "4 is of the phase before";
  policy.OnPacketAcked(5, start);
  EXPECT_TRUE(policy.Due(true, start)) << "by bytes";
  // The peer is first, and its packet comes before our next one: going on at once would leave it two phases
  // behind.
  EXPECT_FALSE(policy.Due(false, start));
  policy.OnPacketSent(7, false, 1, start + 10s);
  policy.OnPacketAcked(7, start + 10s);
  EXPECT_FALSE(policy.Due(false, start + 69s));
  EXPECT_TRUE(policy.Due(false, start + 70s)) << "by age";
}

// The peer counts from when it has followed, which is before it acknowledges.
TEST(KeyUpdatePolicy, WaitsAfterTheAcknowledgement) {
  const Instant start = Instant() + 1s;
  KeyUpdatePolicy policy({.packets = 1, .spacing = 1s});
  policy.OnPacketSent(0, false, 100, start);
  policy.OnPacketAcked(0, start + 5s);
  policy.OnPacketAcked(0, start + 6s);
  EXPECT_FALSE(policy.Due(false, start + 5999ms));
  EXPECT_TRUE(policy.Due(false, start + 6s));
}

// --- The exchange, frame by frame ---

struct Sides {
  explicit Sides(Duration spacing = 0s) : limits{.packets = 1, .spacing = spacing} {}
  struct Side {
    Side(bool is_client, const KeyUpdateLimits& limits)
        : client(is_client), keys(1, is_client), changes(limits) {}
    // A packet with the frame that is due, if any, opened by `to`.
    Status SendTo(Side& to, Instant at) {
      std::optional<wire::KeyUpdateFrame> frame;
      changes.OnPoll(&keys, at, 10ms);
      if (changes.HasFrame()) {
        frame = changes.frame();
        changes.OnFrameSent();
      }
      std::vector<uint8_t> header(16), body(20), tag(16);
      header[0] = keys.key_phase() ? 1 : 0;
      keys.Seal(++number, 0, header, body, tag);
      changes.OnPacketSent(number, keys.key_phase(), 50, at);
      EXPECT_TRUE(to.keys.Open(number, 0, header, body, tag)) << number;
      changes.OnPacketAcked(number, at);
      return frame ? to.changes.OnFrame(&to.keys, to.client, *frame, at, 10ms) : Status::Ok();
    }
    bool client;
    FakeProtection keys;
    KeyChanges changes;
    wire::PacketNumber number = 0;
  };
  KeyUpdateLimits limits;
  Side client{true, limits}, server{false, limits};
  Instant now = Instant() + 100s;
};

TEST(KeyChanges, AnExchangeTakesARoundTripAndBothFollow) {
  Sides sides;
  EXPECT_TRUE(sides.client.SendTo(sides.server, sides.now).ok());  // shows that phase 0 works
  EXPECT_TRUE(sides.client.SendTo(sides.server, sides.now).ok());  // the offer
  EXPECT_TRUE(sides.server.SendTo(sides.client, sides.now).ok());  // the answer
  EXPECT_TRUE(sides.client.keys.key_phase());
  EXPECT_FALSE(sides.server.keys.key_phase());
  EXPECT_TRUE(sides.client.SendTo(sides.server, sides.now).ok());
  EXPECT_TRUE(sides.server.keys.key_phase());
  EXPECT_TRUE(sides.server.SendTo(sides.client, sides.now).ok());
  EXPECT_EQ(sides.client.keys.peer_updates(), 1u);
}

TEST(KeyChanges, WhenBothBeginTheClientsOfferCounts) {
  Sides sides;
  const Instant now = sides.now;
  sides.client.changes.OnPacketSent(1, false, 1, now);
  sides.server.changes.OnPacketSent(1, false, 1, now);
  sides.client.changes.OnPacketAcked(1, now);
  sides.server.changes.OnPacketAcked(1, now);
  sides.client.changes.OnPoll(&sides.client.keys, now, 10ms);
  sides.server.changes.OnPoll(&sides.server.keys, now, 10ms);
  const wire::KeyUpdateFrame ours = sides.client.changes.frame(), theirs = sides.server.changes.frame();
  EXPECT_TRUE(sides.client.changes.OnFrame(&sides.client.keys, true, theirs, now, 10ms).ok());
  EXPECT_EQ(sides.client.changes.frame(), ours) << "no answer to it";
  EXPECT_TRUE(sides.server.changes.OnFrame(&sides.server.keys, false, ours, now, 10ms).ok());
  ASSERT_TRUE(sides.server.changes.frame().answer);
  EXPECT_TRUE(
      sides.client.changes.OnFrame(&sides.client.keys, true, sides.server.changes.frame(), now, 10ms).ok());
  EXPECT_TRUE(sides.client.keys.key_phase());
}

// Would gain: two key exchanges of ours for each of its packets.
TEST(KeyChanges, APeerThatOffersAgainTooSoonIsRefused) {
  Sides sides(1s);
  const auto change = [&] {
    for (int i = 0; i < 2; ++i) {
      if (Status status = sides.client.SendTo(sides.server, sides.now); !status.ok()) return status;
      if (Status status = sides.server.SendTo(sides.client, sides.now); !status.ok()) return status;
      sides.now += 1s;
    }
    return sides.client.SendTo(sides.server, sides.now);
  };
  ASSERT_TRUE(change().ok());
  ASSERT_EQ(sides.server.keys.peer_updates(), 1u);
  const wire::KeyUpdateFrame again{2, false, sides.client.keys.Offer()};
  EXPECT_TRUE(sides.server.changes.OnFrame(&sides.server.keys, false, {1, false, {}}, sides.now, 10ms).ok())
      << "a repetition";
  const Status refused =
      sides.server.changes.OnFrame(&sides.server.keys, false, again, sides.now + 100ms, 10ms);
  EXPECT_EQ(refused.code(), StatusCode::kProtocolViolation);
  EXPECT_EQ(refused.message(), "KEY_UPDATE again, too soon");
  EXPECT_TRUE(sides.server.changes.OnFrame(&sides.server.keys, false, again, sides.now + 500ms, 10ms).ok());
}

TEST(KeyChanges, WhatNoPeerSaysIsAViolation) {
  Sides sides;
  const auto says = [&](const wire::KeyUpdateFrame& frame) {
    return sides.server.changes.OnFrame(&sides.server.keys, false, frame, sides.now, 10ms).code();
  };
  EXPECT_EQ(says({2, false, {}}), StatusCode::kProtocolViolation) << "a phase is left out";
  EXPECT_EQ(says({1, false, {}}), StatusCode::kProtocolViolation) << "a share that is none";
  EXPECT_EQ(says({1, true, {}}), StatusCode::kOk) << "an answer to nothing, late";
  EXPECT_EQ(says({1, false, sides.client.keys.Offer()}), StatusCode::kOk);
  IntegrityTag none;
  EXPECT_EQ(sides.server.changes.OnFrame(&none, false, {1, false, {}}, sides.now, 10ms).code(),
            StatusCode::kProtocolViolation);
}

TEST(KeyChanges, PreviousKeysGoAfterThreeProbeTimeouts) {
  Sides sides;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(sides.client.SendTo(sides.server, sides.now).ok());
    ASSERT_TRUE(sides.server.SendTo(sides.client, sides.now).ok());
  }
  ASSERT_TRUE(sides.client.SendTo(sides.server, sides.now).ok());
  ASSERT_EQ(sides.server.keys.peer_updates(), 1u);
  sides.server.changes.OnPoll(&sides.server.keys, sides.now, 10ms);
  sides.server.changes.OnPoll(&sides.server.keys, sides.now + 29ms, 10ms);
  EXPECT_EQ(sides.server.keys.drops, 0u);
  sides.server.changes.OnPoll(&sides.server.keys, sides.now + 30ms, 10ms);
  sides.server.changes.OnPoll(&sides.server.keys, sides.now + 40ms, 10ms);
  EXPECT_EQ(sides.server.keys.drops, 1u);
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
    options.worker.key_update = options.server.key_update = {.packets = 150, .spacing = 0s};
    ConnectionPair pair(options);
    Transfer(pair);
    const ConnectionStats w = pair.connection->stats(), s = pair.server.connection->stats();
    EXPECT_GE(w.key_updates + s.key_updates, 6u);
    EXPECT_GT(w.key_updates, 0u);
    EXPECT_GT(s.key_updates, 0u);
    EXPECT_GE(w.peer_key_updates, 5u);
    // A phase is much longer than what is reordered, so hardly a packet meets keys that are gone.
    EXPECT_LE(w.bad_tag_dropped + s.bad_tag_dropped, 5u);
  }
}

TEST(KeyUpdate, OneSideAloneTakesTheOtherAlong) {
  FakeSecurity worker({}), server({}, 2);
  ConnectionPair::Options options;
  options.worker_security = &worker;
  options.server_security = &server;
  options.worker.key_update = {.bytes = 200'000, .spacing = 0s};
  options.server.key_update.spacing = 0s;
  ConnectionPair pair(options);
  Transfer(pair);
  EXPECT_GE(pair.connection->stats().key_updates, 4u);
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
    options.worker.key_update = options.server.key_update = {.packets = update_packets, .spacing = 0s};
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
  Limited limited({.sealed = 800}, 100);
  limited.pair->SendWindowFrom(*limited.pair->server.connection, {1, 0}, 2000, 0, 0, 1392);
  limited.pair->server_host->Pump();
  EXPECT_TRUE(limited.pair->RunUntil([&] { return limited.pair->server.outgoing.contains({1, 0}); }, 60s));
  EXPECT_EQ(limited.pair->server.closed, 0);
}

// Would gain: phases that the other side never had, and with them packets that it takes for damaged.
TEST(KeyChanges, AnOfferIsOfTheNextPhaseOrNone) {
  Sides sides;
  KeyChanges& changes = sides.server.changes;
  for (const uint64_t phase : {2u, 3u, 1000u}) {
    const Status refused = changes.OnFrame(&sides.server.keys, false,
                                           {phase, false, sides.client.keys.Offer()}, sides.now, 10ms);
    EXPECT_EQ(refused.ToString(), "ProtocolViolation: KEY_UPDATE of a phase that is not the next") << phase;
  }
  EXPECT_TRUE(
      changes.OnFrame(&sides.server.keys, false, {0, false, sides.client.keys.Offer()}, sides.now, 10ms).ok())
      << "a repetition, late";
  EXPECT_FALSE(changes.HasFrame()) << "nothing of it is answered";
  EXPECT_TRUE(
      changes.OnFrame(&sides.server.keys, false, {1, false, sides.client.keys.Offer()}, sides.now, 10ms)
          .ok());
  ASSERT_TRUE(changes.HasFrame());
  EXPECT_EQ(changes.frame().phase, 1u);
}

}  // namespace
}  // namespace longhaul::transport
