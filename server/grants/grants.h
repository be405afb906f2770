// Server grants: how fast each worker may send, so that all of them together do not overflow the one link
// into the server (incast) and finish together.
//
//   windows (bytes to come) ──┐
//   arrivals, loss, queues  ──┼─> capacity, given or estimated ─> shares by water-filling ─> Connection::Grant
//   joins and leaves        ──┘
//
// A worker is
//   idle      none of its windows is open. It holds a standing grant, because the first round trip of its next
//             window passes before the server sees it: capacity / workers while all are idle, and a part of
//             kLatecomers of the capacity while others send;
//   expected  idle, but others have just begun: its share is reserved for kGrace round trips;
//   active    its windows lack bytes. Weight of its share = the bytes that a grant can still affect, those in
//             flight excluded;
//   draining  active, but all that it lacks is in flight: its share already goes to the others.
//
// The grants of expected and active workers never sum to more than the capacity. A grant is a rate of UDP
// payload at the sender: it includes FEC, retransmissions and packets that are lost later; IP headers are
// subtracted from the capacity. Idle workers hold at most kLatecomers on top: if all of them begin at once,
// that queues an eighth of a bandwidth-delay product.
//
// Where several jobs receive on one link, the capacity of each is its part of a given one (link_share.h).
//
// Without a given capacity no worker is bounded until the estimator has seen a shared queue. Sans-I/O, not
// thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/instant.h"
#include "server/grants/capacity_estimator.h"
#include "server/grants/link_share.h"
#include "server/member/peer.h"
#include "server/settings.h"

namespace longhaul::server {

struct Claim {
  double weight = 1;                     // >= 0
  Bandwidth floor = {};                  // at least this ...
  Bandwidth ceiling = Bandwidth::Max();  // ... and at most this, which wins over the floor
};

// Divides a rate between claims by weight: weighted max-min fairness ("water-filling").
//
//   share_i = clamp(level * weight_i, floor_i, ceiling_i),  the level as high as the capacity allows
//
// What one claim cannot use (its ceiling) goes to the others in proportion to their weights. The sum of the
// shares is never above the capacity: floors that do not fit are scaled down together.
// Returns the shares in the order of the claims. Monotone: more capacity makes no share smaller.
std::vector<Bandwidth> WaterFill(Bandwidth capacity, std::span<const Claim> claims);

struct GrantStats {
  Bandwidth capacity;  // in use, of several jobs on a link this one's part; zero while unknown
  bool estimated = false;
  uint64_t updates = 0;  // GRANT frames asked for
  struct Worker {
    Bandwidth rate;  // zero: not bounded
    ByteCount receive_window;
    Bandwidth arrival;  // of the latest round trip while it sent
  };
  std::vector<Worker> by_rank;
};

class Grants {
 public:
  // Of the capacity, for idle workers together while others send.
  static constexpr double kLatecomers = 0.125;
  // Round trips for which the share of an expected worker is reserved.
  static constexpr int kGrace = 1;
  static constexpr double kMinChange = 0.05;     // relative; smaller changes are not sent
  static constexpr int64_t kHeaderBytesV4 = 28;  // IP and UDP, per datagram
  static constexpr int64_t kHeaderBytesV6 = 48;
  // A tick, which visits all workers, is a quarter of a round trip: at most 200 a second however short that
  // is, and at least 10, so that a queue is seen soon however long it is.
  static constexpr Duration kMinTick = std::chrono::milliseconds(5);
  static constexpr Duration kMaxTick = std::chrono::milliseconds(100);

  Grants(const GrantSettings& settings, uint32_t world_size, ByteCount receive_window);

  // The peer is the rank's connection from now on; it must Leave before it goes.
  void Join(Instant now, Peer& peer);
  void Leave(Instant now, uint32_t rank);
  // A window of the rank was opened or closed, or received something.
  void OnWindow(Instant now, uint32_t rank);
  // Sends the grants that have changed. Call it after every event.
  void Run(Instant now);
  Instant NextTimeout() const { return next_tick_; }

  GrantStats stats() const;

 private:
  struct Counts {
    uint64_t bytes = 0;
    uint64_t packets = 0;
    uint64_t expected = 0;
  };
  struct Worker {
    Peer* peer = nullptr;
    bool active = false;
    bool was_active = false;  // in this busy period
    bool draining = false;
    Instant active_since;
    ByteCount demand;        // most that its windows lacked at once, in this busy period
    ByteCount usual_demand;  // in the one before: the forecast for this one
    ByteCount rest;          // lacking and not yet in flight: what a grant can still affect
    Counts previous;         // as of the latest tick ...
    Counts before_previous;  // ... and the one before
    bool measured = false;   // both ticks were in this activity
    Bandwidth sent;          // during both ticks: arrived and lost
    Bandwidth sent_then;     // the same, at judged_at
    Instant judged_at;       // latest check, once a round trip, whether it uses its grant
    Bandwidth best;          // decaying maximum of `sent`
    int unused = 0;          // consecutive checks in which it did not
    Bandwidth arrival;
    Duration queue{0};
    Duration rtt{0};
    Bandwidth ceiling = Bandwidth::Max();  // of its own path, with room to grow
    Bandwidth granted;                     // zero: not bounded
    ByteCount window;
    Instant granted_at;
    bool present() const { return peer != nullptr; }
  };

  ByteCount Lacking(const Worker& worker) const;
  void Tick(Instant now);
  void Measure(Worker& worker, Duration since, uint64_t* expected, uint64_t* arrived);
  ArrivalSample TakeSample(Instant now);
  // wanted: a worker is bound by its grant. Otherwise no ceiling is lowered: rates may still be growing.
  void LimitByOwnPath(Instant now, bool wanted);
  void Judge(Worker& worker, bool wanted) const;
  bool IsBound(const Worker& worker) const;
  void ArmTick(Instant now);
  void Divide(Instant now);
  Bandwidth Budget() const;
  // Tells other jobs on the link whether this one runs, and takes its part of now.
  void ShareLink();
  bool IsExpected(Instant now, const Worker& worker) const;
  // Of its share; `mean` without a history. busy: some worker lacks bytes that are not in flight.
  double Weight(const Worker& worker, bool busy, double mean) const;
  // False: `rate` differs enough from what the worker holds, and may be sent now.
  bool GrantIsCurrent(Instant now, const Worker& worker, Bandwidth rate) const;
  void SendGrant(Instant now, Worker& worker, Bandwidth rate);
  // Ceilings protect the others: what is left after them goes to the workers that may still find a use for
  // it.
  void RedistributeSurplus(Bandwidth budget, std::vector<Claim>* claims,
                           std::vector<Bandwidth>* shares) const;
  // A worker that gets no new grant holds its old one: what others gain must fit beside it.
  void FitUnacknowledgedGrants(Instant now, Bandwidth budget, const std::vector<Worker*>& workers,
                               std::vector<Bandwidth>* shares) const;
  ByteCount ReceiveWindow(const Worker& worker, Bandwidth rate) const;
  Duration Rtt() const;  // the longest of the active workers
  Duration TickTime() const;

  GrantSettings settings_;
  ByteCount receive_window_;
  CapacityEstimator estimator_;
  std::vector<Worker> workers_;  // by rank
  uint32_t active_ = 0;
  uint32_t present_ = 0;
  double link_part_ = 1;
  bool dirty_ = false;  // a worker came, left, began, ended or drained, or the part of the link changed
  Instant busy_since_;
  Instant previous_tick_;
  Instant before_previous_tick_;
  Instant next_tick_ = Instant::Infinite();
  uint64_t updates_ = 0;
};

}  // namespace longhaul::server
