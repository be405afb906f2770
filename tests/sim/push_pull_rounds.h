// Rounds of PushPull in virtual time, measured: a server and n workers behind one link, the whole cores over
// a VirtualNetwork, and where the time of every round went. For performance, where incast.h is for overload
// and cluster.h for faults. Deterministic: the same options give the same figures, however busy the machine
// is.
//
//   worker 0 ──┐  site 1: one link for all
//   worker 1 ──┼──[ queue | rate ]── delay, loss ── server, site 0     (the same the other way)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longhaul/stats.h"
#include "longhaul/units.h"
#include "server/report/server_stats.h"
#include "server/settings.h"
#include "tests/sim/timed_core.h"
#include "wan/link_options.h"

namespace longhaul::sim {

struct PushPullOptions {
  uint32_t workers = 4;
  uint32_t rounds = 20;
  uint32_t warmup = 5;                        // rounds before, that are in no figure
  std::vector<uint64_t> bytes = {1'000'000};  // of every tensor; all of them are pushed at once
  wan::LinkOptions link;                      // each way, shared by all workers
  std::optional<wan::LinkOptions> then;       // what the link becomes at then_at
  Duration then_at{0};                        // since the start
  Duration gap{0};                            // between a round's end and the next one's start
  Duration stagger{0};                        // workers begin a round at random within this time
  // How unequal the chunks are: standard deviation of the logarithm of their scales. One part of it is common
  // to all workers, another one, half as wide, is each worker's own. 0: all chunks are alike, and which of
  // them are high is a matter of chance.
  double energy_spread = 0;
  std::string optimizer = "aggregate";  // of every tensor, at the server
  server::ServerSettings settings;      // world_size is set
  uint64_t seed = 1;
  bool times_server = false;    // the calls into its core
  int64_t (*heap)() = nullptr;  // and what they leave on the heap, as of CallTimes
};

// Since the round's start; of the slowest worker each.
struct PushPullPhases {
  Duration begin{0};                // of the round, since the run's start
  Duration sent{0};                 // the last chunk left a worker for the first time
  Duration final{0};                // the server had everything, or had closed
  Duration first_chunk{0};          // the first chunk of a result reached a worker (of the fastest one)
  Duration last_chunk{0};           // the last chunk of the results reached a worker
  Duration ended{0};                // the last operation was over: results are here and the CLOSE has come
  std::vector<Duration> by_tensor;  // the last operation on each
};

// What both sides sent, summed over the measured rounds.
struct PushPullTraffic {
  uint64_t chunks = 0;  // contributions, of all workers
  uint64_t lost_chunks = 0;
  uint64_t repaired_chunks = 0;
  uint64_t filled_chunks = 0;
  uint64_t up_packets = 0, up_repair = 0, up_again = 0, up_pto = 0;
  uint64_t down_packets = 0, down_repair = 0, down_again = 0;
  uint64_t up_bytes = 0, down_bytes = 0;  // UDP payload, as it left
  uint64_t up_arrived = 0;                // packets
  uint64_t up_queue_drops = 0, down_queue_drops = 0;
  Duration longest_up_queue{0}, longest_down_queue{0};
};

// What entered the links in one step of the time since a round's start, summed over the measured rounds.
struct PushPullStep {
  static constexpr Duration kLength = std::chrono::milliseconds(10);
  uint64_t rounds = 0;  // that lasted so long
  uint64_t up_bytes = 0, down_bytes = 0;
  Duration up_queue{0}, down_queue{0};
};

// What a worker's controller knew of its way to the server as a round ended.
struct PushPullFit {
  uint64_t round = 0;  // 0: the first after the warm-up
  uint32_t rank = 0;
  std::string state;       // of the fit
  std::string rate_state;  // of the controller
  double floor = 0;        // l0
  double target = 0;       // l*
  Bandwidth capacity;      // zero: not fitted
};

struct PushPullResult {
  std::string failure;  // empty: every round came to its end
  std::vector<PushPullPhases> rounds;
  PushPullTraffic traffic;
  std::vector<PushPullStep> timeline;
  std::vector<PushPullFit> fits;
  std::vector<ClientStats> workers;  // at the end
  server::ServerStats server;
  CallTimes server_times;  // of the measured rounds; what is on the heap, at the end of the last one
};

// The full-duplex floor: all gradients one after the other at the link's rate while results return behind
// them, one round trip later; headers and what the link loses included.
Duration FullDuplexFloor(const PushPullOptions& options);

PushPullResult RunPushPull(const PushPullOptions& options);

}  // namespace longhaul::sim
