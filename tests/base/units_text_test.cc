#include "base/units_text.h"

#include <gtest/gtest.h>

namespace longhaul {
namespace {

using namespace std::chrono_literals;

TEST(UnitsText, ReadsUnitsAndBareNumbersWhereTheyAreClear) {
  EXPECT_EQ(*ParseRate("1.5Gbit"), Bandwidth::Mbps(1500));
  EXPECT_EQ(*ParseRate("unlimited"), Bandwidth::Zero());
  EXPECT_EQ(*ParseTime("0.5us"), 500ns);
  EXPECT_EQ(*ParseBytes("1000000"), ByteCount(1'000'000));
  EXPECT_EQ(*ParseBytes("1MiB"), ByteCount(1 << 20));
  EXPECT_EQ(*ParseTime("0"), 0ns);
  EXPECT_EQ(*ParseBytes("0"), ByteCount(0));
  EXPECT_EQ(*ParsePercent("0"), 0);
  EXPECT_EQ(*ParsePercent("2%"), 0.02);
  EXPECT_EQ(*ParseShare("2%"), 0.02);
  EXPECT_EQ(*ParseShare("0.02"), 0.02);
}

TEST(UnitsText, RefusesWhatIsAmbiguousOrOutOfRange) {
  for (const char* text : {"", "200", "0", "200mbps", "-1mbit", "2000gbit", "nanbit", "1 mbit"}) {
    EXPECT_FALSE(ParseRate(text).ok()) << text;
  }
  for (const char* text : {"", "25", "25m", "-1s", "1e30s", "infs"})
    EXPECT_FALSE(ParseTime(text).ok()) << text;
  for (const char* text : {"", "-1", "1tb", "1e16", "kb"}) EXPECT_FALSE(ParseBytes(text).ok()) << text;
  for (const char* text : {"", "2", "101%", "-1%"}) EXPECT_FALSE(ParsePercent(text).ok()) << text;
  for (const char* text : {"", "2", "-0.1", "nan", "0.1x"}) EXPECT_FALSE(ParseShare(text).ok()) << text;
}

TEST(UnitsText, WritesWhatItReadsBack) {
  EXPECT_EQ(RateText(Bandwidth::Mbps(1500)), "1500mbit");
  EXPECT_EQ(RateText(Bandwidth::Mbps(2000)), "2gbit");
  EXPECT_EQ(TimeText(25ms), "25ms");
  EXPECT_EQ(TimeText(0s), "0s");
  EXPECT_EQ(PercentText(0.005), "0.5%");
  for (const int64_t n : {1L, 999L, 1000L, 1001L, 86'400'000'000'000L}) {
    EXPECT_EQ(*ParseTime(TimeText(Duration(n))), Duration(n));
    EXPECT_EQ(*ParseRate(RateText(Bandwidth::BitsPerSecond(n % 1'000'000'000 + 1))),
              Bandwidth::BitsPerSecond(n % 1'000'000'000 + 1));
  }
}

TEST(UnitsText, SecondsHaveOneDecimal) {
  EXPECT_EQ(SecondsText(10s), "10.0 s");
  EXPECT_EQ(SecondsText(1949ms), "1.9 s");
  EXPECT_EQ(SecondsText(1950ms), "2.0 s");
  EXPECT_EQ(SecondsText(-1500ms), "-1.5 s");
}

}  // namespace
}  // namespace longhaul
