// What soaks of the offload engine count, and how long they are.
//
//   LONGHAUL_SEGS=1000000   as many segs instead of 20,000
//   LONGHAUL_SEED=...       the plan of that seed
#pragma once

#include <cstdlib>
#include <map>
#include <ostream>
#include <random>

#include "longhaul/offload.h"

namespace longhaul::offload {

struct SoakFigures {
  uint64_t segs = 0;
  uint64_t attempts = 0;
  uint64_t kills_of_ranks = 0;
  uint64_t kills_of_engines = 0;
  uint64_t cancels = 0;
  std::map<WorkStatus, uint64_t> ends;

  friend std::ostream& operator<<(std::ostream& out, const SoakFigures& f) {
    out << f.segs << " segs, " << f.attempts << " attempts, " << f.kills_of_ranks << " ranks and "
        << f.kills_of_engines << " engines killed, " << f.cancels << " cancels; ends:";
    for (const auto& [status, count] : f.ends) out << " " << WorkStatusName(status) << " " << count;
    return out;
  }
};

inline uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}
inline uint64_t SoakSegs() { return FromEnvironment("LONGHAUL_SEGS", 20'000); }
inline uint64_t SoakSeed() { return FromEnvironment("LONGHAUL_SEED", std::random_device()()); }

}  // namespace longhaul::offload
