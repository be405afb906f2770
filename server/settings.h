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
  Bandwidth worker_floor = {};              // no worker is granted less, as far as the capacity goes
  Bandwidth worker_cap = Bandwidth::Max();  // ... nor more
};

struct ServerSettings {
  std::string job = "default";
  std::string security = "insecure";  // tls-psk | tls-certificates | insecure
  std::string identity = "insecure";  // for people: the key or certificate that this server has
  uint32_t world_size = 1;
  uint32_t min_workers = 1;  // fewer abort a started job; 1..world_size
  // What becomes of lost low chunks: zero | count | stale | ipw | residual | shift.
  std::string policy = "residual";
  double shift_alpha = 0.1;         // step of the shift, > 0, <= 1; read by policy shift only
  std::string priority = "energy";  // how chunks are ranked: energy | layer | topk
  double high_share = 0.2;          // share of chunks that travel as high class, 0..1
  double high_energy =
      0;  // > 0: instead, the fewest chunks that hold this share of the energy are high, 0..1
  double topk_share = 0.1;        // priority topk: share of elements that travel, > 0, <= 1
  double bubble_threshold = 0.1;  // raw loss of a window's low class above which its losses are filled, 0..1
  double close_ratio = 0.9;       // share of the low class's energy that lets a window close, 0..1
  // A worker that takes this many times as long as the others usually do is left out of the round. 0: all are
  // waited for; else >= 1.
  double straggler_factor = 0;
  // No round waits longer for anybody; 0: no bound. The first one counts from when version 0 is there:
  // declared by all, and delivered by the worker that offered it.
  Duration round_bound{0};
  bool deterministic = false;  // sums in rank order: bitwise the same whatever the order of arrival
  double norm_guard = 0;       // a chunk whose norm is this many times the usual one is refused; 0: none is
  std::string downlink = "reliable";  // reliable | lossy
  uint32_t hash_rounds = 64;          // downlink lossy: rounds between proofs that the replicas agree; >= 1
  uint8_t fec_k = 20;                 // source symbols per block; 0 = no FEC
  uint8_t fec_depth = 0;              // blocks interleaved; 0 = by the bursts that each connection sees
  Duration idle_timeout = std::chrono::seconds(10);
  uint64_t seed = 1;
  ByteCount max_datagram{1452};  // UDP payload
  ByteCount max_model{int64_t{1} << 30};
  uint32_t bench_connections = 16;  // load generators that are served at once; 0 = none (server/bench_sink.h)
  bool bench_during_job = false;    // also while a job is running
  GrantSettings grants = {};
};

}  // namespace longhaul::server
