// What can happen to a cluster besides a bad network: outages, deaths, returns and attacks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "longhaul/units.h"

namespace longhaul::sim {

enum class FaultKind : uint8_t {
  kUplinkOutage,         // what the rank sends is lost; the other direction works
  kDownlinkOutage,       // what the rank should hear is lost
  kFullOutage,           // both
  kKillForGood,          // the worker's process dies without a word
  kKillAndRestart,       // and comes back after `duration` with the next higher incarnation
  kPartitionAndReplace,  // its site is cut off, a successor starts elsewhere, and the old one comes back
  kStaleIncarnation,     // as kKillAndRestart; then a process of the old incarnation tries to join
  kServerKill,           // the server's process dies
  kRandomDatagrams,      // strangers throw garbage, damaged copies and replays at the server
};
inline constexpr int kFaultKinds = 9;

struct Fault {
  FaultKind kind = FaultKind::kUplinkOutage;
  uint32_t job = 0;
  uint32_t rank = 0;        // whom it hits; for the server: whose progress triggers it
  uint32_t after_push = 1;  // strikes `delay` after the rank has issued so many pushes; 0: after the start
  Duration delay{0};
  Duration duration{0};  // of an outage; until the restart

  std::string ToString() const;
};

const char* FaultKindName(FaultKind kind);

// Whether someone may be taken for dead because of it. An outage can also kill by being long.
bool MayKill(const Fault& fault, Duration idle_timeout);
// Whether more than one fault of this kind makes sense beside others in one run.
Fault DrawFault(Random& random, uint32_t job, uint32_t workers, uint32_t pushes, Duration idle_timeout);

}  // namespace longhaul::sim
