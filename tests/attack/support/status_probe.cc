#include "tests/attack/support/status_probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "base/random.h"
#include "tests/attack/support/spoofing_socket.h"
#include "transport/keys/load_security.h"
#include "transport/udp/clock.h"
#include "worker/client/status_core.h"
#include "worker/client/worker_core.h"

namespace longhaul::attack {
namespace {

constexpr Duration kStatusAge = std::chrono::milliseconds(110);
const uint32_t kProbeHost = LoopbackHost(kProbeIndex);

class ProbeSocket {
 public:
  explicit ProbeSocket(uint16_t server_port) : fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in mine = Of(kProbeHost, 0);
    const sockaddr_in server = Of(INADDR_LOOPBACK, server_port);
    (void)::bind(fd_, reinterpret_cast<const sockaddr*>(&mine), sizeof mine);
    (void)::connect(fd_, reinterpret_cast<const sockaddr*>(&server), sizeof server);
  }
  ~ProbeSocket() { ::close(fd_); }
  ProbeSocket(const ProbeSocket&) = delete;
  ProbeSocket& operator=(const ProbeSocket&) = delete;

  void SendAll(transport::DatagramCore& core) {
    while (const auto batch = core.PollTransmit(udp::Now(), buffer_)) {
      for (size_t at = 0; at < batch->size; at += batch->segment_bytes) {
        (void)::send(fd_, buffer_.data() + at, std::min(batch->segment_bytes, batch->size - at), 0);
      }
    }
  }
  void ReceiveOne(transport::DatagramCore& core, const Address& server, int wait_ms) {
    pollfd ready{fd_, POLLIN, 0};
    if (::poll(&ready, 1, wait_ms) != 1) return;
    const ssize_t got = ::recv(fd_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (got > 0) {
      core.HandleDatagram(udp::Now(), server, MutableByteSpan(buffer_).first(static_cast<size_t>(got)), {});
    }
  }

 private:
  int fd_;
  std::vector<uint8_t> buffer_ = std::vector<uint8_t>(65536);
};

// Until `over`, and then what is still to be sent.
void Drive(transport::DatagramCore& core, uint16_t server_port, const std::function<bool()>& over) {
  const Address server = Address::V4(127, 0, 0, 1, server_port);
  ProbeSocket socket(server_port);
  while (!over()) {
    socket.SendAll(core);
    socket.ReceiveOne(core, server, 1);
    if (core.NextTimeout() <= udp::Now()) core.HandleTimeout(udp::Now());
  }
  socket.SendAll(core);
}

}  // namespace

std::optional<nlohmann::json> AskStatus(uint16_t server_port, const std::string& key_file, Duration limit) {
  std::this_thread::sleep_for(kStatusAge);
  const auto security = keys::LoadSecurity({.key_file = key_file, .role = crypto::Role::kTool});
  if (!security.ok()) return std::nullopt;
  worker::StatusCore core({.timeout = limit, .security = security->security()}, Random(udp::EntropySeed()),
                          {});
  core.Ask(udp::Now(), Address::V4(127, 0, 0, 1, server_port));
  Drive(core, server_port, [&core] { return core.outcome().has_value(); });
  if (!core.outcome()->ok()) return std::nullopt;
  return nlohmann::json::parse(**core.outcome(), nullptr, /*allow_exceptions=*/false);
}

Status JoinAsTool(uint16_t server_port, const std::string& key_file, uint32_t rank, uint64_t incarnation,
                  Duration limit) {
  const auto security = keys::LoadSecurity({.key_file = key_file, .role = crypto::Role::kTool});
  if (!security.ok()) return security.status();
  worker::WorkerCore core({.job = security->job,
                           .rank = rank,
                           .world_size = 2,
                           .incarnation = incarnation,
                           .connect_timeout = limit,
                           .security = security->security()},
                          nullptr, Random(udp::EntropySeed()));
  core.Start(udp::Now(), Address::V4(127, 0, 0, 1, server_port));
  Drive(core, server_port, [&core] { return core.joined() || core.ended(); });
  return core.joined() ? Status() : core.failure();
}

}  // namespace longhaul::attack
