// Server grants: how fast each worker may send, so that all of them together do not overflow the one link
// into the server (incast) and finish together.
//
//   windows (bytes to come) ──┐
//   arrivals, loss, queues  ──┼─> capacity, given or estimated ─> shares by water-filling ─> Connection::Grant
//   who joined, who left    ──┘
//
// A worker is
//   idle      no window of it is open. It holds a standing grant, because the first round trip of its next
//             window passes before the server hears of it: capacity / workers while nobody sends, and a part of
//             kLatecomers of the capacity while others do;
//   expected  idle, but others have just begun: its share is kept for it for kGrace round trips;
//   active    its windows lack bytes. Weight of its share = the bytes that it can still be told about, those in
//             flight excluded;
//   draining  active, but all that it lacks is in flight: its share goes to the others already now.
//
// The sum of what expected and active workers hold is never above the capacity; a grant is a rate of UDP
// payload that is sent, so FEC, retransmissions and what gets lost later are in it, and IP headers are taken
// off it. Idle workers hold at most kLatecomers on top: should all of them begin at once, that is an eighth
// of a bandwidth-delay product in the queue.
//
// Without a given capacity nobody is bounded until the estimator has seen a shared queue. Sans-I/O, not
// thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/instant.h"
#include "server/capacity_estimator.h"
#include "server/peer.h"
#include "server/settings.h"
#include "server/water_fill.h"

namespace longhaul::server {

struct GrantStats {
  Bandwidth capacity;  // in use; zero while unknown
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
  // For so many round trips the share of a worker that has not begun yet is kept.
  static constexpr int kGrace = 1;
  // Smaller changes are not told.
  static constexpr double kMinChange = 0.05;
  // IP and UDP, per datagram.
  static constexpr int64_t kHeaderBytesV4 = 28;
  static constexpr int64_t kHeaderBytesV6 = 48;
  static constexpr Duration kMinTick = std::chrono::milliseconds(5);
  static constexpr Duration kMaxTick = std::chrono::milliseconds(100);

  Grants(const GrantSettings& settings, uint32_t world_size, ByteCount receive_window);

  // The peer is the rank's connection from now on; it must Leave before it goes.
  void Join(Instant now, Peer& peer);
  void Leave(Instant now, uint32_t rank);
  // A window of the rank was opened, closed, or got something.
  void OnWindow(Instant now, uint32_t rank);
  // To be called after every event: grants what has to change.
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
    ByteCount usual_demand;  // in the one before: what is expected of it
    ByteCount rest;          // what a grant can still be about
    Counts previous;         // as of the latest tick ...
    Counts before_previous;  // ... and the one before
    bool measured = false;   // both ticks were in this activity
    Bandwidth sent;          // during both ticks: what arrived, and what did not
    Bandwidth sent_then;     // the same, when it was judged last
    Instant judged_at;       // once a round trip: does it use what it was granted?
    Bandwidth best;          // most that it was seen to send, lately
    int unused = 0;          // so many times in a row it did not
    Bandwidth arrival;
    Duration queue{0};
    Duration rtt{0};
    Bandwidth ceiling = Bandwidth::Max();  // what its own path lets it use, with room to grow
    Bandwidth granted;                     // zero: not bounded
    ByteCount window;
    Instant granted_at;
    bool present() const { return peer != nullptr; }
  };

  ByteCount Lacking(const Worker& worker) const;
  void Tick(Instant now);
  void Measure(Worker& worker, Duration since, uint64_t* expected, uint64_t* arrived);
  ArrivalSample TakeSample(Instant now);
  // wanted: somebody could use what others leave. Otherwise it stays with them: they may be on their way up.
  void LimitByOwnPath(Instant now, bool wanted);
  void Judge(Worker& worker, bool wanted) const;
  bool IsBound(const Worker& worker) const;
  void ArmTick(Instant now);
  void Divide(Instant now);
  Bandwidth Budget() const;
  bool IsExpected(Instant now, const Worker& worker) const;
  // Of its share; `mean` when nothing is known of it. busy: somebody has something to send.
  double Weight(const Worker& worker, bool busy, double mean) const;
  bool IsTold(Instant now, const Worker& worker, Bandwidth rate) const;
  void Tell(Instant now, Worker& worker, Bandwidth rate);
  void GiveAwayTheRest(Bandwidth budget, std::vector<Claim>* claims, std::vector<Bandwidth>* shares) const;
  void FitWhatIsHeld(Instant now, Bandwidth budget, const std::vector<Worker*>& workers,
                     std::vector<Bandwidth>* shares) const;
  ByteCount ReceiveWindow(const Worker& worker, Bandwidth rate) const;
  Duration Rtt() const;  // the longest of those who send
  Duration TickTime() const;

  GrantSettings settings_;
  ByteCount receive_window_;
  CapacityEstimator estimator_;
  std::vector<Worker> workers_;  // by rank
  uint32_t active_ = 0;
  uint32_t present_ = 0;
  bool dirty_ = false;  // somebody came, went, began or gave his share back
  Instant busy_since_;
  Instant previous_tick_;
  Instant before_previous_tick_;
  Instant next_tick_ = Instant::Infinite();
  uint64_t updates_ = 0;
};

}  // namespace longhaul::server
