// The server core with real connections, in virtual time: every datagram arrives 10 ms after it was sent.
#include "server/server_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "codec/reference_coder.h"

namespace longhaul::server {
namespace {

using control::ControlMessage;
using testing::HasSubstr;

const Address kServer = Address::V4(10, 0, 0, 1, 7700);
constexpr Duration kDelay = std::chrono::milliseconds(10);

// A client that only listens to what it is told.
struct Client final : transport::ConnectionObserver {
  explicit Client(uint16_t port, uint64_t seed)
      : address(Address::V4(10, 0, 0, 2, port)), endpoint(transport::EndpointOptions(), Random(seed)) {}

  void OnConnected(transport::Connection&) override { connected = true; }
  void OnClosed(transport::Connection&, const Status& why) override {
    closed = why;
    connection = nullptr;
  }
  void OnControlData(transport::Connection&, ByteSpan bytes) override {
    const auto messages = reader.Append(bytes);
    ASSERT_TRUE(messages.ok());
    for (const auto& message : *messages) heard.push_back(message);
  }
  Status OnWindowOpened(transport::Connection&, transport::WindowKey, const wire::WindowOpenFrame&) override {
    return {};
  }
  transport::ChunkVerdict OnChunk(transport::Connection&, transport::WindowKey, wire::ReliabilityClass,
                                  uint32_t, ByteSpan, bool) override {
    return transport::ChunkVerdict::kTaken;
  }
  void OnWindowClosed(transport::Connection&, transport::WindowKey, wire::CloseReason,
                      const transport::WindowReceipt&, const transport::WindowTxStats&) override {}

  void Join(uint32_t rank, uint32_t world_size) {
    ControlMessage message;
    message.mutable_join()->set_job("default");
    message.mutable_join()->set_rank(rank);
    message.mutable_join()->set_world_size(world_size);
    message.mutable_join()->set_weight(1);
    ASSERT_TRUE(connection->SendControl(wire::EncodeControlMessage(message)).ok());
  }

  Address address;
  transport::Endpoint endpoint;
  transport::Connection* connection = nullptr;
  wire::ControlReader reader;
  bool connected = false;
  std::optional<Status> closed;
  std::vector<ControlMessage> heard;
};

struct Net : testing::Test {
  Net() {
    ServerCoreOptions options;
    options.settings.world_size = 2;
    options.settings.min_workers = 2;
    options.settings.idle_timeout = std::chrono::seconds(2);
    core.emplace(options, &coder, Random(7));
    for (Client* client : {&a, &b}) client->connection = client->endpoint.Connect(now, kServer, client);
  }

  void Drain(transport::DatagramCore& from, const Address& source) {
    std::vector<uint8_t> buffer(65507);
    while (const auto transmit = from.PollTransmit(now, buffer)) {
      for (size_t at = 0; at < transmit->size; at += transmit->segment_bytes) {
        const size_t length = std::min(transmit->segment_bytes, transmit->size - at);
        flying.push_back({now + kDelay,
                          source,
                          transmit->destination,
                          {buffer.begin() + static_cast<ptrdiff_t>(at),
                           buffer.begin() + static_cast<ptrdiff_t>(at + length)}});
      }
    }
  }
  // Lets time pass; clients that are `dead` neither send nor hear.
  void RunFor(Duration duration, const Client* dead = nullptr) {
    const Instant end = now + duration;
    for (;;) {
      Drain(*core, kServer);
      for (Client* client : {&a, &b}) {
        if (client != dead) Drain(client->endpoint, client->address);
      }
      Instant next = core->NextTimeout();
      for (Client* client : {&a, &b}) {
        if (client != dead) next = std::min(next, client->endpoint.NextTimeout());
      }
      if (!flying.empty()) next = std::min(next, flying.front().due);
      if (next > end) break;
      now = std::max(now, next);
      Deliver(dead);
      core->HandleTimeout(now);
      for (Client* client : {&a, &b}) {
        if (client != dead) client->endpoint.HandleTimeout(now);
      }
    }
    now = end;
  }
  void Deliver(const Client* dead) {
    while (!flying.empty() && flying.front().due <= now) {
      Flying datagram = std::move(flying.front());
      flying.pop_front();
      if (datagram.to == kServer) {
        core->HandleDatagram(now, datagram.from, datagram.bytes, {});
        continue;
      }
      for (Client* client : {&a, &b}) {
        if (client != dead && client->address == datagram.to) {
          client->endpoint.HandleDatagram(now, datagram.from, datagram.bytes, {});
        }
      }
    }
  }

