#include "codec/policy/sender_memory.h"

#include <Eigen/Core>
#include <algorithm>
#include <bit>

#include "base/check.h"
#include "codec/chunk/quantize.h"
#include "codec/policy/shift.h"

namespace longhaul::codec {
namespace {

// zero, count, stale, ipw: what is lost is lost.
class Forgetful final : public SenderMemory {
 public:
  using SenderMemory::SenderMemory;

 private:
  std::span<const float> Prepared(std::span<const float> gradient) override { return gradient; }
  void Combine(uint32_t, std::span<const float>) override {}
  void Deliver(uint32_t, std::span<const float>) override {}
};

}  // namespace

std::span<const float> SenderMemory::Prepare(std::span<const float> gradient) {
  const std::span<const float> prepared = Begin(gradient);
  for (uint32_t chunk = 0; chunk < geometry_.chunks(); ++chunk) CombineChunk(chunk);
  return prepared;
}

std::span<const float> SenderMemory::Begin(std::span<const float> gradient) {
  LH_CHECK_OP(gradient.size(), ==, geometry_.count);
  LH_CHECK(!under_way_);
  under_way_ = true;
  settled_.assign(geometry_.chunks(), false);
  gradient_ = gradient;
  return Prepared(gradient);
}

void SenderMemory::SettleChunk(uint32_t chunk, bool taken, std::span<const float> sent) {
  LH_CHECK(under_way_);
  LH_CHECK_OP(chunk, <, settled_.size());
  LH_CHECK(!settled_[chunk]);
  settled_[chunk] = true;
  if (!taken) return;
  LH_CHECK_OP(sent.size(), ==, geometry_.Length(chunk));
  Deliver(chunk, sent);
}

void SenderMemory::Finish() {
  LH_CHECK(under_way_);
  under_way_ = false;
  gradient_ = {};
}

std::unique_ptr<SenderMemory> MakeSenderMemory(const JobSpec& spec, const ChunkGeometry& geometry,
                                               float largest) {
  switch (spec.policy) {
    case LossPolicy::kZero:
    case LossPolicy::kCount:
    case LossPolicy::kStale:
    case LossPolicy::kIpw:
      return std::make_unique<Forgetful>(geometry);
    case LossPolicy::kResidual:
      return std::make_unique<ResidualMemory>(geometry, largest);
    case LossPolicy::kShift:
      return std::make_unique<ShiftMemory>(geometry, static_cast<float>(spec.shift_alpha));
  }
  LH_CHECK(false);
  return nullptr;
}

void ResidualMemory::Owe(uint64_t first, std::span<const float> values) {
  LH_CHECK(!under_way());
  const std::span<float> owed = owed_.span().subspan(first, values.size());
  for (size_t i = 0; i < owed.size(); ++i) owed[i] += values[i];
}

void ResidualMemory::Combine(uint32_t chunk, std::span<const float> fresh) {
  const std::span<float> owed = geometry().Elements(owed_.span(), chunk);
  const auto size = static_cast<Eigen::Index>(owed.size());
  Eigen::Map<Eigen::ArrayXf>(owed.data(), size) += Eigen::Map<const Eigen::ArrayXf>(fresh.data(), size);
  if (BestKernels().max_magnitude(owed.data(), owed.size()) <= std::bit_cast<uint32_t>(largest_)) return;
  std::ranges::copy(fresh, owed.begin());
  ++debts_dropped_;
}

void ResidualMemory::Deliver(uint32_t chunk, std::span<const float> sent) {
  const std::span<float> owed = geometry().Elements(owed_.span(), chunk);
  if (sent.data() == owed.data()) {  // it travelled as it is
    std::fill(owed.begin(), owed.end(), 0.0f);
    return;
  }
  const auto size = static_cast<Eigen::Index>(owed.size());
  Eigen::Map<Eigen::ArrayXf>(owed.data(), size) -= Eigen::Map<const Eigen::ArrayXf>(sent.data(), size);
}

}  // namespace longhaul::codec
