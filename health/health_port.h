// What probes and scrapes ask of a daemon over HTTP, on a TCP port of its own:
//
//   GET /healthz   200 while the daemon's loop answers, else 503 and since when it does not
//   GET /readyz    200 while the daemon does its work, else 503 and why not: starting, stopping, not connected
//   GET /metrics   its counters (metric_page.h); 503 while the loop does not answer
//
// Two threads of its own. One serves connections and never waits; the other asks the daemon's loop, every
// second whether it turns, and for the counters when they are scraped. So /healthz shows a loop that stands
// still, and no peer costs the loop more than some pages a second.
//
// The port is for a host or a cluster's own network: no TLS, no names of users. A peer can neither change
// anything nor hold anything: see the bounds below. Each answer ends its connection.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <system_error>

#include "base/address.h"
#include "health/metric_page.h"
#include "longhaul/status.h"
#include "longhaul/units.h"

namespace longhaul::health {

// Since the port was opened.
struct HealthCounters {
  uint64_t connections = 0;
  uint64_t answers = 0;
  uint64_t refused = 0;
  uint64_t displaced = 0;
  uint64_t late = 0;
  uint64_t broken = 0;
  uint64_t paused = 0;
  uint64_t open = 0;
};

inline constexpr std::array<Counter<HealthCounters>, 8> kHealthCounters = {{
    {&HealthCounters::connections, "connections", "connections taken by the port of --metrics"},
    {&HealthCounters::answers, "answers", "requests that were answered, whatever with"},
    {&HealthCounters::refused, "refused",
     "of them, with 4xx or 505: no such page, no GET, no HTTP, too long"},
    {&HealthCounters::displaced, "displaced",
     "connections that were closed for newer ones, the port's places being taken"},
    {&HealthCounters::late, "late", "connections that were closed since they took too long"},
    {&HealthCounters::broken, "broken", "connections that ended before their answer"},
    {&HealthCounters::paused, "paused",
     "times that newcomers had to wait: too many came, or the process had no descriptor left"},
    {&HealthCounters::open, "open", "connections now", CounterKind::kState},
}};

// What the daemon's loop says of itself.
struct LoopState {
  bool answers = false;   // in a second or two
  std::string not_ready;  // why not; empty: ready
};

// Called on the port's own thread, one at a time; may wait for some seconds.
struct HealthSource {
  std::function<LoopState()> look;
  // Every counter. False: the loop does not answer.
  std::function<bool(MetricPage*)> collect;
};

struct HealthBounds {
  size_t connections = 32;  // beyond them the oldest goes
  // A whole connection, from its begin: Prometheus waits 10 s for a page, kubelets 1 s.
  Duration deadline = std::chrono::seconds(10);
  // Newcomers, and so many at once; what is more waits in the kernel. Each costs 0.1 ms.
  double connections_per_second = 100;
  Duration look_every = std::chrono::seconds(1);
  // Longer than any event of a loop (2 ms, decisions 0022) and than a host that swaps.
  Duration stands_still = std::chrono::seconds(5);
  // A page serves all who ask so soon, or within ten times what it took: a tenth of a core at most.
  Duration page_lasts = std::chrono::milliseconds(250);
};

// That a TCP port could not be opened at `where`: kAlreadyExists (it is in use), kPermissionDenied,
// kUnavailable (no such address here), kInternal.
Status CannotListen(const std::string& where, const std::error_code& error);

class HealthPort {
 public:
  // where: HOST:PORT. program: for longhaul_build_info. Errors: those of udp::ResolveListen, kAlreadyExists
  // (the port is in use), kPermissionDenied, kUnavailable (no such address here), kInternal (no descriptor or
  // thread).
  static Result<std::unique_ptr<HealthPort>> Open(const std::string& where, const std::string& program,
                                                  const HealthBounds& bounds = {});
  ~HealthPort();
  HealthPort(const HealthPort&) = delete;
  HealthPort& operator=(const HealthPort&) = delete;

  const Address& address() const;
  // Until then the daemon is healthy, and not ready: it starts. `source` is called until Forget has returned.
  void Watch(HealthSource source);
  // The loop is at its end: healthy, and not ready.
  void Forget();
  // Not ready any more, for this reason: the first one stays. Any thread.
  void SetStopping(const std::string& why);
  // The daemon's work has come further: a round, a message. Any thread.
  void NoteProgress();

 private:
  struct Impl;
  explicit HealthPort(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A daemon's loop is watched while this lives, which is shorter than the loop's owner does.
class HealthWatch {
 public:
  // port: may be null.
  HealthWatch(HealthPort* port, HealthSource source) : port_(port) {
    if (port_ != nullptr) port_->Watch(std::move(source));
  }
  ~HealthWatch() {
    if (port_ != nullptr) port_->Forget();
  }
  HealthWatch(const HealthWatch&) = delete;
  HealthWatch& operator=(const HealthWatch&) = delete;

 private:
  HealthPort* port_;
};

}  // namespace longhaul::health
