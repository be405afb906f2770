// The fit of the path and of the target loss, on rounds of a simulated bottleneck (probed_path.h).
#include "transport/core/rate/target_loss_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/transport/probed_path.h"

namespace longhaul::transport {
namespace {

constexpr double kBudget = 0.3;

struct Probe {
  explicit Probe(const ProbedPath& path, uint64_t seed) : prober(path, seed) {}
  void Rounds(int count) {
    for (int i = 0; i < count; ++i) fit.OnRound(prober.Next());
  }
  void Rounds(RatePhase phase, int count) {
    for (int i = 0; i < count; ++i) fit.OnRound(prober.Send(phase));
  }
  TargetLoss Fit(double budget = kBudget) const {
    return fit.Fit({.budget = budget, .min_rtt = Prober::kMinRtt});
  }

  Prober prober;
  TargetLossFit fit;
};

double CapacityError(const TargetLoss& fit, double capacity) {
  return fit.capacity / Prober::Rate(capacity) - 1;
}

// What the packets of the memory allow: three and a half standard deviations of the loss of those sent below
// C.
double AllowedFloorError(double floor, int rounds, double packets) {
  const double chance = 3.5 * std::sqrt(std::max(floor * (1 - floor), 1 / packets) / (rounds * packets));
  return std::max({0.1 * floor, 0.003, chance});
}

TEST(TargetLossFit, RecoversFloorAndCapacityOfAnyPath) {
  std::map<FitState, int> states;
  int curves = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    ProbedPath path;
    path.loss = random.Chance(0.2) ? 0 : 0.2 * random.Uniform();
    path.capacity = 60 * std::pow(20, random.Uniform());   // 60..1200 packets a round trip
    path.buffer = 0.02 * std::pow(100, random.Uniform());  // 0.02..2 round trips
    Probe run(path, seed);
    run.Rounds(240);
    const TargetLoss fit = run.Fit();
    SCOPED_TRACE(testing::Message() << "seed " << seed << " loss " << path.loss << " C " << path.capacity
                                    << " buffer " << path.buffer << " state " << FitStateName(fit.state));
    ++states[fit.state];
    curves += fit.basis == TargetBasis::kCurves ? 1 : 0;
    if (fit.capacity.IsZero()) continue;  // counted below
    EXPECT_NEAR(fit.floor, path.loss, AllowedFloorError(path.loss, fit.down, path.capacity));
    EXPECT_NEAR(CapacityError(fit, path.capacity), 0, 0.1);
    EXPECT_GE(fit.target, fit.floor + TargetLossFit::kHeadroom - 1e-12);
    EXPECT_LE(fit.target, fit.floor + TargetLossFit::kMaxOwnLoss + 1e-12);
    EXPECT_GE(fit.r_squared, TargetLossFit::kMinRSquared);
  }
  EXPECT_GE(states[FitState::kFitted], 285) << "of 300";
  EXPECT_GE(curves, 200) << "of 300";
}

TEST(TargetLossFit, SixtyPacketsARoundAtTwentyPercentSuffice) {
  // One round's loss scatters by 5 points; two and a half deviations of what DOWN's thirty rounds tell
  // are 2.4.
  int within = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Probe run({.loss = 0.2, .capacity = 60, .follows = false}, seed);
    run.Rounds(240);
    const TargetLoss fit = run.Fit();
    ASSERT_FALSE(fit.capacity.IsZero()) << "seed " << seed << " " << FitStateName(fit.state);
    EXPECT_NEAR(fit.floor, 0.2, 0.024) << "seed " << seed;
    EXPECT_NEAR(CapacityError(fit, 60), 0, 0.1) << "seed " << seed;
    within += std::abs(fit.floor - 0.2) <= 0.02 ? 1 : 0;
  }
  EXPECT_GE(within, 98) << "of 100";
}

TEST(TargetLossFit, TheTargetLiesBetweenTheFloorAndWhatTheProbeCosts) {
  // UP sends 1.25 C: with a short queue it loses every fifth packet to itself.
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    for (const double loss : {0.0, 0.02, 0.05, 0.1}) {
      Probe run({.loss = loss, .capacity = 400, .buffer = 0.1}, seed);
      run.Rounds(240);
      const TargetLoss fit = run.Fit();
      EXPECT_EQ(fit.state, FitState::kFitted) << FitStateName(fit.state);
      EXPECT_GE(fit.target, fit.floor + TargetLossFit::kHeadroom - 1e-12);
      EXPECT_LE(fit.target, fit.floor + TargetLossFit::kMaxOwnLoss) << "loss " << loss << " seed " << seed;
      EXPECT_TRUE(fit.delay_saturates) << "a tenth of a round trip is full at once";
    }
  }
}

