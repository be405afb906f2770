// The path's MTU in the life of a connection: found, lost, and found again, in virtual time.
//
// Link MTUs are of IP packets: 28 bytes more than the datagram.
#include <gtest/gtest.h>

#include "tests/transport/connection_pair.h"

namespace longhaul::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint16_t kLongChunk = 1392;  // of a 1452-byte datagram

wan::LinkOptions Link(const std::string& words) {
  return wan::ParseLinkOptions("rate 200mbit delay 25ms queue 50ms " + words).value();
}

class PathMtu : public testing::Test {
 protected:
  void Make(const std::string& words, uint64_t seed = 1, int64_t max = 1452) {
    ConnectionPair::Options options;
    options.seed = seed;
    options.link = "rate 200mbit delay 25ms queue 50ms " + words;
    options.worker.max_datagram = options.server.max_datagram = ByteCount(max);
    pair_ = std::make_unique<ConnectionPair>(options);
  }
  void SetLink(const std::string& words) {
    pair_->network().SetLinkBothWays(pair_->worker_site(), pair_->server_site(), Link(words));
  }
  int64_t WorkerSize() const { return pair_->worker.connection->max_datagram().value(); }
  int64_t ServerSize() const { return pair_->server.connection->max_datagram().value(); }

  std::unique_ptr<ConnectionPair> pair_;
};

TEST_F(PathMtu, TheUsualHandshakeProvesTheLargestSizeAndNothingIsProbed) {
  Make("");
  ASSERT_TRUE(pair_->Establish());
  EXPECT_EQ(WorkerSize(), 1452);
  EXPECT_EQ(ServerSize(), 1452);
  pair_->RunFor(seconds(5));
  EXPECT_EQ(pair_->connection->stats().mtu_probes_sent, 0u);
  EXPECT_EQ(pair_->server.connection->stats().mtu_probes_sent, 0u);
}

TEST_F(PathMtu, ASmallerPathIsMeasuredBeforeAnybodyIsConnected) {
  for (int mtu : {1228, 1300, 1400, 1478}) {
    SCOPED_TRACE(mtu);
    Make("mtu " + std::to_string(mtu) + "b");
    ASSERT_TRUE(pair_->Establish());
    const int64_t fits = mtu - 28;
    EXPECT_LE(WorkerSize(), fits);
    EXPECT_LE(ServerSize(), fits);
    EXPECT_EQ(WorkerSize() / 16, fits / 16);
    EXPECT_EQ(ServerSize() / 16, fits / 16);
    const auto chunk = static_cast<uint16_t>(pair_->connection->MaxChunkBytes());
    pair_->SendWindow({1, 0}, 200, 100, 20, chunk);
    EXPECT_TRUE(pair_->RunUntil([&] { return pair_->worker.outgoing.contains({1, 0}); }, seconds(5)));
    pair_->ExpectDelivered(pair_->server, {1, 0}, 200, chunk);
    pair_->ExpectNoTimeViolation();
  }
}

TEST_F(PathMtu, LostProbesAreNoLoss) {
  Make("mtu 1300b");
  ASSERT_TRUE(pair_->Establish());
  pair_->SendWindow({1, 0}, 500, 0, 20, 1200);
  ASSERT_TRUE(pair_->RunUntil([&] { return pair_->worker.outgoing.contains({1, 0}); }, seconds(5)));
  const ConnectionStats stats = pair_->connection->stats();
  EXPECT_GE(stats.mtu_probes_lost, 9u);
  EXPECT_GT(stats.mtu_probes_sent, stats.mtu_probes_lost);
  EXPECT_EQ(stats.packets_lost, 0u);
  EXPECT_EQ(stats.loss, 0);
  EXPECT_EQ(stats.rate.loss, 0);
  EXPECT_EQ(stats.retransmissions, 0u);
  EXPECT_EQ(stats.repairs_sent, 0u);
}

