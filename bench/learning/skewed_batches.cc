#include "bench/learning/skewed_batches.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/random.h"

namespace longhaul::bench {
namespace {

// What MakeBatch makes of every grey value.
std::array<float, 256> StandardisedGreys() {
  worker::Dataset greys;
  greys.labels = {0};
  greys.pixels.resize(worker::Dataset::kPixels);
  std::iota(greys.pixels.begin(), greys.pixels.begin() + 256, uint8_t{0});
  const worker::Batch batch = worker::MakeBatch(greys, 0, 1);
  std::array<float, 256> table;
  std::copy_n(batch.images.begin(), table.size(), table.begin());
  return table;
}

}  // namespace

SkewedBatches::SkewedBatches(const worker::Dataset& data, uint32_t workers, double skew, uint32_t batch,
                             uint64_t seed)
    : data_(data),
      workers_(workers),
      skew_(skew),
      batch_(batch),
      seed_(seed),
      by_label_(data.size()),
      standardised_(StandardisedGreys()) {
  LH_CHECK_OP(data.size(), >=, workers);
  std::iota(by_label_.begin(), by_label_.end(), 0u);
  std::stable_sort(by_label_.begin(), by_label_.end(),
                   [&data](uint32_t a, uint32_t b) { return data.labels[a] < data.labels[b]; });
}

void SkewedBatches::Draw(uint32_t rank, uint64_t round, worker::Batch& out) const {
  LH_CHECK_OP(rank, <, workers_);
  Random random = Random(seed_).Fork(uint64_t{rank} << 32 | round);
  const uint64_t first = data_.size() * rank / workers_;
  const uint64_t own = data_.size() * (rank + 1) / workers_ - first;
  out.images.resize(batch_ * worker::Dataset::kPixels);
  out.labels.resize(batch_);
  for (uint32_t i = 0; i < batch_; ++i) {
    const bool from_own = random.Chance(skew_);
    const uint32_t image = by_label_[from_own ? first + random.Below(own) : random.Below(data_.size())];
    const std::span<const uint8_t> pixels = data_.image(image);
    float* row = out.images.data() + i * worker::Dataset::kPixels;
    for (size_t p = 0; p < pixels.size(); ++p) row[p] = standardised_[pixels[p]];
    out.labels[i] = data_.labels[image];
  }
}

}  // namespace longhaul::bench
