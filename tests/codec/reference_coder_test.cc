// The oracle itself, against arithmetic done by hand and against its own algebra.
#include "tests/sim/reference_coder.h"

#include <gtest/gtest.h>

#include "tests/codec/blocks.h"

namespace longhaul::codec {
namespace {

TEST(ReferenceCoder, RowZeroOfTheMatrixIsInverseOfKXorColumn) {
  // A block with a single 1 reads the matrix: in GF(2^8) mod 0x11d, 1/8 = 173, 1/9 = 157, 1/12 = 199... all
  // of them are checked by multiplying back.
  ReferenceCoder coder;
  for (int column = 0; column < 8; ++column) {
    Symbols source(8, std::vector<uint8_t>(16, 0));
    source[column][0] = 1;
    const Symbols repair = EncodeBlock(coder, source, 1);
    unsigned product = 0;
    for (unsigned bit = 0; bit < 8; ++bit) {
      if (repair[0][0] >> bit & 1) product ^= static_cast<unsigned>(8 ^ column) << bit;
    }
    for (unsigned bit = 15; bit >= 8; --bit) {
      if (product >> bit & 1) product ^= 0x11du << (bit - 8);
    }
    EXPECT_EQ(product, 1u) << "column " << column;
  }
}

TEST(ReferenceCoder, TheFirstCoefficientIsTheKnownInverse) {
  ReferenceCoder coder;
  Symbols source(8, std::vector<uint8_t>(16, 0));
  source[0][0] = 1;
  EXPECT_EQ(EncodeBlock(coder, source, 1)[0][0], 173);  // 8 * 173 = 1 in this field
}

TEST(ReferenceCoder, ParityIsLinear) {
  ReferenceCoder coder;
  Random random(7);
  const Symbols a = RandomSymbols(random, 12, 32);
  const Symbols b = RandomSymbols(random, 12, 32);
  Symbols sum = a;
  for (size_t j = 0; j < sum.size(); ++j) {
    for (size_t i = 0; i < sum[j].size(); ++i) sum[j][i] = static_cast<uint8_t>(sum[j][i] ^ b[j][i]);
  }
  const Symbols ra = EncodeBlock(coder, a, 5);
  const Symbols rb = EncodeBlock(coder, b, 5);
  const Symbols rs = EncodeBlock(coder, sum, 5);
  for (size_t j = 0; j < rs.size(); ++j) {
    for (size_t i = 0; i < rs[j].size(); ++i) EXPECT_EQ(rs[j][i], ra[j][i] ^ rb[j][i]);
  }
}

TEST(ReferenceCoder, AnyKOfTheSymbolsGiveTheBlockBack) {
  constexpr uint64_t kSeed = 11;
  Random random(kSeed);
  ReferenceCoder coder;
  for (int k : kBlockSizes) {
    const Symbols source = RandomSymbols(random, k, 16);
    const int m = ErasureCoder::MaxRepair(k);
    const Symbols repair = EncodeBlock(coder, source, m);
    for (int trial = 0; trial < 50; ++trial) {
      Survivors left = Lose(random, source, repair, static_cast<size_t>(m));
      ASSERT_TRUE(DecodeBlock(coder, left).ok()) << "k " << k << " seed " << kSeed << " trial " << trial;
      ASSERT_EQ(left.source, source) << "k " << k << " seed " << kSeed << " trial " << trial;
    }
  }
}

}  // namespace
}  // namespace longhaul::codec
