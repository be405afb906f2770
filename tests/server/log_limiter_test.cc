// Lines about what strangers do, in virtual time.
#include "server/log_limiter.h"

#include <gtest/gtest.h>

namespace longhaul::server {
namespace {

using namespace std::chrono_literals;

Instant At(int64_t ms) { return Instant::FromNanoseconds(5'000'000'000 + ms * 1'000'000); }

TEST(LogLimiter, WritesSoManyLinesAPeriodAndThenHowManyMore) {
  LogLimiter limiter(3, 1s);
  int written = 0;
  for (int i = 0; i < 100; ++i) written += limiter.Allow(At(i));
  EXPECT_EQ(written, 3);
  EXPECT_EQ(limiter.Due(), At(1000));
  EXPECT_EQ(limiter.TakeSuppressed(At(999)), 0u) << "the period is not over";
  EXPECT_EQ(limiter.TakeSuppressed(At(1000)), 97u);
  EXPECT_EQ(limiter.TakeSuppressed(At(1000)), 0u) << "said once";
  EXPECT_TRUE(limiter.Due().IsInfinite());
}

TEST(LogLimiter, QuietPeriodsNeedNoTimer) {
  LogLimiter limiter(2, 1s);
  for (int second = 0; second < 10; ++second) {
    EXPECT_TRUE(limiter.Allow(At(second * 1000)));
    EXPECT_TRUE(limiter.Allow(At(second * 1000 + 500)));
    EXPECT_TRUE(limiter.Due().IsInfinite());
  }
}

TEST(LogLimiter, WhatWasNotSaidInTimeIsAddedToTheNextPeriod) {
  LogLimiter limiter(1, 1s);
  for (int i = 0; i < 5; ++i) (void)limiter.Allow(At(0));
  for (int i = 0; i < 5; ++i) (void)limiter.Allow(At(2000));
  EXPECT_EQ(limiter.Due(), At(3000));
  EXPECT_EQ(limiter.TakeSuppressed(At(3000)), 8u);
}

TEST(LogLimiter, ZeroIsAnInstantLikeAnyOther) {
  LogLimiter limiter(1, 1s);
  EXPECT_TRUE(limiter.Allow(Instant()));
  EXPECT_FALSE(limiter.Allow(Instant()));
}

}  // namespace
}  // namespace longhaul::server
