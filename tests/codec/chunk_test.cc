// Chunks: what a packet says about the elements it carries, and what a parser must refuse.
#include "codec/chunk/chunk.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/random.h"
#include "tests/codec/blocks.h"
#include "tests/sim/reference_coder.h"

namespace longhaul::codec {
namespace {

using Bytes = std::vector<uint8_t>;

const DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                        DType::kInt8,    DType::kInt4,     DType::kInt2};

Bytes Join(const ChunkHeaderBytes& header, ByteSpan body) {
  Bytes bytes(header.begin(), header.end());
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

Bytes Dense(uint32_t index, const std::vector<float>& values, uint8_t log_energy = 0) {
  const auto count = static_cast<uint32_t>(values.size());
  return Join(EncodeDenseHeader(index, count, CountNonzero(values), log_energy),
              {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)});
}

Bytes Sparse(uint32_t index, const std::vector<float>& values, uint8_t log_energy = 0) {
  Bytes body;
  const ChunkHeaderBytes header = EncodeSparseChunk(index, values, log_energy, &body);
  return Join(header, body);
}

// A chunk of any type, dense or sparse as the encoder likes.
Bytes Short(DType dtype, uint32_t index, const std::vector<float>& values, Rounding rounding = {},
            const Kernels& kernels = BestKernels()) {
  Bytes body;
  const ChunkCoding coding{.dtype = dtype, .rounding = rounding, .log_energy = 99};
  const ChunkHeaderBytes header = EncodeChunk(index, values, coding, &body, kernels);
  return Join(header, body);
}

// Decodes what must be valid; bits, so that NaN compares.
std::vector<uint32_t> Decoded(const Bytes& bytes) {
  const auto chunk = ParseChunk(bytes);
  EXPECT_TRUE(chunk.ok()) << chunk.status().ToString();
  if (!chunk.ok()) return {};
  std::vector<float> values(chunk->count, -1.0f);
  DecodeChunk(*chunk, values);
  std::vector<uint32_t> bits;
  for (float v : values) bits.push_back(std::bit_cast<uint32_t>(v));
  return bits;
}

std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (float v : values) bits.push_back(std::bit_cast<uint32_t>(v));
  return bits;
}

// `share` of the elements are not zero.
std::vector<float> SomeZeros(Random& random, size_t count, double share) {
  std::vector<float> values(count, 0.0f);
  for (float& v : values) {
    if (random.Chance(share)) v = static_cast<float>(random.Normal()) + 10.0f;
  }
  return values;
}

TEST(Chunk, ChunkCarriesTensorPositionTypeAndSparsity) {
  // Elements 5 * 8 .. 5 * 8 + 7 of a tensor cut into chunks of 8.
  const std::vector<float> values = {0, 1.5f, 0, 0, -2, 0, 0, 3};
  const ChunkGeometry geometry{.count = 100, .chunk_elements = 8};
  for (const Bytes& bytes : {Dense(5, values, 137), Sparse(5, values, 137)}) {
    const auto chunk = ParseChunk(bytes);
    ASSERT_TRUE(chunk.ok()) << chunk.status().ToString();
    EXPECT_EQ(chunk->index, 5u);
    EXPECT_EQ(geometry.First(chunk->index), 40u);
    EXPECT_EQ(chunk->count, 8u);
    EXPECT_EQ(chunk->nonzero, 3u);
    EXPECT_EQ(chunk->dtype, DType::kFloat32);
    EXPECT_EQ(chunk->log_energy, 137);
    EXPECT_EQ(Decoded(bytes), Bits(values));
  }
}

TEST(Chunk, HeaderIsTwelveBytesInTheDocumentedOrder) {
  const Bytes expected = {0x01, 0x02, 0x03, 0x04, 0x01, 0x5a, 0x00, 0x07, 0x00, 0x80, 0x00, 0x00};
  const ChunkHeaderBytes header = EncodeDenseHeader(0x01020304, 346, 7, 0x80);
  EXPECT_EQ(Bytes(header.begin(), header.end()), expected);
}

