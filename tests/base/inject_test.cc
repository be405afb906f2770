// Points where rare events are injected: off until they are enabled, as often as asked for, and repeatable.
#include "base/inject.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>

namespace longhaul::inject {
namespace {

using ::testing::HasSubstr;

bool Often() { return LH_INJECT("test-often"); }
bool Seldom() { return LH_INJECT("test-seldom"); }

uint64_t TimesOf(const char* name) {
  const std::span<Point> points = AllPoints();
  const auto point = std::ranges::find(points, std::string_view(name), &Point::name);
  return point == points.end() ? 0 : point->times.load();
}

class InjectTest : public testing::Test {
 protected:
  ~InjectTest() override { Disable(); }

  static std::string Draws(int count) {
    std::string draws;
    for (int i = 0; i < count; ++i) draws += Often() ? 'x' : '.';
    return draws;
  }
};

TEST_F(InjectTest, NothingHappensUntilItIsEnabled) {
  EXPECT_EQ(Draws(1000), std::string(1000, '.'));
  EXPECT_FALSE(AnyEnabled());
  ASSERT_TRUE(Enable("").ok());
  EXPECT_EQ(Draws(1000), std::string(1000, '.'));
}

TEST_F(InjectTest, AsOftenAsAskedForAndOnlyThat) {
  ASSERT_TRUE(Enable("test-often=0.25,seed=7").ok());
  EXPECT_TRUE(AnyEnabled());
  const std::string draws = Draws(10'000);
  EXPECT_NEAR(static_cast<double>(std::ranges::count(draws, 'x')), 2500, 150);
  EXPECT_EQ(TimesOf("test-often"), static_cast<uint64_t>(std::ranges::count(draws, 'x')));
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(Seldom());
  ASSERT_TRUE(Enable("test-often=1").ok());
  EXPECT_EQ(Draws(1000), std::string(1000, 'x'));
  ASSERT_TRUE(Enable("all=0").ok());
  EXPECT_EQ(Draws(1000), std::string(1000, '.'));
}

TEST_F(InjectTest, OneSeedGivesOneSequence) {
  ASSERT_TRUE(Enable("all=0.5,seed=11").ok());
  const std::string first = Draws(200);
  ASSERT_TRUE(Enable("all=0.5,seed=11").ok());
  EXPECT_EQ(Draws(200), first);
  ASSERT_TRUE(Enable("all=0.5,seed=12").ok());
  EXPECT_NE(Draws(200), first);
}

TEST_F(InjectTest, WhatIsWrongIsSaidAndChangesNothing) {
  for (const char* list :
       {"test-often", "test-often=", "test-often=2", "test-often=-0.1", "test-often=nan",
        "test-often=0.5,test-missing=0.5", "seed=-1", "seed=x", "=1", "test-often=0.5,,"}) {
    const Status status = Enable(list);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << list;
    EXPECT_FALSE(AnyEnabled()) << list;
  }
  EXPECT_THAT(Enable("test-missing=0.5").message(), HasSubstr("test-seldom"));
}

}  // namespace
}  // namespace longhaul::inject
