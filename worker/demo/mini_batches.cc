#include "worker/demo/mini_batches.h"

#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace longhaul::worker {
namespace {

// Of the 60,000 training images, pixels scaled to 0..1.
constexpr float kPixelMean = 0.2860f;
constexpr float kPixelDeviation = 0.3530f;

void AppendImage(const Dataset& data, size_t index, Batch& batch) {
  for (uint8_t pixel : data.image(index)) {
    batch.images.push_back((static_cast<float>(pixel) / 255.0f - kPixelMean) / kPixelDeviation);
  }
  batch.labels.push_back(data.labels[index]);
}

}  // namespace

Batch MakeBatch(const Dataset& data, size_t first, size_t count) {
  LH_CHECK_OP(first + count, <=, data.size());
  Batch batch;
  batch.images.reserve(count * Dataset::kPixels);
  for (size_t i = first; i < first + count; ++i) AppendImage(data, i, batch);
  return batch;
}

MiniBatches::MiniBatches(const Dataset& shard, size_t batch_size, uint32_t rank, uint64_t seed)
    : shard_(shard), batch_size_(batch_size), rank_(rank), seed_(seed) {
  LH_CHECK(shard.size() > 0 && batch_size > 0);
}

void MiniBatches::ShuffleFor(uint64_t epoch) {
  if (!order_.empty() && epoch == epoch_) return;
  epoch_ = epoch;
  order_.resize(shard_.size());
  std::iota(order_.begin(), order_.end(), 0u);
  Random random = Random(seed_).Fork(uint64_t{rank_} << 32 | (epoch & 0xffffffff));
  for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.Below(i)]);
}

Batch MiniBatches::ForRound(uint64_t round) {
  Batch batch;
  batch.images.reserve(batch_size_ * Dataset::kPixels);
  for (size_t i = 0; i < batch_size_; ++i) {
    const uint64_t position = round * batch_size_ + i;
    ShuffleFor(position / shard_.size());
    AppendImage(shard_, order_[position % shard_.size()], batch);
  }
  return batch;
}

}  // namespace longhaul::worker
