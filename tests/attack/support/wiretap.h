// A relay between a worker and the server. It records what passes; a rule may drop it, repeat it or change
// its ECN mark, and the relay can change the address that the server sees, as a NAT does.
//
//   worker ── listens ── Wiretap ── one socket, its own address ── server
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"

namespace longhaul::attack {

using Bytes = std::vector<uint8_t>;

enum class Direction : uint8_t { kUp, kDown };  // to the server, to the worker

struct Passing {
  Direction direction = Direction::kUp;
  ByteSpan bytes;
  bool drop = false;
  int ecn = 0;                // of the IP header, as it came and as it goes on: 0 not-ECT, 1 and 2 ECT, 3 CE
  std::vector<Bytes> before;  // goes the same way first
};

class Wiretap {
 public:
  using Rule = std::function<void(Passing&)>;  // on the tap's thread

  explicit Wiretap(uint16_t server_port);
  ~Wiretap();
  Wiretap(const Wiretap&) = delete;
  Wiretap& operator=(const Wiretap&) = delete;

  // What the worker must be told to join.
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void SetRule(Rule rule);
  // From now on the server sees another source port. What is on its way to the old one is lost.
  void Rebind();
  // As if it came from the other side; to a worker only after it has sent something.
  void Inject(Direction direction, ByteSpan bytes);
  // The same, no faster than the receiver can take them in.
  void InjectGently(Direction direction, const std::vector<Bytes>& datagrams);
  // All datagrams of this direction so far, dropped ones included.
  std::vector<Bytes> Recorded(Direction direction) const;
  // How many datagrams have been added to the traffic.
  uint64_t injected() const { return injected_; }

 private:
  void Run();
  int NewUpstream() const;
  void Pass(Direction direction, ByteSpan bytes, int ecn);
  void Forward(Direction direction, ByteSpan bytes, int ecn = 0);

  uint16_t server_port_ = 0;
  int listening_ = -1;             // the worker's side
  std::atomic<int> upstream_{-1};  // connected to the server
  std::vector<int> retired_;       // upstream sockets of before Rebind
  uint16_t port_ = 0;
  std::atomic<uint64_t> worker_{0};  // address 32 | port 16; 0: not seen yet
  std::atomic<bool> over_{false};
  std::atomic<uint64_t> injected_{0};
  mutable std::mutex mutex_;  // guards the next two
  Rule rule_;
  std::vector<Bytes> recorded_[2];
  std::thread thread_;
};

}  // namespace longhaul::attack
