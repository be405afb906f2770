#include "server/optimizer.h"

#include <gtest/gtest.h>

#include <vector>

namespace longhaul::server {
namespace {

std::string ErrorOf(const char* text) {
  const auto spec = ParseOptimizer(text);
  return spec.ok() ? "accepted" : spec.status().message();
}

TEST(Optimizer, TextsThatMeanTheSameGiveEqualSpecs) {
  const auto a = ParseOptimizer("sgd:lr=0.1,momentum=0.90,nesterov");
  const auto b = ParseOptimizer("sgd:nesterov,momentum=9e-1,lr=0.10");
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(*a, *b);
  EXPECT_EQ(a->ToString(), "sgd:lr=0.1,momentum=0.9,nesterov");
  EXPECT_EQ(ParseOptimizer("aggregate")->ToString(), "aggregate");
}

TEST(Optimizer, EveryMistakeInATextIsNamed) {
  EXPECT_NE(ErrorOf("adam:lr=0.1").find("unknown; known are aggregate and sgd"), std::string::npos);
  EXPECT_NE(ErrorOf("sgd").find("lr is missing"), std::string::npos);
  EXPECT_NE(ErrorOf("sgd:lr=fast").find("lr needs a finite number"), std::string::npos);
  EXPECT_NE(ErrorOf("sgd:lr=nan").find("lr needs a finite number"), std::string::npos);
  EXPECT_NE(ErrorOf("sgd:lr=-1").find("must not be negative"), std::string::npos);
  EXPECT_NE(ErrorOf("sgd:lr=0.1,momentum=1").find("momentum must be below 1"), std::string::npos);
  EXPECT_NE(ErrorOf("sgd:lr=0.1,nesterov").find("nesterov needs momentum"), std::string::npos);
  EXPECT_NE(ErrorOf("sgd:lr=0.1,beta=2").find("unknown setting \"beta\""), std::string::npos);
}

TEST(Optimizer, AggregateHandsTheMeanOn) {
  auto optimizer = MakeOptimizer(OptimizerSpec{}, 2);
  std::vector<float> updated(2);
  optimizer->Step(0, std::vector<float>{3, -4}, std::vector<float>{100, 100}, updated);
  EXPECT_EQ(updated, (std::vector<float>{3, -4}));
}

TEST(Optimizer, SgdWithMomentumStepsAsWrittenDownByHand) {
  auto optimizer = MakeOptimizer(*ParseOptimizer("sgd:lr=0.5,momentum=0.5"), 3);
  std::vector<float> w = {1}, next(1);
  optimizer->Step(2, std::vector<float>{2}, w, next);  // v = 2, w = 1 - 0.5 * 2
  EXPECT_EQ(next[0], 0.0f);
  w = next;
  optimizer->Step(2, std::vector<float>{2}, w, next);  // v = 1 + 2, w = 0 - 0.5 * 3
  EXPECT_EQ(next[0], -1.5f);
  w = next;
  optimizer->Step(1, std::vector<float>{2}, w, next);  // another element has its own velocity
  EXPECT_EQ(next[0], -2.5f);
}

TEST(Optimizer, NesterovLooksAheadAndWeightDecayPullsToZero) {
  auto nesterov = MakeOptimizer(*ParseOptimizer("sgd:lr=0.5,momentum=0.5,nesterov"), 1);
  std::vector<float> next(1);
  nesterov->Step(0, std::vector<float>{2}, std::vector<float>{1}, next);  // 1 - 0.5 * (2 + 0.5 * 2)
  EXPECT_EQ(next[0], -0.5f);
  auto decay = MakeOptimizer(*ParseOptimizer("sgd:lr=0.5,weight_decay=0.25"), 1);
  decay->Step(0, std::vector<float>{0}, std::vector<float>{8}, next);  // 8 - 0.5 * 0.25 * 8
  EXPECT_EQ(next[0], 7.0f);
}

}  // namespace
}  // namespace longhaul::server
