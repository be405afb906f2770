#include "codec/residual.h"

#include <Eigen/Core>
#include <algorithm>

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

}  // namespace longhaul::codec
