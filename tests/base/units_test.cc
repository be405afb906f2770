#include "longhaul/units.h"

#include <gtest/gtest.h>

#include <limits>
#include <type_traits>

#include "base/instant.h"

namespace longhaul {
namespace {

using namespace std::chrono_literals;

template <typename A, typename B>
concept Addable = requires(A a, B b) {
  a + b;
};
template <typename A, typename B>
concept Comparable = requires(A a, B b) {
  a < b;
};

TEST(Units, WhatMakesNoSenseDoesNotCompile) {
  static_assert(!Addable<Bandwidth, ByteCount>);
  static_assert(!Addable<ByteCount, int>);
  static_assert(!Addable<Bandwidth, int>);
  static_assert(!Addable<Instant, Instant>);
  static_assert(!Comparable<ByteCount, Bandwidth>);
  static_assert(!std::is_convertible_v<int64_t, ByteCount>);
  static_assert(!std::is_convertible_v<int64_t, Bandwidth>);
  static_assert(!std::is_convertible_v<int64_t, Instant>);
  static_assert(Addable<Instant, Duration>);
}

TEST(Units, BandwidthTimesTimeIsBytes) {
  // 200 Mbit/s over 50 ms hold 1.25 MB: the bandwidth-delay product of the demo's path.
  EXPECT_EQ(Bandwidth::Mbps(200) * 50ms, ByteCount(1'250'000));
  EXPECT_EQ(Duration(50ms) * Bandwidth::Mbps(200), ByteCount(1'250'000));
}

TEST(Units, TransferTimeInvertsIt) {
  EXPECT_EQ(Bandwidth::Mbps(200).TransferTime(ByteCount(1'250'000)), Duration(50ms));
  EXPECT_EQ(Bandwidth::Zero().TransferTime(ByteCount(1)), Duration::max());
}

TEST(Units, BandwidthFromBytesAndTime) {
  EXPECT_EQ(Bandwidth::FromBytesAndTime(ByteCount(1'250'000), 50ms), Bandwidth::Mbps(200));
  EXPECT_EQ(Bandwidth::FromBytesAndTime(ByteCount(1), 0ms), Bandwidth::Max());
  EXPECT_EQ(Bandwidth::FromBytesAndTime(ByteCount(1), -1ms), Bandwidth::Max());
  EXPECT_EQ(Bandwidth::BytesPerSecond(1000), Bandwidth::BitsPerSecond(8000));
}

// A bound on the bytes in flight that grows by a factor each round trip was negative after some thousand.
TEST(Units, WhatNoIntegerHoldsIsTheLargestOne) {
  EXPECT_EQ(Bandwidth::FromBytesAndTime(ByteCount(1'300'000'000'000), 1ns), Bandwidth::Max());
  EXPECT_EQ(Bandwidth::Max() * 2.0, Bandwidth::Max());
  EXPECT_EQ(ByteCount::Max() * 2.0, ByteCount::Max());
  EXPECT_EQ(ByteCount::Max() * -2.0, ByteCount(std::numeric_limits<int64_t>::min()));
  EXPECT_EQ(Bandwidth::Max() * Duration::max(), ByteCount::Max());
  EXPECT_EQ(Bandwidth::BitsPerSecond(1).TransferTime(ByteCount::Max()), Duration::max());
}

TEST(Units, ScalingAndRatios) {
  EXPECT_EQ(Bandwidth::Mbps(100) * 1.25, Bandwidth::Mbps(125));
  EXPECT_EQ(1.25 * Bandwidth::Mbps(100), Bandwidth::Mbps(125));
  EXPECT_DOUBLE_EQ(Bandwidth::Mbps(50) / Bandwidth::Mbps(200), 0.25);
  EXPECT_DOUBLE_EQ(ByteCount(1) / ByteCount(4), 0.25);
  EXPECT_EQ(ByteCount(1452) * int64_t{2}, ByteCount(2904));
  EXPECT_EQ(ByteCount(1000) * 0.5, ByteCount(500));
}

TEST(Units, DifferencesDoNotWrap) {
  EXPECT_EQ((ByteCount(1) - ByteCount(2)).value(), -1);
  EXPECT_LT(ByteCount(1) - ByteCount(2), ByteCount(0));
  // 4.3 GB do not fit 32 bits.
  ByteCount total;
  for (int i = 0; i < 5; ++i) total += ByteCount(1'000'000'000);
  EXPECT_EQ(total.value(), 5'000'000'000);
}

TEST(Instant, InfiniteStaysInfinite) {
  EXPECT_TRUE((Instant::Infinite() + 1s).IsInfinite());
  EXPECT_TRUE((Instant::Infinite() - 1s).IsInfinite());
  EXPECT_TRUE((Instant::FromNanoseconds(5) + Duration::max()).IsInfinite());
  EXPECT_LT(Instant::FromNanoseconds(5), Instant::Infinite());
}

TEST(Instant, DifferencesAreDurations) {
  const Instant start = Instant::FromNanoseconds(1'000);
  EXPECT_EQ(start + 1us - start, Duration(1us));
  EXPECT_EQ(start - (start + 1us), Duration(-1us));
  Instant t = start;
  t += 2us;
  EXPECT_EQ(t, Instant::FromNanoseconds(3'000));
}

}  // namespace
}  // namespace longhaul
