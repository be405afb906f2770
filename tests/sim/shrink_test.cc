// A failing plan becomes as small as what makes it fail, and the edits say how.

#include "tests/sim/shrink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace longhaul::sim {
namespace {

using testing::Contains;
using testing::HasSubstr;

TEST(Shrink, LeavesNothingButWhatTheFailureNeeds) {
  RunPlan plan = DrawPlan(14);
  plan.faults.clear();
  for (uint32_t i = 0; i < 4; ++i) {
    Fault fault;
    fault.kind = i == 2 ? FaultKind::kServerKill : FaultKind::kWeather;
    plan.faults.push_back(fault);
  }
  // Fails while the server is killed and the first tensor has two chunks.
  const auto run = [](const RunPlan& tried) -> std::vector<std::string> {
    const bool fails = tried.Has(FaultKind::kServerKill) && tried.jobs[0].tensors[0].chunks >= 2;
    return fails ? std::vector<std::string>{"rank 3 took 17 s"} : std::vector<std::string>();
  };
  plan.jobs[0].tensors[0].chunks = 20;
  const Shrunk shrunk = Shrink(plan, run);
  EXPECT_EQ(shrunk.plan.jobs.size(), 1u);
  EXPECT_EQ(shrunk.plan.jobs[0].tensors.size(), 1u);
  EXPECT_EQ(shrunk.plan.jobs[0].tensors[0].chunks, 2u);
  EXPECT_EQ(shrunk.plan.jobs[0].workers, 1u);
  EXPECT_EQ(shrunk.plan.jobs[0].rounds, 1u);
  ASSERT_EQ(shrunk.plan.faults.size(), 1u);
  EXPECT_EQ(shrunk.plan.faults[0].kind, FaultKind::kServerKill);
  // The edits, read back, give the same plan.
  RunPlan again = plan;
  std::string error;
  ASSERT_TRUE(Apply(Split(Join(shrunk.edits)), &again, &error)) << error;
  EXPECT_EQ(again.ToString(), shrunk.plan.ToString());
}

TEST(Shrink, AnotherFailureIsNotTaken) {
  const RunPlan plan = QuietPlan(3);
  const auto run = [](const RunPlan& tried) -> std::vector<std::string> {
    return {tried.jobs[0].workers == 3 ? "rank 1 is lost" : "something else"};
  };
  EXPECT_EQ(Shrink(plan, run).plan.jobs[0].workers, 3u);
}

TEST(Shrink, OfARealRunTheSabotageRemains) {
  RunPlan plan = QuietPlan(4);
  plan.sabotage = Sabotage::kDoubledContribution;
  const Shrunk shrunk = Shrink(plan, [](const RunPlan& tried) { return RunCluster(tried).violations; });
  EXPECT_THAT(shrunk.violations, Contains(HasSubstr("no set of contributions")));
  EXPECT_EQ(shrunk.plan.jobs[0].workers, 1u);
  EXPECT_EQ(shrunk.plan.jobs[0].rounds, 2u);  // the second push is the doubled one
}

TEST(Shrink, WordsThatAreNoEditsAreNamed) {
  RunPlan plan = QuietPlan(2);
  std::string error;
  for (const char* wrong : {"fault=0", "workers=1.1", "chunks=0.9.1", "no-sense", "rounds=x"}) {
    EXPECT_FALSE(Apply({wrong}, &plan, &error)) << wrong;
    EXPECT_THAT(error, HasSubstr(wrong));
  }
}

}  // namespace
}  // namespace longhaul::sim
