// Drives a WindowRx with chunks and repair symbols in any order, number, length and repetition, whole or in
// parts, and closes it any time. The oracle is a plain list of what must be there.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tests/fuzz/input.h"
#include "tests/fuzz/property.h"
#include "tests/sim/reference_coder.h"
#include "transport/core/window/chunk_cutter.h"
#include "transport/core/window/part_assembly.h"
#include "transport/core/window/window_rx.h"

using namespace longhaul;             // NOLINT
using namespace longhaul::transport;  // NOLINT
using wire::ReliabilityClass;

namespace {

using Bytes = std::vector<uint8_t>;
using ChunkName = std::pair<ReliabilityClass, uint32_t>;

// What the sender has: every chunk's bytes follow from its name.
class Sender {
 public:
  Sender(const wire::WindowOpenFrame& open, codec::ErasureCoder* coder)
      : open_(open), coder_(coder), map_(open.high_count, open.fec_k, open.fec_depth) {}

  const BlockMap& map() const { return map_; }

  Bytes Chunk(ChunkName name) const {
    const uint32_t mix = (name.second + 1) * 2654435761u ^ static_cast<uint32_t>(name.first) << 31;
    Bytes chunk(1 + mix % open_.symbol_bytes);
    for (size_t i = 0; i < chunk.size(); ++i) chunk[i] = static_cast<uint8_t>(mix >> (i % 4 * 8) ^ i);
    return chunk;
  }

  Bytes Symbol(uint32_t sequence) const {
    Bytes symbol = Chunk({ReliabilityClass::kHigh, sequence});
    symbol.resize(open_.symbol_bytes);
    return symbol;
  }

  Bytes Repair(uint32_t block, uint32_t number) const {
    std::vector<Bytes> source(open_.fec_k, Bytes(open_.symbol_bytes, 0));
    for (uint8_t i = 0; i < map_.SourceSymbols(block); ++i) source[i] = Symbol(map_.Sequence(block, i));
    std::vector<Bytes> repair(number + 1, Bytes(open_.symbol_bytes));
    const std::vector<ByteSpan> in(source.begin(), source.end());
    const std::vector<MutableByteSpan> out(repair.begin(), repair.end());
    coder_->Encode(open_.fec_k, open_.symbol_bytes, in, out);
    return repair[number];
  }

 private:
  wire::WindowOpenFrame open_;
  codec::ErasureCoder* coder_;
  BlockMap map_;
};

class Receiver {
 public:
  explicit Receiver(const Sender* sender) : sender_(sender) {}

  // What the window has for its owner now.
  void Poll(WindowRx& rx) {
    while (const auto chunk = rx.PollChunk()) {
      if (Takes(*chunk)) continue;
      FUZZ_REQUIRE(rx.Refuse(chunk->reliability, chunk->sequence));
      FUZZ_REQUIRE(!rx.Refuse(chunk->reliability, chunk->sequence));
    }
    rx.EndLoans();
  }

  bool Takes(const WindowRx::Chunk& chunk) {
    const auto& [reliability, sequence, bytes, repaired] = chunk;
    FUZZ_REQUIRE(!closed);
    FUZZ_REQUIRE(delivered.emplace(reliability, sequence).second);  // exactly once
    FUZZ_REQUIRE(!repaired || reliability == ReliabilityClass::kHigh);
    const Bytes expected = repaired ? sender_->Symbol(sequence) : sender_->Chunk({reliability, sequence});
    FUZZ_REQUIRE(std::equal(bytes.begin(), bytes.end(), expected.begin(), expected.end()));
    if (sequence % refuse_every != 1) return true;
    refused.emplace(reliability, sequence);
    return false;
  }

