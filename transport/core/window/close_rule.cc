#include "transport/core/window/close_rule.h"

#include <algorithm>

#include "base/inject.h"
#include "base/reached.h"

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
  if (now >= soft || LH_INJECT("window-closes-early")) {
    LH_REACHED("a window closes at the soft deadline");
    return CloseAs(wire::CloseReason::kSoft);
  }
  wait.check_again = std::min(wait.check_again, soft);
  return wait;
}

CloseDecision WithoutHigh(const CloseRuleInput& input, Instant now) {
  const Duration answer = std::max(input.smoothed_rtt, kMinCloseGrace);
  CloseDecision wait;
  if (now < input.hard) {
    wait.nack = LH_INJECT("missing-chunks-asked-for-early");
    wait.check_again = input.hard;
  } else if (input.nacked.IsInfinite()) {
    LH_REACHED("the hard deadline asks first");
    wait.nack = true;
    wait.check_again = now + answer;
  } else if (now < input.nacked + answer) {
    wait.check_again = input.nacked + answer;
  } else {
    LH_REACHED("a window closes at the hard deadline");
    return CloseAs(wire::CloseReason::kHard);
  }
  return wait;
}

}  // namespace

CloseDecision EvaluateClose(const IncomingWindow& window, const CloseRuleInput& input, Instant now) {
  if (window.complete) return CloseAs(wire::CloseReason::kComplete);
  return window.high_complete ? WithHigh(window, input, now) : WithoutHigh(input, now);
}

void WindowCloser::Observe(const IncomingWindow& window, Duration smoothed_rtt, Instant now) {
  window_ = window;
  smoothed_rtt_ = smoothed_rtt;
  const WindowRxStats& rx = window.stats;
  const uint32_t received = rx.high_received + rx.high_repaired + rx.low_received + rx.repairs_received;
  if (received != received_) last_chunk_ = now;
  received_ = received;
  if (window.sender_finished && finished_.IsInfinite()) finished_ = now;
}

void WindowCloser::FillIn(CloseRuleInput* input) const {
  input->smoothed_rtt = smoothed_rtt_;
  input->last_chunk = last_chunk_;
  input->finished = finished_;
  input->nacked = nacked_;
}

CloseDecision WindowCloser::Remember(const CloseDecision& decision, Instant now) {
  if (decision.nack) nacked_ = now;
  check_at_ = decision.check_again;
  return decision;
}

CloseDecision WindowCloser::Evaluate(CloseRuleInput input, Instant now) {
  FillIn(&input);
  return Remember(EvaluateClose(window_, input, now), now);
}

CloseDecision WindowCloser::EvaluateFinished(CloseRuleInput input, Instant now) {
  if (!window_.sender_finished) return Remember({}, now);
  if (window_.high_complete) return Evaluate(input, now);
  const Duration interval = std::max(smoothed_rtt_, kMinCloseGrace);
  CloseDecision decision;
  decision.nack = now >= (nacked() ? nacked_ + interval : finished_ + smoothed_rtt_);
  if (decision.nack) {
    decision.check_again = now + interval;
  } else {
    decision.check_again = nacked() ? nacked_ + interval : finished_ + smoothed_rtt_;
  }
  return Remember(decision, now);
}

}  // namespace longhaul::transport
