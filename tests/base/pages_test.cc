#include "base/pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/random.h"
#include "base/zeroed_array.h"

namespace longhaul {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(Pages, AreZeroAndTooManyAreRefused) {
  void* const pages = MapPages(kMiB + 1);
  ASSERT_NE(pages, nullptr);
  const auto* bytes = static_cast<const uint8_t*>(pages);
  EXPECT_TRUE(std::all_of(bytes, bytes + kMiB + 1, [](uint8_t b) { return b == 0; }));
  UnmapPages(pages, kMiB + 1);
  EXPECT_EQ(MapPages(SIZE_MAX), nullptr);
  EXPECT_EQ(MapPages(size_t{1} << 60), nullptr);
  EXPECT_THROW(ZeroedArray<float>(size_t{1} << 60), std::bad_alloc);
  EXPECT_THROW(ZeroedArray<float>(SIZE_MAX / 2), std::bad_alloc);
}

// Of these bytes, those that the system still has for us.
size_t Mapped(uint8_t* begin, size_t bytes) {
  size_t mapped = 0;
  for (size_t at = 0; at < bytes; at += PageBytes()) {
    unsigned char resident = 0;
    mapped += mincore(begin + at, PageBytes(), &resident) == 0 ? PageBytes() : 0;
  }
  return mapped;
}

TEST(Pages, ThatAreFreedGoBackInSlices) {
  constexpr size_t kBytes = 5 * DeferredUnmap::kSliceBytes + kMiB;
  DeferredUnmap deferred;
  uint8_t* begin = nullptr;
  {
    ZeroedArray<uint8_t> large(kBytes), small(100);
    begin = large.data();
    std::memset(begin, 1, kBytes);
    EXPECT_FALSE(deferred.HasWork());
  }
  size_t slices = 0;
  for (size_t left = kBytes; deferred.HasWork();
       ++slices, left -= std::min(left, DeferredUnmap::kSliceBytes)) {
    EXPECT_EQ(Mapped(begin, kBytes), left) << slices;
    deferred.Slice();
  }
  EXPECT_EQ(Mapped(begin, kBytes), 0u);
  EXPECT_EQ(slices, 6u) << "what is small goes at once";
}

TEST(Pages, WithoutADeferralGoBackAtOnce) {
  { ZeroedArray<uint8_t> large(kMiB); }
  const DeferredUnmap deferred;
  EXPECT_FALSE(deferred.HasWork());
}

// A vector that begins in the heap and ends in pages is a vector.
TEST(Pages, APagedVectorGrowsAndMovesLikeAnyOther) {
  const uint64_t seed = 5;
  Random random(seed);
  PagedVector<uint32_t> paged;
  std::vector<uint32_t> plain;
  while (plain.size() < kMappedBytes) {
    const uint64_t more = 1 + random.Below(20'000);
    for (uint64_t i = 0; i < more; ++i) {
      paged.push_back(static_cast<uint32_t>(plain.size()));
      plain.push_back(static_cast<uint32_t>(plain.size()));
    }
    PagedVector<uint32_t> other = std::move(paged);
    std::swap(paged, other);
    ASSERT_TRUE(std::ranges::equal(paged, plain)) << "seed " << seed;
  }
}

TEST(ZeroedArray, IsMovedAndExchanged) {
  ZeroedArray<uint32_t> a(3), b(kMappedBytes);
  a[2] = 7;
  b[9] = 8;
  std::swap(a, b);
  EXPECT_EQ(a[9], 8u);
  EXPECT_EQ(b[2], 7u);
  b = std::move(a);
  EXPECT_EQ(b[9], 8u);
  EXPECT_EQ(b.size(), kMappedBytes);
  EXPECT_TRUE(ZeroedArray<uint32_t>().empty());
}

}  // namespace
}  // namespace longhaul
