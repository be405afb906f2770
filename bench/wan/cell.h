// Vocabulary of the comparison over an emulated link: a path, what runs over it, and what came of it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "longhaul/units.h"
#include "wan/tun/tun_wan.h"

namespace longhaul::bench {

// Both directions alike.
struct Path {
  double mbps = 200;
  Duration rtt = std::chrono::milliseconds(50);
  Duration queue = std::chrono::milliseconds(50);
  double loss = 0;   // 0..1, each way
  double burst = 0;  // mean length in packets; 0 = independent losses

  wan::LinkOptions Link() const;
  std::string Name() const;  // "200 Mbit/s, 50 ms, 1 %"
};

// Who sends: "tcp-cubic", "tcp-bbr", "tcp-bbr-x4", with "-stock" for the kernel's own buffer bounds;
// "longhaul", "longhaul-bbr", "longhaul-cubic", with "-insecure" without encryption.
struct Runner {
  std::string name;
  std::string control;  // of the kernel, or --rate-controller of ours
  bool tcp = false;
  bool tuned = true;  // buffers of 64 MB
  int connections = 1;
  bool insecure = false;  // ours: no encryption
};
// kInvalidArgument for a name of none.
Result<Runner> ParseRunner(const std::string& name);

struct Timing {
  Duration length = std::chrono::seconds(15);
  Duration warmup = std::chrono::seconds(3);  // at its start; not measured, for all runners alike
};

// One runner over one path, once.
struct Outcome {
  std::string runner;
  std::string protection = "none";  // ours: ProtectionName()
  double goodput_mbps = 0;          // payload that arrived, without headers
  double payload_share = 0;         // of a full packet's IP bytes
  double sender_cpu = 0;            // cores busy: of the sending program
  double receiver_cpu = 0;
  double forwarder_cpu = 0;   // of the emulator
  uint64_t link_packets = 0;  // that entered the link towards the receiver
  uint64_t dropped_loss = 0;
  uint64_t dropped_queue = 0;
  uint64_t emulator_drops = 0;  // not the link's decision: the kernel's or the forwarder's own
  double lateness_p99_ms = 0;   // of packets that the emulator delivered
  nlohmann::json details = nlohmann::json::object();
  std::string error;  // empty when it worked
};

// The target's limit: rate x (1 - loss) x 0.95.
double LimitMbps(const Path& path);

// What a measurement reads before and after, as differences.
class LinkWatch {
 public:
  explicit LinkWatch(wan::TunWan* wan);
  // Adds what happened since the construction; forwarder_cpu in cores.
  void Finish(Outcome* outcome) const;

 private:
  wan::TunWan* wan_;
  wan::LinkCounters link_;
  wan::ForwarderStats forwarder_;
  wan::TunKernelCounters kernel_;
};

}  // namespace longhaul::bench
