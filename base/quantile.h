// Quantiles of a sample by the nearest rank: always one of the values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace longhaul {

// The smallest value that at least `share` of the values do not exceed; 0 of none. share: 0..1, so that 0 is
// the least and 1 the greatest. Of 100 values, 0.99 is the second greatest.
inline double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto count = static_cast<double>(values.size());
  // Against 0.29 * 100 = 28.999999999999996 and its like.
  const double rank = std::ceil(share * count - 1e-9);
  const auto index = static_cast<size_t>(std::clamp(rank - 1, 0.0, count - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index), values.end());
  return values[index];
}

}  // namespace longhaul
