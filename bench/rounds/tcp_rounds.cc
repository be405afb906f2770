#include "bench/rounds/tcp_rounds.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <barrier>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>

#include "base/files.h"

namespace longhaul::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint16_t kPort = 7900;
constexpr size_t kBlockElements = 16 * 1024;

std::string Errno(const std::string& step) { return step + ": " + std::strerror(errno); }

// Bounds of the kernel's buffer auto-tuning in the namespace of the calling thread.
bool SetBufferBounds(bool tuned) {
  const auto set = [](const char* name, const char* value) {
    std::ofstream file(std::string("/proc/sys/net/ipv4/") + name);
    file << value;
    file.close();
    return static_cast<bool>(file);
  };
  return tuned ? set("tcp_wmem", "4096 16384 67108864") && set("tcp_rmem", "4096 131072 67108864")
               : set("tcp_wmem", "4096 16384 4194304") && set("tcp_rmem", "4096 131072 6291456");
}

bool SetControl(int fd, const std::string& control) {
  const int on = 1;
  return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control.data(),
                    static_cast<socklen_t>(control.size())) == 0 &&
         setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0;
}

sockaddr_in ServerAddress(bool loopback) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kPort);
  inet_pton(AF_INET, loopback ? "127.0.0.1" : "10.77.1.1", &address.sin_addr);
  return address;
}

