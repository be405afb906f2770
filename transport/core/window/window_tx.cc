#include "transport/core/window/window_tx.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/pages.h"
#include "base/reached.h"
#include "transport/core/window/fec_policy.h"
#include "transport/core/window/high_ledger.h"
#include "transport/core/window/repair_encoder.h"

namespace longhaul::transport {
namespace {

using wire::ReliabilityClass;

// By so many recovery times a probe timeout is later than a loss that later packets show.
constexpr double kProbeRecoveryTimes = 2;
constexpr int kMaxFurtherCopies = 3;  // four copies are all lost at 20 % once in 600

// A chunk as submitted: its header copied, its body borrowed.
struct StoredChunk {
  ByteSpan body;
  std::array<uint8_t, WindowTx::kMaxChunkHeaderBytes> header;
  uint8_t header_bytes = 0;
  bool lost = false;  // low chunks only; the ledger knows it of high ones

  ByteSpan head() const { return ByteSpan(header).first(header_bytes); }
  ByteCount size() const { return ByteCount(static_cast<int64_t>(header_bytes + body.size())); }
};

uint32_t Segments(uint32_t bits) { return (bits + 7) / 8; }

// An empty bitmap is the whole of a close that needs none.
bool SaysAll(const wire::WindowCloseFrame& frame) {
  return frame.bits == 0 || !frame.high_complete || frame.reason == wire::CloseReason::kComplete;
}

}  // namespace

PathView PathView::For(size_t chunk_bytes) const {
  PathView view = *this;
  if (packet_bytes == 0 || chunk_bytes <= packet_bytes) return view;
  const size_t whole_parts = (chunk_bytes + packet_bytes - 1) / packet_bytes;
  const auto parts = static_cast<double>(whole_parts);
  view.loss = 1 - std::pow(1 - loss, parts);
  view.packets_per_recovery_time = std::max(1.0, packets_per_recovery_time / parts);
  return view;
}

struct WindowTx::State {
  State(const WindowOptions& options, const BlockMap& map, codec::ErasureCoder* coder)
      : ledger(options.high_count, map) {
    high.reserve(options.high_count);
    low.reserve(options.low_count);
    if (options.fec_k > 0) encoder.emplace(coder, options.fec_k, options.symbol_bytes, map.depth());
  }

