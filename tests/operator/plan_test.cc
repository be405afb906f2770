// The allocator against an independent brute force, and the worked examples.
#include "operator/plan/allocation.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "base/random.h"
#include "operator/plan/job_plan.h"

namespace longhaul::kube {
namespace {

// 200,000 cases where the code is as released.
constexpr int kCases = 200'000 / LONGHAUL_SLOWNESS;

std::vector<int> Counts(const std::variant<Shares, AllocationError>& result) {
  std::vector<int> counts;
  if (const auto* shares = std::get_if<Shares>(&result)) {
    for (const Share& share : *shares) counts.push_back(share.gpus);
  }
  return counts;
}

AllocationError ErrorOf(const std::variant<Shares, AllocationError>& result) {
  const auto* error = std::get_if<AllocationError>(&result);
  return error == nullptr ? AllocationError{} : *error;
}

// All ways to give every node nothing, or min..its capacity. Of those with the fewest nodes the best one: by
// the largest counts first (packed), or by the least sum of squares and then the largest first (balanced),
// nodes in the order of their capacities.
class BruteForce {
 public:
  BruteForce(const std::vector<int>& capacities, int min, int total)
      : min_(min), total_(total), count_(capacities.size()) {
    for (size_t i = 0; i < count_; ++i) order_[i] = i;
    // Selection sort: from large to small, equal ones in their order.
    for (size_t i = 0; i < count_; ++i) {
      size_t best = i;
      for (size_t j = i + 1; j < count_; ++j) {
        if (capacities[order_[j]] > capacities[order_[best]]) best = j;
      }
      const size_t chosen = order_[best];
      for (size_t j = best; j > i; --j) order_[j] = order_[j - 1];
      order_[i] = chosen;
    }
    for (size_t i = 0; i < count_; ++i) caps_[i] = capacities[order_[i]];
    Try(0, 0, 0, 0);
  }

  Shares Best(Strategy strategy) const {
    Shares shares;
    const auto& x = strategy == Strategy::kPacked ? packed_ : balanced_;
    for (size_t i = 0; i < count_; ++i) {
      if (found_ && x[i] > 0) shares.push_back({order_[i], x[i]});
    }
    return shares;
  }
  bool found() const { return found_; }

 private:
  using X = std::array<int, 8>;

  void Try(size_t at, int sum, int nodes, int squares) {
    if (sum > total_ || (found_ && nodes > nodes_)) return;
    if (at == count_) {
      if (sum == total_) Take(nodes, squares);
      return;
    }
    for (int x = caps_[at]; x >= min_; --x) {
      x_[at] = x;
      Try(at + 1, sum + x, nodes + 1, squares + x * x);
    }
    x_[at] = 0;
    Try(at + 1, sum, nodes, squares);
  }
  void Take(int nodes, int squares) {
    if (!found_ || nodes < nodes_) {
      found_ = true;
      nodes_ = nodes;
      packed_ = balanced_ = x_;
      squares_ = squares;
      return;
    }
    if (x_ > packed_) packed_ = x_;
    if (squares < squares_ || (squares == squares_ && x_ > balanced_)) {
      squares_ = squares;
      balanced_ = x_;
    }
  }

  const int min_, total_;
  const size_t count_;
  std::array<size_t, 8> order_ = {};
  std::array<int, 8> caps_ = {};
  X x_ = {}, packed_ = {}, balanced_ = {};
  bool found_ = false;
  int nodes_ = 0, squares_ = 0;
};

TEST(S7S9Allocation, IsWhatBruteForceFinds) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  std::array<int, 4> ends = {};
  for (int i = 0; i < kCases; ++i) {
    std::vector<int> capacities(random.Below(5));
    for (int& capacity : capacities) capacity = static_cast<int>(random.Below(9));
    const int min = 1 + static_cast<int>(random.Below(4)), total = 1 + static_cast<int>(random.Below(26));
    const BruteForce brute(capacities, min, total);
    for (const Strategy strategy : {Strategy::kPacked, Strategy::kBalanced}) {
      const auto result = Allocate(capacities, min, total, strategy);
      const auto* shares = std::get_if<Shares>(&result);
      ASSERT_EQ(shares != nullptr, brute.found()) << "case " << i << ": min " << min << ", total " << total;
      if (shares == nullptr) {
        ++ends[1 + static_cast<size_t>(ErrorOf(result).problem)];
        continue;
      }
      ++ends[0];
      ASSERT_EQ(*shares, brute.Best(strategy))
          << "case " << i << ": min " << min << ", total " << total << " of "
          << testing::PrintToString(capacities) << " is " << testing::PrintToString(Counts(result));
    }
  }
  for (const int times : ends) EXPECT_GT(times, kCases / 1000) << "an end that is hardly ever reached";
}

TEST(S7S9Allocation, NamesTheNearestTotalsThatCanBeSplit) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  int named = 0;
  for (int i = 0; i < kCases / 10; ++i) {
    std::vector<int> capacities(1 + random.Below(4));
    for (int& capacity : capacities) capacity = 3 + static_cast<int>(random.Below(3));
    const int total = 3 + static_cast<int>(random.Below(14));
    const auto result = Allocate(capacities, 3, total, Strategy::kPacked);
    const AllocationError error = ErrorOf(result);
    if (!std::holds_alternative<AllocationError>(result) || error.problem != AllocationProblem::kUnsplittable)
      continue;
    ++named;
    int below = total, above = total;
    while (below > 0 && !BruteForce(capacities, 3, below).found()) --below;
    while (above < 99 && !BruteForce(capacities, 3, above).found()) ++above;
    ASSERT_EQ(error.below, below) << total << " of " << testing::PrintToString(capacities);
    ASSERT_EQ(error.above, above) << total << " of " << testing::PrintToString(capacities);
  }
  EXPECT_GT(named, 10);
}

