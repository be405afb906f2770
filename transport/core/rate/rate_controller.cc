#include "transport/core/rate/rate_controller.h"

#include <array>
#include <utility>

#include "base/check.h"
#include "transport/core/rate/bbr/bbr.h"
#include "transport/core/rate/cubic.h"
#include "transport/core/rate/longhaul_controller.h"

namespace longhaul::transport {
namespace {

constexpr std::array<std::pair<RateControl, std::string_view>, 3> kControls{{
    {RateControl::kLonghaul, "longhaul"},
    {RateControl::kBbr, "bbr"},
    {RateControl::kCubic, "cubic"},
}};

}  // namespace

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

std::string_view RateControlName(RateControl control) {
  for (const auto& [value, name] : kControls) {
    if (value == control) return name;
  }
  return "unknown";
}

std::optional<RateControl> ParseRateControl(std::string_view name) {
  for (const auto& [value, known] : kControls) {
    if (known == name) return value;
  }
  return std::nullopt;
}

std::unique_ptr<RateController> MakeRateController(const RateOptions& options, Random random) {
  if (options.control == RateControl::kBbr) return std::make_unique<Bbr>(options, random);
  if (options.control == RateControl::kCubic) return std::make_unique<Cubic>(options);
  return std::make_unique<LonghaulController>(options, random);
}

}  // namespace longhaul::transport
