// Shorter element types: what a value becomes, that chance is fair, and that every machine agrees.
#include "codec/chunk/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/random.h"

namespace longhaul::codec {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kTiny = std::numeric_limits<float>::denorm_min();
const DType kShort[] = {DType::kBFloat16, DType::kFloat16, DType::kInt8, DType::kInt4, DType::kInt2};

uint32_t BitsOf(float v) { return std::bit_cast<uint32_t>(v); }

std::vector<const Kernels*> AllKernels() {
  std::vector<const Kernels*> all = {&PlainKernels()};
  if (Avx2Kernels() != nullptr) all.push_back(Avx2Kernels());
  return all;
}

// Values of every kind: all magnitudes, integers, ties, subnormals of every type and, if wanted, no numbers.
std::vector<float> Mixture(Random& random, size_t count, bool finite) {
  std::vector<float> values(count);
  for (float& v : values) {
    switch (random.Below(7)) {
      case 0:
        v = std::bit_cast<float>(static_cast<uint32_t>(random.Next()));
        break;
      case 1:
        v = static_cast<float>(random.Normal());
        break;
      case 2:  // around float16's subnormals
        v = static_cast<float>(random.Normal()) * 0x1p-20f;
        break;
      case 3:  // around the ends of the ranges
        v = (random.Chance(0.5) ? 65504.0f : kMax) * (1.0f - static_cast<float>(random.Below(3)) * 0x1p-10f);
        break;
      case 4:  // ties
        v = static_cast<float>(random.Below(4096)) * 0.5f * (random.Chance(0.5) ? 0x1p-24f : 1.0f);
        break;
      case 5:
        v = random.Chance(0.5) ? 0.0f : -0.0f;
        break;
      default:
        v = random.Chance(0.5) ? kTiny : -kTiny;
    }
    if (finite && !std::isfinite(v)) v = 1.0f;
  }
  return values;
}

std::vector<uint8_t> Codes(DType dtype, std::span<const float> values, Rounding rounding,
                           const Kernels& kernels = PlainKernels()) {
  std::vector<uint8_t> codes(values.size() * CodeSize(dtype));
  Quantize(dtype, values, ScaleOf(dtype, values, rounding, kernels), rounding, codes, kernels);
  return codes;
}

std::vector<float> RoundTrip(DType dtype, const std::vector<float>& values, Rounding rounding) {
  const std::vector<uint8_t> codes = Codes(dtype, values, rounding);
  std::vector<float> out(values.size(), -1.0f);
  Dequantize(dtype, codes, ScaleOf(dtype, values, rounding), Apply::kSet, 1, out, PlainKernels());
  return out;
}

uint16_t Int8Scale(const std::vector<float>& values) {
  return ScaleOf(DType::kInt8, values, Rounding::Nearest());
}

float Nearest(DType dtype, float value) { return RoundTrip(dtype, {value}, Rounding::Nearest())[0]; }
float Chancy(DType dtype, float value, uint64_t seed) {
  return RoundTrip(dtype, {value}, Rounding::Stochastic(seed))[0];
}

TEST(Quantize, KnownCodes) {
  struct Case {
    DType dtype;
    float value;
    uint16_t code;
  };
  for (const Case& c : {Case{DType::kBFloat16, 1.0f, 0x3f80}, Case{DType::kBFloat16, -2.5f, 0xc020},
                        Case{DType::kBFloat16, 1.00390625f, 0x3f80},  // a tie: to even
                        Case{DType::kBFloat16, 1.01171875f, 0x3f82}, Case{DType::kBFloat16, kTiny, 0x0000},
                        Case{DType::kBFloat16, 0x1p-133f, 0x0001}, Case{DType::kBFloat16, kMax, 0x7f7f},
                        Case{DType::kBFloat16, -kInfinity, 0xff80}, Case{DType::kFloat16, 1.0f, 0x3c00},
                        Case{DType::kFloat16, -65504.0f, 0xfbff}, Case{DType::kFloat16, 65520.0f, 0x7bff},
                        Case{DType::kFloat16, kMax, 0x7bff}, Case{DType::kFloat16, 0x1p-24f, 0x0001},
                        Case{DType::kFloat16, 0x1p-25f, 0x0000},  // a tie below the smallest subnormal
                        Case{DType::kFloat16, 0x1.8p-24f, 0x0002}, Case{DType::kFloat16, 0x1p-14f, 0x0400},
                        Case{DType::kFloat16, 0x1.ffcp-15f, 0x0400}, Case{DType::kFloat16, -0.0f, 0x8000},
                        Case{DType::kFloat16, kInfinity, 0x7c00}}) {
    const std::vector<uint8_t> codes = Codes(c.dtype, std::vector{c.value}, Rounding::Nearest());
    EXPECT_EQ(codes[0] | codes[1] << 8, c.code) << DTypeName(c.dtype) << " of " << c.value;
  }
}

TEST(Quantize, EveryShortCodeComesBackAsItself) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (uint32_t code = 0; code < 65536; ++code) {
      const uint8_t bytes[] = {static_cast<uint8_t>(code), static_cast<uint8_t>(code >> 8)};
      std::vector<float> value(1);
      Dequantize(dtype, bytes, 0, Apply::kSet, 1, value);
      if (std::isnan(value[0])) continue;
      for (const Rounding rounding : {Rounding::Nearest(), Rounding::Stochastic(code)}) {
        const std::vector<uint8_t> again = Codes(dtype, value, rounding);
        ASSERT_EQ(again[0] | again[1] << 8, code) << DTypeName(dtype);
      }
    }
  }
}