TEST(TargetLossFit, WhereAQueueCostsMoreTheTargetIsLower) {
  // The same queue, in relation to a shorter and a shorter path.
  int lower = 0;
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    Probe run({.loss = 0.02, .capacity = 400, .buffer = 0.15}, seed);
    run.Rounds(240);
    double last = 1;
    for (const Duration min_rtt : {Prober::kMinRtt, Prober::kMinRtt / 4, Prober::kMinRtt / 16}) {
      const double target = run.fit.Fit({.budget = kBudget, .min_rtt = min_rtt}).target;
      EXPECT_LE(target, last + 1e-12) << "seed " << seed;
      lower += target < last - 1e-3 ? 1 : 0;
      last = target;
    }
  }
  EXPECT_GT(lower, 25 + 10) << "besides the first";
}

TEST(TargetLossFit, TheBudgetBindsTheTarget) {
  Probe run({.loss = 0.02, .capacity = 400, .buffer = 0.05}, 8);
  run.Rounds(240);
  const TargetLoss free = run.Fit();
  ASSERT_EQ(free.state, FitState::kFitted);
  ASSERT_GT(free.target, free.floor + 0.015);
  EXPECT_NEAR(run.Fit(0.012).target, free.floor + 0.012, 1e-3);
}

TEST(TargetLossFit, ADeepBufferHidesTheLossButNotTheCapacity) {
  // UP shows fewer delivered than sent without loss: the queue grows.
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Probe run({.loss = 0.05, .capacity = 1000, .buffer = 3, .follows = false}, seed);
    run.Rounds(240);
    const TargetLoss fit = run.Fit();
    EXPECT_EQ(fit.state, FitState::kFitted) << "seed " << seed;
    EXPECT_EQ(fit.basis, TargetBasis::kFlatLoss) << "seed " << seed << " " << FitStateName(fit.state);
    EXPECT_NEAR(fit.floor, 0.05, 0.005) << "seed " << seed;
    EXPECT_NEAR(CapacityError(fit, 1000), 0, 0.03) << "seed " << seed;
    EXPECT_NEAR(fit.target, fit.floor + TargetLossFit::kFallbackMargin, 1e-12) << "and says which guard";
  }
}

TEST(TargetLossFit, FewRoundsAreSaidToBeFew) {
  Probe run({.loss = 0.05}, 1);
  EXPECT_EQ(run.Fit().state, FitState::kFewSamples);
  EXPECT_NEAR(run.Fit().target, TargetLossFit::kFallbackMargin, 1e-12);
  run.Rounds(TargetLossFit::kMinSamples - 1);
  const TargetLoss fit = run.Fit();
  EXPECT_EQ(fit.state, FitState::kFewSamples);
  EXPECT_EQ(fit.samples, TargetLossFit::kMinSamples - 1);
  EXPECT_EQ(fit.capacity, Bandwidth::Zero());
  EXPECT_NEAR(fit.floor, 0.05, 0.05) << "DOWN rounds tell at least a floor";
  EXPECT_NEAR(fit.target, fit.floor + TargetLossFit::kFallbackMargin, 1e-12);
}

TEST(TargetLossFit, CruisingAloneIsNoExperiment) {
  for (const RatePhase missing : {RatePhase::kDown, RatePhase::kUp}) {
    Probe run({.loss = 0.1, .capacity = 500, .follows = false}, 2);
    run.Rounds(RatePhase::kCruise, 40);
    EXPECT_EQ(run.Fit().state, FitState::kNoExcitation);
    run.Rounds(missing == RatePhase::kDown ? RatePhase::kUp : RatePhase::kDown, 20);
    const TargetLoss fit = run.Fit();
    EXPECT_EQ(fit.state, FitState::kNoExcitation);
    EXPECT_EQ(fit.capacity, Bandwidth::Zero());
    EXPECT_NEAR(fit.floor, 0.1, 0.03);
    EXPECT_NEAR(fit.target, fit.floor + TargetLossFit::kFallbackMargin, 1e-12);
  }
}

TEST(TargetLossFit, ACapacityThatNoRoundExceededIsNotKnown) {
  // The sender believes in a third of what the path carries.
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Probe run({.loss = 0.05, .capacity = 200, .follows = false}, seed);
    run.prober.path.capacity = 600;
    run.Rounds(240);
    const TargetLoss fit = run.Fit();
    EXPECT_EQ(fit.state, FitState::kNoExcitation) << "seed " << seed << " " << FitStateName(fit.state);
    EXPECT_EQ(fit.capacity, Bandwidth::Zero());
  }
}

