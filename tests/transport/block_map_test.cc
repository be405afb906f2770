#include "transport/core/window/block_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <vector>

#include "base/random.h"
#include "codec/fec/erasure_coder.h"

namespace longhaul::transport {
namespace {

using Position = BlockMap::Position;

TEST(BlockMap, FillsASuperblockRowByRow) {
  //          symbol 0   1    ...  7
  // block 0:        0   2         14
  // block 1:        1   3         15      then block 2: 16, 18, ...
  const BlockMap map(32, 8, 2);
  EXPECT_EQ(map.block_count(), 4u);
  EXPECT_EQ(map.Locate(0), (Position{0, 0}));
  EXPECT_EQ(map.Locate(1), (Position{1, 0}));
  EXPECT_EQ(map.Locate(2), (Position{0, 1}));
  EXPECT_EQ(map.Locate(15), (Position{1, 7}));
  EXPECT_EQ(map.Locate(16), (Position{2, 0}));
  EXPECT_EQ(map.LastSequence(0), 14u);
  EXPECT_EQ(map.LastSequence(3), 31u);
}

TEST(BlockMap, SpreadsTheRestEvenly) {
  // 21 chunks, one superblock of 2 x 8, rest 5: one block of 5.
  EXPECT_EQ(BlockMap(21, 8, 2).block_count(), 3u);
  EXPECT_EQ(BlockMap(21, 8, 2).SourceSymbols(2), 5);
  // Rest 9 needs two blocks: 5 and 4, and not 8 and 1.
  const BlockMap map(16 + 9, 8, 2);
  EXPECT_EQ(map.block_count(), 4u);
  EXPECT_EQ(map.SourceSymbols(2), 5);
  EXPECT_EQ(map.SourceSymbols(3), 4);
  EXPECT_EQ(map.LastSequence(2), 24u);
  EXPECT_EQ(map.LastSequence(3), 23u);
}

TEST(BlockMap, HasNoBlocksWithoutFec) { EXPECT_EQ(BlockMap(1000, 0, 4).block_count(), 0u); }

TEST(BlockMap, TakesDepthZeroAsOne) { EXPECT_EQ(BlockMap(16, 8, 0).Locate(9), BlockMap(16, 8, 1).Locate(9)); }

void CheckInverse(uint32_t count, uint8_t k, uint8_t depth) {
  SCOPED_TRACE(testing::Message() << "count " << count << " k " << int{k} << " depth " << int{depth});
  const BlockMap map(count, k, depth);
  std::vector<uint32_t> sources(map.block_count());
  std::vector<uint32_t> last(map.block_count());
  for (uint32_t s = 0; s < count; ++s) {
    const Position at = map.Locate(s);
    ASSERT_LT(at.block, map.block_count());
    ASSERT_LT(at.symbol, map.SourceSymbols(at.block));
    ASSERT_EQ(map.Sequence(at.block, at.symbol), s);
    ++sources[at.block];
    last[at.block] = s;
  }
  for (uint32_t b = 0; b < map.block_count(); ++b) {
    ASSERT_EQ(map.SourceSymbols(b), sources[b]);
    ASSERT_GE(sources[b], 1u);
    ASSERT_LE(sources[b], k);
    ASSERT_EQ(map.LastSequence(b), last[b]);
  }
  ASSERT_LE(map.block_count(), count / k + 1);
}

TEST(BlockMap, LocateAndSequenceAreInverseForSmallCountsOfEverySize) {
  for (const int k : codec::kBlockSizes) {
    for (const uint8_t depth : std::initializer_list<uint8_t>{1, 2, 3, 4, 7, 32}) {
      for (uint32_t count = 1; count <= 260; ++count) CheckInverse(count, static_cast<uint8_t>(k), depth);
    }
  }
}

TEST(BlockMap, LocateAndSequenceAreInverseForRandomShapes) {
  const uint64_t seed = 20;
  Random random(seed);
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  for (int i = 0; i < 60; ++i) {
    const auto k = static_cast<uint8_t>(codec::kBlockSizes[random.Below(std::size(codec::kBlockSizes))]);
    CheckInverse(static_cast<uint32_t>(1 + random.Below(20'000)), k,
                 static_cast<uint8_t>(1 + random.Below(255)));
  }
}

TEST(BlockMap, ABurstNoLongerThanTheDepthHitsEachBlockAtMostOnce) {
  for (const uint8_t depth : std::initializer_list<uint8_t>{1, 2, 4, 16}) {
    const uint32_t full = 3 * 20 * depth;
    const BlockMap map(full, 20, depth);
    for (uint32_t start = 0; start + depth <= full; ++start) {
      // Within a superblock; a burst across its edge may meet a block's neighbour, never the same block
      // twice.
      std::set<uint32_t> hit;
      for (uint32_t s = start; s < start + depth; ++s) hit.insert(map.Locate(s).block);
      ASSERT_EQ(hit.size(), depth) << "burst at " << start << ", depth " << int{depth};
    }
  }
}

}  // namespace
}  // namespace longhaul::transport
