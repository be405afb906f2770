#include "codec/loss_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace longhaul::codec {
namespace {

using ::testing::HasSubstr;

TEST(LossPolicyNames, ComeBack) {
  for (const LossPolicy policy : kLossPolicies) {
    const auto parsed = ParseLossPolicy(LossPolicyName(policy));
    ASSERT_TRUE(parsed.ok()) << LossPolicyName(policy);
    EXPECT_EQ(*parsed, policy);
  }
}

TEST(LossPolicyNames, UnknownOnesListWhatExists) {
  for (const char* name : {"Zero", "", "magic", "shift "}) {
    const auto parsed = ParseLossPolicy(name);
    ASSERT_FALSE(parsed.ok());
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
    for (const LossPolicy policy : kLossPolicies) {
      EXPECT_THAT(parsed.status().message(), HasSubstr(std::string(LossPolicyName(policy))));
    }
  }
}

TEST(LossPolicy, OnlyTheTwoThatRememberMayLeavePartsOut) {
  for (const LossPolicy policy : kLossPolicies) {
    EXPECT_EQ(Remembers(policy), policy == LossPolicy::kResidual || policy == LossPolicy::kShift);
  }
}

}  // namespace
}  // namespace longhaul::codec