TEST_F(PathMtu, LostInitsDoNotMakeALargePathSmall) {
  for (uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    Make("mtu 1300b loss 5%", seed);
    pair_->Connect();
    pair_->RunFor(milliseconds(3250));  // four large INITs are gone, the fifth is a small one
    SetLink("loss 5%");
    ASSERT_TRUE(pair_->RunUntil([&] { return pair_->worker.connected > 0; }, seconds(5)));
    EXPECT_EQ(WorkerSize(), 1452);
    ASSERT_TRUE(pair_->RunUntil([&] { return pair_->server.connected > 0; }, seconds(5)));
    EXPECT_EQ(ServerSize(), 1452);
  }
}

TEST_F(PathMtu, ControlThatComesBeforeTheServerKnowsItsPathWaits) {
  Make("mtu 1300b");
  pair_->Connect();
  pair_->RunFor(milliseconds(3250));
  // Only the way back stays small: the worker is ready long before the server.
  pair_->network().SetLink(pair_->worker_site(), pair_->server_site(), Link(""));
  ASSERT_TRUE(pair_->RunUntil([&] { return pair_->worker.connected > 0; }, seconds(5)));
  ASSERT_EQ(pair_->server.connected, 0);
  const std::vector<uint8_t> hello = {'j', 'o', 'i', 'n'};
  ASSERT_TRUE(pair_->connection->SendControl(hello).ok());
  pair_->worker_host->Pump();
  pair_->RunFor(milliseconds(100));
  ASSERT_EQ(pair_->server.connected, 0);
  EXPECT_TRUE(pair_->server.control.empty());
  ASSERT_TRUE(pair_->RunUntil([&] { return !pair_->server.control.empty(); }, seconds(5)));
  EXPECT_EQ(pair_->server.connected, 1);
  EXPECT_EQ(pair_->server.control, hello);
  EXPECT_EQ(WorkerSize(), 1452);
  EXPECT_EQ(ServerSize() / 16, 1272 / 16);
}

TEST_F(PathMtu, JumboFramesAreFoundByOneProbe) {
  Make("", 1, 8952);
  ASSERT_TRUE(pair_->Establish());
  EXPECT_EQ(WorkerSize(), 8952);
  EXPECT_EQ(pair_->connection->stats().mtu_probes_sent, 1u);
  const auto chunk = static_cast<uint16_t>(pair_->connection->MaxChunkBytes());
  EXPECT_EQ(chunk, 8896);
  pair_->SendWindow({1, 0}, 100, 50, 20, chunk);
  EXPECT_TRUE(pair_->RunUntil([&] { return pair_->worker.outgoing.contains({1, 0}); }, seconds(5)));
  pair_->ExpectDelivered(pair_->server, {1, 0}, 100, chunk);
}

TEST_F(PathMtu, JumboFramesWhereThereAreNone) {
  Make("mtu 1500b", 1, 8952);
  ASSERT_TRUE(pair_->Establish());
  EXPECT_EQ(WorkerSize(), 1472);
  EXPECT_EQ(ServerSize(), 1472);
}

// The path shrinks below what an open window's chunks need: they can never arrive.
TEST_F(PathMtu, AWindowThatNoLongerFitsEndsTheConnectionByName) {
  for (const char* loss : {"", " loss 2%", " loss 10%"}) {
    for (uint64_t seed : {1, 2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << loss);
      Make("" + std::string(loss), seed);
      ASSERT_TRUE(pair_->Establish());
      pair_->SendWindow({1, 0}, 4000, 1000, 20, kLongChunk);
      pair_->RunFor(milliseconds(120));
      ASSERT_FALSE(pair_->worker.outgoing.contains({1, 0}));
      SetLink("mtu 1400b" + std::string(loss));
      const Instant shrunk = pair_->network().now();
      ASSERT_TRUE(pair_->RunUntil([&] { return pair_->worker.closed > 0; }, seconds(9)));
      EXPECT_EQ(pair_->worker.close_status.code(), StatusCode::kUnavailable);
      EXPECT_NE(pair_->worker.close_status.message().find("has shrunk"), std::string::npos)
          << pair_->worker.close_status.ToString();
      EXPECT_LE(pair_->network().now() - shrunk, seconds(5));
      EXPECT_TRUE(pair_->RunUntil([&] { return pair_->server.closed > 0; }, seconds(9)));
      EXPECT_EQ(pair_->server.close_status.code(), StatusCode::kUnavailable);
      pair_->ExpectNoTimeViolation();
    }
  }
}