  uint32_t Count(ReliabilityClass reliability) const {
    uint32_t n = 0;
    for (const auto& name : delivered) n += name.first == reliability ? 1 : 0;
    return n;
  }
  uint32_t CountTaken(ReliabilityClass reliability) const {
    uint32_t n = Count(reliability);
    for (const auto& name : refused) n -= name.first == reliability ? 1 : 0;
    return n;
  }
  bool Took(ChunkName name) const { return delivered.contains(name) && !refused.contains(name); }

  uint32_t refuse_every = 1;  // 1: none
  std::set<ChunkName> delivered;
  std::set<ChunkName> refused;
  bool closed = false;

 private:
  const Sender* sender_;
};

class Play {
 public:
  Play(const wire::WindowOpenFrame& open, codec::ErasureCoder* coder)
      : open_(open), sender_(open, coder), receiver_(&sender_), rx_(open, coder) {}

  void RefuseEvery(uint32_t n) { receiver_.refuse_every = n; }

  void Step(FuzzInput& in) {
    const uint8_t op = in.U8();
    if (op < 110) {
      SendSource(ReliabilityClass::kHigh, in.Below(open_.high_count + 1), in);
    } else if (op < 150) {
      SendSource(ReliabilityClass::kLow, in.Below(open_.low_count + 1), in);
    } else if (op < 235) {
      SendRepair(in);
    } else if (op < 245) {
      rx_.OnStatus({open_.window_id, open_.generation, in.U16(), in.U16(), in.Flag()});
    } else if (op == 245) {
      rx_.Close(static_cast<wire::CloseReason>(in.Below(6)));
      receiver_.closed = true;
    } else {
      Lie(in);
    }
    Check();
  }

  void Finish() {
    const bool was_closed = rx_.closed();
    const wire::CloseReason before = rx_.close_reason();
    rx_.Close(wire::CloseReason::kHard);
    FUZZ_REQUIRE(rx_.close_reason() == (was_closed ? before : wire::CloseReason::kHard));
    FUZZ_REQUIRE(rx_.buffered() == ByteCount(0));
    uint32_t next = 0, set = 0, bits = 0;
    for (const wire::WindowCloseFrame& frame : rx_.CloseFrames()) {
      FUZZ_REQUIRE(wire::EncodedSize(frame) > 0);  // checks every documented range
      FUZZ_REQUIRE(frame.high_complete ==
                   (receiver_.CountTaken(ReliabilityClass::kHigh) == open_.high_count));
      bits = open_.low_count + (frame.high_complete ? 0 : open_.high_count);
      FUZZ_REQUIRE(frame.bits == bits);
      FUZZ_REQUIRE(frame.first == next);
      next += static_cast<uint32_t>(8 * frame.bitmap.size());
      for (uint32_t i = 0; i < 8 * frame.bitmap.size(); ++i) {
        if ((frame.bitmap[i / 8] >> i % 8 & 1) == 0) continue;
        ++set;
        const uint32_t bit = frame.first + i;
        FUZZ_REQUIRE(receiver_.Took(bit < open_.low_count
                                        ? ChunkName{ReliabilityClass::kLow, bit}
                                        : ChunkName{ReliabilityClass::kHigh, bit - open_.low_count}));
      }
    }
    const uint32_t taken_low = receiver_.CountTaken(ReliabilityClass::kLow);
    const uint32_t taken_high = receiver_.CountTaken(ReliabilityClass::kHigh);
    const bool high_named = bits != open_.low_count;
    FUZZ_REQUIRE(next == 0 || next >= bits);
    FUZZ_REQUIRE(next == 0 || set == taken_low + (high_named ? taken_high : 0));
    if (next > 0 || bits == 0) return;
    // An empty bitmap stands for everything or for nothing.
    const bool all = taken_low == open_.low_count && taken_high == open_.high_count;
    FUZZ_REQUIRE(all ? rx_.close_reason() == wire::CloseReason::kComplete : taken_low + taken_high == 0);
  }

