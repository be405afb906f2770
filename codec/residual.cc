#include "codec/residual.h"

#include <Eigen/Core>
#include <algorithm>

#include "codec/finite.h"

namespace longhaul::codec {

std::span<const float> ResidualMemory::Combine(std::span<const float> gradient) {
  for (uint32_t chunk = 0; chunk < geometry().chunks(); ++chunk) {
    const std::span<const float> fresh = geometry().Elements(gradient, chunk);
    const std::span<float> owed = geometry().Elements(std::span<float>(owed_), chunk);
    const auto size = static_cast<Eigen::Index>(owed.size());
    Eigen::Map<Eigen::ArrayXf>(owed.data(), size) += Eigen::Map<const Eigen::ArrayXf>(fresh.data(), size);
    if (AllFinite(owed)) continue;
    std::ranges::copy(fresh, owed.begin());
    ++debts_dropped_;
  }
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
