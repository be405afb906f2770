#include "base/bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/random.h"

namespace longhaul {
namespace {

TEST(ByteReader, ReadsNetworkOrder) {
  const std::vector<uint8_t> bytes = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                      12, 13, 14, 15, 16, 17, 18, 19, 20, 21};
  ByteReader in(bytes);
  EXPECT_EQ(in.U8(), 0x01u);
  EXPECT_EQ(in.U16(), 0x0203u);
  EXPECT_EQ(in.U32(), 0x04050607u);
  EXPECT_EQ(in.U48(), 0x08090a0b0c0du);
  EXPECT_EQ(in.U64(), 0x0e0f101112131415u);
  EXPECT_TRUE(in.AtEnd());
}

TEST(ByteReader, FailsForEverAfterTheFirstOverrun) {
  const std::vector<uint8_t> bytes = {1, 2, 3};
  ByteReader in(bytes);
  EXPECT_EQ(in.U32(), 0u);
  EXPECT_FALSE(in.ok());
  EXPECT_FALSE(in.AtEnd());
  EXPECT_EQ(in.U8(), 0u) << "one byte would be there, but the reader has failed";
  EXPECT_TRUE(in.Bytes(0).empty());
  EXPECT_TRUE(in.Rest().empty());
  EXPECT_FALSE(in.ok());
}

TEST(ByteReader, BytesBorrowWithoutCopying) {
  const std::vector<uint8_t> bytes = {1, 2, 3, 4};
  ByteReader in(bytes);
  in.U8();
  EXPECT_EQ(in.Bytes(2).data(), bytes.data() + 1);
  EXPECT_EQ(in.position(), 3u);
  EXPECT_EQ(in.Rest().size(), 1u);
  EXPECT_TRUE(in.AtEnd());
  EXPECT_TRUE(in.Rest().empty());
  EXPECT_TRUE(in.ok()) << "the rest of nothing is nothing, not a failure";
}

TEST(ByteReader, HugeLengthFailsInsteadOfWrapping) {
  const std::vector<uint8_t> bytes = {1, 2, 3, 4};
  ByteReader in(bytes);
  in.U8();
  EXPECT_TRUE(in.Bytes(~size_t{0}).empty());
  EXPECT_FALSE(in.ok());
}

// RFC 9000 appendix A.1.
TEST(Varint, DecodesTheExamplesOfTheRfc) {
  const std::vector<std::pair<std::vector<uint8_t>, uint64_t>> examples = {
      {{0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c}, 151288809941952652u},
      {{0x9d, 0x7f, 0x3e, 0x7d}, 494878333u},
      {{0x7b, 0xbd}, 15293u},
      {{0x25}, 37u},
      {{0x40, 0x25}, 37u},
  };
  for (const auto& [bytes, value] : examples) {
    ByteReader in(bytes);
    EXPECT_EQ(in.Varint(), value);
    EXPECT_TRUE(in.AtEnd());
  }
}

TEST(Varint, RoundTripsInTheShortestFormAtEveryBoundary) {
  for (const uint64_t boundary : {uint64_t{1} << 6, uint64_t{1} << 14, uint64_t{1} << 30, kMaxVarint}) {
    for (const uint64_t value : {uint64_t{0}, boundary - 1, boundary, std::min(boundary + 1, kMaxVarint)}) {
      std::array<uint8_t, 8> bytes{};
      ByteWriter out(bytes);
      out.Varint(value);
      ASSERT_TRUE(out.ok());
      EXPECT_EQ(out.size(), VarintSize(value));
      ByteReader in(out.written());
      EXPECT_EQ(in.Varint(), value);
      EXPECT_TRUE(in.AtEnd());
    }
  }
  EXPECT_EQ(VarintSize(63), 1u);
  EXPECT_EQ(VarintSize(64), 2u);
  EXPECT_EQ(VarintSize(16383), 2u);
  EXPECT_EQ(VarintSize(16384), 4u);
  EXPECT_EQ(VarintSize((1u << 30) - 1), 4u);
  EXPECT_EQ(VarintSize(1u << 30), 8u);
}

TEST(Varint, TruncatedFails) {
  for (const uint8_t lead : std::array<uint8_t, 3>{0x40, 0x80, 0xc0}) {
    const std::vector<uint8_t> bytes = {lead};
    ByteReader in(bytes);
    EXPECT_EQ(in.Varint(), 0u);
    EXPECT_FALSE(in.ok());
  }
  ByteReader empty({});
  EXPECT_EQ(empty.Varint(), 0u);
  EXPECT_FALSE(empty.ok());
}

TEST(VarintDeathTest, BeyondTheLargestIsABug) {
  std::array<uint8_t, 8> bytes{};
  ByteWriter out(bytes);
  EXPECT_DEATH(out.Varint(kMaxVarint + 1), "bug.*kMaxVarint");
}

TEST(ByteWriter, WhatDoesNotFitWritesNothing) {
  std::array<uint8_t, 3> bytes = {0xee, 0xee, 0xee};
  ByteWriter out(bytes);
  out.U32(1);
  EXPECT_FALSE(out.ok());
  EXPECT_EQ(out.size(), 0u);
  out.U8(1);
  EXPECT_EQ(out.size(), 0u) << "nothing is written after a failure";
  EXPECT_EQ(bytes, (std::array<uint8_t, 3>{0xee, 0xee, 0xee}));
}

TEST(Bytes, FloatsKeepEveryBit) {
  for (const uint32_t bits : {0x00000000u, 0x80000000u, 0x3f800000u, 0x7f800000u, 0x7fc00001u, 0x00000001u}) {
    std::array<uint8_t, 4> bytes{};
    ByteWriter(bytes).F32(std::bit_cast<float>(bits));
    EXPECT_EQ(std::bit_cast<uint32_t>(ByteReader(bytes).F32()), bits);
  }
}

// An operations test: whatever is written in any order and width is read back, and never past the end.
TEST(Bytes, RandomSequencesOfWritesReadBack) {
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  for (int round = 0; round < 500; ++round) {
    std::vector<uint8_t> bytes(random.Below(120));
    ByteWriter out(bytes);
    std::vector<std::pair<uint64_t, uint64_t>> written;  // kind, value
    while (out.ok()) {
      const uint64_t kind = random.Below(6);
      uint64_t value = random.Next() >> random.Below(64);
      switch (kind) {
        case 0:
          out.U8(static_cast<uint8_t>(value &= 0xff));
          break;
        case 1:
          out.U16(static_cast<uint16_t>(value &= 0xffff));
          break;
        case 2:
          out.U32(static_cast<uint32_t>(value &= 0xffffffff));
          break;
        case 3:
          out.U48(value &= 0xffffffffffff);
          break;
        case 4:
          out.U64(value);
          break;
        default:
          out.Varint(value &= kMaxVarint);
          break;
      }
      if (out.ok()) written.emplace_back(kind, value);
    }
    ByteReader in(out.written());
    for (const auto& [kind, value] : written) {
      const uint64_t read = kind == 0   ? in.U8()
                            : kind == 1 ? in.U16()
                            : kind == 2 ? in.U32()
                            : kind == 3 ? in.U48()
                            : kind == 4 ? in.U64()
                                        : in.Varint();
      ASSERT_EQ(read, value) << "kind " << kind;
    }
    EXPECT_TRUE(in.AtEnd());
  }
}

TEST(Bytes, InHexadecimalDigits) {
  const std::vector<uint8_t> bytes = {0x00, 0x0f, 0xa5, 0xff};
  EXPECT_EQ(HexOf(bytes), "000fa5ff");
  EXPECT_EQ(HexOf({}), "");
}

}  // namespace
}  // namespace longhaul
