// A path that dies while both hosts live: networks choose among their paths by the ports, so that another
// source port is another path.
//
//   client --port 1--> relay ==x==> server        port 1 stays dead
//          --port 2--> relay =====> server
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <thread>

#include "tests/worker/client_harness.h"
#include "tests/worker/udp_relay.h"
#include "transport/crypto/keygen.h"
#include "transport/keys/key_file.h"

namespace longhaul {
namespace {

using namespace std::chrono_literals;

// Machines that run this beside others, with sanitizers, stand still for seconds.
constexpr Duration kIdle = std::chrono::seconds(10) * (LONGHAUL_SLOWNESS > 4 ? 4 : 1);

TEST(FreshPort, AJobGoesOnByAnotherPortWhenItsPathDies) {
  const std::string key = std::filesystem::temp_directory_path() / ("port" + std::to_string(::getpid()));
  ASSERT_TRUE(keys::WriteKeyFile(key, crypto::NewPsk("job")->text()).ok());
  ServerOptions served;
  served.listen = "127.0.0.1:0";
  served.key_file = key;
  served.workers = 1;
  served.job_spec.high_share = 1;
  served.job_spec.idle_timeout = kIdle;
  Result<Server> server = Server::Start(served);
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  Relay relay(server->address());
  Client client =
      MustConnect({.servers = {relay.address()}, .world_size = 1, .idle_timeout = kIdle, .key_file = key});
  std::filesystem::remove(key);
  std::vector<float> gradient(100'000);
  std::iota(gradient.begin(), gradient.end(), 0.0F);
  std::vector<float> out(gradient.size());
  Result<Tensor> w = client.Declare("w", {.count = gradient.size()});
  ASSERT_TRUE(w.ok()) << w.status().ToString();
  const auto round = [&] {
    std::fill(out.begin(), out.end(), 0.0F);
    EXPECT_TRUE(client.PushPull(*w, gradient, out).Wait().ok());
    EXPECT_EQ(out, gradient);
  };
  round();
  ASSERT_EQ(relay.ports(), 1u);
  relay.Block();
  std::this_thread::sleep_for(50ms);
  const auto begun = std::chrono::steady_clock::now();
  round();
  round();
  // Less than the idle time-out, which would have ended the client.
  EXPECT_LT(std::chrono::steady_clock::now() - begun, kIdle * 8 / 10);
  EXPECT_GE(relay.ports(), 2u);
  EXPECT_TRUE(client.Leave().ok());
}

}  // namespace
}  // namespace longhaul