  struct Flying {
    Instant due;
    Address from;
    Address to;
    std::vector<uint8_t> bytes;
  };
  Instant now = Instant::FromNanoseconds(1000000000);
  codec::ReferenceCoder coder;
  std::optional<ServerCore> core;
  Client a{1001, 1};
  Client b{1002, 2};
  std::deque<Flying> flying;
};

TEST_F(Net, WorkersJoinOverRealConnectionsAndTheJobStarts) {
  RunFor(std::chrono::milliseconds(100));
  ASSERT_TRUE(a.connected && b.connected);
  a.Join(0, 2);
  b.Join(1, 2);
  RunFor(std::chrono::milliseconds(200));
  for (const Client* client : {&a, &b}) {
    ASSERT_EQ(client->heard.size(), 2u);
    EXPECT_TRUE(client->heard[0].has_welcome());
    EXPECT_EQ(client->heard[1].start().symbol_bytes(), a.connection->MaxChunkBytes());
  }
  EXPECT_EQ(core->stats().joined, 2u);
}

TEST_F(Net, AWorkerThatFallsSilentAbortsTheJobWithinTheIdleTimeoutAndTheOtherHearsWhy) {
  RunFor(std::chrono::milliseconds(100));
  a.Join(0, 2);
  b.Join(1, 2);
  RunFor(std::chrono::milliseconds(200));
  RunFor(std::chrono::milliseconds(2400), &b);
  ASSERT_FALSE(a.heard.empty());
  ASSERT_TRUE(a.heard.back().has_leave());
  EXPECT_THAT(a.heard.back().leave().message(), HasSubstr("worker rank 1 (10.0.0.2:1002): PeerDead"));
  EXPECT_EQ(core->jobs_over(), 1u);
  EXPECT_EQ(core->last_outcome().code(), StatusCode::kAborted);
  RunFor(std::chrono::seconds(1), &b);
  ASSERT_TRUE(a.closed);
  EXPECT_EQ(a.closed->code(), StatusCode::kAborted);
}

TEST_F(Net, ShutdownTellsEveryoneAndDrains) {
  RunFor(std::chrono::milliseconds(100));
  a.Join(0, 2);
  RunFor(std::chrono::milliseconds(100));
  EXPECT_FALSE(core->Drained());
  core->Shutdown(now, Status());
  RunFor(std::chrono::milliseconds(1400));
  EXPECT_TRUE(core->Drained());
  ASSERT_TRUE(a.closed && b.closed);
  EXPECT_THAT(a.closed->message(), HasSubstr("the server is shutting down"));
}

TEST_F(Net, RandomDatagramsChangeNothingForTheOthers) {
  const uint64_t seed = 42;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  RunFor(std::chrono::milliseconds(100));
  a.Join(0, 2);
  for (int i = 0; i < 2000; ++i) {
    std::vector<uint8_t> noise(random.Below(1500));
    for (auto& byte : noise) byte = static_cast<uint8_t>(random.Next());
    core->HandleDatagram(now, Address::V4(10, 0, 0, 9, 9), noise, {});
  }
  b.Join(1, 2);
  RunFor(std::chrono::milliseconds(200));
  ASSERT_EQ(a.heard.size(), 2u);
  EXPECT_TRUE(a.heard[1].has_start());
}

TEST(ServerCoreOptions, ImpossibleValuesAreNamedWithTheirRange) {
  const auto error = [](auto change) {
    ServerCoreOptions options;
    options.settings.world_size = 4;
    change(options.settings);
    return options.Validate().message();
  };
  EXPECT_EQ(error([](ServerSettings&) {}), "");
  EXPECT_EQ(error([](ServerSettings& s) { s.world_size = 0; }), "workers is 0, but must be in 1..1024");
  EXPECT_EQ(error([](ServerSettings& s) { s.job = "a\nb"; }),
            "job is \"a\\x0ab\", but must be without control characters");
  EXPECT_EQ(error([](ServerSettings& s) { s.min_workers = 5; }), "min_workers is 5, but must be in 1..4");
  EXPECT_EQ(error([](ServerSettings& s) { s.fec_k = 7; }), "fec_k is 7, but must be 0, 8, 12, 16, 20 or 24");
  EXPECT_THAT(error([](ServerSettings& s) { s.close_ratio = 1.5; }), HasSubstr("close_ratio is 1.5"));
  EXPECT_THAT(error([](ServerSettings& s) { s.policy = "magic"; }), HasSubstr("magic"));
  EXPECT_THAT(error([](ServerSettings& s) { s.max_datagram = ByteCount(1000); }),
              HasSubstr("in 1200..65507"));
}

}  // namespace
}  // namespace longhaul::server
