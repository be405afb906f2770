// A path that dies while both hosts live: networks choose among their paths by the ports, so that another
// source port is another path.
//
//   client --port 1--> relay ==x==> server        port 1 stays dead
//          --port 2--> relay =====> server
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "tests/worker/client_harness.h"
#include "transport/crypto/keygen.h"
#include "transport/keys/key_file.h"
#include "transport/udp/resolve.h"
#include "transport/udp/socket.h"

namespace longhaul {
namespace {

using namespace std::chrono_literals;
using udp::UdpSocket;

// In a thread. Each port of a client has one towards the server.
class Relay {
 public:
  explicit Relay(const std::string& server)
      : server_(*udp::ResolvePeer(server)), front_(OpenLoopback()), thread_([this] { Run(); }) {}
  ~Relay() {
    stop_ = true;
    thread_.join();
  }
  std::string address() const { return front_.local_address().ToString(); }
  // The ports that it has seen so far are dead from now on.
  void Block() { block_ = true; }
  size_t ports() const { return ports_; }

 private:
  static UdpSocket OpenLoopback() { return std::move(UdpSocket::Open(Address::V4(127, 0, 0, 1, 0))).value(); }

  void Run() {
    while (!stop_) {
      std::vector<pollfd> wait = {{front_.fd(), POLLIN, 0}};
      for (const auto& [client, back] : backs_) wait.push_back({back.fd(), POLLIN, 0});
      ::poll(wait.data(), wait.size(), 10);
      if (block_.exchange(false)) {
        for (const auto& [client, back] : backs_) blocked_.insert(client);
      }
      for (const udp::ReceivedDatagram& datagram : front_.Receive()) {
        const auto [at, fresh] = backs_.try_emplace(datagram.from.port, OpenLoopback());
        ports_ = backs_.size();
        if (!blocked_.contains(at->first)) at->second.Send(server_, datagram.bytes, datagram.bytes.size());
      }
      for (auto& [client, back] : backs_) {
        for (const udp::ReceivedDatagram& datagram : back.Receive()) {
          if (blocked_.contains(client)) continue;
          front_.Send(Address::V4(127, 0, 0, 1, client), datagram.bytes, datagram.bytes.size());
        }
      }
    }
  }

  Address server_;
  UdpSocket front_;
  std::map<uint16_t, UdpSocket> backs_;  // by the client's port
  std::set<uint16_t> blocked_;
  std::atomic<size_t> ports_ = 0;
  std::atomic<bool> block_ = false;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

TEST(FreshPort, AJobGoesOnByAnotherPortWhenItsPathDies) {
  const std::string key = std::filesystem::temp_directory_path() / ("port" + std::to_string(::getpid()));
  ASSERT_TRUE(keys::WriteKeyFile(key, crypto::NewPsk("job")->text()).ok());
  ServerOptions served;
  served.listen = "127.0.0.1:0";
  served.key_file = key;
  served.workers = 1;
  served.job_spec.high_share = 1;
  Result<Server> server = Server::Start(served);
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  Relay relay(server->address());
  Client client = MustConnect({.servers = {relay.address()}, .world_size = 1, .key_file = key});
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
  // Less than the idle time-out of 10 s, which would have ended the client.
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 8s);
  EXPECT_GE(relay.ports(), 2u);
  EXPECT_TRUE(client.Leave().ok());
}

}  // namespace
}  // namespace longhaul
