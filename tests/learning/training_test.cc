#include "bench/learning/training.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/random.h"
#include "bench/learning/skewed_batches.h"

namespace longhaul::bench {
namespace {

// Images that a network can tell apart: each class has its own pattern, under noise.
worker::Dataset Patterns(size_t images, uint64_t seed, int contrast = 80) {
  Random random(seed);
  worker::Dataset data;
  for (size_t i = 0; i < images; ++i) {
    const auto label = static_cast<uint8_t>(i % worker::Dataset::kClasses);
    data.labels.push_back(label);
    for (size_t p = 0; p < worker::Dataset::kPixels; ++p) {
      const int level = (p * 7 + label * 13u) % 10 < 2 ? 40 + contrast : 40;
      data.pixels.push_back(static_cast<uint8_t>(level + static_cast<int>(random.Below(60))));
    }
  }
  return data;
}

const worker::Dataset kTrain = Patterns(400, 1);
const worker::Dataset kTest = Patterns(100, 2);

Scenario Small(const std::string& policy) {
  Scenario s;
  s.policy = policy;
  s.rounds = 4;
  s.batch = 2;
  s.loss = 0.2;
  return s;
}

worker::Mlp::Tensors ParametersAfter(const Scenario& scenario, Outcome* outcome = nullptr) {
  worker::Mlp model(0);
  const Result<Outcome> result = Train(scenario, kTrain, kTest, &model);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  if (outcome != nullptr && result.ok()) *outcome = *result;
  return model.parameters();
}

double LargestDifference(const worker::Mlp::Tensors& a, const worker::Mlp::Tensors& b) {
  double largest = 0;
  for (size_t t = 0; t < a.size(); ++t) {
    for (size_t i = 0; i < a[t].size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(a[t][i]) - static_cast<double>(b[t][i])));
    }
  }
  return largest;
}

TEST(TrainingTest, TheSameSeedGivesTheSameParametersBitForBit) {
  for (const char* policy : {"zero", "count", "stale", "ipw", "residual", "shift"}) {
    for (const char* optimizer : {"sgd", "adam"}) {
      Scenario scenario = Small(policy);
      scenario.optimizer = optimizer;
      EXPECT_EQ(ParametersAfter(scenario), ParametersAfter(scenario)) << policy << ", " << optimizer;
    }
  }
  Scenario other = Small("shift");
  other.seed = 2;
  EXPECT_NE(ParametersAfter(Small("shift")), ParametersAfter(other));
}

TEST(TrainingTest, PoliciesDifferByRoundingOnlyWhenNothingIsLost) {
  Scenario scenario = Small("zero");
  scenario.loss = 0;
  const worker::Mlp::Tensors zero = ParametersAfter(scenario);
  for (const char* policy : {"count", "stale", "ipw", "residual"}) {
    scenario.policy = policy;
    EXPECT_EQ(ParametersAfter(scenario), zero) << policy;
  }
  scenario.policy = "shift";  // g - c + c is g but for rounding
  const double difference = LargestDifference(ParametersAfter(scenario), zero);
  EXPECT_GT(difference, 0);
  EXPECT_LT(difference, 1e-5);
}

TEST(TrainingTest, TheLayoutOfAMatrixMattersOnlyWhereSomethingIsLost) {
  for (const double loss : {0.0, 0.2}) {
    Scenario scenario = Small("residual");
    scenario.loss = loss;
    const worker::Mlp::Tensors as_it_is = ParametersAfter(scenario);
    scenario.transposed = true;
    EXPECT_EQ(ParametersAfter(scenario) == as_it_is, loss <= 0);
  }
}

TEST(TrainingTest, PoliciesDifferUnderLoss) {
  const worker::Mlp::Tensors zero = ParametersAfter(Small("zero"));
  for (const char* policy : {"count", "stale", "ipw", "residual", "shift"}) {
    EXPECT_GT(LargestDifference(ParametersAfter(Small(policy)), zero), 1e-4) << policy;
  }
}

// Mean of the workers' gradients in order of rank, then SGD with momentum as it is written in books.
TEST(TrainingTest, ALosslessRunIsThePlainLoop) {
  Scenario scenario = Small("residual");
  scenario.loss = 0;
  worker::Mlp model(scenario.seed);
  const SkewedBatches batches(kTrain, scenario.workers, scenario.skew, scenario.batch, scenario.seed);
  worker::Mlp::Tensors velocity = worker::Mlp::Zeros();
  for (uint64_t round = 0; round < scenario.rounds; ++round) {
    worker::Mlp::Tensors sum = worker::Mlp::Zeros();
    for (uint32_t rank = 0; rank < scenario.workers; ++rank) {
      worker::Batch batch;
      batches.Draw(rank, round, batch);
      worker::Mlp::Tensors gradient = worker::Mlp::Zeros();
      model.Gradient(batch, gradient);
      for (size_t t = 0; t < sum.size(); ++t) {
        for (size_t i = 0; i < sum[t].size(); ++i) sum[t][i] += gradient[t][i] * RateFactor(scenario, round);
      }
    }
    for (size_t t = 0; t < sum.size(); ++t) {
      for (size_t i = 0; i < sum[t].size(); ++i) {
        velocity[t][i] = 0.9f * velocity[t][i] + sum[t][i] / 8.0f;
        model.parameters()[t][i] -= 0.1f * velocity[t][i];
      }
    }
  }
  EXPECT_LT(LargestDifference(ParametersAfter(scenario), model.parameters()), 1e-6);
}

