#include "codec/residual.h"

#include <Eigen/Core>
#include <algorithm>

#include "base/check.h"

namespace longhaul::codec {

Residual::Residual(const ChunkGeometry& geometry) : geometry_(geometry), values_(geometry.count, 0.0f) {}

std::span<const float> Residual::Combine(std::span<const float> gradient) {
  LH_CHECK_OP(gradient.size(), ==, values_.size());
  LH_CHECK(!unsettled_);
  unsettled_ = true;
  const auto size = static_cast<Eigen::Index>(values_.size());
  Eigen::Map<Eigen::ArrayXf>(values_.data(), size) += Eigen::Map<const Eigen::ArrayXf>(gradient.data(), size);
  return values_;
}

void Residual::Settle(const std::function<bool(uint32_t chunk)>& lost) {
  LH_CHECK(unsettled_);
  unsettled_ = false;
  for (uint32_t chunk = 0; chunk < geometry_.chunks(); ++chunk) {
    if (lost(chunk)) continue;
    const std::span<float> delivered = geometry_.Elements(std::span<float>(values_), chunk);
    std::fill(delivered.begin(), delivered.end(), 0.0f);
  }
}

}  // namespace longhaul::codec
