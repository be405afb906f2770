#include "bench/load/thinned_samples.h"

#include "base/quantile.h"

namespace longhaul::load {

void ThinnedSamples::Add(double value) {
  if (count_++ % stride_ != 0) return;
  kept_.push_back(value);
  if (kept_.size() < kMaxKept) return;
  for (size_t i = 0; i < kMaxKept / 2; ++i) kept_[i] = kept_[2 * i];
  kept_.resize(kMaxKept / 2);
  stride_ *= 2;
}

double ThinnedSamples::Quantile(double q) const { return longhaul::Quantile(kept_, q); }

}  // namespace longhaul::load