bool SendAll(int fd, const float* values, size_t count) {
  const char* at = reinterpret_cast<const char*>(values);
  for (size_t left = count * sizeof(float); left > 0;) {
    const ssize_t n = send(fd, at, left, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    left -= static_cast<size_t>(n);
  }
  return true;
}

bool ReceiveAll(int fd, float* values, size_t count) {
  char* at = reinterpret_cast<char*>(values);
  for (size_t left = count * sizeof(float); left > 0;) {
    const ssize_t n = recv(fd, at, left, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    left -= static_cast<size_t>(n);
  }
  return true;
}

class TcpRounds {
 public:
  TcpRounds(wan::TunWan* wan, const TcpRunner& runner, const RoundsPlan& plan)
      : wan_(wan),
        runner_(runner),
        plan_(plan),
        elements_(plan.bytes / sizeof(float)),
        parts_(static_cast<uint32_t>(std::min<uint64_t>(runner.parts, elements_))),
        arrived_(parts_, 0),
        sum_{std::vector<float>(elements_), std::vector<float>(elements_)},
        start_(static_cast<std::ptrdiff_t>(plan.workers), Begin{this}) {}

  RoundsOutcome Run() {
    std::thread server([this] { Keep(Serve()); });
    WaitForListening();
    std::vector<std::thread> workers;
    for (uint32_t rank = 0; rank < plan_.workers; ++rank) {
      workers.emplace_back([this, rank] {
        Keep(Work(rank));
        start_.arrive_and_drop();
        const std::lock_guard lock(mutex_);
        ++workers_over_;
        changed_.notify_all();
      });
    }
    {
      std::unique_lock lock(mutex_);
      const auto over = [this] { return workers_over_ == plan_.workers || !error_.empty(); };
      if (!changed_.wait_for(lock, plan_.limit, over)) {
        error_ = "stopped after " + std::to_string(plan_.limit.count() / 1'000'000'000) + " s";
      }
      CloseAll();
    }
    for (std::thread& worker : workers) worker.join();
    server.join();
    return {"", seconds_, error_};
  }

 private:
  struct Begin {
    TcpRounds* self;
    void operator()() noexcept { self->begun_ = Clock::now(); }
  };

  // Elements of a part.
  size_t First(uint32_t part) const { return elements_ * part / parts_; }

  Status Enter(const char* site) { return wan_ == nullptr ? Status::Ok() : wan_->EnterSite(site); }

  void WaitForListening() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return listening_ || !error_.empty(); });
  }

  void Keep(const std::string& error) {
    const std::lock_guard lock(mutex_);
    if (error.empty()) return;
    if (error_.empty()) error_ = error;
    CloseAll();
    changed_.notify_all();
  }

  // Under the lock. Threads that wait in a socket go on with an error.
  void CloseAll() {
    closed_ = true;
    for (const int fd : sockets_) shutdown(fd, SHUT_RDWR);
    changed_.notify_all();
  }

  bool Register(int fd) {
    const std::lock_guard lock(mutex_);
    sockets_.push_back(fd);
    return !closed_;
  }
  void Unregister(int fd) {
    const std::lock_guard lock(mutex_);
    std::erase(sockets_, fd);
  }
  bool closed() {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

  // --- Server, in site A ---

  std::string Serve() {
    if (Status in = Enter("A"); !in.ok()) return in.ToString();
    if (wan_ != nullptr && !SetBufferBounds(runner_.tuned)) return Errno("setting tcp_rmem");
    const FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const sockaddr_in address = ServerAddress(wan_ == nullptr);
    if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        listen(listener.get(), 256) != 0) {
      return Errno("listening");
    }
    {
      const std::lock_guard lock(mutex_);
      listening_ = true;
      changed_.notify_all();
    }
    std::vector<FileDescriptor> connections;
    while (connections.size() < plan_.workers) {
      pollfd wait{listener.get(), POLLIN, 0};
      if (closed()) return "";
      if (poll(&wait, 1, 50) <= 0) continue;
      FileDescriptor connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!connection.valid()) continue;
      if (!SetControl(connection.get(), runner_.control)) return Errno("TCP_CONGESTION " + runner_.control);
      Register(connection.get());
      connections.push_back(std::move(connection));
    }
    std::vector<std::thread> threads;
    for (const FileDescriptor& connection : connections) {
      threads.emplace_back([this, fd = connection.get()] { Add(fd); });
      threads.emplace_back([this, fd = connection.get()] { Answer(fd); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const FileDescriptor& connection : connections) Unregister(connection.get());
    return "";
  }

  // Receives a worker's gradients, part by part, and adds what has come, block by block. A worker pushes a
  // round only when it has all of the one before, so two sums suffice: one is filled while the other may
  // still be on its way.
  void Add(int fd) {
    std::vector<float> block(kBlockElements);
    for (uint64_t round = 0;; ++round) {
      std::vector<float>& sum = sum_[round % 2];
      for (uint32_t part = 0; part < parts_; ++part) {
        for (size_t at = First(part); at < First(part + 1);) {
          const size_t count = std::min(kBlockElements, First(part + 1) - at);
          if (!ReceiveAll(fd, block.data(), count)) return;
          const std::lock_guard lock(mutex_);
          for (size_t i = 0; i < count; ++i) sum[at + i] += block[i];
          at += count;
        }
        const std::lock_guard lock(mutex_);
        if (++arrived_[part] % plan_.workers != 0) continue;
        // All workers are in this round, so no worker needs this part of the one before.
        std::vector<float>& next = sum_[(round + 1) % 2];
        std::fill(next.begin() + static_cast<std::ptrdiff_t>(First(part)),
                  next.begin() + static_cast<std::ptrdiff_t>(First(part + 1)), 0.0f);
        changed_.notify_all();
      }
    }
  }

  // Sends a worker every part of the sum that is complete.
  void Answer(int fd) {
    for (uint64_t round = 0;; ++round) {
      for (uint32_t part = 0; part < parts_; ++part) {
        {
          std::unique_lock lock(mutex_);
          changed_.wait(lock, [&] { return closed_ || arrived_[part] >= (round + 1) * plan_.workers; });
          if (closed_) return;
        }
        const size_t first = First(part);
        if (!SendAll(fd, sum_[round % 2].data() + first, First(part + 1) - first)) return;
      }
    }
  }

  // --- Workers, in site B ---

  std::string Work(uint32_t rank) {
    if (Status in = Enter("B"); !in.ok()) return in.ToString();
    if (wan_ != nullptr && !SetBufferBounds(runner_.tuned)) return Errno("setting tcp_wmem");
    const FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!SetControl(fd.get(), runner_.control)) return Errno("TCP_CONGESTION " + runner_.control);
    const sockaddr_in address = ServerAddress(wan_ == nullptr);
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      return Errno("connecting");
    }
    if (!Register(fd.get())) return "";
    const std::string error = Rounds(fd.get(), rank);
    Unregister(fd.get());
    return error;
  }

  std::string Rounds(int fd, uint32_t rank) {
    std::vector<float> gradient(elements_);
    std::vector<float> result(elements_);
    for (size_t i = 0; i < elements_; ++i)
      gradient[i] = static_cast<float>(i % 1009) + static_cast<float>(rank);
    const uint32_t rounds = plan_.warmup + plan_.rounds;
    for (uint32_t round = 0; round < rounds; ++round) {
      start_.arrive_and_wait();
      if (closed()) return "";
      // Both at once, so that neither side waits for the other's full buffers.
      std::thread push([&] { SendAll(fd, gradient.data(), elements_); });
      const bool received = ReceiveAll(fd, result.data(), elements_);
      push.join();
      if (!received) return closed() ? "" : Errno("receiving the sum");
      if (std::string wrong = Check(result); !wrong.empty()) return wrong;
      EndRound(round);
      std::this_thread::sleep_for(plan_.gap);
    }
    return "";
  }

  std::string Check(const std::vector<float>& result) const {
    const auto workers = static_cast<float>(plan_.workers);
    for (const size_t i : {size_t{0}, elements_ / 2, elements_ - 1}) {
      const float expected = workers * static_cast<float>(i % 1009) + workers * (workers - 1) / 2;
      if (result[i] != expected) return "the sum is wrong";
    }
    return "";
  }

  void EndRound(uint32_t round) {
    const std::lock_guard lock(mutex_);
    if (++ended_ < plan_.workers) return;
    ended_ = 0;
    if (round < plan_.warmup) return;
    seconds_.push_back(std::chrono::duration<double>(Clock::now() - begun_).count());
  }

  wan::TunWan* wan_;
  const TcpRunner& runner_;
  const RoundsPlan& plan_;
  const size_t elements_;
  const uint32_t parts_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint64_t> arrived_;  // by part: contributions, of all rounds
  std::vector<float> sum_[2];      // by the round's parity
  std::barrier<Begin> start_;
  Clock::time_point begun_;
  std::vector<int> sockets_;
  bool listening_ = false;
  bool closed_ = false;
  uint32_t workers_over_ = 0;
  uint32_t ended_ = 0;
  std::vector<double> seconds_;
  std::string error_;
};

}  // namespace

RoundsOutcome RunTcpRounds(wan::TunWan* wan, const TcpRunner& runner, const RoundsPlan& plan) {
  return TcpRounds(wan, runner, plan).Run();
}

}  // namespace longhaul::bench
