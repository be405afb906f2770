#include "transport/core/window/window_rx.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tests/sim/reference_coder.h"

namespace longhaul::transport {
namespace {

using wire::CloseReason;
using wire::ReliabilityClass;
using Verdict = WindowRx::Verdict;

constexpr uint16_t kSymbolBytes = 32;

struct Delivery {
  ReliabilityClass reliability;
  uint32_t sequence;
  std::vector<uint8_t> bytes;
  bool repaired;
};

// The owner of a window: what it got, and what it does with it.
struct Owner {
  std::vector<Delivery> deliveries;
  std::function<void()> then;
  std::set<std::pair<ReliabilityClass, uint32_t>> refuse;
};

class WindowRxTest : public testing::Test {
 protected:
  static wire::WindowOpenFrame Frame(uint32_t high, uint32_t low, uint8_t k = 8, uint8_t depth = 1) {
    return {.window_id = 7,
            .generation = 2,
            .high_count = high,
            .low_count = low,
            .symbol_bytes = kSymbolBytes,
            .fec_k = k,
            .fec_depth = depth,
            .metadata = {}};
  }
  void Open(const wire::WindowOpenFrame& open) {
    ASSERT_TRUE(WindowRx::ValidateOpen(open, ByteCount(1 << 24), &coder_).ok());
    rx_ = std::make_unique<WindowRx>(open, &coder_);
  }

  static wire::DataHeader High(uint32_t sequence) {
    return {.window_id = 7, .index = sequence, .reliability = ReliabilityClass::kHigh, .generation = 2};
  }
  static wire::DataHeader Low(uint32_t sequence) {
    return {.window_id = 7, .index = sequence, .reliability = ReliabilityClass::kLow, .generation = 2};
  }
  static wire::DataHeader Repair(uint16_t block, uint16_t number) {
    wire::DataHeader header = High(wire::DataHeader::RepairIndex(block, number));
    header.repair = true;
    return header;
  }
  // Chunks differ in content and length.
  static std::vector<uint8_t> Chunk(uint32_t sequence) {
    return std::vector<uint8_t>(1 + sequence % kSymbolBytes, static_cast<uint8_t>(0x40 + sequence));
  }
  static std::vector<uint8_t> Padded(uint32_t sequence) {
    std::vector<uint8_t> bytes = Chunk(sequence);
    bytes.resize(kSymbolBytes);
    return bytes;
  }
  // The repair symbol of block 0 with `sources` real chunks.
  std::vector<uint8_t> RepairBytes(uint32_t sources, uint16_t number) {
    std::vector<std::vector<uint8_t>> source;
    for (uint32_t i = 0; i < 8; ++i) {
      source.push_back(i < sources ? Padded(i) : std::vector<uint8_t>(kSymbolBytes));
    }
    std::vector<std::vector<uint8_t>> repair(number + 1u, std::vector<uint8_t>(kSymbolBytes));
    const std::vector<ByteSpan> in(source.begin(), source.end());
    const std::vector<MutableByteSpan> out(repair.begin(), repair.end());
    coder_.Encode(8, kSymbolBytes, in, out);
    return repair[number];
  }
  Verdict Give(const wire::DataHeader& header, const std::vector<uint8_t>& bytes) {
    const Verdict verdict = rx_->OnData(header, bytes);
    std::vector<WindowRx::Chunk> chunks;
    while (const auto chunk = rx_->PollChunk()) {
      chunks.push_back(*chunk);
      if (owner_.refuse.contains({chunk->reliability, chunk->sequence})) {
        EXPECT_TRUE(rx_->Refuse(chunk->reliability, chunk->sequence));
      }
      if (owner_.then) owner_.then();
    }
    // Afterwards: the bytes live on, whatever the owner did meanwhile.
    for (const WindowRx::Chunk& c : chunks) {
      owner_.deliveries.push_back({c.reliability, c.sequence, {c.bytes.begin(), c.bytes.end()}, c.repaired});
    }
    closed_blocks_.reset();
    rx_->EndLoans();
    return verdict;
  }
  Verdict GiveHigh(uint32_t sequence) { return Give(High(sequence), Chunk(sequence)); }
  Verdict GiveLow(uint32_t sequence) { return Give(Low(sequence), Chunk(sequence)); }
  Verdict GiveRepair(uint32_t sources, uint16_t number) {
    return Give(Repair(0, number), RepairBytes(sources, number));
  }
  // Closes a window whose CLOSE fits into one frame.
  wire::WindowCloseFrame CloseFrame(CloseReason reason) {
    rx_->Close(reason);
    const auto frames = rx_->CloseFrames();
    EXPECT_EQ(frames.size(), 1u);
    return frames.at(0);
  }
  static std::vector<uint8_t> Bits(const wire::WindowCloseFrame& frame) {
    return {frame.bitmap.begin(), frame.bitmap.end()};
  }
  void CloseAs(CloseReason reason) { closed_blocks_ = rx_->Close(reason); }

