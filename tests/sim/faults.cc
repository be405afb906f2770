#include "tests/sim/faults.h"

#include <algorithm>
#include <sstream>

namespace longhaul::sim {
namespace {

double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

Duration Fraction(Duration d, double share) {
  return Duration(static_cast<int64_t>(static_cast<double>(d.count()) * share));
}

bool IsOutage(FaultKind kind) {
  return kind == FaultKind::kUplinkOutage || kind == FaultKind::kDownlinkOutage ||
         kind == FaultKind::kFullOutage;
}

}  // namespace

const char* FaultKindName(FaultKind kind) {
  switch (kind) {
    case FaultKind::kUplinkOutage:
      return "uplink outage";
    case FaultKind::kDownlinkOutage:
      return "downlink outage";
    case FaultKind::kFullOutage:
      return "full outage";
    case FaultKind::kKillForGood:
      return "kill for good";
    case FaultKind::kKillAndRestart:
      return "kill and restart";
    case FaultKind::kPartitionAndReplace:
      return "partition and replace";
    case FaultKind::kStaleIncarnation:
      return "stale incarnation";
    case FaultKind::kServerKill:
      return "server kill";
    case FaultKind::kRandomDatagrams:
      return "random datagrams";
  }
  return "?";
}

std::string Fault::ToString() const {
  std::ostringstream out;
  out << FaultKindName(kind) << ": job " << job << " rank " << rank << ", " << Seconds(delay)
      << " s after its push number " << after_push;
  if (duration.count() > 0) out << ", for " << Seconds(duration) << " s";
  return out.str();
}

bool MayKill(const Fault& fault, Duration idle_timeout) {
  if (fault.kind == FaultKind::kRandomDatagrams) return false;
  // An outage shorter than half of the idle time-out leaves the peers the other half to be heard again.
  if (IsOutage(fault.kind)) return fault.duration * 2 > idle_timeout;
  return true;
}

Fault DrawFault(Random& random, uint32_t job, uint32_t workers, uint32_t pushes, Duration idle_timeout) {
  Fault fault;
  fault.kind = static_cast<FaultKind>(random.Below(kFaultKinds));
  fault.job = job;
  fault.rank = static_cast<uint32_t>(random.Below(workers));
  fault.after_push = 1 + static_cast<uint32_t>(random.Below(std::max(1u, pushes)));
  fault.delay = Fraction(std::chrono::milliseconds(200), random.Uniform() * random.Uniform());
  if (IsOutage(fault.kind)) {
    const bool deadly = random.Chance(0.4);
    fault.duration = Fraction(idle_timeout, deadly ? 1.2 + random.Uniform() : 0.02 + 0.4 * random.Uniform());
  } else if (fault.kind == FaultKind::kKillAndRestart || fault.kind == FaultKind::kStaleIncarnation ||
             fault.kind == FaultKind::kPartitionAndReplace) {
    fault.duration = Fraction(idle_timeout, 0.5 * random.Uniform());
  } else if (fault.kind == FaultKind::kRandomDatagrams) {
    fault.duration = Fraction(std::chrono::seconds(2), random.Uniform());
  }
  return fault;
}

}  // namespace longhaul::sim
