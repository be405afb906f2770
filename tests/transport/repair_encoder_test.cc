#include "transport/core/window/repair_encoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/sim/reference_coder.h"

namespace longhaul::transport {
namespace {

constexpr uint16_t kBytes = 32;

std::vector<uint8_t> Chunk(uint32_t block, uint8_t symbol) {
  return std::vector<uint8_t>(kBytes, static_cast<uint8_t>(31 * block + symbol + 1));
}

void Encode(RepairEncoder* encoder, uint32_t block, uint8_t count) {
  encoder->Start();
  for (uint8_t i = 0; i < 8; ++i) encoder->AddSource({}, Chunk(block, i));
  encoder->Finish(block, count);
}

std::vector<uint8_t> Expected(uint32_t block, uint8_t number) {
  codec::ReferenceCoder coder;
  RepairEncoder alone(&coder, 8, kBytes, 1);
  Encode(&alone, block, 24);
  const ByteSpan symbol = alone.Take(block, number);
  return {symbol.begin(), symbol.end()};
}

TEST(RepairEncoder, BlocksTakeTurns) {
  codec::ReferenceCoder coder;
  RepairEncoder encoder(&coder, 8, kBytes, 3);
  for (uint32_t block = 0; block < 3; ++block) Encode(&encoder, block, 4);
  for (uint8_t number = 0; number < 4; ++number) {
    for (uint32_t block = 0; block < 3; ++block) {
      ASSERT_TRUE(encoder.Holds(block, 4));
      EXPECT_TRUE(std::ranges::equal(encoder.Take(block, number), Expected(block, number)));
    }
  }
  for (uint32_t block = 0; block < 3; ++block)
    EXPECT_FALSE(encoder.Holds(block, 1)) << "the last one gives it up";
}

TEST(RepairEncoder, HoldsNoMoreBlocksThanItMayAndLosesTheOneLeastAskedFor) {
  codec::ReferenceCoder coder;
  RepairEncoder encoder(&coder, 8, kBytes, 2);
  Encode(&encoder, 0, 4);
  Encode(&encoder, 1, 4);
  (void)encoder.Take(0, 0);
  Encode(&encoder, 2, 4);
  EXPECT_TRUE(encoder.Holds(0, 4));
  EXPECT_FALSE(encoder.Holds(1, 1));
  EXPECT_TRUE(encoder.Holds(2, 4));
  EXPECT_TRUE(std::ranges::equal(encoder.Take(0, 1), Expected(0, 1)));
  EXPECT_TRUE(std::ranges::equal(encoder.Take(2, 0), Expected(2, 0)));
}

TEST(RepairEncoder, MoreSymbolsThanHeldAreNotHeld) {
  codec::ReferenceCoder coder;
  RepairEncoder encoder(&coder, 8, kBytes, 1);
  Encode(&encoder, 5, 2);
  EXPECT_TRUE(encoder.Holds(5, 2));
  EXPECT_FALSE(encoder.Holds(5, 3));
  EXPECT_FALSE(encoder.Holds(4, 1));
}

}  // namespace
}  // namespace longhaul::transport
