// Connections with TLS between two endpoints, in virtual time: whatever is lost on the way, and whatever
// an attacker on the path changes.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <optional>
#include <utility>

#include "proto/packet_header.h"
#include "tests/crypto/tls_pair.h"
#include "tests/transport/loss_masks.h"

namespace longhaul::crypto {
namespace {

using namespace std::chrono_literals;
using transport::BarePair;
using transport::Connection;
using transport::ConnectionStats;
using transport::Endpoint;
using transport::EndpointStats;
using transport::LossMasks;
using Bytes = std::vector<uint8_t>;

// A worker and a server that trust each other.
struct Trusted {
  std::unique_ptr<TlsSecurity> worker, server;

  BarePair::Options Options() const {
    BarePair::Options options;
    options.worker_security = worker.get();
    options.server_security = server.get();
    return options;
  }
};

std::unique_ptr<TlsSecurity> SecurityOf(const std::string& file, Role role) {
  const Side side(file, role);
  return side.Make();
}

Trusted MakeTrusted(bool certificates) {
  if (!certificates) {
    const std::string file = Text(NewPsk("job-a"));
    return {SecurityOf(file, Role::kWorker), SecurityOf(file, Role::kServer)};
  }
  const std::string ca = Text(NewCa("test-ca", kThisDay));
  const auto issue = [&](Role role, std::string_view name) {
    return SecurityOf(Text(IssueCertificate(ca, "job-a", role, name, kThisDay)), role);
  };
  return {issue(Role::kWorker, "worker-0"), issue(Role::kServer, "server-0")};
}

std::string NameOf(const testing::TestParamInfo<bool>& info) {
  return info.param ? "Certificates" : "PreSharedKey";
}

// --- Loss ---

class TlsLossMasks : public testing::TestWithParam<bool> {};

TEST_P(TlsLossMasks, EveryLossOfTheFirstEightDatagramsEndsWell) {
  const Trusted sides = MakeTrusted(GetParam());
  LossMasks masks;
  masks.RunAll(8, [&] { return sides.Options(); });
  masks.Print();
  EXPECT_EQ(masks.connected + masks.refused, 1u << 8);
  EXPECT_EQ(masks.refused, 0u) << "eight lost datagrams are no ten seconds";
  EXPECT_LE(masks.slowest, 10s);
}

TEST(TlsLossMasksOfMany, EveryLossWithAPreSharedKeyEndsWell) {
  const Trusted sides = MakeTrusted(false);
  LossMasks masks;
  masks.RunAll(transport::kMaskBits, [&] { return sides.Options(); });
  masks.Print();
  ASSERT_EQ(masks.connected + masks.refused, 1u << transport::kMaskBits);
  EXPECT_LE(masks.refused, (1u << transport::kMaskBits) * 4 / 100);
  EXPECT_LE(masks.slowest, 15s);
}

// Each costs signatures on both sides: a sample.
TEST(TlsLossMasksOfMany, FiveHundredLossesWithCertificatesEndWell) {
  const Trusted sides = MakeTrusted(true);
  const uint64_t seed = 16;
  Random random(seed);
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  LossMasks masks;
  for (int i = 0; i < 500 && !HasFailure(); ++i) {
    masks.RunOne(sides.Options(), static_cast<uint32_t>(random.Below(1 << 16)), 16);
  }
  masks.Print();
  EXPECT_EQ(masks.connected + masks.refused, 500u);
  EXPECT_LE(masks.refused, 500u * 5 / 100);
  EXPECT_LE(masks.slowest, 15s);
}

INSTANTIATE_TEST_SUITE_P(Keys, TlsLossMasks, testing::Bool(), NameOf);

// --- Changed packets ---

// All that a receiver counts of what it does not take. `connection` may be null.
uint64_t Dropped(const Endpoint& endpoint, const Connection* connection) {
  const EndpointStats e = endpoint.stats();
  uint64_t dropped = e.malformed_dropped + e.not_authentic_dropped + e.unknown_connection_dropped +
                     e.late_long_dropped + e.version_refused + e.failures_limited;
  if (connection == nullptr) return dropped;
  const ConnectionStats c = connection->stats();
  return dropped + c.bad_tag_dropped + c.malformed_dropped + c.duplicates_dropped + c.wrong_id_dropped +
         c.before_keys_dropped;
}

// What may not move when nothing is taken.
struct Taken {
  Taken(const Endpoint& endpoint, const BarePair::Application& application, const Connection* connection)
      : connections(endpoint.connection_count()),
        half_open(endpoint.stats().half_open),
        ends{application.connected, application.closed, application.windows_done},
        control_bytes(application.control_bytes),
        chunk_bytes(application.chunk_bytes) {
    if (connection == nullptr) return;
    const ConnectionStats c = connection->stats();
    state = connection->state();
    packets = c.packets_received;
    bytes = c.bytes_received;
    expected = c.packets_expected;
    key_updates = c.peer_key_updates;
    moves = c.path_candidates + c.migrations;
    in_flight = c.bytes_in_flight;
  }
  bool operator==(const Taken&) const = default;