 private:
  wire::DataHeader Header(ReliabilityClass reliability, uint32_t index, FuzzInput& in) {
    wire::DataHeader header;
    header.window_id = open_.window_id;
    header.generation = open_.generation;
    header.reliability = reliability;
    header.index = index;
    const uint8_t flags = in.U8();
    header.retransmission = (flags & 1) != 0;
    header.last_of_window = (flags & 2) != 0;
    in_parts_ = (flags & 4) != 0;
    backwards_ = (flags & 8) != 0;
    return header;
  }

  // What the receiver makes of the parts: the same bytes.
  void Travel(const wire::DataHeader& header, const Bytes& bytes) const {
    WindowTx::Item item;
    item.header = header;
    item.first = bytes;
    ChunkCutter cutter;
    cutter.Take(item);
    std::vector<std::pair<wire::DataHeader, Bytes>> packets;
    while (cutter.HasRest()) {
      const WindowTx::Item part = cutter.Next(ChunkCutter::kMinRoom);
      packets.emplace_back(part.header, Bytes(part.first.begin(), part.first.end()));
      packets.back().second.insert(packets.back().second.end(), part.second.begin(), part.second.end());
    }
    if (backwards_) std::reverse(packets.begin(), packets.end());
    PartAssembly parts;
    for (size_t i = 0; i < packets.size(); ++i) {
      ByteReader reader(packets[i].second);
      const auto at = wire::DecodePartHeader(reader);
      FUZZ_REQUIRE(at.has_value());
      const auto verdict = parts.Add(packets[i].first, *at, reader.Rest(), [](const auto&) { return false; });
      FUZZ_REQUIRE(verdict ==
                   (i + 1 == packets.size() ? PartAssembly::Verdict::kWhole : PartAssembly::Verdict::kKept));
    }
    const PartAssembly::Whole whole = parts.whole(header);
    FUZZ_REQUIRE(whole.header.last_of_window == header.last_of_window && !whole.header.part);
    FUZZ_REQUIRE(std::equal(whole.bytes.begin(), whole.bytes.end(), bytes.begin(), bytes.end()));
  }

  WindowRx::Verdict Give(const wire::DataHeader& header, const Bytes& bytes) {
    if (in_parts_ && bytes.size() > wire::kPartUnit) Travel(header, bytes);
    const WindowRx::Verdict verdict = rx_.OnData(header, bytes);
    receiver_.Poll(rx_);
    return verdict;
  }

  void SendSource(ReliabilityClass reliability, uint32_t sequence, FuzzInput& in) {
    const wire::DataHeader header = Header(reliability, sequence, in);
    const uint32_t count = reliability == ReliabilityClass::kHigh ? open_.high_count : open_.low_count;
    const bool had = receiver_.delivered.contains({reliability, sequence});
    const bool duplicate = rx_.IsDuplicate(header);
    const Bytes bytes = sender_.Chunk({reliability, sequence});
    const WindowRx::Verdict verdict = Give(header, bytes);
    if (receiver_.closed) {
      FUZZ_REQUIRE(verdict == WindowRx::Verdict::kClosed || sequence >= count);
    } else if (sequence >= count) {
      FUZZ_REQUIRE(verdict == WindowRx::Verdict::kInvalid);
    } else {
      FUZZ_REQUIRE(verdict == (had ? WindowRx::Verdict::kDuplicate : WindowRx::Verdict::kNew));
      FUZZ_REQUIRE(duplicate == had);
      FUZZ_REQUIRE(receiver_.delivered.contains({reliability, sequence}));
      if (reliability == ReliabilityClass::kHigh && open_.fec_k > 0) {
        symbols_[sender_.map().Locate(sequence).block].insert(sender_.map().Locate(sequence).symbol);
      }
    }
  }

