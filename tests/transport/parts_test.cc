// Chunks that travel in parts: cut, put together again, in bounded memory, and whose fate is that of all
// parts.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/random.h"
#include "tests/transport/owners.h"
#include "transport/core/window/chunk_cutter.h"
#include "transport/core/window/part_assembly.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<uint8_t>;
using Verdict = PartAssembly::Verdict;
using wire::ReliabilityClass;

Bytes Counting(size_t size, uint8_t first = 1) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(first + i * 7);
  return bytes;
}

WindowTx::Item ItemOf(const Bytes& bytes, size_t header_bytes = 12) {
  WindowTx::Item item;
  item.header.window_id = item.chunk.window_id = 5;
  item.header.index = item.chunk.index = 9;
  item.first = ByteSpan(bytes).first(std::min(header_bytes, bytes.size()));
  item.second = ByteSpan(bytes).subspan(item.first.size());
  return item;
}

struct Part {
  wire::DataHeader header;
  wire::PartHeader at;
  Bytes bytes;
  std::shared_ptr<CutChunk> cut;
};

Part Read(const WindowTx::Item& item) {
  Bytes packet(item.first.begin(), item.first.end());
  packet.insert(packet.end(), item.second.begin(), item.second.end());
  ByteReader reader(packet);
  const auto at = wire::DecodePartHeader(reader);
  EXPECT_TRUE(at.has_value()) << "the sender writes what the decoder takes";
  const ByteSpan rest = reader.Rest();
  return {item.header, at.value_or(wire::PartHeader()), Bytes(rest.begin(), rest.end()), item.cut};
}

std::vector<Part> Cut(const Bytes& chunk, size_t room) {
  ChunkCutter cutter;
  cutter.Take(ItemOf(chunk));
  std::vector<Part> parts;
  while (cutter.HasRest()) parts.push_back(Read(cutter.Next(room)));
  return parts;
}

TEST(ChunkCutter, PartsAreEquallyLongAndTogetherTheChunk) {
  for (const size_t size : {16u, 700u, 1392u, 8896u, 64992u}) {
    for (const size_t room : {ChunkCutter::kMinRoom, size_t{552}, size_t{700}, size_t{1152}}) {
      SCOPED_TRACE(testing::Message() << size << " bytes into packets of " << room);
      if (size <= room) continue;
      const Bytes chunk = Counting(size);
      const std::vector<Part> parts = Cut(chunk, room);
      Bytes together;
      for (const Part& part : parts) {
        EXPECT_LE(part.bytes.size() + wire::kPartHeaderBytes, room);
        EXPECT_EQ(part.at.offset, together.size());
        EXPECT_EQ(part.at.total, size);
        EXPECT_LE(parts.front().bytes.size() - part.bytes.size(), wire::kPartUnit * parts.size());
        together.insert(together.end(), part.bytes.begin(), part.bytes.end());
      }
      EXPECT_EQ(together, chunk);
    }
  }
  const std::vector<Part> halves = Cut(Counting(1392), 1152);
  ASSERT_EQ(halves.size(), 2u);
  EXPECT_EQ(halves[0].bytes.size(), halves[1].bytes.size()) << "one GSO send takes both";
}

TEST(ChunkCutter, OnlyTheLastPartEndsTheWindow) {
  const Bytes chunk = Counting(1392);
  WindowTx::Item item = ItemOf(chunk);
  item.header.last_of_window = true;
  ChunkCutter cutter;
  cutter.Take(item);
  EXPECT_FALSE(cutter.Next(552).header.last_of_window);
  EXPECT_FALSE(cutter.Next(552).header.last_of_window);
  EXPECT_TRUE(cutter.Next(552).header.last_of_window);
  EXPECT_FALSE(cutter.HasRest());
}

TEST(ChunkCutter, ThePathMayShrinkBetweenTwoParts) {
  const Bytes chunk = Counting(1392);
  ChunkCutter cutter;
  cutter.Take(ItemOf(chunk));
  const Part first = Read(cutter.Next(1152));
  Bytes together = first.bytes;
  int more = 0;
  for (; cutter.HasRest(); ++more) {
    const Part part = Read(cutter.Next(300));
    together.insert(together.end(), part.bytes.begin(), part.bytes.end());
  }
  EXPECT_EQ(more, 3);
  EXPECT_EQ(together, chunk);
}

