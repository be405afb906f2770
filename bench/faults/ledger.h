// What a member of the chaos job has pushed, and what it knows of that: a file that outlives it.
//
//   begin 17       before push 17 is asked for
//   ack 17 4711    its operation has completed Ok; it counts in round 4711
//
// A member that is started again goes on with the next number, so that no number is pushed twice on purpose.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace longhaul::bench::faults {

struct Ledger {
  uint64_t begun = 0;                  // the last number; the first is 1
  std::map<uint64_t, uint64_t> acked;  // round by number
};

// Of the whole lines: the writer may have been killed in one. No file: nothing was begun.
Ledger ReadLedger(const std::string& path);

// Each rank has so many elements of its own, one a push.
inline constexpr uint64_t kPushesPerRank = 1 << 15;
// What a push adds to its element, times the round's share: with one to four members in the round the mean is
// an integer, and the sum of any number of rounds exact.
inline constexpr float kPushed = 12;

}  // namespace longhaul::bench::faults