  void SendRepair(FuzzInput& in) {
    if (open_.fec_k == 0 || sender_.map().block_count() == 0) return;
    const uint32_t block = in.Below(sender_.map().block_count());
    const uint32_t number = in.Below(static_cast<uint32_t>(codec::ErasureCoder::MaxRepair(open_.fec_k)));
    wire::DataHeader header = Header(
        ReliabilityClass::kHigh,
        wire::DataHeader::RepairIndex(static_cast<uint16_t>(block), static_cast<uint16_t>(number)), in);
    header.repair = true;
    const WindowRx::Verdict verdict = Give(header, sender_.Repair(block, number));
    if (receiver_.closed) return;
    FUZZ_REQUIRE(verdict == WindowRx::Verdict::kNew || verdict == WindowRx::Verdict::kDuplicate);
    symbols_[block].insert(open_.fec_k + number);
  }

  // Impossible numbers and lengths: refused, and nothing happens.
  void Lie(FuzzInput& in) {
    wire::DataHeader header =
        Header(in.Flag() ? ReliabilityClass::kLow : ReliabilityClass::kHigh, in.U32(), in);
    header.repair = header.reliability == ReliabilityClass::kHigh && in.Flag();
    size_t length = open_.symbol_bytes + size_t{1} + in.U8();
    if (header.repair) length = in.Below(open_.symbol_bytes);
    const size_t before = receiver_.delivered.size();
    (void)rx_.IsDuplicate(header);
    const WindowRx::Verdict verdict = Give(header, Bytes(length));
    FUZZ_REQUIRE(verdict != WindowRx::Verdict::kNew);
    FUZZ_REQUIRE(receiver_.delivered.size() == before);
  }

  void Check() {
    const WindowRxStats stats = rx_.stats();
    FUZZ_REQUIRE(rx_.high_done() == receiver_.Count(ReliabilityClass::kHigh));
    FUZZ_REQUIRE(stats.low_received == receiver_.Count(ReliabilityClass::kLow));
    FUZZ_REQUIRE(rx_.Complete() ==
                 (receiver_.delivered.size() == size_t{open_.high_count} + open_.low_count));
    FUZZ_REQUIRE(rx_.LowRatio() >= 0 && rx_.LowRatio() <= 1);
    FUZZ_REQUIRE(rx_.buffered().value() <= int64_t{32} * open_.symbol_bytes * (open_.high_count + 1));
    if (receiver_.closed) return;
    // Any k of a block's symbols give it back; those beyond its real ones are zeros that everyone has.
    for (const auto& [block, have] : symbols_) {
      const uint8_t real = sender_.map().SourceSymbols(block);
      if (have.size() < real) continue;
      for (uint8_t i = 0; i < real; ++i) {
        FUZZ_REQUIRE(
            receiver_.delivered.contains({ReliabilityClass::kHigh, sender_.map().Sequence(block, i)}));
      }
    }
  }

  wire::WindowOpenFrame open_;
  Sender sender_;
  Receiver receiver_;
  WindowRx rx_;
  std::map<uint32_t, std::set<uint32_t>> symbols_;  // block -> distinct symbols received
  bool in_parts_ = false;                           // the latest chunk
  bool backwards_ = false;                          // its parts come so
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput in(data, size);
  codec::ReferenceCoder coder;
  wire::WindowOpenFrame open;
  open.window_id = in.U8();
  open.generation = in.U8();
  open.high_count = in.Below(80);
  open.low_count = in.U16() % 9000;  // more than one close segment
  if (in.Flag()) open.low_count %= 40;
  open.symbol_bytes = static_cast<uint16_t>(in.Below(5) * 16);
  open.fec_k = in.Flag() ? static_cast<uint8_t>(8 + 4 * in.Below(5)) : in.U8();
  open.fec_depth = static_cast<uint8_t>(1 + in.Below(6));
  if (!WindowRx::ValidateOpen(open, ByteCount(1 << 20), &coder).ok()) return 0;
  Play play(open, &coder);
  if (in.Flag()) play.RefuseEvery(2 + in.Below(6));
  for (int steps = 0; !in.empty() && steps < 400; ++steps) play.Step(in);
  play.Finish();
  return 0;
}
