#include "operator/api/core/retry_policy.h"

#include <algorithm>

namespace longhaul::kubernetes {

Duration BackOff(Duration first, Duration longest, uint32_t attempt, double chance) {
  Duration wait = std::min(first, longest);
  for (uint32_t i = 1; i < attempt && wait < longest; ++i) wait = std::min(wait * 2, longest);
  return wait / 2 + Duration(Saturated(static_cast<double>(wait.count()) / 2 * std::clamp(chance, 0.0, 1.0)));
}

std::optional<Duration> NextAttempt(const ApiResult& result, Verb verb, uint32_t attempt,
                                    const RetryBounds& bounds, double chance) {
  if (attempt >= bounds.attempts) return std::nullopt;
  const Duration back_off = BackOff(bounds.first, bounds.longest, attempt, chance);
  switch (result.code) {
    case ApiCode::kThrottled:
      // Never sooner than asked for.
      return result.retry_after + back_off;
    case ApiCode::kServerError:
    case ApiCode::kUnreachable:
    case ApiCode::kTimedOut:
      if (!result.not_sent && !IsRepeatable(verb)) return std::nullopt;
      return std::max(back_off, result.retry_after);
    default:
      return std::nullopt;
  }
}

}  // namespace longhaul::kubernetes
