#include "base/quantile.h"

#include <gtest/gtest.h>

#include <numeric>

namespace longhaul {
namespace {

std::vector<double> OneTo(size_t n) {
  std::vector<double> values(n);
  std::iota(values.rbegin(), values.rend(), 1.0);  // the greatest first
  return values;
}

TEST(Quantile, IsTheNearestRank) {
  EXPECT_EQ(Quantile(OneTo(100), 0.99), 99);  // not the greatest: one round in a hundred may be worse
  EXPECT_EQ(Quantile(OneTo(100), 0.5), 50);
  EXPECT_EQ(Quantile(OneTo(100), 0.29), 29);
  EXPECT_EQ(Quantile(OneTo(1000), 0.99), 990);
  EXPECT_EQ(Quantile(OneTo(5), 0.5), 3);
  EXPECT_EQ(Quantile(OneTo(4), 0.5), 2);
  EXPECT_EQ(Quantile(OneTo(99), 0.99), 99);
}

TEST(Quantile, TheEndsAreTheLeastAndTheGreatest) {
  EXPECT_EQ(Quantile(OneTo(7), 0), 1);
  EXPECT_EQ(Quantile(OneTo(7), 1), 7);
  EXPECT_EQ(Quantile({3.5}, 0.99), 3.5);
  EXPECT_EQ(Quantile({}, 0.5), 0);
}

}  // namespace
}  // namespace longhaul