TEST(Quantize, NearestIsNoFartherThanHalfAStep) {
  Random random(4);
  for (int trial = 0; trial < 20'000; ++trial) {
    const float v = static_cast<float>(random.Normal() * std::exp2(random.Uniform() * 60 - 45));
    const float size = std::abs(v);
    EXPECT_LE(std::abs(Nearest(DType::kBFloat16, v) - v), size * 0x1p-8f) << v;
    if (size < 60000) {
      EXPECT_LE(std::abs(Nearest(DType::kFloat16, v) - v), std::max(size * 0x1p-11f, 0x1p-25f)) << v;
    }
  }
}

TEST(Quantize, WhatArrivesIsWhatTheCodesSay) {
  std::vector<float> values, room;
  Random random(3);
  for (int i = 0; i < 1001; ++i) values.push_back(static_cast<float>(random.Uniform() - 0.5));
  EXPECT_EQ(AsArrived(DType::kFloat32, values, &room).data(), values.data());
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    std::vector<uint8_t> codes(values.size() * CodeSize(dtype));
    Quantize(dtype, values, 0, Rounding::Nearest(), codes);
    std::vector<float> decoded(values.size());
    Dequantize(dtype, codes, 0, Apply::kSet, 1, decoded);
    const auto arrived = AsArrived(dtype, values, &room);
    EXPECT_EQ(std::vector<float>(arrived.begin(), arrived.end()), decoded);
    EXPECT_NE(decoded, values);
  }
}

TEST(Quantize, FiniteStaysFiniteAndNoNumberStaysNone) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    for (const DType dtype : kShort) {
      for (const float v : {kMax, -kMax, 65519.0f, 1e38f, kTiny}) {
        ASSERT_TRUE(std::isfinite(Chancy(dtype, v, seed))) << DTypeName(dtype) << " of " << v;
        ASSERT_TRUE(std::isfinite(Nearest(dtype, v))) << DTypeName(dtype) << " of " << v;
      }
    }
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      ASSERT_EQ(Chancy(dtype, -kInfinity, seed), -kInfinity);
      ASSERT_TRUE(std::isnan(Chancy(dtype, std::nanf(""), seed)));
      ASSERT_TRUE(std::signbit(Chancy(dtype, -std::nanf(""), seed)));
    }
  }
  for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
    for (const DType dtype : {DType::kInt8, DType::kInt4, DType::kInt2}) {
      for (const Rounding rounding : {Rounding::Nearest(), Rounding::Stochastic(1)}) {
        for (float v : RoundTrip(dtype, {1, 2, bad, 0, 5}, rounding)) EXPECT_TRUE(std::isnan(v));
      }
    }
  }
}

