// A worker whose address changes under a running connection, and those who only pretend to be it.
#include <gtest/gtest.h>

#include "proto/version.h"
#include "tests/transport/connection_pair.h"
#include "tests/transport/fake_security.h"
#include "transport/core/connection/packet_builder.h"
#include "transport/core/path/path_manager.h"
#include "transport/core/security/integrity_tag.h"

namespace longhaul::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Address kOtherPort = Address::V4(10, 0, 0, 1, 41000);
const Address kOtherHost = Address::V4(10, 0, 0, 7, 40000);

class Migration : public testing::Test {
 protected:
  void Make(const std::string& words = "", uint64_t seed = 1, bool allow = true) {
    ConnectionPair::Options options;
    options.seed = seed;
    options.link += words;
    options.server.allow_migration = allow;
    pair_ = std::make_unique<ConnectionPair>(options);
    ASSERT_TRUE(pair_->Establish());
  }
  // The NAT forgets the worker and gives it another address; the worker knows nothing of it.
  void Rebind(const Address& to) {
    pair_->worker_host->Kill();
    pair_->worker_host = std::make_unique<sim::SimulatedHost>(&pair_->network(), to, pair_->worker_site(),
                                                              pair_->worker_endpoint.get());
    pair_->worker_host->Pump();
  }
  bool Finish(WindowKey key, Duration limit = seconds(20)) {
    return pair_->RunUntil([&] { return pair_->worker.outgoing.contains(key); }, limit);
  }
  void MakeFollowed(bool follows = true) {
    ConnectionPair::Options options;
    options.worker.allow_migration = options.server.allow_migration = follows;
    pair_ = std::make_unique<ConnectionPair>(options);
    ASSERT_TRUE(pair_->Establish());
    pair_->SendWindow({1, 0}, 20000, 500);
    pair_->RunFor(milliseconds(100));
    ASSERT_FALSE(pair_->worker.outgoing.contains({1, 0}));
  }
  // Both ways.
  void SetLinks(const std::string& words) {
    const auto link = wan::ParseLinkOptions("rate 200mbit delay 25ms queue 50ms " + words).value();
    pair_->network().SetLink(pair_->server_site(), pair_->worker_site(), link);
    pair_->network().SetLink(pair_->worker_site(), pair_->server_site(), link);
  }
  bool WorkerWantsPort() const { return pair_->worker.connection->wants_new_path(); }
  ConnectionStats server_stats() const { return pair_->server.connection->stats(); }

  std::unique_ptr<ConnectionPair> pair_;
};

TEST_F(Migration, ANatRebindsInTheMiddleOfAWindow) {
  for (const char* loss : {"", " loss 10%", " loss 20%"}) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << loss);
      Make(loss, seed);
      pair_->SendWindow({1, 0}, 3000, 500);
      pair_->RunFor(milliseconds(100));
      ASSERT_FALSE(pair_->worker.outgoing.contains({1, 0}));
      Rebind(kOtherPort);
      ASSERT_TRUE(Finish({1, 0}));
      pair_->ExpectDelivered(pair_->server, {1, 0}, 3000);
      EXPECT_EQ(pair_->server.connection->peer(), kOtherPort);
      EXPECT_EQ(server_stats().migrations, 1u);
      EXPECT_EQ(pair_->worker.closed, 0);
      pair_->ExpectNoTimeViolation();
    }
  }
}

