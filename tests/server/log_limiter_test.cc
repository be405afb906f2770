// Lines about what strangers do, in virtual time.
#include "server/report/log_limiter.h"

#include <gtest/gtest.h>

#include <string>

namespace longhaul::server {
namespace {

using namespace std::chrono_literals;

Instant At(int64_t ms) { return Instant::FromNanoseconds(5'000'000'000 + ms * 1'000'000); }

// A limiter, and lines that all differ.
class LogLimiterTest : public ::testing::Test {
 protected:
  LogLimiter::Verdict Add(int64_t ms) { return limiter_.Add(At(ms), std::to_string(++number_)); }

  LogLimiter limiter_{{.lines = 3, .refill = 10s, .gather = 1s}};
  int number_ = 0;
};

TEST_F(LogLimiterTest, WritesSoManyLinesAtOnceAndThenHowManyMore) {
  int written = 0;
  for (int i = 0; i < 100; ++i) written += Add(i).line;
  EXPECT_EQ(written, 3);
  EXPECT_EQ(limiter_.Due(), At(1003)) << "a second after the first that was left out";
  EXPECT_EQ(limiter_.TakeLeftOut(At(1002)), 0u);
  EXPECT_EQ(limiter_.TakeLeftOut(At(1003)), 97u);
  EXPECT_EQ(limiter_.TakeLeftOut(At(1003)), 0u) << "said once";
  EXPECT_TRUE(limiter_.Due().IsInfinite());
}

TEST_F(LogLimiterTest, NumbersAreToldSeldomAndLinesComeBackOneByOne) {
  for (int i = 0; i < 5; ++i) (void)Add(0);
  EXPECT_EQ(limiter_.TakeLeftOut(At(1000)), 2u);
  EXPECT_FALSE(Add(2000).line);
  EXPECT_EQ(limiter_.Due(), At(11'000));
  EXPECT_TRUE(Add(10'000).line);
  EXPECT_FALSE(Add(10'000).line);
  EXPECT_EQ(limiter_.TakeLeftOut(At(11'000)), 2u);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Add(100'000).line) << "after a quiet time all are back";
}

TEST_F(LogLimiterTest, WhatIsSeldomNeedsNoTimer) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(Add(i * 10'000).line);
    EXPECT_TRUE(limiter_.Due().IsInfinite());
  }
}

// The timer may be late: the number comes before the next line, and is not mixed with what follows.
TEST_F(LogLimiterTest, WhatWasNotToldInTimeIsToldBeforeTheNextLine) {
  for (int i = 0; i < 8; ++i) (void)Add(0);
  const auto next = Add(60'000);
  EXPECT_EQ(next.left_out, 5u);
  EXPECT_TRUE(next.line);
  EXPECT_TRUE(limiter_.Due().IsInfinite());
}

TEST_F(LogLimiterTest, TheSameLineAgainIsCountedAndTakesNoOthersPlace) {
  EXPECT_TRUE(limiter_.Add(At(0), "a").line);
  for (int i = 1; i < 50; ++i) EXPECT_FALSE(limiter_.Add(At(i), "a").line);
  EXPECT_TRUE(limiter_.Add(At(50), "b").line);
  EXPECT_TRUE(limiter_.Add(At(51), "c").line);
  EXPECT_EQ(limiter_.TakeLeftOut(At(1001)), 49u);
  EXPECT_TRUE(limiter_.Add(At(30'000), "a").line);
}

TEST_F(LogLimiterTest, ZeroIsAnInstantLikeAnyOther) {
  EXPECT_TRUE(limiter_.Add(Instant(), "a").line);
  EXPECT_FALSE(limiter_.Add(Instant(), "a").line);
}

// 100 a second, without a pause or in bursts: what is written stays small, and every one is in a line or in a
// number.
TEST(LogLimiter, AFloodOfADayWritesAFewThousandLines) {
  constexpr int64_t kDay = 86'400'000;
  constexpr int64_t kStep = LONGHAUL_SLOWNESS > 1 ? 100 : 10;
  for (const int64_t pause : {int64_t{0}, int64_t{9'000}, int64_t{11'000}}) {
    SCOPED_TRACE(pause);
    LogLimiter limiter;
    uint64_t lines = 0, numbers = 0, told = 0, caused = 0;
    const auto tell = [&](uint64_t left_out) {
      numbers += left_out > 0;
      told += left_out;
    };
    for (int64_t ms = 0; ms < kDay; ms += kStep) {
      if (At(ms) >= limiter.Due()) tell(limiter.TakeLeftOut(At(ms)));
      if (ms % (1000 + pause) >= 1000) continue;
      const auto verdict = limiter.Add(At(ms), std::to_string(++caused));
      tell(verdict.left_out);
      lines += verdict.line;
    }
    tell(limiter.TakeLeftOut(At(kDay + 100'000)));
    EXPECT_EQ(lines + told, caused);
    EXPECT_LE(lines, 8650u);
    EXPECT_LE(numbers, 8641u);
    EXPECT_GE(lines + numbers, 5000u) << "an operator sees that it goes on";
  }
}

}  // namespace
}  // namespace longhaul::server