TEST(Chunk, SparseBitmapIsLsbFirstAndPaddedToFourBytes) {
  const Bytes bytes = Sparse(0, {0, 1.0f, 0, 0, 0, 0, 0, 0, 0, 2.0f});
  const Bytes body(bytes.begin() + kChunkHeaderBytes, bytes.end());
  const Bytes expected = {0x02, 0x02, 0, 0, /* 1.0f */ 0, 0, 0x80, 0x3f, /* 2.0f */ 0, 0, 0, 0x40};
  EXPECT_EQ(body, expected);
  EXPECT_EQ(bytes.size(), SparseChunkBytes(10, 2));
}

TEST(Chunk, MostlyZerosTravelInFewerBytesAndComeBackTheSame) {
  constexpr uint64_t kSeed = 1;
  Random random(kSeed);
  for (int trial = 0; trial < 200; ++trial) {
    const auto values = SomeZeros(random, 1 + random.Below(400), random.Uniform());
    const uint32_t count = static_cast<uint32_t>(values.size());
    const uint32_t nonzero = CountNonzero(values);
    const Bytes sparse = Sparse(3, values);
    EXPECT_EQ(sparse.size(), SparseChunkBytes(count, nonzero));
    EXPECT_EQ(Dense(3, values).size(), DenseChunkBytes(count));
    ASSERT_EQ(Decoded(sparse), Bits(values)) << "seed " << kSeed << " trial " << trial;
    ASSERT_EQ(Decoded(Dense(3, values)), Bits(values)) << "seed " << kSeed << " trial " << trial;
  }
  EXPECT_LT(SparseChunkBytes(345, 34), DenseChunkBytes(345) / 5);  // 90 % zeros
}

TEST(Chunk, NanAndInfinityPass) {
  const std::vector<float> values = {std::nanf(""), 0, std::numeric_limits<float>::infinity(),
                                     -std::numeric_limits<float>::infinity(),
                                     std::numeric_limits<float>::denorm_min()};
  EXPECT_EQ(Decoded(Dense(0, values)), Bits(values));
  EXPECT_EQ(Decoded(Sparse(0, values)), Bits(values));
}

TEST(Chunk, ZerosBehindAChunkAreIgnoredSinceFecPadsSymbols) {
  const std::vector<float> values = {0, 0, 0, 0, 0, 0, 0, 4.0f};
  for (Bytes bytes : {Dense(1, values), Sparse(1, values)}) {
    bytes.resize(256, 0);
    EXPECT_EQ(Decoded(bytes), Bits(values));
  }
}

TEST(Chunk, ARepairedChunkDescribesItself) {
  // A10: the lost symbol comes back from FEC with its position, type and sparsity, and decodes by them.
  constexpr size_t kSymbolBytes = 64;
  Random random(2);
  Symbols source;
  for (uint32_t c = 0; c < 8; ++c) {
    source.push_back(Sparse(c, SomeZeros(random, 12, 0.3)));
    source.back().resize(kSymbolBytes, 0);
  }
  ReferenceCoder coder;
  const Symbols repair = EncodeBlock(coder, source, 2);
  Survivors left{source, 0xffu & ~(1u << 6), {{1, repair[1]}}};
  std::ranges::fill(left.source[6], uint8_t{0});
  ASSERT_TRUE(DecodeBlock(coder, left).ok());
  const auto chunk = ParseChunk(left.source[6]);
  ASSERT_TRUE(chunk.ok());
  EXPECT_EQ(chunk->index, 6u);
  EXPECT_EQ(chunk->encoding, ChunkEncoding::kBitmapSparse);
  EXPECT_EQ(Decoded(left.source[6]), Decoded(source[6]));
}

