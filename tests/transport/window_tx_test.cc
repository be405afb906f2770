#include "transport/core/window/window_tx.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <vector>

#include "tests/sim/reference_coder.h"

namespace longhaul::transport {
namespace {

using wire::CloseReason;
using wire::ReliabilityClass;
using Tier = WindowTx::Tier;

constexpr PathView kClean{.loss = 0, .packets_per_recovery_time = 1000};
constexpr PathView kLossy{.loss = 0.02, .packets_per_recovery_time = 1000};

class WindowTxTest : public testing::Test {
 protected:
  struct Shape {
    uint32_t high = 8;
    uint32_t low = 0;
    uint8_t k = 8;
    uint8_t depth = 1;
  };

  WindowTx& Open(Shape shape) {
    const WindowOptions options{.key = {.id = 7, .generation = 2},
                                .high_count = shape.high,
                                .low_count = shape.low,
                                .symbol_bytes = 32,
                                .fec_k = shape.k,
                                .fec_depth = shape.depth,
                                .metadata = {1, 2, 3}};
    tx_ = std::make_unique<WindowTx>(options, &coder_);
    return *tx_;
  }

  WindowTx& OpenFull(Shape shape) {
    Open(shape);
    SubmitHigh(shape.high);
    for (uint32_t i = 0; i < shape.low; ++i) {
      EXPECT_TRUE(tx_->Submit(ReliabilityClass::kLow, Header(i), body_).ok());
    }
    return *tx_;
  }

  void SubmitHigh(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      EXPECT_TRUE(tx_->Submit(ReliabilityClass::kHigh, Header(i), body_).ok());
    }
  }

  ByteSpan Header(uint32_t i) {
    header_ = {0xaa, static_cast<uint8_t>(i)};
    return header_;
  }

  // Takes items until there is none.
  std::vector<WindowTx::Item> Drain(const PathView& path) {
    std::vector<WindowTx::Item> items;
    while (auto item = tx_->Next(path)) items.push_back(*item);
    return items;
  }

  static SentChunk High(uint32_t sequence) {
    return {.window_id = 7, .index = sequence, .generation = 2, .reliability = ReliabilityClass::kHigh};
  }
  static SentChunk Low(uint32_t sequence) {
    return {.window_id = 7, .index = sequence, .generation = 2, .reliability = ReliabilityClass::kLow};
  }
  static SentChunk Repair(uint16_t block, uint16_t number) {
    SentChunk chunk = High(wire::DataHeader::RepairIndex(block, number));
    chunk.repair = true;
    return chunk;
  }
  void AckHigh(uint32_t from, uint32_t to) {
    for (uint32_t s = from; s < to; ++s) tx_->OnAcked(High(s));
  }
  // How many of the high chunks that the bits name are sent again.
  size_t Nack(const std::vector<uint8_t>& bitmap, uint32_t first = 0, uint8_t generation = 2) {
    return tx_->OnNack({.window_id = 7, .generation = generation, .first = first, .bitmap = bitmap});
  }
  wire::WindowCloseFrame Close(CloseReason reason, uint32_t bits, uint32_t first, ByteSpan bitmap) {
    return {
        .window_id = 7, .generation = 2, .reason = reason, .bits = bits, .first = first, .bitmap = bitmap};
  }