TEST(ChunkCutter, WhatWaitsOfAWindowThatIsOverDoesNotLeave) {
  const Bytes chunk = Counting(1392);
  ChunkCutter cutter;
  cutter.Take(ItemOf(chunk));
  cutter.Next(1152);
  cutter.Forget({6, 0});
  EXPECT_TRUE(cutter.HasRest());
  cutter.Forget({5, 0});
  EXPECT_FALSE(cutter.HasRest());
}

TEST(CutChunk, HasArrivedWithTheLastOfItsPartsAndIsLostWithTheFirst) {
  CutChunk cut;
  cut.OnPartSent(false);
  EXPECT_FALSE(cut.OnPartAcked()) << "the rest has not left";
  cut.OnPartSent(false);
  cut.OnPartSent(true);
  EXPECT_TRUE(cut.OnPartLost());
  EXPECT_FALSE(cut.OnPartLost());
  EXPECT_FALSE(cut.OnPartAcked());
  EXPECT_TRUE(cut.OnPartAcked()) << "late, but all are there";
}

class PartAssemblyTest : public testing::Test {
 protected:
  static wire::DataHeader Header(uint32_t index, ReliabilityClass reliability = ReliabilityClass::kHigh,
                                 bool repair = false, uint32_t window = 5) {
    return {.window_id = window, .index = index, .reliability = reliability, .repair = repair, .part = true};
  }
  Verdict Add(const wire::DataHeader& header, size_t offset, size_t size) {
    return parts_.Add(header, {static_cast<uint16_t>(offset), static_cast<uint16_t>(chunk_.size())},
                      ByteSpan(chunk_).subspan(offset, size), [this](const wire::DataHeader& h) {
                        ++asked_;
                        return over_.contains(h.index);
                      });
  }
  void ExpectWhole(const wire::DataHeader& header) {
    const PartAssembly::Whole whole = parts_.whole(header);
    EXPECT_TRUE(std::ranges::equal(whole.bytes, chunk_));
    EXPECT_FALSE(whole.header.part);
    parts_.Release(header);
  }

  Bytes chunk_ = Counting(1392);
  PartAssembly parts_;
  std::set<uint32_t> over_;  // indices of no use any more
  int asked_ = 0;
};

TEST_F(PartAssemblyTest, PartsComeInAnyOrderTwiceAndCutAnew) {
  const auto a = Header(1), b = Header(2);
  EXPECT_EQ(Add(a, 696, 696), Verdict::kKept);
  EXPECT_EQ(Add(a, 696, 696), Verdict::kKept);
  EXPECT_EQ(Add(b, 0, 464), Verdict::kKept);
  EXPECT_EQ(Add(a, 0, 464), Verdict::kKept);  // sent again on a smaller path: overlaps
  EXPECT_EQ(Add(a, 464, 464), Verdict::kWhole);
  ExpectWhole(a);
  EXPECT_EQ(parts_.chunks(), 1u);
  EXPECT_EQ(Add(b, 464, 928), Verdict::kWhole);
  ExpectWhole(b);
  EXPECT_EQ(parts_.bytes(), 0u);
}

TEST_F(PartAssemblyTest, AWholeChunkIsNotMixedUpWithItsNamesakes) {
  const auto high = Header(1), low = Header(1, ReliabilityClass::kLow), repair = Header(1, {}, true),
             other = Header(1, {}, false, 6);
  auto next = Header(1);
  next.generation = 1;
  for (const auto& header : {high, low, repair, other, next}) EXPECT_EQ(Add(header, 0, 696), Verdict::kKept);
  EXPECT_EQ(parts_.chunks(), 5u);
  parts_.Forget({6, 0});
  EXPECT_EQ(parts_.chunks(), 4u);
  parts_.Forget({5, 0});
  EXPECT_EQ(parts_.chunks(), 1u);
  EXPECT_EQ(Add(next, 696, 696), Verdict::kWhole);
}