TEST(TrainingTest, LearnsWhatIsThereToLearn) {
  Scenario scenario = Small("shift");
  scenario.rounds = 30;
  Outcome outcome;
  ParametersAfter(scenario, &outcome);
  EXPECT_GT(outcome.accuracy, 0.9);
  EXPECT_NEAR(outcome.low_lost, scenario.loss, 0.05);
  EXPECT_GT(outcome.filled, 0);
}

// A gate: what the default policy costs, in the mean loss of the last batches of three seeds, is little
// beside what `zero` costs. Where losses are uneven, the two workers that lose most have classes that the
// others hardly have; at 60 % the matrices are stored so that their energy lies flat over the chunks.
TEST(TrainingTest, TheDefaultPolicyIsNearLosslessAndFarFromZero) {
  constexpr uint32_t kSeeds = 3;
  const worker::Dataset train = Patterns(2000, 3, 8);  // a task that is not learned at once
  // Over the seeds, in all.
  const auto loss_of = [&train](Scenario s) {
    double sum = 0;
    for (s.seed = 1; s.seed <= kSeeds; ++s.seed) sum += Train(s, train, kTest)->training_loss;
    return sum;
  };
  for (const char* optimizer : {"sgd", "adam"}) {
    Scenario s = Small("zero");
    s.optimizer = optimizer;
    s.rounds = 60;
    s.batch = 8;
    const double lossless = loss_of(s.Lossless());
    for (const double loss : {0.2, 0.3, 0.6}) {
      s.loss = loss;
      s.uneven = loss < 0.5;
      s.burst = s.uneven ? 10 : 0;
      s.transposed = !s.uneven;
      const double zero = loss_of(s) - lossless;
      Scenario by_default = s;
      by_default.policy = NameOf(JobSpec().policy);
      by_default.high_share = JobSpec().high_share;
      by_default.lost_energy = JobSpec().lost_energy;
      const double costs = loss_of(by_default) - lossless;
      SCOPED_TRACE(s.Key());
      EXPECT_GT(zero, 0.04 * lossless) << "nothing to tell them apart by";
      EXPECT_LT(costs, 0.03 * lossless);
      EXPECT_LT(costs, 0.25 * zero);
    }
  }
}

// Two of eight that push -10 g: the mean climbs instead of descending, a robust one learns as if they were
// not there.
TEST(TrainingTest, AMinorityThatLiesRuinsAMeanAndNotARobustOne) {
  Scenario scenario = Small("count");
  scenario.rounds = 30;
  scenario.batch = 8;
  scenario.loss = 0;
  scenario.skew = 0;
  scenario.attack = "scale";
  scenario.liars = 2;
  Outcome mean, trimmed, clipped;
  (void)ParametersAfter(scenario, &mean);
  scenario.aggregation = "trimmed-mean";
  (void)ParametersAfter(scenario, &trimmed);
  scenario.aggregation = "centred-clipping";
  (void)ParametersAfter(scenario, &clipped);
  EXPECT_LT(mean.accuracy, 0.5);
  EXPECT_GT(trimmed.accuracy, 0.9);
  EXPECT_GT(clipped.accuracy, 0.9);
}

TEST(TrainingTest, ALiarsWeightCountsAsTheServerBoundsIt) {
  Scenario scenario = Small("count");
  scenario.loss = 0;
  scenario.liars = 1;
  scenario.attack = "weight";
  const worker::Mlp::Tensors bounded = ParametersAfter(scenario);
  scenario.max_weight_share = 1;
  EXPECT_NE(ParametersAfter(scenario), bounded);
}

TEST(TrainingTest, WorkersMayLeaveBeExcludedAndBeReplaced) {
  for (const char* policy : {"zero", "residual", "shift"}) {
    const auto after = [&](const char* membership, uint32_t rounds) {
      Scenario scenario = Small(policy);
      scenario.rounds = rounds;
      scenario.batch = 1;
      scenario.membership = membership;
      return ParametersAfter(scenario);
    };
    // Each beside a run of the same length that no worker leaves.
    const worker::Mlp::Tensors none = after("none", 14);
    for (const char* membership : {"left", "excluded"}) {
      const double difference = LargestDifference(after(membership, 14), none);
      EXPECT_TRUE(std::isfinite(difference));
      EXPECT_GT(difference, 0) << policy << ", " << membership;
    }
    // A replaced worker takes with it its debt or its shift, and in any case what it knows of the chunks'
    // energies.
    const double difference = LargestDifference(after("replaced", 53), after("none", 53));
    EXPECT_TRUE(std::isfinite(difference));
    EXPECT_GT(difference, 0) << policy;
  }
}

