#include "wan/link_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace longhaul::wan {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

TEST(LinkOptions, ReadsNetemLikeWords) {
  const auto parsed = ParseLinkOptions(
      "rate 200mbit delay 25ms 2ms loss 2% queue 256kb reorder 1% duplicate 0.5% corrupt 0.1% mtu 1400b "
      "outage 3s..5s outage 10s..10500ms jitter-reorders");
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->rate, Bandwidth::Mbps(200));
  EXPECT_EQ(parsed->delay, 25ms);
  EXPECT_EQ(parsed->jitter, 2ms);
  EXPECT_TRUE(parsed->jitter_reorders);
  EXPECT_DOUBLE_EQ(parsed->loss, 0.02);
  EXPECT_EQ(parsed->loss_burst, 0);
  EXPECT_EQ(parsed->queue_bytes, ByteCount(256'000));
  EXPECT_DOUBLE_EQ(parsed->reorder, 0.01);
  EXPECT_DOUBLE_EQ(parsed->duplicate, 0.005);
  EXPECT_DOUBLE_EQ(parsed->corrupt, 0.001);
  EXPECT_EQ(parsed->mtu, ByteCount(1400));
  EXPECT_EQ(parsed->outages, (std::vector<Outage>{{3s, 5s}, {10s, 10500ms}}));
}

TEST(LinkOptions, EqualSignsAndCommasAreAsGoodAsSpaces) {
  const auto a = ParseLinkOptions("rate=1gbit,delay=40ms,gemodel=5%,burst=10,limit=100ms");
  const auto b = ParseLinkOptions("rate 1000mbit delay 0.04s burst 10 loss gemodel 5% 10 queue 100ms");
  ASSERT_TRUE(a.ok()) << a.status().ToString();
  ASSERT_TRUE(b.ok()) << b.status().ToString();
  EXPECT_EQ(*a, *b);
  EXPECT_EQ(a->loss_burst, 10);
}

TEST(LinkOptions, WhatIsNotMentionedStaysAsInTheBase) {
  const auto base = ParseLinkOptions("rate 100mbit delay 20ms loss gemodel 5% burst 10");
  const auto changed = ParseLinkOptions("loss 1%", *base);
  ASSERT_TRUE(changed.ok());
  EXPECT_EQ(changed->rate, Bandwidth::Mbps(100));
  EXPECT_EQ(changed->delay, 20ms);
  EXPECT_DOUBLE_EQ(changed->loss, 0.01);
  EXPECT_EQ(changed->loss_burst, 0) << "a plain loss is Bernoulli again";
}

TEST(LinkOptions, ToStringIsReadBackUnchanged) {
  for (const char* words : {"", "rate 200mbit delay 25ms loss 2%", "rate 1500kbit loss gemodel 5% burst 10",
                            "delay 30ms jitter 3ms jitter-reorders reorder 1% queue 64kib",
                            "duplicate 1% corrupt 0.01% mtu 1400b outage 1ms..2s outage 3s..4s"}) {
    const auto once = ParseLinkOptions(words);
    ASSERT_TRUE(once.ok()) << words << ": " << once.status().ToString();
    const auto twice = ParseLinkOptions(once->ToString());
    ASSERT_TRUE(twice.ok()) << once->ToString() << ": " << twice.status().ToString();
    EXPECT_EQ(*once, *twice) << once->ToString();
  }
}

struct Bad {
  const char* words;
  const char* message;  // a part of the error that tells the user what to do
};

class RefusedWords : public ::testing::TestWithParam<Bad> {};

TEST_P(RefusedWords, AreRefusedWithTheReason) {
  const auto parsed = ParseLinkOptions(GetParam().words);
  ASSERT_FALSE(parsed.ok()) << GetParam().words << " became " << parsed->ToString();
  EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(parsed.status().message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    LinkOptions, RefusedWords,
    ::testing::Values(
        Bad{"rate 200", "no unit"}, Bad{"rate 200mbps", "tc's bps"}, Bad{"rate 0mbit", "outside"},
        Bad{"rate fast", "200mbit"}, Bad{"rate -5mbit", "negative"}, Bad{"rate 1e30gbit", "outside"},
        Bad{"rate", "missing"}, Bad{"delay 25", "no unit"}, Bad{"delay 2h", "unknown unit 'h'"},
        Bad{"delay 7200s", "outside"}, Bad{"delay nans", "number"}, Bad{"delay infs", "number"},
        Bad{"delay 5ms jitter 6ms", "before it was sent"}, Bad{"jitter 1ms", "before it was sent"},
        Bad{"loss 2", "percentage"}, Bad{"loss 101%", "more than 100%"}, Bad{"loss -1%", "negative"},
        Bad{"gemodel 5%", "mean burst"}, Bad{"gemodel 5% burst 0.5", "at least 1"},
        Bad{"gemodel 5% burst many", "burst length"}, Bad{"gemodel 90% burst 2", "impossible"},
        Bad{"gemodel 100% burst 5", "impossible"}, Bad{"queue 0ms", "no packet"},
        Bad{"queue 0b", "no packet"}, Bad{"queue 100", "neither"}, Bad{"reorder 1%", "needs a delay"},
        Bad{"outage 5s", "from..to"}, Bad{"outage 5s..3s", "ends before"}, Bad{"outage 5s..", "time"},
        Bad{"loss 2% drop 1%", "given twice"}, Bad{"limit 5ms queue 5ms", "given twice"},
        Bad{"burst 3", "without loss"}, Bad{"loss 0.02", "no unit"}, Bad{"slot 3ms", "unknown word"},
        Bad{"duplicate x", "percentage"}, Bad{"corrupt", "missing"}));

}  // namespace
}  // namespace longhaul::wan