TEST_F(PartAssemblyTest, AnotherTotalIsALie) {
  EXPECT_EQ(Add(Header(1), 0, 696), Verdict::kKept);
  const Bytes half(512);
  EXPECT_EQ(parts_.Add(Header(1), {0, 1024}, half, [](const auto&) { return false; }), Verdict::kInvalid);
}

TEST_F(PartAssemblyTest, APartThatFoundNoRoomBehindIsAsIfItHadNotCome) {
  EXPECT_EQ(Add(Header(1), 0, 696), Verdict::kKept);
  EXPECT_EQ(Add(Header(1), 464, 928), Verdict::kWhole);  // overlaps what is here to stay
  parts_.TakeBack(Header(1));
  EXPECT_EQ(Add(Header(1), 928, 464), Verdict::kKept) << "464..696 is here, 696..928 is not";
  EXPECT_EQ(Add(Header(1), 696, 232), Verdict::kWhole);
  ExpectWhole(Header(1));
}

// The sender counts on what was acknowledged of the high class.
TEST_F(PartAssemblyTest, HighHalvesAreRefusedBeyondTheBoundAndNeverThrownAway) {
  uint32_t kept = 0;
  while (kept < 10'000 && Add(Header(kept), 0, 696) == Verdict::kKept) ++kept;
  EXPECT_LE(parts_.bytes(), PartAssembly::kMaxHighBytes);
  EXPECT_GE(parts_.bytes() + 2000, PartAssembly::kMaxHighBytes);
  for (uint32_t i = 0; i < 2 * kept; ++i) EXPECT_EQ(Add(Header(kept + i), 0, 696), Verdict::kNoRoom);
  EXPECT_EQ(Add(Header(0, {}, true), 0, 696), Verdict::kKept) << "repair symbols have their own room";
  for (uint32_t i = 0; i < kept; ++i) {
    ASSERT_EQ(Add(Header(i), 696, 696), Verdict::kWhole);
    parts_.Release(Header(i));
  }
  EXPECT_EQ(parts_.dropped(), 0u);
  EXPECT_EQ(Add(Header(kept), 0, 696), Verdict::kKept);
}

TEST_F(PartAssemblyTest, WhatIsOfNoUseGivesRoomAtABoundedPrice) {
  uint32_t kept = 0;
  while (kept < 10'000 && Add(Header(kept), 0, 696) == Verdict::kKept) ++kept;
  asked_ = 0;
  EXPECT_EQ(Add(Header(kept), 0, 696), Verdict::kNoRoom);
  EXPECT_LE(asked_, PartAssembly::kLooks);
  over_ = {kept / 2};
  int tries = 1;
  while (Add(Header(kept), 0, 696) == Verdict::kNoRoom && tries < 1000) ++tries;
  EXPECT_LE(tries, static_cast<int>(kept) / PartAssembly::kLooks + 1) << "the hand goes around once";
  EXPECT_EQ(Add(Header(kept), 696, 696), Verdict::kWhole);
}

TEST_F(PartAssemblyTest, LowHalvesGiveRoomToOthersAndAreCounted) {
  const auto low = [](uint32_t i) { return Header(i, ReliabilityClass::kLow); };
  for (uint32_t i = 0; i < 10'000; ++i) ASSERT_EQ(Add(low(i), 0, 696), Verdict::kKept);
  EXPECT_LE(parts_.bytes(), PartAssembly::kMaxOtherBytes);
  EXPECT_EQ(parts_.chunks() + parts_.dropped(), 10'000u);
  EXPECT_EQ(Add(Header(7, {}, true), 0, 696), Verdict::kKept);
  EXPECT_EQ(Add(low(9'999), 696, 696), Verdict::kWhole);
}

TEST_F(PartAssemblyTest, TinyChunksCostWhatTheirBookkeepingDoes) {
  chunk_ = Counting(16);
  uint32_t kept = 0;
  while (kept < 10'000 && Add(Header(kept), 0, 8) == Verdict::kKept) ++kept;
  EXPECT_LE(kept, PartAssembly::kMaxHighBytes / PartAssembly::kMinCost);
}

// Against a plain model: sets of units by name.
TEST_F(PartAssemblyTest, RandomPartsAgreeWithAModel) {
  const uint64_t seed = 20231;
  Random random(seed);
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  chunk_ = Counting(208);
  const auto units = static_cast<uint32_t>(chunk_.size() / wire::kPartUnit);
  std::map<uint32_t, std::set<uint32_t>> model;
  for (int step = 0; step < 20'000; ++step) {
    const auto index = static_cast<uint32_t>(random.Below(40));
    const auto first = static_cast<uint32_t>(random.Below(units));
    const auto count = static_cast<uint32_t>(1 + random.Below(units - first));
    if (count == units) continue;
    const Verdict verdict = Add(Header(index), first * wire::kPartUnit, count * wire::kPartUnit);
    std::set<uint32_t> fresh;
    for (uint32_t unit = first; unit < first + count; ++unit) {
      if (model[index].insert(unit).second) fresh.insert(unit);
    }
    ASSERT_EQ(verdict, model[index].size() == units ? Verdict::kWhole : Verdict::kKept) << "step " << step;
    if (verdict != Verdict::kWhole) continue;
    if (random.Chance(0.3)) {
      parts_.TakeBack(Header(index));
      for (const uint32_t unit : fresh) model[index].erase(unit);
    } else {
      ExpectWhole(Header(index));
      model.erase(index);
    }
    if (random.Chance(0.1)) parts_.EndLoans();
  }
}

// --- Through the windows of a connection ---

constexpr WindowKey kKey{1, 0};

class PartsTest : public testing::Test {
 protected:
  void Open(uint32_t high, uint32_t low, uint8_t fec_k = 0) {
    const WindowOptions o{.key = kKey,
                          .high_count = high,
                          .low_count = low,
                          .symbol_bytes = 1024,
                          .fec_k = fec_k,
                          .metadata = {}};
    ASSERT_TRUE(sender_.windows.Open(o, Owners::Parameters()).ok());
    for (uint32_t i = 0; i < high + low; ++i) {
      const auto reliability = i < high ? ReliabilityClass::kHigh : ReliabilityClass::kLow;
      ASSERT_TRUE(sender_.windows.Submit(kKey, reliability, {}, body_).ok());
    }
    ASSERT_TRUE(receiver_.windows
                    .OnOpen({.window_id = kKey.id,
                             .high_count = high,
                             .low_count = low,
                             .symbol_bytes = 1024,
                             .fec_k = fec_k})
                    .ok());
  }
  // The next packet, of up to `longest` bytes; nullopt: nothing waits.
  std::optional<SentPacket> Send(size_t longest) {
    packet_.assign(longest, 0);
    PacketBuilder builder(packet_);
    builder.StartShort({1}, number_++);
    PathView path;
    path.packet_bytes = longest - wire::kDataOverheadBytes;
    if (!sender_.windows.AddChunk(path, 0, &builder)) return std::nullopt;
    packet_.resize(builder.Seal(sender_.security.long_protection()));
    EXPECT_LE(packet_.size(), longest);
    return builder.TakeSent();
  }
  // It arrives.
  Windows::ChunkFate Deliver() {
    ByteReader reader(ByteSpan(packet_).subspan(wire::kShortHeaderBytes));
    const auto header = wire::DecodeDataHeader(reader);
    const size_t begin = wire::kShortHeaderBytes + wire::kDataHeaderBytes;
    MutableByteSpan all(packet_);
    EXPECT_TRUE(sender_.security.long_protection().Open(
        number_ - 1, 0, all.first(begin), all.subspan(begin, packet_.size() - begin - wire::kTagBytes),
        all.last(wire::kTagBytes)));
    return receiver_.windows.OnChunk(*header, all.subspan(begin, packet_.size() - begin - wire::kTagBytes));
  }
  int Polled() {
    int n = 0;
    while (const auto chunk = *receiver_.windows.PollChunk(kKey)) {
      EXPECT_TRUE(std::ranges::equal(chunk->bytes, body_));
      ++n;
    }
    receiver_.windows.EndLoans();
    return n;
  }
  // A hostile packet.
  Windows::ChunkFate Forge(wire::DataHeader header, wire::PartHeader at, size_t bytes) {
    header.part = true;
    Bytes all(wire::kPartHeaderBytes + bytes);
    ByteWriter writer(all);
    wire::Encode(at, writer);
    return receiver_.windows.OnChunk(header, all);
  }

  static constexpr auto kTaken = Windows::ChunkFate::kTaken;
  static constexpr auto kInvalid = Windows::ChunkFate::kInvalid;
  static constexpr auto kNoRoom = Windows::ChunkFate::kNoRoom;
  Bytes body_ = Counting(1024);
  Bytes packet_;
  wire::PacketNumber number_ = 0;
  Owners sender_{true}, receiver_{false};
};

TEST_F(PartsTest, AChunkIsCutOnlyWhereItDoesNotFit) {
  Open(2, 0);
  EXPECT_EQ(Send(1452)->cut, nullptr);
  EXPECT_EQ(sender_.stats.chunks_cut, 0u);
  EXPECT_NE(Send(700)->cut, nullptr);
  EXPECT_TRUE(sender_.windows.HasChunk());
  EXPECT_NE(Send(700)->cut, nullptr);
  EXPECT_FALSE(Send(700).has_value());
  EXPECT_EQ(sender_.stats.chunks_cut, 1u);
  EXPECT_EQ(sender_.stats.chunk_bytes_sent, 2 * body_.size());
}

TEST_F(PartsTest, AChunkIsDeliveredOnceWithItsLastPart) {
  Open(1, 1);
  for (int chunk = 0; chunk < 2; ++chunk) {
    ASSERT_TRUE(Send(700));
    EXPECT_EQ(Deliver(), kTaken);
    EXPECT_EQ(Polled(), 0);
    ASSERT_TRUE(Send(700));
    EXPECT_EQ(Deliver(), kTaken);
    EXPECT_EQ(Polled(), 1);
  }
  EXPECT_EQ(receiver_.stats.chunks_joined, 2u);
  EXPECT_TRUE(receiver_.windows.incoming().Find(kKey)->Complete());
  EXPECT_TRUE(receiver_.windows.incoming().Find(kKey)->sender_finished());
}

TEST_F(PartsTest, ALostPartOfAHighChunkBringsTheChunkAgainAndOfALowOneNothing) {
  Open(1, 1);
  const auto high_a = Send(700), high_b = Send(700), low_a = Send(700), low_b = Send(700);
  ASSERT_TRUE(low_b);
  PathView path;
  sender_.windows.OnPacketLost(*low_b, path);
  sender_.windows.OnPacketLost(*high_a, path);
  sender_.windows.OnPacketLost(*high_b, path);
  EXPECT_TRUE(Send(700));
  EXPECT_TRUE(Send(700));
  EXPECT_FALSE(Send(700)) << "once, not once per part";
  EXPECT_EQ(sender_.stats.retransmissions, 1u);
  EXPECT_EQ(sender_.windows.outgoing().Find(kKey)->stats().lost, 2u);
}

TEST_F(PartsTest, TheSenderCountsAChunkWhenAllItsPartsAreAcknowledged) {
  Open(1, 0);
  const auto a = Send(700), b = Send(700);
  sender_.windows.OnPacketAcked(*a);
  const SentChunk chunk = *a->chunk;
  EXPECT_TRUE(sender_.windows.outgoing().Find(kKey)->OnProbe(chunk)) << "still in flight";
  ASSERT_TRUE(Send(1452));
  sender_.windows.OnPacketAcked(*b);
  EXPECT_FALSE(sender_.windows.outgoing().Find(kKey)->OnProbe(chunk));
}

TEST_F(PartsTest, PartsOfDifferentCopiesMakeOneChunk) {
  Open(1, 0);
  const auto a = Send(700);
  EXPECT_EQ(Deliver(), kTaken);
  const auto lost = Send(700);  // never arrives
  sender_.windows.OnPacketLost(*lost, {});
  int packets = 0;
  while (Send(500)) {  // cut anew: the path has become smaller still
    EXPECT_EQ(Deliver(), kTaken);
    ++packets;
  }
  EXPECT_EQ(packets, 3);
  EXPECT_EQ(Polled(), 1);
  EXPECT_TRUE(receiver_.windows.incoming().Find(kKey)->Complete());
}

TEST_F(PartsTest, RepairSymbolsInPartsRebuildABlock) {
  Open(8, 0, 8);
  PathView lossy;
  lossy.loss = 0.3;
  lossy.packets_per_recovery_time = 1000;
  lossy.packet_bytes = 700 - wire::kDataOverheadBytes;
  int packets = 0, delivered = 0;
  for (;; ++packets) {
    packet_.assign(700, 0);
    PacketBuilder builder(packet_);
    builder.StartShort({1}, number_++);
    if (!sender_.windows.AddChunk(lossy, 0, &builder)) break;
    packet_.resize(builder.Seal(sender_.security.long_protection()));
    if (packets / 2 % 4 == 1 && packets < 16) continue;  // chunks 1 and 5
    EXPECT_EQ(Deliver(), kTaken);
    delivered += Polled();
  }
  EXPECT_GT(sender_.stats.repairs_sent, 1u);
  EXPECT_EQ(delivered, 8);
  EXPECT_EQ(receiver_.windows.incoming().Find(kKey)->stats().high_repaired, 2u);
}

TEST_F(PartsTest, PartsThatCannotBeAreAViolation) {
  Open(2, 2);
  const wire::DataHeader high{.window_id = 1}, outside{.window_id = 1, .index = 2};
  EXPECT_EQ(Forge(high, {0, 1024}, 0), kInvalid);       // nothing
  EXPECT_EQ(Forge(high, {0, 1024}, 1024), kInvalid);    // all: it needs no part
  EXPECT_EQ(Forge(high, {512, 1024}, 520), kInvalid);   // beyond the end
  EXPECT_EQ(Forge(high, {4, 1024}, 512), kInvalid);     // not of whole units
  EXPECT_EQ(Forge(high, {0, 1024}, 12), kInvalid);      // likewise
  EXPECT_EQ(Forge(high, {0, 65528}, 512), kInvalid);    // longer than the window's chunks
  EXPECT_EQ(Forge(high, {65520, 65528}, 8), kInvalid);  // likewise
  EXPECT_EQ(Forge(outside, {0, 1024}, 512), kInvalid);  // no such chunk
  EXPECT_EQ(Forge(high, {0, 1024}, 512), kTaken);       // one that can
  EXPECT_EQ(Forge(high, {0, 1000}, 512), kInvalid);     // and contradicts it
  wire::DataHeader repair = high;
  repair.repair = true;
  EXPECT_EQ(Forge(repair, {0, 1024}, 512), kInvalid);  // a window without FEC
}

TEST_F(PartsTest, PartsOfOtherWindowsStayBounded) {
  // Windows that were never opened: the high class of each, without end.
  uint64_t kept = 0, refused = 0;
  for (uint32_t i = 0; i < 20'000; ++i) {
    const Windows::ChunkFate fate = Forge({.window_id = 100 + i, .index = i}, {0, 1392}, 1024);
    ++(fate == kTaken ? kept : refused);
  }
  EXPECT_LE(kept * 1392, PartAssembly::kMaxHighBytes);
  EXPECT_EQ(receiver_.stats.parts_refused, refused);
  Open(1, 0);
  EXPECT_EQ(Forge({.window_id = 1}, {0, 1024}, 512), kNoRoom) << "not acknowledged, so it comes again";
  EXPECT_EQ(receiver_.windows.OnChunk({.window_id = 1}, body_), kTaken) << "whole chunks need no room";
}

TEST_F(PartsTest, PartsBeforeTheirOpenWaitForIt) {
  const wire::DataHeader early{.window_id = 7};
  EXPECT_EQ(Forge(early, {0, 1024}, 512), kTaken);
  EXPECT_EQ(Forge(early, {512, 1024}, 512), kTaken);
  ASSERT_TRUE(receiver_.windows.OnOpen({.window_id = 7, .high_count = 1, .symbol_bytes = 1024}).ok());
  const auto chunk = *receiver_.windows.PollChunk({7, 0});
  ASSERT_TRUE(chunk.has_value());
  EXPECT_EQ(chunk->bytes.size(), 1024u);
}

TEST_F(PartsTest, LatePartsOfAClosedWindowAreDroppedAndNothingStaysOfIt) {
  Open(2, 0);
  EXPECT_EQ(Forge({.window_id = 1}, {0, 1024}, 512), kTaken);
  EXPECT_EQ(receiver_.windows.parts().chunks(), 1u);
  ASSERT_TRUE(receiver_.windows.Close(kKey, wire::CloseReason::kHard));
  EXPECT_EQ(receiver_.windows.parts().bytes(), 0u);
  EXPECT_EQ(Forge({.window_id = 1}, {512, 1024}, 512), kTaken);
  EXPECT_EQ(receiver_.stats.late_dropped, 1u);
  EXPECT_EQ(receiver_.stats.chunks_joined, 0u);
}

TEST_F(PartsTest, APartOfAChunkThatIsHereIsAcknowledgedAndForgotten) {
  Open(2, 0);
  EXPECT_EQ(receiver_.windows.OnChunk({.window_id = 1}, body_), kTaken);
  EXPECT_EQ(Polled(), 1);
  EXPECT_EQ(Forge({.window_id = 1}, {0, 1024}, 512), kTaken);
  EXPECT_EQ(Forge({.window_id = 1}, {512, 1024}, 512), kTaken);
  EXPECT_EQ(Polled(), 0);
  EXPECT_EQ(receiver_.stats.chunks_joined, 0u);
}

TEST_F(PartsTest, TheRestOfAClosedOrCancelledWindowDoesNotLeave) {
  Open(1, 0);
  ASSERT_TRUE(Send(700));
  sender_.windows.Cancel(kKey);
  EXPECT_FALSE(sender_.windows.HasChunk());
  EXPECT_FALSE(Send(700));
}

// The largest frame of ours on the smallest path.
TEST_F(PartsTest, ANackFitsASmallPacketAndNamesWhatItHolds) {
  ASSERT_TRUE(
      receiver_.windows.OnOpen({.window_id = kKey.id, .high_count = 20'000, .symbol_bytes = 1024, .fec_k = 0})
          .ok());
  for (const size_t longest : {size_t{Path::kSmallestDatagram}, size_t{Path::kBaseDatagram}}) {
    receiver_.windows.incoming().RequestMissing(kKey);
    Bytes packet(longest);
    PacketBuilder builder(packet);
    builder.StartShort({1}, number_++);
    receiver_.windows.AddFrames(Instant(), &builder);
    EXPECT_FALSE(receiver_.windows.HasFrames()) << longest;
    ByteReader reader(ByteSpan(packet).subspan(wire::kShortHeaderBytes));
    const Result<wire::Frame> frame = wire::DecodeFrame(reader);
    ASSERT_TRUE(frame.ok());
    const auto* nack = std::get_if<wire::WindowNackFrame>(&*frame);
    ASSERT_NE(nack, nullptr);
    EXPECT_GE(nack->bitmap.size(), std::min(longest - 64, wire::kMaxNackBitmapBytes));
  }
}

TEST(PathViewFor, AChunkInTwoPacketsIsLostWithEither) {
  PathView path;
  path.loss = 0.1;
  path.packets_per_recovery_time = 100;
  path.packet_bytes = 1152;
  EXPECT_EQ(path.For(1152).loss, 0.1);
  const PathView cut = path.For(1392);
  EXPECT_NEAR(cut.loss, 0.19, 1e-9);
  EXPECT_EQ(cut.packets_per_recovery_time, 50);
}

}  // namespace
}  // namespace longhaul::transport
