#include "transport/core/window/close_rule.h"

#include <gtest/gtest.h>

namespace longhaul::transport {
namespace {

using std::chrono::milliseconds;
using wire::CloseReason;

Instant At(int64_t ms) { return Instant::FromNanoseconds(ms * 1000000); }

IncomingWindow Window(bool high_complete, double low_ratio, bool finished) {
  IncomingWindow window;
  window.high_count = 10;
  window.low_count = 90;
  window.high_complete = high_complete;
  window.low_ratio = low_ratio;
  window.sender_finished = finished;
  window.complete = high_complete && low_ratio == 1;
  return window;
}

CloseRuleInput Input(Instant last_chunk, Instant finished = Instant::Infinite()) {
  return {
      .close_ratio = 0.9, .smoothed_rtt = milliseconds(80), .last_chunk = last_chunk, .finished = finished};
}

TEST(CloseRule, GraceIsAQuarterOfTheRoundTripButNeverBelowFiveMilliseconds) {
  EXPECT_EQ(CloseGrace(milliseconds(80)), milliseconds(20));
  EXPECT_EQ(CloseGrace(milliseconds(4)), milliseconds(5));
}

TEST(CloseRule, AWindowWithEverythingInClosesAtOnceAsComplete) {
  EXPECT_EQ(EvaluateClose(Window(true, 1, false), Input(At(0)), At(0)).close, CloseReason::kComplete);
}

TEST(CloseRule, WithoutTheHighClassItNeverClosesHoweverLongItWaits) {
  const auto decision = EvaluateClose(Window(false, 1, true), Input(At(0), At(0)), At(3600 * 1000));
  EXPECT_FALSE(decision.close);
  EXPECT_TRUE(decision.check_again.IsInfinite()) << "time alone cannot help";
}

TEST(CloseRule, EnoughOfTheLowClassClosesAsRatioWhenTheSenderIsFinished) {
  EXPECT_EQ(EvaluateClose(Window(true, 0.9, true), Input(At(0), At(0)), At(0)).close, CloseReason::kRatio);
}

TEST(CloseRule, EnoughOfTheLowClassWaitsWhileChunksKeepComing) {
  const auto early = EvaluateClose(Window(true, 0.95, false), Input(At(100)), At(119));
  EXPECT_FALSE(early.close);
  EXPECT_EQ(early.check_again, At(120));
  EXPECT_EQ(EvaluateClose(Window(true, 0.95, false), Input(At(100)), At(120)).close, CloseReason::kRatio);
}

TEST(CloseRule, TooLittleOfTheLowClassClosesAsSoftOneGraceAfterTheSenderFinished) {
  const auto early = EvaluateClose(Window(true, 0.5, true), Input(At(100), At(100)), At(119));
  EXPECT_FALSE(early.close);
  EXPECT_EQ(early.check_again, At(120));
  EXPECT_EQ(EvaluateClose(Window(true, 0.5, true), Input(At(100), At(100)), At(120)).close,
            CloseReason::kSoft);
}

TEST(CloseRule, TooLittleOfTheLowClassWaitsForASenderThatIsStillSending) {
  const auto decision = EvaluateClose(Window(true, 0.5, false), Input(At(0)), At(10000));
  EXPECT_FALSE(decision.close);
  EXPECT_TRUE(decision.check_again.IsInfinite());
}

}  // namespace
}  // namespace longhaul::transport
