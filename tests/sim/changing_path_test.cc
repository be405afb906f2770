// The path of several workers to the server becomes another one in mid-run: rounds go on as fast as it
// carries them, within a second or two and not when the filters have forgotten the old one (10 to 20 s).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/sim/push_pull_rounds.h"

namespace longhaul::sim {
namespace {

using std::chrono::seconds;

struct Change {
  const char* name;
  const char* before;
  Duration most;  // time in rounds that take twice what they usually do, after the change
};

class ChangingPath : public testing::TestWithParam<Change> {};

TEST_P(ChangingPath, RoundsAreSoonAsFastAsThePath) {
  std::vector<Duration> slow;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    PushPullOptions options;
    options.workers = 3;
    options.bytes = {400'000};
    options.rounds = 50;
    options.warmup = 0;
    options.seed = seed;
    options.link = wan::ParseLinkOptions(GetParam().before).value();
    options.then = wan::ParseLinkOptions("rate 100mbit delay 10ms loss 1%").value();
    options.then_at = seconds(3);
    const PushPullResult result = RunPushPull(options);
    ASSERT_EQ(result.failure, "");
    const Duration usual = 2 * FullDuplexFloor(options);
    slow.emplace_back(0);
    for (const PushPullPhases& round : result.rounds) {
      if (round.begin > seconds(3) && round.ended > usual) slow.back() += round.ended;
    }
  }
  std::ranges::sort(slow);
  const auto s = [](Duration d) { return std::chrono::duration<double>(d).count(); };
  std::printf("  time in slow rounds: median %.1f s, longest %.1f s\n", s(slow[1]), s(slow[2]));
  EXPECT_LE(slow[1], GetParam().most);
}

INSTANTIATE_TEST_SUITE_P(
    Of, ChangingPath,
    testing::Values(Change{"FiveTimesAsLong", "rate 100mbit delay 2ms loss 1%", seconds(3)},
                    Change{"TwiceAsLong", "rate 100mbit delay 5ms loss 1%", seconds(3)},
                    Change{"InOrderAgain", "rate 100mbit delay 10ms loss 1% reorder 30% duplicate 20%",
                           seconds(3)}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace longhaul::sim
