#include "transport/core/window/close_rule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"

namespace longhaul::transport {
namespace {

using std::chrono::milliseconds;
using wire::CloseReason;

constexpr Instant kNever = Instant::Infinite();

Instant At(int64_t ms) { return Instant::FromNanoseconds(ms * 1000000); }

IncomingWindow Window(bool high_complete, bool finished, bool complete = false) {
  IncomingWindow window;
  window.high_count = 10;
  window.low_count = 90;
  window.high_complete = high_complete;
  window.low_ratio = complete ? 1 : 0.5;
  window.sender_finished = finished;
  window.complete = complete;
  return window;
}

// A round trip of 80 ms: a grace of 20 ms.
CloseRuleInput Input(double energy_received, Instant last_chunk, Instant finished = kNever) {
  return {.energy_ratio = 0.9,
          .energy_received = energy_received,
          .smoothed_rtt = milliseconds(80),
          .last_chunk = last_chunk,
          .finished = finished};
}

TEST(CloseRule, GraceIsAQuarterRoundTripAtLeastFiveMilliseconds) {
  EXPECT_EQ(CloseGrace(milliseconds(80)), milliseconds(20));
  EXPECT_EQ(CloseGrace(milliseconds(4)), milliseconds(5));
}

TEST(CloseRule, AWindowWithEverythingInClosesAtOnceAsComplete) {
  const auto decision = EvaluateClose(Window(true, false, true), Input(0, At(0)), At(0));
  EXPECT_EQ(decision.close, CloseReason::kComplete);
  EXPECT_FALSE(decision.nack);
}

// --- the high class is done

TEST(CloseRule, EnoughEnergyClosesAsRatioWhenTheSenderIsFinished) {
  EXPECT_EQ(EvaluateClose(Window(true, true), Input(0.9, At(0), At(0)), At(0)).close, CloseReason::kRatio);
}

TEST(CloseRule, EnoughEnergyWaitsWhileChunksKeepComing) {
  const auto early = EvaluateClose(Window(true, false), Input(0.95, At(100)), At(119));
  EXPECT_FALSE(early.close);
  EXPECT_EQ(early.check_again, At(120));
  EXPECT_EQ(EvaluateClose(Window(true, false), Input(0.95, At(100)), At(120)).close, CloseReason::kRatio);
}

TEST(CloseRule, ItIsTheEnergyThatCountsNotTheNumberOfChunks) {
  IncomingWindow window = Window(true, true);
  window.low_ratio = 0.99;
  EXPECT_FALSE(EvaluateClose(window, Input(0.89, At(0), At(0)), At(0)).close);
  window.low_ratio = 0.01;
  EXPECT_EQ(EvaluateClose(window, Input(0.91, At(0), At(0)), At(0)).close, CloseReason::kRatio);
}

TEST(CloseRule, TooLittleEnergyClosesAsSoftAfterOneGrace) {
  const auto early = EvaluateClose(Window(true, true), Input(0.5, At(100), At(100)), At(119));
  EXPECT_FALSE(early.close);
  EXPECT_EQ(early.check_again, At(120));
  EXPECT_EQ(EvaluateClose(Window(true, true), Input(0.5, At(100), At(100)), At(120)).close,
            CloseReason::kSoft);
}

TEST(CloseRule, TooLittleEnergyWaitsForASenderThatIsStillSending) {
  const auto decision = EvaluateClose(Window(true, false), Input(0.5, At(0)), At(10000));
  EXPECT_FALSE(decision.close);
  EXPECT_TRUE(decision.check_again.IsInfinite());
}

TEST(CloseRule, TheSoftDeadlineEndsTheWaitForASenderThatIsStillSending) {
  CloseRuleInput input = Input(0.5, At(199));
  input.soft = At(200);
  const auto early = EvaluateClose(Window(true, false), input, At(199));
  EXPECT_FALSE(early.close);
  EXPECT_EQ(early.check_again, At(200));
  EXPECT_EQ(EvaluateClose(Window(true, false), input, At(200)).close, CloseReason::kSoft);
}

TEST(CloseRule, TheSoftDeadlineEndsTheGraceToo) {
  CloseRuleInput input = Input(0.5, At(195), At(195));
  input.soft = At(200);
  EXPECT_EQ(EvaluateClose(Window(true, true), input, At(199)).check_again, At(200));
  EXPECT_EQ(EvaluateClose(Window(true, true), input, At(200)).close, CloseReason::kSoft);
  input.soft = At(300);
  EXPECT_EQ(EvaluateClose(Window(true, true), input, At(199)).check_again, At(215))
      << "the grace is over sooner";
}

TEST(CloseRule, TheSoftDeadlineEndsTheQuietTimeOfEnoughEnergyToo) {
  CloseRuleInput input = Input(0.95, At(195));
  input.soft = At(200);
  EXPECT_EQ(EvaluateClose(Window(true, false), input, At(199)).check_again, At(200));
  EXPECT_EQ(EvaluateClose(Window(true, false), input, At(200)).close, CloseReason::kSoft);
  EXPECT_EQ(EvaluateClose(Window(true, false), input, At(215)).close, CloseReason::kRatio)
      << "the better reason";
}

TEST(CloseRule, AWindowWithItsHighClassNeverClosesAsHard) {
  CloseRuleInput input = Input(0.5, At(0));
  input.hard = At(10);
  input.nacked = At(10);
  const auto decision = EvaluateClose(Window(true, false), input, At(10000));
  EXPECT_FALSE(decision.close);
  EXPECT_FALSE(decision.nack);
}

// --- the high class is not done

TEST(CloseRule, WithoutDeadlinesTheHighClassIsWaitedForAsLongAsItTakes) {
  const auto decision = EvaluateClose(Window(false, true), Input(1, At(0), At(0)), At(3600 * 1000));
  EXPECT_FALSE(decision.close);
  EXPECT_FALSE(decision.nack);
  EXPECT_TRUE(decision.check_again.IsInfinite()) << "time alone cannot help";
}

TEST(CloseRule, TheSoftDeadlineDoesNotCloseWithoutTheHighClass) {
  CloseRuleInput input = Input(1, At(0), At(0));
  input.soft = At(200);
  const auto decision = EvaluateClose(Window(false, true), input, At(10000));
  EXPECT_FALSE(decision.close);
  EXPECT_TRUE(decision.check_again.IsInfinite());
}

TEST(CloseRule, TheHardDeadlineAsksOnceAndClosesOneRoundTripLater) {
  CloseRuleInput input = Input(1, At(0), At(0));
  input.soft = At(200);
  input.hard = At(360);
  const auto before = EvaluateClose(Window(false, true), input, At(359));
  EXPECT_FALSE(before.close);
  EXPECT_FALSE(before.nack);
  EXPECT_EQ(before.check_again, At(360));

  const auto at = EvaluateClose(Window(false, true), input, At(370));  // the timer was late
  EXPECT_FALSE(at.close);
  EXPECT_TRUE(at.nack);
  EXPECT_EQ(at.check_again, At(450));

  input.nacked = At(370);
  const auto waiting = EvaluateClose(Window(false, true), input, At(449));
  EXPECT_FALSE(waiting.close);
  EXPECT_FALSE(waiting.nack) << "once";
  EXPECT_EQ(waiting.check_again, At(450)) << "a whole round trip from the question on, not from the deadline";

  EXPECT_EQ(EvaluateClose(Window(false, true), input, At(450)).close, CloseReason::kHard);
}

TEST(CloseRule, WhatTheQuestionBroughtClosesAsUsual) {
  CloseRuleInput input = Input(0.5, At(400), At(100));
  input.soft = At(200);
  input.hard = At(360);
  input.nacked = At(360);
  EXPECT_EQ(EvaluateClose(Window(true, true), input, At(400)).close, CloseReason::kSoft);
  EXPECT_EQ(EvaluateClose(Window(true, true, true), input, At(400)).close, CloseReason::kComplete);
}

// Followed on time, the decisions close a window whatever happens and ask for missing chunks at most once;
// a hard deadline closes it no later than one answer's time after the deadline.
TEST(CloseRule, FollowedByTheClockEveryWindowWithAHardDeadlineEnds) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const auto some = [&](uint64_t below) { return static_cast<int64_t>(random.Below(below)); };
    IncomingWindow window = Window(false, false);
    CloseRuleInput input = Input(0, At(0));
    input.energy_ratio = random.Uniform();
    input.smoothed_rtt = milliseconds(some(200));
    input.soft = random.Chance(0.3) ? kNever : At(some(1000));
    input.hard = At((input.soft.IsInfinite() ? 0 : 300) + some(1000));
    const Instant high = random.Chance(0.3) ? kNever : At(some(1500));
    const Instant finished = random.Chance(0.3) ? kNever : At(some(1500));
    const bool has_soft = !input.soft.IsInfinite() || !finished.IsInfinite();
    int asked = 0;
    Instant timer = At(0);
    std::optional<CloseReason> closed;
    for (int ms = 0; ms <= 4000 && !closed; ++ms) {
      bool event = At(ms) >= timer;
      if (At(ms) == high || At(ms) == finished) event = true;
      window.high_complete = At(ms) >= high;
      window.sender_finished = At(ms) >= finished;
      if (At(ms) >= finished && input.finished.IsInfinite()) input.finished = At(ms);
      if (!event) continue;
      const CloseDecision decision = EvaluateClose(window, input, At(ms));
      closed = decision.close;
      timer = decision.check_again;
      ASSERT_TRUE(closed || timer > At(ms)) << "it would spin at " << ms;
      if (decision.nack) {
        ++asked;
        input.nacked = At(ms);
      }
      if (closed == CloseReason::kHard) {
        EXPECT_FALSE(window.high_complete);
        EXPECT_EQ(asked, 1);
        const Duration answer = std::max<Duration>(input.smoothed_rtt, kMinCloseGrace);
        EXPECT_GE(At(ms), input.hard + answer);
        EXPECT_LE(At(ms), input.hard + answer + milliseconds(1));
      }
    }
    EXPECT_LE(asked, 1);
    if (high.IsInfinite()) {
      EXPECT_EQ(closed, CloseReason::kHard);
    } else if (has_soft || input.energy_ratio == 0) {
      EXPECT_TRUE(closed);
    }
  }
}

}  // namespace
}  // namespace longhaul::transport