TEST_F(Migration, AnotherHostStartsWithAFreshPath) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    Make("", seed);
    pair_->SendWindowFrom(*pair_->server.connection, {1, 0}, 2000, 0, 20, 1392);
    pair_->server_host->Pump();
    pair_->RunFor(milliseconds(60));
    Rebind(kOtherHost);
    // The server's window goes on once the worker has said something from there.
    ASSERT_TRUE(pair_->RunUntil([&] { return pair_->server.outgoing.contains({1, 0}); }, seconds(20)));
    pair_->ExpectDelivered(pair_->worker, {1, 0}, 2000);
    EXPECT_EQ(pair_->server.connection->peer(), kOtherHost);
    EXPECT_EQ(server_stats().migrations, 1u);
    EXPECT_GE(server_stats().mtu_probes_sent, 2u);  // the base, and the largest again
    EXPECT_EQ(pair_->server.connection->max_datagram(), ByteCount(1452));
    EXPECT_EQ(server_stats().ecn_state, "capable");
    EXPECT_EQ(pair_->worker.closed, 0);
    pair_->ExpectNoTimeViolation();
  }
}

TEST_F(Migration, LostChallengesAreRepeated) {
  Make();
  pair_->SendWindow({1, 0}, 3000, 0);
  pair_->RunFor(milliseconds(100));
  const auto silent = wan::ParseLinkOptions("rate 200mbit delay 25ms loss 100%").value();
  const auto clean = wan::ParseLinkOptions("rate 200mbit delay 25ms queue 50ms").value();
  pair_->network().SetLink(pair_->server_site(), pair_->worker_site(), silent);
  Rebind(kOtherPort);
  pair_->RunFor(seconds(3));
  EXPECT_EQ(pair_->server.connection->peer(), pair_->worker_address);
  EXPECT_GE(server_stats().path_challenges, 3u);
  EXPECT_GE(server_stats().path_timeouts, 1u);
  pair_->network().SetLink(pair_->server_site(), pair_->worker_site(), clean);
  ASSERT_TRUE(Finish({1, 0}));
  EXPECT_EQ(pair_->server.connection->peer(), kOtherPort);
  pair_->ExpectDelivered(pair_->server, {1, 0}, 3000);
}

TEST_F(Migration, AWorkerThatHearsNothingGoesOnByAnotherPort) {
  MakeFollowed();
  SetLinks("loss 100%");
  const Instant cut = pair_->now();
  ASSERT_TRUE(pair_->RunUntil([&] { return WorkerWantsPort(); }, seconds(5)));
  EXPECT_GE(pair_->now() - cut, milliseconds(500));  // ACKs came for a while, until 25 ms after the cut
  EXPECT_LE(pair_->now() - cut, milliseconds(700));
  SetLinks("");
  Rebind(kOtherPort);
  pair_->worker.connection->TakeNewPath();
  EXPECT_FALSE(WorkerWantsPort());
  pair_->worker_host->Pump();
  const Instant moved = pair_->now();
  ASSERT_TRUE(pair_->RunUntil([&] { return server_stats().migrations > 0; }, seconds(2)));
  EXPECT_LE(pair_->now() - moved, milliseconds(150));  // the challenge's round trip, and the next packet
  ASSERT_TRUE(Finish({1, 0}));
  pair_->ExpectDelivered(pair_->server, {1, 0}, 20000);
  EXPECT_EQ(pair_->worker.connection->stats().ports_taken, 1u);
  EXPECT_EQ(pair_->server.connection->peer(), kOtherPort);
}

// As by the old port, not as a path of which nothing is known (RTT 333 ms, a probe after 1.02 s).
TEST_F(Migration, AServerThatComesBackIsSoonFoundByTheNewPort) {
  MakeFollowed();
  SetLinks("loss 100%");
  ASSERT_TRUE(pair_->RunUntil([&] { return WorkerWantsPort(); }, seconds(5)));
  Rebind(kOtherPort);
  pair_->worker.connection->TakeNewPath();
  pair_->worker_host->Pump();
  pair_->RunFor(milliseconds(400));
  SetLinks("");
  const Instant back = pair_->now();
  ASSERT_TRUE(pair_->RunUntil([&] { return server_stats().migrations > 0; }, seconds(2)));
  EXPECT_LE(pair_->now() - back, milliseconds(300));
}

