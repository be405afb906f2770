// The kernel's TCP over loopback, not encrypted: what BM_UdpConnectionLoop stands beside.

#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "base/check.h"

namespace longhaul::bench {
namespace {

constexpr size_t kChunkBytes = 1392;

struct Sockets {
  int sender = -1, receiver = -1;
  ~Sockets() {
    ::close(sender);
    ::close(receiver);
  }
};

void Connect(Sockets* sockets) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  LH_CHECK(listener >= 0 && ::bind(listener, generic, length) == 0 && ::listen(listener, 1) == 0);
  LH_CHECK(::getsockname(listener, generic, &length) == 0);
  sockets->sender = ::socket(AF_INET, SOCK_STREAM, 0);
  LH_CHECK(::connect(sockets->sender, generic, length) == 0);
  sockets->receiver = ::accept(listener, nullptr, nullptr);
  ::close(listener);
  const int on = 1;
  for (const int fd : {sockets->sender, sockets->receiver}) {
    LH_CHECK(fd >= 0 && ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
  }
}

// As many bytes as a window of `chunks` chunks, then one byte back, per iteration; each end has a thread.
void BM_TcpLoop(benchmark::State& state) {
  const size_t window = static_cast<size_t>(state.range(0)) * kChunkBytes;
  Sockets sockets;
  Connect(&sockets);
  std::thread receiver([&] {
    std::vector<uint8_t> buffer(256 << 10);
    for (size_t had = 0;;) {
      const ssize_t n = ::recv(sockets.receiver, buffer.data(), buffer.size(), 0);
      if (n <= 0) return;
      had += static_cast<size_t>(n);
      if (had < window) continue;
      had -= window;
      LH_CHECK(::send(sockets.receiver, "", 1, MSG_NOSIGNAL) == 1);
    }
  });
  const std::vector<uint8_t> data(window, 7);
  for (auto _ : state) {
    for (size_t sent = 0; sent < window;) {
      const ssize_t n = ::send(sockets.sender, data.data() + sent, window - sent, MSG_NOSIGNAL);
      LH_CHECK(n > 0);
      sent += static_cast<size_t>(n);
    }
    uint8_t done;
    LH_CHECK(::recv(sockets.sender, &done, 1, MSG_WAITALL) == 1);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * window));
  ::shutdown(sockets.sender, SHUT_WR);
  receiver.join();
}
BENCHMARK(BM_TcpLoop)->ArgName("chunks")->Arg(12'000)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace longhaul::bench
