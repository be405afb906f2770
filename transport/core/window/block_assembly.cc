#include "transport/core/window/block_assembly.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace longhaul::transport {

BlockAssembly::BlockAssembly(const BlockMap& map, uint16_t symbol_bytes, codec::ErasureCoder* coder)
    : map_(map), symbol_bytes_(symbol_bytes), coder_(coder), blocks_(map.block_count()) {
  LH_CHECK(coder_ != nullptr && coder_->Supports(map_.k()));
  spare_.reserve(kMaxSpareBuffers);
}

bool BlockAssembly::HasRepair(uint32_t block, uint8_t number) const {
  const Buffer* buffer = blocks_[block].buffer.get();
  return buffer != nullptr && (buffer->held >> (map_.k() + number) & 1) != 0;
}

bool BlockAssembly::AddSource(uint32_t block, uint8_t symbol, ByteSpan chunk) {
  return Add(block, symbol, chunk);
}

bool BlockAssembly::AddRepair(uint32_t block, uint8_t number, ByteSpan bytes) {
  return Add(block, static_cast<uint8_t>(map_.k() + number), bytes);
}

bool BlockAssembly::Add(uint32_t block, uint8_t content, ByteSpan bytes) {
  const uint8_t sources = map_.SourceSymbols(block);
  LH_CHECK(!blocks_[block].complete);
  LH_CHECK_OP(bytes.size(), <=, symbol_bytes_);
  Buffer& buffer = BufferOf(block);
  LH_CHECK_OP(buffer.used, <, sources);
  LH_CHECK((buffer.held >> content & 1) == 0);
  const auto slot = buffer.bytes.begin() + static_cast<ptrdiff_t>(buffer.used * symbol_bytes_);
  const auto end = std::copy(bytes.begin(), bytes.end(), slot);
  std::fill(end, slot + static_cast<ptrdiff_t>(symbol_bytes_), uint8_t{0});
  buffer.contents[buffer.used++] = content;
  buffer.held |= uint32_t{1} << content;
  return buffer.used == sources;
}

BlockAssembly::Buffer& BlockAssembly::BufferOf(uint32_t block) {
  std::unique_ptr<Buffer>& buffer = blocks_[block].buffer;
  if (buffer != nullptr) return *buffer;
  if (spare_.empty()) {
    buffer = std::make_unique<Buffer>();
  } else {
    buffer = std::move(spare_.back());
    spare_.pop_back();
  }
  buffer->bytes.resize(map_.SourceSymbols(block) * symbol_bytes_);
  buffered_ += ByteCount(static_cast<int64_t>(buffer->bytes.size()));
  return *buffer;
}

void BlockAssembly::Recycle(uint32_t block) {
  std::unique_ptr<Buffer> buffer = std::move(blocks_[block].buffer);
  buffered_ -= ByteCount(static_cast<int64_t>(buffer->bytes.size()));
  if (spare_.size() >= kMaxSpareBuffers) return;
  buffer->used = 0;
  buffer->held = 0;
  spare_.push_back(std::move(buffer));
}

uint32_t BlockAssembly::Complete(uint32_t block) {
  const uint8_t sources = map_.SourceSymbols(block);
  const Buffer& buffer = *blocks_[block].buffer;
  LH_CHECK_OP(buffer.used, ==, sources);
  const uint32_t missing = ((uint32_t{1} << sources) - 1) & ~buffer.held;
  if (missing != 0) Decode(buffer, sources, missing);
  blocks_[block].complete = true;
  Recycle(block);
  return missing;
}

void BlockAssembly::Decode(const Buffer& buffer, uint8_t sources, uint32_t missing) {
  const uint8_t k = map_.k();
  // A second block in one loan is rare: it takes chunks that had overtaken their OPEN.
  if (std::exchange(lent_, false)) lent_before_.push_back(std::exchange(scratch_, {}));
  scratch_.resize(k * symbol_bytes_);
  std::array<MutableByteSpan, codec::kMaxBlockSymbols> source;
  for (int i = 0; i < k; ++i) source[static_cast<size_t>(i)] = Scratch(i);
  // The coder wants sources in their own places; repair symbols stay where they arrived.
  std::array<codec::RepairSymbol, codec::kMaxBlockSymbols> repair;
  size_t repairs = 0;
  for (size_t slot = 0; slot < buffer.used; ++slot) {
    const ByteSpan bytes = ByteSpan(buffer.bytes).subspan(slot * symbol_bytes_, symbol_bytes_);
    const uint8_t content = buffer.contents[slot];
    if (content < k) {
      std::ranges::copy(bytes, source[content].begin());
    } else {
      repair[repairs++] = {content - k, bytes};
    }
  }
  for (int i = sources; i < k; ++i) std::ranges::fill(source[static_cast<size_t>(i)], uint8_t{0});
  const uint32_t present = ((uint32_t{1} << k) - 1) & ~missing;
  // Counts, numbers and lengths have been checked, and the code is MDS: a failure is a bug of ours.
  const Status status =
      coder_->Decode(k, symbol_bytes_, std::span(source).first(k), present, std::span(repair).first(repairs));
  LH_CHECK_OP(status.ToString(), ==, Status::Ok().ToString());
}

ByteSpan BlockAssembly::rebuilt(uint8_t symbol) {
  lent_ = true;
  return ByteSpan(scratch_).subspan(symbol * symbol_bytes_, symbol_bytes_);
}

void BlockAssembly::EndLoans() {
  lent_ = false;
  lent_before_.clear();
}

MutableByteSpan BlockAssembly::Scratch(int index) {
  return MutableByteSpan(scratch_).subspan(static_cast<size_t>(index) * symbol_bytes_, symbol_bytes_);
}

}  // namespace longhaul::transport
