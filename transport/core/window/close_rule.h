// When the receiver of a window stops waiting.
//
//   everything is here                                                 -> close as kComplete
//   high class done, energy received >= energy_ratio, and the sender is
//     finished or nothing of the window came for one grace time        -> close as kRatio
//   high class done, and the sender is finished for one grace time,
//     or the soft deadline has passed                                  -> close as kSoft
//   high class not done, and the hard deadline has passed              -> ask for what is missing (once)
//     asked a round trip ago (kMinCloseGrace at least), still not      -> close as kHard
//   otherwise                                                          -> wait
//
// The high class is a hard requirement of every close but the last. Energy, not a number of packets, says how
// much of the low class is enough: what is missing then matters little. Grace gives packets that were
// reordered, or FEC repair in flight, time to arrive: a quarter of the round trip, at least kMinCloseGrace.
// The deadlines are the caller's; the server learns them from earlier rounds (server/close_times.h).
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
  double energy_ratio = 1;     // share of the low class's energy that is enough, 0..1
  double energy_received = 0;  // share of it that is here, 0..1
  Duration smoothed_rtt{0};
  Instant last_chunk;                      // when a chunk of the window (or its OPEN) came last
  Instant finished = Instant::Infinite();  // when the sender was first seen finished
  Instant soft = Instant::Infinite();      // from then on the high class is enough
  Instant hard = Instant::Infinite();      // from then on the round may go on without the window
  Instant nacked = Instant::Infinite();    // when the decision to nack was followed
};

struct CloseDecision {
  std::optional<wire::CloseReason> close;  // set: close now, for this reason
  bool nack = false;  // ask now for what is missing of the high class (Connection::RequestMissing)
  Instant check_again = Instant::Infinite();  // else: when time alone may change the answer
};

Duration CloseGrace(Duration smoothed_rtt);

CloseDecision EvaluateClose(const IncomingWindow& window, const CloseRuleInput& input, Instant now);

}  // namespace longhaul::transport
