#include "tests/offload/lossy_relay.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <new>
#include <queue>
#include <vector>

#include "base/files.h"
#include "base/random.h"
#include "transport/udp/resolve.h"

namespace longhaul::offload {
namespace {

using Clock = std::chrono::steady_clock;

struct End {
  uint8_t at = 0;
  uint8_t of = 0;
  FileDescriptor fd;
};

class Relay {
 public:
  Relay(std::vector<End> ends, std::vector<udp::SocketAddress> nodes, const LossyRelay::Faults& faults,
        uint64_t seed, LossyRelay::Counts* counts)
      : ends_(std::move(ends)), nodes_(std::move(nodes)), faults_(faults), random_(seed), counts_(counts) {}

  [[noreturn]] void Run() {
    std::vector<pollfd> wait;
    for (const End& end : ends_) wait.push_back({end.fd.get(), POLLIN, 0});
    for (;;) {
      poll(wait.data(), wait.size(), held_.empty() ? 100 : 1);
      for (size_t i = 0; i < ends_.size(); ++i) {
        if ((wait[i].revents & POLLIN) != 0) TakeAll(ends_[i]);
      }
      while (!held_.empty() && held_.top().due <= Clock::now()) {
        Send(*held_.top().end, held_.top().bytes);
        held_.pop();
      }
    }
  }

 private:
  struct Held {
    Clock::time_point due;
    const End* end;
    std::vector<uint8_t> bytes;
    bool operator>(const Held& other) const { return due > other.due; }
  };

  void TakeAll(const End& end) {
    for (int i = 0; i < 256; ++i) {  // of each in turn
      buffer_.resize(16384);
      const ssize_t bytes = recv(end.fd.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (bytes < 0) return;
      buffer_.resize(static_cast<size_t>(bytes));
      ++counts_->datagrams;
      if (random_.Chance(faults_.loss)) {
        ++counts_->lost;
        continue;
      }
      const bool late = random_.Chance(faults_.late);
      if (late || random_.Chance(faults_.reordering)) {
        ++counts_->delayed;
        const auto delay = std::chrono::microseconds(random_.Below(late ? 50'000 : 2000));
        held_.push({Clock::now() + delay, &end, buffer_});
        continue;
      }
      Send(end, buffer_);
      if (!random_.Chance(faults_.duplication)) continue;
      ++counts_->repeated;
      Send(end, buffer_);
    }
  }

  // What came for `of` from `at` leaves from the end where `of` takes it for `at`'s.
  void Send(const End& end, const std::vector<uint8_t>& bytes) {
    for (const End& other : ends_) {
      if (other.at != end.of || other.of != end.at) continue;
      const udp::SocketAddress& to = nodes_[end.of];
      (void)!sendto(other.fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL, to.get(),
                    to.size);
    }
  }

  std::vector<End> ends_;
  std::vector<udp::SocketAddress> nodes_;
  LossyRelay::Faults faults_;
  Random random_;
  LossyRelay::Counts* counts_;
  std::vector<uint8_t> buffer_;
  std::priority_queue<Held, std::vector<Held>, std::greater<>> held_;
};

}  // namespace

LossyRelay::LossyRelay(uint8_t nodes, const Faults& faults, uint64_t seed,
                       const std::function<std::string(uint8_t)>& real,
                       const std::function<std::string(uint8_t, uint8_t)>& address_at) {
  void* const memory =
      mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(memory, MAP_FAILED);
  counts_ = new (memory) Counts;
  std::vector<End> ends;
  std::vector<udp::SocketAddress> addresses;
  for (uint8_t at = 0; at < nodes; ++at) {
    addresses.push_back(udp::ToSocketAddress(udp::ResolvePeer(real(at)).value(), AF_INET));
    for (uint8_t of = 0; of < nodes; ++of) {
      if (of == at) continue;
      FileDescriptor fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      const int bytes = 4 << 20;
      setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
      const udp::SocketAddress here =
          udp::ToSocketAddress(udp::ResolvePeer(address_at(at, of)).value(), AF_INET);
      EXPECT_EQ(bind(fd.get(), here.get(), here.size), 0) << address_at(at, of);
      ends.push_back({at, of, std::move(fd)});
    }
  }
  pid_ = fork();
  if (pid_ != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Relay(std::move(ends), std::move(addresses), faults, seed, counts_).Run();
}

LossyRelay::~LossyRelay() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  munmap(counts_, sizeof(Counts));
}

}  // namespace longhaul::offload
