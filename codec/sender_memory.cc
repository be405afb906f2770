#include "codec/sender_memory.h"

#include "base/check.h"
#include "codec/residual.h"
#include "codec/shift.h"

namespace longhaul::codec {
namespace {

// zero, count, stale, ipw: what is lost is lost.
class Forgetful final : public SenderMemory {
 public:
  using SenderMemory::SenderMemory;

 private:
  std::span<const float> Combine(std::span<const float> gradient) override { return gradient; }
  void Deliver(uint32_t, std::span<const float>) override {}
};

}  // namespace

std::span<const float> SenderMemory::Prepare(std::span<const float> gradient) {
  LH_CHECK_OP(gradient.size(), ==, geometry_.count);
  LH_CHECK(!under_way_);
  under_way_ = true;
  settled_.assign(geometry_.chunks(), false);
  return Combine(gradient);
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
}

std::unique_ptr<SenderMemory> MakeSenderMemory(const LossPolicySpec& spec, const ChunkGeometry& geometry) {
  switch (spec.policy) {
    case LossPolicy::kZero:
    case LossPolicy::kCount:
    case LossPolicy::kStale:
    case LossPolicy::kIpw:
      return std::make_unique<Forgetful>(geometry);
    case LossPolicy::kResidual:
      return std::make_unique<ResidualMemory>(geometry);
    case LossPolicy::kShift:
      return std::make_unique<ShiftMemory>(geometry, spec.shift_alpha);
  }
  LH_CHECK(false);
  return nullptr;
}

}  // namespace longhaul::codec
