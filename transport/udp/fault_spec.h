// What the fault injector shall do, and the words that say so.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "longhaul/status.h"
#include "wan/link_options.h"

namespace longhaul::udp {

enum class FaultSide : uint8_t { kBoth, kIncoming, kOutgoing };

struct FaultOptions {
  wan::LinkOptions link;  // of each direction that is concerned
  FaultSide side = FaultSide::kBoth;
  uint64_t seed = 1;

  bool operator==(const FaultOptions&) const = default;
  bool Concerns(FaultSide direction) const { return side == FaultSide::kBoth || side == direction; }
};

// Reads "drop=0.02,delay=25ms,jitter=2ms,dup=0.01,reorder=0.01,corrupt=0.001,rate=200mbit,queue=50ms,seed=7".
//   drop (loss), dup (duplicate), reorder, corrupt    chance, 0..1 or with a percent sign
//   burst N        drops come in bursts of N datagrams on average
//   delay, jitter  one way: ns us ms s; reorder needs a delay, which it skips
//   rate, queue    a link with a drop-tail queue: bit kbit mbit gbit; a time, or b kb mb
//   side           in, out or both (the default)
//   seed           a number
// Errors: kInvalidArgument naming the word and what would be right.
Result<FaultOptions> ParseFaults(std::string_view spec);

}  // namespace longhaul::udp
