#include "bench/wan/forwarder_load.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "base/files.h"

namespace longhaul::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kDatagram = 1472;  // 1500 bytes with IP and UDP
constexpr unsigned kBatch = 32;

sockaddr_in AddressOf(const char* host) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(7900);
  inet_pton(AF_INET, host, &address.sin_addr);
  return address;
}

struct Batch {
  std::vector<uint8_t> memory = std::vector<uint8_t>(kDatagram * kBatch);
  std::array<iovec, kBatch> data{};
  std::array<mmsghdr, kBatch> messages{};
  Batch() {
    for (unsigned i = 0; i < kBatch; ++i) {
      data[i] = {memory.data() + i * kDatagram, kDatagram};
      messages[i].msg_hdr.msg_iov = &data[i];
      messages[i].msg_hdr.msg_iovlen = 1;
    }
  }
};

}  // namespace

void RunForwarderLoad(wan::TunWan* wan, double offered_mbps, Duration length, Outcome* outcome) {
  std::atomic<bool> stop{false};
  std::atomic<bool> ready{false};
  uint64_t sent = 0, received = 0;
  std::string error;
  std::thread sink([&] {
    if (Status in = wan->EnterSite("A"); !in.ok()) error = in.ToString();
    const FileDescriptor fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = AddressOf("10.77.1.1");
    if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) error = "bind";
    const int buffer = 16 << 20;
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer);
    const timeval wait{0, 100'000};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    Batch batch;
    ready = true;
    while (!stop) {
      const int n = recvmmsg(fd.get(), batch.messages.data(), kBatch, MSG_WAITFORONE, nullptr);
      if (n > 0) received += static_cast<uint64_t>(n);
    }
  });
  while (!ready) std::this_thread::yield();
  const auto begin = Clock::now();
  std::thread sender([&] {
    if (Status in = wan->EnterSite("B"); !in.ok()) error = in.ToString();
    const FileDescriptor fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = AddressOf("10.77.1.1");
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      error = "connect";
    Batch batch;
    const double packets_per_second = offered_mbps * 1e6 / 8 / (kDatagram + 28);
    while (Clock::now() < begin + length) {
      const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
      if (static_cast<double>(sent) > elapsed * packets_per_second) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        continue;
      }
      const int n = sendmmsg(fd.get(), batch.messages.data(), kBatch, 0);
      if (n > 0) sent += static_cast<uint64_t>(n);
    }
  });
  sender.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  stop = true;
  sink.join();
  outcome->error = error;
  outcome->goodput_mbps = static_cast<double>(received) * 8e-6 * kDatagram / seconds;
  outcome->payload_share = static_cast<double>(kDatagram) / (kDatagram + 28);
  outcome->details = {{"offered_per_second", static_cast<double>(sent) / seconds},
                      {"packets_per_second", static_cast<double>(received) / seconds},
                      {"mbps", static_cast<double>(received) * 8e-6 * (kDatagram + 28) / seconds}};
}

}  // namespace longhaul::bench
