#include "tests/sim/faults.h"

#include <algorithm>
#include <sstream>

namespace longhaul::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr ByteCount kLeastQueue{6000};

Duration Scaled(Duration d, double factor) {
  return Duration(static_cast<int64_t>(static_cast<double>(d.count()) * factor));
}

bool IsOutage(FaultKind kind) { return kind <= FaultKind::kFullOutage; }

template <size_t N>
double OneOf(Random& random, const double (&values)[N]) {
  return values[random.Below(N)];
}

}  // namespace

const char* FaultKindName(FaultKind kind) {
  constexpr const char* kNames[kFaultKinds] = {"uplink outage",
                                               "downlink outage",
                                               "full outage",
                                               "kill for good",
                                               "kill and restart",
                                               "partition and replace",
                                               "stale incarnation",
                                               "server kill",
                                               "random datagrams",
                                               "worker pause",
                                               "server pause",
                                               "address change",
                                               "twin",
                                               "stale after loss",
                                               "server shutdown",
                                               "weather",
                                               "server restart"};
  return kNames[static_cast<size_t>(kind)];
}

wan::LinkOptions Weather::Apply(wan::LinkOptions link) const {
  if (loss) link.loss = link.loss_burst > 0 ? std::min(*loss, 0.1) : *loss;
  if (link.loss == 0) link.loss_burst = 0;
  link.rate = Bandwidth::Mbps(std::clamp(link.rate.mbps() * rate, 1.0, 400.0));
  link.delay = std::clamp<Duration>(Scaled(link.delay, delay), milliseconds(1), milliseconds(300));
  link.jitter = std::min(link.jitter, link.delay);
  // No router holds less than a few packets.
  const Duration least = std::max<Duration>(milliseconds(10), link.rate.TransferTime(kLeastQueue));
  link.queue_time = std::clamp<Duration>(Scaled(link.queue_time, queue), least, milliseconds(400));
  if (mtu) link.mtu = ByteCount(*mtu);
  return link;
}

std::string Weather::ToString() const {
  std::ostringstream out;
  out << (up && down ? "both ways" : up ? "up" : "down");
  if (loss) out << ", loss " << *loss;
  if (rate != 1) out << ", rate x " << rate;
  if (delay != 1) out << ", delay x " << delay;
  if (queue != 1) out << ", queue x " << queue;
  if (mtu) out << ", mtu " << *mtu;
  return out.str();
}

std::string Fault::ToString() const {
  std::ostringstream out;
  out << FaultKindName(kind) << ": job " << job << " rank " << rank << ", " << InSeconds(delay)
      << " s after its push number " << after_push;
  if (duration.count() > 0) out << ", for " << InSeconds(duration) << " s";
  if (kind == FaultKind::kWeather) out << ", " << weather.ToString();
  if (other) out << (kind == FaultKind::kAddressChange ? ", another host" : ", timers first");
  return out.str();
}

bool ComesBack(FaultKind kind) {
  return kind == FaultKind::kKillAndRestart || kind == FaultKind::kStaleIncarnation ||
         kind == FaultKind::kPartitionAndReplace || kind == FaultKind::kStaleAfterLoss;
}

bool IsPause(FaultKind kind) { return kind == FaultKind::kWorkerPause || kind == FaultKind::kServerPause; }

bool HitsSite(FaultKind kind) {
  return IsOutage(kind) || kind == FaultKind::kPartitionAndReplace || kind == FaultKind::kWeather;
}

bool MayKill(const Fault& fault, Duration idle_timeout) {
  switch (fault.kind) {
    case FaultKind::kRandomDatagrams:
    case FaultKind::kAddressChange:
    case FaultKind::kTwin:
    case FaultKind::kWeather:
    case FaultKind::kServerRestart:  // workers wait for it (RunPlan::durable)
      return false;
    case FaultKind::kUplinkOutage:
    case FaultKind::kDownlinkOutage:
    case FaultKind::kFullOutage:
    case FaultKind::kWorkerPause:
    case FaultKind::kServerPause:
      // Shorter than half of the idle time-out leaves the peers the other half to be heard again.
      return fault.duration * 2 > idle_timeout;
    default:
      return true;
  }
}

