#include "wan/tun/lateness.h"

#include <gtest/gtest.h>

namespace longhaul::wan {
namespace {

TEST(Lateness, QuantilesAreWithinAnEighth) {
  Lateness lateness;
  for (int i = 1; i <= 100'000; ++i) lateness.Record(Duration(i * 1000));
  for (const double q : {0.01, 0.5, 0.9, 0.99, 0.999}) {
    const auto got = static_cast<double>(lateness.Quantile(q).count());
    EXPECT_GE(got, q * 1e8);
    EXPECT_LE(got, q * 1e8 * 1.126);
  }
  EXPECT_EQ(lateness.max(), Duration(100'000'000));
  EXPECT_EQ(lateness.count(), 100'000u);
}

TEST(Lateness, ExtremesHaveABucket) {
  Lateness lateness;
  EXPECT_EQ(lateness.Quantile(0.5), Duration(0));
  lateness.Record(Duration(-5));  // early counts as on time
  EXPECT_EQ(lateness.Quantile(0.5), Duration(0));
  lateness.Record(Duration::max());
  EXPECT_EQ(lateness.Quantile(0.99), Duration::max());
}

}  // namespace
}  // namespace longhaul::wan