TEST(Quantize, Int8UsesItsWholeRangeAndTheScaleIsRoundedUp) {
  Random random(5);
  for (int trial = 0; trial < 5000; ++trial) {
    std::vector<float> values(1 + random.Below(20));
    const double size = std::exp2(random.Uniform() * 200 - 90);
    for (float& v : values) v = static_cast<float>(random.Normal() * size);
    float largest = 0;
    for (float v : values) largest = std::max(largest, std::abs(v));
    const float scale = Bfloat16ToFloat(Int8Scale(values));
    ASSERT_GE(scale * 127, largest * (1 - 0x1p-23f)) << "every value has a code";
    ASSERT_LE(scale * 127, largest * (1 + 0x1p-7f) * (1 + 0x1p-22f)) << "and the codes are not wasted";
    const std::vector<float> out = RoundTrip(DType::kInt8, values, Rounding::Nearest());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_LE(std::abs(out[i] - values[i]), scale * 0.501f) << "trial " << trial;
    }
  }
  EXPECT_EQ(Int8Scale(std::vector<float>{0, -0.0f, 0}), 0);
  EXPECT_EQ(RoundTrip(DType::kInt8, {0, -0.0f}, Rounding::Nearest()), (std::vector<float>{0, 0}));
  EXPECT_EQ(Int8Scale(std::vector<float>{kTiny}), 1) << "the smallest scale that is not zero";
  EXPECT_EQ(RoundTrip(DType::kInt8, {127, -127, 1, 0}, Rounding::Stochastic(3)),
            (std::vector<float>{127, -127, 1, 0}));
}

TEST(Quantize, Int4And2HaveTheirLevels) {
  EXPECT_EQ(RoundTrip(DType::kInt4, {7, -7, 3, 0.4f, -0.6f, 0}, Rounding::Nearest()),
            (std::vector<float>{7, -7, 3, 0, -1, 0}));
  // To the nearest: the means of the small and of the large, 1 and 9; zeros are for who leaves them out.
  EXPECT_EQ(RoundTrip(DType::kInt2, {0.5f, -1.5f, 8, -10, 0, 0, 0, 0}, Rounding::Nearest()),
            (std::vector<float>{1.125f, -1.125f, 9, -9, 0, 0, 0, 0}))
      << "9 / 16 is a step, and the small one a whole number of them";
  // Stochastically: the largest and zero.
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (const float v : RoundTrip(DType::kInt2, {0.5f, -1.5f, 8, -4, 0}, Rounding::Stochastic(seed)))
      EXPECT_TRUE(v == 0 || std::abs(v) == 8) << v;
  }
}

double Energy(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
  return sum;
}

// Values of which a few are much larger than the others, with many zeros or without.
std::vector<float> HeavyTailed(Random& random, size_t count, double tail, double zeros) {
  std::vector<float> values(count, 0.0f);
  for (float& v : values) {
    if (!random.Chance(zeros)) v = static_cast<float>(random.Normal() * std::exp(tail * random.Normal()));
  }
  return values;
}