  codec::ReferenceCoder coder_;
  Owner owner_;
  std::unique_ptr<BlockAssembly> closed_blocks_;
  std::unique_ptr<WindowRx> rx_;
};

TEST_F(WindowRxTest, DeliversEachChunkOnceAsItCame) {
  Open(Frame(8, 2));
  EXPECT_EQ(GiveHigh(3), Verdict::kNew);
  EXPECT_EQ(GiveLow(1), Verdict::kNew);
  EXPECT_TRUE(rx_->IsDuplicate(High(3)));
  EXPECT_TRUE(rx_->IsDuplicate(Low(1)));
  EXPECT_FALSE(rx_->IsDuplicate(High(1)));
  EXPECT_FALSE(rx_->IsDuplicate(Low(0)));
  EXPECT_EQ(GiveHigh(3), Verdict::kDuplicate);
  EXPECT_EQ(GiveLow(1), Verdict::kDuplicate);
  ASSERT_EQ(owner_.deliveries.size(), 2u);
  EXPECT_EQ(owner_.deliveries[0].sequence, 3u);
  EXPECT_EQ(owner_.deliveries[0].bytes, Chunk(3)) << "its own length, not the symbol's";
  EXPECT_FALSE(owner_.deliveries[0].repaired);
  EXPECT_EQ(owner_.deliveries[1].reliability, ReliabilityClass::kLow);
  EXPECT_EQ(rx_->stats().high_received, 1u);
  EXPECT_EQ(rx_->stats().low_received, 1u);
  EXPECT_EQ(rx_->stats().duplicates, 2u);
  EXPECT_EQ(rx_->LowRatio(), 0.5);
}

TEST_F(WindowRxTest, RebuildsAMissingSourceAsSoonAsARepairSymbolIsHere) {
  Open(Frame(8, 0));
  for (uint32_t s = 0; s < 8; ++s) {
    if (s != 5) GiveHigh(s);
  }
  EXPECT_FALSE(rx_->Complete());
  EXPECT_EQ(GiveRepair(8, 3), Verdict::kNew);
  ASSERT_EQ(owner_.deliveries.size(), 8u);
  EXPECT_EQ(owner_.deliveries.back().sequence, 5u);
  EXPECT_EQ(owner_.deliveries.back().bytes, Padded(5));
  EXPECT_TRUE(owner_.deliveries.back().repaired);
  EXPECT_TRUE(rx_->Complete());
  EXPECT_EQ(rx_->stats().high_repaired, 1u);
  EXPECT_EQ(GiveHigh(5), Verdict::kDuplicate) << "the retransmission comes too late to matter";
}

TEST_F(WindowRxTest, RebuildsWhenASourceIsTheSymbolThatWasLacking) {
  Open(Frame(8, 0));
  EXPECT_EQ(GiveRepair(8, 0), Verdict::kNew);
  EXPECT_EQ(GiveRepair(8, 7), Verdict::kNew);
  for (uint32_t s = 2; s < 7; ++s) GiveHigh(s);
  EXPECT_EQ(owner_.deliveries.size(), 5u);
  GiveHigh(7);
  EXPECT_EQ(owner_.deliveries.size(), 8u);
  EXPECT_TRUE(rx_->HighComplete());
  EXPECT_EQ(rx_->stats().high_repaired, 2u);
}

TEST_F(WindowRxTest, VirtualSymbolsCountAsPresent) {
  // 3 real sources, 5 virtual zeros: two repair symbols and one source are enough.
  Open(Frame(3, 0));
  GiveRepair(3, 0);
  GiveHigh(1);
  EXPECT_EQ(owner_.deliveries.size(), 1u);
  GiveRepair(3, 1);
  ASSERT_EQ(owner_.deliveries.size(), 3u);
  EXPECT_EQ(owner_.deliveries[1].bytes, Padded(0));
  EXPECT_EQ(owner_.deliveries[2].bytes, Padded(2));
}

TEST_F(WindowRxTest, ABlockCanBeRebuiltFromRepairSymbolsAlone) {
  Open(Frame(8, 0));
  for (uint16_t i = 0; i < 8; ++i) GiveRepair(8, static_cast<uint16_t>(23 - i));
  ASSERT_EQ(owner_.deliveries.size(), 8u);
  for (uint32_t s = 0; s < 8; ++s) EXPECT_EQ(owner_.deliveries[s].bytes, Padded(s));
}

TEST_F(WindowRxTest, RepairSymbolsOfACompleteBlockAreUnused) {
  Open(Frame(8, 0));
  for (uint32_t s = 0; s < 8; ++s) GiveHigh(s);
  EXPECT_TRUE(rx_->IsDuplicate(Repair(0, 0)));
  EXPECT_EQ(GiveRepair(8, 0), Verdict::kDuplicate);
  EXPECT_EQ(rx_->stats().repair_unused, 1u);
  EXPECT_EQ(rx_->stats().repairs_received, 1u);
  EXPECT_EQ(rx_->stats().duplicates, 0u);
}

TEST_F(WindowRxTest, ARepairSymbolThatComesTwiceCountsOnce) {
  Open(Frame(8, 0));
  for (uint32_t s = 0; s < 6; ++s) GiveHigh(s);
  EXPECT_EQ(GiveRepair(8, 1), Verdict::kNew);
  EXPECT_TRUE(rx_->IsDuplicate(Repair(0, 1)));
  EXPECT_EQ(GiveRepair(8, 1), Verdict::kDuplicate);
  EXPECT_EQ(owner_.deliveries.size(), 6u) << "two copies of one symbol are one symbol";
  EXPECT_EQ(GiveRepair(8, 2), Verdict::kNew);
  EXPECT_EQ(owner_.deliveries.size(), 8u);
}

TEST_F(WindowRxTest, HoldsMemoryOnlyForIncompleteBlocks) {
  Open(Frame(16, 4, 8, 2));  // even chunks in block 0, odd ones in block 1
  EXPECT_EQ(rx_->buffered(), ByteCount(0));
  GiveLow(0);
  EXPECT_EQ(rx_->buffered(), ByteCount(0)) << "low chunks are never kept";
  for (uint32_t s = 0; s < 16; s += 2) {
    GiveHigh(s);
    if (s < 14) {
      EXPECT_EQ(rx_->buffered(), ByteCount(8 * kSymbolBytes));
    }
  }
  EXPECT_EQ(rx_->buffered(), ByteCount(0));
  GiveHigh(1);
  EXPECT_EQ(rx_->buffered(), ByteCount(8 * kSymbolBytes));
  rx_->Close(CloseReason::kHard);
  EXPECT_EQ(rx_->buffered(), ByteCount(0));
}

TEST_F(WindowRxTest, HoldsNothingWithoutFec) {
  Open(Frame(8, 0, 0));
  for (uint32_t s = 0; s < 7; ++s) GiveHigh(s);
  EXPECT_EQ(rx_->buffered(), ByteCount(0));
  EXPECT_FALSE(rx_->HighComplete());
  GiveHigh(7);
  EXPECT_TRUE(rx_->HighComplete());
}

TEST_F(WindowRxTest, RefusesWhatTheWindowCannotContain) {
  Open(Frame(12, 3));  // blocks of 8 and 4
  const std::vector<uint8_t> fits(kSymbolBytes);
  const std::vector<uint8_t> longer(kSymbolBytes + 1);
  const auto invalid = [&](wire::DataHeader header, const std::vector<uint8_t>& chunk) {
    return rx_->OnData(header, chunk) == Verdict::kInvalid;
  };
  EXPECT_TRUE(invalid(High(12), fits));
  EXPECT_TRUE(invalid(High(0xffffffff), fits));
  EXPECT_TRUE(invalid(Low(3), fits));
  EXPECT_TRUE(invalid(High(0), longer));
  EXPECT_TRUE(invalid(Low(0), longer));
  EXPECT_TRUE(invalid(Repair(2, 0), fits)) << "no such block";
  EXPECT_TRUE(invalid(Repair(0, 24), fits)) << "no such repair symbol";
  EXPECT_TRUE(invalid(Repair(0, 0xffff), fits));
  EXPECT_TRUE(invalid(Repair(0, 0), Chunk(4))) << "a repair symbol has the symbol length";
  EXPECT_TRUE(invalid(Repair(0, 0), longer));
  wire::DataHeader header = Repair(0, 0);
  header.reliability = ReliabilityClass::kLow;
  EXPECT_TRUE(invalid(header, fits)) << "low chunks have no repair";
  header = High(0);
  header.generation = 3;
  EXPECT_TRUE(invalid(header, fits));
  header = High(0);
  header.window_id = 8;
  EXPECT_TRUE(invalid(header, fits));
  // None of these may be asked about as if they were known.
  EXPECT_FALSE(rx_->IsDuplicate(High(12)));
  EXPECT_FALSE(rx_->IsDuplicate(Repair(2, 0)));
  EXPECT_FALSE(rx_->IsDuplicate(Repair(0, 0xffff)));
  EXPECT_TRUE(owner_.deliveries.empty());
  EXPECT_EQ(rx_->buffered(), ByteCount(0));
}

TEST_F(WindowRxTest, RefusesRepairSymbolsInAWindowWithoutFec) {
  Open(Frame(8, 0, 0));
  EXPECT_EQ(rx_->OnData(Repair(0, 0), std::vector<uint8_t>(kSymbolBytes)), Verdict::kInvalid);
}

TEST_F(WindowRxTest, DeliversNothingAfterTheClose) {
  Open(Frame(8, 2));
  GiveHigh(0);
  rx_->Close(CloseReason::kHard);
  rx_->Close(CloseReason::kComplete);
  EXPECT_EQ(rx_->close_reason(), CloseReason::kHard) << "the first reason stays";
  EXPECT_TRUE(rx_->IsDuplicate(High(1)));
  EXPECT_EQ(GiveHigh(1), Verdict::kClosed);
  EXPECT_EQ(GiveLow(1), Verdict::kClosed);
  EXPECT_EQ(GiveRepair(8, 0), Verdict::kClosed);
  EXPECT_EQ(owner_.deliveries.size(), 1u);
  EXPECT_FALSE(rx_->LowTaken(1)) << "the bitmap that was announced does not change";
}

TEST_F(WindowRxTest, MayBeClosedBetweenTwoChunksOfADatagram) {
  // The block lacks chunks 6 and 7; the delivery of the rebuilt 6 closes the window.
  Open(Frame(8, 0));
  for (uint32_t s = 0; s < 6; ++s) GiveHigh(s);
  GiveRepair(8, 0);
  owner_.then = [this] { CloseAs(CloseReason::kExcluded); };
  GiveRepair(8, 1);
  EXPECT_EQ(owner_.deliveries.size(), 7u) << "nothing is delivered after the close";
  EXPECT_EQ(owner_.deliveries.back().bytes, Padded(6));
  EXPECT_EQ(rx_->buffered(), ByteCount(0));
  EXPECT_FALSE(rx_->CloseFrames()[0].high_complete);
}

TEST_F(WindowRxTest, MayBeClosedAtItsFirstChunk) {
  Open(Frame(8, 0));
  owner_.then = [this] { CloseAs(CloseReason::kHard); };
  GiveHigh(0);
  EXPECT_EQ(rx_->buffered(), ByteCount(0));
  EXPECT_TRUE(rx_->closed());
}

TEST_F(WindowRxTest, LearnsThatTheSenderIsFinishedFromStatusOrTheLastPacket) {
  Open(Frame(8, 0));
  wire::WindowStatusFrame status{.window_id = 7, .generation = 2, .high_sent = 8, .finished = false};
  rx_->OnStatus(status);
  EXPECT_FALSE(rx_->sender_finished());
  status.finished = true;
  status.generation = 1;
  rx_->OnStatus(status);
  EXPECT_FALSE(rx_->sender_finished()) << "another generation's status";
  status.generation = 2;
  rx_->OnStatus(status);
  EXPECT_TRUE(rx_->sender_finished());

  Open(Frame(8, 0));
  wire::DataHeader last = High(7);
  last.last_of_window = true;
  rx_->OnData(last, Chunk(7));
  EXPECT_TRUE(rx_->sender_finished());
}

// --- close frames

TEST_F(WindowRxTest, ACompleteWindowClosesWithoutABitmap) {
  Open(Frame(1, 1, 0));
  GiveHigh(0);
  GiveLow(0);
  const auto frame = CloseFrame(CloseReason::kComplete);
  EXPECT_EQ(frame.window_id, 7u);
  EXPECT_EQ(frame.generation, 2);
  EXPECT_EQ(frame.reason, CloseReason::kComplete);
  EXPECT_TRUE(frame.high_complete);
  EXPECT_EQ(frame.bits, 1u);
  EXPECT_TRUE(frame.bitmap.empty());
}

TEST_F(WindowRxTest, ALongBitmapIsSentInSegments) {
  constexpr uint32_t kSegment = 8 * WindowRx::kCloseSegmentBytes;
  const uint32_t low = kSegment * 2 + 9;
  Open(Frame(0, low, 0));
  for (const uint32_t s : {0u, kSegment - 1, kSegment, low - 1}) GiveLow(s);
  rx_->Close(CloseReason::kSoft);
  const auto frames = rx_->CloseFrames();
  ASSERT_EQ(frames.size(), 3u);
  EXPECT_EQ(frames[0].first, 0u);
  EXPECT_EQ(frames[1].first, kSegment);
  EXPECT_EQ(frames[2].first, 2 * kSegment);
  EXPECT_EQ(frames[0].bitmap.size(), WindowRx::kCloseSegmentBytes);
  EXPECT_EQ(frames[2].bitmap.size(), 2u);
  EXPECT_EQ(frames[0].bitmap[0], 0x01);
  EXPECT_EQ(frames[0].bitmap.back(), 0x80);
  EXPECT_EQ(frames[1].bitmap[0], 0x01);
  EXPECT_EQ(frames[2].bitmap[1], 0x01);
}

TEST_F(WindowRxTest, AnIncompleteHighClassIsNamedBehindTheLowOne) {
  Open(Frame(10, 3));
  for (const uint32_t s : {0u, 4u, 9u}) GiveHigh(s);
  GiveLow(1);
  const auto frame = CloseFrame(CloseReason::kHard);
  EXPECT_FALSE(frame.high_complete);
  EXPECT_EQ(frame.bits, 13u);
  EXPECT_EQ(Bits(frame), (std::vector<uint8_t>{0b1000'1010, 0b0001'0000}))
      << "low 1, then high 0 and 4 from bit 3 on; high 9";
}

TEST_F(WindowRxTest, ACompleteHighClassIsNotNamedAndLeavesNoStrayBits) {
  Open(Frame(8, 3));
  for (uint32_t s = 0; s < 8; ++s) GiveHigh(s);
  GiveLow(2);
  const auto frame = CloseFrame(CloseReason::kSoft);
  EXPECT_TRUE(frame.high_complete);
  EXPECT_EQ(frame.bits, 3u);
  EXPECT_EQ(Bits(frame), std::vector<uint8_t>{0b0000'0100});
}

TEST_F(WindowRxTest, AWindowOfWhichNothingWasTakenClosesWithoutABitmap) {
  Open(Frame(8, 20'000));
  const auto frame = CloseFrame(CloseReason::kExcluded);
  EXPECT_FALSE(frame.high_complete);
  EXPECT_EQ(frame.bits, 20'008u);
  EXPECT_TRUE(frame.bitmap.empty());
}

// --- what is missing

TEST_F(WindowRxTest, NamesTheHighChunksThatAreMissing) {
  Open(Frame(20, 5));
  EXPECT_EQ(rx_->MissingHigh().bitmap, (std::vector<uint8_t>{0xff, 0xff, 0x0f}));
  for (uint32_t s = 0; s < 18; ++s) {
    if (s != 11) GiveHigh(s);
  }
  const WindowRx::Missing missing = rx_->MissingHigh();
  EXPECT_EQ(missing.first, 8u);
  EXPECT_EQ(missing.bitmap, (std::vector<uint8_t>{0x08, 0x0c})) << "11, 18, 19";
  GiveHigh(18);
  GiveHigh(19);
  EXPECT_EQ(rx_->MissingHigh().bitmap, std::vector<uint8_t>{0x08});
  owner_.refuse = {{ReliabilityClass::kHigh, 11}};
  GiveHigh(11);
  EXPECT_TRUE(rx_->MissingHigh().bitmap.empty()) << "what was refused is not missing";
}

TEST_F(WindowRxTest, NamesAsManyMissingChunksAsAFrameHoldsAndNoneOnceClosed) {
  Open(Frame(20'000, 0, 0));
  for (uint32_t s = 0; s < 800; ++s) GiveHigh(s);
  const WindowRx::Missing missing = rx_->MissingHigh();
  EXPECT_EQ(missing.first, 800u);
  EXPECT_EQ(missing.bitmap.size(), wire::kMaxNackBitmapBytes);
  rx_->Close(CloseReason::kHard);
  EXPECT_TRUE(rx_->MissingHigh().bitmap.empty());
}

// --- chunks that the owner does not take

TEST_F(WindowRxTest, ARefusedChunkIsHereForEverythingButTheClose) {
  Open(Frame(8, 2));
  owner_.refuse = {{ReliabilityClass::kHigh, 2}, {ReliabilityClass::kLow, 0}};
  for (uint32_t s = 0; s < 8; ++s) EXPECT_EQ(GiveHigh(s), Verdict::kNew);
  GiveLow(0);
  GiveLow(1);
  EXPECT_EQ(GiveHigh(2), Verdict::kDuplicate) << "it does not come again";
  EXPECT_EQ(GiveLow(0), Verdict::kDuplicate);
  EXPECT_EQ(owner_.deliveries.size(), 10u);
  EXPECT_TRUE(rx_->Complete()) << "nothing is to be waited for";
  EXPECT_EQ(rx_->stats().refused, 2u);
  const auto frame = CloseFrame(CloseReason::kComplete);
  EXPECT_FALSE(frame.high_complete);
  EXPECT_EQ(frame.bits, 10u);
  EXPECT_EQ(Bits(frame), (std::vector<uint8_t>{0b1110'1110, 0b0000'0011}))
      << "low 1; high 0, 1, 3, 4, 5 from bit 2 on";
  EXPECT_FALSE(rx_->HighTaken(2));
  EXPECT_FALSE(rx_->LowTaken(0));
  EXPECT_TRUE(rx_->HighTaken(3));
  EXPECT_TRUE(rx_->LowTaken(1));
}

TEST_F(WindowRxTest, ARefusedChunkStillRepairsItsBlock) {
  Open(Frame(8, 0));
  owner_.refuse = {{ReliabilityClass::kHigh, 0}};
  for (uint32_t s = 0; s < 7; ++s) GiveHigh(s);
  GiveRepair(8, 0);
  ASSERT_EQ(owner_.deliveries.size(), 8u);
  EXPECT_EQ(owner_.deliveries.back().bytes, Padded(7));
  EXPECT_TRUE(rx_->HighComplete());
}

TEST_F(WindowRxTest, ARebuiltChunkMayBeRefusedAsWell) {
  Open(Frame(8, 0));
  owner_.refuse = {{ReliabilityClass::kHigh, 7}};
  for (uint32_t s = 0; s < 7; ++s) GiveHigh(s);
  GiveRepair(8, 0);
  EXPECT_TRUE(rx_->HighComplete());
  EXPECT_EQ(GiveHigh(7), Verdict::kDuplicate) << "the chunk itself comes late";
  EXPECT_EQ(owner_.deliveries.size(), 8u);
  const auto frame = CloseFrame(CloseReason::kComplete);
  EXPECT_FALSE(frame.high_complete);
  EXPECT_EQ(Bits(frame), std::vector<uint8_t>{0x7f});
}

TEST_F(WindowRxTest, ARefusalBeforeTheCloseCountsInIt) {
  for (const bool refuse : {false, true}) {
    Open(Frame(0, 2, 0));
    owner_.then = [this] { CloseAs(CloseReason::kHard); };
    owner_.refuse.clear();
    if (refuse) owner_.refuse = {{ReliabilityClass::kLow, 1}};
    GiveLow(1);
    ASSERT_EQ(rx_->CloseFrames()[0].bitmap.size(), 1u);
    EXPECT_EQ(rx_->CloseFrames()[0].bitmap[0], refuse ? 0x00 : 0x02);
  }
}

TEST_F(WindowRxTest, NeverClaimsByAnEmptyBitmapWhatDidNotArrive) {
  Open(Frame(1, 2, 0));
  GiveHigh(0);
  GiveLow(1);
  rx_->Close(CloseReason::kComplete);  // its owner is mistaken
  const auto frames = rx_->CloseFrames();
  ASSERT_EQ(frames.size(), 1u);
  ASSERT_EQ(frames[0].bitmap.size(), 1u);
  EXPECT_EQ(frames[0].bitmap[0], 0x02);
}

// --- open

TEST_F(WindowRxTest, ValidatesEveryFieldOfAnOpen) {
  const auto code = [&](auto change, codec::ErasureCoder* coder) {
    wire::WindowOpenFrame open = Frame(100, 100, 20, 4);
    change(open);
    return WindowRx::ValidateOpen(open, ByteCount(200 * kSymbolBytes), coder).code();
  };
  using Open = wire::WindowOpenFrame;
  const std::vector<uint8_t> metadata(513);
  const auto bad = StatusCode::kProtocolViolation;
  EXPECT_EQ(code([](Open&) {}, &coder_), StatusCode::kOk);
  EXPECT_EQ(code([](Open& o) { o.high_count = o.low_count = 0; }, &coder_), bad);
  EXPECT_EQ(code([](Open& o) { o.high_count = (1u << 20) - 99; }, &coder_), bad);
  EXPECT_EQ(code([](Open& o) { o.high_count = o.low_count = 0x80000000u; }, &coder_), bad) << "the sum wraps";
  EXPECT_EQ(code([](Open& o) { o.symbol_bytes = 0; }, &coder_), bad);
  EXPECT_EQ(code([](Open& o) { o.symbol_bytes = 31; }, &coder_), bad);
  EXPECT_EQ(code([](Open& o) { o.symbol_bytes = 65'008; }, &coder_), bad);
  EXPECT_EQ(code([](Open& o) { o.fec_k = 19; }, &coder_), bad);
  EXPECT_EQ(code([](Open& o) { o.fec_k = 32; }, &coder_), bad);
  EXPECT_EQ(code([](Open& o) { o.fec_depth = 0; }, &coder_), bad);
  EXPECT_EQ(code([](Open& o) { o.fec_k = o.fec_depth = 0; }, &coder_), StatusCode::kOk)
      << "depth means nothing";
  EXPECT_EQ(code([&](Open& o) { o.metadata = metadata; }, &coder_), bad);
  EXPECT_EQ(code([&](Open& o) { o.metadata = ByteSpan(metadata).first(512); }, &coder_), StatusCode::kOk);
  EXPECT_EQ(code([](Open& o) { o.low_count = 101; }, &coder_), StatusCode::kResourceExhausted);
  EXPECT_EQ(code([](Open& o) { o.symbol_bytes = 48; }, &coder_), StatusCode::kResourceExhausted);
  EXPECT_EQ(code([](Open&) {}, nullptr), StatusCode::kResourceExhausted) << "refused, not punished";
  EXPECT_EQ(code([](Open& o) { o.fec_k = 0; }, nullptr), StatusCode::kOk);
}

TEST_F(WindowRxTest, RefusesMoreBlocksThan16BitsCanName) {
  const ByteCount plenty(int64_t{1} << 40);
  EXPECT_TRUE(WindowRx::ValidateOpen(Frame(8 * 65'535, 0), plenty, &coder_).ok());
  EXPECT_FALSE(WindowRx::ValidateOpen(Frame(8 * 65'535 + 1, 0), plenty, &coder_).ok());
}

}  // namespace
}  // namespace longhaul::transport
