// Which round-trip times the rate controller may take for the path's.
//
// A packet that overtakes others has seen a shorter way than the flow does: were its time taken for the
// minimum, bandwidth times minimum would be a few packets, for the ten seconds that the minimum is kept. So
//   - a time that is more than a timer's granularity below the minimum waits for as long as that minimum (a
//     round trip). If packets that it has overtaken come late meanwhile, it is dropped;
//   - where this happens again and again, the mean over all packets of a flight counts, by which rate times
//     delay is what is in flight (Little's law). It is taken when the flight's late ones have come, since the
//     first to come are those that overtake.
//
// A path that has become shorter overtakes once, and counts a round trip later.
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
  // Round trips in which fewer than half as many overtake, after which order has returned.
  static constexpr int kMemoryRtts = LossDetection::kReorderingMemoryRtts;
  // A packet that comes so much of the minimum later than the one before it was overtaken by far. Smaller
  // differences are queue or jitter.
  static constexpr int kShare = 4;
  // Packets that have overtaken others by far within kOvertakerRtts round trips: they do so by rule, not by
  // chance. Two a round trip: fewer drop what waits, and no minimum is lost.
  static constexpr int kOvertakers = 8;
  static constexpr int kOvertakerRtts = 4;
  // Packets of a flight that is worth a mean: when a third takes half of the time, it is right within 5 %.
  static constexpr int64_t kMeanPackets = 32;
  // The minimum is of the last one to two of these: the rate controller's filter.
  static constexpr Duration kMinimumTime = std::chrono::seconds(10);

  // The times that count after this acknowledgement; zero: none.
  struct Sample {
    Duration latest{0};
    Duration adjusted{0};
    bool void_minimum = false;  // what was the minimum before is none
  };
  // Packets that were sent before `now` are another path's.
  explicit PathRtt(Instant now = Instant()) : begin_(now), end_(now) {}
  // outcome: of the acknowledgement that `rtt` has been updated with, and that arrived at `received`.
  Sample OnAck(const LossDetection::Outcome& outcome, const RttEstimator& rtt, Instant received);

  // Packets overtake by rule.
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
  // Of the last one to two kMinimumTime.
  struct Minimum {
    Duration least = Duration::max();
    Duration recent = Duration::max();  // since `since`
    Instant since;
    bool known() const { return least != Duration::max(); }
    void Add(Duration rtt, Instant now);
  };
  void CountFlights(const LossDetection::Outcome& outcome, Instant received);
  // Whether this acknowledgement is the first of those that show that packets overtake by rule.
  bool NoticeLate(const LossDetection::Outcome& outcome, Instant received);
  // Whether the time counts now: itself, or the least that has waited.
  bool Believe(Duration latest, Instant received);
  void DropPending();

  Duration mean_{0};  // of the last flight that has come
  Flight flight_;     // sent from begin_ to end_
  Flight next_;       // sent since
  Instant begin_, end_;
  Duration lateness_{0};  // the longest time of one that came late, since packets overtake
  Minimum minimum_;       // of the times that counted
  Minimum least_mean_;    // of flights: where they overtake by rule, without the queue of this flow's own
  Duration previous_{0};  // the time before
  Duration pending_ = Duration::max();  // the least that waits
  Instant pending_since_ = Instant::Infinite();
  bool unblamed_ = false;  // the newest packet that gave a time has overtaken none that is known to be late
  int overtakers_ = 0;     // since overtakers_since_
  Instant overtakers_since_;
  Instant reordered_until_;
  bool void_ = false;  // order has returned: the next time that counts is the first of this path
};

}  // namespace longhaul::transport
