// The server core with real connections, in virtual time: every datagram arrives 10 ms after it was sent.
#include "server/server_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/server/core_net.h"

namespace longhaul::server {
namespace {

using testing::HasSubstr;

struct Net : CoreNet {
  Net() : CoreNet(Options()) {}
  static ServerCoreOptions Options() {
    ServerCoreOptions options;
    options.settings.world_size = 2;
    options.settings.min_workers = 2;
    options.settings.idle_timeout = std::chrono::seconds(2);
    options.status_json = [](const ServerStats&) { return std::string(30 * 1024, ' '); };
    return options;
  }

  CoreClient& a = Add();
  CoreClient& b = Add();
};

TEST_F(Net, WorkersJoinOverRealConnectionsAndTheJobStarts) {
  RunFor(std::chrono::milliseconds(100));
  ASSERT_TRUE(a.connected && b.connected);
  a.Join(0);
  b.Join(1);
  RunFor(std::chrono::milliseconds(200));
  for (const CoreClient* client : {&a, &b}) {
    ASSERT_EQ(client->heard.size(), 2u);
    EXPECT_TRUE(client->heard[0].has_welcome());
    EXPECT_EQ(client->heard[1].start().symbol_bytes(), a.connection->MaxChunkBytes());
  }
  EXPECT_EQ(core.stats().joined, 2u);
}

TEST_F(Net, AWorkerThatFallsSilentAbortsTheJobWithinTheIdleTimeoutAndTheOtherHearsWhy) {
  RunFor(std::chrono::milliseconds(100));
  a.Join(0);
  b.Join(1);
  RunFor(std::chrono::milliseconds(200));
  b.host.Kill();
  RunFor(std::chrono::milliseconds(2400));
  ASSERT_FALSE(a.heard.empty());
  ASSERT_TRUE(a.heard.back().has_leave());
  EXPECT_THAT(a.heard.back().leave().message(), HasSubstr("worker rank 1 (10.0.0.2:1002): PeerDead"));
  EXPECT_EQ(core.jobs_over(), 1u);
  EXPECT_EQ(core.last_outcome().code(), StatusCode::kAborted);
  RunFor(std::chrono::seconds(1));
  ASSERT_TRUE(a.closed);
  EXPECT_EQ(a.closed->code(), StatusCode::kAborted);
}

TEST_F(Net, ShutdownTellsEveryoneAndDrains) {
  RunFor(std::chrono::milliseconds(100));
  a.Join(0);
  RunFor(std::chrono::milliseconds(100));
  EXPECT_FALSE(core.Drained());
  core.Shutdown(network.now(), Status());
  host.Pump();
  RunFor(std::chrono::milliseconds(1400));
  EXPECT_TRUE(core.Drained());
  ASSERT_TRUE(a.closed && b.closed);
  EXPECT_THAT(a.closed->message(), HasSubstr("the server is shutting down"));
}

TEST_F(Net, AHandOverClosesAllTakesNoneAndEndsNoJob) {
  RunFor(std::chrono::milliseconds(100));
  a.Join(0);
  b.Join(1);
  RunFor(std::chrono::milliseconds(200));
  core.HandOver(network.now(), Status(StatusCode::kUnavailable, "another server goes on"));
  host.Pump();
  CoreClient& late = Add();
  EXPECT_FALSE(core.Drained()) << "the workers have not heard of it";
  RunFor(std::chrono::milliseconds(1400));
  for (const CoreClient* client : {&a, &b}) {
    ASSERT_TRUE(client->closed);
    EXPECT_EQ(client->closed->code(), StatusCode::kUnavailable);
    EXPECT_THAT(client->closed->message(), HasSubstr("another server goes on"));
  }
  EXPECT_FALSE(late.connected) << "what it says again is for the next server";
  EXPECT_TRUE(core.Drained());
  RunFor(std::chrono::seconds(5));
  EXPECT_EQ(core.jobs_over(), 0u) << "beyond the idle time-out";
  EXPECT_EQ(core.stats().joined, 2u) << "as it was";
  for (const CoreClient* client : {&a, &b}) EXPECT_TRUE(client->heard.back().has_start()) << "no farewell";
}

// It may ask for the status as often as it likes: else it would make the server keep megabytes for it.
TEST_F(Net, OfWhatIsQueuedTowardsAStrangerLittleIsKept) {
  const auto ask_five_times = [](CoreClient& client) {
    for (uint32_t request = 1; request <= 5; ++request) {
      control::ControlMessage message;
      message.mutable_status_request()->set_request(request);
      client.Say(message);
    }
  };
  RunFor(std::chrono::milliseconds(100));
  a.Join(0);
  RunFor(std::chrono::milliseconds(100));
  ask_five_times(a);
  ask_five_times(b);
  RunFor(std::chrono::milliseconds(1900));
  ASSERT_TRUE(b.closed) << "150 KiB, of which " << transport::kWary.control_backlog << " bytes are allowed";
  EXPECT_EQ(b.closed->code(), StatusCode::kResourceExhausted) << b.closed->ToString();
  EXPECT_THAT(b.closed->message(), HasSubstr("does not read"));
  EXPECT_FALSE(a.closed) << "a member";
  EXPECT_EQ(a.heard.size(), 6u) << "the welcome, and five answers";
}

TEST_F(Net, RandomDatagramsChangeNothingForTheOthers) {
  const uint64_t seed = 42;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  RunFor(std::chrono::milliseconds(100));
  a.Join(0);
  for (int i = 0; i < 2000; ++i) {
    std::vector<uint8_t> noise(random.Below(1500));
    for (auto& byte : noise) byte = static_cast<uint8_t>(random.Next());
    host.OnDatagram(network.now(), Address::V4(10, 0, 0, 9, 9), noise);
  }
  b.Join(1);
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
  EXPECT_THAT(error([](ServerSettings& s) { s.max_datagram = ByteCount(1000); }),
              HasSubstr("in 1200..65507"));
}

TEST(ServerCoreOptions, TheRoomForHandshakesIsBounded) {
  ServerCoreOptions options;
  options.admission.max_half_open = 1;
  EXPECT_EQ(options.Validate().message(), "max_half_open is 1, but must be in 2..65536");
  options.admission = {.half_open_timeout = std::chrono::milliseconds(99)};
  EXPECT_EQ(options.Validate().message(),
            "half_open_timeout in milliseconds is 99, but must be in 100..60000");
}

}  // namespace
}  // namespace longhaul::server
