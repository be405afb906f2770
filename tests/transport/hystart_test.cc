#include "transport/core/rate/hystart.h"

#include <gtest/gtest.h>

namespace longhaul::transport {
namespace {

using std::chrono::milliseconds;

void Round(HyStart* hystart, Duration rtt, int samples = HyStart::kRttSamples) {
  hystart->OnRoundStart();
  for (int i = 0; i < samples; ++i) hystart->OnRttSample(rtt);
}

TEST(HyStart, SteadyRoundTripsLeaveSlowStartAlone) {
  HyStart hystart;
  for (int i = 0; i < 50; ++i) Round(&hystart, milliseconds(50));
  EXPECT_FALSE(hystart.conservative());
  EXPECT_FALSE(hystart.done());
  EXPECT_EQ(hystart.growth(), 1.0);
}

TEST(HyStart, AnEighthMoreSlowsTheGrowthAndFiveRoundsEndIt) {
  HyStart hystart;
  Round(&hystart, milliseconds(80));
  Round(&hystart, milliseconds(89));
  EXPECT_FALSE(hystart.conservative());  // below the eighth
  Round(&hystart, milliseconds(101));    // above 89 + 11.1
  EXPECT_TRUE(hystart.conservative());
  EXPECT_EQ(hystart.growth(), 0.25);
  for (int i = 0; i < HyStart::kCssRounds; ++i) {
    EXPECT_FALSE(hystart.done());
    Round(&hystart, milliseconds(105));
  }
  EXPECT_TRUE(hystart.done());
}

TEST(HyStart, TheThresholdIsAtLeastFourAndAtMostSixteenMilliseconds) {
  HyStart near;
  Round(&near, milliseconds(2));
  Round(&near, milliseconds(5));
  EXPECT_FALSE(near.conservative());
  Round(&near, milliseconds(9));
  EXPECT_TRUE(near.conservative());

  HyStart far;
  Round(&far, milliseconds(400));
  Round(&far, milliseconds(415));
  EXPECT_FALSE(far.conservative());
  Round(&far, milliseconds(431));
  EXPECT_TRUE(far.conservative());
}

TEST(HyStart, FewSamplesProveNothing) {
  HyStart hystart;
  Round(&hystart, milliseconds(50));
  Round(&hystart, milliseconds(500), HyStart::kRttSamples - 1);
  EXPECT_FALSE(hystart.conservative());
}

TEST(HyStart, ARoundTripBelowTheBaselineResumesSlowStart) {
  HyStart hystart;
  Round(&hystart, milliseconds(50));
  Round(&hystart, milliseconds(60));
  ASSERT_TRUE(hystart.conservative());
  Round(&hystart, milliseconds(59));
  EXPECT_FALSE(hystart.conservative());
  for (int i = 0; i < 2 * HyStart::kCssRounds; ++i) Round(&hystart, milliseconds(59));
  EXPECT_FALSE(hystart.done());
}

}  // namespace
}  // namespace longhaul::transport
