// Servers that die and start again with what is on their disk, in drawn runs: no acknowledged round is lost,
// nothing counts twice, all end. And that a disk that lies about it is found.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sim/cluster.h"
#include "tests/sim/memory_files.h"
#include "tests/sim/plan.h"

namespace longhaul::sim {
namespace {

using testing::ElementsAre;

std::vector<RunPlan> PlansWithRestarts(uint64_t first, size_t count) {
  std::vector<RunPlan> plans;
  for (uint64_t seed = first; plans.size() < count; ++seed) {
    RunPlan plan = DrawPlan(seed);
    if (plan.Has(FaultKind::kServerRestart)) plans.push_back(std::move(plan));
  }
  return plans;
}

class RestartsTest : public testing::TestWithParam<uint64_t> {};

TEST_P(RestartsTest, NoAcknowledgedRoundIsLostAndNothingCountsTwice) {
  uint64_t restarts = 0;
  for (const RunPlan& plan : PlansWithRestarts(GetParam(), 15)) {
    const RunResult result = RunCluster(plan);
    for (const std::string& violation : result.violations) {
      ADD_FAILURE() << violation << "\nreplay with: tools/dev sim --seed " << plan.seed;
    }
    for (const JobLedger& ledger : result.ledgers) restarts += ledger.server_restarts;
  }
  EXPECT_GE(restarts, 10u);
}

INSTANTIATE_TEST_SUITE_P(Sim, RestartsTest, testing::Values(300'001, 310'001, 320'001, 330'001));

TEST(Restarts, ADiskThatForgetsWhatItHasSyncedIsFound) {
  size_t found = 0;
  for (RunPlan plan : PlansWithRestarts(340'001, 20)) {
    plan.sabotage = Sabotage::kForgetfulDisk;
    found += RunCluster(plan).ok() ? 0 : 1;
  }
  EXPECT_GE(found, 5u);  // half of the deaths are of the process only
}

struct Disk : testing::Test {
  void Write(const std::string& path, size_t bytes, bool sync) {
    auto file = files.Create(path);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->Write(std::vector<uint8_t>(bytes, 7)).ok());
    if (sync) {
      ASSERT_TRUE((*file)->Sync().ok());
    }
  }
  std::vector<std::string> Names() { return *files.List("/d"); }
  MemoryFiles files;
  Random chance{3};
};

TEST_F(Disk, KeepsWhatIsSynced) {
  Write("/d/a", 10, true);
  ASSERT_TRUE(files.SyncDirectory("/d").ok());
  for (int times = 0; times < 20; ++times) files.Restart(chance, false);
  EXPECT_THAT(Names(), ElementsAre("a"));
  EXPECT_EQ((*files.Open("/d/a"))->size(), 10u);
}

TEST_F(Disk, MayForgetANameAndBytesThatAreNot) {
  bool name_gone = false, bytes_gone = false;
  for (int times = 0; times < 40; ++times) {
    MemoryFiles fresh;
    std::swap(files, fresh);
    Write("/d/a", 10, false);
    files.Restart(chance, false);
    name_gone |= Names().empty();
    bytes_gone |= !Names().empty() && (*files.Open("/d/a"))->size() < 10;
  }
  EXPECT_TRUE(name_gone);
  EXPECT_TRUE(bytes_gone);
}

TEST_F(Disk, KeepsAllWhenOnlyItsProcessDies) {
  Write("/d/a", 10, false);
  files.Restart(chance, true);
  EXPECT_EQ((*files.Open("/d/a"))->size(), 10u);
}

// A process dies, the next one has all that it had written, and then the machine stops.
TEST_F(Disk, KeepsWhatTheNextProcessHasSynced) {
  Write("/d/a", 10, false);
  files.Restart(chance, true);
  ASSERT_TRUE((*files.Open("/d/a"))->Sync().ok());
  ASSERT_TRUE(files.SyncDirectory("/d").ok());
  for (int times = 0; times < 20; ++times) files.Restart(chance, false);
  EXPECT_EQ((*files.Open("/d/a"))->size(), 10u);
}

TEST_F(Disk, StopsInTheMiddleOfAWrite) {
  auto file = files.Create("/d/a");
  files.StopAfter(4);
  EXPECT_FALSE((*file)->Write(std::vector<uint8_t>(10, 7)).ok());
  EXPECT_FALSE((*file)->Sync().ok());
  EXPECT_FALSE(files.Create("/d/b").ok());
  files.Restart(chance, true);
  EXPECT_EQ((*files.Open("/d/a"))->size(), 4u);
  EXPECT_THAT(Names(), ElementsAre("a"));
}

}  // namespace
}  // namespace longhaul::sim
