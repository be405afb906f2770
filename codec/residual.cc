#include "codec/residual.h"

#include <Eigen/Core>
#include <algorithm>

#include "base/check.h"

namespace longhaul::codec {

std::span<const float> ResidualMemory::Combine(std::span<const float> gradient) {
  const auto size = static_cast<Eigen::Index>(owed_.size());
  Eigen::Map<Eigen::ArrayXf>(owed_.data(), size) += Eigen::Map<const Eigen::ArrayXf>(gradient.data(), size);
  return owed_;
}

void ResidualMemory::Deliver(uint32_t chunk, std::span<const float> sent) {
  const std::span<float> owed = geometry().Elements(std::span<float>(owed_), chunk);
  if (sent.data() == owed.data()) {  // it travelled as it is
    std::fill(owed.begin(), owed.end(), 0.0f);
    return;
  }
  const auto size = static_cast<Eigen::Index>(owed.size());
  Eigen::Map<Eigen::ArrayXf>(owed.data(), size) -= Eigen::Map<const Eigen::ArrayXf>(sent.data(), size);
}

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
