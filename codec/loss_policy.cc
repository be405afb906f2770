#include "codec/loss_policy.h"

#include <string>

namespace longhaul::codec {

std::string_view LossPolicyName(LossPolicy policy) {
  switch (policy) {
    case LossPolicy::kZero:
      return "zero";
    case LossPolicy::kCount:
      return "count";
    case LossPolicy::kStale:
      return "stale";
    case LossPolicy::kIpw:
      return "ipw";
    case LossPolicy::kResidual:
      return "residual";
    case LossPolicy::kShift:
      return "shift";
  }
  return "unknown";
}

Result<LossPolicy> ParseLossPolicy(std::string_view name) {
  for (const LossPolicy policy : kLossPolicies) {
    if (name == LossPolicyName(policy)) return policy;
  }
  return Status(StatusCode::kInvalidArgument,
                "loss policy \"" + std::string(name) +
                    "\" is unknown; there are zero, count, stale, ipw, residual and shift");
}

}  // namespace longhaul::codec
