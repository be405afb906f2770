#include "worker/thinned_samples.h"

#include <algorithm>

namespace longhaul::worker {

void ThinnedSamples::Add(double value) {
  if (count_++ % stride_ != 0) return;
  kept_.push_back(value);
  if (kept_.size() < kMaxKept) return;
  for (size_t i = 0; i < kMaxKept / 2; ++i) kept_[i] = kept_[2 * i];
  kept_.resize(kMaxKept / 2);
  stride_ *= 2;
}

double ThinnedSamples::Quantile(double q) const {
  if (kept_.empty()) return 0;
  std::vector<double> values = kept_;
  const auto rank = static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rank), values.end());
  return values[rank];
}

}  // namespace longhaul::worker
