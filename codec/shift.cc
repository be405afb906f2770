#include "codec/shift.h"

#include <Eigen/Core>
#include <algorithm>

#include "base/check.h"

namespace longhaul::codec {
namespace {

using Vector = Eigen::Map<Eigen::ArrayXf>;
using ConstVector = Eigen::Map<const Eigen::ArrayXf>;

Vector Of(std::span<float> values) { return {values.data(), static_cast<Eigen::Index>(values.size())}; }
ConstVector Of(std::span<const float> values) {
  return {values.data(), static_cast<Eigen::Index>(values.size())};
}

}  // namespace

ShiftMemory::ShiftMemory(const ChunkGeometry& geometry, float alpha)
    : SenderMemory(geometry), alpha_(alpha), shift_(geometry.count, 0.0f), prepared_(geometry.count) {
  LH_CHECK(alpha > 0 && alpha <= 1);
}

std::span<const float> ShiftMemory::Combine(std::span<const float> gradient) {
  outdated_ = false;
  Of(std::span<float>(prepared_)) = Of(gradient) - Of(std::span<const float>(shift_));
  return prepared_;
}

void ShiftMemory::Deliver(uint32_t chunk, std::span<const float> sent) {
  if (outdated_) return;
  Of(geometry().Elements(std::span<float>(shift_), chunk)) += alpha_ * Of(sent);
}

void ShiftMemory::BeginEpoch() {
  std::fill(shift_.begin(), shift_.end(), 0.0f);
  outdated_ = under_way();
}

ShiftFiller::ShiftFiller(const ChunkGeometry& geometry, float alpha)
    : geometry_(geometry), alpha_(alpha), shift_sum_(geometry.count, 0.0f) {
  LH_CHECK(alpha > 0 && alpha <= 1);
}

void ShiftFiller::Mean(uint32_t chunk, const ChunkTally& tally, std::span<const float> sum,
                       std::span<float> mean) {
  LH_CHECK_OP(sum.size(), ==, mean.size());
  const std::span<float> shift = geometry_.Elements(std::span<float>(shift_sum_), chunk);
  // Before the first epoch there is no expectation either: all that counts is who is awaited.
  const double weight = total_weight_ > 0 ? total_weight_ : tally.total();
  if (weight > 0) {
    Of(mean) = (Of(std::span<const float>(shift)) + Of(sum)) * static_cast<float>(1.0 / weight);
  } else {
    Of(mean).setZero();
  }
  Of(shift) += alpha_ * Of(sum);
}

void ShiftFiller::BeginEpoch(double total_weight) {
  total_weight_ = total_weight;
  std::fill(shift_sum_.begin(), shift_sum_.end(), 0.0f);
}

}  // namespace longhaul::codec