TEST_F(PathMtu, AWindowWhoseChunksStillFitGoesOn) {
  for (const char* loss : {"", " loss 5%", " loss 20%"}) {
    for (uint64_t seed : {1, 2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << loss);
      Make("" + std::string(loss), seed);
      ASSERT_TRUE(pair_->Establish());
      // Datagrams of 1344 bytes at most; the path will carry 1372, less than the control stream's.
      pair_->SendWindow({1, 0}, 3000, 500, 20, 1296);
      pair_->RunFor(milliseconds(100));
      SetLink("mtu 1400b" + std::string(loss));
      std::vector<uint8_t> bytes(100'000);
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7);
      ASSERT_TRUE(pair_->connection->SendControl(bytes).ok());
      pair_->worker_host->Pump();
      EXPECT_TRUE(pair_->RunUntil(
          [&] {
            return pair_->worker.outgoing.contains({1, 0}) && pair_->server.control.size() == bytes.size();
          },
          seconds(20)));
      pair_->ExpectDelivered(pair_->server, {1, 0}, 3000, 1296);
      EXPECT_EQ(pair_->server.control, bytes);
      EXPECT_EQ(pair_->worker.closed, 0);
      EXPECT_GE(pair_->connection->stats().black_holes, 1u);
      EXPECT_LE(WorkerSize(), 1372);
      EXPECT_GE(WorkerSize(), 1344);
    }
  }
}

TEST_F(PathMtu, WindowsOpenedAfterwardsUseWhatTheConnectionSays) {
  Make("");
  ASSERT_TRUE(pair_->Establish());
  SetLink("mtu 1400b");
  std::vector<uint8_t> bytes(50'000, 1);
  ASSERT_TRUE(pair_->connection->SendControl(bytes).ok());
  pair_->worker_host->Pump();
  ASSERT_TRUE(pair_->RunUntil([&] { return pair_->server.control.size() == bytes.size(); }, seconds(9)));
  pair_->RunFor(seconds(3));
  const auto chunk = static_cast<uint16_t>(pair_->connection->MaxChunkBytes());
  EXPECT_EQ(chunk, (1372 - 48) / 16 * 16);
  pair_->SendWindow({1, 0}, 100, 0, 20, chunk);
  EXPECT_TRUE(pair_->RunUntil([&] { return pair_->worker.outgoing.contains({1, 0}); }, seconds(5)));
  pair_->ExpectDelivered(pair_->server, {1, 0}, 100, chunk);
  // One that needs what the path used to carry: a promise that cannot be kept, so the end.
  const WindowOptions old{.key = {2, 0}, .high_count = 1, .symbol_bytes = kLongChunk, .metadata = {}};
  EXPECT_EQ(pair_->connection->OpenWindow(old).code(), StatusCode::kUnavailable);
  pair_->worker_host->Pump();
  EXPECT_TRUE(pair_->RunUntil([&] { return pair_->worker.closed > 0; }, seconds(5)));
  EXPECT_EQ(pair_->worker.close_status.code(), StatusCode::kUnavailable);
}

TEST_F(PathMtu, APathBelowTheBaseEndsTheConnectionByName) {
  Make("");
  ASSERT_TRUE(pair_->Establish());
  pair_->SendWindow({1, 0}, 4000, 0, 20, kLongChunk);
  pair_->RunFor(milliseconds(120));
  SetLink("mtu 900b");
  ASSERT_TRUE(pair_->RunUntil([&] { return pair_->worker.closed > 0; }, seconds(12)));
  EXPECT_EQ(pair_->worker.close_status.code(), StatusCode::kUnavailable);
  EXPECT_NE(pair_->worker.close_status.message().find("less than 1200"), std::string::npos)
      << pair_->worker.close_status.ToString();
}

TEST_F(PathMtu, AnOutageIsNoReasonToEnd) {
  for (const char* loss : {"", " loss 20%", " loss 10% burst 4"}) {
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << loss);
      Make("" + std::string(loss), seed);
      ASSERT_TRUE(pair_->Establish());
      pair_->SendWindow({1, 0}, 3000, 1000, 20, kLongChunk);
      pair_->RunFor(milliseconds(120));
      SetLink("loss 100%");
      pair_->RunFor(milliseconds(2500));
      SetLink("" + std::string(loss));
      EXPECT_TRUE(pair_->RunUntil([&] { return pair_->worker.outgoing.contains({1, 0}); }, seconds(60)));
      pair_->ExpectDelivered(pair_->server, {1, 0}, 3000);
      EXPECT_EQ(pair_->worker.closed, 0) << pair_->worker.close_status.ToString();
      pair_->ExpectNoTimeViolation();
    }
  }
}

