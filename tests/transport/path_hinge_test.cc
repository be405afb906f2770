// The hinge g(s) = (1 - l0) min(s, C), fitted to yields g / s.
#include "transport/core/rate/path_hinge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/random.h"

namespace longhaul::transport {
namespace {

std::vector<YieldSample> Exact(double floor, double capacity, std::initializer_list<double> sent) {
  std::vector<YieldSample> samples;
  for (const double s : sent) samples.push_back({s, (1 - floor) * std::min(s, capacity) / s, 100});
  return samples;
}

double Error(const std::vector<YieldSample>& samples, double level, double capacity) {
  double error = 0;
  for (const YieldSample& s : samples) {
    const double residual = s.yield - level * std::min(1.0, capacity / s.sent);
    error += s.packets * residual * residual;
  }
  return error;
}

TEST(PathHinge, IsExactWithoutNoise) {
  for (const double floor : {0.0, 0.03, 0.2}) {
    auto samples = Exact(floor, 1e8, {1.3e8, 0.9e8, 0.95e8, 1.1e8, 1.25e8, 0.99e8});
    const HingeResult result = FitHinge(&samples);
    ASSERT_TRUE(result.usable);
    EXPECT_NEAR(result.hinge.floor, floor, 1e-9);
    EXPECT_NEAR(result.hinge.capacity, 1e8, 1);
    EXPECT_NEAR(result.hinge.r_squared, 1, 1e-9);
    EXPECT_EQ(result.hinge.below, 3);
    EXPECT_EQ(result.hinge.above, 3);
  }
}

TEST(PathHinge, HeavyRoundsCountMore) {
  auto samples = Exact(0.1, 1, {0.8, 0.9, 1.2, 1.3});
  samples.push_back({0.85, 0.7, 1});  // one packet of bad luck
  const HingeResult result = FitHinge(&samples);
  ASSERT_TRUE(result.usable);
  EXPECT_NEAR(result.hinge.floor, 0.1 + 0.2 / 201, 1e-9);
}

TEST(PathHinge, NeedsTwoSamplesOnEachSide) {
  auto three = Exact(0, 1, {0.9, 1.1, 1.2});
  EXPECT_FALSE(FitHinge(&three).usable);
  std::vector<YieldSample> none;
  EXPECT_FALSE(FitHinge(&none).usable);
}

TEST(PathHinge, NothingArrives) {
  std::vector<YieldSample> samples(8, {1, 0, 10});
  EXPECT_FALSE(FitHinge(&samples).usable);
}

TEST(PathHinge, AFlatYieldHasNoKnee) {
  Random random(5);
  std::vector<YieldSample> samples;
  for (int i = 0; i < 60; ++i)
    samples.push_back({0.9 + 0.4 * random.Uniform(), 0.95 + 0.02 * random.Normal(), 200});
  const HingeResult result = FitHinge(&samples);
  ASSERT_TRUE(result.usable);
  EXPECT_LT(result.hinge.significance, 12);
}

// No knee and level of a fine grid does better. The fit takes 1 - l0 from below the knee alone, as the model
// has it, so a level that also looks above may gain a little.
TEST(PathHinge, AgreesWithTryingEveryKnee) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Random random(seed);
    const double floor = 0.2 * random.Uniform();
    std::vector<YieldSample> samples;
    for (int i = 0; i < 40; ++i) {
      const double s = 0.8 + 0.5 * random.Uniform();
      const double packets = 20 + static_cast<double>(random.Below(200));
      const double noise = std::sqrt(floor * (1 - floor) / packets) * random.Normal();
      samples.push_back({s, (1 - floor) * std::min(1.0, 1 / s) + noise, packets});
    }
    const HingeResult result = FitHinge(&samples);
    ASSERT_TRUE(result.usable) << "seed " << seed;
    const double found = Error(samples, 1 - result.hinge.floor, result.hinge.capacity);
    double best = std::numeric_limits<double>::infinity();
    for (double c = samples[1].sent; c < samples[38].sent; c += 1e-3) {
      double n = 0, y = 0;
      for (const YieldSample& s : samples) {
        if (s.sent <= c) {
          n += s.packets;
          y += s.packets * s.yield;
        }
      }
      best = std::min(best, Error(samples, y / n, c));
    }
    EXPECT_LE(found, best * (1 + 1e-6)) << "seed " << seed;
  }
}

TEST(PathHinge, ErrorsAreAsLargeAsItSays) {
  // Standardised errors of many fits have a variance of about one.
  double floor_z = 0, capacity_z = 0;
  const int seeds = 400;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    Random random(seed);
    std::vector<YieldSample> samples;
    for (int i = 0; i < 60; ++i) {
      const double s = i % 2 == 0 ? 0.8 + 0.1 * random.Uniform() : 1.15 + 0.2 * random.Uniform();
      int arrived = 0;
      for (int p = 0; p < 100; ++p) arrived += random.Chance(0.9) ? 1 : 0;
      samples.push_back({s, arrived / 100.0 * std::min(1.0, 1 / s), 100});
    }
    const PathHinge h = FitHinge(&samples).hinge;
    floor_z += std::pow((h.floor - 0.1) / h.floor_error, 2) / seeds;
    capacity_z += std::pow((h.capacity - 1) / h.capacity_error, 2) / seeds;
  }
  EXPECT_NEAR(floor_z, 1, 0.35);
  EXPECT_NEAR(capacity_z, 1, 0.35);
}

}  // namespace
}  // namespace longhaul::transport
