// The cells of the host grid: what real hosts and shared paths do to a sender, one value of each dimension.
//
// A cell's name is all its dimensions, "cap=200 rtt=40 queue=5ms loss=0 ...", and is enough to replay it:
// Parse() takes any number in place of those that the grid uses, and what a name leaves out is the first
// value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/instant.h"
#include "longhaul/units.h"
#include "tests/sim/rate/rate_options.h"

namespace longhaul::bench {

enum class HostDimension : uint8_t {
  kCapacity,     // Mbit/s
  kRtt,          // ms
  kQueue,        // "5ms" or "0.25bdp"
  kLoss,         // random, in %
  kBurst,        // mean length of the losses in packets; 0: independent
  kSenderStall,  // "1/20": up to 1 ms every 20 ms; "1/20m": every stall marks the samples application-limited
  kReceiverStall,  // the same, without marks
  kAckBatch,       // ms between the batches of ACKs
  kJitter,         // ms of extra delay of the data, in order
  kPolicer,        // kB of its bucket, at half of the capacity
  kGrant,          // share of capacity / flows
  kFlows,
  kCross,  // "none", "cubic", "bbr"
  kApp,    // "bulk", or rounds of so many BDP of a flow's share with gaps of 100 ms: "2bdp"
};
inline constexpr size_t kHostDimensions = 14;

// A length of up to `most`, drawn uniformly, every `period` with 20 % either way; period 0: none.
struct Stalls {
  Duration most{0};
  Duration period{0};
  bool marked = false;
};

class HostCell {
 public:
  // The first value of every dimension.
  HostCell();
  static std::optional<HostCell> Parse(std::string_view name);
  std::string Name() const;

  const std::string& operator[](HostDimension dimension) const {
    return values_[static_cast<size_t>(dimension)];
  }
  void Set(HostDimension dimension, std::string value) {
    values_[static_cast<size_t>(dimension)] = std::move(value);
  }

  Bandwidth capacity() const { return Bandwidth::Mbps(Number(HostDimension::kCapacity)); }
  Duration rtt() const { return Milliseconds(HostDimension::kRtt); }
  // How long a full queue takes to drain; never less than the simulator's least queue.
  Duration queue() const;
  double loss() const { return Number(HostDimension::kLoss) / 100; }
  Stalls sender_stalls() const { return StallsOf(HostDimension::kSenderStall); }
  Stalls receiver_stalls() const { return StallsOf(HostDimension::kReceiverStall); }
  // Zero: none.
  Bandwidth policer_rate() const;
  Bandwidth grant() const;  // of each flow
  int flows() const { return static_cast<int>(Number(HostDimension::kFlows)); }
  std::optional<RateControl> cross() const;
  bool bulk() const { return (*this)[HostDimension::kApp] == "bulk"; }
  // What a flow sends at once; 0: bulk.
  int round_packets() const;
  // What the flows under test can have together.
  Bandwidth Attainable() const;
  transport::sim::LinkOptions Link(uint64_t seed) const;

 private:
  double Number(HostDimension dimension) const;
  Duration Milliseconds(HostDimension dimension) const;
  Stalls StallsOf(HostDimension dimension) const;
  bool Valid() const;

  std::array<std::string, kHostDimensions> values_;
};

// The short names of the dimensions, and the values that the grid uses. The first value is the harmless one.
std::string_view HostDimensionKey(HostDimension dimension);
std::span<const std::string_view> HostValues(HostDimension dimension);

// Every pair of values of two dimensions, twice in different company, unless one makes the other pointless
// (ExcludedPair).
std::vector<HostCell> CoverCells();
// Four usual paths with each value that is not harmless alone.
std::vector<HostCell> SingleCells();
// Capacity, RTT and queue anywhere between the grid's values; the others harmless in every second case.
std::vector<HostCell> RandomCells(size_t count, uint64_t seed);

bool ExcludedPair(HostDimension a, std::string_view value_a, HostDimension b, std::string_view value_b);
// The pairs that no cell has: none for CoverCells().
std::vector<std::string> MissingPairs(std::span<const HostCell> cells);

}  // namespace longhaul::bench