TEST(Chunk, ShortTypesInTheDocumentedOrder) {
  // index 7, 3 elements, all non-zero, type and encoding, energy 99, scale; then the values.
  const std::vector<float> values = {1.0f, -2.0f, 0.5f};
  EXPECT_EQ(Short(DType::kBFloat16, 7, values),
            (Bytes{0, 0, 0, 7, 0, 3, 0, 3, 0x10, 99, 0, 0, 0x80, 0x3f, 0x00, 0xc0, 0x00, 0x3f}));
  EXPECT_EQ(Short(DType::kFloat16, 7, values),
            (Bytes{0, 0, 0, 7, 0, 3, 0, 3, 0x20, 99, 0, 0, 0x00, 0x3c, 0x00, 0xc0, 0x00, 0x38}));
  // 127 is 0x7f times one.
  EXPECT_EQ(Short(DType::kInt8, 7, {127, -3, 1}),
            (Bytes{0, 0, 0, 7, 0, 3, 0, 3, 0x30, 99, 0x3f, 0x80, 0x7f, 0xfd, 0x01}));
  // The low half of a byte is first; 7 is 7 times one.
  EXPECT_EQ(Short(DType::kInt4, 7, {7, -3, 1}),
            (Bytes{0, 0, 0, 7, 0, 3, 0, 3, 0x40, 99, 0x3f, 0x80, 0xd7, 0x01}));
  // Sign and size of -16 and 16, 2 and -2 times a half.
  EXPECT_EQ(Short(DType::kInt2, 7, {-8, 8, 1, -1, 8}),
            (Bytes{0, 0, 0, 7, 0, 5, 0, 5, 0x50, 99, 0x3f, 0x02, 0x87, 0x01}));
  std::vector<float> sparse(32, 0.0f);
  Bytes expected = {0, 0, 0, 7, 0, 32, 0, 16, 0x31, 99, 0x40, 0x00, 0x55, 0x55, 0x55, 0x55};
  for (size_t i = 0; i < 32; i += 2) {
    sparse[i] = 254.0f;
    expected.push_back(0x7f);
  }
  EXPECT_EQ(Short(DType::kInt8, 7, sparse), expected);
  // 2 of 20: r = 3, and gaps of 9 = 1 * 8 + 1 and 3 = 0 * 8 + 3: 1, 0, 100 and 0, 110.
  sparse.assign(20, 0.0f);
  sparse[9] = sparse[13] = 254.0f;
  EXPECT_EQ(Short(DType::kInt8, 7, sparse),
            (Bytes{0, 0, 0, 7, 0, 20, 0, 2, 0x32, 99, 0x40, 0x00, 0x7f, 0x7f, 0b11000101, 0b0}));
}

TEST(Chunk, EveryTypeTravelsDenseAndSparseAndArrivesAsRounded) {
  constexpr uint64_t kSeed = 11;
  Random random(kSeed);
  bool used[6][3] = {};
  for (int trial = 0; trial < 400; ++trial) {
    const double shares[] = {0.05, 0.45, 1.0};
    const auto values = SomeZeros(random, 1 + random.Below(700), shares[random.Below(3)]);
    for (const DType dtype : kTypes) {
      const Rounding rounding = Rounding::Stochastic(random.Next());
      const Bytes bytes = Short(dtype, 4, values, rounding);
      const auto chunk = ParseChunk(bytes);
      ASSERT_TRUE(chunk.ok()) << chunk.status().ToString();
      EXPECT_EQ(chunk->index, 4u);
      EXPECT_EQ(chunk->log_energy, 99);
      EXPECT_EQ(chunk->dtype, dtype);
      const auto count = static_cast<uint32_t>(values.size());
      const size_t dense = DenseChunkBytes(count, dtype);
      const size_t bitmap = SparseChunkBytes(count, chunk->nonzero, dtype);
      const size_t gaps = MostGapChunkBytes(count, chunk->nonzero, dtype);
      if (chunk->encoding == ChunkEncoding::kGapSparse) {
        ASSERT_LE(bytes.size(), gaps);
        ASSERT_LT(gaps, std::min(dense, bitmap));
      } else {
        ASSERT_EQ(bytes.size(), std::min(dense, bitmap));
        ASSERT_LE(bytes.size(), gaps);
        ASSERT_EQ(chunk->encoding == ChunkEncoding::kDense, bytes.size() == dense);
      }
      used[static_cast<size_t>(dtype)][static_cast<size_t>(chunk->encoding)] = true;
      // The same codes, one after the other.
      std::vector<uint8_t> codes(values.size() * CodeSize(dtype));
      const uint16_t scale = ScaleOf(dtype, values, rounding);
      EXPECT_EQ(chunk->scale, scale);
      Quantize(dtype, values, scale, rounding, codes);
      std::vector<float> expected(values.size());
      Dequantize(dtype, codes, scale, Apply::kSet, 1, expected);
      std::vector<float> arrived(values.size(), -7.0f);
      DecodeChunk(*chunk, arrived);
      ASSERT_EQ(arrived, expected) << DTypeName(dtype) << ", seed " << kSeed << " trial " << trial;
      EXPECT_EQ(chunk->nonzero, CountNonzero(expected));
    }
  }
  for (const DType dtype : kTypes) {
    for (const bool encoding : used[static_cast<size_t>(dtype)]) EXPECT_TRUE(encoding) << DTypeName(dtype);
  }
}

