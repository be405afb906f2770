#include "codec/policy/priority.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "base/random.h"

namespace longhaul::codec {
namespace {

using ::testing::ElementsAre;

// A tensor of chunks of 4 elements, chunk i having the energy energies[i].
std::vector<float> TensorOf(const std::vector<double>& energies) {
  std::vector<float> values;
  for (double energy : energies) {
    values.push_back(static_cast<float>(std::sqrt(energy)));
    values.insert(values.end(), 3, 0.0f);
  }
  return values;
}

ChunkGeometry GeometryOf(size_t chunks) { return {.count = chunks * 4, .chunk_elements = 4}; }

PriorityOptions Options(double high_share, double smoothing = 0.5) {
  return {.high_share = high_share, .smoothing = smoothing, .all_high_chunks = 0};
}

std::set<uint32_t> Everything(const Priorities& p) {
  std::set<uint32_t> all(p.high.begin(), p.high.end());
  all.insert(p.low.begin(), p.low.end());
  return all;
}

TEST(EnergyQuantizer, ZeroIsZeroAndOnlyZero) {
  EXPECT_EQ(QuantizeEnergy(0), 0);
  EXPECT_EQ(DequantizeEnergy(0), 0.0);
  EXPECT_GT(QuantizeEnergy(std::numeric_limits<double>::denorm_min()), 0);
  EXPECT_GT(DequantizeEnergy(1), 0.0);
}

TEST(EnergyQuantizer, IsMonotone) {
  int last = 0;
  for (double energy = 1e-25; energy < 1e25; energy *= 1.07) {
    EXPECT_GE(QuantizeEnergy(energy), last) << energy;
    last = QuantizeEnergy(energy);
  }
  EXPECT_EQ(last, 255);
  for (int q = 1; q < 256; ++q) {
    EXPECT_GT(DequantizeEnergy(static_cast<uint8_t>(q)), DequantizeEnergy(static_cast<uint8_t>(q - 1)));
  }
}

TEST(EnergyQuantizer, ComesBackWithinAFourthRootOfTwo) {
  for (double energy = 1e-18; energy < 1e18; energy *= 1.3) {
    const double ratio = DequantizeEnergy(QuantizeEnergy(energy)) / energy;
    EXPECT_GT(ratio, std::exp2(-0.2501)) << energy;
    EXPECT_LT(ratio, std::exp2(0.2501)) << energy;
  }
  for (int q = 0; q < 256; ++q) EXPECT_EQ(QuantizeEnergy(DequantizeEnergy(static_cast<uint8_t>(q))), q);
}

TEST(EnergyQuantizer, NothingLeavesTheRange) {
  EXPECT_EQ(QuantizeEnergy(std::numeric_limits<double>::infinity()), 255);
  EXPECT_EQ(QuantizeEnergy(std::nan("")), 255);
  EXPECT_EQ(QuantizeEnergy(-1), 0);
  EXPECT_EQ(QuantizeEnergy(1e300), 255);
}

TEST(ChunkEnergy, IsTheSquaredNorm) {
  EXPECT_DOUBLE_EQ(ChunkEnergy(std::vector<float>{3, 0, -4}), 25.0);
  EXPECT_EQ(ChunkEnergy({}), 0.0);
  EXPECT_TRUE(std::isnan(ChunkEnergy(std::vector<float>{1, std::nanf("")})));
}

TEST(ChunkEnergy, SquaresThatDoNotFitFloatStillCount) {
  EXPECT_NEAR(ChunkEnergy(std::vector<float>{1e-25f}) / 1e-50, 1, 1e-5);
  EXPECT_NEAR(ChunkEnergy(std::vector<float>{1e25f}) / 1e50, 1, 1e-5);
}

TEST(Priority, TheTopShareByEnergyIsHigh) {
  //                        chunk 0  1  2    3  4   5  6  7  8  9
  const auto tensor = TensorOf({1, 50, 2, 400, 3, 30, 4, 5, 6, 7});
  PriorityClassifier classifier(GeometryOf(10), Options(0.3));
  const Priorities p = classifier.Classify(tensor, 0);
  EXPECT_THAT(p.high, ElementsAre(1, 3, 5));
  EXPECT_EQ(p.low.size(), 7u);
  EXPECT_EQ(Everything(p).size(), 10u);
}

TEST(Priority, AtLeastOneChunkIsHighWhenTheShareIsNotZero) {
  const auto tensor = TensorOf(std::vector<double>(10, 1.0));
  EXPECT_EQ(PriorityClassifier(GeometryOf(10), Options(1e-6)).Classify(tensor, 0).high.size(), 1u);
  EXPECT_EQ(PriorityClassifier(GeometryOf(10), Options(0.0)).Classify(tensor, 0).high.size(), 0u);
  EXPECT_EQ(PriorityClassifier(GeometryOf(10), Options(1.0)).Classify(tensor, 0).low.size(), 0u);
}

TEST(Priority, SmallTensorsAreHighAsAWhole) {
  const auto tensor = TensorOf({1, 2, 3});
  PriorityOptions options = Options(0.2);
  options.all_high_chunks = 4;
  EXPECT_EQ(PriorityClassifier(GeometryOf(3), options).Classify(tensor, 0).low.size(), 0u);
}

TEST(Priority, ChunksLeaveInTheTensorsOrderFromAPlaceThatTurnsWithTheRound) {
  std::vector<double> energies;
  for (int i = 0; i < 20; ++i) energies.push_back(i + 1);
  const auto tensor = TensorOf(energies);
  PriorityClassifier classifier(GeometryOf(20), Options(0.2));
  std::set<uint32_t> first_to_leave;
  std::set<uint32_t> last_to_leave;
  for (uint64_t round = 0; round < 200; ++round) {
    Priorities p = classifier.Classify(tensor, round);
    EXPECT_TRUE(std::ranges::is_sorted(p.high));
    first_to_leave.insert(p.low.front());
    last_to_leave.insert(p.low.back());
    std::rotate(p.low.begin(), std::ranges::find(p.low, 0u), p.low.end());
    EXPECT_TRUE(std::ranges::is_sorted(p.low)) << "round " << round;
  }
  EXPECT_EQ(first_to_leave.size(), 16u);  // each is first some time,
  EXPECT_EQ(last_to_leave.size(), 16u);   // and it is not always the same one that a close cuts off
}

// Two workers whose gradients differ send what is low for both in the same order, whatever else is.
TEST(Priority, WorkersSendInTheSameOrder) {
  Random random(7);
  PriorityClassifier a(GeometryOf(100), Options(0.2));
  PriorityClassifier b(GeometryOf(100), Options(0.2));
  for (uint64_t round = 0; round < 20; ++round) {
    std::vector<uint32_t> orders[2];
    const auto draw = [&] {
      std::vector<double> energies(100);
      for (double& e : energies) e = random.Uniform();
      return TensorOf(energies);
    };
    const Priorities of_a = a.Classify(draw(), round);
    const Priorities of_b = b.Classify(draw(), round);
    for (const uint32_t chunk : of_a.low) {
      if (std::ranges::count(of_b.low, chunk) > 0) orders[0].push_back(chunk);
    }
    for (const uint32_t chunk : of_b.low) {
      if (std::ranges::count(of_a.low, chunk) > 0) orders[1].push_back(chunk);
    }
    EXPECT_EQ(orders[0], orders[1]) << "round " << round;
  }
}

TEST(Priority, TheSameSeedGivesTheSameOrder) {
  Random random(1);
  std::vector<double> energies(50);
  for (double& e : energies) e = random.Uniform();
  const auto tensor = TensorOf(energies);
  PriorityOptions options = Options(0.2);
  options.seed = 42;
  PriorityClassifier a(GeometryOf(50), options);
  PriorityClassifier b(GeometryOf(50), options);
  options.seed = 43;
  PriorityClassifier c(GeometryOf(50), options);
  int differ = 0;
  for (uint64_t round = 0; round < 10; ++round) {
    const auto low = a.Classify(tensor, round).low;
    EXPECT_EQ(low, b.Classify(tensor, round).low);
    differ += low != c.Classify(tensor, round).low ? 1 : 0;
  }
  EXPECT_GT(differ, 0);
}

TEST(Priority, ContributionOverRoundsKeepsAClassFromFlapping) {
  // Chunk 0 has been important for long; one round's noise in chunk 1 does not displace it.
  PriorityClassifier smooth(GeometryOf(10), Options(0.1, 0.8));
  PriorityClassifier jumpy(GeometryOf(10), Options(0.1, 0.0));
  for (auto* classifier : {&smooth, &jumpy}) {
    classifier->Classify(TensorOf({10, 1, 0, 0, 0, 0, 0, 0, 0, 0}), 0);
  }
  const auto noise = TensorOf({9, 12, 0, 0, 0, 0, 0, 0, 0, 0});
  EXPECT_THAT(smooth.Classify(noise, 1).high, ElementsAre(0));
  EXPECT_THAT(jumpy.Classify(noise, 1).high, ElementsAre(1));
  EXPECT_NEAR(smooth.energies()[0], 0.8 * 10 + 0.2 * 9, 1e-4);
  EXPECT_NEAR(smooth.energies()[1], 0.8 * 1 + 0.2 * 12, 1e-4);
}

TEST(Priority, ARoundThatIsBegunAnewLeavesNoTrace) {
  PriorityClassifier interrupted(GeometryOf(10), Options(0.1, 0.5)), other(GeometryOf(10), Options(0.1, 0.5));
  const auto before = TensorOf({10, 1, 0, 0, 0, 0, 0, 0, 0, 0}),
             noise = TensorOf({0, 9, 0, 0, 0, 0, 0, 0, 0, 0});
  for (auto* classifier : {&interrupted, &other}) classifier->Classify(before, 0);
  interrupted.Begin(1);
  for (uint32_t chunk = 0; chunk < 10; ++chunk) interrupted.Score(chunk, 1e6);
  for (auto* classifier : {&interrupted, &other}) classifier->Classify(noise, 1);
  EXPECT_TRUE(std::ranges::equal(interrupted.energies(), other.energies()));
}

TEST(Priority, LayerOrderSendsTheFrontFirst) {
  PriorityOptions options = Options(0.3);
  options.policy = Priority::kLayer;
  PriorityClassifier classifier(GeometryOf(10), options);
  EXPECT_THAT(classifier.Classify(TensorOf({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), 0).high, ElementsAre(0, 1, 2));
}

TEST(Priority, ExplicitScoresOverruleEnergy) {
  PriorityOptions options = Options(0.2);
  PriorityClassifier classifier(GeometryOf(10), options);
  classifier.SetScore(4, 9);
  classifier.SetScore(7, 8);
  EXPECT_THAT(classifier.Classify(TensorOf({9, 8, 7, 6, 5, 4, 3, 2, 1, 0}), 0).high, ElementsAre(4, 7));
}

TEST(Priority, EnergiesTravelAsTheyAreThisRound) {
  PriorityClassifier classifier(GeometryOf(5), Options(0.2, 0.9));
  classifier.Classify(TensorOf({1, 1, 1, 1, 1}), 0);
  const Priorities p = classifier.Classify(TensorOf({16, 4, 0, 1, 1}), 1);
  EXPECT_THAT(p.log_energy,
              ElementsAre(QuantizeEnergy(16), QuantizeEnergy(4), 0, QuantizeEnergy(1), QuantizeEnergy(1)));
  EXPECT_THAT(p.high, ElementsAre(0));
  EXPECT_FLOAT_EQ(p.total_low_energy, 4 + 0 + 1 + 1);
}

TEST(Priority, OneBadGradientDoesNotPoisonTheScores) {
  PriorityClassifier classifier(GeometryOf(10), Options(0.1, 0.5));
  auto tensor = TensorOf({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  tensor[4 * 4] = std::nanf("");
  const Priorities p = classifier.Classify(tensor, 0);
  EXPECT_THAT(p.high, ElementsAre(4));  // what is not a number is surely delivered, so that it is seen
  EXPECT_EQ(Everything(p).size(), 10u);
  for (double score : classifier.energies()) EXPECT_TRUE(std::isfinite(score));
  const auto sane = TensorOf({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  for (uint64_t round = 1; round < 100; ++round) classifier.Classify(sane, round);
  EXPECT_THAT(classifier.Classify(sane, 100).high, ElementsAre(9));
}

TEST(Priority, HighEnergyIsTheSmallestSetThatHoldsTheShare) {
  const std::vector<double> energies = {1, 50, 2, 400, 3, 30, 4, 5, 6, 7};  // 508 in all
  const auto tensor = TensorOf(energies);
  const auto high = [&](double share) {
    PriorityOptions options = Options(0.9);  // not looked at
    options.high_energy = share;
    return PriorityClassifier(GeometryOf(10), options).Classify(tensor, 0).high;
  };
  EXPECT_THAT(high(0.5), ElementsAre(3));
  EXPECT_THAT(high(0.787), ElementsAre(3));    // 400 of 508 are 78.7 %
  EXPECT_THAT(high(0.79), ElementsAre(1, 3));  // with 50: 88.6 %
  EXPECT_THAT(high(0.9), ElementsAre(1, 3, 5));
  EXPECT_EQ(high(1.0).size(), 10u);
  EXPECT_EQ(high(1e-9).size(), 1u);
}

TEST(Priority, HighEnergyCountsWhatIsSmoothedOverRounds) {
  PriorityOptions options = Options(0.2, 0.9);
  options.high_energy = 0.8;
  PriorityClassifier classifier(GeometryOf(8), options);
  classifier.Classify(TensorOf({100, 1, 1, 1, 1, 1, 1, 1}), 0);
  // One flat round does not turn the class over.
  EXPECT_THAT(classifier.Classify(TensorOf({1, 1, 1, 1, 1, 1, 1, 1}), 1).high, ElementsAre(0));
}

TEST(Priority, HighEnergyOfNothingAndOfAnythingIsAtLeastOneChunk) {
  PriorityOptions options = Options(0);
  options.high_energy = 0.8;
  EXPECT_EQ(
      PriorityClassifier(GeometryOf(8), options).Classify(TensorOf(std::vector<double>(8, 0)), 0).high.size(),
      1u);
  // Energies of very different size: the sum's rounding must not leave the last chunk wanting.
  options.high_energy = 1.0;
  constexpr uint64_t kSeed = 8;
  Random random(kSeed);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> energies(50);
    double least = 1e30;
    for (double& e : energies) least = std::min(least, e = std::exp(random.Normal() * 5));
    const Priorities p = PriorityClassifier(GeometryOf(50), options).Classify(TensorOf(energies), 0);
    double missing = 0;
    for (const uint32_t chunk : p.low) missing += energies[chunk];
    ASSERT_LE(missing, 1e-12 * std::accumulate(energies.begin(), energies.end(), 0.0)) << "seed " << kSeed;
  }
}

TEST(Priority, WhereMuchIsLostTheHighClassIsLargerUntilNoMoreOfTheEnergyIs) {
  const std::vector<double> energies = {10, 5, 20, 1, 30, 4, 12, 8, 3, 7};  // 100 in all
  PriorityOptions options = Options(0.2, 0.0);
  options.lost_energy = 0.15;
  PriorityClassifier classifier(GeometryOf(10), options);
  const auto high = [&](double loss) {
    classifier.ExpectLoss(loss);
    return classifier.Classify(TensorOf(energies), 0).high;
  };
  EXPECT_THAT(high(0), ElementsAre(2, 4)) << "the share";
  EXPECT_THAT(high(0.15), ElementsAre(2, 4)) << "all that is low may be lost";
  EXPECT_THAT(high(0.3), ElementsAre(2, 4)) << "half of it is high";
  EXPECT_THAT(high(0.6), ElementsAre(0, 2, 4, 6, 7)) << "three quarters of it";
  EXPECT_THAT(high(1), ElementsAre(0, 2, 4, 6, 7, 9)) << "all that is low is lost";
  EXPECT_THAT(high(0.1), ElementsAre(2, 4)) << "what was lost once does not stay";
}

TEST(Priority, WhatMayBeLostIsTheJobsAndAtMostAll) {
  const auto high = [](double lost_energy, double high_energy = 0) {
    PriorityOptions options = Options(0.2, 0.0);
    options.lost_energy = lost_energy;
    options.high_energy = high_energy;
    PriorityClassifier classifier(GeometryOf(10), options);
    classifier.ExpectLoss(0.9);
    return classifier.Classify(TensorOf(std::vector<double>(10, 1)), 0).high.size();
  };
  EXPECT_EQ(high(1), 2u);
  EXPECT_EQ(high(0.45), 5u);
  EXPECT_EQ(high(0), 10u);
  EXPECT_EQ(high(0.45, 0.7), 7u) << "as much as the job wants in any case";
  EXPECT_EQ(high(0.45, 0.3), 5u);
}

TEST(Priority, LayerOrderTakesTheFrontUntilItHoldsTheEnergy) {
  PriorityOptions options = Options(0.1);
  options.policy = Priority::kLayer;
  options.high_energy = 0.5;
  PriorityClassifier classifier(GeometryOf(6), options);
  EXPECT_THAT(classifier.Classify(TensorOf({1, 1, 1, 5, 1, 1}), 0).high, ElementsAre(0, 1, 2, 3));
}

TEST(Priority, RangesAreAlwaysHigh) {
  PriorityOptions options = Options(0.3);
  // Chunks of 4: elements 7..8 lie in the chunks 1 and 2, element 39 in the chunk 9.
  options.high_ranges = {{.first = 7, .count = 2}, {.first = 39, .count = 1}, {.first = 20, .count = 0}};
  const auto tensor = TensorOf({9, 1, 2, 8, 7, 6, 5, 4, 3, 0.5});
  EXPECT_THAT(PriorityClassifier(GeometryOf(10), options).Classify(tensor, 0).high, ElementsAre(1, 2, 9));
  options.high_share = 0.5;
  EXPECT_THAT(PriorityClassifier(GeometryOf(10), options).Classify(tensor, 0).high,
              ElementsAre(0, 1, 2, 3, 9));
  for (const double share : {0.0, 0.1}) {
    options.high_share = share;
    EXPECT_THAT(PriorityClassifier(GeometryOf(10), options).Classify(tensor, 0).high, ElementsAre(1, 2, 9))
        << "even when they are more than the share";
  }
  options.high_energy = 0.5;  // 45.5 in all: 3.5 of the ranges, then 9, 8 and 7
  EXPECT_THAT(PriorityClassifier(GeometryOf(10), options).Classify(tensor, 0).high,
              ElementsAre(0, 1, 2, 3, 4, 9));
  options.high_ranges = {{.first = 0, .count = 40}};
  EXPECT_EQ(PriorityClassifier(GeometryOf(10), options).Classify(tensor, 0).low.size(), 0u);
}

TEST(Priority, TheFirstChunkThatIsNotFiniteIsReported) {
  auto tensor = TensorOf({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  PriorityClassifier classifier(GeometryOf(10), Options(0.2));
  EXPECT_FALSE(classifier.Classify(tensor, 0).not_finite);
  tensor[4 * 7 + 3] = std::numeric_limits<float>::infinity();
  tensor[4 * 5 + 1] = std::nanf("");
  EXPECT_EQ(classifier.Classify(tensor, 1).not_finite, 5u);
  tensor[4 * 5 + 1] = std::numeric_limits<float>::max();  // its square is no float, but it is a number
  EXPECT_EQ(classifier.Classify(tensor, 2).not_finite, 7u);
}

// The high class, by a sort: ranges first, then by score, then by position; as many as the share says, or
// until they hold the energy, or what is lost of the others is little enough.
std::vector<uint32_t> HighBySorting(const PriorityOptions& options, const std::vector<double>& scores,
                                    const std::vector<double>& energies, const std::vector<bool>& always,
                                    double loss) {
  std::vector<uint32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return always[a] != always[b] ? always[a] : scores[a] > scores[b];
  });
  size_t share = 0;
  if (options.high_energy == 0)
    share = static_cast<size_t>(std::ceil(options.high_share * static_cast<double>(order.size())));
  const double energy = std::max(options.high_energy, loss > 0 ? 1 - options.lost_energy / loss : 0);
  double held = 0;
  const double total = std::accumulate(energies.begin(), energies.end(), 0.0);
  size_t high = 0;
  while (high < order.size() && (high < share || held < energy * total)) held += energies[order[high++]];
  high = std::max({size_t{1}, high, static_cast<size_t>(std::ranges::count(always, true))});
  order.resize(high);
  std::ranges::sort(order);
  return order;
}

// Scores are small integers, so that sums are exact and many are equal.
TEST(Priority, TheSelectionIsTheSortsInStepsOfAnySize) {
  constexpr uint64_t kSeed = 31;
  Random random(kSeed);
  for (int trial = 0; trial < 300; ++trial) {
    const auto chunks = static_cast<uint32_t>(5 + random.Below(200));
    PriorityOptions options = Options(0.05 + 0.9 * random.Uniform(), 0.0);
    if (random.Chance(0.5)) options.high_energy = 0.05 + 0.95 * random.Uniform();
    if (random.Chance(0.5)) options.lost_energy = random.Uniform();
    const double loss = random.Chance(0.5) ? random.Uniform() : 0;
    std::vector<bool> always(chunks, false);
    if (random.Chance(0.3)) {
      const auto chunk = static_cast<uint32_t>(random.Below(chunks));
      options.high_ranges = {{.first = uint64_t{chunk} * GeometryOf(chunks).chunk_elements, .count = 1}};
      always[chunk] = true;
    }
    PriorityClassifier classifier(GeometryOf(chunks), options);
    std::vector<double> energies(chunks), scores(chunks);
    const double scale = std::exp2(std::round(random.Normal() * 20));
    for (double& e : energies) e = scale * static_cast<double>(random.Below(9));
    energies[0] = scale;
    scores = energies;
    if (random.Chance(0.3)) {
      for (uint32_t c = 0; c < chunks; ++c)
        classifier.SetScore(c, scores[c] = static_cast<double>(random.Below(4)));
    }
    classifier.ExpectLoss(loss);
    classifier.Begin(0);
    for (uint32_t c = 0; c < chunks; ++c) classifier.Score(c, energies[c]);
    const auto step = static_cast<uint32_t>(1 + random.Below(2 * chunks));
    while (!classifier.Rank(step)) {
    }
    const Priorities p = classifier.Take();
    ASSERT_EQ(p.high, HighBySorting(options, scores, energies, always, loss))
        << "trial " << trial << ", seed " << kSeed << ", steps of " << step << " of " << chunks << " chunks";
    ASSERT_EQ(p.high.size() + p.low.size(), chunks);
  }
}

}  // namespace
}  // namespace longhaul::codec
