#include "transport/udp/fault_injector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace longhaul::udp {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

TEST(ParseFaults, ReadsEveryWord) {
  const Result<FaultOptions> faults = ParseFaults(
      "drop=0.02,delay=25ms,jitter=500us,dup=0.01,reorder=0.03,corrupt=0.001,rate=200mbit,queue=60ms,burst=4,"
      "side=out,seed=7");
  ASSERT_TRUE(faults.ok()) << faults.status().ToString();
  EXPECT_DOUBLE_EQ(faults->link.loss, 0.02);
  EXPECT_EQ(faults->link.delay, milliseconds(25));
  EXPECT_EQ(faults->link.jitter, std::chrono::microseconds(500));
  EXPECT_DOUBLE_EQ(faults->link.duplicate, 0.01);
  EXPECT_DOUBLE_EQ(faults->link.reorder, 0.03);
  EXPECT_DOUBLE_EQ(faults->link.corrupt, 0.001);
  EXPECT_EQ(faults->link.rate, Bandwidth::Mbps(200));
  EXPECT_EQ(faults->link.queue_time, milliseconds(60));
  EXPECT_DOUBLE_EQ(faults->link.loss_burst, 4);
  EXPECT_EQ(faults->side, FaultSide::kOutgoing);
  EXPECT_EQ(faults->seed, 7u);
}

TEST(ParseFaults, TakesPercentAndTheLongNames) {
  EXPECT_EQ(*ParseFaults("loss=2%,duplicate=1%"), *ParseFaults("drop=0.02,dup=0.01"));
  EXPECT_EQ(ParseFaults("rate=1mbit,queue=20kb")->link.queue_bytes, ByteCount(20000));
}

TEST(ParseFaults, WhatIsNotNamedIsOff) {
  const FaultOptions faults = *ParseFaults("seed=3");
  EXPECT_EQ(faults.link, wan::LinkOptions{});
  EXPECT_EQ(faults.side, FaultSide::kBoth);
}

TEST(ParseFaults, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> kCases[] = {
      {"", "NAME=VALUE"},
      {"drop", "NAME=VALUE"},
      {"drop=", "NAME=VALUE"},
      {"=1", "NAME=VALUE"},
      {"drop=0.1,", "NAME=VALUE"},
      {"color=red", "unknown word; known are rate"},
      {"drop=1.5", "outside 0..1"},
      {"drop=-0.1", "outside 0..1"},
      {"drop=x", "not a number"},
      {"drop=nan", "not a number"},
      {"drop=101%", "100%"},
      {"drop=0.1,loss=0.2", "given twice"},
      {"delay=25", "no unit"},
      {"delay=-5ms", "negative"},
      {"jitter=5ms", "jitter"},
      {"reorder=0.1", "needs a delay"},
      {"rate=fast", "rate"},
      {"queue=50ms", "without a rate"},
      {"rate=1mbit,queue=0ms", "no packet"},
      {"rate=1mbit,queue=7", "neither a time"},
      {"burst=3", "without loss"},
      {"drop=0.1,burst=0.5", "burst"},
      {"drop=0.9,burst=1", "impossible"},
      {"side=left", "in, out or both"},
      {"seed=-1", "not a number"},
      {"seed=1,seed=1", "given twice"},
      {"side=in,side=in", "given twice"},
  };
  for (const auto& [spec, why] : kCases) {
    const Result<FaultOptions> faults = ParseFaults(spec);
    ASSERT_FALSE(faults.ok()) << spec;
    EXPECT_EQ(faults.status().code(), StatusCode::kInvalidArgument) << spec;
    EXPECT_THAT(faults.status().message(), HasSubstr(why)) << spec;
  }
}

}  // namespace
}  // namespace longhaul::udp
