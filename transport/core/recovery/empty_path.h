// Whether the path has become longer, from packets that left when nothing else was in flight.
//
// Such a packet meets no queue of this flow: where one after another takes clearly longer than the minimum,
// the minimum is another path's, and what would be taken for a standing queue is the path itself. The draft
// notices after MinRTTFilterLen (10 s); an application that sends in rounds pauses several times a second.
//
// Not thread-safe. A sender's rate controller has one for round trips, a receiver (QueueDelay) one for the
// way here.
#pragma once

#include <algorithm>

#include "longhaul/units.h"

namespace longhaul::transport {

class EmptyPath {
 public:
  // Pauses in a row: others' bursts are there now and then, the path always.
  static constexpr int kPauses = 3;

  // A packet leaves with nothing in flight.
  void OnFirstPacket() { waits_ = true; }
  // rtt: of a packet before which not more than one burst was in flight. longer: it is clearly above the
  // minimum. The round trip of the path that has become longer; zero: it has not, as far as is known.
  Duration OnSample(Duration rtt, bool longer) {
    if (!waits_) return Duration(0);
    waits_ = false;
    pauses_ = longer ? pauses_ + 1 : 0;
    least_ = pauses_ <= 1 ? rtt : std::min(least_, rtt);
    if (pauses_ < kPauses) return Duration(0);
    pauses_ = 0;
    return least_;
  }

 private:
  bool waits_ = false;
  int pauses_ = 0;
  Duration least_{0};
};

}  // namespace longhaul::transport
