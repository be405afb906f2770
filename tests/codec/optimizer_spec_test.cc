#include "codec/policy/optimizer.h"

#include <gtest/gtest.h>

namespace longhaul::codec {
namespace {

std::string ErrorOf(const char* text) {
  const auto spec = ParseOptimizer(text);
  return spec.ok() ? "accepted" : spec.status().message();
}

std::string Canonical(const char* text) {
  const auto spec = ParseOptimizer(text);
  return spec.ok() ? spec->ToString() : spec.status().message();
}

TEST(OptimizerSpec, TextsThatMeanTheSameGiveEqualSpecs) {
  const auto a = ParseOptimizer("sgd:lr=0.1,momentum=0.90,nesterov");
  const auto b = ParseOptimizer("sgd:nesterov,momentum=9e-1,lr=0.10");
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(*a, *b);
  EXPECT_EQ(a->ToString(), "sgd:lr=0.1,momentum=0.9,nesterov");
  EXPECT_EQ(*ParseOptimizer("adam:lr=0.001"), *ParseOptimizer("adam:eps=1e-8,beta2=0.999,lr=1e-3,beta1=0.9"));
  EXPECT_NE(*ParseOptimizer("adam:lr=0.001"), *ParseOptimizer("adamw:lr=0.001,weight_decay=0"));
}

TEST(OptimizerSpec, TheCanonicalTextSaysWhatHoldsAndParsesToTheSame) {
  EXPECT_EQ(Canonical("aggregate"), "aggregate");
  EXPECT_EQ(Canonical("sgd:lr=0.5,weight_decay=0.25"), "sgd:lr=0.5,weight_decay=0.25");
  EXPECT_EQ(Canonical("adam:lr=0.001"), "adam:lr=0.001,beta1=0.9,beta2=0.999,eps=1e-08");
  EXPECT_EQ(Canonical("adamw:lr=0.001"), "adamw:lr=0.001,beta1=0.9,beta2=0.999,eps=1e-08,weight_decay=0.01");
  EXPECT_EQ(Canonical("adamw:lr=1,weight_decay=0"),
            "adamw:lr=1,beta1=0.9,beta2=0.999,eps=1e-08,weight_decay=0")
      << "left out it would be 0.01";
  for (const char* text :
       {"aggregate", "sgd:lr=0.7,momentum=0.9,nesterov,weight_decay=1e-4", "adam:lr=3e-4,weight_decay=0.1",
        "adamw:lr=1e-3,beta1=0,beta2=0.95,weight_decay=0", "sgd:lr=0"}) {
    EXPECT_EQ(*ParseOptimizer(Canonical(text)), *ParseOptimizer(text)) << text;
  }
}

TEST(OptimizerSpec, EveryMistakeInATextIsNamed) {
  const std::pair<const char*, const char*> mistakes[] = {
      {"adagrad:lr=0.1", "unknown; known are aggregate, sgd:lr="},
      {"Adam:lr=0.1", "unknown; known are aggregate"},
      {"", "unknown; known are aggregate"},
      {"sgd", "lr is missing, for example sgd:lr=0.1"},
      {"adam:beta1=0.9", "lr is missing, for example adam:lr=0.001"},
      {"sgd:lr=fast", "lr needs a finite number"},
      {"sgd:lr=nan", "lr needs a finite number"},
      {"sgd:lr=", "lr needs a finite number, for example lr=0.1"},
      {"sgd:lr=-1", "must not be negative"},
      {"sgd:lr=1e300", "lr must be below 3.4e+38"},
      {"sgd:lr=0.1,lr=0.2", "lr is given twice"},
      {"sgd:lr=0.1,momentum=1", "momentum must be below 1"},
      {"sgd:lr=0.1,nesterov", "nesterov needs momentum"},
      {"sgd:lr=0.1,nesterov=1", "nesterov has no value"},
      {"sgd:lr=0.1,beta1=0.9", "unknown setting \"beta1\" (known: lr, momentum, nesterov, weight_decay)"},
      {"adam:lr=0.1,momentum=0.9",
       "unknown setting \"momentum\" (known: lr, beta1, beta2, eps, weight_decay)"},
      {"adam:lr=0.1,beta2=1", "beta2 must be below 1"},
      {"adamw:lr=0.1,eps=0", "eps must be above 0"},
      {"adamw:lr=0.1,eps=1e-60", "eps must be above 0"},
  };
  for (const auto& [text, words] : mistakes) {
    EXPECT_NE(ErrorOf(text).find(words), std::string::npos) << text << ": " << ErrorOf(text);
  }
}

}  // namespace
}  // namespace longhaul::codec