  size_t connections;
  uint64_t half_open;
  std::array<int, 3> ends;
  uint64_t control_bytes, chunk_bytes;
  Connection::State state = Connection::State::kConnecting;
  uint64_t packets = 0, bytes = 0, expected = 0, key_updates = 0, moves = 0;
  ByteCount in_flight;
};

class TlsFlips : public testing::TestWithParam<bool> {
 protected:
  using Wanted = std::function<bool(bool from_worker, ByteSpan)>;

  TlsFlips() : sides_(MakeTrusted(GetParam())) {
    BarePair::Options options = sides_.Options();
    options.admission.failures_per_address = 10'000'000;  // all are opened
    options.lost = [this](int, bool from_worker, MutableByteSpan datagram) {
      if (!held_.empty() || !wanted_ || !wanted_(from_worker, datagram)) return false;
      held_.assign(datagram.begin(), datagram.end());
      from_worker_ = from_worker;
      return true;
    };
    wanted_ = [](bool, ByteSpan datagram) { return wire::IsLongHeader(datagram); };
    pair_.emplace(options);
  }

  // Until a packet that is wanted is on its way.
  void FlipTheNext() {
    ASSERT_TRUE(pair_->RunUntil([&] { return !held_.empty(); }, 5s)) << "no such packet";
    FlipHeld();
    wanted_ = nullptr;
  }
  // Every copy with one flipped bit arrives in its place, and afterwards itself.
  void FlipHeld() {
    const Bytes packet = held_;
    Endpoint& receiver = from_worker_ ? *pair_->server_endpoint : *pair_->worker_endpoint;
    BarePair::Application& application = from_worker_ ? pair_->server : pair_->worker;
    const Connection* connection = from_worker_ ? pair_->server.connection : pair_->connection;
    const Address from = from_worker_ ? pair_->worker_address : pair_->server_address;
    const Taken before(receiver, application, connection);
    for (size_t at = 0; at < packet.size(); ++at) {
      for (int bit = 0; bit < 8; ++bit) {
        const uint64_t dropped = Dropped(receiver, connection);
        Bytes copy = packet;
        copy[at] ^= static_cast<uint8_t>(1 << bit);
        pair_->Inject(from_worker_, from, std::move(copy));
        ASSERT_EQ(Dropped(receiver, connection), dropped + 1) << "byte " << at << ", bit " << bit;
        ++flips_;
      }
    }
    EXPECT_TRUE(Taken(receiver, application, connection) == before);
    held_.clear();
    pair_->Inject(from_worker_, from, packet);
  }
  void SendWindow(Connection& from, uint32_t id) {
    transport::WindowOptions window;
    window.key = {id, 0};
    window.high_count = kChunks;
    window.symbol_bytes = kChunkBytes;
    window.fec_k = 0;
    ASSERT_TRUE(from.OpenWindow(window).ok());
    for (uint32_t i = 0; i < kChunks; ++i) {
      ASSERT_TRUE(from.SubmitChunk(window.key, wire::ReliabilityClass::kHigh, ByteSpan(chunk_).first(12),
                                   ByteSpan(chunk_).subspan(12))
                      .ok());
    }
  }