  PagedVector<StoredChunk> high;
  PagedVector<StoredChunk> low;
  uint32_t next_high = 0;  // first not yet sent
  uint32_t next_low = 0;
  uint32_t low_lost = 0;
  HighLedger ledger;
  std::optional<RepairEncoder> encoder;
};

WindowTx::WindowTx(WindowOptions options, codec::ErasureCoder* coder)
    : options_(std::move(options)),
      coder_(coder),
      map_(options_.high_count, options_.fec_k, options_.fec_depth) {
  LH_CHECK_OP(uint64_t{options_.high_count} + options_.low_count, <=, wire::kMaxWindowChunks);
  LH_CHECK_OP(map_.block_count(), <, 1u << 16);  // repair symbols name their block with 16 bits
  state_ = std::make_unique<State>(options_, map_, coder_);
}

WindowTx::~WindowTx() = default;

Status WindowTx::Submit(ReliabilityClass reliability, ByteSpan header, ByteSpan body) {
  if (header.size() > kMaxChunkHeaderBytes || header.size() + body.size() > options_.symbol_bytes) {
    return Status(StatusCode::kInvalidArgument, "chunk longer than the window's symbol length");
  }
  if (closed_) return Status(StatusCode::kFailedPrecondition, "the window is closed");
  const bool is_high = reliability == ReliabilityClass::kHigh;
  PagedVector<StoredChunk>& chunks = is_high ? state_->high : state_->low;
  if (chunks.size() >= (is_high ? options_.high_count : options_.low_count)) {
    return Status(StatusCode::kFailedPrecondition, "the class has all the chunks that were promised");
  }
  StoredChunk& chunk = chunks.emplace_back();
  chunk.body = body;
  chunk.header_bytes = static_cast<uint8_t>(header.size());
  std::ranges::copy(header, chunk.header.begin());
  backlog_ += chunk.size();
  return Status::Ok();
}

bool WindowTx::AllSubmitted() const {
  return closed_ || (state_->high.size() == options_.high_count && state_->low.size() == options_.low_count);
}

bool WindowTx::Finished() const {
  return stats_.high_sent == options_.high_count && stats_.low_sent == options_.low_count;
}

WindowTx::Tier WindowTx::NextTier() const {
  if (closed_) return Tier::kNothing;
  if (state_->ledger.HasRetransmission()) return Tier::kHighRetransmit;
  if (state_->next_high < state_->high.size()) return Tier::kHighNew;
  if (state_->ledger.HasRepair()) return Tier::kRepair;
  if (state_->next_low < state_->low.size()) return Tier::kLow;
  return Tier::kNothing;
}

std::optional<WindowTx::Item> WindowTx::Next(const PathView& of_packets) {
  const PathView path = of_packets.For(options_.symbol_bytes);
  switch (NextTier()) {
    case Tier::kHighRetransmit:
      return NextHigh(true, path);
    case Tier::kHighNew:
      return NextHigh(false, path);
    case Tier::kRepair:
      return NextRepair();
    case Tier::kLow:
      return NextLow();
    case Tier::kNothing:
      break;
  }
  return std::nullopt;
}

WindowTx::Item WindowTx::MakeItem(ReliabilityClass reliability, uint32_t index) const {
  Item item;
  item.header.window_id = item.chunk.window_id = options_.key.id;
  item.header.generation = item.chunk.generation = options_.key.generation;
  item.header.reliability = item.chunk.reliability = reliability;
  item.header.index = item.chunk.index = index;
  item.header.last_of_window = Finished();
  return item;
}

WindowTx::Item WindowTx::NextHigh(bool retransmission, const PathView& path) {
  State& s = *state_;
  HighLedger::Retransmission again;
  if (retransmission) again = s.ledger.TakeRetransmission();
  const uint32_t sequence = retransmission ? again.sequence : s.next_high++;
  const StoredChunk& chunk = s.high[sequence];
  if (retransmission) {
    LH_REACHED("a high chunk is sent again");
    ++stats_.retransmissions;
    if (!again.repeated) s.ledger.Repeat(sequence, FurtherCopies(path));
  } else {
    if (stats_.high_sent == 0) first_high_ = path.now;
    ++stats_.high_sent;
    backlog_ -= chunk.size();
    const uint32_t filled = s.ledger.OnFirstSent(sequence);
    if (filled != HighLedger::kNone) s.ledger.SetRepairCount(filled, RepairCount(filled, path));
  }
  Item item = MakeItem(ReliabilityClass::kHigh, sequence);
  item.header.retransmission = retransmission;
  item.first = chunk.head();
  item.second = chunk.body;
  return item;
}

WindowTx::Item WindowTx::NextRepair() {
  State& s = *state_;
  const HighLedger::Repair repair = s.ledger.TakeRepair();
  if (!s.encoder->Holds(repair.block, repair.count)) {
    s.encoder->Start();
    for (uint8_t symbol = 0; symbol < map_.SourceSymbols(repair.block); ++symbol) {
      const StoredChunk& chunk = s.high[map_.Sequence(repair.block, symbol)];
      s.encoder->AddSource(chunk.head(), chunk.body);
    }
    s.encoder->Finish(repair.block, repair.count);
  }
  LH_REACHED("a repair symbol is sent");
  ++stats_.repairs_sent;
  const auto block = static_cast<uint16_t>(repair.block);
  Item item = MakeItem(ReliabilityClass::kHigh, wire::DataHeader::RepairIndex(block, repair.number));
  item.header.repair = item.chunk.repair = true;
  item.first = s.encoder->Take(repair.block, repair.number);
  return item;
}

WindowTx::Item WindowTx::NextLow() {
  const StoredChunk& chunk = state_->low[state_->next_low];
  ++stats_.low_sent;
  backlog_ -= chunk.size();
  Item item = MakeItem(ReliabilityClass::kLow, state_->next_low++);
  item.first = chunk.head();
  item.second = chunk.body;
  return item;
}

// A block is judged by the symbols whose arrival is not certain: not by virtual ones, nor by those
// acknowledged while a deep interleaver was still filling it.
uint8_t WindowTx::RepairCount(uint32_t block, const PathView& path) const {
  const int max_m = codec::ErasureCoder::MaxRepair(options_.fec_k);
  const int k = state_->ledger.Outstanding(block);
  if (k == 0) return 0;
  const double pace = PacketsPerRecoveryTime(path);
  const double to_send = static_cast<double>(options_.high_count - stats_.high_sent) +
                         static_cast<double>(options_.low_count - stats_.low_sent);
  const double slack = to_send / pace;
  const double at_stake = pace * ExpectedOverrun(slack, path.loss, k);
  const double rho = LossModel{path.loss, path.rho, path.mean_burst}.RhoAt(k, map_.Spacing(block));
  const int m = RepairSymbolsFor(k, max_m, path.loss, rho, at_stake);
  return static_cast<uint8_t>(std::min(max_m, m + (slack <= 1 ? path.extra_repair : 0)));
}

// With nothing left to follow it, a retransmission that is lost is missed only by the probe timeout. The rule
// for blocks says what that is worth, for a block of one symbol.
uint8_t WindowTx::FurtherCopies(const PathView& path) const {
  if (options_.fec_k == 0 || !Finished()) return 0;
  const double at_stake = kProbeRecoveryTimes * path.packets_per_recovery_time;
  const double rho = LossModel{path.loss, path.rho, path.mean_burst}.RhoAt(2, 1);
  return static_cast<uint8_t>(RepairSymbolsFor(1, kMaxFurtherCopies, path.loss, rho, at_stake));
}

// Of this window, as they have left so far: never more than the path's, and less when the window waits for
// its chunks or shares the path with other connections, so that the estimate of one of them is too good for
// all.
double WindowTx::PacketsPerRecoveryTime(const PathView& path) const {
  const double sent = static_cast<double>(stats_.high_sent) + static_cast<double>(stats_.low_sent);
  const auto elapsed = static_cast<double>((path.now - first_high_).count());
  const auto recovery = static_cast<double>(path.recovery_time.count());
  if (elapsed <= 0 || recovery <= 0) return path.packets_per_recovery_time;
  return std::clamp(sent * recovery / elapsed, 1.0, path.packets_per_recovery_time);
}

// Repair symbols stand behind the high chunks not yet sent. When those take longer than a recovery time, a
// retransmission that leaves now arrives before the repair symbol would: nothing is gained by waiting.
bool WindowTx::RepairLeavesSoon(const PathView& path) const {
  return static_cast<double>(state_->high.size() - state_->next_high) <= path.packets_per_recovery_time;
}

void WindowTx::OnAcked(const SentChunk& chunk) {
  if (closed_) return;
  LH_CHECK_OP(chunk.generation, ==, options_.key.generation);
  if (chunk.repair) {
    state_->ledger.OnRepairAcked(chunk.index >> 16, static_cast<uint8_t>(chunk.index));
  } else if (chunk.reliability == ReliabilityClass::kHigh) {
    state_->ledger.OnSourceAcked(chunk.index);
  } else if (StoredChunk& low = state_->low[chunk.index]; low.lost) {
    low.lost = false;
    --state_->low_lost;
  }
}

void WindowTx::OnLost(const SentChunk& chunk, const PathView& of_packets) {
  if (closed_) return;
  LH_CHECK_OP(chunk.generation, ==, options_.key.generation);
  const bool soon = RepairLeavesSoon(of_packets.For(options_.symbol_bytes));
  if (chunk.repair) {
    state_->ledger.OnRepairLost(chunk.index >> 16, static_cast<uint8_t>(chunk.index), soon);
  } else if (chunk.reliability == ReliabilityClass::kHigh) {
    state_->ledger.OnSourceLost(chunk.index, soon);
  } else if (StoredChunk& low = state_->low[chunk.index]; !low.lost) {
    low.lost = true;
    LH_REACHED("a low chunk is lost");
    ++state_->low_lost;
  }
}

uint32_t WindowTx::OnNack(const wire::WindowNackFrame& frame) {
  if (closed_ || WindowKey{frame.window_id, frame.generation} != options_.key) return 0;
  uint32_t queued = 0;
  for (uint32_t i = 0; i < 8 * frame.bitmap.size() && frame.first + i < state_->next_high; ++i) {
    if ((frame.bitmap[i / 8] >> i % 8 & 1) == 0) continue;
    queued += state_->ledger.OnSourceMissing(frame.first + i) ? 1 : 0;
  }
  return queued;
}

bool WindowTx::OnProbe(const SentChunk& chunk) {
  if (closed_ || chunk.reliability != ReliabilityClass::kHigh) return false;
  return chunk.repair ? state_->ledger.OnRepairMissing(chunk.index >> 16)
                      : state_->ledger.OnSourceMissing(chunk.index);
}

bool WindowTx::Contradicts(const wire::WindowCloseFrame& frame) const {
  if (WindowKey{frame.window_id, frame.generation} != options_.key) return true;
  if (frame.bits != options_.low_count + (frame.high_complete ? 0 : options_.high_count)) return true;
  if (!frame.high_complete && options_.high_count == 0) return true;
  if (frame.first % 8 != 0 || frame.first / 8 + frame.bitmap.size() > Segments(frame.bits)) return true;
  // The reason is fixed with the first segment; later ones must agree.
  return close_segments_.count() > 0 &&
         (frame.reason != close_reason_ || frame.high_complete != receipt_.high_complete);
}

bool WindowTx::OnClose(const wire::WindowCloseFrame& frame) {
  if (closed_ || Contradicts(frame)) return false;
  if (frame.bitmap.empty() && (close_segments_.count() > 0 || !SaysAll(frame))) return false;
  if (close_segments_.count() == 0) {
    close_reason_ = frame.reason;
    receipt_.high_complete = frame.high_complete;
    receipt_.low = ChunkBitmap(options_.low_count);
    if (!frame.high_complete) receipt_.high = ChunkBitmap(options_.high_count);
    close_segments_ = ChunkBitmap(Segments(frame.bits));
  }
  if (frame.bitmap.empty()) {
    if (frame.high_complete) receipt_.low.SetAll();
    Release();
    return true;
  }
  // The bits are those of the low chunks, then of the high ones unless all of them were taken. Each frame's
  // go to their classes at once, so that the last frame has no more to do than the others.
  for (uint32_t i = 0; i < frame.bitmap.size(); ++i) {
    if (!close_segments_.Set(frame.first / 8 + i)) continue;  // this byte came before
    for (uint32_t bits = frame.bitmap[i]; bits != 0; bits &= bits - 1) {
      const uint32_t chunk = frame.first + 8 * i + static_cast<uint32_t>(std::countr_zero(bits));
      chunk < options_.low_count ? receipt_.low.Set(chunk) : receipt_.high.Set(chunk - options_.low_count);
    }
  }
  if (close_segments_.count() < close_segments_.size()) return false;
  Release();
  return true;
}

void WindowTx::Cancel() {
  if (closed_) return;
  close_reason_ = wire::CloseReason::kCancelled;
  receipt_ = {};
  Release();
}

void WindowTx::Release() {
  stats_ = stats();
  stats_.low_dropped = options_.low_count - stats_.low_sent;
  closed_ = true;
  backlog_ = ByteCount();
  close_segments_ = {};
  state_.reset();  // with it every borrowed body
}

WindowTxStats WindowTx::stats() const {
  WindowTxStats result = stats_;
  if (state_ != nullptr) {
    result.lost = state_->ledger.lost() + state_->low_lost;
    result.settled = state_->ledger.settled();
  }
  return result;
}

wire::WindowOpenFrame WindowTx::OpenFrame() const {
  wire::WindowOpenFrame frame;
  frame.window_id = options_.key.id;
  frame.generation = options_.key.generation;
  frame.high_count = options_.high_count;
  frame.low_count = options_.low_count;
  frame.symbol_bytes = options_.symbol_bytes;
  frame.fec_k = options_.fec_k;
  frame.fec_depth = std::max<uint8_t>(1, options_.fec_depth);
  frame.metadata = options_.metadata;
  return frame;
}

wire::WindowStatusFrame WindowTx::StatusFrame() const {
  wire::WindowStatusFrame frame;
  frame.window_id = options_.key.id;
  frame.generation = options_.key.generation;
  frame.high_sent = stats_.high_sent;
  frame.low_sent = stats_.low_sent;
  frame.finished = Finished();
  return frame;
}

}  // namespace longhaul::transport
