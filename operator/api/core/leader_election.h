// One of several operators works; the others wait for its lease (coordination.k8s.io/v1 Lease) to run out.
//
// Every write is a compare-and-swap on the lease's resourceVersion. Clocks of other machines do not count:
// another holder's lease begins when this process has last *seen* it change, by this process' monotonic
// clock, so it ends no earlier than it does for the holder, which counts from before it sent its last
// renewal.
//
//   renewal sent      seen by the other                                 may take over
//   0 s               0 .. 2.4 s                                        15 .. 17.4 s, by one replace
//   holder: leads until 10 s after its last renewal that was confirmed
//
// Not thread-safe. Time and chance (0..1) are arguments.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/instant.h"
#include "operator/api/core/api_request.h"

namespace longhaul::kube::api {

struct LeaseOptions {
  std::string name_space, name;
  std::string identity;  // of this process and no other: host and something by chance
  // client-go's and kube-controller-manager's defaults (--leader-elect-lease-duration, -renew-deadline,
  // -retry-period).
  Duration lease = std::chrono::seconds(15);
  Duration renew_deadline = std::chrono::seconds(10);
  Duration retry = std::chrono::seconds(2);
};

struct LeaseCounters {
  uint64_t acquired = 0;
  uint64_t renewed = 0;
  uint64_t lost = 0;       // without Release
  uint64_t conflicts = 0;  // writes that another one was ahead of
  uint64_t failures = 0;   // requests without a useful answer
};

class LeaderElection {
 public:
  explicit LeaderElection(LeaseOptions options) : options_(std::move(options)) {}

  // What is to be sent; its answer goes to OnAnswer. nullopt: nothing before NextDue.
  // wall: microseconds since 1970, for the lease's text only.
  std::optional<ApiRequest> Poll(Instant now, int64_t wall);
  void OnAnswer(const ApiResult& answer, Instant now, double chance);
  Instant NextDue() const { return busy_ ? Instant::Infinite() : next_; }

  // False 10 s after the last renewal that was confirmed, whatever runs: work stops before another one
  // begins.
  bool Leads(Instant now) const { return held_ && now < renewed_at_ + options_.renew_deadline; }
  // At shutdown: gives the lease up, so that the next one need not wait. Poll until released().
  void Release(Instant now);
  bool released() const { return releasing_ && !held_ && !busy_; }

  const std::string& holder() const { return holder_; }
  // Why the last request had no useful answer; empty: it had one.
  const std::string& trouble() const { return trouble_; }
  const LeaseCounters& counters() const { return counters_; }

 private:
  enum class Sent : uint8_t { kGet, kCreate, kReplace };

  void Observe(const Json& lease, Instant now);
  bool MayTake(Instant now) const;
  ApiRequest Write(Verb verb, int64_t wall);
  void Lose();

  const LeaseOptions options_;
  Json lease_;          // as last seen; null: there is none
  bool known_ = false;  // lease_ is what the server has, as far as this process has heard
  std::string holder_;
  std::string trouble_;
  std::string mark_;    // of the holder and its last renewal
  Instant changed_at_;  // when mark_ was first seen
  Duration their_lease_{0};
  Instant next_;
  Instant sent_at_;
  Sent sent_ = Sent::kGet;
  Instant renewed_at_;  // when the renewal that was confirmed last was sent
  bool busy_ = false;
  bool held_ = false;
  bool releasing_ = false;
  bool gives_up_ = false;  // the write that was sent last
  LeaseCounters counters_;
};

// RFC 3339 with microseconds, Kubernetes' MicroTime: "2026-11-28T07:48:31.000000Z".
std::string MicroTime(int64_t microseconds);

}  // namespace longhaul::kube::api
