// Every optimizer against the formula of its paper in plain double loops.
#include "codec/policy/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/random.h"

namespace longhaul::codec {
namespace {

using Values = std::vector<float>;

std::unique_ptr<Optimizer> Make(const char* text, uint64_t count) {
  return MakeOptimizer(*ParseOptimizer(text), count);
}

// One element through so many steps with the same gradient.
float After(const char* text, int steps, float gradient, float w) {
  auto optimizer = Make(text, 1);
  Values current = {w}, next(1);
  for (int t = 1; t <= steps; ++t) {
    optimizer->Step(static_cast<uint64_t>(t), 0, Values{gradient}, current, next);
    current = next;
  }
  return current[0];
}

TEST(Optimizer, AggregateHandsTheMeanOn) {
  auto optimizer = MakeOptimizer(OptimizerSpec{}, 2);
  Values updated(2);
  optimizer->Step(1, 0, Values{3, -4}, Values{100, 100}, updated);
  EXPECT_EQ(updated, (Values{3, -4}));
}

TEST(Optimizer, SgdWithMomentumStepsAsWrittenDownByHand) {
  auto optimizer = Make("sgd:lr=0.5,momentum=0.5", 3);
  Values w = {1}, next(1);
  optimizer->Step(1, 2, Values{2}, w, next);  // v = 2, w = 1 - 0.5 * 2
  EXPECT_EQ(next[0], 0.0f);
  w = next;
  optimizer->Step(2, 2, Values{2}, w, next);  // v = 1 + 2, w = 0 - 0.5 * 3
  EXPECT_EQ(next[0], -1.5f);
  w = next;
  optimizer->Step(2, 1, Values{2}, w, next);  // another element has its own velocity
  EXPECT_EQ(next[0], -2.5f);
}

TEST(Optimizer, NesterovLooksAheadAndWeightDecayPullsToZero) {
  EXPECT_EQ(After("sgd:lr=0.5,momentum=0.5,nesterov", 1, 2, 1), -0.5f);  // 1 - 0.5 * (2 + 0.5 * 2)
  EXPECT_EQ(After("sgd:lr=0.5,weight_decay=0.25", 1, 0, 8), 7.0f);       // 8 - 0.5 * 0.25 * 8
}

TEST(Optimizer, AdamsFirstStepIsTheLearningRateWhateverTheGradientsSize) {
  // The corrected moments of one gradient are g and g^2.
  for (const float gradient : {1e-3f, 1.0f, 1e4f}) {
    EXPECT_NEAR(After("adam:lr=0.01", 1, gradient, 1), 0.99, 1e-6);
    EXPECT_NEAR(After("adam:lr=0.01", 1, -gradient, 1), 1.01, 1e-6);
  }
  EXPECT_NEAR(After("adam:lr=0.01", 100, 3, 5), 4, 1e-4) << "a constant gradient moves it by lr each time";
  EXPECT_EQ(After("adam:lr=0.01", 3, 0, 5), 5.0f) << "no gradient, no step, no division by zero";
}

TEST(Optimizer, AdamWDecaysTheParametersAndAdamTheGradient) {
  // Without a gradient: AdamW shrinks by 1 - lr * decay, Adam takes decay * w for a gradient and steps by lr.
  EXPECT_NEAR(After("adamw:lr=0.1,weight_decay=0.5", 1, 0, 8), 7.6, 1e-6);
  EXPECT_NEAR(After("adam:lr=0.1,weight_decay=0.5", 1, 0, 8), 7.9, 1e-6);
}

TEST(Optimizer, AScheduleScalesTheLearningRateAndNothingElse) {
  for (const char* text : {"sgd:lr=0.4,momentum=0.5", "adam:lr=0.4", "adamw:lr=0.4,weight_decay=0.5"}) {
    auto scaled = Make(text, 1);
    auto half = Make(std::string(text).replace(std::string(text).find("0.4"), 3, "0.2").c_str(), 1);
    Values a(1), b(1);
    scaled->ScaleRate(0.5);
    for (uint64_t t = 1; t <= 2; ++t) {
      scaled->Step(t, 0, Values{2}, Values{1}, a);
      half->Step(t, 0, Values{2}, Values{1}, b);
      EXPECT_EQ(a, b) << text;
    }
    scaled->ScaleRate(0);
    scaled->Step(3, 0, Values{2}, Values{1}, a);
    EXPECT_EQ(a[0], 1.0f) << text;
  }
}

TEST(Optimizer, AGradientThatOverflowsItsSquareStopsThatElementOnly) {
  auto optimizer = Make("adam:lr=0.01", 16);
  Values gradient(16, 1), w(16, 1), next(16);
  gradient[3] = 1e30f;
  for (uint64_t t = 1; t <= 3; ++t) {
    optimizer->Step(t, 0, gradient, w, next);
    std::swap(w, next);
  }
  EXPECT_EQ(w[3], 1.0f) << "divided by infinity, as in PyTorch";
  EXPECT_NEAR(w[4], 0.97, 1e-6);
}

// --- Differential tests ---

// A plain optimizer in double, element by element, in the words of the papers.
class Reference {
 public:
  Reference(const OptimizerSpec& spec, size_t count) : spec_(spec), first_(count, 0.0), second_(count, 0.0) {}

