// Quantiles of a stream of any length in bounded memory: keeps every 2^n-th value, evenly over the whole
// stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace longhaul::load {

class ThinnedSamples {
 public:
  static constexpr size_t kMaxKept = 16'384;

  void Add(double value);
  // Nearest rank of what was kept; 0 without samples. q in 0..1.
  double Quantile(double q) const;
  uint64_t count() const { return count_; }
  void Clear() { *this = ThinnedSamples(); }

 private:
  std::vector<double> kept_;
  uint64_t stride_ = 1;
  uint64_t count_ = 0;
};

}  // namespace longhaul::load