TEST(S9NodesAreFilledInOrder, FifteenOfAtMostTenAreTenAndFive) {
  using Counted = std::vector<int>;
  EXPECT_EQ(Counts(AllocateUniform(10, 3, 15, Strategy::kPacked)), (Counted{10, 5}));
  EXPECT_EQ(Counts(AllocateUniform(10, 3, 15, Strategy::kBalanced)), (Counted{8, 7}));
  EXPECT_EQ(Counts(AllocateUniform(10, 3, 21, Strategy::kPacked)), (Counted{10, 8, 3}));
  EXPECT_EQ(Counts(AllocateUniform(10, 3, 11, Strategy::kPacked)), (Counted{8, 3}));
  EXPECT_EQ(Counts(AllocateUniform(10, 3, 10, Strategy::kBalanced)), (Counted{10}));
  EXPECT_EQ(Counts(Allocate({8, 4, 4, 2}, 3, 15, Strategy::kPacked)), (Counted{8, 4, 3}));
}

TEST(S8EveryNodeHasARing, TwoGpusAreTooFewAndTheErrorSaysHowManyAreNot) {
  const AllocationError few = ErrorOf(AllocateUniform(10, 3, 2, Strategy::kPacked));
  EXPECT_EQ(few.problem, AllocationProblem::kTooFewGpus);
  EXPECT_EQ(ReasonOf(few.problem), "TooFewGPUs");
  EXPECT_EQ(few.message, "totalGPUs is 2, and a node has at least 3 (minGPUs): ask for 3 or more");

  const auto holes = AllocateUniform(4, 3, 5, Strategy::kPacked);
  ASSERT_TRUE(std::holds_alternative<AllocationError>(holes));
  const AllocationError hole = ErrorOf(holes);
  EXPECT_EQ(hole.problem, AllocationProblem::kUnsplittable);
  EXPECT_EQ(hole.below, 4);
  EXPECT_EQ(hole.above, 6);
  EXPECT_NE(hole.message.find("ask for 4 or 6"), std::string::npos) << hole.message;

  const AllocationError full = ErrorOf(Allocate({8, 2, 2}, 3, 9, Strategy::kPacked));
  EXPECT_EQ(full.problem, AllocationProblem::kNotEnoughCapacity);
  EXPECT_NE(full.message.find("8 GPUs are free"), std::string::npos) << full.message;
}

TEST(S7S9Allocation, HolesExistOnlyBelowTwiceTheLeast) {
  for (int min = 1; min <= 6; ++min) {
    for (int max = min; max <= 14; ++max) {
      bool holes = false;
      for (int total = min; total <= 100; ++total) {
        holes |= std::holds_alternative<AllocationError>(AllocateUniform(max, min, total, Strategy::kPacked));
      }
      EXPECT_EQ(holes, max < 2 * min - 1) << "min " << min << ", max " << max;
    }
  }
}

TrainingJob JobOf(int total, std::vector<Site> sites = {}) {
  TrainingJob job;
  job.name = "resnet";
  job.spec.total_gpus = total;
  job.spec.sites = std::move(sites);
  return job;
}

NodeConfig ConfigOf(int max) {
  NodeConfig config;
  config.max_gpus = max;
  return config;
}

const PlanError& PlanErrorOf(const std::variant<JobPlan, PlanError>& result) {
  return std::get<PlanError>(result);
}