TEST(TargetLossFit, TooFewPacketsAreTooUncertain) {
  Probe run({.loss = 0.2, .capacity = 8, .buffer = 1, .follows = false}, 3);
  run.Rounds(40);
  const TargetLoss fit = run.Fit();
  EXPECT_TRUE(fit.state == FitState::kIllConditioned || fit.state == FitState::kNoExcitation)
      << FitStateName(fit.state);
  EXPECT_EQ(fit.capacity, Bandwidth::Zero());
}

TEST(TargetLossFit, ABandwidthThatWandersIsAPoorFit) {
  // C changes by 20 % from round to round, and the sender runs after it.
  int poor = 0, trusted = 0, asked = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Probe run({.loss = 0.02, .capacity = 400, .walk = 0.2}, seed);
    run.Rounds(40);
    for (int i = 0; i < 10; ++i, ++asked) {
      run.Rounds(20);
      const TargetLoss fit = run.Fit();
      poor += fit.state == FitState::kPoorFit ? 1 : 0;
      trusted += fit.capacity.IsZero() ? 0 : 1;
    }
  }
  EXPECT_GT(poor, asked * 3 / 4);
  EXPECT_LT(trusted, asked / 20);
}

TEST(TargetLossFit, NothingInTheRatesThatTheSenderFollowsIsTakenForAFit) {
  // An application that sends what it has, at any rate far below C: g equals s, perfectly correlated.
  TargetLossFit fit;
  Random random(9);
  for (int i = 0; i < 200; ++i) {
    const double s = 10 + 100 * random.Uniform();
    const auto phase = static_cast<RatePhase>(s < 40 ? 0 : s < 70 ? 1 : 2);
    fit.OnRound({Prober::Rate(s), Prober::Rate(s * (1 + 0.01 * random.Normal())), 0, s, Duration(0), phase});
  }
  const TargetLoss result = fit.Fit({.budget = kBudget, .min_rtt = Prober::kMinRtt});
  EXPECT_EQ(result.state, FitState::kNoExcitation) << FitStateName(result.state);
  EXPECT_EQ(result.capacity, Bandwidth::Zero());
}

TEST(TargetLossFit, AHalvedCapacityReplacesTheOldOne) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Probe run({.loss = 0.05, .capacity = 400}, seed);
    run.Rounds(200);
    ASSERT_NEAR(CapacityError(run.Fit(), 400), 0, 0.1) << "seed " << seed;
    run.prober.path.capacity = 200;
    run.Rounds(8);
    EXPECT_EQ(run.Fit().state, FitState::kFewSamples)
        << "seed " << seed << ": after one cycle the old rounds are gone";
    run.Rounds(56);
    const TargetLoss fit = run.Fit();
    EXPECT_GE(fit.path_changes, 1u);
    ASSERT_FALSE(fit.capacity.IsZero()) << "seed " << seed << " " << FitStateName(fit.state);
    EXPECT_NEAR(CapacityError(fit, 200), 0, 0.1) << "seed " << seed;
    EXPECT_NEAR(fit.floor, 0.05, AllowedFloorError(0.05, fit.down, 200)) << "seed " << seed;
  }
}

TEST(TargetLossFit, ADoubledCapacityReplacesTheOldOne) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Probe run({.loss = 0.02, .capacity = 200}, seed);
    run.Rounds(200);
    run.prober.path.capacity = 400;
    run.Rounds(120);
    const TargetLoss fit = run.Fit();
    EXPECT_GE(fit.path_changes, 1u);
    ASSERT_FALSE(fit.capacity.IsZero()) << "seed " << seed << " " << FitStateName(fit.state);
    EXPECT_NEAR(CapacityError(fit, 400), 0, 0.1) << "seed " << seed;
  }
}

TEST(TargetLossFit, AFloorThatJumpsReplacesTheOldOne) {
  for (const auto& [before, after] : {std::pair(0.0, 0.08), std::pair(0.1, 0.0), std::pair(0.02, 0.2)}) {
    for (uint64_t seed = 1; seed <= 30; ++seed) {
      Probe run({.loss = before, .capacity = 300}, seed);
      run.Rounds(200);
      run.prober.path.loss = after;
      run.Rounds(80);
      const TargetLoss fit = run.Fit();
      SCOPED_TRACE(testing::Message()
                   << "seed " << seed << " " << before << " -> " << after << " " << FitStateName(fit.state));
      EXPECT_GE(fit.path_changes, 1u);
      ASSERT_FALSE(fit.capacity.IsZero());
      EXPECT_NEAR(fit.floor, after, AllowedFloorError(after, fit.down, 300));
      EXPECT_NEAR(CapacityError(fit, 300), 0, 0.1);
    }
  }
}