TEST(ScenarioTest, TwoWorkersLoseFiveTimesAsMuchAndTheMeanIsTheLoss) {
  Scenario s;
  for (const double loss : {0.01, 0.1, 0.3}) {
    for (s.seed = 1; s.seed < 20; ++s.seed) {
      s.loss = loss;
      double sum = 0, least = 1, most = 0;
      for (uint32_t rank = 0; rank < s.workers; ++rank) {
        sum += s.LossOf(rank);
        least = std::min(least, s.LossOf(rank));
        most = std::max(most, s.LossOf(rank));
      }
      EXPECT_NEAR(sum / s.workers, loss, 1e-12);
      EXPECT_NEAR(most / least, 5, 1e-12);
    }
  }
}

TEST(ScenarioTest, WhereFiveTimesAsMuchIsMoreThanAPathCanLoseTheOthersLoseTheRest) {
  Scenario s;
  s.loss = 0.6;
  std::map<double, int> losses;
  for (uint32_t rank = 0; rank < s.workers; ++rank) ++losses[std::round(s.LossOf(rank) * 1e6) / 1e6];
  EXPECT_EQ(losses, (std::map<double, int>{{0.483333, 6}, {0.95, 2}}));
}

TEST(ScenarioTest, TheOptimizerMayBeAnyOfTheServers) {
  Scenario s = Small("residual");
  EXPECT_EQ(s.OptimizerText(), "sgd:lr=0.1,momentum=0.9");
  s.optimizer = "sgd:lr=0.7,momentum=0.9,nesterov";
  const Result<Scenario> again = Scenario::FromJson(s.ToJson());
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->OptimizerText(), s.optimizer);
  s.optimizer = "sgd:lr=0.7,momentum=2";
  EXPECT_NE(Scenario::FromJson(s.ToJson()).status().message().find("momentum"), std::string::npos);
}

TEST(ScenarioTest, IsReadBackAndRefusesWhatItDoesNotKnow) {
  Scenario s = Small("ipw");
  s.membership = "left";
  s.shards = true;
  const Result<Scenario> again = Scenario::FromJson(s.ToJson());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->Key(), s.Key());
  EXPECT_FALSE(Scenario::FromJson({{"polcy", "zero"}}).ok());
  EXPECT_FALSE(Scenario::FromJson({{"rounds", "many"}}).ok());
  EXPECT_FALSE(Scenario::FromJson({{"optimizer", "lbfgs"}}).ok());
  EXPECT_FALSE(Scenario::FromJson({{"loss", 0.9}, {"burst", 1.0}}).ok());
  EXPECT_FALSE(Scenario::FromJson({{"policy", "nothing"}}).ok());
  EXPECT_FALSE(Scenario::FromJson({{"workers", (uint64_t{1} << 32) + 2}}).ok()) << "it would be two";
  EXPECT_FALSE(Scenario::FromJson({{"rounds", -1}}).ok());
  EXPECT_FALSE(Scenario::FromJson({{"high_share", 7}}).ok());
  EXPECT_FALSE(Scenario::FromJson({{"shift_alpha", 0.0}}).ok());
  EXPECT_FALSE(Scenario::FromJson({{"burst", 0.5}}).ok());
  EXPECT_FALSE(Train(Small("nothing"), kTrain, kTest).ok());
}

TEST(SkewedBatchesTest, DrawsFromTheOwnClassesAsOftenAsItShould) {
  constexpr uint32_t kWorkers = 8;
  const SkewedBatches skewed(kTrain, kWorkers, 0.9, 100, 3);
  std::array<int, worker::Dataset::kClasses> all{};
  int own = 0;
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    for (uint64_t round = 0; round < 10; ++round) {
      worker::Batch batch, again;
      skewed.Draw(rank, round, batch);
      skewed.Draw(rank, round, again);
      ASSERT_EQ(batch.images, again.images);
      for (const uint8_t label : batch.labels) {
        ++all[label];
        // The stretch of a rank covers its tenths, in part or whole.
        own += label >= rank * 10 / kWorkers && label * kWorkers < (rank + 1) * 10 ? 1 : 0;
      }
    }
  }
  // 0.9, and of the tenth that is drawn from everywhere what is of the own classes (two of ten).
  EXPECT_NEAR(own / 8000.0, 0.92, 0.02);
  for (const int count : all) EXPECT_NEAR(count, 800, 120);
}

}  // namespace
}  // namespace longhaul::bench
