// Push and pull of one operation overlap, and of several tensors the first ones are over first: whole cores
// in virtual time, against the full-duplex floor.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "tests/sim/push_pull_rounds.h"

namespace longhaul::sim {
namespace {

using std::chrono::milliseconds;

PushPullOptions Options(std::vector<uint64_t> bytes) {
  PushPullOptions options;
  options.bytes = std::move(bytes);
  options.rounds = 12;
  options.gap = milliseconds(50);
  options.link.rate = Bandwidth::Mbps(50);
  options.link.delay = milliseconds(20);
  options.link.queue_time = milliseconds(80);
  options.settings.high_share = 1;  // everything goes up and down: what is not lost is no gain of time here
  return options;
}

double Ms(Duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

// The middle one over the rounds.
template <typename Of>
Duration Median(const PushPullResult& result, Of of) {
  std::vector<Duration> times;
  for (const PushPullPhases& round : result.rounds) times.push_back(of(round));
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

TEST(PushPull, AResultsFirstChunksArriveBeforeTheLastGradientsHaveLeft) {
  const PushPullOptions options = Options({400'000});
  const PushPullResult result = RunPushPull(options);
  ASSERT_EQ(result.failure, "");
  const Duration floor = FullDuplexFloor(options);
  const Duration up = Median(result, [](const auto& r) { return r.sent; });
  const Duration first = Median(result, [](const auto& r) { return r.first_chunk; });
  const Duration ended = Median(result, [](const auto& r) { return r.ended; });
  std::printf(
      "  floor %.0f ms; last chunk left after %.0f, first chunk of the result here after %.0f, all over "
      "after %.0f\n",
      Ms(floor), Ms(up), Ms(first), Ms(ended));
  EXPECT_LT(first, up) << "push and pull overlap";
  EXPECT_GT(ended, floor - floor / 20) << "faster than the link";
  EXPECT_LT(ended, floor + floor / 4);
  EXPECT_LT(ended, 2 * (floor - 2 * options.link.delay)) << "one way after the other";
}

TEST(PushPull, OfSeveralTensorsTheFirstOnesAreOverFirst) {
  const PushPullOptions options = Options(std::vector<uint64_t>(8, 50'000));
  const PushPullResult result = RunPushPull(options);
  ASSERT_EQ(result.failure, "");
  const Duration floor = FullDuplexFloor(options);
  std::vector<Duration> over;
  for (size_t i = 0; i < options.bytes.size(); ++i) {
    over.push_back(Median(result, [i](const auto& r) { return r.by_tensor[i]; }));
    std::printf("  tensor %zu over after %.0f ms\n", i, Ms(over.back()));
  }
  std::printf("  floor of all: %.0f ms\n", Ms(floor));
  EXPECT_TRUE(std::ranges::is_sorted(over));
  EXPECT_LT(over.front(), floor / 2) << "the next forward pass begins with it";
  EXPECT_LT(over.back(), floor + floor / 4);
}

}  // namespace
}  // namespace longhaul::sim