// A dense chunk has no way to leave an element out.
TEST(Chunk, ZerosAmongInt2ArriveAsZerosWhereTheyAreMany) {
  const std::vector<float> values = {1, 1, 0, -1, 0, 1, 1, 0, -1, 1};
  const Bytes bytes = Short(DType::kInt2, 0, values);
  EXPECT_EQ(ParseChunk(bytes)->encoding, ChunkEncoding::kDense);
  EXPECT_EQ(Decoded(bytes), Bits(values));
}

TEST(Chunk, ASixtyFourthOfInt2IsAHundredTimesShorterThanFloat32) {
  Random random(3);
  const uint32_t count =
      GradientGeometry({1u << 20, 345}, {DType::kInt2, DType::kFloat32, 1.0 / 64}).chunk_elements;
  std::vector<float> values(count, 0.0f);
  for (float& v : values) {
    if (random.Chance(1.0 / 64)) v = static_cast<float>(random.Normal()) * 3;
  }
  const Bytes bytes = Short(DType::kInt2, 0, values);
  EXPECT_EQ(ParseChunk(bytes)->encoding, ChunkEncoding::kGapSparse);
  const double share = static_cast<double>(bytes.size()) / static_cast<double>(DenseChunkBytes(count));
  EXPECT_NEAR(1 / share, 32 * 64 / (2 + 7.57), 6);
}

TEST(Chunk, DecodeAddIsDecodeAndALoopToTheBitWithAllKernels) {
  constexpr uint64_t kSeed = 12;
  Random random(kSeed);
  std::vector<const Kernels*> all = {&PlainKernels()};
  if (Avx2Kernels() != nullptr) all.push_back(Avx2Kernels());
  for (int trial = 0; trial < 300; ++trial) {
    const auto values = SomeZeros(random, 1 + random.Below(400), random.Chance(0.5) ? 0.1 : 1.0);
    const auto before = SomeZeros(random, values.size(), 0.9);
    const float weight = trial % 3 == 0 ? 1.0f : static_cast<float>(random.Uniform()) * 9;
    for (const DType dtype : kTypes) {
      const uint64_t seed = random.Next();
      const Bytes bytes = Short(dtype, 0, values, Rounding::Stochastic(seed), PlainKernels());
      const auto chunk = ParseChunk(bytes);
      ASSERT_TRUE(chunk.ok());
      std::vector<float> decoded(values.size());
      DecodeChunk(*chunk, decoded, PlainKernels());
      for (const Kernels* kernels : all) {
        ASSERT_EQ(Short(dtype, 0, values, Rounding::Stochastic(seed), *kernels), bytes);
        std::vector<float> again(values.size());
        DecodeChunk(*chunk, again, *kernels);
        ASSERT_EQ(Bits(again), Bits(decoded));
        for (const bool first : {true, false}) {
          std::vector<float> sum = before;
          DecodeAdd(*chunk, weight, first, sum, *kernels);
          for (size_t i = 0; i < sum.size(); ++i) {
            volatile float product = weight * decoded[i];  // rounded by itself, whatever the compiler likes
            const float expected = first ? product : before[i] + product;
            ASSERT_EQ(sum[i], expected) << DTypeName(dtype) << " " << kernels->name << " element " << i
                                        << ", seed " << kSeed << " trial " << trial;
          }
        }
      }
    }
  }
}

