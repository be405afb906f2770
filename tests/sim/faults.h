// What can happen to a cluster besides a bad network: outages, changes of weather, pauses, deaths, returns,
// moves and attacks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "longhaul/units.h"
#include "wan/link_options.h"

namespace longhaul::sim {

inline double InSeconds(Duration time) { return std::chrono::duration<double>(time).count(); }

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
  kWorkerPause,          // the worker's process stands still for `duration`, then finds all that came at once
  kServerPause,          // the server's likewise
  kAddressChange,        // a NAT gives the worker another port, or another address
  kTwin,                 // a second process of the same incarnation starts while the first one is alive
  kStaleAfterLoss,  // as kKillAndRestart; the successor dies too, and once it is lost the old one tries to
                    // join
  kServerShutdown,  // the server's process is asked to end: it says so, and ends when all have heard it
  kWeather,         // the rank's links change, for good
  kServerRestart,   // the server's process dies, and starts again after `duration` with what is on its disk
};
inline constexpr int kFaultKinds = 17;

// What becomes of a rank's links. A rate, a delay or a queue is multiplied, within what a WAN may be.
struct Weather {
  bool up = true;
  bool down = true;
  std::optional<double> loss;
  double rate = 1;
  double delay = 1;
  double queue = 1;
  std::optional<int64_t> mtu;  // bytes of IP packet, above which they vanish; 0: no bound

  wan::LinkOptions Apply(wan::LinkOptions link) const;
  std::string ToString() const;
};

struct Fault {
  FaultKind kind = FaultKind::kUplinkOutage;
  uint32_t job = 0;
  uint32_t rank = 0;        // whom it hits; for the server: whose progress triggers it
  uint32_t after_push = 1;  // strikes `delay` after the rank has issued so many pushes; 0: after the start
  Duration delay{0};
  Duration duration{0};  // of an outage or a pause; until the restart
  Weather weather = {};  // kWeather
  bool other = false;  // kAddressChange: another host's address. Pauses: timers run before what came is read

  std::string ToString() const;
};

const char* FaultKindName(FaultKind kind);

// Whether someone may be taken for dead because of it. An outage can also kill by being long.
bool MayKill(const Fault& fault, Duration idle_timeout);
// Whether a process stands still because of it.
bool IsPause(FaultKind kind);
// Whether `duration` is the time until a successor starts.
bool ComesBack(FaultKind kind);
// Whether it hits a site, and with it the workers of all jobs there.
bool HitsSite(FaultKind kind);

// Of any kind up to kWeather.
Fault DrawFault(Random& random, uint32_t job, uint32_t workers, uint32_t pushes, Duration idle_timeout);
// Of a server that starts again.
Fault DrawRestart(Random& random, uint32_t job, uint32_t workers, uint32_t pushes);
// A step in any direction.
Fault DrawWeather(Random& random, uint32_t job, uint32_t workers, uint32_t pushes);

}  // namespace longhaul::sim