  static constexpr uint32_t kChunks = 20;
  static constexpr uint16_t kChunkBytes = 1392;

  const Trusted sides_;
  const Bytes chunk_ = Bytes(kChunkBytes, 5);  // connections borrow it
  Wanted wanted_;
  Bytes held_;
  bool from_worker_ = false;
  std::optional<BarePair> pair_;
  uint64_t flips_ = 0;
};

// Would gain: another handshake than the one that both sides mean.
TEST_P(TlsFlips, OfEveryPacketOfTheHandshakeChangeNothing) {
  std::array<int, 2> packets{};
  while (pair_->RunUntil([&] { return !held_.empty() || pair_->BothConnected(); }, 5s) && !held_.empty()) {
    ++packets[from_worker_ ? 0 : 1];
    ASSERT_NO_FATAL_FAILURE(FlipHeld());
  }
  wanted_ = nullptr;
  ASSERT_TRUE(pair_->BothConnected());
  EXPECT_GE(packets[0], 2);
  EXPECT_GE(packets[1], 1);
  EXPECT_GE(flips_, 3u * 1200 * 8 / 2);
  SendWindow(*pair_->connection, 1);
  pair_->Poll(true);
  EXPECT_TRUE(pair_->RunUntil([&] { return pair_->worker.windows_done == 1; }, 5s));
  EXPECT_EQ(pair_->accepted, 1);
  EXPECT_EQ(pair_->worker.connected + pair_->server.connected, 2);
  EXPECT_EQ(pair_->worker.closed + pair_->server.closed, 0);
}

// Would gain: another gradient, another result, another message, a connection that ends.
TEST_P(TlsFlips, OfPacketsOfDataChangeNothing) {
  wanted_ = nullptr;
  if (!held_.empty()) pair_->Inject(true, pair_->worker_address, std::exchange(held_, {}));
  ASSERT_TRUE(pair_->RunUntil([&] { return pair_->BothConnected(); }, 5s));
  pair_->Run(1s);
  for (const bool up : {true, false}) {
    SCOPED_TRACE(up ? "to the server" : "to the worker");
    const auto large = [up](bool from_worker, ByteSpan datagram) {
      return from_worker == up && !wire::IsLongHeader(datagram) && datagram.size() > 1000;
    };
    Connection& from = up ? *pair_->connection : *pair_->server.connection;
    BarePair::Application& sender = up ? pair_->worker : pair_->server;
    BarePair::Application& receiver = up ? pair_->server : pair_->worker;
    wanted_ = large;
    SendWindow(from, 1);
    pair_->Poll(up);
    ASSERT_NO_FATAL_FAILURE(FlipTheNext());
    EXPECT_TRUE(pair_->RunUntil([&] { return sender.windows_done == 1; }, 5s));
    wanted_ = large;
    ASSERT_TRUE(from.SendControl(Bytes(3000, 7)).ok());
    pair_->Poll(up);
    ASSERT_NO_FATAL_FAILURE(FlipTheNext());
    EXPECT_TRUE(pair_->RunUntil([&] { return receiver.control_bytes >= 3000; }, 5s));
    SendWindow(from, 2);  // and it goes on
    pair_->Poll(up);
    EXPECT_TRUE(pair_->RunUntil([&] { return sender.windows_done == 2; }, 5s));
    pair_->Run(1s);
    EXPECT_EQ(receiver.control_bytes, 3000u) << "nothing twice";
    EXPECT_EQ(receiver.chunk_bytes, 2u * kChunks * kChunkBytes) << "nothing twice";
  }
  EXPECT_EQ(pair_->worker.closed + pair_->server.closed, 0);
  EXPECT_GT(flips_, 4u * 1000 * 8);
}

INSTANTIATE_TEST_SUITE_P(Keys, TlsFlips, testing::Bool(), NameOf);

}  // namespace
}  // namespace longhaul::crypto
