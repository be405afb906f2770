// Every named scenario: the checkers are content, and it comes out as its name says.

#include "tests/sim/scenarios.h"

#include <gtest/gtest.h>

namespace longhaul::sim {
namespace {

class ScenarioTest : public testing::TestWithParam<size_t> {};

TEST_P(ScenarioTest, HoldsTrue) {
  const Scenario& scenario = Scenarios()[GetParam()];
  const RunResult result = RunCluster(scenario.plan);
  for (const std::string& violation : result.violations) ADD_FAILURE() << violation;
  EXPECT_EQ(scenario.expect(result), "");
  if (HasFailure()) std::printf("replay with: tools/dev sim --scenario %s\n", scenario.name.c_str());
}

INSTANTIATE_TEST_SUITE_P(Sim, ScenarioTest, testing::Range(size_t{0}, Scenarios().size()),
                         [](const auto& test) { return Scenarios()[test.param].name; });

}  // namespace
}  // namespace longhaul::sim
