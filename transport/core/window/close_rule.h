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
// The deadlines are the caller's; the server learns them from earlier rounds (server/tensor/stragglers.h).
//
// EvaluateClose is a pure function; a WindowCloser is what one window needs to remember between two calls.
#pragma once

#include <algorithm>
#include <optional>

#include "base/instant.h"
#include "longhaul/units.h"
#include "transport/core/window/window_types.h"

namespace longhaul::transport {

// Below this a receiver's own scheduling jitter would be taken for the end of a window.
inline constexpr Duration kMinCloseGrace = std::chrono::milliseconds(5);

// What the rule needs to know besides the window's own counts.
struct CloseRuleInput {
  double energy_ratio = 1;     // share of the low class's energy that is enough, 0..1
  double energy_received = 0;  // share of it that is here, 0..1
  Duration smoothed_rtt{0};
  Instant last_chunk = Instant();          // when a chunk of the window (or its OPEN) came last
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

// Applies the rule to one incoming window from its OPEN to its close: Observe every event::WindowState, then
// and at check_at() Evaluate, and follow the decision at once. Not thread-safe.
class WindowCloser {
 public:
  WindowCloser() = default;
  WindowCloser(uint32_t high_count, uint32_t low_count, Instant opened)
      : window_(IncomingWindow::Opened(high_count, low_count)), last_chunk_(opened) {}

  void Observe(const IncomingWindow& window, Duration smoothed_rtt, Instant now);
  // input: smoothed_rtt, last_chunk, finished and nacked are filled in here.
  CloseDecision Evaluate(CloseRuleInput input, Instant now);
  // For a window that must not close before its sender has finished and has no hard deadline: missing high
  // chunks are asked for a round trip after the sender finished, and then once a round trip. By the
  // receiver's clock, since the sender's probes back off and no later packet shows the loss.
  CloseDecision EvaluateFinished(CloseRuleInput input, Instant now);

  // As of the latest Observe.
  const IncomingWindow& window() const { return window_; }
  Duration smoothed_rtt() const { return smoothed_rtt_; }
  // When time alone may change the decision.
  Instant check_at() const { return check_at_; }
  // A deadline is earlier than at the latest decision.
  void CheckBy(Instant deadline) { check_at_ = std::min(check_at_, deadline); }
  // Missing chunks were asked for.
  bool nacked() const { return !nacked_.IsInfinite(); }

 private:
  CloseDecision Remember(const CloseDecision& decision, Instant now);
  void FillIn(CloseRuleInput* input) const;

  IncomingWindow window_;
  Duration smoothed_rtt_{0};
  uint32_t received_ = 0;  // everything that came, repair symbols too, as of last_chunk_
  Instant last_chunk_;
  Instant finished_ = Instant::Infinite();
  Instant nacked_ = Instant::Infinite();
  Instant check_at_ = Instant::Infinite();
};

}  // namespace longhaul::transport