TEST(Chunk, EveryTruncationIsRefused) {
  const std::vector<float> values = {1, 0, 2, 0, 3, 0, 4, 0, 5};
  std::vector<float> empty(60, 0.0f);
  empty[50] = 3;
  for (const Bytes& whole : {Dense(0, values), Sparse(0, values), Short(DType::kBFloat16, 0, values),
                             Short(DType::kInt8, 0, values), Short(DType::kFloat16, 0, empty),
                             Short(DType::kInt2, 0, empty), Short(DType::kInt4, 0, values)}) {
    for (size_t n = 0; n < whole.size(); ++n) {
      const auto chunk = ParseChunk(ByteSpan(whole).first(n));
      ASSERT_FALSE(chunk.ok()) << n << " of " << whole.size() << " bytes";
      EXPECT_EQ(chunk.status().code(), StatusCode::kProtocolViolation);
    }
  }
}

class Mutated : public testing::Test {
 protected:
  // The chunk with one byte changed.
  static Result<ChunkView> With(Bytes bytes, size_t at, uint8_t value) {
    bytes[at] = value;
    static Bytes kept;
    kept = std::move(bytes);
    return ParseChunk(kept);
  }
  const Bytes dense_ = Dense(0, {1, 0, 2});
  const Bytes sparse_ = Sparse(0, {1, 0, 2});
};

TEST_F(Mutated, HeadersThatContradictThemselvesAreRefused) {
  EXPECT_TRUE(With(dense_, 0, 9).ok());   // any index: the geometry judges it
  EXPECT_FALSE(With(dense_, 5, 0).ok());  // no elements
  EXPECT_FALSE(With(dense_, 5, 4).ok());  // more elements than bytes
  EXPECT_FALSE(With(dense_, 4, 0xff).ok());
  EXPECT_FALSE(With(dense_, 7, 4).ok());     // more non-zero elements than elements
  EXPECT_FALSE(With(dense_, 8, 0x03).ok());  // unknown encoding
  EXPECT_FALSE(With(dense_, 8, 0x0f).ok());
  EXPECT_FALSE(With(dense_, 10, 1).ok());  // reserved
  EXPECT_FALSE(With(dense_, 11, 1).ok());
  EXPECT_FALSE(With(sparse_, 7, 1).ok());      // fewer than the bitmap says
  EXPECT_FALSE(With(sparse_, 12, 0x01).ok());  // bitmap says fewer
  EXPECT_FALSE(With(sparse_, 12, 0x09).ok());  // right number, but one beyond the last element
  EXPECT_FALSE(With(sparse_, 15, 0x01).ok());  // padding is not zero
}

TEST_F(Mutated, GapsThatContradictTheHeaderAreRefused) {
  std::vector<float> values(20, 0.0f);
  values[9] = values[13] = 1;
  const Bytes gaps = Short(DType::kInt8, 0, values);  // values at 12 and 13, gaps at 14 and 15
  ASSERT_EQ(ParseChunk(gaps)->encoding, ChunkEncoding::kGapSparse);
  EXPECT_FALSE(With(gaps, 15, 0x02).ok()) << "a bit after the last gap";
  EXPECT_FALSE(With(gaps, 14, 0xff).ok()) << "ones without an end";
  EXPECT_FALSE(With(gaps, 15, 0xff).ok());
  EXPECT_FALSE(With(gaps, 14, 0b11010111).ok()) << "the first is element 23";
  EXPECT_FALSE(With(gaps, 5, 13).ok()) << "the second is beyond the last";
  EXPECT_TRUE(With(gaps, 5, 16).ok());
  EXPECT_FALSE(With(gaps, 7, 20).ok()) << "more gaps than bytes";
  Bytes int2 = Short(DType::kInt2, 0, values);
  ASSERT_EQ(int2.size(), 12u + 1 + 2);
  EXPECT_FALSE(With(int2, 12, int2[12] | 0x10).ok()) << "a bit after the last value";
  EXPECT_FALSE(With(Short(DType::kInt4, 0, {1, 2, 3}), 13, 0x17).ok());
}