TEST_F(Migration, AServerThatStaysSilentIsTriedByPortsFurtherAndFurtherApart) {
  MakeFollowed();
  SetLinks("loss 100%");
  std::vector<Instant> wants = {pair_->now()};
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(pair_->RunUntil([&] { return WorkerWantsPort(); }, seconds(5))) << i;
    wants.push_back(pair_->now());
    pair_->worker.connection->TakeNewPath();
    pair_->worker_host->Pump();
  }
  EXPECT_LE(wants[1] - wants[0], milliseconds(700));
  for (size_t i = 2; i < wants.size(); ++i) {
    EXPECT_GE(wants[i] - wants[i - 1], milliseconds(1000)) << i;
    EXPECT_LE(wants[i] - wants[i - 1], milliseconds(3100)) << i;
  }
  EXPECT_GE(wants[4] - wants[3], milliseconds(2900));
}

TEST_F(Migration, AShortCutCostsNoPort) {
  MakeFollowed();
  SetLinks("loss 100%");
  pair_->RunFor(milliseconds(300));
  SetLinks("");
  EXPECT_FALSE(WorkerWantsPort());
  ASSERT_TRUE(pair_->RunUntil(
      [&] {
        return WorkerWantsPort() || pair_->worker.outgoing.contains({1, 0});
      },
      seconds(20)));
  EXPECT_FALSE(WorkerWantsPort());
  pair_->RunFor(seconds(8));  // nor does it while nothing is asked
  EXPECT_FALSE(WorkerWantsPort());
}

TEST_F(Migration, NoPortIsWantedWhereTheServerDoesNotFollow) {
  MakeFollowed(false);
  SetLinks("loss 100%");
  ASSERT_FALSE(pair_->RunUntil([&] { return WorkerWantsPort(); }, seconds(5)));
  EXPECT_FALSE(pair_->server.connection->wants_new_path());
}

TEST_F(Migration, IsOffUnlessAskedFor) {
  Make("", 1, false);
  pair_->SendWindow({1, 0}, 3000, 0);
  pair_->RunFor(milliseconds(100));
  Rebind(kOtherPort);
  EXPECT_TRUE(pair_->RunUntil([&] { return pair_->worker.closed > 0; }, seconds(30)));
  EXPECT_EQ(pair_->worker.close_status.code(), StatusCode::kPeerDead);
  EXPECT_GT(pair_->server_endpoint->stats().unknown_connection_dropped, 0u);
}

// Counts what it is sent, and answers nothing.
class Stranger final : public wan::VirtualNetwork::Host {
 public:
  void OnDatagram(Instant, const Address&, MutableByteSpan datagram) override { received += datagram.size(); }
  size_t received = 0;
};

std::vector<uint8_t> Forged(wire::ConnectionId to, wire::PacketNumber number, const wire::Frame& frame,
                            size_t size) {
  std::vector<uint8_t> bytes(size);
  PacketBuilder builder(bytes);
  builder.StartShort(to, number);
  EXPECT_TRUE(builder.Add(frame));
  IntegrityTag tag;
  bytes.resize(builder.Seal(tag));
  return bytes;
}

