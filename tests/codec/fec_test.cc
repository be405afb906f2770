// liberasurecode behind our interface: bit-exact against the blackboard coder, safe against what a network
// can ask of it, and used only in the way in which it does not crash.
#include "codec/fec/fec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <liberasurecode/erasurecode.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tests/codec/blocks.h"
#include "tests/sim/reference_coder.h"

namespace longhaul::codec {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<ErasureCodeLibrary> Library() {
  auto created = ErasureCodeLibrary::Create();
  EXPECT_TRUE(created.ok()) << created.status().ToString();
  return std::move(*created);
}

TEST(Fec, EveryKMAgainstReference) {
  constexpr uint64_t kSeed = 1;
  Random random(kSeed);
  const auto library = Library();
  ReferenceCoder reference;
  for (int k : kBlockSizes) {
    for (int m = 1; m <= ErasureCoder::MaxRepair(k); ++m) {
      SCOPED_TRACE(testing::Message() << "k " << k << " m " << m << " seed " << kSeed);
      const size_t symbol_bytes = 16 * (1 + random.Below(12));
      const Symbols source = RandomSymbols(random, k, symbol_bytes);
      const Symbols repair = EncodeBlock(*library, source, m);
      ASSERT_EQ(repair, EncodeBlock(reference, source, m));
      for (size_t losses = 1; losses <= static_cast<size_t>(m); ++losses) {
        Survivors left = Lose(random, source, repair, losses);
        const Status status = DecodeBlock(*library, left);
        ASSERT_TRUE(status.ok()) << status.ToString();
        ASSERT_EQ(left.source, source) << losses << " losses";
      }
    }
  }
}

TEST(Fec, WholeDatagramsSurviveAsWellAsShortSymbols) {
  constexpr uint64_t kSeed = 2;
  Random random(kSeed);
  const auto library = Library();
  for (size_t symbol_bytes : {16u, 1200u, 1392u, 1408u, 8960u, 65520u}) {
    const Symbols source = RandomSymbols(random, 20, symbol_bytes);
    const Symbols repair = EncodeBlock(*library, source, 4);
    Survivors left = Lose(random, source, repair, 4);
    ASSERT_TRUE(DecodeBlock(*library, left).ok());
    EXPECT_EQ(left.source, source) << symbol_bytes << " bytes, seed " << kSeed;
  }
}

TEST(Fec, NestedParity) {
  // Repair symbol i is the same whatever m was: m may be chosen late, and fresh parity answers a NACK.
  Random random(3);
  const auto library = Library();
  for (int k : kBlockSizes) {
    const Symbols source = RandomSymbols(random, k, 64);
    const Symbols all = EncodeBlock(*library, source, ErasureCoder::MaxRepair(k));
    for (int m = 1; m < ErasureCoder::MaxRepair(k); ++m) {
      const Symbols few = EncodeBlock(*library, source, m);
      EXPECT_TRUE(std::ranges::equal(few, std::span(all).first(m))) << "k " << k << " m " << m;
    }
  }
}

TEST(Fec, ParityFromTwoBurstsOfRepairDecodesTogether) {
  // ASCII: sent  s0 .. s19 | r0 r1 |   (both lost, s3 and s7 lost)   | r9 r11 arrive later
  Random random(4);
  const auto library = Library();
  const Symbols source = RandomSymbols(random, 20, 128);
  const Symbols repair = EncodeBlock(*library, source, 12);
  Survivors left{source, 0xfffffu & ~(1u << 3) & ~(1u << 7), {{11, repair[11]}, {9, repair[9]}}};
  std::ranges::fill(left.source[3], uint8_t{0});
  std::ranges::fill(left.source[7], uint8_t{0});
  ASSERT_TRUE(DecodeBlock(*library, left).ok());
  EXPECT_EQ(left.source, source);
}

TEST(Fec, AllSourceSymbolsLostIsStillABlockWhenEnoughRepairIsThere) {
  Random random(5);
  const auto library = Library();
  const Symbols source = RandomSymbols(random, 12, 48);
  const Symbols repair = EncodeBlock(*library, source, 20);
  Survivors left{Symbols(12, std::vector<uint8_t>(48, 0)), 0, {}};
  for (int i = 8; i < 20; ++i) left.repair.push_back({i, repair[i]});
  ASSERT_TRUE(DecodeBlock(*library, left).ok());
  EXPECT_EQ(left.source, source);
}

class BadDecode : public testing::Test {
 protected:
  // Expects that the call is refused with `code`, that no byte changed and that the library was not called.
  void Refused(StatusCode code, int k, size_t symbol_bytes, uint32_t present,
               const std::vector<RepairSymbol>& repair) {
    Symbols before = block_;
    const uint64_t calls = library_->library_calls();
    const Status status = library_->Decode(k, symbol_bytes, MutableViews(block_), present, repair);
    EXPECT_EQ(status.code(), code) << status.ToString();
    EXPECT_EQ(block_, before);
    EXPECT_EQ(library_->library_calls(), calls);
  }

