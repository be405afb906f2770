// The life of a job, step by step, against a model of an API server.
#include "operator/reconcile/reconcile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "operator/reconcile/commands.h"
#include "operator/reconcile/objects.h"
#include "operator/resource/timestamps.h"
#include "tests/operator/model_cluster.h"

namespace longhaul::kube {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

Json Job(const std::function<void(Json&)>& change = [](Json&) {}) {
  Json job = JobObject();
  change(job["spec"]);
  return job;
}

// Ten GPUs at home, and five in another cluster.
Json TwoSites(const char* expose) {
  return Job([&](Json& spec) {
    spec["server"]["expose"] = expose;
    spec["sites"] = Json::array(
        {{{"name", "ams"}, {"gpus", 10}}, {{"name", "fra"}, {"gpus", 5}, {"kubeconfigSecret", "site-fra"}}});
  });
}

// To where all nodes train.
void Start(ModelCluster* cluster) {
  cluster->Settle();
  cluster->MakeReady();
  cluster->Settle();
}

size_t CountOf(const Decision& decision, Verb verb, const std::string& kind = "") {
  size_t count = 0;
  for (const Action& action : decision.actions) {
    count += action.verb == verb && (kind.empty() || TextAt(action.object, {"kind"}) == kind);
  }
  return count;
}

std::string CommandOf(const Json& object, size_t container) {
  std::string line;
  for (const Json& word : object["spec"]["containers"][container]["command"])
    line += word.get<std::string>() + " ";
  return line;
}

TEST(S7S9S10Reconcile, FifteenGpusAreTwoPodsOfTenAndFiveAndAConfigMap) {
  ModelCluster cluster(Job());
  Start(&cluster);
  EXPECT_EQ(cluster.status().phase, Phase::kRunning) << cluster.status().message;
  EXPECT_EQ(cluster.status().ready_nodes, "2/2");
  EXPECT_EQ(cluster.status().requester, "ada");
  EXPECT_THAT(cluster.Workers(), ElementsAre("resnet-node-0", "resnet-node-1"));
  for (const auto& [name, gpus] : {std::pair{"resnet-node-0", "10"}, {"resnet-node-1", "5"}}) {
    const Json& trainer = (*cluster.Get(std::string("Pod/") + name))["spec"]["containers"][1];
    EXPECT_EQ(trainer["resources"]["limits"]["nvidia.com/gpu"], gpus);
  }
  const Json* map = cluster.Get("ConfigMap/resnet-plan");
  ASSERT_NE(map, nullptr);
  EXPECT_EQ((*map)["immutable"], true);
  EXPECT_EQ((*map)["data"]["script"], "#!/usr/bin/python3\nprint()\n");
  EXPECT_EQ((*map)["data"]["planHash"], cluster.status().plan_hash);
  EXPECT_THAT((*map)["data"]["nodes.json"].get<std::string>(), HasSubstr("resnet-node-1"));
  EXPECT_EQ((*map)["metadata"]["ownerReferences"][0]["uid"], "uid-of-resnet");
  EXPECT_NE(cluster.Get("PersistentVolumeClaim/resnet-checkpoints"), nullptr);
  EXPECT_EQ((*cluster.Get("Service/resnet-nodes"))["spec"]["publishNotReadyAddresses"], true);
  EXPECT_NE(cluster.Get("Secret/resnet-key"), nullptr);
  EXPECT_TRUE(cluster.wrong.empty()) << cluster.wrong[0];
}

TEST(S10Reconcile, TheScriptMayComeFromAConfigMapWhichIsWaitedFor) {
  ModelCluster cluster(Job([](Json& spec) {
    spec["script"] = {{"configMapRef", {{"name", "scripts"}, {"key", "train.py"}}}};
  }));
  cluster.Settle();
  EXPECT_EQ(cluster.status().phase, Phase::kPending);
  EXPECT_THAT(cluster.status().Find("Planned")->message, HasSubstr("entry train.py of ConfigMap scripts"));
  cluster.script_map = Json{{"data", {{"train.py", "import longhaul"}}}};
  Start(&cluster);
  EXPECT_EQ(cluster.status().phase, Phase::kRunning);
  EXPECT_EQ((*cluster.Get("ConfigMap/resnet-plan"))["data"]["script"], "import longhaul");
  EXPECT_THAT(CommandOf(*cluster.Get("Pod/resnet-node-0"), 1), HasSubstr("python3 /longhaul/plan/script"));
  // Gone, with another script by now: pods must not run two programs at once.
  cluster.script_map = Json{{"data", {{"train.py", "import other"}}}};
  cluster.DeleteByHand("ConfigMap/resnet-plan");
  Start(&cluster);
  EXPECT_EQ(cluster.status().attempt, 2);
  EXPECT_THAT(cluster.created["resnet-node-0"], ElementsAre(1, 2));
}

TEST(S10Reconcile, APlanThatWasTamperedWithIsReplaced) {
  ModelCluster cluster(Job());
  Start(&cluster);
  (*cluster.Get("ConfigMap/resnet-plan"))["data"]["script"] = "#!/bin/sh\ncurl evil";
  Start(&cluster);
  EXPECT_EQ((*cluster.Get("ConfigMap/resnet-plan"))["data"]["script"], "#!/usr/bin/python3\nprint()\n");
  EXPECT_EQ(cluster.status().attempt, 1);
  EXPECT_EQ(cluster.status().phase, Phase::kRunning);
}

// The flags are those of longhaul-server --help, longhaul-offload --help and longhaul-worker --help.
TEST(S12S13S17Reconcile, PodsRunARingAndOneConnectionWithTheWeightOfTheirGpus) {
  ModelCluster cluster(Job());
  Start(&cluster);
  const Json& pod = *cluster.Get("Pod/resnet-node-1");
  EXPECT_EQ(
      CommandOf(pod, 0),
      "longhaul-offload --listen /run/longhaul/site.sock --nodes 5 --ranks-per-node 1 --server "
      "resnet-server.team.svc:7700 --rank 1 --world-size 2 --job resnet --incarnation 1 --weight 5 --key "
      "/etc/longhaul/key/job.key --datagram-size 1200 --connect-timeout 1800 --wait-timeout 1800 "
      "--reconnect-timeout 600 --metrics 0.0.0.0:9465 --progress json ");
  EXPECT_EQ(CommandOf(pod, 1),
            "longhaul-worker --offload unix:/run/longhaul/site.sock --ranks 5 --restarts 1 -- env -u "
            "LONGHAUL_SITE_RANK /longhaul/plan/script ");
  const Json& set = *cluster.Get("StatefulSet/resnet-server");
  EXPECT_EQ(CommandOf(set["spec"]["template"], 0),
            "longhaul-server --listen 0.0.0.0:7700 --workers 2 --min-workers 1 --min-incarnation 1 "
            "--start-workers 0 --job "
            "resnet --key "
            "/etc/longhaul/key/job.key --checkpoint-dir /checkpoints/job --round-log --max-weight-share 1 "
            "--once --datagram-size 1200 "
            "--max-load-generators 0 --metrics 0.0.0.0:9464 --progress json ");
  EXPECT_EQ((*cluster.Get("Secret/resnet-key"))["stringData"]["job.key"],
            "longhaul-psk-v1\njob = resnet\npsk = " + std::string(64, 'a') + "\n");
}

TEST(S13Reconcile, ARingHasSixteenPlacesAndBeyondOneEngineAddsUpAll) {
  ModelCluster cluster(Job([](Json& spec) { spec["totalGPUs"] = 17; }));
  cluster.profile["spec"]["maxGPUs"] = 20;
  Start(&cluster);
  const Json& pod = *cluster.Get("Pod/resnet-node-0");
  EXPECT_THAT(CommandOf(pod, 0), HasSubstr("--nodes 1 --ranks-per-node 17"));
  EXPECT_THAT(CommandOf(pod, 1), HasSubstr("--ranks 17 --restarts 1 -- /longhaul/plan/script"));
}

TEST(S6Reconcile, NothingRunsAsRootOrWithAToken) {
  ModelCluster cluster(Job());
  Start(&cluster);
  const Json& server = (*cluster.Get("StatefulSet/resnet-server"))["spec"]["template"]["spec"];
  const Json& worker = (*cluster.Get("Pod/resnet-node-0"))["spec"];
  for (const Json* spec : std::vector<const Json*>{&worker, &server}) {
    EXPECT_EQ(At(*spec, {"automountServiceAccountToken"}), false);
    EXPECT_EQ(At(*spec, {"securityContext", "runAsNonRoot"}), true);
    EXPECT_EQ(At(*spec, {"securityContext", "seccompProfile", "type"}), "RuntimeDefault");
    EXPECT_EQ(At(*spec, {"serviceAccountName"}), nullptr);
    for (const char* list : {"initContainers", "containers"}) {
      for (const Json& container : At(*spec, {list})) {
        EXPECT_EQ(At(container, {"securityContext", "privileged"}), false);
        EXPECT_EQ(At(container, {"securityContext", "allowPrivilegeEscalation"}), false);
        EXPECT_EQ(At(container, {"securityContext", "capabilities"}), Json({{"drop", Json::array({"ALL"})}}));
        EXPECT_EQ(At(container, {"securityContext", "readOnlyRootFilesystem"}), true);
      }
    }
  }
  const Json& pod = (*cluster.Get("Pod/resnet-node-0"))["spec"];
  EXPECT_EQ(pod["restartPolicy"], "Never");
  EXPECT_EQ(pod["subdomain"], "resnet-nodes");
  // The engine's container is the first, and is waited for.
  EXPECT_EQ(pod["containers"][0]["name"], "engine");
  EXPECT_TRUE(pod["containers"][0]["lifecycle"].contains("postStart"));
  EXPECT_THAT(Dump(pod["containers"][1]["volumeMounts"]),
              HasSubstr(R"("mountPath":"/data","name":"longhaul-data")"));
  EXPECT_THAT(Dump(pod["containers"][1]["volumeMounts"]),
              HasSubstr(R"("mountPath":"/tmp","name":"longhaul-tmp")"));
  EXPECT_THAT(Dump(pod["volumes"]), HasSubstr(R"({"emptyDir":{},"name":"longhaul-tmp"})"));
  EXPECT_THAT(Dump(pod["initContainers"][0]["command"]), HasSubstr("0600"));
}

TEST(S2Reconcile, ATemplatesFieldsReachThePodAndOursStay) {
  ModelCluster cluster(Job([](Json& spec) {
    spec["sites"] = Json::array({{{"name", "west"}, {"gpus", 15}, {"nodeSelector", {{"zone", "west"}}}}});
  }));
  cluster.profile["spec"]["nodeTemplate"] = {
      {"metadata", {{"labels", {{"team", "vision"}}}}},
      {"spec",
       {{"serviceAccountName", "gpu"},
        {"nodeSelector", {{"accelerator", "a100"}}},
        {"containers", Json::array({{{"name", "trainer"},
                                     {"command", Json::array({"/opt/train"})},
                                     {"args", Json::array({"--fast"})},
                                     {"resources", {{"limits", {{"memory", "64Gi"}}}}}}})}}}};
  Start(&cluster);
  const Json& pod = *cluster.Get("Pod/resnet-node-0");
  EXPECT_EQ(pod["metadata"]["labels"]["team"], "vision");
  EXPECT_EQ(pod["metadata"]["labels"][kRoleLabel], "worker");
  EXPECT_EQ(pod["spec"]["serviceAccountName"], "gpu");  // the profile's, not the job's
  EXPECT_EQ(pod["spec"]["automountServiceAccountToken"], false);
  EXPECT_EQ(pod["spec"]["nodeSelector"], Json({{"accelerator", "a100"}, {"zone", "west"}}));
  EXPECT_THAT(CommandOf(pod, 1), HasSubstr("-- env -u LONGHAUL_SITE_RANK /opt/train --fast"));
  EXPECT_THAT(CommandOf(pod, 0), HasSubstr("--site west"));
  EXPECT_EQ(pod["spec"]["containers"][1]["resources"]["limits"],
            Json({{"memory", "64Gi"}, {"nvidia.com/gpu", "10"}}));
}

TEST(S6Reconcile, AProfileLoosensWhatItNamesAndNothingElse) {
  const auto trainer = [](const Json& context) {
    ModelCluster cluster(Job());
    cluster.profile["spec"]["nodeTemplate"]["spec"]["containers"] =
        Json::array({{{"securityContext", context}}});
    Start(&cluster);
    return (*cluster.Get("Pod/resnet-node-0"))["spec"]["containers"][1]["securityContext"];
  };
  Json strict = trainer(nullptr);
  EXPECT_EQ(trainer(Json::object()), strict);
  EXPECT_EQ(trainer({{"capabilities", nullptr}}), strict) << "null is nothing to an API server";
  EXPECT_EQ(trainer({{"capabilities", Json::object()}}), strict);
  const Json loosened =
      trainer({{"readOnlyRootFilesystem", false}, {"capabilities", {{"add", {"IPC_LOCK"}}}}});
  strict["readOnlyRootFilesystem"] = false;
  strict["capabilities"]["add"] = {"IPC_LOCK"};
  EXPECT_EQ(loosened, strict);

  ModelCluster cluster(Job());
  Json& pod = cluster.profile["spec"]["nodeTemplate"]["spec"];
  pod["securityContext"] = {{"seccompProfile", {{"type", "Unconfined"}}}};
  pod["volumes"] = Json::array({{{"name", "scratch"}, {"emptyDir", Json::object()}}});
  pod["containers"] =
      Json::array({{{"volumeMounts", Json::array({{{"name", "scratch"}, {"mountPath", "/tmp"}}})}}});
  Start(&cluster);
  const Json& worker = (*cluster.Get("Pod/resnet-node-0"))["spec"];
  EXPECT_EQ(worker["securityContext"]["seccompProfile"]["type"], "Unconfined");
  EXPECT_EQ(worker["securityContext"]["runAsNonRoot"], true);
  EXPECT_EQ(Dump(worker["containers"][1]["volumeMounts"]).find("longhaul-tmp"), std::string::npos);
  const Json& server = (*cluster.Get("StatefulSet/resnet-server"))["spec"]["template"]["spec"];
  EXPECT_EQ(server["securityContext"]["seccompProfile"]["type"], "RuntimeDefault") << "a profile is of nodes";
}

// What the container `key` ends with, run in a folder of the test where the Secret has this text; "": it has
// no such entry.
int CopyKey(const Json& pod, const std::string& secret) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(::testing::TempDir()) / ("copy_key_" + std::to_string(::getpid()));
  fs::create_directories(folder / "secret");
  fs::create_directories(folder / "key");
  std::string script = At(pod, {"initContainers"})[0]["command"][2];
  for (size_t at = 0; (at = script.find("/etc/longhaul")) != std::string::npos;)
    script.replace(at, 13, folder.string());
  std::ofstream(folder / "script") << script;
  if (!secret.empty()) std::ofstream(folder / "secret/job.key") << secret;
  const int status = std::system(("/bin/sh " + (folder / "script").string() + " >/dev/null 2>&1").c_str());
  const bool copied = WEXITSTATUS(status) != 0 || fs::status(folder / "key/job.key").permissions() ==
                                                      (fs::perms::owner_read | fs::perms::owner_write);
  fs::remove_all(folder);
  EXPECT_TRUE(copied);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(S6Reconcile, ASecretThatIsAnothersGivesNoKey) {
  ModelCluster cluster(Job());
  Start(&cluster);
  const std::string key = (*cluster.Get("Secret/resnet-key"))["stringData"]["job.key"];
  std::string other = key;
  other.replace(other.find("psk = aaa"), 9, "psk = bbb");
  for (const Json& pod : {(*cluster.Get("StatefulSet/resnet-server"))["spec"]["template"]["spec"],
                          (*cluster.Get("Pod/resnet-node-0"))["spec"]}) {
    EXPECT_EQ(CopyKey(pod, key), 0);
    EXPECT_EQ(CopyKey(pod, other), 78);
    EXPECT_EQ(CopyKey(pod, ""), 78);
    EXPECT_EQ(Dump(pod).find(std::string(64, 'a')), std::string::npos)
        << "the key itself is in no pod's command";
  }
}

TEST(S5Reconcile, ANameOfASecretThatIsTakenIsSaidWithTheRemedy) {
  ModelCluster cluster(Job());
  for (int i = 0; i < 50 && cluster.Get("StatefulSet/resnet-server") == nullptr; ++i)
    (void)cluster.Reconciled();
  cluster.RunControllers();
  (*cluster.Get("StatefulSet/resnet-server"))["status"]["readyReplicas"] = 0;
  Json& pod = *cluster.Get("Pod/resnet-server-0");
  const auto try_key = [&](const char* when, int exit_code) {
    pod["status"] = {{"phase", "Pending"},
                     {"initContainerStatuses",
                      Json::array({{{"name", "key"}, {when, {{"terminated", {{"exitCode", exit_code}}}}}}})}};
    (void)cluster.Reconciled();
    return *cluster.status().Find("ServerReady");
  };
  EXPECT_EQ(try_key("state", 1).reason, "NotReady") << "another trouble";
  for (const char* when : {"state", "lastState"}) {
    const Condition ready = try_key(when, 78);
    EXPECT_EQ(ready.status, ConditionStatus::kFalse);
    EXPECT_EQ(ready.reason, "NameTaken");
    EXPECT_EQ(
        ready.message,
        "Secret resnet-key is there already and its key is not this job's: delete it (kubectl delete secret "
        "resnet-key -n team), and the operator makes it");
  }
  EXPECT_EQ(cluster.Saw("NameTaken"), cluster.status().Find("ServerReady")->message);
  EXPECT_TRUE(cluster.Workers().empty());
  EXPECT_EQ(CountOf(cluster.Reconciled(), Verb::kEvent), 0u) << "said once";
  // It is deleted, and made.
  cluster.DeleteByHand("Secret/resnet-key");
  (void)cluster.Reconciled();
  EXPECT_NE(cluster.Get("Secret/resnet-key"), nullptr);
  EXPECT_EQ(try_key("state", 0).reason, "NotReady");
  cluster.Settle();
  EXPECT_EQ(cluster.status().Find("ServerReady")->reason, "Ready");
}

TEST(S15Reconcile, ANextPodFindsItsKeyAlsoWhereTheSecretHasGone) {
  ModelCluster cluster(Job());
  Start(&cluster);
  cluster.DeleteByHand("Secret/resnet-key");
  (*cluster.Get("Pod/resnet-node-1"))["status"] = {
      {"phase", "Failed"},
      {"initContainerStatuses",
       Json::array({{{"name", "key"}, {"state", {{"terminated", {{"exitCode", 78}}}}}}})}};
  cluster.Settle();
  EXPECT_THAT(cluster.Saw("NodeFailed"), HasSubstr("resnet-node-1: Secret resnet-key is there already"));
  cluster.Advance(2);
  cluster.Settle();
  EXPECT_EQ(cluster.created["resnet-node-1"].size(), 2u);
  EXPECT_NE(cluster.Get("Secret/resnet-key"), nullptr);
}

TEST(S6Reconcile, PermissionIsAskedForAndRemembered) {
  ModelCluster cluster(Job());
  cluster.permission = Permission::kUnknown;
  const Decision asks = cluster.Reconciled();
  EXPECT_EQ(CountOf(asks, Verb::kCreate), 0u);
  EXPECT_TRUE(asks.requeue_after.has_value());
  EXPECT_EQ(cluster.status().phase, Phase::kPending);
  cluster.permission = Permission::kAllowed;
  Start(&cluster);
  EXPECT_TRUE(cluster.IsTrue("Authorized"));
  cluster.permission = Permission::kUnknown;  // the cache has forgotten it: the job goes on
  cluster.Settle();
  EXPECT_EQ(cluster.status().phase, Phase::kRunning);
  EXPECT_TRUE(cluster.IsTrue("Authorized"));
}

TEST(S6Reconcile, ARequesterThatIsNotProvenIsNotShown) {
  ModelCluster cluster(Job());
  cluster.permission = Permission::kDenied;
  cluster.permission_message = "the job lacks the stamp";
  cluster.Settle();
  EXPECT_EQ(cluster.status().reason, "Unauthorized");
  EXPECT_EQ(cluster.status().message, "the job lacks the stamp");
  EXPECT_EQ(cluster.status().requester, "");
}

TEST(S6Reconcile, AUserWithoutTheRightIsRefusedByName) {
  ModelCluster cluster(Job());
  cluster.permission = Permission::kDenied;
  cluster.Settle();
  EXPECT_EQ(cluster.status().phase, Phase::kFailed);
  EXPECT_EQ(cluster.status().reason, "Unauthorized");
  EXPECT_THAT(cluster.status().message, HasSubstr("ada may not use trainingprofiles/a100"));
  EXPECT_EQ(cluster.Get("ConfigMap/resnet-plan"), nullptr);
  EXPECT_TRUE(cluster.Workers().empty());
}

TEST(S7Reconcile, TotalsThatCannotBeSplitFailByName) {
  for (const auto& [total, reason, remedy] :
       {std::tuple{2, "TooFewGPUs", "ask for 3 or more"}, {5, "Unsplittable", "ask for 4 or 6"}}) {
    ModelCluster cluster(Job([total = total](Json& spec) { spec["totalGPUs"] = total; }));
    cluster.profile["spec"]["maxGPUs"] = 4;
    cluster.Settle();
    EXPECT_EQ(cluster.status().phase, Phase::kFailed);
    EXPECT_EQ(cluster.status().reason, reason);
    EXPECT_THAT(cluster.status().message, HasSubstr(remedy));
    EXPECT_EQ(cluster.Saw(reason), cluster.status().message);
  }
}

TEST(S2Reconcile, ABadTemplateAndABadSpecFailAndAMissingProfileIsWaitedFor) {
  ModelCluster host(Job([](Json& spec) {
    spec.erase("profileRef");
    spec["node"] = {{"maxGPUs", 10}, {"nodeTemplate", {{"spec", {{"hostNetwork", true}}}}}};
  }));
  host.Settle();
  EXPECT_EQ(host.status().reason, "BadTemplate");
  EXPECT_THAT(host.status().message, HasSubstr("spec.node.nodeTemplate.spec.hostNetwork"));

  ModelCluster exposed(Job([](Json& spec) { spec["server"]["expose"] = "HostNetwork"; }));
  exposed.Settle();
  EXPECT_EQ(exposed.status().reason, "BadTemplate");

  ModelCluster bad(Job([](Json& spec) { spec["image"] = ""; }));
  bad.Settle();
  EXPECT_EQ(bad.status().reason, "InvalidSpec");
  EXPECT_THAT(bad.status().message, HasSubstr("spec.image"));

  ModelCluster missing(Job());
  const Json profile = std::exchange(missing.profile, nullptr);
  missing.Settle();
  EXPECT_EQ(missing.status().phase, Phase::kPending);
  EXPECT_THAT(missing.status().Find("Planned")->message, HasSubstr("TrainingProfile a100: there is none"));
  missing.profile = profile;
  Start(&missing);
  EXPECT_EQ(missing.status().phase, Phase::kRunning);
}

TEST(S2Reconcile, AJobThatTrainsGoesOnWithoutItsProfileAndMakesNoPodUntilItIsBack) {
  ModelCluster cluster(Job());
  Start(&cluster);
  const Json profile = std::exchange(cluster.profile, Json());
  cluster.EndPod("resnet-node-1", 1);
  cluster.Settle();
  EXPECT_EQ(cluster.status().nodes[1].retries, 1);
  EXPECT_EQ(cluster.status().phase, Phase::kRestarting);
  EXPECT_EQ(cluster.status().Find("Degraded")->reason, "ProfileNotFound");
  EXPECT_THAT(cluster.status().Find("Degraded")->message, HasSubstr("TrainingProfile a100"));
  EXPECT_TRUE(cluster.IsTrue("Planned"));
  EXPECT_THAT(cluster.created["resnet-node-1"], ElementsAre(1)) << "of which template?";
  ModelCluster suspended = cluster, finishes = cluster;
  cluster.profile = profile;
  Start(&cluster);
  EXPECT_EQ(cluster.status().phase, Phase::kRunning);
  EXPECT_FALSE(cluster.IsTrue("Degraded"));
  EXPECT_THAT(cluster.created["resnet-node-1"], ElementsAre(1, 2));
  cluster.profile["spec"]["maxGPUs"] = "ten";
  (void)cluster.Reconciled();
  EXPECT_EQ(cluster.status().Find("Degraded")->reason, "InvalidProfile");
  cluster.EndPod("resnet-node-0", 0);
  cluster.EndPod("resnet-node-1", 0);
  cluster.Settle();
  EXPECT_EQ(cluster.status().phase, Phase::kSucceeded) << "an end takes no profile";
  EXPECT_FALSE(cluster.IsTrue("Degraded"));
  suspended.mutable_job()["spec"]["runPolicy"] = {{"suspend", true}};
  suspended.Settle();
  EXPECT_EQ(suspended.status().phase, Phase::kSuspended);
  EXPECT_THAT(suspended.Workers(), ElementsAre());
  suspended.profile = profile;
  suspended.Settle();
  EXPECT_FALSE(suspended.IsTrue("Degraded"));
  EXPECT_THAT(finishes.Saw("NodeFailed"), HasSubstr("(retry 1)"));
  finishes.profile = profile;
  finishes.profile["spec"]["maxRetries"] = 0;
  Start(&finishes);
  EXPECT_EQ(finishes.status().phase, Phase::kRunning);
  finishes.EvictPod("resnet-node-1");
  Start(&finishes);
  EXPECT_EQ(finishes.status().phase, Phase::kRunning)
      << "a disruption has no limit, whatever the profile says now";
  finishes.EndPod("resnet-node-1", 1);
  finishes.Settle();
  EXPECT_EQ(finishes.status().reason, "RetriesExhausted");
}

TEST(S2Reconcile, WithoutItsProfileAJobsServerIsNotReplacedAndNotGivenUp) {
  ModelCluster cluster(Job());
  Start(&cluster);
  cluster.EvictPod("resnet-node-1");
  cluster.Settle();
  cluster.BlockPod("resnet-node-1", "no GPU is free");
  const Json profile = std::exchange(cluster.profile, Json());
  cluster.Advance(400);
  cluster.Settle();
  EXPECT_EQ(cluster.status().attempt, 1) << "no gang is released that could not be made";
  cluster.DeleteByHand("StatefulSet/resnet-server");
  cluster.Advance(3600);
  cluster.Settle();
  cluster.Advance(3600);
  cluster.Settle();
  EXPECT_EQ(cluster.status().phase, Phase::kRestarting);
  EXPECT_EQ(cluster.Get("StatefulSet/resnet-server"), nullptr);
  cluster.profile = profile;
  cluster.Reconciled();
  EXPECT_EQ(cluster.status().phase, Phase::kRestarting) << "its server has 15 minutes from now on";
  Start(&cluster);
  EXPECT_NE(cluster.Get("StatefulSet/resnet-server"), nullptr);
  EXPECT_FALSE(IsTerminal(cluster.status().phase)) << cluster.status().message;
}

TEST(S2Reconcile, AProfileThatGivesNoHostNetworkAnyMoreStopsNoJob) {
  ModelCluster cluster(Job([](Json& spec) { spec["server"]["expose"] = "HostNetwork"; }));
  cluster.profile["spec"]["nodeTemplate"] = {{"spec", {{"hostNetwork", true}}}};
  Start(&cluster);
  ASSERT_EQ(cluster.status().phase, Phase::kRunning) << cluster.status().message;
  cluster.profile["spec"].erase("nodeTemplate");
  cluster.Settle();
  EXPECT_EQ(cluster.status().phase, Phase::kRunning);
  EXPECT_EQ(cluster.status().Find("Degraded")->reason, "InvalidProfile");
}

TEST(S12Reconcile, TheRoundsOfAJobThatTrainsAreAskedForAgain) {
  ModelCluster cluster(Job());
  Start(&cluster);
  ASSERT_EQ(cluster.status().phase, Phase::kRunning);
  EXPECT_LE(cluster.Reconciled().requeue_after.value_or(std::chrono::hours(1)), std::chrono::seconds(30));
}

TEST(S11Reconcile, StartsOnlyWhenTheServerAndEveryNodeAreReady) {
  ModelCluster cluster(Job());
  for (int i = 0; i < 4; ++i) cluster.Reconciled();  // without controllers: the server never becomes ready
  EXPECT_TRUE(cluster.Workers().empty()) << "a pod without a server would fail, and count";
  EXPECT_FALSE(cluster.IsTrue("ServerReady"));
  cluster.Settle();
  EXPECT_EQ(cluster.Workers().size(), 2u);
  EXPECT_EQ(cluster.status().phase, Phase::kStarting);
  cluster.MakeReady();
  (*cluster.Get("Pod/resnet-node-1"))["status"]["conditions"][1]["status"] = "False";
  cluster.Settle();
  EXPECT_EQ(cluster.status().phase, Phase::kStarting);
  EXPECT_EQ(cluster.status().ready_nodes, "1/2");
  EXPECT_FALSE(cluster.IsTrue("Started"));
  cluster.MakeReady();
  cluster.Settle();
  EXPECT_EQ(cluster.status().phase, Phase::kRunning);
  EXPECT_TRUE(cluster.status().start_time.has_value());
}

TEST(S11Reconcile, AStatusWithoutNodesIsNeverAllReady) {
  // 0 of 0 nodes are ready: other hands took the nodes out of the status.
  ModelCluster cluster(Job());
  cluster.Settle();
  cluster.mutable_job()["status"].erase("nodes");
  cluster.Settle();
  EXPECT_FALSE(cluster.IsTrue("Started"));
  EXPECT_EQ(cluster.status().nodes.size(), 2u) << "planned anew";
  Start(&cluster);
  EXPECT_EQ(cluster.status().phase, Phase::kRunning);
  EXPECT_TRUE(cluster.wrong.empty()) << cluster.wrong[0];
}

TEST(S11Reconcile, TheStartDeadlineSaysWhatWasMissing) {
  ModelCluster cluster(Job([](Json& spec) { spec["runPolicy"] = {{"startDeadlineSeconds", 600}}; }));
  cluster.Settle();
  cluster.BlockPod("resnet-node-1", "0/3 nodes have 5 nvidia.com/gpu");
  cluster.Settle();
  EXPECT_THAT(cluster.status().Find("NodesReady")->message, HasSubstr("0/3 nodes have 5 nvidia.com/gpu"));
  const Decision waits = cluster.Reconciled();
  ASSERT_TRUE(waits.requeue_after.has_value());
  EXPECT_LE(*waits.requeue_after, std::chrono::seconds(600));
  cluster.settings.gang_timeout = Duration(0);
  cluster.Advance(600);
  cluster.Settle();
  EXPECT_EQ(cluster.status().reason, "StartDeadlineExceeded");
  EXPECT_THAT(cluster.status().message, HasSubstr("nvidia.com/gpu"));
}

TEST(S15Reconcile, ANodeThatFailsIsRetriedWithABackoffAndAHigherIncarnation) {
  ModelCluster cluster(Job());
  Start(&cluster);
  cluster.EndPod("resnet-node-1", 17);
  const Decision counts = cluster.Reconciled();
  EXPECT_EQ(CountOf(counts, Verb::kPatchStatus), 1u);
  EXPECT_EQ(CountOf(counts, Verb::kDelete), 0u) << "what was counted is written before its evidence goes";
  NodeStatus node = cluster.status().nodes[1];
  EXPECT_EQ(node.retries, 1);
  EXPECT_EQ(node.disruptions, 0);
  EXPECT_EQ(node.last_exit_code, 17) << "the trainer's, not the engine's";
  EXPECT_EQ(cluster.status().nodes[0].retries, 0);
  EXPECT_THAT(cluster.Saw("NodeFailed"), HasSubstr("retry 1 of 3"));
  cluster.Settle();
  EXPECT_THAT(cluster.created["resnet-node-1"], ElementsAre(1, 2));
  EXPECT_THAT(CommandOf(*cluster.Get("Pod/resnet-node-1"), 0), HasSubstr("--incarnation 2 "));
  EXPECT_EQ(cluster.status().phase, Phase::kRestarting);
  cluster.MakeReady();
  cluster.Settle();
  EXPECT_EQ(cluster.status().phase, Phase::kRunning);
  EXPECT_EQ(Backoff(1), std::chrono::seconds(1));
  EXPECT_EQ(Backoff(4), std::chrono::seconds(8));
  EXPECT_EQ(Backoff(6), std::chrono::seconds(32));
  EXPECT_EQ(Backoff(7), std::chrono::seconds(60));
  EXPECT_EQ(Backoff(1'000'000), std::chrono::seconds(60));
}

TEST(S15Reconcile, ABackoffIsWaitedFor) {
  ModelCluster cluster(Job());
  Start(&cluster);
  for (int n = 1; n <= 3; ++n) {
    cluster.EndPod("resnet-node-0", 1);
    cluster.Reconciled();
    const auto due = cluster.status().nodes[0].retry_at;
    ASSERT_TRUE(due.has_value());
    EXPECT_EQ(*due - cluster.now(), std::chrono::seconds(1 << (n - 1)));
    cluster.Reconciled();
    EXPECT_NE(cluster.Get("Pod/resnet-node-0"), nullptr) << "its log may be read until then";
    while (cluster.now() < *due) {
      EXPECT_EQ(cluster.created["resnet-node-0"].size(), static_cast<size_t>(n));
      cluster.Reconciled();
      cluster.Advance(1);
    }
    cluster.Settle();
    EXPECT_EQ(cluster.created["resnet-node-0"].size(), static_cast<size_t>(n) + 1);
    cluster.MakeReady();
    cluster.Settle();
  }
}

TEST(S15Reconcile, EvictionsAndLostMachinesDoNotCountAsRetries) {
  ModelCluster cluster(Job());
  Start(&cluster);
  for (int n = 1; n <= 5; ++n) {  // more than there are retries
    if (n % 3 == 0) cluster.EvictPod("resnet-node-0");
    if (n % 3 == 1) cluster.DeleteByHand("Pod/resnet-node-0");
    if (n % 3 == 2) cluster.RemovePod("resnet-node-0");
    cluster.Reconciled();
    EXPECT_EQ(cluster.status().nodes[0].disruptions, n);
    EXPECT_EQ(cluster.status().nodes[0].retries, 0);
    cluster.Advance(60);
    cluster.Settle();
    cluster.MakeReady();
    cluster.Settle();
    EXPECT_EQ(cluster.status().phase, Phase::kRunning);
  }
  EXPECT_THAT(cluster.created["resnet-node-0"], ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(S15Reconcile, TheSameObservationTwiceCountsOnce) {
  ModelCluster cluster(Job());
  Start(&cluster);
  cluster.EndPod("resnet-node-0", 1);
  const Observed seen = cluster.Observe();
  const Decision first = Reconcile(cluster.settings, seen, cluster.now());
  const Decision second = Reconcile(cluster.settings, seen, cluster.now());
  ASSERT_FALSE(first.actions.empty());
  EXPECT_EQ(Dump(first.actions[0].object), Dump(second.actions[0].object));
  EXPECT_TRUE(cluster.Do(first.actions[0]));
  EXPECT_FALSE(cluster.Do(second.actions[0])) << "its resourceVersion is old";
  EXPECT_EQ(cluster.status().nodes[0].retries, 1);
}

TEST(S15Reconcile, UsedUpRetriesFailTheJobAndTheLogsStay) {
  ModelCluster cluster(Job());
  cluster.profile["spec"]["maxRetries"] = 1;
  Start(&cluster);
  cluster.EndPod("resnet-node-0", 3);
  cluster.Settle();
  cluster.MakeReady();
  cluster.Settle();
  cluster.EndPod("resnet-node-0", 4);
  cluster.Settle();
  EXPECT_EQ(cluster.status().phase, Phase::kFailed);
  EXPECT_EQ(cluster.status().reason, "RetriesExhausted");
  EXPECT_THAT(cluster.status().message, HasSubstr("resnet-node-0 failed with exit code 4 after 1 retries"));
  EXPECT_TRUE(cluster.IsTrue("CleanedUp"));
  EXPECT_THAT(cluster.Workers(), ElementsAre("resnet-node-0"))
      << "cleanPolicy All is Running after a failure";
  EXPECT_EQ(cluster.Get("StatefulSet/resnet-server"), nullptr);
}

TEST(S15Reconcile, ElasticJobsGoOnDegradedWhileThereAreEnough) {
  ModelCluster cluster(Job([](Json& spec) {
    spec["totalGPUs"] = 30;
    spec["elastic"] = {{"minNodes", 2}};
  }));
  cluster.profile["spec"]["maxRetries"] = 0;
  Start(&cluster);
  ASSERT_EQ(cluster.status().nodes.size(), 3u);
  cluster.EndPod("resnet-node-2", 1);
  cluster.Settle();
  EXPECT_EQ(cluster.status().phase, Phase::kRunning);
  EXPECT_TRUE(cluster.IsTrue("Degraded"));
  EXPECT_EQ(cluster.status().nodes[2].phase, NodePhase::kLost);
  EXPECT_EQ(cluster.created["resnet-node-2"].size(), 1u);
  ModelCluster enough = cluster;
  enough.EndPod("resnet-node-0", 0);
  enough.EndPod("resnet-node-1", 0);
  enough.Settle();
  EXPECT_EQ(enough.status().phase, Phase::kSucceeded);
  EXPECT_THAT(enough.status().message, HasSubstr("1 were lost"));
  cluster.EndPod("resnet-node-1", 1);
  cluster.Settle();
  EXPECT_EQ(cluster.status().reason, "RetriesExhausted");
}

TEST(S15Reconcile, AnElasticJobDoesNotWaitForAMachineOfItsLastNode) {
  for (const bool elastic : {true, false}) {
    ModelCluster cluster(Job([&](Json& spec) {
      if (elastic) spec["elastic"] = {{"minNodes", 1}};
    }));
    cluster.profile["spec"]["cleanPolicy"] = "None";
    Start(&cluster);
    cluster.EvictPod("resnet-node-1");
    cluster.EndPod("resnet-node-0", 0);
    cluster.Settle();
    cluster.BlockPod("resnet-node-1", "no GPU is free");
    cluster.Settle();
    cluster.Advance(290);
    cluster.Reconciled();
    EXPECT_NE(cluster.status().nodes[1].phase, NodePhase::kLost) << "one may become free";
    cluster.Advance(10);
    cluster.Settle();
    EXPECT_EQ(cluster.status().phase == Phase::kSucceeded, elastic) << cluster.status().message;
    EXPECT_EQ(cluster.Saw("NodeLost").empty(), !elastic);
    EXPECT_EQ(cluster.Saw("GangReleased").empty(), elastic);
    if (elastic) {
      EXPECT_EQ(cluster.Get("Pod/resnet-node-1"), nullptr) << "it would begin when a GPU is free";
    }
  }
}

TEST(S11Reconcile, AGangThatFindsNoMachinesIsReleasedAndPlannedAnew) {
  ModelCluster cluster(Job([](Json& spec) { spec["allocation"] = {{"capacity", "Discovered"}}; }));
  cluster.free = {{"", 10}, {"", 5}};
  cluster.Settle();
  cluster.MakeReady();
  cluster.BlockPod("resnet-node-1", "no GPU is free");
  (*cluster.Get("Pod/resnet-node-1"))["status"]["phase"] = "Pending";
  cluster.Settle();
  EXPECT_EQ(cluster.Workers().size(), 2u);
  cluster.Advance(300);
  cluster.free = {{"", 8}, {"", 4}, {"", 3}};
  cluster.Settle();
  EXPECT_EQ(cluster.Saw("GangReleased").empty(), false);
  Start(&cluster);
  EXPECT_EQ(cluster.status().phase, Phase::kRunning) << cluster.status().message;
  EXPECT_EQ(cluster.status().nodes.size(), 3u);
  EXPECT_THAT(CommandOf((*cluster.Get("StatefulSet/resnet-server"))["spec"]["template"], 0),
              HasSubstr("--workers 3 "));
  EXPECT_GT(cluster.created["resnet-node-0"].back(), 1);
}

TEST(S14Reconcile, WhenAllHaveFinishedTheServerEndsAndPodsGoByPolicy) {
  for (const char* policy : {"All", "Running", "None"}) {
    ModelCluster cluster(Job());
    cluster.profile["spec"]["cleanPolicy"] = policy;
    Start(&cluster);
    cluster.EndPod("resnet-node-0", 0);
    cluster.Settle();
    EXPECT_EQ(cluster.status().phase, Phase::kRunning) << "the other one still trains";
    cluster.EndPod("resnet-node-1", 0);
    for (int i = 0; i < 3; ++i) cluster.Reconciled();  // the server's pod is still there
    EXPECT_EQ(cluster.status().phase, Phase::kCompleting);
    cluster.Settle();
    EXPECT_EQ(cluster.status().phase, Phase::kSucceeded);
    EXPECT_TRUE(cluster.IsTrue("CleanedUp"));
    EXPECT_EQ(cluster.Workers().size(), std::string(policy) == "All" ? 0u : 2u) << policy;
    EXPECT_EQ(cluster.Get("StatefulSet/resnet-server"), nullptr);
    EXPECT_NE(cluster.Get("PersistentVolumeClaim/resnet-checkpoints"), nullptr) << "the result";
    EXPECT_TRUE(cluster.status().completion_time.has_value());
    EXPECT_EQ(CountOf(cluster.Reconciled(), Verb::kPatchStatus), 0u);
  }
}

TEST(S14Reconcile, ALastCheckpointIsNotWaitedForForever) {
  ModelCluster cluster(Job());
  Start(&cluster);
  cluster.EndPod("resnet-node-0", 0);
  cluster.EndPod("resnet-node-1", 0);
  for (int i = 0; i < 5; ++i) cluster.Reconciled();
  ASSERT_EQ(cluster.status().phase, Phase::kCompleting);
  cluster.Advance(119);
  cluster.Reconciled();
  ASSERT_EQ(cluster.status().phase, Phase::kCompleting);
  cluster.Advance(1);
  cluster.Reconciled();
  EXPECT_EQ(cluster.status().phase, Phase::kSucceeded);
  EXPECT_THAT(cluster.status().message, HasSubstr("the last checkpoint may be missing"));
}

TEST(S14Reconcile, AFinishedJobIsDeletedAfterItsTime) {
  ModelCluster cluster(Job([](Json& spec) { spec["runPolicy"] = {{"ttlSecondsAfterFinished", 100}}; }));
  Start(&cluster);
  cluster.EndPod("resnet-node-0", 0);
  cluster.EndPod("resnet-node-1", 0);
  cluster.Settle();
  ASSERT_EQ(cluster.status().phase, Phase::kSucceeded);
  const Instant end = *cluster.status().completion_time + std::chrono::seconds(100);
  while (cluster.now() < end) {
    ASSERT_FALSE(cluster.gone());
    const Decision decision = cluster.Reconciled();
    ASSERT_TRUE(decision.requeue_after.has_value());
    cluster.Advance(1);
  }
  cluster.Reconciled();
  EXPECT_TRUE(cluster.gone());
}

TEST(S14Reconcile, AJobThatRunsTooLongFails) {
  ModelCluster cluster(Job([](Json& spec) { spec["runPolicy"] = {{"activeDeadlineSeconds", 3600}}; }));
  cluster.profile["spec"]["cleanPolicy"] = "None";  // what has ended stays; what trains does not train on
  Start(&cluster);
  cluster.Advance(3500);
  cluster.Settle();
  EXPECT_EQ(cluster.status().phase, Phase::kRunning);
  cluster.Advance(100);
  cluster.Settle();
  EXPECT_EQ(cluster.status().reason, "DeadlineExceeded");
  EXPECT_TRUE(cluster.Workers().empty()) << "those that ran";
}

TEST(S15Reconcile, SuspendedJobsKeepPlanAndClaimAndPassTheBarrierAgain) {
  ModelCluster cluster(Job());
  Start(&cluster);
  cluster.EndPod("resnet-node-0", 1);
  Start(&cluster);
  cluster.mutable_job()["spec"]["runPolicy"] = {{"suspend", true}};
  cluster.Settle();
  EXPECT_EQ(cluster.status().phase, Phase::kSuspended);
  EXPECT_TRUE(cluster.Workers().empty());
  EXPECT_EQ(cluster.Get("StatefulSet/resnet-server"), nullptr);
  EXPECT_NE(cluster.Get("ConfigMap/resnet-plan"), nullptr);
  EXPECT_NE(cluster.Get("PersistentVolumeClaim/resnet-checkpoints"), nullptr);
  EXPECT_FALSE(cluster.IsTrue("Started"));
  EXPECT_EQ(cluster.status().attempt, 3) << "above the pod of 2 that the failure made";
  cluster.Advance(100'000);
  cluster.mutable_job()["spec"]["runPolicy"] = {{"suspend", false}, {"startDeadlineSeconds", 600}};
  cluster.Settle();
  EXPECT_EQ(cluster.status().phase, Phase::kStarting) << cluster.status().message;
  cluster.MakeReady();
  cluster.Settle();
  EXPECT_EQ(cluster.status().phase, Phase::kRunning);
  EXPECT_THAT(cluster.created["resnet-node-0"], ElementsAre(1, 2, 4));
  EXPECT_THAT(CommandOf((*cluster.Get("StatefulSet/resnet-server"))["spec"]["template"], 0),
              HasSubstr("--min-incarnation 3 "));
  EXPECT_EQ(cluster.status().nodes[0].disruptions, 0) << "what the operator deletes is no disruption";
}

TEST(S15Reconcile, ANodeThatIsTriedAgainAfterTheOthersHaveFinishedStartsWithoutThem) {
  ModelCluster cluster(Job());
  const auto starts = [&] {
    return TextAt(*cluster.Get("StatefulSet/resnet-server"), {"metadata", "labels", kStartLabel});
  };
  Start(&cluster);
  cluster.EndPod("resnet-node-0", 0);
  cluster.Settle();
  EXPECT_EQ(starts(), "0") << "the other one trains, at the server that there is";
  cluster.EndPod("resnet-node-1", 1);
  cluster.Settle();
  EXPECT_EQ(starts(), "1");
  EXPECT_THAT(CommandOf((*cluster.Get("StatefulSet/resnet-server"))["spec"]["template"], 0),
              HasSubstr("--start-workers 1 "));
  EXPECT_THAT(cluster.created["resnet-node-1"], ElementsAre(1, 2));
  const Json uid = (*cluster.Get("StatefulSet/resnet-server"))["metadata"]["uid"];
  cluster.MakeReady();
  cluster.Settle();
  EXPECT_EQ(cluster.status().phase, Phase::kRunning);
  EXPECT_EQ((*cluster.Get("StatefulSet/resnet-server"))["metadata"]["uid"], uid) << "and stays";
  cluster.EndPod("resnet-node-1", 0);
  cluster.Settle();
  EXPECT_EQ(cluster.status().phase, Phase::kSucceeded);
}

// A pod that began at the old server would end with it.
TEST(S15Reconcile, NoPodBeginsAtAServerThatIsStopped) {
  ModelCluster cluster(Job());
  Start(&cluster);
  cluster.EndPod("resnet-node-0", 9);
  cluster.Reconciled();  // counted
  cluster.Advance(60);
  cluster.Reconciled();  // the old pod is deleted
  cluster.RunControllers();
  ASSERT_EQ(cluster.Get("Pod/resnet-node-0"), nullptr);
  cluster.EndPod("resnet-node-1", 0);
  cluster.Reconciled();
  ASSERT_EQ(cluster.status().nodes[1].phase, NodePhase::kSucceeded);
  const Decision decision = cluster.Reconciled();
  EXPECT_EQ(CountOf(decision, Verb::kDelete, "StatefulSet"), 1u);
  EXPECT_EQ(CountOf(decision, Verb::kCreate, "Pod"), 0u);
  cluster.Settle();
  EXPECT_THAT(cluster.created["resnet-node-0"], ElementsAre(1, 2));
}

TEST(S11Reconcile, AnElasticJobThatLosesANodeBeforeTheStartBeginsWithoutIt) {
  ModelCluster cluster(Job([](Json& spec) { spec["elastic"] = {{"minNodes", 1}}; }));
  cluster.profile["spec"]["maxRetries"] = 0;
  cluster.Settle();
  cluster.EndPod("resnet-node-1", 1);
  (void)cluster.Reconciled();
  EXPECT_EQ(cluster.status().nodes[1].phase, NodePhase::kLost);
  cluster.MakeReady();
  (void)cluster.Reconciled();
  EXPECT_FALSE(cluster.IsTrue("Started")) << "its server's barrier waits for two";
  Start(&cluster);
  EXPECT_EQ(cluster.status().phase, Phase::kRunning) << cluster.status().message;
  EXPECT_THAT(CommandOf((*cluster.Get("StatefulSet/resnet-server"))["spec"]["template"], 0),
              HasSubstr("--start-workers 1 "));
}

TEST(S14Reconcile, WhatHasEndedDoesNotBeginAgainAfterASuspension) {
  for (const bool all : {true, false}) {
    ModelCluster cluster(Job());
    Start(&cluster);
    cluster.EndPod("resnet-node-0", 0);
    if (all) cluster.EndPod("resnet-node-1", 0);
    cluster.mutable_job()["spec"]["runPolicy"] = {{"suspend", true}};
    cluster.Settle();
    EXPECT_EQ(cluster.status().phase, all ? Phase::kSucceeded : Phase::kSuspended);
    EXPECT_EQ(cluster.status().nodes[0].phase, NodePhase::kSucceeded);
  }
}

TEST(S15Reconcile, AServerStaysWhileAnyNodeTrains) {
  ModelCluster cluster(Job([](Json& spec) { spec["totalGPUs"] = 21; }));
  Start(&cluster);
  const Json uid = (*cluster.Get("StatefulSet/resnet-server"))["metadata"]["uid"];
  cluster.EndPod("resnet-node-0", 0);
  cluster.EndPod("resnet-node-1", 1);
  cluster.Settle();
  EXPECT_THAT(cluster.created["resnet-node-1"], ElementsAre(1, 2));
  EXPECT_EQ((*cluster.Get("StatefulSet/resnet-server"))["metadata"]["uid"], uid);
}

TEST(S15Reconcile, AServerThatIsGoneForLongFailsTheJob) {
  ModelCluster cluster(Job());
  Start(&cluster);
  (*cluster.Get("StatefulSet/resnet-server"))["status"]["readyReplicas"] = 0;
  cluster.Reconciled();
  EXPECT_EQ(cluster.status().phase, Phase::kRunning) << "it may have ended with its members";
  cluster.Advance(5);
  cluster.Reconciled();
  EXPECT_EQ(cluster.status().phase, Phase::kRestarting);
  EXPECT_THAT(cluster.status().Find("ServerReady")->message,
              HasSubstr("kubectl describe pod resnet-server-0"));
  cluster.Advance(15 * 60 - 6);
  cluster.Reconciled();
  EXPECT_EQ(cluster.status().phase, Phase::kRestarting);
  ModelCluster back = cluster;
  back.Settle();
  EXPECT_EQ(back.status().phase, Phase::kRunning);
  cluster.Advance(1);
  cluster.Reconciled();
  EXPECT_EQ(cluster.status().reason, "ServerLost");
}

TEST(S15Reconcile, AServerWithAClaimHandsTheJobOverToItsNextPod) {
  for (const bool claim : {true, false}) {
    ModelCluster cluster(Job([&](Json& spec) {
      if (!claim) spec["server"].erase("storage");
    }));
    cluster.Settle();
    const Json& server =
        (*cluster.Get("StatefulSet/resnet-server"))["spec"]["template"]["spec"]["containers"][0];
    const Json& hook = At(server, {"lifecycle", "preStop", "exec", "command"});
    // Without a claim the next pod has no round log: the nodes do not wait for it.
    EXPECT_EQ(hook == Json::array({"/bin/sh", "-c", "kill -USR2 1"}), claim) << Dump(hook);
  }
}

TEST(S15Reconcile, NodesThatEndWithAServerThatHandsNothingOverDoNotCountIt) {
  for (const bool claim : {true, false}) {
    for (const bool started : {true, false}) {
      ModelCluster cluster(Job([&](Json& spec) {
        if (!claim) spec["server"].erase("storage");
      }));
      cluster.Settle();
      if (started) Start(&cluster);
      ModelCluster before = cluster;  // the nodes' end is seen first
      for (ModelCluster* one : {&before, &cluster}) {
        (*one->Get("Pod/resnet-server-0"))["metadata"]["deletionTimestamp"] = TimestampText(one->now());
        if (one == &cluster) {
          one->RunControllers();
          one->Advance(5);
          one->RunControllers();
        }
        one->EndPod("resnet-node-0", 1);
        one->Reconciled();
        const bool with_server = !claim || !started;
        EXPECT_EQ(one->status().nodes[0].retries, with_server ? 0 : 1) << claim << started;
        EXPECT_EQ(one->status().nodes[0].disruptions, with_server ? 1 : 0);
        one->Settle();
        one->MakeReady();
        one->EndPod("resnet-node-0", 1);
        one->Reconciled();
        EXPECT_EQ(one->status().nodes[0].retries, with_server ? 1 : 2) << "this one was its own";
      }
    }
  }
}

// Before the start a node that is ready has joined nothing yet.
TEST(S15Reconcile, ANodeThatWasReadyBeforeTheStartAndEndsWithItsServerCountsNoRetry) {
  ModelCluster cluster(Job());
  cluster.Settle();
  cluster.MakeReady("resnet-node-0");
  cluster.Settle();
  ASSERT_FALSE(cluster.IsTrue("Started"));
  ASSERT_EQ(cluster.status().nodes[0].phase, NodePhase::kReady);
  (*cluster.Get("Pod/resnet-server-0"))["metadata"]["deletionTimestamp"] = TimestampText(cluster.now());
  cluster.EndPod("resnet-node-0", 1);
  cluster.Reconciled();
  EXPECT_EQ(cluster.status().nodes[0].retries, 0);
  EXPECT_EQ(cluster.status().nodes[0].disruptions, 1);
}

// Its machine is silent, and no other server comes: its members wait for ten minutes.
TEST(S15Reconcile, NodesThatHaveWaitedForTheirServerInVainCountNoRetry) {
  for (const int seconds : {120, 590}) {
    ModelCluster cluster(Job());
    Start(&cluster);
    (*cluster.Get("StatefulSet/resnet-server"))["status"]["readyReplicas"] = 0;
    cluster.Reconciled();
    cluster.Advance(seconds);
    cluster.EndPod("resnet-node-0", 1);
    cluster.Reconciled();
    EXPECT_EQ(cluster.status().nodes[0].retries, seconds < 300 ? 1 : 0);
    EXPECT_EQ(cluster.status().nodes[0].disruptions, seconds < 300 ? 0 : 1);
  }
}

// Its trainer ends, then its engine: between the two it runs and is not ready.
TEST(S15Reconcile, ANodeThatFailsInTwoStepsAfterItsServerHasMovedCountsIt) {
  ModelCluster cluster(Job());
  Start(&cluster);
  cluster.Advance(5);
  cluster.DeleteByHand("Pod/resnet-server-0");
  cluster.RunControllers();
  cluster.RunControllers();
  cluster.Settle();
  ASSERT_EQ(cluster.status().phase, Phase::kRunning);
  const Json ready = (*cluster.Get("Pod/resnet-node-0"))["status"]["conditions"];
  for (const bool again : {false, true}) {
    (*cluster.Get("Pod/resnet-node-0"))["status"]["conditions"] =
        Json::array({{{"type", "Ready"}, {"status", "False"}}});
    cluster.Reconciled();
    ASSERT_EQ(cluster.status().nodes[0].phase, NodePhase::kStarting);
    if (again) break;
    (*cluster.Get("Pod/resnet-node-0"))["status"]["conditions"] = ready;  // and is again
    cluster.Settle();
  }
  cluster.EndPod("resnet-node-0", 1);
  cluster.Reconciled();
  EXPECT_EQ(cluster.status().nodes[0].retries, 1);
  EXPECT_EQ(cluster.status().nodes[0].disruptions, 0);
  EXPECT_FALSE(cluster.status().nodes[0].joined) << "its next pod has not";
}

TEST(S15Reconcile, AServerThatIsEvictedOrMovesAtALaterBarrierCostsNoRetry) {
  for (const bool evicted : {true, false}) {
    ModelCluster cluster(Job([&](Json& spec) {
      if (evicted) spec["server"].erase("storage");
    }));
    Start(&cluster);
    Json& server = *cluster.Get("Pod/resnet-server-0");
    if (evicted) {
      server["status"]["phase"] = "Failed";
    } else {
      cluster.DeleteByHand("Pod/resnet-node-0");
      cluster.DeleteByHand("Pod/resnet-node-1");
      cluster.Settle();
      ASSERT_EQ(cluster.status().nodes[0].phase, NodePhase::kStarting);
      server["status"]["conditions"] = Json::array({{{"type", "DisruptionTarget"}, {"status", "True"}}});
    }
    const int before = cluster.status().nodes[0].disruptions;
    cluster.EndPod("resnet-node-0", 1);
    cluster.Reconciled();
    EXPECT_EQ(cluster.status().nodes[0].retries, 0);
    EXPECT_EQ(cluster.status().nodes[0].disruptions, before + 1);
  }
}

TEST(S15Reconcile, NodesOfAnotherClusterStayWhereAnyOfTheAddressesIsTheirs) {
  ModelCluster cluster(TwoSites("LoadBalancer"));
  cluster.Settle();
  Json& balancer = (*cluster.Get("Service/resnet-public"))["status"]["loadBalancer"];
  balancer["ingress"] = {{{"ip", "192.0.2.20"}}};
  Start(&cluster);
  ASSERT_EQ(cluster.status().phase, Phase::kRunning) << cluster.status().message;
  balancer["ingress"] = {{{"hostname", "eu.example"}}, {{"ip", "192.0.2.20"}}};
  cluster.Settle();
  EXPECT_EQ(cluster.status().nodes[1].disruptions, 0);
  balancer["ingress"] = {{{"hostname", "eu.example"}}};
  ModelCluster older = cluster;
  (*older.Get("Pod/resnet-node-1", "fra"))["metadata"]["labels"].erase(kServerLabel);
  older.Settle();
  EXPECT_EQ(older.status().nodes[1].disruptions, 0) << "a pod of before the label";
  cluster.Settle();
  EXPECT_EQ(cluster.status().nodes[1].disruptions, 1);
  EXPECT_THAT(CommandOf(*cluster.Get("Pod/resnet-node-1", "fra"), 0), HasSubstr("--server eu.example:7700"));
}

TEST(S15Reconcile, NodesOfAnotherClusterFollowAServerThatHasMoved) {
  ModelCluster cluster(TwoSites("NodePort"));
  cluster.Settle();
  (*cluster.Get("Service/resnet-public"))["spec"]["ports"][0]["nodePort"] = 31007;
  Start(&cluster);
  ASSERT_EQ(cluster.status().phase, Phase::kRunning) << cluster.status().message;
  Json& server = *cluster.Get("Pod/resnet-server-0");
  server["status"].erase("hostIP");
  cluster.Reconciled();
  EXPECT_EQ(cluster.status().nodes[1].disruptions, 0) << "no machine has it yet";
  server["status"]["hostIP"] = "192.0.2.8";
  ModelCluster starts = cluster;
  (*starts.Get("StatefulSet/resnet-server"))["status"]["readyReplicas"] = 0;
  starts.Reconciled();
  EXPECT_EQ(starts.status().nodes[1].disruptions, 0) << "it does not answer there yet";
  cluster.Reconciled();
  EXPECT_EQ(cluster.status().nodes[1].disruptions, 1);
  EXPECT_THAT(cluster.Saw("NodeDisrupted"), HasSubstr("the server has moved to 192.0.2.8:31007"));
  cluster.Reconciled();  // its pod is deleted, and goes
  ASSERT_TRUE((*cluster.Get("Pod/resnet-node-1", "fra"))["metadata"].contains("deletionTimestamp"));
  cluster.RunControllers();
  cluster.Advance(2);
  cluster.Settle();
  const Json* next = cluster.Get("Pod/resnet-node-1", "fra");
  ASSERT_NE(next, nullptr);
  EXPECT_THAT(CommandOf(*next, 0), HasSubstr("--server 192.0.2.8:31007"));
  Start(&cluster);
  EXPECT_EQ(cluster.status().phase, Phase::kRunning);
  EXPECT_EQ(cluster.status().nodes[0].disruptions, 0) << "in its own cluster a server has a name";
  EXPECT_EQ(cluster.status().nodes[1].disruptions, 1);
}

TEST(S15Reconcile, APodWhoseMachineIsSilentIsTakenAwayByForce) {
  ModelCluster cluster(Job());
  Start(&cluster);
  cluster.kubelets_alive = false;
  cluster.DeleteByHand("Pod/resnet-node-1");
  cluster.Settle(5);
  EXPECT_EQ(cluster.status().nodes[1].disruptions, 1);
  cluster.Advance(84);  // 30 s of grace, and a minute
  cluster.Reconciled();
  EXPECT_THAT(cluster.created["resnet-node-1"], ElementsAre(1));
  cluster.Advance(10);
  cluster.Settle(5);
  EXPECT_THAT(cluster.created["resnet-node-1"], ElementsAre(1, 2));
}

TEST(S16Reconcile, ObjectsOfAnEarlierJobOfTheNameAreNotItsOwn) {
  ModelCluster old(Job());
  Start(&old);
  Json job = JobObject();
  job["metadata"]["uid"] = "uid-of-another";
  job["status"] = nullptr;
  old.mutable_job() = job;
  const Decision decision = old.Reconciled();
  old.Settle(5);
  EXPECT_EQ(CountOf(decision, Verb::kDelete), 0u);
  EXPECT_FALSE(old.IsTrue("Started"));
  EXPECT_FALSE(old.IsTrue("ServerReady")) << "the earlier job's server";
  EXPECT_EQ(old.status().nodes[0].phase, NodePhase::kPending);
}

TEST(S16Reconcile, AStatusIsWrittenOnlyWhenItChanges) {
  ModelCluster cluster(Job());
  Start(&cluster);
  const Decision quiet = cluster.Reconciled();
  EXPECT_TRUE(quiet.actions.empty());
}

TEST(S16Reconcile, WhateverTheJsonIsNothingThrows) {
  const Settings settings;
  for (const char* text : {"null", "7", "[]", "{}", R"({"metadata":[]})", R"({"metadata":{"name":7}})"}) {
    Observed seen;
    seen.job = Json::parse(text);
    EXPECT_TRUE(Reconcile(settings, seen, Seconds(kEpoch)).actions.empty());
  }
  // Every field of a job that runs, replaced by each of these.
  ModelCluster cluster(Job());
  Start(&cluster);
  const Observed good = cluster.Observe();
  const Json flat = good.job.flatten();
  std::vector<Json> strange = {
      nullptr, 7, -1, 1e300, "\xff\xfe", true, Json::array({nullptr}), Json::object({{"a", 1}}), UINT64_MAX};
  for (const Json& value : strange) {
    for (const auto& [path, old] : flat.items()) {
      Observed seen = good;
      seen.job[Json::json_pointer(path)] = value;
      for (const Action& action : Reconcile(settings, seen, cluster.now()).actions) (void)Dump(action.object);
    }
    for (size_t i = 0; i < good.objects.size(); ++i) {
      for (const char* part : {"metadata", "status", "spec", "data", "kind"}) {
        Observed seen = good;
        seen.objects[i].object[part] = value;
        (void)Reconcile(settings, seen, cluster.now());
      }
    }
    Observed seen = good;
    seen.profile->at("spec") = value;
    (void)Reconcile(settings, seen, cluster.now());
  }
}

TEST(S1Reconcile, AServerElsewhereIsJoinedAndNoneIsStarted) {
  ModelCluster cluster(Job([](Json& spec) {
    spec["server"] = {{"external", {{"host", "ams.example"}, {"port", 7700}, {"joinSecret", "ams"}}}};
  }));
  Start(&cluster);
  EXPECT_EQ(cluster.status().phase, Phase::kRunning);
  EXPECT_EQ(cluster.status().Find("ServerReady")->reason, "External");
  EXPECT_EQ(cluster.Get("StatefulSet/resnet-server"), nullptr);
  EXPECT_EQ(cluster.Get("Secret/resnet-key"), nullptr);
  const Json& pod = *cluster.Get("Pod/resnet-node-0");
  EXPECT_THAT(CommandOf(pod, 0), HasSubstr("--server ams.example:7700"));
  const std::string volumes = Dump(pod["spec"]["volumes"]);
  EXPECT_THAT(volumes, HasSubstr(R"("secretName":"ams")"));
  EXPECT_THAT(volumes, HasSubstr(R"("items":[{"key":"job.key","path":"job.key"}])"));
}

TEST(S15Reconcile, ASiteThatStaysAwayIsWaitedForOrAnElasticJobEndsWithoutIt) {
  for (const bool elastic : {true, false}) {
    ModelCluster cluster(Job([&](Json& spec) {
      spec["server"]["expose"] = "LoadBalancer";
      spec["sites"] = Json::array({{{"name", "ams"}, {"gpus", 10}},
                                   {{"name", "fra"}, {"gpus", 5}, {"kubeconfigSecret", "site-fra"}}});
      if (elastic) spec["elastic"] = {{"minNodes", 1}};
    }));
    cluster.Settle();
    (*cluster.Get("Service/resnet-public"))["status"]["loadBalancer"]["ingress"] = {{{"ip", "192.0.2.9"}}};
    Start(&cluster);
    ASSERT_EQ(cluster.status().phase, Phase::kRunning) << cluster.status().message;
    // Degraded for something else, for long.
    cluster.mutable_job()["status"]["conditions"].push_back(
        {{"type", "Degraded"},
         {"status", "True"},
         {"reason", "NodesLost"},
         {"message", ""},
         {"lastTransitionTime", TimestampText(cluster.now())}});
    cluster.Advance(1000);
    cluster.unreachable = {"fra"};
    cluster.Reconciled();
    cluster.EndPod("resnet-node-0", 0);
    cluster.Reconciled();
    cluster.Advance(59);
    cluster.Reconciled();
    EXPECT_EQ(cluster.status().phase, Phase::kRunning) << "it may come back, and has finished then, too";
    cluster.Advance(elastic ? 1 : 3600);
    cluster.Reconciled();
    if (!elastic) {
      EXPECT_EQ(cluster.status().phase, Phase::kRunning);
      EXPECT_THAT(cluster.status().Find("Degraded")->message, HasSubstr("site fra does not answer"));
      continue;
    }
    EXPECT_EQ(cluster.status().nodes[1].phase, NodePhase::kLost);
    EXPECT_THAT(cluster.Saw("NodeLost"), HasSubstr("site fra"));
    cluster.Settle();
    EXPECT_EQ(cluster.status().phase, Phase::kSucceeded);
    EXPECT_THAT(cluster.status().message, HasSubstr("1 were lost"));
    EXPECT_FALSE(cluster.IsTrue("CleanedUp")) << "of the site that is away its pod is left";
    cluster.unreachable.clear();
    cluster.Settle();
    EXPECT_EQ(cluster.Get("Pod/resnet-node-1", "fra"), nullptr);
  }
}

TEST(S16Reconcile, SeveralClustersWorkOnOneJobAndLetItGo) {
  ModelCluster cluster(TwoSites("NodePort"));
  cluster.Settle();
  EXPECT_EQ(cluster.job()["metadata"]["finalizers"], Json::array({kFinalizer}));
  EXPECT_EQ(cluster.Get("Pod/resnet-node-1", "fra"), nullptr) << "the server's port is not known";
  (*cluster.Get("Service/resnet-public"))["spec"]["ports"][0]["nodePort"] = 31007;
  Start(&cluster);
  EXPECT_EQ(cluster.status().phase, Phase::kRunning) << cluster.status().message;
  const Json* pod = cluster.Get("Pod/resnet-node-1", "fra");
  ASSERT_NE(pod, nullptr);
  EXPECT_THAT(CommandOf(*pod, 0), HasSubstr("--server 192.0.2.7:31007"));
  EXPECT_THAT(CommandOf(*cluster.Get("Pod/resnet-node-0"), 0),
              HasSubstr("--server resnet-server.team.svc:7700"));
  EXPECT_EQ((*pod)["metadata"]["ownerReferences"][0]["name"], "resnet-anchor");
  EXPECT_FALSE((*pod)["metadata"]["ownerReferences"][0].contains("blockOwnerDeletion"))
      << "takes a right more";
  EXPECT_NE(cluster.Get("ConfigMap/resnet-plan", "fra"), nullptr);
  ASSERT_NE(cluster.Get("Secret/resnet-key", "fra"), nullptr);
  const auto made = [&](const char* name) {
    return std::stoi(TextAt(*cluster.Get(name, "fra"), {"metadata", "uid"}).substr(4));
  };
  EXPECT_LT(made("Secret/resnet-key"), made("Service/resnet-nodes"))
      << "the Service says that both are there";

  cluster.unreachable = {"fra"};  // its pods are not seen: that is no disruption
  cluster.Settle();
  EXPECT_EQ(cluster.status().nodes[1].disruptions, 0);
  EXPECT_THAT(cluster.status().Find("Degraded")->message, HasSubstr("site fra does not answer"));
  cluster.unreachable.clear();
  cluster.Settle();
  EXPECT_FALSE(cluster.IsTrue("Degraded"));
  (*cluster.Get("ConfigMap/resnet-plan", "fra"))["data"]["planHash"] = "of a plan before";
  cluster.Settle();
  EXPECT_EQ((*cluster.Get("ConfigMap/resnet-plan", "fra"))["data"]["planHash"], cluster.status().plan_hash);

  cluster.mutable_job()["metadata"]["deletionTimestamp"] = TimestampText(cluster.now());
  ModelCluster silent = cluster;
  cluster.Settle();
  EXPECT_EQ(cluster.Get("ConfigMap/resnet-anchor", "fra"), nullptr);
  EXPECT_EQ(cluster.job()["metadata"]["finalizers"], Json::array());
  silent.unreachable = {"fra"};
  silent.Settle();
  EXPECT_EQ(silent.job()["metadata"]["finalizers"].size(), 1u);
  silent.Advance(300);
  silent.Settle();
  EXPECT_EQ(silent.job()["metadata"]["finalizers"].size(), 0u) << "not for ever";
}

}  // namespace
}  // namespace longhaul::kube
