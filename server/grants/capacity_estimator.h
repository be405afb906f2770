// Estimates the capacity of the server's own link from the arrivals alone.
//
// A standing queue that (nearly) all senders see at once is shared, and while it stands its link is busy: the
// total arrival rate of that time is the capacity. Between two such times the estimate is raised as long as a
// sender uses all of its grant and sees no queue. Workers that are limited by their own paths never queue
// together, or do so below their grants: then there is no bound, or the bound rises until it no longer binds.
//
//   unknown --queue at all--> known = arrival --no queue, a grant binds--> a little more, then faster
//                                  ^                                           |
//                                  +------------- queue at all ----------------+
//
// Loss above the path's usual loss is the second signal, for buffers too short to queue. The capacity is a
// rate of sending: arrivals divided by 1 - the path's usual loss.
#pragma once

#include "base/instant.h"
#include "longhaul/units.h"

namespace longhaul::server {

// Measured over about one round trip. Counts are of workers that sent throughout.
struct ArrivalSample {
  Instant now;
  Duration rtt{0};    // the longest of the senders
  Bandwidth arrival;  // UDP payload, all connections together
  double loss = 0;    // share of the packets sent that did not arrive, 0..1
  int sending = 0;
  int queued = 0;        // of them with a standing queue, longer than CapacityEstimator::QueueThreshold
  int bound = 0;         // of the senders, those that use all of their grant
  int bound_queued = 0;  // of those, with a standing queue
  int bound_free = 0;    // of those, without any queue
  Duration queue{0};     // the median of the senders' standing queues
};

class CapacityEstimator {
 public:
  struct Options {
    Bandwidth floor = {};              // the estimate is never below ...
    Bandwidth cap = Bandwidth::Max();  // ... nor above
  };

  // The shortest standing queue: an eighth of a BDP, and longer than the jitter of a host's scheduling.
  static Duration QueueThreshold(Duration rtt);
  // Shorter queues count as none.
  static Duration NoQueue(Duration rtt) { return QueueThreshold(rtt) / 3; }

  explicit CapacityEstimator(Options options) : options_(options) {}

  void OnSample(const ArrivalSample& sample);
  // The last sender is idle: the probe in progress ends.
  void OnIdle();

  bool known() const { return !capacity_.IsZero(); }
  // Zero while nothing is known.
  Bandwidth capacity() const { return capacity_; }
  // The rate to divide now: below the capacity while a queue has to drain.
  Bandwidth budget() const { return capacity_ * (1.0 - drain_); }
  // The path's usual loss, 0..1.
  double usual_loss() const { return usual_loss_; }

 private:
  bool Congested(const ArrivalSample& sample) const;
  void Lower(const ArrivalSample& sample);
  void Raise(const ArrivalSample& sample);
  Bandwidth Bounded(Bandwidth rate) const;

  Options options_;
  Bandwidth capacity_;
  double usual_loss_ = 0;
  double drain_ = 0;
  double step_ = 0;  // of the latest raise
  Instant lowered_at_;
  Instant raised_at_;
  Instant hold_until_;  // no raise before
  Duration hold_{0};    // how long the next one lasts
};

}  // namespace longhaul::server
