// Which round-trip times the rate controller may take for the path's.
//
// A packet that overtakes others has seen a shorter way than the flow does: were its time taken for the
// minimum, bandwidth times minimum would be a few packets, for the ten seconds that the minimum is kept. So
//   - a time that is clearly below the minimum waits for as long as that minimum (a round trip), in which those
//     that it has overtaken come late, if it has;
//   - as long as packets come late, the mean over all packets of a flight counts, by which rate times delay is
//     what is in flight (Little's law). It is taken when the flight's late ones have come, since the first to
//     come are those that overtake.
//
// A path that has become shorter overtakes as well, once: it counts kMemoryRtts later.
//
// Not thread-safe; lives inside one connection.
#pragma once

#include <cstdint>

#include "base/instant.h"
#include "longhaul/units.h"
#include "transport/core/recovery/loss_detection.h"
#include "transport/core/recovery/rtt_estimator.h"

namespace longhaul::transport {

class PathRtt {
 public:
  static constexpr int kMemoryRtts = 16;  // round trips without one that comes late: as LossDetection's
  // A time that is so much of the minimum below it waits, and a packet that comes so much of the minimum
  // later than the one before it was overtaken by far. Smaller differences are queue or jitter.
  static constexpr int kShare = 4;
  // Packets of a flight that is worth a mean: when a third takes half of the time, it is right within 5 %.
  static constexpr int64_t kMeanPackets = 32;

  // The times that count after this acknowledgement; zero: none.
  struct Sample {
    Duration latest{0};
    Duration adjusted{0};
    bool void_minimum = false;  // what was the minimum before is none
  };
  // outcome: of the acknowledgement that `rtt` has been updated with, and that arrived at `received`.
  Sample OnAck(const LossDetection::Outcome& outcome, const RttEstimator& rtt, Instant received);

  // Packets come late.
  bool reordered(Instant now) const { return now < reordered_until_; }

 private:
  struct Flight {
    int64_t packets = 0;
    Duration sum{0};
    void Add(Duration rtt) {
      ++packets;
      sum += rtt;
    }
  };
  void CountFlights(const LossDetection::Outcome& outcome, Instant received);
  // Whether this acknowledgement is the first of those that show that packets come late.
  bool NoticeLate(const LossDetection::Outcome& outcome, Instant received);
  // False: the time waits.
  bool Believe(Duration latest, Instant received);

  Duration mean_{0};  // of the last flight that has come
  Flight flight_;     // sent from begin_ to end_
  Flight next_;       // sent since
  Instant begin_, end_;
  Duration lateness_{0};                // the longest time of one that came late, since packets come late
  Duration minimum_ = Duration::max();  // of the times that counted
  Duration previous_{0};                // the time before
  Duration pending_ = Duration::max();  // the least that waits
  Instant pending_since_ = Instant::Infinite();
  Instant reordered_until_;
};

}  // namespace longhaul::transport
