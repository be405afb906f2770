#include "tests/attack/support/flood.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace longhaul::attack {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kBurst = 64;
constexpr auto kPause = std::chrono::microseconds(200);
// Of time that a burst may make up for, so that a thread that was not scheduled does not send everything at
// once.
constexpr double kCatchUp = 0.01;

}  // namespace

Flood::Flood(uint16_t server_port, FloodOptions options, Duration limit)
    : socket_(server_port), options_(std::move(options)) {
  thread_ = std::thread([this, limit] { Run(limit); });
}

void Flood::Stop() {
  over_ = true;
  if (thread_.joinable()) thread_.join();
}

void Flood::Run(Duration limit) {
  const auto begin = Clock::now();
  std::vector<SpoofingSocket::Outgoing> batch(kBurst);
  double due = 0;
  double last = 0;
  uint64_t n = 0;
  while (!over_) {
    const double now = std::chrono::duration<double>(Clock::now() - begin).count();
    seconds_ = now;
    if (now >= std::chrono::duration<double>(limit).count()) break;
    due = std::min(due + (now - last) * options_.per_second, kCatchUp * options_.per_second);
    last = now;
    if (due < static_cast<double>(kBurst)) {
      std::this_thread::sleep_for(kPause);
      continue;
    }
    for (SpoofingSocket::Outgoing& datagram : batch) {
      datagram = {LoopbackHost(options_.first_host + static_cast<uint32_t>(n % options_.hosts)),
                  options_.datagrams[n % options_.datagrams.size()]};
      ++n;
    }
    sent_ += socket_.Send(batch);
    due -= static_cast<double>(kBurst);
  }
}

}  // namespace longhaul::attack
