#include "transport/core/window/repair_encoder.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace longhaul::transport {

RepairEncoder::RepairEncoder(codec::ErasureCoder* coder, uint8_t k, uint16_t symbol_bytes)
    : coder_(coder), k_(k), symbol_bytes_(symbol_bytes) {
  LH_CHECK(coder_ != nullptr && coder_->Supports(k_));
  LH_CHECK(symbol_bytes_ > 0 && symbol_bytes_ % 16 == 0);
}

void RepairEncoder::Start() {
  block_ = ~uint32_t{0};
  count_ = 0;
  sources_ = 0;
  bytes_.resize(std::max(bytes_.size(), k_ * symbol_bytes_));
}

void RepairEncoder::AddSource(ByteSpan header, ByteSpan body) {
  LH_CHECK_OP(sources_, <, k_);
  const MutableByteSpan slot = Slot(sources_++);
  LH_CHECK_OP(header.size() + body.size(), <=, slot.size());
  const auto rest =
      std::copy(body.begin(), body.end(), std::copy(header.begin(), header.end(), slot.begin()));
  std::fill(rest, slot.end(), uint8_t{0});
}

void RepairEncoder::Finish(uint32_t block, uint8_t count) {
  LH_CHECK_OP(count, <=, codec::ErasureCoder::MaxRepair(k_));
  bytes_.resize(std::max(bytes_.size(), (k_ + count) * symbol_bytes_));
  while (sources_ < k_) std::ranges::fill(Slot(sources_++), uint8_t{0});
  std::array<ByteSpan, codec::kMaxBlockSymbols> source;
  std::array<MutableByteSpan, codec::kMaxBlockSymbols> repair;
  for (int i = 0; i < k_; ++i) source[static_cast<size_t>(i)] = Slot(i);
  for (int i = 0; i < count; ++i) repair[static_cast<size_t>(i)] = Slot(k_ + i);
  coder_->Encode(k_, symbol_bytes_, std::span(source).first(k_), std::span(repair).first(count));
  block_ = block;
  count_ = count;
}

ByteSpan RepairEncoder::symbol(uint8_t number) const {
  LH_CHECK_OP(number, <, count_);
  return ByteSpan(bytes_).subspan((k_ + size_t{number}) * symbol_bytes_, symbol_bytes_);
}

MutableByteSpan RepairEncoder::Slot(int index) {
  return MutableByteSpan(bytes_).subspan(static_cast<size_t>(index) * symbol_bytes_, symbol_bytes_);
}

}  // namespace longhaul::transport
