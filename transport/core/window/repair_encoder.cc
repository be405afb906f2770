#include "transport/core/window/repair_encoder.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace longhaul::transport {

RepairEncoder::RepairEncoder(codec::ErasureCoder* coder, uint8_t k, uint16_t symbol_bytes, uint32_t blocks)
    : coder_(coder), k_(k), symbol_bytes_(symbol_bytes), blocks_(blocks) {
  LH_CHECK(coder_ != nullptr && coder_->Supports(k_));
  LH_CHECK(symbol_bytes_ > 0 && symbol_bytes_ % 16 == 0);
  LH_CHECK(blocks_ > 0);
}

bool RepairEncoder::Holds(uint32_t block, uint8_t count) const {
  return std::ranges::any_of(held_, [&](const Held& h) { return h.block == block && h.count >= count; });
}

void RepairEncoder::Start() {
  sources_ = 0;
  scratch_.resize(k_ * symbol_bytes_);
}

void RepairEncoder::AddSource(ByteSpan header, ByteSpan body) {
  LH_CHECK_OP(sources_, <, k_);
  const MutableByteSpan slot = Slot(sources_++);
  LH_CHECK_OP(header.size() + body.size(), <=, slot.size());
  const auto rest =
      std::copy(body.begin(), body.end(), std::copy(header.begin(), header.end(), slot.begin()));
  std::fill(rest, slot.end(), uint8_t{0});
}

RepairEncoder::Held& RepairEncoder::Place() {
  const auto free = std::ranges::find(held_, kNone, &Held::block);
  if (free != held_.end()) return *free;
  if (held_.size() < blocks_) return held_.emplace_back();
  return *std::ranges::min_element(held_, {}, &Held::used);
}

void RepairEncoder::Finish(uint32_t block, uint8_t count) {
  LH_CHECK_OP(count, <=, codec::ErasureCoder::MaxRepair(k_));
  while (sources_ < k_) std::ranges::fill(Slot(sources_++), uint8_t{0});
  Held& held = Place();
  held.symbols.resize(std::max(held.symbols.size(), count * symbol_bytes_));
  std::array<ByteSpan, codec::kMaxBlockSymbols> source;
  std::array<MutableByteSpan, codec::kMaxBlockSymbols> repair;
  for (int i = 0; i < k_; ++i) source[static_cast<size_t>(i)] = Slot(i);
  for (size_t i = 0; i < count; ++i) {
    repair[i] = MutableByteSpan(held.symbols).subspan(i * symbol_bytes_, symbol_bytes_);
  }
  coder_->Encode(k_, symbol_bytes_, std::span(source).first(k_), std::span(repair).first(count));
  held.block = block;
  held.count = count;
  held.used = ++uses_;
}

ByteSpan RepairEncoder::Take(uint32_t block, uint8_t number) {
  const auto held = std::ranges::find(held_, block, &Held::block);
  LH_CHECK(held != held_.end());
  LH_CHECK_OP(number, <, held->count);
  held->used = ++uses_;
  if (number + 1 == held->count) held->block = kNone;
  return ByteSpan(held->symbols).subspan(number * symbol_bytes_, symbol_bytes_);
}

MutableByteSpan RepairEncoder::Slot(int index) {
  return MutableByteSpan(scratch_).subspan(static_cast<size_t>(index) * symbol_bytes_, symbol_bytes_);
}

}  // namespace longhaul::transport
