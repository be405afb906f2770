#include "codec/bubble_fill.h"

#include <Eigen/Core>
#include <string>

#include "base/check.h"

namespace longhaul::codec {
namespace {

using Vector = Eigen::Map<Eigen::ArrayXf>;
using ConstVector = Eigen::Map<const Eigen::ArrayXf>;

}  // namespace

std::string_view FillPolicyName(FillPolicy policy) {
  switch (policy) {
    case FillPolicy::kZero:
      return "zero";
    case FillPolicy::kCount:
      return "count";
    case FillPolicy::kStale:
      return "stale";
    case FillPolicy::kResidual:
      return "residual";
  }
  return "unknown";
}

Result<FillPolicy> ParseFillPolicy(std::string_view name) {
  for (const FillPolicy p :
       {FillPolicy::kZero, FillPolicy::kCount, FillPolicy::kStale, FillPolicy::kResidual}) {
    if (name == FillPolicyName(p)) return p;
  }
  std::string message = "fill policy \"" + std::string(name) + "\"";
  message += name == "ipw" || name == "shift" ? " is not available yet" : " is unknown";
  return Status(StatusCode::kInvalidArgument, message + "; there are zero, count, stale and residual");
}

bool WorkerRepays(FillPolicy policy) { return policy == FillPolicy::kResidual; }

void FillMean(FillPolicy policy, const ChunkTally& tally, std::span<const float> sum,
              std::span<const float> previous, std::span<float> mean) {
  LH_CHECK_OP(sum.size(), ==, mean.size());
  const auto size = static_cast<Eigen::Index>(mean.size());
  const ConstVector in(sum.data(), size);
  Vector out(mean.data(), size);
  // kCount leaves the filled ones out of the divisor; the others keep them in it, with a value of zero or
  // stale.
  const bool counts = policy == FillPolicy::kCount;
  const double weight = tally.arrived + tally.tolerated + (counts ? 0.0 : tally.filled);
  if (!(weight > 0)) {
    out.setZero();
    return;
  }
  const auto scale = static_cast<float>(1.0 / weight);
  if (policy == FillPolicy::kStale && tally.filled > 0 && !previous.empty()) {
    LH_CHECK_OP(previous.size(), ==, mean.size());
    const auto stale = static_cast<float>(tally.filled / weight) * kStaleDecay;
    out = in * scale + ConstVector(previous.data(), size) * stale;
  } else {
    out = in * scale;
  }
}

}  // namespace longhaul::codec