TEST_F(Migration, ASpoofedAddressCostsThreeTimesItsBytesAndNothingElse) {
  Make();
  pair_->SendWindow({1, 0}, 2000, 500);
  Stranger strangers[8];
  size_t sent[8] = {};
  for (size_t i = 0; i < 8; ++i) {
    pair_->network().Attach(Address::V4(10, 0, 0, 66, static_cast<uint16_t>(1000 + i)), pair_->worker_site(),
                            &strangers[i]);
  }
  const wire::ConnectionId id = pair_->server.connection->local_id();
  for (wire::PacketNumber n = 0; n < 64; ++n) {
    const size_t i = n % 8;
    // Frames that would matter, if they were believed: a grant of nothing, a wrong answer, the end.
    const wire::Frame frames[] = {wire::GrantFrame{}, wire::PathResponseFrame{n},
                                  wire::CloseFrame{StatusCode::kAborted, "spoofed"}};
    const std::vector<uint8_t> bytes = Forged(id, 1'000'000 + n, frames[n % 3], 100);
    sent[i] += bytes.size();
    pair_->network().Send(Address::V4(10, 0, 0, 66, static_cast<uint16_t>(1000 + i)), pair_->server_address,
                          bytes);
    pair_->RunFor(milliseconds(5));
  }
  ASSERT_TRUE(Finish({1, 0}));
  pair_->RunFor(seconds(5));
  size_t challenged = 0;
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_LE(strangers[i].received, 3 * sent[i]);
    challenged += strangers[i].received > 0 ? 1 : 0;
  }
  EXPECT_GE(challenged, PathManager::kMaxCandidates);
  EXPECT_EQ(pair_->server.connection->peer(), pair_->worker_address);
  EXPECT_EQ(server_stats().migrations, 0u);
  EXPECT_GT(server_stats().path_refused, 0u);
  EXPECT_EQ(server_stats().candidate_dropped, 64u);
  EXPECT_EQ(pair_->worker.closed + pair_->server.closed, 0);
  pair_->ExpectDelivered(pair_->server, {1, 0}, 2000);
  EXPECT_EQ(pair_->connection->stats().packets_lost, 0u);
}

TEST_F(Migration, IsOnByItselfWhenPacketsHaveKeys) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    FakeSecurity worker({}, seed), server({}, seed + 10);
    ConnectionPair::Options options;
    options.seed = seed;
    options.link += " loss 5%";
    options.worker_security = &worker;
    options.server_security = &server;
    options.worker.key_update = {.packets = 500, .spacing = Duration(0)};
    options.server.key_update.spacing = Duration(0);  // keys change on the way as well
    pair_ = std::make_unique<ConnectionPair>(options);
    ASSERT_TRUE(pair_->Establish());
    pair_->SendWindow({1, 0}, 3000, 500);
    pair_->RunFor(milliseconds(100));
    ASSERT_FALSE(pair_->worker.outgoing.contains({1, 0}));
    Rebind(seed % 2 == 0 ? kOtherPort : kOtherHost);
    ASSERT_TRUE(Finish({1, 0}));
    pair_->ExpectDelivered(pair_->server, {1, 0}, 3000);
    EXPECT_EQ(server_stats().migrations, 1u);
    EXPECT_GE(server_stats().peer_key_updates, 2u);
    EXPECT_EQ(pair_->worker.closed, 0);
  }
}

// The NAT gives the worker another port while an attacker without the key makes noise in the NAT's name. The
// noise lacks the connection's ID, so none of it counts against the worker, which knows the ID.
TEST_F(Migration, NoiseInANatsNameDoesNotKeepAWorkerFromMoving) {
  FakeSecurity worker({}, 1), server({}, 2);
  ConnectionPair::Options options;
  options.worker_security = &worker;
  options.server_security = &server;
  pair_ = std::make_unique<ConnectionPair>(options);
  ASSERT_TRUE(pair_->Establish());
  pair_->SendWindow({1, 0}, 3000, 500);
  pair_->RunFor(milliseconds(100));
  const auto noise = [&](int packets) {
    for (int i = 0; i < packets; ++i) {
      std::vector<uint8_t> init(1200, 7);
      PacketBuilder builder(init);
      builder.StartLong(wire::LongType::kInit, wire::kVersion, {}, {1000}, 0);
      builder.PadTo(init.size());
      IntegrityTag tag;
      builder.Seal(tag);
      pair_->server_endpoint->HandleDatagram(pair_->now(), kOtherPort, init, {});
    }
  };
  noise(5000);
  Rebind(kOtherPort);
  for (int ms = 0; ms < 5000 && !pair_->worker.outgoing.contains({1, 0}); ++ms) {
    noise(20);
    pair_->RunFor(milliseconds(1));
  }
  ASSERT_TRUE(Finish({1, 0}, seconds(0)));
  EXPECT_EQ(pair_->server.connection->peer(), kOtherPort);
  EXPECT_EQ(server_stats().migrations, 1u);
  EXPECT_GT(pair_->server_endpoint->stats().failures_limited, 3000u);
}