// So a sender's memory, to which it is added, cannot grow without an end; with what stochastic rounding
// misses it could.
TEST(Quantize, WhatCoarseCodesMissOfASenderThatRemembersIsLessThanThereWas) {
  constexpr uint64_t kSeed = 17;
  Random random(kSeed);
  bool more = false;
  for (int trial = 0; trial < 600; ++trial) {
    const double tail = random.Uniform() * 4, zeros = random.Chance(0.5) ? 0 : random.Uniform();
    const std::vector<float> values = HeavyTailed(random, 1 + random.Below(3000), tail, zeros);
    if (Energy(values) == 0) continue;
    for (const DType dtype : {DType::kInt4, DType::kInt2}) {
      const auto missed = [&](bool remembers) {
        std::vector<float> out = RoundTrip(dtype, values, RoundingOf(dtype, remembers, kSeed + trial));
        for (size_t i = 0; i < out.size(); ++i) out[i] -= values[i];
        return Energy(out) / Energy(values);
      };
      ASSERT_LT(missed(true), 0.9) << DTypeName(dtype) << " of " << values.size() << ", tail " << tail
                                   << ", zeros " << zeros << ", trial " << trial;
      more |= missed(false) > 2;
    }
  }
  EXPECT_TRUE(more) << "it would not be worth a rule";
  EXPECT_TRUE(RoundingOf(DType::kInt8, true, 1).stochastic) << "its steps are small enough";
  EXPECT_TRUE(RoundingOf(DType::kInt2, false, 1).stochastic);
}

TEST(Quantize, StochasticRoundingChoosesANeighbourAndIsFair) {
  // The mean over many seeds is the value, to five standard deviations of a coin.
  constexpr int kSeeds = 20'000;
  for (const DType dtype : kShort) {
    for (const float v : {1.0017f, -3.14159f, 1e-7f, 4.1e-6f, -1234.567f, 1.9999f}) {
      // Where there is a scale a larger neighbour sets the scale, so that `v` lies between codes.
      const std::vector<float> values =
          HasScale(dtype) ? std::vector<float>{v, 51.3f * v} : std::vector<float>{v};
      double sum = 0;
      float least = kInfinity, most = -kInfinity;
      for (int seed = 0; seed < kSeeds; ++seed) {
        const float out = RoundTrip(dtype, values, Rounding::Stochastic(ChunkRoundingSeed(7, seed)))[0];
        sum += out;
        least = std::min(least, out);
        most = std::max(most, out);
      }
      EXPECT_LE(least, v) << DTypeName(dtype);
      EXPECT_GE(most, v) << DTypeName(dtype);
      const double step = static_cast<double>(most) - static_cast<double>(least);
      const double error = sum / kSeeds - static_cast<double>(v);
      EXPECT_LE(std::abs(error), 5 * 0.5 * step / std::sqrt(kSeeds)) << DTypeName(dtype) << " of " << v;
      if (HasScale(dtype)) continue;
      EXPECT_EQ(Nearest(dtype, least), least) << "a code";
      EXPECT_LE(step, std::max(std::abs(v) * (dtype == DType::kBFloat16 ? 0x1p-7f : 0x1p-10f), 0x1p-24f));
    }
  }
}

TEST(Quantize, ElementsAreRoundedIndependently) {
  // Equal values of one chunk must not all go the same way: the mean over elements is the value, too.
  constexpr size_t kCount = 40'000;
  for (const DType dtype : kShort) {
    std::vector<float> values(kCount, 1.00137f);
    values[0] = 50.0f;
    const std::vector<float> out = RoundTrip(dtype, values, Rounding::Stochastic(9));
    double sum = 0;
    float least = kInfinity, most = -kInfinity;
    int changes = 0;
    for (size_t i = 1; i < kCount; ++i) {
      sum += static_cast<double>(out[i]) - static_cast<double>(values[i]);
      least = std::min(least, out[i]);
      most = std::max(most, out[i]);
      changes += out[i] != out[std::max<size_t>(1, i - 1)] ? 1 : 0;
    }
    const double step = static_cast<double>(most) - static_cast<double>(least);
    EXPECT_GT(step, 0.0) << DTypeName(dtype);
    EXPECT_LE(std::abs(sum / kCount), 5 * 0.5 * step / std::sqrt(kCount)) << DTypeName(dtype);
    // With probability p of going up, neighbours differ in 2 p (1 - p) of all cases.
    const double up = (1.00137 - static_cast<double>(least)) / step;
    EXPECT_NEAR(changes / static_cast<double>(kCount), 2 * up * (1 - up), 0.02) << DTypeName(dtype);
  }
}

