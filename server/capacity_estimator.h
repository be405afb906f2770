// Learns how much the server's own link takes, from nothing but what arrives.
//
// A queue that stands at (nearly) all senders at once is shared, and while it stands its link is busy: what
// arrives then, all together, is the capacity. Between two such moments the estimate is raised as long as
// somebody uses all that he was granted and sees no queue. Workers whose own paths are the limit never queue
// together, or do so without a grant that holds them back: then nothing is bounded, or the bound goes away.
//
//   unknown --queue at all--> known = arrival --no queue, a grant binds--> a little more, then faster
//                                  ^                                           |
//                                  +------------- queue at all ----------------+
//
// Loss is the second sign, for buffers too short to queue: what exceeds the path's usual loss.
// The rate is one of sending: what arrives divided by 1 - the path's usual loss.
#pragma once

#include "base/instant.h"
#include "longhaul/units.h"

namespace longhaul::server {

// What was seen during about one round trip. Counts are of workers that sent all the time.
struct ArrivalSample {
  Instant now;
  Duration rtt{0};    // the longest of the senders
  Bandwidth arrival;  // UDP payload, all connections together
  double loss = 0;    // share of the packets sent that did not arrive, 0..1
  int sending = 0;
  int queued = 0;        // of them with a standing queue, longer than CapacityEstimator::QueueThreshold
  int bound = 0;         // of the senders, those who send all that they were granted
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

  // A queue counts as standing from this on: an eighth of a BDP, but more than a host's own jitter.
  static Duration QueueThreshold(Duration rtt);
  // Below this there is none.
  static Duration NoQueue(Duration rtt) { return QueueThreshold(rtt) / 3; }

  explicit CapacityEstimator(Options options) : options_(options) {}

  void OnSample(const ArrivalSample& sample);
  // Nobody sends any more: what is probed at present ends.
  void OnIdle();

  bool known() const { return !capacity_.IsZero(); }
  // Zero while nothing is known.
  Bandwidth capacity() const { return capacity_; }
  // What may be sent now: less than the capacity for as long as a queue has to drain.
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
