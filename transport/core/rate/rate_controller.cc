#include "transport/core/rate/rate_controller.h"

#include "base/check.h"
#include "transport/core/rate/bbr/bbr.h"
#include "transport/core/rate/cubic.h"

namespace longhaul::transport {

std::string_view RateLimiterName(RateLimiter limiter) {
  switch (limiter) {
    case RateLimiter::kApp:
      return "app";
    case RateLimiter::kPacing:
      return "pacing";
    case RateLimiter::kCwnd:
      return "cwnd";
    case RateLimiter::kReceiveWindow:
      return "receive_window";
    case RateLimiter::kGrant:
      return "grant";
    case RateLimiter::kCap:
      return "cap";
  }
  return "unknown";
}

std::unique_ptr<RateController> MakeRateController(const RateOptions& options, Random random) {
  if (options.control == RateControl::kCubic) return std::make_unique<Cubic>(options);
  return std::make_unique<Bbr>(options, random);
}

}  // namespace longhaul::transport