TEST(Quantize, TheNoiseDependsOnRankTensorRoundAndChunkOnly) {
  EXPECT_EQ(RoundingSeed(1, 2, 3, 4), RoundingSeed(1, 2, 3, 4));
  const uint64_t base = RoundingSeed(1, 2, 3, 4);
  for (const uint64_t other : {RoundingSeed(0, 2, 3, 4), RoundingSeed(1, 3, 3, 4), RoundingSeed(1, 2, 4, 4),
                               RoundingSeed(1, 2, 3, 5), RoundingSeed(1, 3, 2, 4)}) {
    EXPECT_NE(other, base);
  }
  const std::vector<float> values(1000, 1.0001f);
  const auto codes = [&](uint64_t seed) {
    return Codes(DType::kFloat16, values, Rounding::Stochastic(seed));
  };
  EXPECT_EQ(codes(ChunkRoundingSeed(base, 0)), codes(ChunkRoundingSeed(base, 0)));
  EXPECT_NE(codes(ChunkRoundingSeed(base, 0)), codes(ChunkRoundingSeed(base, 1)));
  // Fixed for ever: another machine that draws other noise would break the replay of a run.
  EXPECT_EQ(base, 4649332349207543295ull);
  uint32_t sum = 0;
  for (uint8_t byte : codes(ChunkRoundingSeed(base, 0))) sum = sum * 31 + byte;
  EXPECT_EQ(sum, 2803368324u);
}

// --- Every instruction set says the same as the plain loops ---

class Dispatch : public testing::Test {
 protected:
  void SetUp() override {
    if (Avx2Kernels() == nullptr) GTEST_SKIP() << "this machine has plain kernels only";
  }
};

TEST_F(Dispatch, EncodingIsTheSameToTheBit) {
  constexpr uint64_t kSeed = 6;
  Random random(kSeed);
  for (int trial = 0; trial < 1500; ++trial) {
    const size_t offset = random.Below(8);
    const std::vector<float> all = Mixture(random, offset + random.Below(70), random.Chance(0.7));
    const std::span<const float> values = std::span(all).subspan(offset);  // unaligned
    for (const DType dtype : kShort) {
      for (const Rounding r : {Rounding::Nearest(), Rounding::Stochastic(random.Next())}) {
        ASSERT_EQ(Codes(dtype, values, r, PlainKernels()), Codes(dtype, values, r, *Avx2Kernels()))
            << DTypeName(dtype) << ", seed " << kSeed << " trial " << trial;
      }
    }
    ASSERT_EQ(PlainKernels().max_magnitude(values.data(), values.size()),
              Avx2Kernels()->max_magnitude(values.data(), values.size()));
    ASSERT_EQ(PlainKernels().count_nonzero(values.data(), values.size()),
              Avx2Kernels()->count_nonzero(values.data(), values.size()));
  }
}

