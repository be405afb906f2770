#include "server/tensor/robust_mean.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"
#include "server/tensor/aggregator.h"

namespace longhaul::server {
namespace {

using Values = std::vector<float>;
using Matrix = std::vector<Values>;  // by worker

Values Robust(Aggregation how, const Matrix& given, size_t liars) {
  RobustMean mean(RuleOf(how));
  Values out(given[0].size());
  std::vector<const float*> values;
  for (const Values& of_worker : given) values.push_back(of_worker.data());
  const std::vector<uint32_t> ranks(given.size());
  const std::vector<float> weights(given.size(), 1);
  EXPECT_EQ(mean.Compute({.first = 0,
                          .count = out.size(),
                          .contributors = static_cast<uint32_t>(given.size()),
                          .liars = static_cast<uint32_t>(liars),
                          .ranks = ranks.data(),
                          .weights = weights.data(),
                          .values = values.data(),
                          .scratch = nullptr},
                         out),
            0);
  return out;
}

// --- The slow model: element by element ---

double SlowTrimmed(Values column, size_t liars) {
  column.resize(std::max(column.size(), 2 * liars + 1), 0.0f);
  std::ranges::sort(column);
  double sum = 0;
  for (size_t i = liars; i < column.size() - liars; ++i) sum += static_cast<double>(column[i]);
  return sum / static_cast<double>(column.size() - 2 * liars);
}

Values Column(const Matrix& given, size_t element) {
  Values column;
  for (const Values& values : given) column.push_back(values[element]);
  return column;
}

std::vector<double> SlowClipped(const Matrix& given, size_t liars) {
  const size_t rows = std::max(given.size(), 2 * liars + 1);
  std::vector<double> v;
  for (size_t i = 0; i < given[0].size(); ++i) {
    Values column = Column(given, i);
    column.resize(rows, 0.0f);
    v.push_back(SlowTrimmed(column, (rows - 1) / 2));
  }
  for (int step = 0; step < 3; ++step) {
    std::vector<double> away;
    Matrix all = given;
    all.resize(rows, Values(v.size(), 0.0f));
    for (const Values& x : all) {
      double squares = 0;
      for (size_t i = 0; i < v.size(); ++i) squares += std::pow(static_cast<double>(x[i]) - v[i], 2);
      away.push_back(std::sqrt(squares));
    }
    std::vector<double> sorted = away;
    std::ranges::sort(sorted);
    const double tau = sorted[(sorted.size() - 1) / 2];
    std::vector<double> next = v;
    for (size_t k = 0; k < rows; ++k) {
      const double clip = away[k] > tau ? tau / away[k] : 1;
      for (size_t i = 0; i < v.size(); ++i) {
        next[i] += clip * (static_cast<double>(all[k][i]) - v[i]) / static_cast<double>(rows);
      }
    }
    v = next;
  }
  return v;
}

Matrix RandomMatrix(Random& random, size_t workers, size_t elements) {
  Matrix given(workers, Values(elements));
  for (Values& values : given) {
    for (float& v : values) v = static_cast<float>(random.Normal() * std::exp(2 * random.Normal()));
  }
  return given;
}

TEST(RobustMean, IsWhatTheSlowModelsAre) {
  const uint64_t seed = 21;
  Random random(seed);
  for (int round = 0; round < 400; ++round) {
    const size_t workers = 1 + random.Below(12);
    const size_t elements = 1 + random.Below(200);
    const size_t liars = random.Below(workers);  // also more than half of those that are here
    const Matrix given = RandomMatrix(random, workers, elements);
    const Values trimmed = Robust(Aggregation::kTrimmedMean, given, liars);
    const Values clipped = Robust(Aggregation::kCentredClipping, given, liars);
    const std::vector<double> slow = SlowClipped(given, liars);
    for (size_t i = 0; i < elements; ++i) {
      const Values column = Column(given, i);
      const double size =
          std::abs(*std::ranges::max_element(column, {}, [](float v) { return std::abs(v); }));
      ASSERT_NEAR(trimmed[i], SlowTrimmed(column, liars), 1e-5 * size)
          << "round " << round << ", seed " << seed;
      ASSERT_NEAR(clipped[i], slow[i], 1e-3 * (1 + size)) << "round " << round << ", seed " << seed;
    }
  }
}

// The claim: with fewer than half that lie, each element of a trimmed mean lies between those of honest
// workers.
TEST(RobustMean, AMinorityCannotMoveATrimmedMeanBeyondTheHonestValues) {
  const uint64_t seed = 22;
  Random random(seed);
  for (int round = 0; round < 300; ++round) {
    const size_t workers = 3 + random.Below(10);
    const size_t liars = LiarsAmong(workers, random.Uniform() / 2);
    Matrix given = RandomMatrix(random, workers, 50);
    for (size_t liar = 0; liar < liars; ++liar) {
      for (float& v : given[liar]) v *= random.Chance(0.5) ? -1e9f : 3;
    }
    const Values mean = Robust(Aggregation::kTrimmedMean, given, liars);
    for (size_t i = 0; i < 50; ++i) {
      const Values column = Column(given, i);
      const auto [low, high] =
          std::minmax_element(column.begin() + static_cast<ptrdiff_t>(liars), column.end());
      const float slack = 1e-5f * std::max(std::abs(*low), std::abs(*high));
      ASSERT_GE(mean[i], *low - slack) << "round " << round << ", seed " << seed;
      ASSERT_LE(mean[i], *high + slack) << "round " << round << ", seed " << seed;
    }
  }
}

double Norm(const Values& a) { return std::sqrt(std::inner_product(a.begin(), a.end(), a.begin(), 0.0)); }

TEST(RobustMean, AMinorityMovesCentredClippingByTheHonestSpreadAtMost) {
  const uint64_t seed = 23;
  Random random(seed);
  for (int round = 0; round < 100; ++round) {
    const size_t workers = 3 + random.Below(8);
    const size_t liars = (workers - 1) / 2;
    Matrix given(workers, Values(64));
    Values honest(64, 0.0f);
    for (size_t k = 0; k < workers; ++k) {
      for (size_t i = 0; i < 64; ++i) {
        given[k][i] = 1 + static_cast<float>(0.1 * random.Normal());
        if (k < liars) given[k][i] = -1e6f;
        if (k >= liars) honest[i] += given[k][i] / static_cast<float>(workers - liars);
      }
    }
    Values off = Robust(Aggregation::kCentredClipping, given, liars);
    for (size_t i = 0; i < 64; ++i) off[i] -= honest[i];
    ASSERT_LT(Norm(off), 0.5 * Norm(honest)) << "round " << round << ", seed " << seed;
  }
}

TEST(RobustMean, WhereTooFewAreHereZerosStandForTheOthers) {
  for (const Aggregation how : {Aggregation::kTrimmedMean}) {
    EXPECT_EQ(Robust(how, {{5, 5}, {-5, 3}}, 1), (Values{0, 3})) << "contradiction, agreement";
    EXPECT_EQ(Robust(how, {{5}}, 1), Values{0});
    EXPECT_EQ(Robust(how, {{5}}, 0), Values{5});
    EXPECT_EQ(Robust(how, {{5}, {1}}, 0), Values{3});
  }
}

TEST(RobustMean, OneThatIsHereAloneMovesCentredClippingByNothing) {
  const Aggregation how = Aggregation::kCentredClipping;
  EXPECT_EQ(Robust(how, {{-1e9f, 1e9f}}, 1), (Values{0, 0}));
  EXPECT_EQ(Robust(how, {{5}}, 0), Values{5});
  const Values two_lie = Robust(how, {{-1e9f}, {-1e9f}, {1}}, 2);
  EXPECT_LE(std::abs(two_lie[0]), 1) << "of five, of which two honest ones were lost";
}

TEST(RobustMean, SoManyMayLie) {
  EXPECT_EQ(LiarsAmong(0, 0.25), 0u);
  EXPECT_EQ(LiarsAmong(1, 0.5), 0u);
  EXPECT_EQ(LiarsAmong(2, 0.5), 0u);
  EXPECT_EQ(LiarsAmong(3, 0.01), 1u) << "at least one";
  EXPECT_EQ(LiarsAmong(4, 0.5), 1u) << "fewer than half";
  EXPECT_EQ(LiarsAmong(8, 0.25), 2u);
  EXPECT_EQ(LiarsAmong(9, 0.5), 4u);
}

// --- As an aggregator's sum ---

TEST(RobustAggregator, SumsTheRobustMeanAsOftenAsWhatHasArrivedWeighs) {
  const codec::ChunkGeometry geometry{.count = 3, .chunk_elements = 2};
  for (const Aggregation how : {Aggregation::kTrimmedMean, Aggregation::kCentredClipping}) {
    Aggregator aggregator(geometry, 4, Aggregator::Order::kArrival, how);
    EXPECT_TRUE(aggregator.robust());
    EXPECT_TRUE(aggregator.Add(3, 0, Values{-1e9f, 1e9f}, 1));
    for (uint32_t rank : {2u, 0u, 1u}) EXPECT_TRUE(aggregator.Add(rank, 0, Values{2, 3}, 1));
    EXPECT_FALSE(aggregator.Add(1, 0, Values{2, 3}, 1)) << "once";
    EXPECT_EQ(aggregator.held_chunks(), 4u);
    const auto sum = aggregator.sum(0, 1);
    EXPECT_FLOAT_EQ(sum[0], 4 * 2);
    EXPECT_FLOAT_EQ(sum[1], 4 * 3);
    EXPECT_EQ(aggregator.weight(0), 4);
    EXPECT_EQ(aggregator.held_chunks(), 0u);
    EXPECT_EQ(aggregator.sum(1, 1)[0], 0) << "nobody has pushed it";
  }
}

TEST(RobustAggregator, IsBitwiseTheSameWhateverArrivedWhen) {
  const uint64_t seed = 24;
  Random random(seed);
  const codec::ChunkGeometry geometry{.count = 100, .chunk_elements = 100};
  for (int round = 0; round < 100; ++round) {
    const Matrix given = RandomMatrix(random, 5, 100);
    const Aggregation how = round % 2 == 0 ? Aggregation::kTrimmedMean : Aggregation::kCentredClipping;
    Aggregator forward(geometry, 5, Aggregator::Order::kArrival, how);
    Aggregator backward(geometry, 5, Aggregator::Order::kArrival, how);
    for (uint32_t rank = 0; rank < 5; ++rank) forward.Add(rank, 0, given[rank], 1);
    for (uint32_t rank = 5; rank-- > 0;) backward.Add(rank, 0, given[rank], 1);
    const auto a = forward.sum(0, 1), b = backward.sum(0, 1);
    ASSERT_TRUE(std::ranges::equal(a, b)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace longhaul::server