  double Step(uint64_t t, size_t i, double gradient, double w) {
    if (spec_.name() == "sgd") {
      const double g = gradient + spec_.Get("weight_decay") * w;
      const double v = first_[i] = spec_.Get("momentum") * first_[i] + g;
      return w - spec_.Get("lr") * (spec_.Get("nesterov") != 0 ? g + spec_.Get("momentum") * v : v);
    }
    const bool adamw = spec_.name() == "adamw";
    const double g = adamw ? gradient : gradient + spec_.Get("weight_decay") * w;
    first_[i] = spec_.Get("beta1") * first_[i] + (1 - spec_.Get("beta1")) * g;
    second_[i] = spec_.Get("beta2") * second_[i] + (1 - spec_.Get("beta2")) * g * g;
    const auto steps = static_cast<double>(t);
    const double m = first_[i] / (1 - std::pow(spec_.Get("beta1"), steps));
    const double v = second_[i] / (1 - std::pow(spec_.Get("beta2"), steps));
    const double decay = adamw ? spec_.Get("lr") * spec_.Get("weight_decay") * w : 0;
    return w - decay - spec_.Get("lr") * m / (std::sqrt(v) + spec_.Get("eps"));
  }

 private:
  OptimizerSpec spec_;
  std::vector<double> first_, second_;
};

class EveryOptimizer : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Texts, EveryOptimizer,
                         testing::Values("sgd:lr=0.1", "sgd:lr=0.1,weight_decay=0.01",
                                         "sgd:lr=0.1,momentum=0.9", "sgd:lr=0.7,momentum=0.9,nesterov",
                                         "sgd:lr=0.1,momentum=0.9,nesterov,weight_decay=0.001",
                                         "adam:lr=0.001", "adam:lr=0.01,beta1=0.5,beta2=0.9,weight_decay=0.1",
                                         "adamw:lr=0.001",
                                         "adamw:lr=0.01,beta1=0,eps=1e-3,weight_decay=0.1"));

// Uneven chunks, in a new order every round, against the reference.
TEST_P(EveryOptimizer, AgreesWithPlainDoubleLoopsOverManyRounds) {
  constexpr size_t kCount = 83;
  const uint64_t seed = 20;
  Random random(seed);
  const OptimizerSpec spec = *ParseOptimizer(GetParam());
  auto optimizer = MakeOptimizer(spec, kCount);
  Reference reference(spec, kCount);
  Values w(kCount), next(kCount), gradient(kCount);
  for (float& value : w) value = static_cast<float>(random.Normal());
  std::vector<double> exact(w.begin(), w.end());
  std::vector<std::pair<size_t, size_t>> chunks = {{0, 16}, {16, 1}, {17, 35}, {52, 31}};
  for (uint64_t step = 1; step <= 200; ++step) {
    for (float& value : gradient) value = static_cast<float>(random.Normal() * std::exp(random.Normal()));
    std::swap(chunks[random.Below(chunks.size())], chunks[random.Below(chunks.size())]);
    for (const auto& [first, length] : chunks) {
      optimizer->Step(step, first, std::span(gradient).subspan(first, length),
                      std::span(w).subspan(first, length), std::span(next).subspan(first, length));
    }
    std::swap(w, next);
    for (size_t i = 0; i < kCount; ++i)
      exact[i] = reference.Step(step, i, static_cast<double>(gradient[i]), exact[i]);
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(w[i], exact[i], 1e-4 * (1 + std::abs(exact[i])))
          << "step " << step << ", element " << i << ", seed " << seed;
    }
  }
}