TEST_F(Dispatch, ASurveyIsTheSameToTheBit) {
  constexpr uint64_t kSeed = 8;
  Random random(kSeed);
  for (int trial = 0; trial < 3000; ++trial) {
    const size_t offset = random.Below(8);
    const size_t n = random.Below(70);
    const std::vector<float> fresh = Mixture(random, offset + n, random.Chance(0.7));
    const std::vector<float> kept = Mixture(random, n, random.Chance(0.7));
    for (const float* with : {kept.data(), static_cast<const float*>(nullptr)}) {
      for (const uint32_t least : {1u, BitsOf(0.5f), BitsOf(fresh.empty() ? 1 : fresh[0]) & 0x7fffffff}) {
        const SurveyOf of{fresh.data() + offset, with, random.Chance(0.5), std::max(least, 1u)};
        const Survey plain = PlainKernels().survey(of, n), wide = Avx2Kernels()->survey(of, n);
        ASSERT_EQ(plain.largest_fresh, wide.largest_fresh) << n << " elements, trial " << trial;
        ASSERT_EQ(plain.largest, wide.largest) << n << " elements, trial " << trial;
        ASSERT_EQ(plain.selected, wide.selected) << n << " elements, trial " << trial;
        if (std::isnan(plain.energy) && std::isnan(wide.energy)) continue;
        ASSERT_EQ(BitsOf(plain.energy), BitsOf(wide.energy)) << n << " elements, trial " << trial;
      }
    }
  }
}

TEST_F(Dispatch, DecodingIsTheSameToTheBitForAllCodesAndWaysToApplyThem) {
  constexpr uint64_t kSeed = 7;
  Random random(kSeed);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt8}) {
    // All 65536 codes of 16 bits (and all pairs of bytes), at an odd address.
    std::vector<uint8_t> bytes(1 + 65536 * 2 * 2);
    for (size_t i = 0; i < 65536; ++i) {
      bytes[1 + 2 * i] = static_cast<uint8_t>(i);
      bytes[2 + 2 * i] = static_cast<uint8_t>(i >> 8);
    }
    for (size_t i = 1 + 65536 * 2; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(random.Next());
    const ByteSpan codes = std::span(bytes).subspan(1);
    const std::vector<float> before = Mixture(random, codes.size() / CodeSize(dtype), true);
    for (const Apply apply : {Apply::kSet, Apply::kScale, Apply::kAdd}) {
      for (const size_t cut : {0u, 1u, 5u}) {
        const size_t n = before.size() - cut;
        std::vector<float> plain(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(n));
        std::vector<float> wide = plain;
        const ByteSpan part = codes.first(n * CodeSize(dtype));
        Dequantize(dtype, part, 0x3dcd, apply, 0.7f, plain, PlainKernels());
        Dequantize(dtype, part, 0x3dcd, apply, 0.7f, wide, *Avx2Kernels());
        for (size_t i = 0; i < n; ++i) {
          if (apply != Apply::kSet && std::isnan(plain[i]) && std::isnan(wide[i])) continue;
          ASSERT_EQ(BitsOf(plain[i]), BitsOf(wide[i]))
              << DTypeName(dtype) << " element " << i << " apply " << static_cast<int>(apply);
        }
      }
    }
  }
}

TEST(Kernels, NeitherReadsNorWritesBeyondTheEnd) {
  // Exact heap sizes for AddressSanitizer, and a guard value behind.
  for (const Kernels* kernels : AllKernels()) {
    for (size_t n = 0; n < 40; ++n) {
      const std::vector<float> values(n, 1.5f);
      for (const DType dtype : kShort) {
        std::vector<uint8_t> codes(n * CodeSize(dtype) + 1, 0xee);
        const MutableByteSpan place = std::span(codes).first(codes.size() - 1);
        Quantize(dtype, values, 0x3f80, Rounding::Stochastic(1), place, *kernels);
        EXPECT_EQ(codes.back(), 0xee) << kernels->name;
        codes.pop_back();
        codes.shrink_to_fit();
        std::vector<float> out(n + 1, -5.0f);
        Dequantize(dtype, codes, 0x3f80, Apply::kAdd, 2, std::span(out).first(n), *kernels);
        EXPECT_EQ(out.back(), -5.0f) << kernels->name;
      }
      EXPECT_EQ(kernels->count_nonzero(values.data(), n), n);
      EXPECT_EQ(kernels->max_magnitude(values.data(), n), n == 0 ? 0 : BitsOf(1.5f));
      EXPECT_EQ(kernels->survey({values.data(), values.data()}, n).selected, n);
    }
  }
}

