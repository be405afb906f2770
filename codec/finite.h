// Whether numbers are numbers.
#pragma once

#include <Eigen/Core>
#include <span>

namespace longhaul::codec {

// No infinity and no NaN among them. One pass by vectors: both are NaN times zero.
inline bool AllFinite(std::span<const float> values) {
  const Eigen::Map<const Eigen::ArrayXf> in(values.data(), static_cast<Eigen::Index>(values.size()));
  return (0 * in).sum() == 0;
}

}  // namespace longhaul::codec