TEST_F(Mutated, OnlyIntegersHaveAScaleAndItIsNotNegative) {
  for (const DType dtype : {DType::kInt8, DType::kInt4, DType::kInt2}) {
    const Bytes scaled = Short(dtype, 0, {1, 2, 3});
    EXPECT_TRUE(With(scaled, 10, 0x3f).ok());
    EXPECT_TRUE(With(scaled, 10, 0x7f).ok()) << "not a number is a value like any other";
    EXPECT_FALSE(With(scaled, 10, 0xbf).ok());
  }
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    EXPECT_FALSE(With(Short(dtype, 0, {1, 2, 3}), 10, 0x3f).ok());
    EXPECT_FALSE(With(Short(dtype, 0, {1, 2, 3}), 11, 0x01).ok());
  }
}

TEST_F(Mutated, ElementTypesOfLaterVersionsAreNamed) {
  for (uint8_t dtype = 1; dtype < 6; ++dtype)
    EXPECT_TRUE(With(Dense(0, {1, 0, 0, 0}), 8, static_cast<uint8_t>(dtype << 4)).ok());
  for (uint8_t dtype = 6; dtype < 16; ++dtype) {
    const auto chunk = With(dense_, 8, static_cast<uint8_t>(dtype << 4));
    ASSERT_FALSE(chunk.ok());
    EXPECT_EQ(chunk.status().code(), StatusCode::kSettingsMismatch);
  }
}

TEST(Chunk, NoMutationLetsAReadLeaveTheChunk) {
  // Exact-size heap copies, so that AddressSanitizer sees any overrun.
  constexpr uint64_t kSeed = 3;
  Random random(kSeed);
  int accepted = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    const auto values = SomeZeros(random, 1 + random.Below(60), 0.4);
    Bytes bytes = random.Chance(0.5) ? Dense(1, values) : Sparse(1, values);
    if (random.Chance(0.5)) bytes = Short(kTypes[random.Below(6)], 1, values);
    for (uint64_t n = random.Below(4); n > 0; --n) {
      // Mostly the header and the bitmap: values cannot be wrong.
      const size_t at = random.Below(std::min<size_t>(bytes.size(), random.Chance(0.8) ? 20 : bytes.size()));
      bytes[at] = static_cast<uint8_t>(random.Next());
    }
    if (random.Chance(0.3)) bytes.resize(random.Below(bytes.size() + 8));
    const Bytes exact(bytes.begin(), bytes.end());
    const auto chunk = ParseChunk(exact);
    if (!chunk.ok()) continue;
    ++accepted;
    ASSERT_LE(chunk->nonzero, chunk->count) << "seed " << kSeed << " trial " << trial;
    std::vector<float> out(chunk->count);
    DecodeChunk(*chunk, out);
    if (chunk->encoding != ChunkEncoding::kDense) {
      ASSERT_EQ(chunk->values.size(), CodeBytes(chunk->nonzero, chunk->dtype))
          << "seed " << kSeed << " trial " << trial;
    }
  }
  EXPECT_GT(accepted, 1000);    // the unharmed ones at least
  EXPECT_LT(accepted, 19'000);  // and the harmed ones are noticed
}

