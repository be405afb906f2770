// Quantiles of a sample by the nearest rank: always one of the values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace longhaul {

// Index, in ascending order, of the smallest of `count` values that at least `share` of them do not exceed:
// 0 is the least, count - 1 the greatest. Of 100 values, 0.99 is the second greatest. 0 of none.
inline size_t QuantileIndex(size_t count, double share) {
  const auto n = static_cast<double>(count);
  // Against 0.29 * 100 = 28.999999999999996 and its like.
  const double rank = std::ceil(share * n - 1e-9);
  return count == 0 ? 0 : static_cast<size_t>(std::clamp(rank - 1, 0.0, n - 1));
}

// The value there; T() of none. share: 0..1.
template <typename T = double>
T Quantile(std::vector<T> values, double share) {
  if (values.empty()) return T();
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(QuantileIndex(values.size(), share));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace longhaul
