// The path's MTU in the life of a connection: found, lost, and found again, in virtual time.
//
// Link MTUs are of IP packets: 28 bytes more than the datagram.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/transport/connection_pair.h"
#include "transport/core/path/dplpmtud.h"

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
    pair_->RunFor(milliseconds(850));  // two large INITs are gone, the third is a small one
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
  pair_->RunFor(milliseconds(850));
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

// The path shrinks below what an open window's chunks need: they go on in parts, and whole again when the
// path grows. In both directions, and down to a third of the size.
TEST_F(PathMtu, AWindowThatNoLongerFitsTravelsInParts) {
  for (const bool up : {true, false}) {
    for (const char* small : {"mtu 1400b", "mtu 1300b", "mtu 1000b", "mtu 640b"}) {
      for (const char* loss : {"", " loss 2%", " loss 10%"}) {
        SCOPED_TRACE(testing::Message() << (up ? "up " : "down ") << small << loss);
        Make("" + std::string(loss), 3);
        ASSERT_TRUE(pair_->Establish());
        Recorder& from = up ? pair_->worker : pair_->server;
        Recorder& to = up ? pair_->server : pair_->worker;
        pair_->SendWindowFrom(*from.connection, {1, 0}, 2000, 500, 20, kLongChunk);
        (up ? pair_->worker_host : pair_->server_host)->Pump();
        pair_->RunFor(milliseconds(60));
        ASSERT_FALSE(from.outgoing.contains({1, 0}));
        SetLink(small + std::string(loss));
        ASSERT_TRUE(pair_->RunUntil([&] { return from.outgoing.contains({1, 0}); }, seconds(20)));
        pair_->ExpectDelivered(to, {1, 0}, 2000);
        const WindowReceipt& receipt = from.outgoing.at({1, 0}).receipt;
        EXPECT_EQ(receipt.low.count(), to.incoming.at({1, 0}).low.size());
        EXPECT_GT(from.connection->stats().chunks_cut, 0u);
        EXPECT_GE(from.connection->stats().black_holes, 1u);
        EXPECT_LE(from.connection->stats().black_holes, 2u);  // half of a chunk may be too long as well
        EXPECT_GT(to.connection->stats().chunks_joined, 0u);
        SetLink("" + std::string(loss));
        pair_->RunFor(Dplpmtud::kRaiseTimer + seconds(10));
        const uint64_t cut = from.connection->stats().chunks_cut;
        pair_->SendWindowFrom(*from.connection, {2, 0}, 500, 100, 20, kLongChunk);
        (up ? pair_->worker_host : pair_->server_host)->Pump();
        ASSERT_TRUE(pair_->RunUntil([&] { return from.outgoing.contains({2, 0}); }, seconds(20)));
        EXPECT_EQ(from.connection->stats().chunks_cut, cut) << "whole chunks again";
        EXPECT_EQ(pair_->worker.closed, 0) << pair_->worker.close_status.ToString();
        pair_->ExpectNoTimeViolation();
      }
    }
  }
}