TEST(ChunkGeometry, CutsATensorWithoutGapOrOverlap) {
  for (uint64_t count : {1u, 7u, 8u, 9u, 1000u, 1024u}) {
    const ChunkGeometry geometry{.count = count, .chunk_elements = 8};
    uint64_t next = 0;
    for (uint32_t chunk = 0; chunk < geometry.chunks(); ++chunk) {
      EXPECT_EQ(geometry.First(chunk), next);
      EXPECT_GE(geometry.Length(chunk), 1u);
      EXPECT_LE(geometry.Length(chunk), 8u);
      next += geometry.Length(chunk);
    }
    EXPECT_EQ(next, count);
  }
}

TEST(ChunkGeometry, CountsTheChunksOfTheLargestTensor) {
  // 2^32 - 1 chunks; adding before dividing would wrap where chunk_elements is large.
  const uint64_t chunks = std::numeric_limits<uint32_t>::max();
  const ChunkGeometry geometry{.count = chunks * kMaxChunkElements - 1, .chunk_elements = kMaxChunkElements};
  EXPECT_EQ(geometry.chunks(), chunks);
  EXPECT_EQ(geometry.Length(geometry.chunks() - 1), kMaxChunkElements - 1);
}

TEST(ChunkGeometry, AGradientChunkIsAWholeNumberOfTheResultsAndFitsTheSymbol) {
  for (size_t symbol_bytes : {16u, 64u, 1136u, 1392u, 8928u, 65488u}) {
    const ChunkGeometry base{.count = 100'000, .chunk_elements = ChunkElementsFor(symbol_bytes)};
    for (const DType gradient : kTypes) {
      for (const DType result : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        for (const double share : {0.0, 0.001, 1.0 / 64, 0.1, 0.4, 0.7, 1.0}) {
          const WireFormat format{gradient, result, share};
          const ChunkGeometry up = GradientGeometry(base, format);
          const ChunkGeometry down = ResultGeometry(base, format);
          EXPECT_EQ(up.count, base.count);
          const uint32_t full = base.chunk_elements * WireRatio(result);
          EXPECT_EQ(down.chunk_elements, std::min(full, up.chunk_elements)) << "as full as gradients allow";
          EXPECT_EQ(up.chunk_elements % down.chunk_elements, 0u);
          EXPECT_LE(DenseChunkBytes(down.chunk_elements, result), symbol_bytes);
          EXPECT_LE(up.chunk_elements, kMaxChunkElements);
          if (share > 0) {
            const uint32_t capacity = SparseCapacity(symbol_bytes, up.chunk_elements, gradient);
            EXPECT_GE(capacity, std::floor(share * up.chunk_elements));
            continue;
          }
          const uint32_t longest = kMaxChunkElements / base.chunk_elements / 2 * 2;
          EXPECT_EQ(up.chunk_elements, base.chunk_elements * std::min(WireRatio(gradient), longest));
          EXPECT_LE(DenseChunkBytes(up.chunk_elements, gradient), symbol_bytes);
        }
      }
    }
  }
}

TEST(ChunkGeometry, SparseChunksAreAsLongAsTheirShareAllows) {
  const ChunkGeometry base{.count = 100'000, .chunk_elements = 345};
  const auto ratio = [&](DType dtype, double share) {
    return GradientGeometry(base, {dtype, DType::kFloat32, share}).chunk_elements / 345;
  };
  // 2070 elements of which 310 travel: 1240 bytes, and 310 gaps of at most 3 bits and 1760 / 4 ones.
  EXPECT_EQ(MostGapChunkBytes(2070, 310, DType::kFloat32), 12u + 1240 + (310 * 3 + 1760 / 4 + 7) / 8);
  EXPECT_EQ(ratio(DType::kFloat32, 0.1), 6u)
      << "276 of 2760 would fit, and every second chunk would have more";
  EXPECT_EQ(ratio(DType::kFloat32, 0.5), 1u);
  EXPECT_EQ(ratio(DType::kFloat32, 1), 1u);
  EXPECT_EQ(ratio(DType::kBFloat16, 0.38), 4u);
  EXPECT_EQ(ratio(DType::kBFloat16, 0.43), 2u);
  EXPECT_EQ(ratio(DType::kInt8, 1), 4u) << "all of them fit when dense";
  EXPECT_EQ(ratio(DType::kInt2, 1), 16u);
  EXPECT_EQ(ratio(DType::kInt2, 1.0 / 64), 188u) << "64860 elements; 65535 is the most";
  EXPECT_EQ(ratio(DType::kInt2, 0.001), 188u);
  EXPECT_EQ(SparseCapacity(1392, 1380, DType::kFloat32), 307u);
  EXPECT_EQ(SparseCapacity(1392, 1380, DType::kBFloat16), 602u) << "a bitmap is shorter";
  EXPECT_EQ(SparseCapacity(1392, 100, DType::kFloat32), 100u) << "no more than there are";
  EXPECT_EQ(SparseCapacity(12, 1380, DType::kFloat32), 0u);
  for (uint32_t count : {1u, 31u, 33u, 345u, 1380u, 5520u, 64860u}) {
    for (const DType dtype : kTypes) {
      const uint32_t capacity = SparseCapacity(1392, count, dtype);
      if (capacity == count) continue;
      EXPECT_LE(std::min(SparseChunkBytes(count, capacity, dtype), MostGapChunkBytes(count, capacity, dtype)),
                1392u);
      EXPECT_GT(SparseChunkBytes(count, capacity + 1, dtype), 1392u);
      EXPECT_GT(MostGapChunkBytes(count, capacity + 1, dtype), 1392u);
    }
  }
}

// Wherever the elements are that travel: at the front, at the end, with the longest gap first, or anywhere.
TEST(ChunkGeometry, WhatHasRoomFitsTheSymbol) {
  constexpr uint64_t kSeed = 8;
  Random random(kSeed);
  for (int trial = 0; trial < 300; ++trial) {
    const auto count = static_cast<uint32_t>(1 + random.Below(random.Chance(0.2) ? 65'535 : 3000));
    const size_t symbol_bytes = 16 + random.Below(1400);
    for (const DType dtype : kTypes) {
      const uint32_t capacity = SparseCapacity(symbol_bytes, count, dtype);
      const uint32_t nonzero =
          random.Chance(0.5) ? capacity : static_cast<uint32_t>(random.Below(capacity + 1));
      std::vector<float> values(count, 0.0f);
      const uint32_t first = random.Chance(0.5) ? count - nonzero : 0;
      const uint32_t stride = random.Chance(0.5) ? 1 : std::max(1u, count / std::max(1u, nonzero));
      for (uint32_t i = 0; i < nonzero; ++i) {
        const uint32_t place = stride == 1 ? first + i : std::min(i * stride + stride - 1, count - 1);
        values[place] = 1;
      }
      ASSERT_LE(std::max<size_t>(16, Short(dtype, 0, values).size()), std::max<size_t>(16, symbol_bytes))
          << DTypeName(dtype) << ", " << nonzero << " of " << count << ", seed " << kSeed << " trial "
          << trial;
    }
  }
}

TEST(ChunkElementsFor, FillsASymbolAndNeverMore) {
  for (size_t symbol_bytes = 16; symbol_bytes <= 9000; symbol_bytes += 16) {
    const uint32_t elements = ChunkElementsFor(symbol_bytes);
    ASSERT_LE(DenseChunkBytes(elements), symbol_bytes);
    ASSERT_GT(DenseChunkBytes(elements + 1), symbol_bytes);
  }
  EXPECT_EQ(ChunkElementsFor(1392), 345u);
  for (const DType dtype : kTypes) {
    EXPECT_EQ(DenseChunkBytes(345 * WireRatio(dtype), dtype), 1392u) << "shorter types fill it as well";
  }
  EXPECT_EQ(ChunkElementsFor(1u << 20), kMaxChunkElements);
}

}  // namespace
}  // namespace longhaul::codec