// The same with 60,000 short packets a second that name a connection: another one of that host, which changes
// nothing, or the worker's own. Then one of its packets must find room among these first.
TEST_F(Migration, NoiseWithAConnectionIdDelaysItsOwnConnectionOnly) {
  for (const uint64_t seed : {0, 1, 2, 3, 4, 5, 6, 7}) {
    const bool own = seed % 2 != 0;
    SCOPED_TRACE(testing::Message() << (own ? "its own" : "another's") << ", seed " << seed);
    FakeSecurity worker({}, 1), server({}, 2);
    ConnectionPair::Options options;
    options.worker_security = &worker;
    options.server_security = &server;
    pair_ = std::make_unique<ConnectionPair>(options);
    ASSERT_TRUE(pair_->Establish());
    Connection* moving = pair_->server.connection;
    Recorder other;
    pair_->worker_endpoint->Connect(pair_->now(), pair_->server_address, &other);
    pair_->worker_host->Pump();
    ASSERT_TRUE(
        pair_->RunUntil([&] { return other.connected > 0 && pair_->server.connected > 1; }, seconds(5)));
    const wire::ConnectionId named = own ? moving->local_id() : pair_->server.connection->local_id();
    pair_->SendWindow({1, 0}, 3000, 500);
    pair_->RunFor(milliseconds(100));
    Random random(seed);
    wire::PacketNumber number = 1'000'000;
    const auto noise = [&] {
      Address from = kOtherPort;
      if (random.Chance(0.5)) from.port = static_cast<uint16_t>(random.Next());
      std::vector<uint8_t> bytes = Forged(named, ++number, wire::GrantFrame{}, 100);
      pair_->server_endpoint->HandleDatagram(pair_->now(), from, bytes, {});
    };
    for (int i = 0; i < 50'000; ++i) noise();
    Rebind(kOtherPort);
    const Instant start = pair_->now();
    while (moving->peer() != kOtherPort && pair_->now() - start < seconds(10)) {
      noise();
      pair_->RunFor(Duration(10'000 + static_cast<int64_t>(random.Below(13'000))));
    }
    EXPECT_EQ(moving->peer(), kOtherPort);
    EXPECT_LE(pair_->now() - start, own ? seconds(5) : seconds(1));
    EXPECT_GT(pair_->server_endpoint->stats().failures_limited, own ? 9000u : 3000u);
    ASSERT_TRUE(Finish({1, 0}));
    EXPECT_EQ(pair_->worker.closed + other.closed, 0);
  }
}

TEST_F(Migration, TheSameWorkerMayMoveAgainAndBack) {
  Make();
  for (const Address& to : {kOtherPort, kOtherHost, pair_->worker_address}) {
    pair_->RunFor(milliseconds(100));
    Rebind(to);
    const uint32_t id = static_cast<uint32_t>(server_stats().migrations) + 1;
    pair_->SendWindow({id, 0}, 500, 0);
    ASSERT_TRUE(Finish({id, 0}));
    EXPECT_EQ(pair_->server.connection->peer(), to);
  }
  EXPECT_EQ(server_stats().migrations, 3u);
  // The end of the connection leaves nothing behind under its first address.
  pair_->connection->Close(Status::Ok());
  pair_->worker_host->Pump();
  EXPECT_TRUE(pair_->RunUntil([&] { return pair_->server.closed > 0; }, seconds(5)));
  EXPECT_EQ(pair_->server_endpoint->connection_count(), 0u);
}

}  // namespace
}  // namespace longhaul::transport
