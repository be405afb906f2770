#include "transport/core/window/window_rx.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"
#include "base/reached.h"

namespace longhaul::transport {
namespace {

using wire::ReliabilityClass;

Status Impossible(const char* what) { return Status(StatusCode::kProtocolViolation, what); }

Status ValidateFec(const wire::WindowOpenFrame& open, const codec::ErasureCoder* coder) {
  if (open.fec_k == 0) return Status::Ok();
  if (std::ranges::find(codec::kBlockSizes, open.fec_k) == std::end(codec::kBlockSizes)) {
    return Impossible("WINDOW_OPEN: no source block has this size");
  }
  if (open.fec_depth == 0) return Impossible("WINDOW_OPEN: an interleaver of depth 0");
  if (BlockMap(open.high_count, open.fec_k, open.fec_depth).block_count() >= 1u << 16) {
    return Impossible("WINDOW_OPEN: more source blocks than 16 bits can name");
  }
  if (coder == nullptr || !coder->Supports(open.fec_k)) {
    return Status(StatusCode::kResourceExhausted, "WINDOW_OPEN: this side has no coder for these blocks");
  }
  return Status::Ok();
}

}  // namespace

Status WindowRx::ValidateOpen(const wire::WindowOpenFrame& open, ByteCount max_window_bytes,
                              const codec::ErasureCoder* coder) {
  const uint64_t chunks = uint64_t{open.high_count} + open.low_count;
  if (chunks == 0 || chunks > wire::kMaxWindowChunks) return Impossible("WINDOW_OPEN: impossible counts");
  if (open.symbol_bytes == 0 || open.symbol_bytes % 16 != 0 || open.symbol_bytes > kMaxSymbolBytes) {
    return Impossible("WINDOW_OPEN: impossible symbol length");
  }
  if (open.metadata.size() > wire::kMaxWindowMetadataBytes)
    return Impossible("WINDOW_OPEN: metadata too long");
  if (Status status = ValidateFec(open, coder); !status.ok()) return status;
  if (static_cast<int64_t>(chunks * open.symbol_bytes) > max_window_bytes.value()) {
    return Status(StatusCode::kResourceExhausted, "WINDOW_OPEN: larger than a window may be");
  }
  return Status::Ok();
}

WindowRx::WindowRx(const wire::WindowOpenFrame& open, codec::ErasureCoder* coder)
    : key_{open.window_id, open.generation},
      metadata_(open.metadata.begin(), open.metadata.end()),
      high_count_(open.high_count),
      low_count_(open.low_count),
      symbol_bytes_(open.symbol_bytes),
      coder_(coder),
      map_(open.high_count, open.fec_k, open.fec_depth),
      high_received_(open.high_count),
      low_received_(open.low_count),
      taken_(open.low_count + open.high_count) {
  if (map_.block_count() > 0) blocks_ = std::make_unique<BlockAssembly>(map_, symbol_bytes_, coder_);
}

bool WindowRx::IsDuplicate(const wire::DataHeader& header) const {
  if (closed_) return true;
  if (header.reliability == ReliabilityClass::kLow) return !header.repair && low_received_.Test(header.index);
  if (!header.repair) return high_received_.Test(header.index);
  if (header.block() >= map_.block_count()) return false;
  if (blocks_ == nullptr || blocks_->IsComplete(header.block())) return true;
  return header.symbol() < codec::ErasureCoder::MaxRepair(map_.k()) &&
         blocks_->HasRepair(header.block(), static_cast<uint8_t>(header.symbol()));
}

bool WindowRx::IsValid(const wire::DataHeader& header, size_t chunk_bytes) const {
  if (WindowKey{header.window_id, header.generation} != key_) return false;
  if (header.repair) {
    return header.reliability == ReliabilityClass::kHigh && header.block() < map_.block_count() &&
           header.symbol() < codec::ErasureCoder::MaxRepair(map_.k()) && chunk_bytes == symbol_bytes_;
  }
  const uint32_t count = header.reliability == ReliabilityClass::kHigh ? high_count_ : low_count_;
  return header.index < count && chunk_bytes <= symbol_bytes_;
}

WindowRx::Verdict WindowRx::OnData(const wire::DataHeader& header, ByteSpan chunk) {
  if (!IsValid(header, chunk.size())) return Verdict::kInvalid;
  if (closed_) return Verdict::kClosed;
  arrived_.reset();
  rebuilt_ = {};
  if (header.last_of_window) sender_finished_ = true;
  if (header.repair) ++stats_.repairs_received;
  if (IsDuplicate(header)) {
    const bool held = header.repair && blocks_ != nullptr && !blocks_->IsComplete(header.block());
    ++(header.repair && !held ? stats_.repair_unused : stats_.duplicates);
    return Verdict::kDuplicate;
  }
  if (header.repair) {
    const auto number = static_cast<uint8_t>(header.symbol());
    if (blocks_->AddRepair(header.block(), number, chunk)) Rebuild(header.block());
  } else {
    OnSource(header, chunk);
  }
  if (HighComplete() && rebuilt_.missing == 0) blocks_.reset();
  return Verdict::kNew;
}

void WindowRx::OnSource(const wire::DataHeader& header, ByteSpan chunk) {
  arrived_ = Chunk{header.reliability, header.index, chunk, false};
  if (header.reliability == ReliabilityClass::kLow) {
    low_received_.Set(header.index);
    ++stats_.low_received;
    return;
  }
  high_received_.Set(header.index);
  ++stats_.high_received;
  if (blocks_ == nullptr) return;
  const BlockMap::Position at = map_.Locate(header.index);
  if (blocks_->AddSource(at.block, at.symbol, chunk)) Rebuild(at.block);
}

void WindowRx::Rebuild(uint32_t block) {
  rebuilt_ = {block, blocks_->Complete(block)};
  for (uint32_t symbols = rebuilt_.missing; symbols != 0; symbols &= symbols - 1) {
    high_received_.Set(map_.Sequence(block, static_cast<uint8_t>(std::countr_zero(symbols))));
    LH_REACHED("FEC repairs a chunk");
    ++stats_.high_repaired;
  }
}

std::optional<WindowRx::Chunk> WindowRx::PollChunk() {
  if (closed_) return std::nullopt;
  if (arrived_) return Take(*std::exchange(arrived_, std::nullopt));
  if (rebuilt_.missing == 0) return std::nullopt;
  const auto symbol = static_cast<uint8_t>(std::countr_zero(rebuilt_.missing));
  rebuilt_.missing &= rebuilt_.missing - 1;
  return Take(
      {ReliabilityClass::kHigh, map_.Sequence(rebuilt_.block, symbol), blocks_->rebuilt(symbol), true});
}

const WindowRx::Chunk& WindowRx::Take(const Chunk& chunk) {
  const bool high = chunk.reliability == ReliabilityClass::kHigh;
  taken_.Set(high ? low_count_ + chunk.sequence : chunk.sequence);
  if (high) ++high_taken_;
  return chunk;
}

bool WindowRx::Refuse(ReliabilityClass reliability, uint32_t sequence) {
  const bool high = reliability == ReliabilityClass::kHigh;
  if (closed_ || sequence >= (high ? high_count_ : low_count_)) return false;
  if (!taken_.Clear(high ? low_count_ + sequence : sequence)) return false;
  if (high) --high_taken_;
  LH_REACHED("a chunk is refused by its owner");
  ++stats_.refused;
  return true;
}

void WindowRx::EndLoans() {
  if (blocks_ == nullptr) return;
  blocks_->EndLoans();
  if (HighComplete()) blocks_.reset();
}

IncomingWindow WindowRx::View() const {
  IncomingWindow view;
  view.high_count = high_count_;
  view.low_count = low_count_;
  view.high_complete = HighComplete();
  view.complete = Complete();
  view.sender_finished = sender_finished_;
  view.high_ratio = high_count_ == 0 ? 1.0 : static_cast<double>(high_done()) / high_count_;
  view.low_ratio = LowRatio();
  view.stats = stats_;
  return view;
}

void WindowRx::OnStatus(const wire::WindowStatusFrame& status) {
  if (WindowKey{status.window_id, status.generation} != key_) return;
  if (status.finished) sender_finished_ = true;
}

WindowRx::Missing WindowRx::MissingHigh(size_t max_bytes) const {
  Missing missing;
  if (closed_ || HighComplete()) return missing;
  const std::vector<uint8_t>& have = high_received_.bytes();
  size_t at = 0;
  while (at < have.size() && have[at] == 0xff) ++at;
  const size_t end = std::min(have.size(), at + max_bytes);
  missing.first = static_cast<uint32_t>(8 * at);
  for (; at < end; ++at) missing.bitmap.push_back(static_cast<uint8_t>(~have[at]));
  // No chunk lies beyond the last one.
  const bool last_byte = end == have.size() && high_count_ % 8 != 0;
  if (last_byte)
    missing.bitmap.back() = static_cast<uint8_t>(missing.bitmap.back() & ((1u << high_count_ % 8) - 1));
  while (missing.bitmap.back() == 0)
    missing.bitmap.pop_back();  // one bit is set, since the class is not complete
  return missing;
}

std::unique_ptr<BlockAssembly> WindowRx::Close(wire::CloseReason reason) {
  if (closed_) return nullptr;
  closed_ = true;
  close_reason_ = reason;
  MakeCloseBitmap();
  return std::move(blocks_);
}

// The CLOSE names low chunks, then, when not all of the high class was taken, high ones.
void WindowRx::MakeCloseBitmap() {
  close_bitmap_ = taken_.bytes();
  if (high_taken_ < high_count_) return;
  close_bitmap_.resize((size_t{low_count_} + 7) / 8);
  if (low_count_ % 8 != 0)
    close_bitmap_.back() = static_cast<uint8_t>(close_bitmap_.back() & ((1u << low_count_ % 8) - 1));
}

std::vector<wire::WindowCloseFrame> WindowRx::CloseFrames() const {
  LH_CHECK(closed_);
  wire::WindowCloseFrame frame;
  frame.window_id = key_.id;
  frame.generation = key_.generation;
  frame.reason = close_reason_;
  frame.high_complete = high_taken_ == high_count_;
  frame.bits = frame.high_complete ? low_count_ : taken_.size();
  const ByteSpan bitmap = close_bitmap_;
  // An empty bitmap says of a complete window that everything was taken, of one without all of the high class
  // that nothing was. So it must be true.
  const bool all = close_reason_ == wire::CloseReason::kComplete && taken_.count() == taken_.size();
  const bool nothing = !frame.high_complete && taken_.count() == 0;
  if (all || nothing || bitmap.empty()) return {frame};
  std::vector<wire::WindowCloseFrame> frames;
  for (size_t at = 0; at < bitmap.size(); at += kCloseSegmentBytes) {
    frame.first = static_cast<uint32_t>(8 * at);
    frame.bitmap = bitmap.subspan(at, std::min(bitmap.size() - at, kCloseSegmentBytes));
    frames.push_back(frame);
  }
  return frames;
}

ByteCount WindowRx::buffered() const { return blocks_ == nullptr ? ByteCount() : blocks_->buffered(); }

}  // namespace longhaul::transport