// One pass finds what a pass for each would: combine, then look at the result.
TEST(Kernels, ASurveyFindsWhatSeparatePassesFind) {
  constexpr uint64_t kSeed = 9;
  Random random(kSeed);
  for (const Kernels* kernels : AllKernels()) {
    for (size_t n = 0; n < 50; ++n) {
      for (const bool subtract : {false, true}) {
        std::vector<float> fresh(n), kept(n), sum(n);
        for (size_t i = 0; i < n; ++i) {
          fresh[i] = random.Chance(0.2) ? -0.0f : static_cast<float>(random.Normal());
          kept[i] = random.Chance(0.2) ? fresh[i] : static_cast<float>(random.Normal());
          sum[i] = subtract ? fresh[i] - kept[i] : fresh[i] + kept[i];
        }
        const float least = random.Chance(0.5) ? 0 : static_cast<float>(random.Uniform());
        double energy = 0;
        uint32_t selected = 0;
        for (const float value : sum) {
          if (value == 0 || std::abs(value) < least) continue;
          ++selected;
          energy += static_cast<double>(value) * static_cast<double>(value);
        }
        const SurveyOf of{fresh.data(), kept.data(), subtract, std::max(BitsOf(least), 1u)};
        const Survey survey = kernels->survey(of, n);
        ASSERT_EQ(survey.largest_fresh, PlainKernels().max_magnitude(fresh.data(), n)) << kernels->name;
        ASSERT_EQ(survey.largest, PlainKernels().max_magnitude(sum.data(), n)) << kernels->name << " " << n;
        ASSERT_EQ(survey.selected, selected) << kernels->name << " " << n;
        ASSERT_NEAR(static_cast<double>(survey.energy), energy, 1e-6 * energy) << kernels->name << " " << n;
        const Survey alone = kernels->survey({.fresh = fresh.data()}, n);
        ASSERT_EQ(alone.largest, survey.largest_fresh);
        ASSERT_EQ(alone.largest_fresh, survey.largest_fresh);
      }
    }
  }
}

TEST(Kernels, ASurveyShowsWhatIsNotFiniteWhereverItIs) {
  for (const Kernels* kernels : AllKernels()) {
    for (size_t n : {1u, 7u, 8u, 12u, 13u, 31u}) {
      for (size_t at = 0; at < n; ++at) {
        for (const float bad : {kInfinity, -kInfinity, std::nanf(""), -std::nanf("")}) {
          std::vector<float> values(n, 1);
          const std::vector<float> kept(n, 1);
          values[at] = bad;
          for (const float* with : {kept.data(), static_cast<const float*>(nullptr)}) {
            const Survey survey = kernels->survey({values.data(), with}, n);
            EXPECT_GE(survey.largest_fresh, kInfinityBits) << kernels->name << " " << at << " of " << n;
            EXPECT_FALSE(std::isfinite(survey.energy)) << kernels->name << " " << at << " of " << n;
          }
        }
      }
    }
  }
}

TEST(Kernels, TheLargestMagnitudeShowsWhatIsNotFinite) {
  for (const Kernels* kernels : AllKernels()) {
    for (size_t n : {1u, 7u, 8u, 9u, 31u}) {
      for (size_t at = 0; at < n; ++at) {
        for (const float bad : {kInfinity, -kInfinity, std::nanf(""), -std::nanf("")}) {
          std::vector<float> values(n, kMax);
          EXPECT_LT(kernels->max_magnitude(values.data(), n), kInfinityBits);
          values[at] = bad;
          EXPECT_GE(kernels->max_magnitude(values.data(), n), kInfinityBits) << kernels->name;
        }
      }
    }
  }
}

TEST(Kernels, TheBestOnesAreThoseOfTheMachine) {
  EXPECT_EQ(&BestKernels(), Avx2Kernels() != nullptr ? Avx2Kernels() : &PlainKernels());
}

}  // namespace
}  // namespace longhaul::codec
