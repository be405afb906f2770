// What is kept for a peer before the owner of its connection admits it: ConnectionOptions::wary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/transport/connection_pair.h"
#include "transport/core/connection/control_stream.h"

namespace longhaul::transport {
namespace {

struct WaryServer : testing::Test {
  WaryServer() {
    ConnectionPair::Options options;
    options.server.wary = true;
    pair.emplace(options);
    EXPECT_TRUE(pair->Establish());
  }
  ConnectionStats stats() const { return pair->server.connection->stats(); }

  std::optional<ConnectionPair> pair;
};

TEST_F(WaryServer, WindowsAreToldAndNothingOfThemIsKept) {
  for (uint32_t id = 1; id <= 20; ++id) pair->SendWindow({id, 0}, 10, 10);
  pair->RunFor(std::chrono::seconds(1));
  EXPECT_EQ(pair->server.incoming.size(), 20u);
  for (const auto& [key, window] : pair->server.incoming) {
    EXPECT_TRUE(window.high.empty() && window.low.empty());
    EXPECT_EQ(window.states, 0) << key.id;
  }
  EXPECT_GE(stats().not_admitted_dropped, 20u * 20);
  EXPECT_EQ(stats().chunk_bytes_received, 0u);
}

TEST_F(WaryServer, WhoIsAdmittedHasAllThatTheOptionsAllowUntilThatIsTakenBack) {
  pair->server.connection->Admit(true);
  pair->SendWindow({1, 0}, 10, 10);
  pair->RunFor(std::chrono::seconds(1));
  pair->ExpectDelivered(pair->server, {1, 0}, 10);
  EXPECT_TRUE(pair->server.connection->SendControl(std::vector<uint8_t>(1 << 20)).ok());
  pair->server.connection->Admit(false);
  pair->SendWindow({2, 0}, 10, 10);
  pair->RunFor(std::chrono::seconds(1));
  EXPECT_EQ(pair->server.incoming.at({2, 0}).states, 0);
  EXPECT_GE(stats().not_admitted_dropped, 21u) << "20 chunks and an OPEN that is repeated";
}

TEST_F(WaryServer, LittleIsQueuedTowardsIt) {
  Connection& connection = *pair->server.connection;
  EXPECT_TRUE(connection.SendControl(std::vector<uint8_t>(kWary.control_backlog)).ok());
  EXPECT_EQ(connection.SendControl(std::vector<uint8_t>(1)).code(), StatusCode::kResourceExhausted);
}

TEST(ControlReceiveStream, SmallerLimitsHoldForBytesAndPieces) {
  const std::vector<uint8_t> bytes(8192, 1);
  std::vector<uint8_t> ready;
  ControlReceiveStream far;
  far.SetLimits(kWary.control_received, kWary.control_pieces);
  EXPECT_TRUE(far.OnFrame({1, bytes}, &ready).ok());
  EXPECT_EQ(far.OnFrame({1 + 8192, bytes}, &ready).code(), StatusCode::kProtocolViolation);

  ControlReceiveStream crumbs;
  crumbs.SetLimits(kWary.control_received, kWary.control_pieces);
  for (uint64_t i = 0; i < kWary.control_pieces; ++i) {
    EXPECT_TRUE(crumbs.OnFrame({2 * i + 1, ByteSpan(bytes).first(1)}, &ready).ok());
  }
  EXPECT_EQ(crumbs.OnFrame({8000, ByteSpan(bytes).first(1)}, &ready).code(), StatusCode::kProtocolViolation);
}

// A gap that closes frees much at once; what it is parsed into must not be alive all together.
TEST(ControlData, ComesInSlicesHoweverMuchAGapHeldBack) {
  ConnectionPair::Options options;
  options.link = "rate 200mbit delay 25ms queue 500ms loss 10%";
  ConnectionPair pair(options);
  ASSERT_TRUE(pair.Establish());
  std::vector<uint8_t> sent(3 << 20);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<uint8_t>(i * 7);
  ASSERT_TRUE(pair.connection->SendControl(sent).ok());
  pair.worker_host->Pump();
  ASSERT_TRUE(
      pair.RunUntil([&] { return pair.server.control.size() == sent.size(); }, std::chrono::seconds(60)));
  EXPECT_EQ(pair.server.control, sent);
  EXPECT_LE(pair.server.longest_control, event::ControlBytes::kMaxBytes);
  EXPECT_GT(pair.server.longest_control, 8u * 1024) << "there was no gap worth the name";
}

}  // namespace
}  // namespace longhaul::transport
