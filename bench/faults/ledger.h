// What a member of the chaos job has pushed, and what it knows of that: a file that outlives it.
//
//   begin 17       before push 17 is asked for
//   ack 17 4711 0  its operation has completed Ok; it counts in round 4711, and no chunk of it was lost
//
// A member that is started again goes on with the next number, so that no number is pushed twice on purpose.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace longhaul::bench::faults {

struct Ledger {
  uint64_t begun = 0;  // the last number; the first is 1
  struct Ack {
    uint64_t round = 0;
    uint32_t lost_chunks = 0;  // that the worker still owes
  };
  std::map<uint64_t, Ack> acked;  // by number
};

// Of the whole lines: the writer may have been killed in one. No file: nothing was begun.
Ledger ReadLedger(const std::string& path);

// Each rank has so many elements of its own, one a push.
inline constexpr uint64_t kPushesPerRank = 1 << 15;
// What a push adds to its element, times its share of the round. The mean over two, three or four members is
// an integer, so that any sum is exact; and with three of them or more, of which one may be missing, two
// shares are more than any one: a push that counts twice shows.
inline constexpr float kPushed = 12;

}  // namespace longhaul::bench::faults