// From the first datagram that vanishes to the first chunk that arrives in parts, and what the controller
// makes of it: a path that swallows what is large is not congested. Figures: docs/decisions/0023.
TEST_F(PathMtu, ABlackHoleIsFoundWithinAFewRoundTripsAndIsNoCongestion) {
  for (const RateControl control : {RateControl::kLonghaul, RateControl::kBbr, RateControl::kCubic}) {
    for (const int delay : {5, 25, 100}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(control) << ", RTT " << 2 * delay << " ms");
      ConnectionPair::Options options;
      const std::string link = "rate 100mbit queue 60ms delay " + std::to_string(delay) + "ms";
      options.link = link;
      options.worker.rate.control = control;
      pair_ = std::make_unique<ConnectionPair>(options);
      ASSERT_TRUE(pair_->Establish());
      pair_->SendWindow({1, 0}, 60'000, 0, 20, kLongChunk);
      pair_->RunFor(seconds(3));
      const ConnectionStats before = pair_->connection->stats();
      pair_->network().SetLinkBothWays(pair_->worker_site(), pair_->server_site(),
                                       wan::ParseLinkOptions(link + " mtu 1300b").value());
      const Instant shrunk = pair_->now();
      ASSERT_TRUE(pair_->RunUntil([&] { return pair_->connection->stats().black_holes > 0; }, seconds(9)));
      const Duration found = pair_->now() - shrunk;
      ASSERT_TRUE(
          pair_->RunUntil([&] { return pair_->server.connection->stats().chunks_joined > 0; }, seconds(9)));
      const Duration stall = pair_->now() - shrunk;
      const ConnectionStats then = pair_->connection->stats();
      pair_->RunFor(milliseconds(500));
      const uint64_t had = pair_->server.connection->stats().chunk_bytes_received;
      pair_->RunFor(seconds(1));
      const ConnectionStats after = pair_->connection->stats();
      const double mbit =
          static_cast<double>(pair_->server.connection->stats().chunk_bytes_received - had) * 8e-6;
      std::printf(
          "controller %d, RTT %d ms: black hole found after %.0f ms, first chunk in parts after %.0f ms, "
          "then "
          "%.0f Mbit/s; loss for FEC %.3f -> %.3f -> %.3f, repairs %lu\n",
          static_cast<int>(control), 2 * delay, static_cast<double>(found.count()) * 1e-6,
          static_cast<double>(stall.count()) * 1e-6, mbit, before.loss_for_fec, then.loss_for_fec,
          after.loss_for_fec, static_cast<unsigned long>(after.repairs_sent - before.repairs_sent));
      EXPECT_LE(stall, 10 * milliseconds(2 * delay) + milliseconds(200));
      EXPECT_LE(then.loss_for_fec, before.loss_for_fec + 0.05);
      EXPECT_GE(mbit, 100 * 0.6);
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

TEST_F(PathMtu, WindowsOpenedAfterwardsMayHaveEitherLength) {
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
  EXPECT_EQ(pair_->connection->stats().chunks_cut, 0u);
  pair_->SendWindow({2, 0}, 100, 0, 20, kLongChunk);
  EXPECT_TRUE(pair_->RunUntil([&] { return pair_->worker.outgoing.contains({2, 0}); }, seconds(5)));
  pair_->ExpectDelivered(pair_->server, {2, 0}, 100);
  EXPECT_GE(pair_->connection->stats().chunks_cut, 100u);
}

// The long chunks of a job over a path that never carried them: 57 parts each.
TEST_F(PathMtu, AJobOfJumboChunksReachesASmallPath) {
  Make("mtu 1300b");
  ASSERT_TRUE(pair_->Establish());
  pair_->SendWindow({1, 0}, 20, 10, 8, kMaxSymbolBytes);
  EXPECT_TRUE(pair_->RunUntil([&] { return pair_->worker.outgoing.contains({1, 0}); }, seconds(5)));
  pair_->ExpectDelivered(pair_->server, {1, 0}, 20, kMaxSymbolBytes);
  const WindowOptions longer{.key = {2, 0}, .high_count = 1, .symbol_bytes = 65'008, .metadata = {}};
  EXPECT_EQ(pair_->connection->OpenWindow(longer).code(), StatusCode::kInvalidArgument);
}

TEST_F(PathMtu, APathBelowTheMinimumEndsTheConnectionByName) {
  for (const bool busy : {true, false}) {
    SCOPED_TRACE(busy);
    Make("");
    ASSERT_TRUE(pair_->Establish());
    if (busy) pair_->SendWindow({1, 0}, 4000, 0, 20, kLongChunk);
    pair_->RunFor(milliseconds(120));
    SetLink("mtu 500b");
    if (!busy) pair_->SendWindow({1, 0}, 4, 0, 20, kLongChunk);
    const Instant shrunk = pair_->now();
    ASSERT_TRUE(pair_->RunUntil([&] { return pair_->worker.closed > 0; }, seconds(12)));
    EXPECT_EQ(pair_->worker.close_status.code(), StatusCode::kUnavailable);
    EXPECT_NE(pair_->worker.close_status.message().find("less than 600"), std::string::npos)
        << pair_->worker.close_status.ToString();
    EXPECT_LE(pair_->now() - shrunk, seconds(10));
  }
}

// Frames that cannot be split fit the smallest datagram: an OPEN with all the metadata there may be, the
// CLOSE of a large window, an ACK with many ranges, control data.
TEST_F(PathMtu, EveryFrameFitsTheSmallestPath) {
  Make("loss 5%");
  ASSERT_TRUE(pair_->Establish());
  pair_->SendWindow({1, 0}, 300, 0, 20, kLongChunk);
  pair_->RunFor(milliseconds(30));
  SetLink("loss 5% mtu 640b");
  ASSERT_TRUE(pair_->RunUntil([&] { return pair_->worker.outgoing.contains({1, 0}); }, seconds(9)));
  const std::vector<uint8_t> metadata(wire::kMaxWindowMetadataBytes, 7);
  const std::vector<uint8_t> body(16);
  const WindowOptions wide{
      .key = {2, 0}, .low_count = 40'000, .symbol_bytes = 16, .fec_k = 0, .metadata = metadata};
  ASSERT_TRUE(pair_->connection->OpenWindow(wide).ok());
  for (uint32_t i = 0; i < wide.low_count; ++i) {
    ASSERT_TRUE(pair_->connection->SubmitChunk({2, 0}, wire::ReliabilityClass::kLow, body, {}).ok());
  }
  std::vector<uint8_t> control(20'000, 3);
  ASSERT_TRUE(pair_->connection->SendControl(control).ok());
  pair_->worker_host->Pump();
  ASSERT_TRUE(pair_->RunUntil([&] { return pair_->worker.outgoing.contains({2, 0}); }, seconds(60)));
  EXPECT_EQ(pair_->server.incoming.at({2, 0}).metadata, metadata);
  const WindowReceipt& receipt = pair_->worker.outgoing.at({2, 0}).receipt;
  EXPECT_EQ(receipt.low.count(), pair_->server.incoming.at({2, 0}).low.size());
  EXPECT_LT(receipt.low.count(), wide.low_count) << "a CLOSE with a bitmap";
  EXPECT_EQ(pair_->server.control, control);
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
    EXPECT_TRUE(pair_->RunUntil([&] { return WorkerSize() == 1452; }, seconds(2)));
    EXPECT_TRUE(pair_->RunUntil([&] { return pair_->worker.outgoing.contains({1, 0}); }, seconds(10)));
    pair_->ExpectDelivered(pair_->server, {1, 0}, 3000);
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

TEST_F(PathMtu, WhileChunksAreCutAPathThatHasGrownIsUsedWithinHalfAMinute) {
  Make("");
  ASSERT_TRUE(pair_->Establish());
  SetLink("mtu 1300b");
  uint32_t id = 0;
  const auto send = [&] {
    pair_->SendWindow({++id, 0}, 50, 0, 20, kLongChunk);
    return pair_->RunUntil([&] { return pair_->worker.outgoing.contains({id, 0}); }, seconds(9));
  };
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(send());
    pair_->RunFor(milliseconds(500));
  }
  ASSERT_LT(WorkerSize(), 1300);
  SetLink("");
  const Instant grown = pair_->now();
  while (WorkerSize() < 1452 && pair_->now() - grown < seconds(60)) {
    ASSERT_TRUE(send());
    pair_->RunFor(milliseconds(500));
  }
  EXPECT_LE(pair_->now() - grown, Dplpmtud::kNeededRaiseTimer + seconds(2));
  const uint64_t cut = pair_->connection->stats().chunks_cut;
  ASSERT_TRUE(send());
  EXPECT_EQ(pair_->connection->stats().chunks_cut, cut);
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
