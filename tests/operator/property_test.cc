// Random jobs, some over two clusters, under random faults: pods fail, are evicted and vanish, objects are
// deleted by hand, a cluster is away, the server moves, actions are lost, done twice or late, and the
// operator is killed between any two of them. The end is always the same.
//
//   [operator] --actions--> [API server, kubelets, controllers] --observation--> [operator]
//               lost, twice,            pods fail, are evicted,            nothing else is
//               late, cut short         vanish, find no machine            remembered
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <utility>

#include "base/random.h"
#include "operator/reconcile/pods.h"
#include "operator/reconcile/reconcile.h"
#include "tests/operator/model_cluster.h"

namespace longhaul::kube {
namespace {

constexpr int kRuns = 64 / LONGHAUL_SLOWNESS;
constexpr int kFaultySteps = 120;
constexpr int kMostSteps = 3000;  // of a second to a minute each, from the last fault to the end

class FaultyRun {
 public:
  explicit FaultyRun(uint64_t seed) : random_(seed), cluster_(DrawJob()) {
    cluster_.profile["spec"]["maxRetries"] = retries_;
    cluster_.profile["spec"]["cleanPolicy"] = NameOf(policy_);
  }

  void Go() {
    for (int step = 0; step < kFaultySteps; ++step) Step(true);
    for (const Action& late : late_) Apply(late);  // the last that a killed operator had sent
    cluster_.mutable_job()["spec"]["runPolicy"]["suspend"] = false;
    cluster_.unreachable.clear();
    for (int step = 0; step < kMostSteps && !Ended(); ++step) Step(false);
    for (int step = 0; step < 20; ++step) Step(false);
    Check();
  }

 private:
  bool Ended() const { return cluster_.IsTrue("CleanedUp"); }

  Json DrawJob() {
    Json job = JobObject();
    job["spec"]["totalGPUs"] = 3 + random_.Below(38);
    if (random_.Chance(0.5)) job["spec"]["allocation"] = {{"strategy", "Balanced"}};
    if (random_.Chance(0.3)) job["spec"]["elastic"] = {{"minNodes", 1 + random_.Below(3)}};
    elastic_ = job["spec"].contains("elastic");
    if (random_.Chance(0.4)) {
      // Sites are as they are planned: each has at least a node.
      const uint64_t total = 6 + random_.Below(30), here = 3 + random_.Below(total - 5);
      job["spec"]["totalGPUs"] = total;
      job["spec"]["server"]["expose"] = "NodePort";
      job["spec"]["sites"] =
          Json::array({{{"name", "ams"}, {"gpus", here}},
                       {{"name", "fra"}, {"gpus", total - here}, {"kubeconfigSecret", "site-fra"}}});
      sites_ = true;
    }
    suspends_ = random_.Chance(0.3);
    retries_ = static_cast<int>(random_.Below(4));
    policy_ = static_cast<CleanPolicy>(random_.Below(3));
    fails_ = random_.Chance(0.7);
    return job;
  }

  void Apply(const Action& action) {
    const JobStatus before = cluster_.status();
    (void)cluster_.Do(action);
    // Only what was seen to fail is counted, and only once.
    const JobStatus after = cluster_.status();
    for (const NodeStatus& node : after.nodes) {
      EXPECT_LE(node.retries, failed_[node.name]) << node.name;
      // A failure is no retry of its own where its server was replaced before the start. A pod that is made
      // late has the address of a server that has moved meanwhile.
      EXPECT_LE(node.retries + node.disruptions,
                failed_[node.name] + disrupted_[node.name] + moves_ + late_pods_)
          << node.name;
      EXPECT_LE(node.retries, retries_) << node.name;
    }
  }

  void Operator(bool faulty) {
    if (const Json* server = cluster_.Get("Pod/resnet-server-0")) {
      const std::string at = TextAt(*server, {"status", "hostIP"});
      moves_ += at != std::exchange(server_at_, at);
    }
    const Decision decision = Reconcile(cluster_.settings, cluster_.Observe(), cluster_.now());
    const auto does = [&](Verb verb, const char* kind) {
      return std::ranges::any_of(decision.actions, [&](const Action& action) {
        return action.verb == verb && TextAt(action.object, {"kind"}) == kind;
      });
    };
    EXPECT_FALSE(does(Verb::kDelete, "StatefulSet") && does(Verb::kCreate, "Pod"));
    for (const Action& action : decision.actions) {
      if (faulty && random_.Chance(0.05)) return;  // killed
      if (faulty && random_.Chance(0.05)) continue;
      Apply(action);
      if (faulty && random_.Chance(0.05)) Apply(action);
      if (faulty && random_.Chance(0.03)) late_.push_back(action);
    }
    if (faulty && !late_.empty() && random_.Chance(0.2)) {
      late_pods_ += late_.front().verb == Verb::kCreate && TextAt(late_.front().object, {"kind"}) == "Pod";
      Apply(late_.front());
      late_.erase(late_.begin());
    }
  }

