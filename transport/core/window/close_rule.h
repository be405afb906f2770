// When the receiver of a window stops waiting: the rule in its simple form.
//
//   everything is here                                              -> close as kComplete
//   high class done, low ratio >= close_ratio, and the sender is
//     finished or nothing of the window came for one grace time     -> close as kRatio
//   high class done and the sender is finished for one grace time   -> close as kSoft
//   otherwise                                                       -> wait
//
// The high class is a hard requirement: a window never closes by this rule without it. Grace gives packets
// that were reordered, or FEC repair in flight, time to arrive: a quarter of the round trip, at least
// kMinGrace.
//
// A pure function: time is an argument, nothing is remembered.
#pragma once

#include <optional>

#include "base/instant.h"
#include "longhaul/units.h"
#include "transport/core/connection.h"

namespace longhaul::transport {

// Below this a receiver's own scheduling jitter would be taken for the end of a window.
inline constexpr Duration kMinCloseGrace = std::chrono::milliseconds(5);

// What the rule needs to know besides the window's own counts.
struct CloseRuleInput {
  double close_ratio = 1;  // share of the low class that is enough, 0..1
  Duration smoothed_rtt{0};
  Instant last_chunk;                      // when a chunk of the window (or its OPEN) came last
  Instant finished = Instant::Infinite();  // when the sender was first seen finished
};

struct CloseDecision {
  std::optional<wire::CloseReason> close;     // set: close now, for this reason
  Instant check_again = Instant::Infinite();  // else: when time alone may change the answer
};

Duration CloseGrace(Duration smoothed_rtt);

CloseDecision EvaluateClose(const IncomingWindow& window, const CloseRuleInput& input, Instant now);

}  // namespace longhaul::transport