TEST(S10APlanIsKept, AndItsHashFollowsFromNodesAndScriptAlone) {
  const auto made = MakePlan(JobOf(15), ConfigOf(10), {}, "print()");
  ASSERT_TRUE(std::holds_alternative<JobPlan>(made));
  const auto& plan = std::get<JobPlan>(made);
  EXPECT_EQ(plan.nodes, (std::vector<PlannedNode>{{"resnet-node-0", "", 10}, {"resnet-node-1", "", 5}}));
  EXPECT_EQ(NodesJson(plan), R"({"nodes":[{"gpus":10,"name":"resnet-node-0","rank":0,"site":""},)"
                             R"({"gpus":5,"name":"resnet-node-1","rank":1,"site":""}]})");
  EXPECT_EQ(plan.hash, "90dcc140cde65e4c");  // the same on every machine, and after every restart
  EXPECT_EQ(std::get<JobPlan>(MakePlan(JobOf(15), ConfigOf(10), {}, "print()")), plan);
  EXPECT_NE(std::get<JobPlan>(MakePlan(JobOf(15), ConfigOf(10), {}, "print(1)")).hash, plan.hash);
  EXPECT_NE(std::get<JobPlan>(MakePlan(JobOf(16), ConfigOf(10), {}, "print()")).hash, plan.hash);

  const auto again = ParseNodesJson(NodesJson(plan));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, plan.nodes);
  for (const char* text : {"", "[]", "{\"nodes\":[]}", "{\"nodes\":[{\"rank\":1,\"name\":\"a\",\"gpus\":3}]}",
                           "{\"nodes\":[{\"rank\":0,\"name\":\"\",\"gpus\":3}]}",
                           "{\"nodes\":[{\"rank\":0,\"name\":\"a\",\"gpus\":0}]}", "{\"nodes\":[7]}"}) {
    EXPECT_FALSE(ParseNodesJson(text).ok()) << text;
  }
}

TEST(S7NodesFollowFromTheConfiguration, SitesHaveQuotasAndNodesOfTheirOwn) {
  const auto made =
      MakePlan(JobOf(15, {{.name = "ams", .gpus = 4}, {.name = "fra", .gpus = 11}}), ConfigOf(10), {}, "x");
  ASSERT_TRUE(std::holds_alternative<JobPlan>(made)) << PlanErrorOf(made).message;
  EXPECT_EQ(std::get<JobPlan>(made).nodes,
            (std::vector<PlannedNode>{
                {"resnet-node-0", "fra", 8}, {"resnet-node-1", "fra", 3}, {"resnet-node-2", "ams", 4}}));
  const auto hole =
      MakePlan(JobOf(8, {{.name = "ams", .gpus = 3}, {.name = "fra", .gpus = 5}}), ConfigOf(4), {}, "x");
  ASSERT_TRUE(std::holds_alternative<PlanError>(hole));
  EXPECT_EQ(PlanErrorOf(hole).reason, "Unsplittable");
  EXPECT_NE(PlanErrorOf(hole).message.find("site fra: 5 GPUs"), std::string::npos)
      << PlanErrorOf(hole).message;
  EXPECT_FALSE(PlanErrorOf(hole).may_pass);
}

TEST(S7NodesFollowFromTheConfiguration, DiscoveredCapacityIsWhatIsFreeAndMayCome) {
  TrainingJob job = JobOf(15);
  job.spec.capacity = Capacity::kDiscovered;
  const auto made = MakePlan(job, ConfigOf(10), {{"", 4}, {"elsewhere", 16}, {"", 16}, {"", 3}}, "x");
  ASSERT_TRUE(std::holds_alternative<JobPlan>(made)) << PlanErrorOf(made).message;
  ASSERT_EQ(std::get<JobPlan>(made).nodes.size(), 3u);
  EXPECT_EQ(std::get<JobPlan>(made).nodes[0].gpus, 9);  // 10 at most, and 3 for each that follows
  EXPECT_EQ(std::get<JobPlan>(made).nodes[2].gpus, 3);
  const auto later = MakePlan(job, ConfigOf(10), {{"", 4}}, "x");
  EXPECT_EQ(PlanErrorOf(later).reason, "NotEnoughCapacity");
  EXPECT_TRUE(PlanErrorOf(later).may_pass);
}

TEST(S7NodesFollowFromTheConfiguration, AServerHasSoManyMembers) {
  EXPECT_TRUE(std::holds_alternative<JobPlan>(MakePlan(JobOf(3072), ConfigOf(3), {}, "x")));
  EXPECT_EQ(PlanErrorOf(MakePlan(JobOf(3075), ConfigOf(3), {}, "x")).reason, "TooManyNodes");
}

}  // namespace
}  // namespace longhaul::kube