  Random random_{6};
  std::unique_ptr<ErasureCodeLibrary> library_ = Library();
  Symbols block_ = RandomSymbols(random_, 20, 64);
  Symbols repair_ = EncodeBlock(*library_, block_, 4);
  static constexpr uint32_t kAllButOne = 0xffffe;
};

TEST_F(BadDecode, ShortSymbolNeverReachesTheLibrary) {
  Refused(StatusCode::kInvalidArgument, 20, 64, kAllButOne, {{0, ByteSpan(repair_[0]).first(48)}});
  Refused(StatusCode::kInvalidArgument, 20, 64, kAllButOne, {{0, ByteSpan()}});
  Refused(StatusCode::kInvalidArgument, 20, 80, kAllButOne, {{0, repair_[0]}});
  block_[5].resize(48);
  Refused(StatusCode::kInvalidArgument, 20, 64, kAllButOne, {{0, repair_[0]}});
}

TEST_F(BadDecode, OddOrEmptyLengthsNeverReachTheLibrary) {
  for (auto& symbol : block_) symbol.resize(63);
  repair_[0].resize(63);
  Refused(StatusCode::kInvalidArgument, 20, 63, kAllButOne, {{0, repair_[0]}});
  Refused(StatusCode::kInvalidArgument, 20, 0, kAllButOne, {{0, repair_[0]}});
}

TEST_F(BadDecode, WrongIndexNeverReachesTheLibrary) {
  Refused(StatusCode::kInvalidArgument, 20, 64, kAllButOne, {{12, repair_[0]}});
  Refused(StatusCode::kInvalidArgument, 20, 64, kAllButOne, {{-1, repair_[0]}});
  Refused(StatusCode::kInvalidArgument, 20, 64, kAllButOne, {{1 << 30, repair_[0]}});
  Refused(StatusCode::kInvalidArgument, 20, 64, kAllButOne, {{1, repair_[1]}, {1, repair_[1]}});
}

TEST_F(BadDecode, WrongBlockSizeNeverReachesTheLibrary) {
  for (int k : {-1, 0, 1, 19, 21, 32, 1 << 20})
    Refused(StatusCode::kInvalidArgument, k, 64, 0, {{0, repair_[0]}});
  Refused(StatusCode::kInvalidArgument, 24, 64, kAllButOne, {{0, repair_[0]}});
  Refused(StatusCode::kInvalidArgument, 20, 64, kAllButOne | 1u << 20, {{0, repair_[0]}});
}

TEST_F(BadDecode, TooFewSymbolsIsDataLoss) {
  Refused(StatusCode::kDataLoss, 20, 64, kAllButOne, {});
  Refused(StatusCode::kDataLoss, 20, 64, 0xffff0, {{0, repair_[0]}, {1, repair_[1]}, {3, repair_[3]}});
}

TEST_F(BadDecode, ACompleteBlockIsLeftAlone) {
  Refused(StatusCode::kOk, 20, 64, 0xfffff, {});
  Refused(StatusCode::kOk, 20, 64, 0xfffff, {{0, repair_[0]}});
}

TEST(FecStart, MissingBackendIsAClearErrorThatNamesThePackage) {
  const auto created = ErasureCodeLibrary::Create([] { return false; });
  ASSERT_FALSE(created.ok());
  EXPECT_EQ(created.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(created.status().message(), HasSubstr("libisal2"));
}

TEST(FecStart, AFailedStartDoesNotSpoilTheNext) {
  EXPECT_FALSE(ErasureCodeLibrary::Create([] { return false; }).ok());
  EXPECT_TRUE(ErasureCodeLibrary::Create().ok());
}

TEST(FecStart, NoDescriptorIsMadeOrDestroyedAfterTheStart) {
  Random random(8);
  auto first = Library();
  const int descriptors = ErasureCodeLibrary::DescriptorsCreated();
  EXPECT_EQ(descriptors, 8 + 12 + 16 + 20 + 24);
  const auto second = Library();
  const Symbols source = RandomSymbols(random, 16, 64);
  const Symbols repair = EncodeBlock(*first, source, 16);
  first.reset();  // takes nothing away from the second
  Survivors left = Lose(random, source, repair, 16);
  ASSERT_TRUE(DecodeBlock(*second, left).ok());
  EXPECT_EQ(left.source, source);
  EXPECT_EQ(ErasureCodeLibrary::DescriptorsCreated(), descriptors);
}

TEST(FecStart, SaysWhatIsUsed) {
  EXPECT_THAT(std::string(ErasureCodeLibrary::Description()), HasSubstr("isa_l_rs_cauchy"));
}

TEST(Fec, HeaderSetsAreBoundedHoweverManyLengthsPeersUse) {
  Random random(9);
  const auto library = Library();
  for (size_t n = 1; n <= 2 * ErasureCodeLibrary::kMaxHeaderSets; ++n) {
    const Symbols source = RandomSymbols(random, 8, 16 * n);
    const Symbols repair = EncodeBlock(*library, source, 2);
    Survivors left = Lose(random, source, repair, 2);
    ASSERT_TRUE(DecodeBlock(*library, left).ok());
    ASSERT_EQ(left.source, source) << 16 * n << " bytes";
    ASSERT_LE(library->header_sets(), ErasureCodeLibrary::kMaxHeaderSets);
  }
}

TEST(Fec, RestoredHeadersAreTheOnesTheLibraryWrites) {
  // The header depends on k, length and index; not on the data and not on m.
  Random random(10);
  const auto library = Library();
  constexpr size_t kSymbolBytes = 96;
  for (int k : kBlockSizes) {
    const auto headers = ErasureCodeLibrary::MakeHeaders(k, kSymbolBytes);
    ASSERT_NE(headers, nullptr);
    for (int m : {1, 4, ErasureCoder::MaxRepair(k)}) {
      ec_args args{};
      args.k = k;
      args.m = m;
      args.w = 8;
      args.hd = m + 1;
      args.ct = CHKSUM_NONE;
      // No other thread runs in this test, so that making a descriptor is safe.
      const int descriptor = liberasurecode_instance_create(EC_BACKEND_ISA_L_RS_CAUCHY, &args);
      ASSERT_GT(descriptor, 0);
      const auto data = RandomBytes(random, static_cast<size_t>(k) * kSymbolBytes);
      char** source = nullptr;
      char** repair = nullptr;
      uint64_t fragment_bytes = 0;
      ASSERT_EQ(liberasurecode_encode(descriptor, reinterpret_cast<const char*>(data.data()), data.size(),
                                      &source, &repair, &fragment_bytes),
                0);
      EXPECT_EQ(fragment_bytes, kFragmentHeaderBytes + kSymbolBytes);
      for (int i = 0; i < k + m; ++i) {
        const char* fragment = i < k ? source[i] : repair[i - k];
        EXPECT_EQ(std::memcmp(fragment, (*headers)[i].data(), kFragmentHeaderBytes), 0)
            << "k " << k << " m " << m << " fragment " << i;
      }
      liberasurecode_encode_cleanup(descriptor, source, repair);
    }
  }
}

TEST(Fec, FourThreadsShareOneCoder) {
  const auto library = Library();
  std::atomic<int> wrong{0};
  auto work = [&](uint64_t seed) {
    Random random(seed);
    for (int i = 0; i < 150; ++i) {
      const int k = kBlockSizes[random.Below(std::size(kBlockSizes))];
      const int m = 1 + static_cast<int>(random.Below(ErasureCoder::MaxRepair(k)));
      const Symbols source = RandomSymbols(random, k, 16 * (1 + random.Below(100)));
      const Symbols repair = EncodeBlock(*library, source, m);
      Survivors left = Lose(random, source, repair, 1 + random.Below(m));
      if (!DecodeBlock(*library, left).ok() || left.source != source) ++wrong;
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t seed = 100; seed < 104; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace longhaul::codec
