// Whether a request that failed is sent again, and when. The reasons are the API's conventions
// (sig-architecture/api-conventions.md, "HTTP status codes"):
//
//   - 429, and 503 with Retry-After: the server has not done it and names a time. Any verb, not sooner.
//   - what never reached the server (refused, no such name): any verb, with back-off.
//   - any other 5xx, a cut or late answer: the server may have done it. Only verbs that may arrive twice.
//   - anything else says the same when asked again.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

#include "longhaul/units.h"
#include "operator/api/core/api_request.h"
#include "operator/api/core/api_result.h"

namespace longhaul::kube::api {

struct RetryBounds {
  uint32_t attempts = 5;
  // Doubles with each attempt: 0.25 + 0.5 + 1 + 2 s, so five attempts bridge the 3 s that an API server
  // behind a load balancer takes to be left out.
  Duration first = std::chrono::milliseconds(250);
  Duration longest = std::chrono::seconds(10);
};

// first * 2^(attempt - 1), at most `longest`; of that the half is fixed and the rest is drawn by chance
// (0..1), so that clients that failed together do not come back together.
inline Duration BackOff(Duration first, Duration longest, uint32_t attempt, double chance) {
  Duration wait = std::min(first, longest);
  for (uint32_t i = 1; i < attempt && wait < longest; ++i) wait = std::min(wait * 2, longest);
  return wait / 2 + Duration(Saturated(static_cast<double>(wait.count()) / 2 * std::clamp(chance, 0.0, 1.0)));
}

// How long to wait until the next attempt; nullopt: the result is final. attempt: how many there were.
inline std::optional<Duration> NextAttempt(const ApiResult& result, Verb verb, uint32_t attempt,
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

}  // namespace longhaul::kube::api