Fault DrawFault(Random& random, uint32_t job, uint32_t workers, uint32_t pushes, Duration idle_timeout) {
  Fault fault;
  fault.kind = static_cast<FaultKind>(random.Below(static_cast<uint64_t>(FaultKind::kWeather)));
  fault.job = job;
  fault.rank = static_cast<uint32_t>(random.Below(workers));
  fault.after_push = 1 + static_cast<uint32_t>(random.Below(std::max(1u, pushes)));
  fault.delay = Scaled(milliseconds(200), random.Uniform() * random.Uniform());
  fault.other = random.Chance(0.5);
  if (IsOutage(fault.kind) || (IsPause(fault.kind) && random.Chance(0.5))) {
    const bool deadly = random.Chance(0.4);
    fault.duration = Scaled(idle_timeout, deadly ? 1.2 + random.Uniform() : 0.02 + 0.4 * random.Uniform());
  } else if (IsPause(fault.kind)) {  // a blocked loop
    fault.duration = Scaled(seconds(1), 0.005 + 0.5 * random.Uniform() * random.Uniform());
  } else if (ComesBack(fault.kind)) {
    // Sometimes when the server has missed it already.
    const bool missed = random.Chance(0.2);
    fault.duration = Scaled(idle_timeout, missed ? 1.1 + 0.3 * random.Uniform() : 0.5 * random.Uniform());
  } else if (fault.kind == FaultKind::kRandomDatagrams) {
    fault.duration = Scaled(seconds(2), random.Uniform());
  }
  if (!IsPause(fault.kind) && fault.kind != FaultKind::kAddressChange) fault.other = false;
  return fault;
}

Fault DrawRestart(Random& random, uint32_t job, uint32_t workers, uint32_t pushes) {
  Fault fault;
  fault.kind = FaultKind::kServerRestart;
  fault.job = job;
  fault.rank = static_cast<uint32_t>(random.Below(workers));
  fault.after_push = 1 + static_cast<uint32_t>(random.Below(std::max(1u, pushes)));
  fault.delay = Scaled(milliseconds(200), random.Uniform() * random.Uniform());
  // At once, or when a supervisor has found it.
  fault.duration = Scaled(seconds(4), random.Uniform() * random.Uniform());
  return fault;
}

Fault DrawWeather(Random& random, uint32_t job, uint32_t workers, uint32_t pushes) {
  Fault fault;
  fault.kind = FaultKind::kWeather;
  fault.job = job;
  fault.rank = static_cast<uint32_t>(random.Below(workers));
  fault.after_push = 1 + static_cast<uint32_t>(random.Below(std::max(1u, pushes)));
  fault.delay = Scaled(milliseconds(200), random.Uniform() * random.Uniform());
  fault.weather.up = random.Chance(0.75);
  fault.weather.down = !fault.weather.up || random.Chance(0.5);
  if (random.Chance(0.6)) fault.weather.loss = OneOf(random, {0.0, 0.02, 0.1, 0.2, 0.3, 0.4});
  if (random.Chance(0.4)) fault.weather.rate = OneOf(random, {0.1, 0.3, 3.0, 10.0});
  if (random.Chance(0.4)) fault.weather.delay = OneOf(random, {0.2, 0.5, 2.0, 5.0});
  if (random.Chance(0.3)) fault.weather.queue = OneOf(random, {0.2, 0.5, 2.0, 5.0});
  // Below 1,200 bytes of UDP payload no worker can join any more; scenarios have such steps in mid-job.
  if (random.Chance(0.15)) fault.weather.mtu = static_cast<int64_t>(OneOf(random, {1240, 1300, 1400}));
  return fault;
}

}  // namespace longhaul::sim
