// Positions as gaps, and codes of less than a byte: that they come back, how long they are, and that any
// bytes end somewhere.
#include "codec/chunk/bits.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "codec/chunk/quantize.h"

namespace longhaul::codec {
namespace {

std::vector<uint32_t> Some(Random& random, uint32_t count, double share) {
  std::vector<uint32_t> positions;
  for (uint32_t i = 0; i < count; ++i) {
    if (random.Chance(share)) positions.push_back(i);
  }
  return positions;
}

std::vector<uint8_t> Written(uint32_t count, const std::vector<uint32_t>& positions) {
  std::vector<uint8_t> bytes;
  GapWriter writer(count, static_cast<uint32_t>(positions.size()), &bytes);
  for (const uint32_t position : positions) writer.Add(position);
  writer.Finish();
  return bytes;
}

TEST(Gaps, ComeBackAndAreNoLongerThanTheMost) {
  constexpr uint64_t kSeed = 1;
  Random random(kSeed);
  for (int trial = 0; trial < 3000; ++trial) {
    const auto count = static_cast<uint32_t>(1 + random.Below(random.Chance(0.1) ? 65'535 : 500));
    const auto positions = Some(random, count, std::pow(random.Uniform(), 3));
    const auto nonzero = static_cast<uint32_t>(positions.size());
    const std::vector<uint8_t> bytes = Written(count, positions);
    ASSERT_LE(bytes.size(), MostGapBytes(count, nonzero)) << "seed " << kSeed << " trial " << trial;
    GapReader reader(count, nonzero, bytes);
    for (const uint32_t position : positions) ASSERT_EQ(reader.Next(), position) << "seed " << kSeed;
    EXPECT_EQ(reader.used(), bytes.size());
    EXPECT_TRUE(reader.padded());
  }
}

// One gap that is as long as can be: more ones than a word has bits.
TEST(Gaps, MayBeLongerThanAWord) {
  std::vector<uint32_t> positions;
  for (uint32_t i = 0; i < 30'000; ++i) positions.push_back(35'000 + i);
  const std::vector<uint8_t> bytes = Written(65'535, positions);
  EXPECT_EQ(RiceBits(65'535, 30'000), 1u);
  GapReader reader(65'535, 30'000, bytes);
  for (const uint32_t position : positions) ASSERT_EQ(reader.Next(), position);
}

// Of a count and of every smaller one: what has room has it for fewer, too.
TEST(Gaps, OfFewerElementsAreNoLonger) {
  for (const uint32_t count : {1u, 2u, 63u, 64u, 65u, 1000u, 5520u}) {
    size_t before = 0;
    for (uint32_t nonzero = 0; nonzero <= count; ++nonzero) {
      const size_t most = MostGapBytes(count, nonzero);
      ASSERT_GE(most, before) << nonzero << " of " << count;
      before = most;
      // All of them at the end, so that the first gap has all the ones there can be.
      std::vector<uint32_t> positions;
      for (uint32_t i = 0; i < nonzero; ++i) positions.push_back(count - nonzero + i);
      if (count <= 1000) {
        ASSERT_LE(Written(count, positions).size(), most) << nonzero << " of " << count;
      }
    }
  }
}

TEST(Gaps, OfASixtyFourthTakeSevenAndAHalfBits) {
  Random random(2);
  const auto positions = Some(random, 65'000, 1.0 / 64);
  const double bits = 8.0 * static_cast<double>(Written(65'000, positions).size());
  EXPECT_NEAR(bits / static_cast<double>(positions.size()), 7.57, 0.1);
}

TEST(Gaps, AnyBytesEndSomewhere) {
  constexpr uint64_t kSeed = 3;
  Random random(kSeed);
  for (int trial = 0; trial < 20'000; ++trial) {
    std::vector<uint8_t> bytes(random.Below(20));
    for (uint8_t& byte : bytes) byte = random.Chance(0.3) ? 0xff : static_cast<uint8_t>(random.Next());
    const auto count = static_cast<uint32_t>(1 + random.Below(65'535));
    const auto nonzero = static_cast<uint32_t>(random.Below(count + 1));
    GapReader reader(count, nonzero, bytes);
    uint32_t next = 0;
    for (uint32_t i = 0; i < nonzero; ++i) {
      const uint32_t position = reader.Next();
      if (position == count) break;
      ASSERT_GE(position, next) << "seed " << kSeed << " trial " << trial;
      next = position + 1;
    }
    ASSERT_LE(reader.used(), bytes.size());
    (void)reader.padded();
  }
}

TEST(PackedCodes, ComeBackWhateverTheirNumber) {
  constexpr uint64_t kSeed = 4;
  Random random(kSeed);
  for (size_t count = 0; count < 40; ++count) {
    for (const DType dtype : {DType::kInt4, DType::kInt2}) {
      const uint16_t scale = 0x3f85;  // of int2: 16 and 5 steps
      std::vector<int8_t> codes(count);
      for (int8_t& code : codes) {
        const int8_t sizes[] = {16, 5};
        code = dtype == DType::kInt4 ? static_cast<int8_t>(random.Below(15)) - 7 : sizes[random.Below(2)];
        if (dtype == DType::kInt2 && random.Chance(0.5)) code = static_cast<int8_t>(-code);
      }
      std::vector<uint8_t> packed(CodeBytes(count, dtype), 0xee);
      PackCodes(dtype, codes, packed);
      std::vector<int8_t> again(count);
      UnpackCodes(dtype, scale, packed, again);
      EXPECT_EQ(again, codes) << DTypeName(dtype);
    }
  }
}

}  // namespace
}  // namespace longhaul::codec
