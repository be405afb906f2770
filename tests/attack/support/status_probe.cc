#include "tests/attack/support/status_probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "base/random.h"
#include "proto/control_codec.h"
#include "tests/attack/support/spoofing_socket.h"
#include "transport/core/endpoint.h"
#include "transport/keys/load_security.h"
#include "transport/udp/clock.h"

namespace longhaul::attack {
namespace {

using transport::Connection;

constexpr Duration kStatusAge = std::chrono::milliseconds(110);
const uint32_t kProbeHost = LoopbackHost(kProbeIndex);

sockaddr_in Of(uint32_t host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(host);
  address.sin_port = htons(port);
  return address;
}

// Asks as soon as it is connected; takes no windows.
class Question final : public transport::ConnectionObserver {
 public:
  void OnConnected(Connection& connection) override {
    control::ControlMessage message;
    message.mutable_status_request()->set_request(1);
    (void)connection.SendControl(wire::EncodeControlMessage(message));
  }
  void OnClosed(Connection&, const Status&) override { over = true; }
  void OnControlData(Connection&, ByteSpan bytes) override {
    const auto messages = reader_.Append(bytes);
    if (!messages.ok()) return;
    for (const control::ControlMessage& message : *messages) {
      if (message.has_status_reply()) {
        answer = nlohmann::json::parse(message.status_reply().json(), nullptr, /*allow_exceptions=*/false);
      }
    }
  }
  Status OnWindowOpened(Connection&, transport::WindowKey, const wire::WindowOpenFrame&) override {
    return Status(StatusCode::kFailedPrecondition, "no windows here");
  }
  transport::ChunkVerdict OnChunk(Connection&, transport::WindowKey, wire::ReliabilityClass, uint32_t,
                                  ByteSpan, bool) override {
    return transport::ChunkVerdict::kRefused;
  }
  void OnWindowClosed(Connection&, transport::WindowKey, wire::CloseReason, const transport::WindowReceipt&,
                      const transport::WindowTxStats&) override {}

  std::optional<nlohmann::json> answer;
  bool over = false;

 private:
  wire::ControlReader reader_;
};

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

  void SendAll(transport::Endpoint& endpoint) {
    while (const auto batch = endpoint.PollTransmit(udp::Now(), buffer_)) {
      for (size_t at = 0; at < batch->size; at += batch->segment_bytes) {
        (void)::send(fd_, buffer_.data() + at, std::min(batch->segment_bytes, batch->size - at), 0);
      }
    }
  }
  void ReceiveOne(transport::Endpoint& endpoint, const Address& server, int wait_ms) {
    pollfd ready{fd_, POLLIN, 0};
    if (::poll(&ready, 1, wait_ms) != 1) return;
    const ssize_t got = ::recv(fd_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (got > 0) {
      endpoint.HandleDatagram(udp::Now(), server, MutableByteSpan(buffer_).first(static_cast<size_t>(got)),
                              {});
    }
  }

 private:
  int fd_;
  std::vector<uint8_t> buffer_ = std::vector<uint8_t>(65536);
};

}  // namespace

std::optional<nlohmann::json> AskStatus(uint16_t server_port, const std::string& key_file, Duration limit) {
  std::this_thread::sleep_for(kStatusAge);
  const auto security = keys::LoadSecurity({.key_file = key_file, .role = crypto::Role::kTool});
  if (!security.ok()) return std::nullopt;
  transport::EndpointOptions options;
  options.security = security->security.get();
  const Address server = Address::V4(127, 0, 0, 1, server_port);
  ProbeSocket socket(server_port);
  Question question;
  transport::Endpoint endpoint(options, Random(std::random_device{}()));
  Connection* connection = endpoint.Connect(udp::Now(), server, &question);
  for (const Instant end = udp::Now() + limit; udp::Now() < end && !question.answer && !question.over;) {
    socket.SendAll(endpoint);
    socket.ReceiveOne(endpoint, server, 1);
    if (endpoint.NextTimeout() <= udp::Now()) endpoint.HandleTimeout(udp::Now());
  }
  if (!question.over) connection->Close(Status());
  socket.SendAll(endpoint);
  return question.answer;
}

}  // namespace longhaul::attack
