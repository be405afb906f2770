// As many datagrams per second as a rate says, from as many addresses as a list says, on a thread of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "tests/attack/support/spoofing_socket.h"

namespace longhaul::attack {

struct FloodOptions {
  double per_second = 100'000;
  uint32_t hosts = 50'000;       // source addresses, one after the other
  uint32_t first_host = 1;       // index of the first (LoopbackHost)
  std::vector<Bytes> datagrams;  // one after the other, not empty
};

class Flood {
 public:
  // Begins at once; ends with Stop(), at the latest after `limit`.
  Flood(uint16_t server_port, FloodOptions options, Duration limit);
  ~Flood() { Stop(); }
  void Stop();

  uint64_t sent() const { return sent_; }
  double seconds() const { return seconds_; }
  double per_second() const { return seconds_ > 0 ? static_cast<double>(sent_) / seconds_ : 0; }
  // After Stop().
  SpoofingSocket& socket() { return socket_; }

 private:
  void Run(Duration limit);

  SpoofingSocket socket_;
  FloodOptions options_;
  std::atomic<bool> over_{false};
  std::atomic<uint64_t> sent_{0};
  std::atomic<double> seconds_{0};
  std::thread thread_;
};

}  // namespace longhaul::attack