TEST_F(PathMtu, AShortBlackHoleIsSurvived) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    Make("", seed);
    ASSERT_TRUE(pair_->Establish());
    pair_->SendWindow({1, 0}, 3000, 1000, 20, kLongChunk);
    pair_->RunFor(milliseconds(120));
    SetLink("mtu 1300b");
    ASSERT_TRUE(pair_->RunUntil([&] { return pair_->connection->stats().black_holes > 0; }, seconds(5)));
    EXPECT_EQ(WorkerSize(), 1200);
    SetLink("");
    EXPECT_TRUE(pair_->RunUntil([&] { return pair_->worker.outgoing.contains({1, 0}); }, seconds(10)));
    pair_->ExpectDelivered(pair_->server, {1, 0}, 3000);
    EXPECT_EQ(WorkerSize(), 1452);
  }
}

TEST_F(PathMtu, TenMinutesLaterAPathThatHasGrownIsUsed) {
  Make("mtu 1300b");
  ASSERT_TRUE(pair_->Establish());
  ASSERT_LT(WorkerSize(), 1300);
  SetLink("");
  pair_->RunFor(seconds(590));
  EXPECT_LT(WorkerSize(), 1300);
  pair_->RunFor(seconds(20));
  EXPECT_EQ(WorkerSize(), 1452);
  EXPECT_EQ(ServerSize(), 1452);
  EXPECT_EQ(pair_->worker.closed, 0);
}

TEST_F(PathMtu, TheKernelsRefusalInMidLifeIsFollowed) {
  Make("");
  ASSERT_TRUE(pair_->Establish());
  SetLink("mtu 1400b");
  pair_->worker_endpoint->HandleSendRefused(pair_->network().now(), pair_->server_address, 1452);
  EXPECT_EQ(WorkerSize(), 1200);
  pair_->worker_host->Pump();
  pair_->RunFor(seconds(2));
  EXPECT_EQ(WorkerSize() / 16, 1372 / 16);
  EXPECT_EQ(pair_->connection->stats().black_holes, 0u);
}

TEST_F(PathMtu, UnderLossTheSearchEndsBelowThePathAndInTime) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Make("mtu 1300b loss 20%", seed);
    if (!pair_->Establish(seconds(9))) continue;  // the handshake had bad luck
    EXPECT_GE(WorkerSize(), 1200);
    EXPECT_LE(WorkerSize(), 1272);
    EXPECT_LE(ServerSize(), 1272);
    pair_->ExpectNoTimeViolation();
  }
}

}  // namespace
}  // namespace longhaul::transport