TEST_P(EveryOptimizer, TheOrderOfTheChunksChangesNoBit) {
  constexpr size_t kChunk = 13, kChunks = 5;
  Random random(21);
  auto forward = Make(GetParam(), kChunk * kChunks);
  auto backward = Make(GetParam(), kChunk * kChunks);
  Values a(kChunk * kChunks, 1.0f), b = a, next_a(a.size()), next_b(a.size()), gradient(a.size());
  for (uint64_t step = 1; step <= 5; ++step) {
    for (float& value : gradient) value = static_cast<float>(random.Normal());
    const auto cut = [&](auto& values, size_t c) { return std::span(values).subspan(c * kChunk, kChunk); };
    for (size_t c = 0; c < kChunks; ++c) {
      forward->Step(step, c * kChunk, cut(gradient, c), cut(a, c), cut(next_a, c));
      const size_t r = kChunks - 1 - c;
      backward->Step(step, r * kChunk, cut(gradient, r), cut(b, r), cut(next_b, r));
    }
    std::swap(a, next_a);
    std::swap(b, next_b);
  }
  EXPECT_EQ(a, b);
}

// --- Parts of a step ---

// Of n workers with the same gradient: what the mean over all is when one of them has pushed.
TEST(PartStep, PartsWithoutMomentumAddUpToAWholeStepExactly) {
  const auto optimizer = MakeOptimizer(*ParseOptimizer("sgd:lr=0.5"), 1);
  Values w{8}, next{0};
  for (int part = 1; part <= 4; ++part) {
    optimizer->PartStep(part / 4.0, 0.25, 0, Values{1}, w, next);  // a gradient of 4
    w = next;
  }
  EXPECT_EQ(w[0], 8 - 0.5f * 4);
}

TEST(PartStep, PartsGoAsFarAsWholeStepsInTheLongRun) {
  for (const char* text : {"sgd:lr=0.01,momentum=0.9", "sgd:lr=0.01,momentum=0.9,nesterov", "adam:lr=0.01",
                           "adamw:lr=0.01,weight_decay=0"}) {
    const auto whole = MakeOptimizer(*ParseOptimizer(text), 1);
    const auto parts = MakeOptimizer(*ParseOptimizer(text), 1);
    Values a{0}, b{0}, next{0};
    constexpr int kSteps = 400;
    for (int step = 1; step <= kSteps; ++step) {
      whole->Step(static_cast<uint64_t>(step), 0, Values{2}, a, next);
      a = next;
      for (int part = 1; part <= 8; ++part) {
        parts->PartStep(step - 1 + part / 8.0, 1.0 / 8, 0, Values{2.0f / 8}, b, next);
        b = next;
      }
    }
    EXPECT_NEAR(b[0] / a[0], 1, 0.03) << text;
  }
}

TEST(PartStep, OfNoShareChangesNothing) {
  for (const char* text : {"sgd:lr=1", "sgd:lr=1,momentum=0.5", "adam:lr=1", "adamw:lr=1"}) {
    const auto optimizer = MakeOptimizer(*ParseOptimizer(text), 1);
    Values w{4}, next{0};
    optimizer->PartStep(1, 1, 0, Values{2}, w, next);
    w = next;
    const float before = optimizer->Snapshot().empty() ? 0 : optimizer->Snapshot()[0].values->span()[0];
    optimizer->PartStep(1, 0, 0, Values{0}, w, next);
    EXPECT_EQ(next, w) << text;
    if (optimizer->Snapshot().empty()) continue;
    EXPECT_EQ(optimizer->Snapshot()[0].values->span()[0], before) << text;
  }
}

