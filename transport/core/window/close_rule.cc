#include "transport/core/window/close_rule.h"

#include <algorithm>

namespace longhaul::transport {

Duration CloseGrace(Duration smoothed_rtt) { return std::max(smoothed_rtt / 4, kMinCloseGrace); }

namespace {

CloseDecision CloseAs(wire::CloseReason reason) {
  CloseDecision decision;
  decision.close = reason;
  return decision;
}

CloseDecision WithHigh(const IncomingWindow& window, const CloseRuleInput& input, Instant now) {
  const Duration grace = CloseGrace(input.smoothed_rtt);
  CloseDecision wait;
  if (input.energy_received >= input.energy_ratio) {
    const Instant quiet = input.last_chunk + grace;
    if (window.sender_finished || now >= quiet) return CloseAs(wire::CloseReason::kRatio);
    wait.check_again = quiet;
  }
  const Instant soft =
      std::min(input.soft, window.sender_finished ? input.finished + grace : Instant::Infinite());
  if (now >= soft) return CloseAs(wire::CloseReason::kSoft);
  wait.check_again = std::min(wait.check_again, soft);
  return wait;
}

CloseDecision WithoutHigh(const CloseRuleInput& input, Instant now) {
  const Duration answer = std::max(input.smoothed_rtt, kMinCloseGrace);
  CloseDecision wait;
  if (now < input.hard) {
    wait.check_again = input.hard;
  } else if (input.nacked.IsInfinite()) {
    wait.nack = true;
    wait.check_again = now + answer;
  } else if (now < input.nacked + answer) {
    wait.check_again = input.nacked + answer;
  } else {
    return CloseAs(wire::CloseReason::kHard);
  }
  return wait;
}

}  // namespace

CloseDecision EvaluateClose(const IncomingWindow& window, const CloseRuleInput& input, Instant now) {
  if (window.complete) return CloseAs(wire::CloseReason::kComplete);
  return window.high_complete ? WithHigh(window, input, now) : WithoutHigh(input, now);
}

}  // namespace longhaul::transport
