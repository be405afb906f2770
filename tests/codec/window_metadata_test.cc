#include "codec/chunk/window_metadata.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/random.h"
#include "codec/chunk/chunk.h"
#include "proto/frames.h"

namespace longhaul::codec {
namespace {

WindowMetadata Example() {
  return {.kind = WindowKind::kGradient,
          .wants_result = true,
          .key = 7,
          .request = 9,
          .round = uint64_t{1} << 40,
          .count = 101'770,
          .chunk_elements = 345,
          .weight = 32,
          .total_low_energy = 0.25f,
          .shift_epoch = 3,
          .shift_epoch_round = uint64_t{1} << 33};
}

TEST(WindowMetadata, SaysWhichTensorAndRoundAndHowMuchEnergyTheLowClassHas) {
  const WindowMetadata metadata = Example();
  const auto bytes = EncodeWindowMetadata(metadata);
  EXPECT_EQ(bytes.size(), kWindowMetadataBytes);
  EXPECT_LE(bytes.size(), wire::kMaxWindowMetadataBytes);
  const auto decoded = DecodeWindowMetadata(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(*decoded, metadata);
}

TEST(WindowMetadata, EveryKindComesBack) {
  for (WindowKind kind :
       {WindowKind::kGradient, WindowKind::kInitial, WindowKind::kWeights, WindowKind::kAggregate}) {
    WindowMetadata metadata = Example();
    metadata.kind = kind;
    const auto decoded = DecodeWindowMetadata(EncodeWindowMetadata(metadata));
    ASSERT_TRUE(decoded.ok());
    EXPECT_EQ(decoded->kind, kind);
  }
}

// Expects that Example() after `change` is refused by the decoder, naming the field.
template <typename Change>
void Refused(const char* field, Change change) {
  WindowMetadata metadata = Example();
  change(metadata);
  const auto decoded = DecodeWindowMetadata(EncodeWindowMetadata(metadata));
  ASSERT_FALSE(decoded.ok()) << field;
  EXPECT_EQ(decoded.status().code(), StatusCode::kProtocolViolation);
  EXPECT_NE(decoded.status().message().find(field), std::string::npos) << decoded.status().message();
}

TEST(WindowMetadata, ImpossibleValuesAreRefusedByName) {
  const float nan = std::nanf("");
  const float inf = std::numeric_limits<float>::infinity();
  Refused("kind", [](auto& m) { m.kind = static_cast<WindowKind>(4); });
  Refused("element type", [](auto& m) { m.dtype = static_cast<DType>(6); });
  Refused("element count", [](auto& m) { m.count = 0; });
  Refused("chunk size", [](auto& m) { m.chunk_elements = 0; });
  Refused("chunk size", [](auto& m) { m.chunk_elements = kMaxChunkElements + 1; });
  for (float weight : {0.0f, -1.0f, nan, inf}) Refused("weight", [=](auto& m) { m.weight = weight; });
  for (float energy : {-1.0f, nan, inf}) Refused("energy", [=](auto& m) { m.total_low_energy = energy; });
}

TEST(WindowMetadata, ATensorThatNoWindowCanCarryIsRefused) {
  Refused("element count", [](auto& m) { m.count = std::numeric_limits<uint64_t>::max(); });
  Refused("element count", [](auto& m) { m.count = uint64_t{wire::kMaxWindowChunks} * 345 + 1; });
  WindowMetadata largest = Example();
  largest.count = uint64_t{wire::kMaxWindowChunks} * 345;
  EXPECT_TRUE(DecodeWindowMetadata(EncodeWindowMetadata(largest)).ok());
}

TEST(WindowMetadata, WrongLengthsAndReservedBitsAreRefused) {
  const auto bytes = EncodeWindowMetadata(Example());
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(DecodeWindowMetadata(ByteSpan(bytes).first(n)).ok());
  auto longer = bytes;
  longer.push_back(0);
  EXPECT_FALSE(DecodeWindowMetadata(longer).ok());
  auto flags = bytes;
  flags[1] = 2;
  EXPECT_FALSE(DecodeWindowMetadata(flags).ok());
  auto reserved = bytes;
  reserved[3] = 1;
  EXPECT_FALSE(DecodeWindowMetadata(reserved).ok());
  reserved = bytes;
  reserved[43] = 1;
  EXPECT_FALSE(DecodeWindowMetadata(reserved).ok());
}

TEST(WindowMetadata, WhateverIsAcceptedIsValidAndEncodesBack) {
  constexpr uint64_t kSeed = 1;
  Random random(kSeed);
  const auto good = EncodeWindowMetadata(Example());
  for (int trial = 0; trial < 20'000; ++trial) {
    auto bytes = good;
    for (uint64_t n = 1 + random.Below(3); n > 0; --n) {
      bytes[random.Below(bytes.size())] = static_cast<uint8_t>(random.Next());
    }
    const auto decoded = DecodeWindowMetadata(bytes);
    if (!decoded.ok()) continue;
    ASSERT_GT(decoded->weight, 0) << "seed " << kSeed << " trial " << trial;
    ASSERT_EQ(EncodeWindowMetadata(*decoded), bytes) << "seed " << kSeed << " trial " << trial;
  }
}

}  // namespace
}  // namespace longhaul::codec
