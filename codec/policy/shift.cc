#include "codec/policy/shift.h"

#include <Eigen/Core>
#include <algorithm>
#include <utility>

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
    : SenderMemory(geometry), alpha_(alpha), shift_(geometry.count), prepared_(geometry.count) {
  LH_CHECK(alpha > 0 && alpha <= 1);
}

SenderMemory::Memory ShiftMemory::Remembered(bool new_epoch) const {
  if (new_epoch || epoch_begins_) return {};
  return {.values = shift_.span(), .subtract = true};
}

std::span<const float> ShiftMemory::Prepared(std::span<const float>) {
  outdated_ = false;
  forgets_ = std::exchange(epoch_begins_, false);
  return prepared_.span();
}

void ShiftMemory::Combine(uint32_t chunk, std::span<const float> fresh) {
  const std::span<float> shift = geometry().Elements(shift_.span(), chunk);
  const std::span<float> prepared = geometry().Elements(prepared_.span(), chunk);
  if (forgets_ && Holds(chunk)) {
    std::ranges::fill(shift, 0.0f);
    SetHolds(chunk, false);
  }
  if (Holds(chunk)) {
    Of(prepared) = Of(fresh) - Of(std::span<const float>(shift));
  } else {
    std::ranges::copy(fresh, prepared.begin());
  }
}

void ShiftMemory::Deliver(uint32_t chunk, std::span<const float> sent) {
  if (outdated_) return;
  SetHolds(chunk, true);
  Of(geometry().Elements(shift_.span(), chunk)) += alpha_ * Of(sent);
}

void ShiftMemory::GiveUp() {
  for (uint32_t chunk = 0; forgets_ && chunk < geometry().chunks(); ++chunk) {
    if (unfinished(chunk)) epoch_begins_ = true;  // its c is not forgotten yet
  }
}

void ShiftMemory::BeginEpoch() {
  epoch_begins_ = true;
  outdated_ = under_way();
}

ShiftFiller::ShiftFiller(const ChunkGeometry& geometry, float alpha)
    : geometry_(geometry), alpha_(alpha), shift_sum_(geometry.count), epochs_(geometry.chunks()) {
  LH_CHECK(alpha > 0 && alpha <= 1);
}

void ShiftFiller::Mean(uint32_t chunk, const ChunkTally& tally, std::span<const float> sum,
                       std::span<float> mean) {
  LH_CHECK_OP(sum.size(), ==, mean.size());
  const std::span<float> shift = ShiftOf(chunk);
  // Before the first epoch there is no expectation either: all that counts is which members are awaited.
  const double weight = total_weight_ > 0 ? total_weight_ : tally.total();
  if (weight > 0) {
    Of(mean) = (Of(std::span<const float>(shift)) + Of(sum)) * static_cast<float>(1.0 / weight);
  } else {
    Of(mean).setZero();
  }
  Of(shift) += alpha_ * Of(sum);
}

std::span<float> ShiftFiller::ShiftOf(uint32_t chunk) {
  const std::span<float> shift = geometry_.Elements(shift_sum_.span(), chunk);
  if (std::exchange(epochs_[chunk], epoch_) != epoch_) std::ranges::fill(shift, 0.0f);
  return shift;
}

void ShiftFiller::BeginEpoch(double total_weight) {
  total_weight_ = total_weight;
  ++epoch_;
}

std::vector<float> ShiftFiller::shift_sum() const {
  std::vector<float> sum(geometry_.count, 0.0f);
  for (uint32_t chunk = 0; chunk < geometry_.chunks(); ++chunk) {
    if (epochs_[chunk] != epoch_) continue;
    std::ranges::copy(geometry_.Elements(shift_sum_.span(), chunk),
                      geometry_.Elements(std::span<float>(sum), chunk).begin());
  }
  return sum;
}

}  // namespace longhaul::codec
