// What the operator decides about a job. The server owns these; workers are told when they join.
#pragma once

#include <cstdint>
#include <string>

#include "longhaul/units.h"

namespace longhaul::server {

// How the link into the server is shared (server/grants.h).
struct GrantSettings {
  bool enabled = true;
  Bandwidth capacity = {};        // of the link, IP headers included; zero: estimated from what arrives
  Bandwidth capacity_floor = {};  // bounds of the estimate
  Bandwidth capacity_cap = Bandwidth::Max();
  Bandwidth worker_floor = {};  // no worker is granted less, as far as the capacity goes
  Bandwidth worker_cap = Bandwidth::Max();  // ... nor more
};

struct ServerSettings {
  std::string job = "default";
  uint32_t world_size = 1;
  uint32_t min_workers = 1;         // fewer abort a started job; 1..world_size
  std::string policy = "residual";  // fill policy of lost low chunks: zero | count | stale | residual
  double high_share = 0.2;          // share of chunks that travel as high class, 0..1
  double bubble_threshold = 0.1;  // raw loss of a window's low class above which its losses are filled, 0..1
  double close_ratio = 0.9;       // share of the low class that lets a window close, 0..1
  uint8_t fec_k = 20;             // source symbols per block; 0 = no FEC
  uint8_t fec_depth = 0;          // blocks interleaved; 0 = by the bursts that each connection sees
  Duration idle_timeout = std::chrono::seconds(10);
  uint64_t seed = 1;
  ByteCount max_datagram{1452};  // UDP payload
  ByteCount max_model{int64_t{1} << 30};
  uint32_t bench_connections = 16;  // load generators that are served at once; 0 = none (server/bench_sink.h)
  bool bench_during_job = false;    // also while a job is running
  GrantSettings grants = {};
};

}  // namespace longhaul::server