  codec::ReferenceCoder coder_;
  std::array<uint8_t, 2> header_{};
  std::vector<uint8_t> body_ = std::vector<uint8_t>(20, 0x55);
  std::unique_ptr<WindowTx> tx_;
};

TEST_F(WindowTxTest, SendsHighThenRepairThenLowInOrderOfSubmission) {
  OpenFull({.high = 16, .low = 3, .depth = 2});
  EXPECT_EQ(tx_->NextTier(), Tier::kHighNew);
  const auto items = Drain({.loss = 0.02, .packets_per_recovery_time = 100});
  ASSERT_GE(items.size(), 16u + 2 + 3);
  for (uint32_t i = 0; i < 16; ++i) {
    EXPECT_EQ(items[i].header.index, i);
    EXPECT_FALSE(items[i].header.repair);
    EXPECT_EQ(items[i].first[1], i) << "the chunk's own header comes first";
    EXPECT_EQ(items[i].second.data(), body_.data()) << "bodies are borrowed, not copied";
  }
  const size_t repairs = items.size() - 16 - 3;
  for (size_t i = 16; i < 16 + repairs; ++i) EXPECT_TRUE(items[i].header.repair);
  for (uint32_t i = 0; i < 3; ++i) {
    const auto& item = items[16 + repairs + i];
    EXPECT_EQ(item.header.reliability, ReliabilityClass::kLow);
    EXPECT_EQ(item.header.index, i);
    EXPECT_EQ(item.header.last_of_window, i == 2);
  }
  EXPECT_TRUE(tx_->Finished());
  EXPECT_TRUE(tx_->Idle());
  EXPECT_EQ(tx_->stats().repairs_sent, repairs);
}

TEST_F(WindowTxTest, ItemsNameTheirWindow) {
  OpenFull({.high = 1, .k = 0});
  const auto item = *tx_->Next(kClean);
  EXPECT_EQ(item.header.window_id, 7u);
  EXPECT_EQ(item.header.generation, 2);
  EXPECT_EQ(item.chunk.window_id, 7u);
  EXPECT_EQ(item.chunk.generation, 2);
  EXPECT_EQ(item.size(), 22u);
  EXPECT_TRUE(item.header.last_of_window);
}

TEST_F(WindowTxTest, WithoutFecALostHighChunkLeavesNext) {
  OpenFull({.high = 3, .low = 1, .k = 0});
  tx_->Next(kLossy);
  tx_->Next(kLossy);
  tx_->OnLost(High(0), kLossy);
  EXPECT_EQ(tx_->NextTier(), Tier::kHighRetransmit);
  const auto item = *tx_->Next(kLossy);
  EXPECT_EQ(item.header.index, 0u);
  EXPECT_TRUE(item.header.retransmission);
  EXPECT_EQ(tx_->NextTier(), Tier::kHighNew);
  EXPECT_EQ(tx_->stats().retransmissions, 1u);
}

TEST_F(WindowTxTest, ACleanPathSendsNoRepairSymbols) {
  OpenFull({.high = 8});
  EXPECT_EQ(Drain(kClean).size(), 8u);
}

TEST_F(WindowTxTest, ALostSourceWaitsWhileARepairSymbolInFlightCanReplaceIt) {
  OpenFull({.high = 8});
  ASSERT_GT(Drain(kLossy).size(), 8u);
  tx_->OnLost(High(3), kLossy);
  EXPECT_TRUE(tx_->Idle());
  EXPECT_EQ(tx_->stats().lost, 1u);
  EXPECT_EQ(tx_->stats().retransmissions, 0u);
}

TEST_F(WindowTxTest, ALostSourceWaitsForARepairSymbolAboutToLeave) {
  OpenFull({.high = 8});
  for (int i = 0; i < 8; ++i) tx_->Next(kLossy);
  ASSERT_EQ(tx_->NextTier(), Tier::kRepair);
  tx_->OnLost(High(0), kLossy);
  EXPECT_EQ(tx_->NextTier(), Tier::kRepair);
}

TEST_F(WindowTxTest, ALostSourceDoesNotWaitForDistantRepair) {
  OpenFull({.high = 16, .depth = 1});
  const PathView slow{.loss = 0.3, .packets_per_recovery_time = 7.9};
  for (int i = 0; i < 8; ++i)
    tx_->Next(slow);  // block 0 has left; 8 more chunks stand before its repair symbol
  tx_->OnLost(High(0), slow);
  ASSERT_EQ(tx_->NextTier(), Tier::kHighRetransmit);
  int repairs_of_block_0 = 0;
  for (const auto& item : Drain(slow)) repairs_of_block_0 += item.header.repair && item.header.block() == 0;
  EXPECT_GE(repairs_of_block_0, 1) << "there was one to wait for";
}

TEST_F(WindowTxTest, ALossBeforeTheBlockIsFullIsRetransmittedAtOnce) {
  OpenFull({.high = 8});
  for (int i = 0; i < 5; ++i) tx_->Next(kLossy);
  tx_->OnLost(High(1), kLossy);
  EXPECT_EQ(tx_->NextTier(), Tier::kHighRetransmit);
}

TEST_F(WindowTxTest, OnlyTheLossesThatRepairCannotReplaceAreRetransmitted) {
  OpenFull({.high = 8});
  const size_t repairs = Drain(kLossy).size() - 8;
  for (uint32_t s = 0; s < repairs + 2; ++s) tx_->OnLost(High(s), kLossy);
  std::vector<uint32_t> again;
  for (const auto& item : Drain(kLossy)) again.push_back(item.header.index);
  EXPECT_EQ(again, (std::vector<uint32_t>{0, 1, 0, 1})) << "twice each, see below";
  EXPECT_EQ(tx_->stats().retransmissions, 4u);
}

TEST_F(WindowTxTest, ALostRepairSymbolReleasesTheSourceThatWaitedForIt) {
  OpenFull({.high = 8});
  const size_t repairs = Drain(kLossy).size() - 8;
  tx_->OnLost(High(3), kLossy);
  for (uint16_t i = 0; i + 1u < repairs; ++i) {
    tx_->OnLost(Repair(0, i), kLossy);
    EXPECT_TRUE(tx_->Idle()) << "one repair symbol is still under way";
  }
  tx_->OnLost(Repair(0, static_cast<uint16_t>(repairs - 1)), kLossy);
  const auto items = Drain(kLossy);
  ASSERT_EQ(items.size(), 2u) << "a repair symbol itself is never resent";
  for (const auto& item : items) EXPECT_EQ(item.header.index, 3u);
}

TEST_F(WindowTxTest, ALostSourceWaitsWhenARepairSymbolHasArrivedForIt) {
  OpenFull({.high = 8});
  const size_t repairs = Drain(kLossy).size() - 8;
  tx_->OnAcked(Repair(0, 0));
  for (uint16_t i = 1; i < repairs; ++i) tx_->OnLost(Repair(0, i), kLossy);
  tx_->OnLost(High(3), kLossy);
  EXPECT_TRUE(tx_->Idle()) << "the other seven are in flight";
  tx_->OnLost(High(4), kLossy);
  const auto items = Drain(kLossy);
  ASSERT_EQ(items.size(), 2u);
  for (const auto& item : items) EXPECT_EQ(item.header.index, items[0].header.index) << "one is enough";
}

TEST_F(WindowTxTest, ARetransmissionThatIsLostIsRetransmittedAgain) {
  OpenFull({.high = 8});
  Drain(kClean);
  for (int i = 1; i <= 5; ++i) {
    tx_->OnLost(High(0), kClean);
    ASSERT_EQ(Drain(kClean).size(), 1u);
    EXPECT_EQ(tx_->stats().lost, static_cast<uint32_t>(i));
  }
}

// Nothing follows that would show that it is lost once more.
TEST_F(WindowTxTest, ALastRetransmissionIsRepeatedMoreTheMoreIsLost) {
  const auto copies = [this](double loss, double packets, uint8_t k) {
    OpenFull({.high = 8, .k = k});
    Drain(kClean);
    const PathView path{.loss = loss, .packets_per_recovery_time = packets};
    tx_->OnLost(High(3), path);
    return Drain(path).size();
  };
  EXPECT_EQ(copies(0, 1000, 8), 1u);
  EXPECT_EQ(copies(0.02, 1000, 8), 2u);
  EXPECT_EQ(copies(0.2, 1000, 8), 4u);
  EXPECT_EQ(copies(0.9, 1000, 8), 4u) << "at most";
  EXPECT_EQ(copies(0.02, 10, 8), 1u) << "a copy costs a twentieth of what it may save";
  EXPECT_EQ(copies(0.2, 1000, 0), 1u) << "without FEC nothing leaves but what was lost";
}

TEST_F(WindowTxTest, BeforeAllHasLeftARetransmissionIsNotRepeated) {
  OpenFull({.high = 8, .low = 1});
  for (int i = 0; i < 8; ++i) tx_->Next(kClean);
  tx_->OnLost(High(3), kLossy);
  EXPECT_EQ(tx_->Next(kLossy)->header.index, 3u);
  EXPECT_NE(tx_->NextTier(), Tier::kHighRetransmit);
}

TEST_F(WindowTxTest, ARepeatedRetransmissionIsLostWhenItsLastCopyIs) {
  OpenFull({.high = 8});
  Drain(kClean);
  tx_->OnLost(High(3), kLossy);
  ASSERT_EQ(Drain(kLossy).size(), 2u);
  tx_->OnLost(High(3), kLossy);
  EXPECT_TRUE(tx_->Idle()) << "the other copy is under way";
  tx_->OnLost(High(3), kLossy);
  EXPECT_EQ(tx_->NextTier(), Tier::kHighRetransmit);
  EXPECT_EQ(tx_->stats().lost, 3u);
}

TEST_F(WindowTxTest, CopiesThatAreNotNeededAnyMoreDoNotLeaveAndCountNothing) {
  constexpr PathView kBad{.loss = 0.2, .packets_per_recovery_time = 1000};
  OpenFull({.high = 8});
  Drain(kClean);
  tx_->OnLost(High(3), kBad);
  tx_->Next(kBad);
  tx_->Next(kBad);
  ASSERT_EQ(tx_->NextTier(), Tier::kHighRetransmit);
  tx_->OnAcked(High(3));
  AckHigh(0, 3);
  AckHigh(4, 8);
  EXPECT_TRUE(tx_->Idle());
  tx_->OnAcked(High(3));  // the second copy
  EXPECT_EQ(tx_->stats().lost, 1u) << "the first transmission";
  tx_->OnAcked(High(3));  // no: that one was only late
  EXPECT_EQ(tx_->stats().lost, 0u);
}

TEST_F(WindowTxTest, AProbeBringsWhatItsBlockLacks) {
  OpenFull({.high = 8, .low = 1});
  ASSERT_TRUE(Drain(kLossy)[8].header.repair);
  EXPECT_FALSE(tx_->OnProbe(Low(0))) << "low is never sent again";
  EXPECT_FALSE(tx_->OnProbe(Repair(0, 0))) << "no source waits for it";
  AckHigh(0, 7);
  EXPECT_TRUE(tx_->OnProbe(High(7)));
  EXPECT_FALSE(tx_->OnProbe(High(7))) << "it waits to leave already";
  EXPECT_EQ(tx_->Next(kClean)->header.index, 7u);
  EXPECT_EQ(tx_->stats().lost, 0u) << "a probe timeout is no loss";
  tx_->OnLost(High(7), kClean);
  tx_->OnLost(High(7), kClean);  // both copies: the repair symbol is all that is under way
  EXPECT_TRUE(tx_->Idle());
  EXPECT_TRUE(tx_->OnProbe(Repair(0, 0)));
  EXPECT_EQ(tx_->Next(kClean)->header.index, 7u);
  tx_->OnAcked(Repair(0, 0));
  EXPECT_FALSE(tx_->OnProbe(High(7))) << "the block is complete";
}

TEST_F(WindowTxTest, ACompleteBlockSettlesItsLossesWithoutResendingThem) {
  OpenFull({.high = 8});
  ASSERT_GE(Drain(kLossy).size(), 9u);
  tx_->OnLost(High(3), kLossy);
  AckHigh(0, 3);
  AckHigh(4, 8);
  EXPECT_EQ(tx_->stats().settled, 0u);
  tx_->OnAcked(Repair(0, 0));
  EXPECT_EQ(tx_->stats().settled, 1u);
  // Whatever else of the block is lost now matters no more.
  tx_->OnLost(Repair(0, 1), kLossy);
  EXPECT_TRUE(tx_->Idle());
  EXPECT_EQ(tx_->stats().retransmissions, 0u);
}

TEST_F(WindowTxTest, ALossAfterItsBlockIsCompleteIsSettledAtOnce) {
  OpenFull({.high = 8});
  Drain(kLossy);
  AckHigh(0, 7);
  tx_->OnAcked(Repair(0, 0));
  tx_->OnLost(High(7), kLossy);
  EXPECT_TRUE(tx_->Idle());
  EXPECT_EQ(tx_->stats().settled, 1u);
}

TEST_F(WindowTxTest, AQueuedRetransmissionIsDroppedWhenItsBlockCompletes) {
  OpenFull({.high = 8});
  const size_t repairs = Drain(kLossy).size() - 8;
  for (uint16_t i = 0; i < repairs; ++i) tx_->OnLost(Repair(0, i), kLossy);
  tx_->OnLost(High(0), kLossy);
  ASSERT_EQ(tx_->NextTier(), Tier::kHighRetransmit);
  AckHigh(1, 8);
  tx_->OnAcked(Repair(0, 0));  // declared lost by mistake
  EXPECT_TRUE(tx_->Idle());
  EXPECT_EQ(tx_->stats().settled, 1u);
}

TEST_F(WindowTxTest, UnsentRepairSymbolsOfACompleteBlockAreDropped) {
  OpenFull({.high = 8});
  for (int i = 0; i < 8; ++i) tx_->Next(kLossy);
  ASSERT_EQ(tx_->NextTier(), Tier::kRepair);
  AckHigh(0, 8);
  EXPECT_TRUE(tx_->Idle());
  EXPECT_EQ(tx_->stats().repairs_sent, 0u);
}

TEST_F(WindowTxTest, ASpuriousLossIsUndone) {
  OpenFull({.high = 8, .low = 1, .k = 0});
  Drain(kClean);
  tx_->OnLost(High(2), kClean);
  tx_->OnLost(Low(0), kClean);
  EXPECT_EQ(tx_->stats().lost, 2u);
  tx_->OnAcked(High(2));
  tx_->OnAcked(Low(0));
  EXPECT_EQ(tx_->stats().lost, 0u);
  EXPECT_TRUE(tx_->Idle()) << "its retransmission is called off";
}

TEST_F(WindowTxTest, LossesAreCountedRightWhicheverCopyTheAckWasFor) {
  OpenFull({.high = 1, .k = 0});
  Drain(kClean);
  tx_->OnLost(High(0), kClean);
  Drain(kClean);                 // the second copy is in flight
  tx_->OnAcked(High(0));         // the first copy arrived after all
  tx_->OnLost(High(0), kClean);  // and the second is lost
  EXPECT_EQ(tx_->stats().lost, 1u);
  EXPECT_TRUE(tx_->Idle());
  tx_->OnAcked(High(0));  // no: it arrived as well
  EXPECT_EQ(tx_->stats().lost, 0u);
}

TEST_F(WindowTxTest, ALostLowChunkIsOnlyCounted) {
  OpenFull({.high = 0, .low = 2});
  Drain(kLossy);
  tx_->OnLost(Low(1), kLossy);
  EXPECT_TRUE(tx_->Idle());
  EXPECT_EQ(tx_->stats().lost, 1u);
}

TEST_F(WindowTxTest, OnlyBlocksWithoutSlackGetRepairSymbols) {
  // 64 chunks in blocks of 8, one after the other; a recovery time lasts 20 packets.
  OpenFull({.high = 64, .depth = 1});
  std::array<int, 8> repairs{};
  for (const auto& item : Drain({.loss = 0.1, .packets_per_recovery_time = 20})) {
    if (item.header.repair) ++repairs[item.header.block()];
  }
  for (size_t block = 0; block < 4; ++block) EXPECT_EQ(repairs[block], 0) << block;
  EXPECT_TRUE(std::ranges::is_sorted(repairs));
  EXPECT_GT(repairs[7], 1);
}

// A window that waits for its chunks ends later than the path would let it: its blocks have the slack of
// that.
TEST_F(WindowTxTest, ChunksThatAreStillToComeAreSlack) {
  using std::chrono::milliseconds;
  const auto repairs_sent = [this](bool slowly) {
    OpenFull({.high = 64, .depth = 1});
    PathView path{.loss = 0.1, .packets_per_recovery_time = 100};
    path.recovery_time = milliseconds(50);
    int repairs = 0;
    for (int i = 0; i < 64 || tx_->NextTier() == Tier::kRepair; ++i) {
      path.now = Instant() + milliseconds(slowly ? 10 * i : 0);
      repairs += tx_->Next(path)->header.repair ? 1 : 0;
      if (i == 63) path.now = path.now + milliseconds(1);
    }
    return repairs;
  };
  EXPECT_LT(repairs_sent(true), repairs_sent(false));
}

TEST_F(WindowTxTest, AShortBlockIsJudgedByItsRealSymbols) {
  OpenFull({.high = 8});
  const size_t full = Drain(kLossy).size() - 8;
  OpenFull({.high = 1});
  EXPECT_EQ(Drain(kLossy).size() - 1, 1u) << "one chunk at 2 %: both copies are lost in 0.04 %";
  EXPECT_GT(full, 1u);
}

TEST_F(WindowTxTest, RepairSymbolsRebuildTheChunksPaddedWithZeros) {
  // 5 real sources in a block of 8: three virtual zero symbols.
  OpenFull({.high = 5});
  const auto taken = Drain({.loss = 0.0, .packets_per_recovery_time = 1});
  EXPECT_EQ(taken.size(), 5u);
  OpenFull({.high = 5});
  std::array<std::vector<uint8_t>, 8> source;
  for (auto& symbol : source) symbol.assign(32, 0);
  std::vector<std::vector<uint8_t>> repair_bytes;
  while (auto item = tx_->Next(kLossy)) {
    if (item->header.repair) {
      EXPECT_EQ(item->header.symbol(), repair_bytes.size());
      repair_bytes.emplace_back(item->first.begin(), item->first.end());
      continue;
    }
    std::vector<uint8_t>& symbol = source[item->header.index];
    std::ranges::copy(item->second, std::ranges::copy(item->first, symbol.begin()).out);
  }
  ASSERT_GE(repair_bytes.size(), 2u);
  auto damaged = source;
  damaged[1].assign(32, 0xee);
  damaged[4].assign(32, 0xee);
  std::vector<MutableByteSpan> spans(damaged.begin(), damaged.end());
  const std::vector<codec::RepairSymbol> repair{{0, repair_bytes[0]}, {1, repair_bytes[1]}};
  ASSERT_TRUE(coder_.Decode(8, 32, spans, 0b11101101, repair).ok());
  EXPECT_EQ(damaged, source);
}

TEST_F(WindowTxTest, EncodesEachBlockOnce) {
  class Counting final : public codec::ErasureCoder {
   public:
    bool Supports(int k) const override { return inner.Supports(k); }
    void Encode(int k, size_t symbol_bytes, std::span<const ByteSpan> source,
                std::span<const MutableByteSpan> repair) override {
      ++encodes;
      inner.Encode(k, symbol_bytes, source, repair);
    }
    Status Decode(int, size_t, std::span<const MutableByteSpan>, uint32_t,
                  std::span<const codec::RepairSymbol>) override {
      return {};
    }
    codec::ReferenceCoder inner;
    int encodes = 0;
  } coder;
  WindowOptions options{
      .key = {}, .high_count = 24, .symbol_bytes = 32, .fec_k = 8, .fec_depth = 3, .metadata = {}};
  WindowTx tx(options, &coder);
  for (int i = 0; i < 24; ++i) ASSERT_TRUE(tx.Submit(ReliabilityClass::kHigh, {}, body_).ok());
  uint32_t repairs = 0;
  while (auto item = tx.Next(kLossy)) repairs += item->header.repair;
  EXPECT_GE(repairs, 6u);
  EXPECT_EQ(coder.encodes, 3);
}

TEST_F(WindowTxTest, RefusesChunksThatAreTooLongOrTooMany) {
  Open({.high = 1, .low = 0});
  const std::vector<uint8_t> header(17);
  const std::vector<uint8_t> body(33);
  EXPECT_EQ(tx_->Submit(ReliabilityClass::kHigh, header, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(tx_->Submit(ReliabilityClass::kHigh, {}, body).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(tx_->Submit(ReliabilityClass::kHigh, header_, ByteSpan(body).first(31)).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(tx_->Submit(ReliabilityClass::kLow, {}, body_).code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(tx_->AllSubmitted());
  EXPECT_TRUE(tx_->Submit(ReliabilityClass::kHigh, header_, ByteSpan(body).first(30)).ok());
  EXPECT_TRUE(tx_->AllSubmitted());
  EXPECT_EQ(tx_->Submit(ReliabilityClass::kHigh, {}, body_).code(), StatusCode::kFailedPrecondition);
  tx_->Cancel();
  EXPECT_EQ(tx_->Submit(ReliabilityClass::kLow, {}, body_).code(), StatusCode::kFailedPrecondition);
}

TEST_F(WindowTxTest, BacklogCountsWhatHasNotLeftYet) {
  OpenFull({.high = 2, .low = 1, .k = 0});
  EXPECT_EQ(tx_->backlog(), ByteCount(3 * 22));
  tx_->Next(kClean);
  EXPECT_EQ(tx_->backlog(), ByteCount(2 * 22));
  tx_->OnLost(High(0), kClean);
  tx_->Next(kClean);
  EXPECT_EQ(tx_->backlog(), ByteCount(2 * 22)) << "a retransmission is not backlog";
  Drain(kClean);
  EXPECT_EQ(tx_->backlog(), ByteCount(0));
}

TEST_F(WindowTxTest, IsIdleButNotFinishedWhileSubmissionPauses) {
  Open({.high = 8});
  SubmitHigh(3);
  Drain(kLossy);
  EXPECT_TRUE(tx_->Idle());
  EXPECT_FALSE(tx_->Finished());
  EXPECT_FALSE(tx_->StatusFrame().finished);
  SubmitHigh(5);
  EXPECT_GT(Drain(kLossy).size(), 5u);
  EXPECT_TRUE(tx_->StatusFrame().finished);
  EXPECT_EQ(tx_->StatusFrame().high_sent, 8u);
}

TEST_F(WindowTxTest, DescribesItselfInItsOpenFrame) {
  const wire::WindowOpenFrame open = Open({.high = 100, .low = 50, .k = 20, .depth = 4}).OpenFrame();
  EXPECT_EQ(open.window_id, 7u);
  EXPECT_EQ(open.generation, 2);
  EXPECT_EQ(open.high_count, 100u);
  EXPECT_EQ(open.low_count, 50u);
  EXPECT_EQ(open.symbol_bytes, 32);
  EXPECT_EQ(open.fec_k, 20);
  EXPECT_EQ(open.fec_depth, 4);
  EXPECT_EQ(open.metadata.size(), 3u);
}

// --- nack

TEST_F(WindowTxTest, ANackResendsWhatIsNeitherAcknowledgedNorQueued) {
  OpenFull({.high = 12, .low = 2, .k = 0});
  for (int i = 0; i < 10; ++i) tx_->Next(kClean);  // high 0..9
  AckHigh(0, 2);
  tx_->OnLost(High(4), kClean);  // queued by itself
  EXPECT_EQ(Nack({0xff, 0xff}), 7u) << "2, 3, 5..9: not 0 and 1, not 4, not what has never left";
  std::vector<uint32_t> again;
  while (tx_->NextTier() == Tier::kHighRetransmit) {
    const auto item = *tx_->Next(kClean);
    EXPECT_TRUE(item.header.retransmission);
    again.push_back(item.header.index);
  }
  EXPECT_EQ(again, (std::vector<uint32_t>{4, 2, 3, 5, 6, 7, 8, 9}));
  EXPECT_EQ(tx_->stats().retransmissions, 8u);
  EXPECT_EQ(tx_->stats().lost, 1u) << "asked for is not lost";
}

TEST_F(WindowTxTest, ANackNamesChunksFromItsFirstOn) {
  OpenFull({.high = 24, .k = 0});
  Drain(kClean);
  EXPECT_EQ(Nack({0x02, 0xff}, 16), 1u) << "chunk 17; there are none from 24 on";
  EXPECT_EQ(tx_->Next(kClean)->header.index, 17u);
  EXPECT_EQ(Nack({0x02, 0xff}, 0, 1), 0u) << "another generation";
  EXPECT_EQ(Nack({0x02, 0xff}, 0xfffffff8), 0u);
}

TEST_F(WindowTxTest, WhatWasAskedForAndArrivesAfterAllIsNotSentAgain) {
  OpenFull({.high = 8, .k = 0});
  Drain(kClean);
  EXPECT_EQ(Nack({0xff}), 8u);
  AckHigh(0, 8);  // the acknowledgements crossed the question
  EXPECT_TRUE(tx_->Idle());
  EXPECT_EQ(tx_->stats().lost, 0u);
  EXPECT_EQ(Nack({0xff}), 0u);
}

TEST_F(WindowTxTest, TheLossOfACopyThatWasAskedForIsCountedOnce) {
  OpenFull({.high = 8, .k = 0});
  Drain(kClean);
  Nack({0x01});
  tx_->OnLost(High(0), kClean);  // the first copy
  EXPECT_EQ(tx_->stats().lost, 1u);
  EXPECT_EQ(Drain(kClean).size(), 1u);
  tx_->OnAcked(High(0));
  EXPECT_EQ(tx_->stats().lost, 1u);
}

TEST_F(WindowTxTest, ANackResendsSourcesThatWaitForRepair) {
  OpenFull({.high = 8, .k = 8});
  const auto sent = Drain(kLossy);
  ASSERT_TRUE(sent.back().header.repair);
  AckHigh(1, 8);
  tx_->OnLost(High(0), kLossy);
  ASSERT_TRUE(tx_->Idle()) << "it hopes for the repair symbol";
  EXPECT_EQ(Nack({0x01}), 1u);
  EXPECT_EQ(tx_->NextTier(), Tier::kHighRetransmit);
  tx_->OnAcked(Repair(0, 0));
  EXPECT_TRUE(tx_->Idle()) << "the block is complete";
  EXPECT_EQ(Nack({0x01}), 0u);
  EXPECT_EQ(tx_->stats().lost, 1u);
  EXPECT_EQ(tx_->stats().settled, 1u);
}

TEST_F(WindowTxTest, ABlockThatIsCompletedSettlesNothingThatWasOnlyAskedFor) {
  OpenFull({.high = 8, .k = 8});
  Drain(kLossy);
  EXPECT_EQ(Nack({0x01}), 1u);
  AckHigh(1, 8);
  tx_->OnAcked(Repair(0, 0));
  EXPECT_TRUE(tx_->Idle());
  EXPECT_EQ(tx_->stats().settled, 0u);
  tx_->OnLost(High(0), kLossy);
  EXPECT_EQ(tx_->stats().lost, 1u);
  EXPECT_EQ(tx_->stats().settled, 1u);
  EXPECT_TRUE(tx_->Idle());
}

// --- close

TEST_F(WindowTxTest, ACompleteCloseNeedsNoBitmap) {
  OpenFull({.high = 8, .low = 11});
  Drain(kClean);
  EXPECT_TRUE(tx_->OnClose(Close(CloseReason::kComplete, 11, 0, {})));
  EXPECT_TRUE(tx_->closed());
  EXPECT_TRUE(tx_->receipt().high_complete);
  EXPECT_EQ(tx_->receipt().low.count(), 11u);
  EXPECT_FALSE(tx_->OnClose(Close(CloseReason::kComplete, 11, 0, {}))) << "only the first one closes";
}

TEST_F(WindowTxTest, AssemblesCloseSegmentsInAnyOrderWithDuplicates) {
  OpenFull({.high = 0, .low = 44, .k = 0});
  Drain(kClean);
  const std::vector<uint8_t> bitmap{0xff, 0x01, 0x80, 0x10, 0x00, 0x0f};
  const ByteSpan all(bitmap);
  EXPECT_FALSE(tx_->OnClose(Close(CloseReason::kRatio, 44, 32, all.subspan(4))));
  EXPECT_FALSE(tx_->OnClose(Close(CloseReason::kRatio, 44, 32, all.subspan(4))));
  EXPECT_FALSE(tx_->OnClose(Close(CloseReason::kRatio, 44, 0, all.first(2))));
  EXPECT_FALSE(tx_->closed());
  EXPECT_TRUE(tx_->OnClose(Close(CloseReason::kRatio, 44, 8, all.subspan(1, 3))));
  EXPECT_EQ(tx_->close_reason(), CloseReason::kRatio);
  EXPECT_EQ(tx_->receipt().low.bytes(), bitmap);
  EXPECT_EQ(tx_->receipt().low.count(), 8u + 1 + 1 + 1 + 4);
}

TEST_F(WindowTxTest, TheFirstSegmentThatCoversAChunkStays) {
  OpenFull({.high = 0, .low = 16, .k = 0});
  const std::vector<uint8_t> first{0x01};
  const std::vector<uint8_t> second{0xff, 0x02};
  EXPECT_FALSE(tx_->OnClose(Close(CloseReason::kSoft, 16, 0, first)));
  EXPECT_TRUE(tx_->OnClose(Close(CloseReason::kSoft, 16, 0, second)));
  EXPECT_EQ(tx_->receipt().low.bytes(), (std::vector<uint8_t>{0x01, 0x02}));
}

TEST_F(WindowTxTest, IgnoresBitsBeyondTheLastChunk) {
  OpenFull({.high = 0, .low = 10, .k = 0});
  const std::vector<uint8_t> bitmap{0xff, 0xff};
  EXPECT_TRUE(tx_->OnClose(Close(CloseReason::kSoft, 10, 0, bitmap)));
  EXPECT_EQ(tx_->receipt().low.count(), 10u);
  EXPECT_EQ(tx_->receipt().low.bytes()[1], 0x03);
}

TEST_F(WindowTxTest, IgnoresCloseFramesThatContradictTheWindow) {
  OpenFull({.high = 0, .low = 20, .k = 0});
  const std::vector<uint8_t> bitmap{0xff, 0xff, 0x0f, 0x00};
  const ByteSpan three = ByteSpan(bitmap).first(3);
  EXPECT_FALSE(tx_->OnClose(Close(CloseReason::kSoft, 21, 0, three))) << "another count";
  EXPECT_FALSE(tx_->OnClose(Close(CloseReason::kSoft, 20, 4, ByteSpan(bitmap).first(1))))
      << "not byte aligned";
  EXPECT_FALSE(tx_->OnClose(Close(CloseReason::kSoft, 20, 8, three))) << "beyond the end";
  EXPECT_FALSE(tx_->OnClose(Close(CloseReason::kSoft, 20, 0xfffffff8, three))) << "far beyond the end";
  EXPECT_FALSE(tx_->OnClose(Close(CloseReason::kSoft, 20, 0, bitmap))) << "too long";
  EXPECT_FALSE(tx_->OnClose(Close(CloseReason::kSoft, 20, 0, {}))) << "says nothing";
  wire::WindowCloseFrame other = Close(CloseReason::kSoft, 20, 0, three);
  other.generation = 1;
  EXPECT_FALSE(tx_->OnClose(other)) << "another generation";
  EXPECT_FALSE(tx_->OnClose(Close(CloseReason::kSoft, 20, 0, three.first(2))));
  EXPECT_FALSE(tx_->OnClose(Close(CloseReason::kHard, 20, 16, three.subspan(2)))) << "another reason";
  EXPECT_FALSE(tx_->closed());
  EXPECT_TRUE(tx_->OnClose(Close(CloseReason::kSoft, 20, 16, three.subspan(2))));
}

TEST_F(WindowTxTest, ACloseWithoutLowChunksIsOneFrame) {
  OpenFull({.high = 8, .low = 0});
  EXPECT_TRUE(tx_->OnClose(Close(CloseReason::kSoft, 0, 0, {})));
  EXPECT_TRUE(tx_->receipt().high_complete);
  EXPECT_EQ(tx_->close_reason(), CloseReason::kSoft);
}

TEST_F(WindowTxTest, AnIncompleteCloseNamesBothClasses) {
  OpenFull({.high = 10, .low = 3});
  const std::vector<uint8_t> bitmap{0b1000'1010, 0b0001'0000};
  wire::WindowCloseFrame frame = Close(CloseReason::kHard, 13, 0, ByteSpan(bitmap).first(1));
  frame.high_complete = false;
  EXPECT_FALSE(tx_->OnClose(frame));
  frame.first = 8;
  frame.bitmap = ByteSpan(bitmap).subspan(1);
  EXPECT_TRUE(tx_->OnClose(frame));
  const WindowReceipt& receipt = tx_->receipt();
  EXPECT_FALSE(receipt.high_complete);
  EXPECT_EQ(receipt.low.count(), 1u);
  EXPECT_TRUE(receipt.LowTaken(1));
  EXPECT_EQ(receipt.high.count(), 3u);
  for (const uint32_t s : {0u, 4u, 9u}) EXPECT_TRUE(receipt.HighTaken(s)) << s;
  EXPECT_FALSE(receipt.HighTaken(1));
  EXPECT_FALSE(receipt.HighTaken(10)) << "there is none";
}

TEST_F(WindowTxTest, AnEmptyCloseMeansThatNothingWasTaken) {
  OpenFull({.high = 8, .low = 11});
  wire::WindowCloseFrame frame = Close(CloseReason::kExcluded, 19, 0, {});
  frame.high_complete = false;
  EXPECT_TRUE(tx_->OnClose(frame));
  EXPECT_EQ(tx_->receipt().low.count(), 0u);
  EXPECT_EQ(tx_->receipt().low.size(), 11u);
  EXPECT_EQ(tx_->receipt().high.count(), 0u);
  EXPECT_FALSE(tx_->receipt().HighTaken(0));
}

TEST_F(WindowTxTest, IgnoresACloseWhoseBitsAreNotThoseOfItsClasses) {
  OpenFull({.high = 8, .low = 11});
  const std::vector<uint8_t> bitmap{0xff, 0x07, 0x00};
  wire::WindowCloseFrame frame = Close(CloseReason::kHard, 11, 0, ByteSpan(bitmap).first(2));
  frame.high_complete = false;
  EXPECT_FALSE(tx_->OnClose(frame)) << "the high class is not named";
  frame.bits = 19;
  frame.bitmap = bitmap;
  frame.high_complete = true;
  EXPECT_FALSE(tx_->OnClose(frame)) << "the high class is named although it is complete";
  frame.high_complete = false;
  frame.bitmap = ByteSpan(bitmap).first(1);
  EXPECT_FALSE(tx_->OnClose(frame));
  frame.bitmap = {};
  EXPECT_FALSE(tx_->OnClose(frame)) << "nothing was taken, after something was";
  EXPECT_FALSE(tx_->closed());

  OpenFull({.high = 0, .low = 8, .k = 0});
  frame = Close(CloseReason::kHard, 8, 0, ByteSpan(bitmap).first(1));
  frame.high_complete = false;
  EXPECT_FALSE(tx_->OnClose(frame)) << "no high class can be incomplete";
}

TEST_F(WindowTxTest, ClosingReleasesEverythingAndCountsTheDropped) {
  OpenFull({.high = 2, .low = 10, .k = 0});
  for (int i = 0; i < 5; ++i) tx_->Next(kClean);
  tx_->OnLost(High(1), kClean);
  const std::vector<uint8_t> bitmap{0x07, 0x00};
  EXPECT_TRUE(tx_->OnClose(Close(CloseReason::kHard, 10, 0, bitmap)));
  body_ = {};  // the owner takes his memory back
  EXPECT_TRUE(tx_->Idle());
  EXPECT_FALSE(tx_->Next(kClean).has_value());
  EXPECT_EQ(tx_->backlog(), ByteCount(0));
  EXPECT_EQ(tx_->stats().low_sent, 3u);
  EXPECT_EQ(tx_->stats().low_dropped, 7u);
  EXPECT_EQ(tx_->stats().lost, 1u);
  tx_->OnAcked(High(1));  // late news changes nothing
  tx_->OnLost(High(0), kClean);
  EXPECT_EQ(tx_->stats().lost, 1u);
}

TEST_F(WindowTxTest, CancelReleasesEverything) {
  OpenFull({.high = 8, .low = 3});
  for (int i = 0; i < 4; ++i) tx_->Next(kLossy);
  tx_->Cancel();
  EXPECT_TRUE(tx_->closed());
  EXPECT_EQ(tx_->close_reason(), CloseReason::kCancelled);
  EXPECT_FALSE(tx_->receipt().high_complete);
  EXPECT_EQ(tx_->NextTier(), Tier::kNothing);
  EXPECT_EQ(tx_->stats().low_dropped, 3u);
  EXPECT_FALSE(tx_->OnClose(Close(CloseReason::kComplete, 3, 0, {})));
  EXPECT_EQ(tx_->close_reason(), CloseReason::kCancelled);
}

}  // namespace
}  // namespace longhaul::transport
