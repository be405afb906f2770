// A server whose keys change: each worker meets the one that opens its INIT, and keeps it.
#include <gtest/gtest.h>

#include "tests/transport/bare_pair.h"
#include "tests/transport/fake_security.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;

// The worker has key 2. The server began with key 1; then SetKeys.
struct TwoKeys {
  explicit TwoKeys(const AdmissionOptions& admission = {}, BarePair::Options o = {}) {
    o.worker_security = &worker;
    o.server_security = &begun_with;
    o.admission = admission;
    pair.emplace(o);
  }
  std::shared_ptr<FakeSecurity> Key(uint64_t key) {
    return std::make_shared<FakeSecurity>(FakeSecurity::Options{.key = key}, key);
  }
  EndpointStats stats() const { return pair->server_endpoint->stats(); }

  FakeSecurity worker{{.key = 2}, 10}, begun_with{{.key = 1}, 11};
  std::optional<BarePair> pair;
};

TEST(EndpointKeys, AWorkerWithTheSecondKeyConnectsUnderIt) {
  TwoKeys keys;
  keys.pair->server_endpoint->SetKeys({keys.Key(1), keys.Key(2)});
  ASSERT_TRUE(keys.pair->RunUntil([&] { return keys.pair->BothConnected(); }, 1s));
  EXPECT_EQ(keys.stats().not_authentic_dropped, 0u) << "one packet that opens, however many keys were tried";
  EXPECT_EQ(keys.begun_with.sessions, 0u);
}

TEST(EndpointKeys, AWorkerWithNeitherKeyIsCountedOncePerPacket) {
  TwoKeys keys;
  keys.pair->server_endpoint->SetKeys({keys.Key(1), keys.Key(3)});
  keys.pair->Run(15ms);
  EXPECT_EQ(keys.stats().datagrams_received, 1u);
  EXPECT_EQ(keys.stats().not_authentic_dropped, 1u);
  EXPECT_EQ(keys.stats().handshakes_failed, 1u);
}

// A RETRY is under the key of the INIT, and the cookie is good with every key.
TEST(EndpointKeys, AServerUnderLoadAsksForACookieUnderTheRightKey) {
  AdmissionOptions load;
  load.always_cookie = true;
  TwoKeys keys(load);
  keys.pair->server_endpoint->SetKeys({keys.Key(1), keys.Key(2)});
  ASSERT_TRUE(keys.pair->RunUntil([&] { return keys.pair->BothConnected(); }, 2s));
  EXPECT_GE(keys.stats().retries_sent, 1u);
  EXPECT_EQ(keys.stats().cookies_refused, 0u);
}

TEST(EndpointKeys, AConnectionOutlivesItsKey) {
  TwoKeys keys;
  {
    auto second = keys.Key(2);
    keys.pair->server_endpoint->SetKeys({keys.Key(1), second});
  }
  // In the middle of the handshake, and again when it is over.
  ASSERT_TRUE(keys.pair->RunUntil([&] { return keys.pair->accepted > 0 || keys.stats().half_open > 0; }, 1s));
  keys.pair->server_endpoint->SetKeys({keys.Key(2)});
  ASSERT_TRUE(keys.pair->RunUntil([&] { return keys.pair->BothConnected(); }, 2s));
  keys.pair->server_endpoint->SetKeys({keys.Key(3)});
  ASSERT_TRUE(keys.pair->connection->SendControl(std::vector<uint8_t>(1000)).ok());
  keys.pair->Poll(true);
  EXPECT_TRUE(keys.pair->RunUntil([&] { return keys.pair->server.control_bytes == 1000; }, 2s));
  keys.pair->Run(1s);
  EXPECT_EQ(keys.pair->worker.closed, 0);
}

}  // namespace
}  // namespace longhaul::transport