// A quadratic whose gradients are one step old, by eight workers in turn: without the look-ahead it diverges,
// with a look-ahead over the delay alone as well.
TEST(PartStep, MomentumIsStableThoughGradientsAreAStepOld) {
  const auto optimizer = MakeOptimizer(*ParseOptimizer("sgd:lr=0.1,momentum=0.9"), 1);
  constexpr float kCurvature = 6;  // lr c = 0.6
  std::vector<float> seen(8, 1.0f);
  Values w{1}, next{0};
  for (int push = 0; push < 8000; ++push) {
    float& mine = seen[static_cast<size_t>(push % 8)];
    optimizer->PartStep((push + 1) / 8.0, 1.0 / 8, 0, Values{kCurvature * mine / 8}, w, next);
    w = next;
    mine = w[0];
  }
  EXPECT_LT(std::abs(w[0]), 1e-3f);
}

// Parts of a quarter in plain doubles. The values that workers get are those without a look-ahead, and k
// steps of velocity (of Adam: of the corrected mean, with the mean square of each moment).
TEST(PartStep, AgreesWithPlainDoubleLoops) {
  constexpr double kShare = 0.25, kLr = 0.01, kBeta1 = 0.9, kBeta2 = 0.99;
  const double kept = std::pow(0.9, kShare);
  const double alone = kept + std::pow(kept, 2) + std::pow(kept, 3);  // until its worker pushes again
  const double k = kShare * alone + 0.9;
  for (const char* text : {"sgd:lr=0.01,momentum=0.9", "sgd:lr=0.01,momentum=0.9,nesterov",
                           "adam:lr=0.01,beta2=0.99", "adamw:lr=0.01,beta2=0.99,weight_decay=0.1"}) {
    const OptimizerSpec spec = *ParseOptimizer(text);
    const bool sgd = spec.name() == "sgd";
    const auto optimizer = MakeOptimizer(spec, 1);
    Random random(23);
    Values w{1}, next{0};
    double plain = 1, velocity = 0, exact = 1, mean = 0, square = 0, corrected = 0;
    for (int push = 1; push <= 400; ++push) {
      const double g = 1 + random.Normal();  // of the worker
      optimizer->PartStep(push * kShare, kShare, 0, Values{static_cast<float>(kShare * g)}, w, next);
      std::swap(w, next);
      if (sgd) {
        velocity = kept * velocity + (1 - kept) / (1 - 0.9) * g;
        plain -= kLr * kShare * velocity;
        exact = plain - kLr * k * velocity;
      } else {
        mean = std::pow(kBeta1, kShare) * mean + (1 - std::pow(kBeta1, kShare)) * g;
        const double now = mean / (1 - std::pow(kBeta1, push * kShare));
        const double of_all = kShare * g * g + (1 - kShare) * now * now;
        square = std::pow(kBeta2, kShare) * square + (1 - std::pow(kBeta2, kShare)) * of_all;
        const double root = std::sqrt(square / (1 - std::pow(kBeta2, push * kShare)));
        exact -= kLr * kShare * spec.Get("weight_decay") * exact;
        exact -= kLr * (kShare * now + k * (now - corrected)) / (root + 1e-8);
        corrected = now;
      }
      ASSERT_NEAR(w[0], exact, 1e-4 * (1 + std::abs(exact))) << text << ", push " << push;
    }
  }
}

// What one worker pushes is mostly noise: by its square alone Adam would step a third as far.
TEST(PartStep, AdamsMeanSquareIsThatOfTheMeanOverAllWorkers) {
  const auto whole = Make("adam:lr=0.001", 1), parts = Make("adam:lr=0.001", 1);
  Random random(24);
  Values a{0}, b{0};
  float mean = 0;
  for (int push = 1; push <= 8 * 4000; ++push) {
    const auto pushed = static_cast<float>((0.1 + random.Normal()) / 8);
    mean += pushed;
    parts->PartStep(push / 8.0, 1.0 / 8, 0, Values{pushed}, Values(b), b);
    if (push % 8 == 0)
      whole->Step(static_cast<uint64_t>(push / 8), 0, Values{std::exchange(mean, 0.0f)}, Values(a), a);
  }
  EXPECT_NEAR(b[0] / a[0], 1, 0.15);
}

}  // namespace
}  // namespace longhaul::codec
