// Ring reduce-scatter and all-gather with slow nodes, in virtual time, by the decisions of the product
// (offload/straggler). The model is the paper's (seed D):
//
//   TRS = receive + reduce + send at a node: T, of a slow one T + dT; then the sum is on its way for
//   Ttrans = link delay + bytes / rate. A sum that a node passes on as it is, and its own part alone, cost no TRS.
//   A chunk is reduced when the parts of all nodes are at its owner. The all-gather takes n - 1 transfers more.
//
//   no slow node:  (n - 1) (T + Ttrans)
//
// Data are counts per node, which go their own way through the messages: what a message says of its sum is
// not believed (checker.h).
#pragma once

#include <cstdint>
#include <vector>

#include "base/random.h"
#include "longhaul/units.h"
#include "offload/straggler/demotion.h"
#include "offload/straggler/ring_hop.h"

namespace longhaul::offload::ringsim {

struct RingModel {
  uint32_t nodes = 4;
  Duration reduce_time = std::chrono::microseconds(3);  // T
  Duration link_delay = std::chrono::microseconds(5);
  ByteCount chunk{8192};
  Bandwidth rate = Bandwidth::Mbps(100'000);
  RingPolicy policy = RingPolicy::kSeedSkip;
  double alpha = 1.8;       // of fixed deadlines; 0: learned ones
  bool all_chunks = false;  // otherwise chunk 0 alone, which begins at node 0
  bool one_engine = false;  // a node makes one sum after another
  bool all_gather = false;

  Duration transfer() const { return link_delay + rate.TransferTime(chunk); }
  uint32_t chunks() const { return all_chunks ? nodes : 1; }
};

// What is slow in one all-reduce, by node and chunk; what the network does.
struct RingLoad {
  explicit RingLoad(uint32_t nodes) : slow(nodes * nodes), host(nodes * nodes) {}
  std::vector<Duration> slow;  // dT of the TRS
  std::vector<Duration> host;  // when the node's own part is here
  Duration jitter{0};          // most that a transfer takes longer
  double duplicates = 0;       // share of messages that come twice
  uint64_t seed = 1;

  // Node `node` is slow in chunk `chunk`, or in every chunk.
  static RingLoad Slow(uint32_t nodes, uint32_t node, uint32_t chunk, Duration extra);
  static RingLoad AlwaysSlow(uint32_t nodes, uint32_t node, Duration extra);
  static RingLoad LateHost(uint32_t nodes, uint32_t node, Duration late);
};

// What a message said and what it held, when it was sent.
struct Sent {
  uint32_t chunk = 0;
  Partial says;
  std::vector<uint8_t> holds;  // copies of each node's part
};

struct RingOutcome {
  Duration time{0};  // until all is done; of a stuck one: the last event
  bool stuck = false;
  std::vector<std::vector<uint8_t>> at_owner;  // by chunk: copies of each node's part in its result
  std::vector<Sent> sent;
  uint64_t passed_on = 0;  // messages
  uint64_t duplicates = 0;
  uint64_t overlaps = 0;
  Contributors late = 0;
};

// A ring that learns from one all-reduce to the next.
class RingSim {
 public:
  explicit RingSim(const RingModel& model);
  RingOutcome Run(const RingLoad& load);
  // All-reduces of all chunks without slow nodes, which teach the deadlines.
  void Learn(uint32_t rounds, Duration jitter, uint64_t seed);
  Contributors leaves() const { return demotion_.leaves(); }

 private:
  RingModel model_;
  std::vector<Deadlines> deadlines_;  // by node
  Demotion demotion_;
};

}  // namespace longhaul::offload::ringsim
