#include "bench/wan/tcp_flow.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/files.h"

namespace longhaul::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint16_t kPort = 7800;
constexpr size_t kBlock = 256 * 1024;

double ThreadCpuSeconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// Bounds of the kernel's buffer auto-tuning in the namespace of the calling thread.
bool SetBufferBounds(bool tuned) {
  const auto set = [](const char* name, const char* value) {
    std::ofstream file(std::string("/proc/sys/net/ipv4/") + name);
    file << value;
    file.close();
    return static_cast<bool>(file);
  };
  // The kernel's defaults on a machine with some gigabytes of memory.
  return tuned ? set("tcp_wmem", "4096 16384 67108864") && set("tcp_rmem", "4096 131072 67108864")
               : set("tcp_wmem", "4096 16384 4194304") && set("tcp_rmem", "4096 131072 6291456");
}

struct Shared {
  Shared(const Runner& r, const Timing& t) : runner(r), timing(t) {}

  const Runner& runner;
  const Timing& timing;
  std::atomic<bool> listening{false};
  std::atomic<bool> stop{false};
  std::string error[2] = {};  // sink, sender
  uint64_t bytes = 0;         // measured
  double seconds = 0;
  double cpu[2] = {};  // cores busy, sink and sender
  uint64_t retransmits = 0;
  double rtt_ms = 0;
};

std::string Errno(const std::string& step) { return step + ": " + std::strerror(errno); }

sockaddr_in SinkAddress() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kPort);
  inet_pton(AF_INET, "10.77.1.1", &address.sin_addr);
  return address;
}

// Reads until the run's length is over; counts what comes after the warm-up.
std::string Sink(wan::TunWan* wan, Shared& s) {
  if (Status in = wan->EnterSite("A"); !in.ok()) return in.ToString();
  if (!SetBufferBounds(s.runner.tuned)) return Errno("setting tcp_rmem");
  const FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in address = SinkAddress();
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener.get(), 64) != 0) {
    return Errno("listening");
  }
  s.listening = true;
  std::vector<FileDescriptor> connections;
  std::vector<pollfd> polls;
  std::vector<uint8_t> block(kBlock);
  Clock::time_point first{};
  double cpu = 0;
  bool measuring = false;
  const auto give_up = Clock::now() + std::chrono::seconds(10);
  polls.push_back({listener.get(), POLLIN, 0});
  while (!s.stop) {
    poll(polls.data(), polls.size(), 20);
    const auto now = Clock::now();
    if (connections.empty() && now > give_up) return "no client connects";
    if (!connections.empty() && !measuring && now >= first + s.timing.warmup) {
      measuring = true;
      s.bytes = 0;
      cpu = ThreadCpuSeconds();
      first = now - s.timing.warmup;
    }
    if (measuring && now >= first + s.timing.length) {
      s.seconds = std::chrono::duration<double>(now - first - s.timing.warmup).count();
      s.cpu[0] = (ThreadCpuSeconds() - cpu) / s.seconds;
      return "";
    }
    if ((polls[0].revents & POLLIN) != 0) {
      FileDescriptor connection(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (connection.valid()) {
        if (connections.empty()) first = now;
        polls.push_back({connection.get(), POLLIN, 0});
        connections.push_back(std::move(connection));
      }
    }
    for (size_t i = 1; i < polls.size(); ++i) {
      if (polls[i].revents == 0) continue;
      const ssize_t n = read(polls[i].fd, block.data(), block.size());
      if (n > 0) s.bytes += static_cast<uint64_t>(n);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return "a connection has ended early";
    }
  }
  return "";
}

std::string Send(wan::TunWan* wan, Shared& s) {
  if (Status in = wan->EnterSite("B"); !in.ok()) return in.ToString();
  if (!SetBufferBounds(s.runner.tuned)) return Errno("setting tcp_wmem");
  std::vector<FileDescriptor> connections;
  std::vector<pollfd> polls;
  const sockaddr_in address = SinkAddress();
  for (int i = 0; i < s.runner.connections; ++i) {
    FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, s.runner.control.data(),
                   static_cast<socklen_t>(s.runner.control.size())) != 0) {
      return Errno("TCP_CONGESTION " + s.runner.control);
    }
    const linger reset{1, 0};  // the end of the run drops what is queued
    setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    const int connected = connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    if (connected != 0 && errno != EINPROGRESS) return Errno("connecting");
    polls.push_back({fd.get(), POLLOUT, 0});
    connections.push_back(std::move(fd));
  }
  const std::vector<uint8_t> block(kBlock, 0x5a);
  const auto begin = Clock::now();
  double cpu = 0;
  Clock::time_point cpu_since{};
  while (!s.stop) {
    poll(polls.data(), polls.size(), 20);
    if (cpu_since == Clock::time_point{} && Clock::now() >= begin + s.timing.warmup) {
      cpu_since = Clock::now();
      cpu = ThreadCpuSeconds();
    }
    for (pollfd& p : polls) {
      if (p.revents == 0) continue;
      if (send(p.fd, block.data(), block.size(), MSG_NOSIGNAL) < 0 && errno != EAGAIN && errno != EINTR) {
        if (errno == ECONNRESET || errno == EPIPE) s.stop = true;  // the sink is through
        return s.stop ? "" : Errno("sending");
      }
    }
  }
  if (cpu_since != Clock::time_point{}) {
    s.cpu[1] = (ThreadCpuSeconds() - cpu) / std::chrono::duration<double>(Clock::now() - cpu_since).count();
  }
  for (const pollfd& p : polls) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (getsockopt(p.fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    s.retransmits += info.tcpi_total_retrans;
    s.rtt_ms = std::max(s.rtt_ms, info.tcpi_rtt * 1e-3);
  }
  return "";
}

}  // namespace

void RunTcp(wan::TunWan* wan, const Runner& runner, const Timing& timing, Outcome* outcome) {
  Shared s{runner, timing};
  std::thread sink([&] {
    s.error[0] = Sink(wan, s);
    s.stop = true;
  });
  while (!s.listening && !s.stop) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::thread sender([&] {
    s.error[1] = Send(wan, s);
    if (!s.error[1].empty()) s.stop = true;
  });
  sink.join();
  sender.join();
  outcome->error = !s.error[1].empty() ? s.error[1] : s.error[0];
  outcome->payload_share = 1448.0 / 1500;  // 20 bytes IP, 20 TCP, 12 time stamps
  outcome->receiver_cpu = s.cpu[0];
  outcome->sender_cpu = s.cpu[1];
  if (s.seconds > 0) outcome->goodput_mbps = static_cast<double>(s.bytes) * 8e-6 / s.seconds;
  outcome->details = {{"retransmits", s.retransmits}, {"rtt_ms_end", s.rtt_ms}};
}

}  // namespace longhaul::bench