  void Fault() {
    const auto workers = cluster_.Workers();
    if (random_.Chance(0.05)) {
      const char* objects[] = {"ConfigMap/resnet-plan", "Service/resnet-nodes", "Service/resnet-server",
                               "StatefulSet/resnet-server", "Pod/resnet-server-0"};
      cluster_.DeleteByHand(objects[random_.Below(5)]);
    }
    if (suspends_ && random_.Chance(0.05)) {
      cluster_.mutable_job()["spec"]["runPolicy"]["suspend"] = random_.Chance(0.5);
    }
    if (sites_ && random_.Chance(0.05)) {
      if (cluster_.unreachable.erase("fra") == 0) cluster_.unreachable.insert("fra");
    }
    if (Json* server = cluster_.Get("Pod/resnet-server-0"); server != nullptr && random_.Chance(0.03)) {
      (*server)["status"]["hostIP"] = "192.0.2." + std::to_string(10 + random_.Below(100));
    }
    if (workers.empty() || !random_.Chance(0.15)) return;
    const std::string name = workers[random_.Below(workers.size())];
    const PodView pod = ReadPod(*cluster_.Pod(name));
    if (pod.fate >= PodFate::kSucceeded || pod.deleting_until) return;
    switch (random_.Below(5)) {
      case 0:
        cluster_.EvictPod(name);
        break;
      case 1:
        cluster_.RemovePod(name);
        break;
      case 2:
        cluster_.DeleteByHand("Pod/" + name);
        break;
      case 3:
        if (pod.fate == PodFate::kWaiting) cluster_.BlockPod(name, "no GPU is free");
        return;
      default:
        if (!fails_ || pod.fate == PodFate::kWaiting) return;
        cluster_.EndPod(name, 1 + static_cast<int>(random_.Below(100)));
        ++failed_[name];
        return;
    }
    ++disrupted_[name];
  }

  // Machines take pods, containers start, ranks train for a while as long as all of them are there.
  void Machines(bool faulty) {
    cluster_.kubelets_alive = !faulty || random_.Chance(0.7);
    cluster_.RunControllers();
    if (Json* service = cluster_.Get("Service/resnet-public"))
      (*service)["spec"]["ports"][0]["nodePort"] = 31007;
    const JobStatus status = cluster_.status();
    for (const auto& name : cluster_.Workers()) {
      const PodView pod = ReadPod(*cluster_.Pod(name));
      if (pod.deleting_until || pod.fate >= PodFate::kSucceeded) continue;
      if (pod.fate != PodFate::kReady) {
        if (random_.Chance(0.5)) cluster_.MakeReady(name);
      } else if (status.phase == Phase::kRunning && !faulty && ++trained_[name] > 5) {
        cluster_.EndPod(name, 0);
      }
    }
  }

  void Step(bool faulty) {
    Operator(faulty);
    Machines(faulty);
    if (faulty) Fault();
    cluster_.Advance(1 + static_cast<int64_t>(random_.Below(20)));
    // One pod a node, of the plan's nodes.
    const JobStatus status = cluster_.status();
    if (status.phase == Phase::kRunning && !faulty) {
      EXPECT_LE(cluster_.Workers().size(), status.nodes.size());
    }
  }

  void Check() {
    const JobStatus status = cluster_.status();
    ASSERT_TRUE(IsTerminal(status.phase)) << "stuck: " << Dump(cluster_.job()["status"]);
    EXPECT_TRUE(Ended());
    EXPECT_TRUE(cluster_.wrong.empty()) << cluster_.wrong[0];
    if (status.phase == Phase::kFailed) {
      EXPECT_EQ(status.reason, "RetriesExhausted") << status.message;
      EXPECT_TRUE(fails_);
    } else if (!elastic_) {
      for (const NodeStatus& node : status.nodes) EXPECT_EQ(node.phase, NodePhase::kSucceeded) << node.name;
    }
    bool exhausted = false;
    for (const NodeStatus& node : status.nodes) {
      exhausted |= node.phase == NodePhase::kLost;
      EXPECT_LE(node.retries, failed_[node.name]);
    }
    EXPECT_EQ(status.IsTrue("Failed"), status.phase == Phase::kFailed);
    if (status.phase == Phase::kFailed) {
      EXPECT_TRUE(exhausted);
    }
    // What stays, by policy.
    EXPECT_NE(cluster_.Get("PersistentVolumeClaim/resnet-checkpoints"), nullptr);
    if (policy_ != CleanPolicy::kNone) {
      EXPECT_EQ(cluster_.Get("StatefulSet/resnet-server"), nullptr);
      for (const auto& name : cluster_.Workers()) {
        EXPECT_GE(ReadPod(*cluster_.Pod(name)).fate, PodFate::kSucceeded) << name << " still runs";
      }
    }
    if (policy_ == CleanPolicy::kAll && status.phase == Phase::kSucceeded) {
      EXPECT_TRUE(cluster_.Workers().empty());
    }
    // Nothing more is said once all is done.
    EXPECT_TRUE(Reconcile(cluster_.settings, cluster_.Observe(), cluster_.now()).actions.empty());
  }

  Random random_;
  bool elastic_ = false, suspends_ = false, fails_ = false, sites_ = false;
  int retries_ = 0, moves_ = 0, late_pods_ = 0;
  std::string server_at_;
  CleanPolicy policy_ = CleanPolicy::kAll;
  std::map<std::string, int> failed_, disrupted_, trained_;
  std::vector<Action> late_;
  ModelCluster cluster_;
};

TEST(S15Property, WhateverFailsNoPodIsDoubledNoJobIsStuckAndTheEndIsReached) {
  const char* given = std::getenv("LONGHAUL_SEED");
  const uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  for (uint64_t seed = first; seed < first + (given != nullptr ? 1 : kRuns); ++seed) {
    SCOPED_TRACE(testing::Message() << "LONGHAUL_SEED=" << seed
                                    << " test_operator --gtest_filter='S15Property.*'");
    FaultyRun(seed).Go();
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace longhaul::kube