TEST(TargetLossFit, APathThatStaysIsNotForgotten) {
  uint64_t changes = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Probe run({.loss = 0.1, .capacity = 200}, seed);
    run.Rounds(400);
    changes += run.Fit().path_changes;
  }
  EXPECT_LE(changes, 10u) << "of 20000 rounds";
}

TEST(TargetLossFit, ResetForgetsAll) {
  Probe run({.loss = 0.1}, 4);
  run.Rounds(200);
  run.fit.Reset();
  const TargetLoss fit = run.Fit();
  EXPECT_EQ(fit.state, FitState::kFewSamples);
  EXPECT_EQ(fit.samples, 0);
  EXPECT_EQ(fit.floor, 0);
}

TEST(TargetLossFit, NoBudgetDoesNotStopTheFlow) {
  Probe run({.loss = 0.1, .capacity = 400}, 5);
  run.Rounds(240);
  const TargetLoss fit = run.Fit(0);
  EXPECT_EQ(fit.state, FitState::kFitted);
  EXPECT_NEAR(fit.target, fit.floor + TargetLossFit::kHeadroom, 1e-12);
}

TEST(TargetLossFit, WhereNoRoundExceedsThePathTheGrantStandsForItsCapacity) {
  Probe run({.loss = 0.1, .capacity = 400}, 5);
  run.Rounds(RatePhase::kDown, 40);
  EXPECT_EQ(run.Fit().state, FitState::kNoExcitation);
  const TargetLoss fit = run.fit.Fit({.min_rtt = Prober::kMinRtt, .grant = Bandwidth::Mbps(30)});
  EXPECT_EQ(fit.state, FitState::kGranted);
  EXPECT_EQ(fit.capacity, Bandwidth::Mbps(30));
  EXPECT_NEAR(fit.floor, 0.1, 0.02);
}

TEST(TargetLossFit, AHingeThatContradictsTheExperimentsIsNone) {
  Probe run({.loss = 0.1, .capacity = 400}, 5);
  run.Rounds(240);
  const TargetLoss agrees = run.fit.Fit({.budget = kBudget, .min_rtt = Prober::kMinRtt, .floor = 0.1});
  EXPECT_EQ(agrees.state, FitState::kFitted);
  const TargetLoss fit = run.fit.Fit({.budget = kBudget, .min_rtt = Prober::kMinRtt, .floor = 0.0});
  EXPECT_EQ(fit.state, FitState::kPoorFit);
  EXPECT_EQ(fit.floor, 0);
}

TEST(TargetLossFit, TheTargetIsClampedButNeverBelowTheFloor) {
  Probe clean({.loss = 0, .capacity = 400}, 6);
  clean.Rounds(240);
  EXPECT_GE(clean.Fit().target, TargetLossFit::kMinTarget);
  Probe bad({.loss = 0.2, .capacity = 400}, 6);
  bad.Rounds(240);
  EXPECT_GE(bad.Fit().target, bad.Fit().floor + TargetLossFit::kHeadroom - 1e-12);
}

TEST(TargetLossFit, NonsenseIsIgnored) {
  TargetLossFit fit;
  for (int i = 0; i < 20; ++i) {
    fit.OnRound({});
    fit.OnRound({Bandwidth::Mbps(1), Bandwidth::Max(), 0, 10, Duration(0), RatePhase::kUp});
    fit.OnRound({Bandwidth::Mbps(1), Bandwidth::Mbps(1), NAN, 10, Duration(0), RatePhase::kUp});
    fit.OnRound({Bandwidth::Mbps(1), Bandwidth::Mbps(1), 0, INFINITY, Duration(0), RatePhase::kUp});
  }
  EXPECT_EQ(fit.Fit({.budget = kBudget}).samples, 0);
  for (int i = 0; i < 60; ++i) {  // nothing ever arrives
    fit.OnRound(
        {Bandwidth::Mbps(1 + i % 3), Bandwidth::Zero(), 1, 10, Duration(0), static_cast<RatePhase>(i % 3)});
  }
  const TargetLoss result = fit.Fit({.budget = kBudget});
  EXPECT_EQ(result.floor, 1);
  EXPECT_TRUE(std::isfinite(result.target));
}

TEST(TargetLossFit, EveryStateHasAName) {
  for (int i = 0; i <= static_cast<int>(FitState::kFitted); ++i) {
    EXPECT_NE(FitStateName(static_cast<FitState>(i)), "unknown");
  }
}

}  // namespace
}  // namespace longhaul::transport
