#include "transport/core/window/close_rule.h"

#include <algorithm>

namespace longhaul::transport {

Duration CloseGrace(Duration smoothed_rtt) { return std::max(smoothed_rtt / 4, kMinCloseGrace); }

CloseDecision EvaluateClose(const IncomingWindow& window, const CloseRuleInput& input, Instant now) {
  CloseDecision decision;
  if (window.complete) {
    decision.close = wire::CloseReason::kComplete;
    return decision;
  }
  if (!window.high_complete) return decision;  // only arrivals can change that
  const Duration grace = CloseGrace(input.smoothed_rtt);
  const Instant soft = input.finished + grace;
  if (window.low_ratio >= input.close_ratio) {
    const Instant quiet = input.last_chunk + grace;
    if (window.sender_finished || now >= quiet) {
      decision.close = wire::CloseReason::kRatio;
    } else {
      decision.check_again = quiet;
    }
    return decision;
  }
  if (window.sender_finished && now >= soft) {
    decision.close = wire::CloseReason::kSoft;
  } else if (window.sender_finished) {
    decision.check_again = soft;
  }
  return decision;
}

}  // namespace longhaul::transport
