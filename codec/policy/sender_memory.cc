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
  settled_chunks_ = 0;
  combined_.assign(geometry_.chunks(), false);
  gradient_ = gradient;
  return Prepared(gradient);
}

void SenderMemory::CombineChunk(uint32_t chunk) {
  LH_CHECK(under_way_);
  if (combined_[chunk]) return;
  combined_[chunk] = true;
  Combine(chunk, geometry_.Elements(gradient_, chunk));
}

const float* SenderMemory::Kept(const Memory& memory, uint32_t chunk) const {
  return memory.values.empty() || !holds_[chunk] ? nullptr : memory.values.data() + geometry_.First(chunk);
}

Survey SenderMemory::SurveyChunk(uint32_t chunk, std::span<const float> fresh, bool new_epoch,
                                 uint32_t least) const {
  const Memory memory = Remembered(new_epoch);
  SurveyOf of{fresh.data(), Kept(memory, chunk), memory.subtract, least};
  const Survey survey = BestKernels().survey(of, fresh.size());
  if (of.kept == nullptr || survey.largest <= memory.largest) return survey;
  of.kept = nullptr;
  return BestKernels().survey(of, fresh.size());
}

void SenderMemory::Preview(uint32_t chunk, std::span<const float> fresh, bool new_epoch,
                           std::span<float> out) const {
  LH_CHECK_OP(fresh.size(), ==, out.size());
  const Memory memory = Remembered(new_epoch);
  std::ranges::copy(fresh, out.begin());
  const float* kept = Kept(memory, chunk);
  if (kept == nullptr) return;
  for (size_t i = 0; i < out.size(); ++i) out[i] = memory.subtract ? fresh[i] - kept[i] : fresh[i] + kept[i];
  if (BestKernels().max_magnitude(out.data(), out.size()) > memory.largest)
    std::ranges::copy(fresh, out.begin());
}

float SenderMemory::PreviewOne(uint64_t element, float fresh, bool new_epoch) const {
  const Memory memory = Remembered(new_epoch);
  const auto chunk = static_cast<uint32_t>(element / geometry_.chunk_elements);
  if (Kept(memory, chunk) == nullptr) return fresh;
  return memory.subtract ? fresh - memory.values[element] : fresh + memory.values[element];
}

void SenderMemory::SettleChunk(uint32_t chunk, bool taken, std::span<const float> sent) {
  LH_CHECK(under_way_);
  LH_CHECK_OP(chunk, <, settled_.size());
  LH_CHECK(!settled_[chunk]);
  settled_[chunk] = true;
  ++settled_chunks_;
  if (!taken) return CombineChunk(chunk);
  LH_CHECK_OP(sent.size(), ==, geometry_.Length(chunk));
  Deliver(chunk, sent);
}

void SenderMemory::Finish() {
  LH_CHECK(under_way_);
  if (settled_chunks_ < geometry_.chunks()) GiveUp();
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
  const uint64_t end = first + values.size();
  for (uint64_t at = first; at < end; at += geometry().chunk_elements) {
    SetHolds(static_cast<uint32_t>(at / geometry().chunk_elements), true);
  }
  if (end > first) SetHolds(static_cast<uint32_t>((end - 1) / geometry().chunk_elements), true);
}

SenderMemory::Memory ResidualMemory::Remembered(bool) const {
  return {.values = owed_.span(), .largest = std::bit_cast<uint32_t>(largest_)};
}

void ResidualMemory::GiveUp() {
  for (uint32_t chunk = 0; chunk < geometry().chunks(); ++chunk) {
    if (unfinished(chunk)) CombineChunk(chunk);
  }
}

void ResidualMemory::Combine(uint32_t chunk, std::span<const float> fresh) {
  const std::span<float> owed = geometry().Elements(owed_.span(), chunk);
  const auto size = static_cast<Eigen::Index>(owed.size());
  if (!Holds(chunk)) {  // its memory is not read
    SetHolds(chunk, true);
    Eigen::Map<Eigen::ArrayXf>(owed.data(), size) =
        0.0f + Eigen::Map<const Eigen::ArrayXf>(fresh.data(), size);
    return;
  }
  Eigen::Map<Eigen::ArrayXf>(owed.data(), size) += Eigen::Map<const Eigen::ArrayXf>(fresh.data(), size);
  if (BestKernels().max_magnitude(owed.data(), owed.size()) <= std::bit_cast<uint32_t>(largest_)) return;
  std::ranges::copy(fresh, owed.begin());
  ++debts_dropped_;
}

void ResidualMemory::Deliver(uint32_t chunk, std::span<const float> sent) {
  if (!combined(chunk)) return;  // the gradient travelled as it is
  const std::span<float> owed = geometry().Elements(owed_.span(), chunk);
  if (sent.data() == owed.data()) {  // it travelled as it is
    SetHolds(chunk, false);
    std::fill(owed.begin(), owed.end(), 0.0f);
    return;
  }
  const auto size = static_cast<Eigen::Index>(owed.size());
  Eigen::Map<Eigen::ArrayXf>(owed.data(), size) -= Eigen::Map<const Eigen::ArrayXf>(sent.data(), size);
}

}  // namespace longhaul::codec
