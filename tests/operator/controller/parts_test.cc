// Parts of the controller without a server: keys, requests, free GPUs, pages of progress.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "operator/api/loops.h"
#include "operator/controller/free_gpus.h"
#include "operator/controller/kinds.h"
#include "operator/controller/permission_desk.h"
#include "operator/controller/progress.h"
#include "operator/controller/secrets.h"
#include "operator/controller/sites.h"
#include "operator/reconcile/objects.h"
#include "operator/resource/requester.h"
#include "operator/resource/stamp.h"
#include "tests/operator/api/fault_server.h"

namespace longhaul::kube {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(OperatorKey, AJobsKeyIsTheHmacOfItsUid) {
  // RFC 4231, test case 2.
  EXPECT_EQ(JobKey("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_NE(JobKey("a", "uid-1"), JobKey("a", "uid-2"));
}

TEST(OperatorKey, EntriesOfASecretAreBase64) {
  const Json secret = {{"data", {{"a", "bG9uZ2hhdWw="}, {"b", "?"}, {"c", ""}, {"d", 1}, {"e", "bG9uZw=="}}}};
  EXPECT_EQ(*SecretEntry(secret, "a"), "longhaul");
  EXPECT_EQ(*SecretEntry(secret, "e"), "long");
  EXPECT_EQ(SecretEntry(secret, "b").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SecretEntry(secret, "c").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SecretEntry(secret, "d").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(SecretEntry(Json(), "a").status().code(), StatusCode::kNotFound);
}

TEST(Requests, AnActionIsOneRequestWithItsPrecondition) {
  const Json pod = {{"apiVersion", "v1"},
                    {"kind", "Pod"},
                    {"metadata", {{"name", "p"}, {"namespace", "team"}, {"uid", "u"}}}};
  const auto create = RequestOf({Verb::kCreate, "", pod, std::nullopt});
  ASSERT_TRUE(create);
  EXPECT_EQ(api::Encode(*create)->target, "/api/v1/namespaces/team/pods");
  const auto forced = RequestOf({Verb::kDelete, "", pod, 0});
  const auto http = api::Encode(*forced);
  EXPECT_EQ(http->method, "DELETE");
  EXPECT_NE(http->body.find("\"preconditions\":{\"uid\":\"u\"}"), std::string::npos);
  EXPECT_NE(http->body.find("\"gracePeriodSeconds\":0"), std::string::npos);
  EXPECT_EQ(api::Encode(*RequestOf({Verb::kDelete, "", pod, std::nullopt}))->body.find("gracePeriod"),
            std::string::npos);

  const Json job = {{"apiVersion", kApiVersion},
                    {"kind", "TrainingJob"},
                    {"metadata", {{"name", "j"}, {"namespace", "team"}, {"resourceVersion", "7"}}},
                    {"status", {{"phase", "Pending"}}}};
  const auto status = api::Encode(*RequestOf({Verb::kPatchStatus, "", job, std::nullopt}));
  EXPECT_EQ(status->method, "PATCH");
  EXPECT_TRUE(
      status->target.starts_with("/apis/longhaul.dev/v1alpha1/namespaces/team/trainingjobs/j/status?"));
  EXPECT_NE(status->body.find("\"resourceVersion\":\"7\""), std::string::npos);
  EXPECT_EQ(status->content_type, "application/apply-patch+yaml");
  // An apply gives up what its manager does not name: status and finalizers have one each.
  EXPECT_NE(RequestOf({Verb::kPatchStatus, "", job, std::nullopt})->field_manager,
            RequestOf({Verb::kPatchJob, "", job, std::nullopt})->field_manager);
  EXPECT_FALSE(RequestOf({Verb::kCreate, "", {{"kind", "Role"}}, std::nullopt}));
  EXPECT_GT(create->time_limit, Duration(0)) << "0 is the client's own minute";
  EXPECT_LE(create->time_limit, std::chrono::seconds(15 - 10))
      << "over before another holder of the lease begins";
}

TEST(Requests, ListsLackKindsAndPodsAreSlim) {
  Json pod = {{"metadata", {{"name", "p"}, {"annotations", {{"a", "b"}}}, {"labels", {{"l", "m"}}}}},
              {"spec", {{"containers", Json::array()}}},
              {"status", {{"phase", "Running"}}}};
  Slim(*FindKind("Pod"), &pod);
  EXPECT_EQ(pod["kind"], "Pod");
  EXPECT_EQ(pod["apiVersion"], "v1");
  EXPECT_FALSE(pod.contains("spec"));
  EXPECT_EQ(pod["status"]["phase"], "Running");
  EXPECT_EQ(pod["metadata"]["labels"]["l"], "m");
  Json job = {{"metadata", {{"name", "j"}, {"annotations", {{"a", "b"}}}}}, {"spec", {{"totalGPUs", 3}}}};
  Slim(*FindKind("TrainingJob"), &job);
  EXPECT_EQ(job["spec"]["totalGPUs"], 3);
  EXPECT_EQ(job["metadata"]["annotations"]["a"], "b");
}

TEST(Requests, OfALongScriptAMarkIsKept) {
  const std::string applied = "kubectl.kubernetes.io/last-applied-configuration";
  const std::string small(kKeptScriptBytes, 's'), large = "#!/bin/sh\n" + small;
  Json object = {{"metadata", {{"name", "j"}, {"annotations", {{applied, large}, {"a", "b"}}}}},
                 {"spec", {{"script", {{"inline", large}}}}}};
  Slim(*FindKind("TrainingJob"), &object);
  EXPECT_EQ(object["metadata"]["annotations"], Json({{"a", "b"}}));
  const std::string mark = TextAt(object, {"spec", "script", "inline"});
  EXPECT_LT(mark.size(), 100u);
  EXPECT_TRUE(mark.starts_with("#!")) << "of what kind it is is known";
  EXPECT_TRUE(IsScriptMark(mark));
  EXPECT_EQ(ScriptMark(mark), mark);
  EXPECT_EQ(ScriptMark(small), small);
  EXPECT_FALSE(IsScriptMark(small));
  EXPECT_FALSE(ScriptMark(small + "\n").starts_with("#!"));
  TrainingJob job;
  const JobPlan plan = PlanOf({{"j-node-0", "", 8}}, large);
  Json map = PlanMap(job, plan, Owner());
  EXPECT_EQ(map["data"]["script"], large);
  Slim(*FindKind("ConfigMap"), &map);
  EXPECT_EQ(map["data"]["script"], mark);
  EXPECT_EQ(PlanOf(plan.nodes, mark).hash, plan.hash) << "the plan is known by it";
  EXPECT_NE(PlanOf(plan.nodes, large + "x").hash, plan.hash);
}

Json Node(const char* name, Json gpus, Json spec = Json::object(), Json labels = Json::object()) {
  return {{"metadata", {{"name", name}, {"labels", std::move(labels)}}},
          {"spec", std::move(spec)},
          {"status", {{"allocatable", {{"cpu", "8"}, {"nvidia.com/gpu", std::move(gpus)}}}}}};
}

Json PodOn(const char* node, const char* gpus, const char* phase) {
  return {{"spec",
           {{"nodeName", node},
            {"containers",
             Json::array({{{"resources", {{"requests", {{"nvidia.com/gpu", gpus}, {"cpu", "1"}}}}}}})}}},
          {"status", {{"phase", phase}}}};
}

std::vector<int> FreeOf(const Machines& machines, const TrainingJobSpec& spec, const NodeConfig& config) {
  std::vector<int> gpus;
  for (const FreeGpus& one : machines.Free(spec, config)) gpus.push_back(one.gpus);
  return gpus;
}

TEST(S9FreeGpus, WhatPodsAskForIsTakenAndMachinesThatRefuseThemDoNotCount) {
  const Json taint = {{"taints", Json::array({{{"key", "gpu"}, {"value", "a"}, {"effect", "NoSchedule"}}})}};
  Machines machines;
  machines.AddNode(Node("a", "8"));
  machines.AddNode(Node("b", 8));
  machines.AddNode(Node("c", "8", {{"unschedulable", true}}));
  machines.AddNode(Node("d", "6", taint));
  machines.AddNode(Node("e", "many"));
  machines.AddNode(Node("f", "4", Json::object(), {{"zone", "x"}}));
  machines.AddPod(PodOn("a", "3", "Running"));
  machines.AddPod(PodOn("a", "2", "Succeeded"));
  machines.AddPod(PodOn("b", "8", "Pending"));
  machines.AddPod(PodOn("nowhere", "8", "Pending"));
  TrainingJobSpec spec;
  NodeConfig config;
  EXPECT_EQ(FreeOf(machines, spec, config), (std::vector<int>{5, 4}));
  config.node_template = {
      {"spec", {{"tolerations", Json::array({{{"key", "gpu"}, {"operator", "Exists"}}})}}}};
  EXPECT_EQ(FreeOf(machines, spec, config), (std::vector<int>{5, 6, 4}));
  config.node_template = {{"spec", {{"nodeSelector", {{"zone", "x"}}}}}};
  EXPECT_EQ(FreeOf(machines, spec, config), (std::vector<int>{4}));
  config.node_template = nullptr;
  spec.sites = {{"amsterdam", 8, "", {{"zone", "x"}}}, {"frankfurt", 8, "secret", {}}, {"rest", 8, "", {}}};
  const auto free = machines.Free(spec, config);
  ASSERT_EQ(free.size(), 2u);
  EXPECT_EQ(free[0].site, "rest");
  EXPECT_EQ(free[1].site, "amsterdam");
}

TEST(Progress, RoundsAreReadFromThePage) {
  EXPECT_EQ(ParseRound("# HELP longhaul_server_rounds_total x\nlonghaul_server_rounds_total 17\n"), 17);
  EXPECT_EQ(ParseRound("longhaul_server_rounds_total{job=\"a\"} 3\n"
                       "longhaul_server_checkpoint_rounds{job=\"a\"} 1200\n"),
            1200);
  EXPECT_FALSE(ParseRound(""));
  EXPECT_FALSE(ParseRound("longhaul_server_rounds_total_of_others 17\n"));
  EXPECT_FALSE(ParseRound("longhaul_server_rounds_total{"));
  EXPECT_FALSE(ParseRound("longhaul_server_rounds_total nan"));
}

TEST(Progress, OfAnEarlierJobOfTheNameNothingIsShown) {
  std::atomic<int> rounds{17};
  api::FaultServer server([&](const api::FaultRequest&, api::FaultServer::Peer& peer) {
    const int now = rounds;
    if (now == 17) peer.Pause(milliseconds(200));
    peer.Answer(200, "longhaul_server_rounds_total " + std::to_string(now) + "\n");
    return true;
  });
  const std::string url = server.url();
  const int port = std::stoi(url.substr(url.rfind(':') + 1));
  ProgressReader reader;
  const Instant now = api::SteadyNow();
  const auto wait = [&] {
    while (reader.busy() && api::SteadyNow() < now + seconds(20)) {
      reader.Poll();
      std::this_thread::sleep_for(milliseconds(1));
    }
  };
  reader.Ask("team/a", "uid-1", "127.0.0.1", port, now);
  wait();
  EXPECT_EQ(reader.NextChanged(), "team/a");
  EXPECT_EQ(reader.RoundOf("team/a", "uid-1"), 17);
  EXPECT_FALSE(reader.RoundOf("team/a", "uid-2"));
  // The answer of the first one's server comes when the second job has the name.
  reader.Ask("team/a", "uid-1", "127.0.0.1", port, now + ProgressReader::kEvery);
  while (server.requests().size() < 2 && api::SteadyNow() < now + seconds(20)) reader.Poll();
  rounds = 1;
  reader.Ask("team/a", "uid-2", "127.0.0.1", port, now + ProgressReader::kEvery);
  EXPECT_FALSE(reader.RoundOf("team/a", "uid-1"));
  wait();
  EXPECT_EQ(reader.RoundOf("team/a", "uid-2"), 1);
}

TEST(S6Question, PeopleAreAskedForWithWhatTheWebhookHasStamped) {
  TrainingJob job;
  job.requester = "ada";
  job.requester_identity =
      IdentityText({{"system:authenticated", "vision"}, "u-1", {{"example.org/scope", {"train"}}}});
  const api::AccessQuestion question = QuestionOf(job);
  EXPECT_EQ(question.groups, (std::vector<std::string>{"system:authenticated", "vision"}));
  EXPECT_EQ(question.uid, "u-1");
  EXPECT_EQ(question.name, "") << "a configuration in the job takes all profiles";
  EXPECT_EQ(question.extra.at("example.org/scope"), std::vector<std::string>{"train"});
  // What no webhook has stamped gives nothing, not even what a name alone gives.
  for (const std::string& text : {std::string("{"), std::string(R"({"groups":"vision"})"),
                                  "{\"groups\":[\"" + std::string(17000, 'g') + "\"]}"}) {
    job.requester_identity = text;
    EXPECT_TRUE(QuestionOf(job).groups.empty()) << text.substr(0, 80);
  }
}

TEST(S16Sites, AKubeconfigOfASecretReadsNoFiles) {
  const auto config = [](const std::string& cluster, const std::string& user) {
    return "current-context: c\nclusters: [{name: c, cluster: {server: \"https://k:6443\"" + cluster +
           "}}]\nusers: [{name: u, user: {" + user +
           "}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n";
  };
  EXPECT_TRUE(SiteAccess(config("", "token: t")).ok());
  for (const auto& text : {config("", "tokenFile: /t"), config(", certificate-authority: /ca", "token: t"),
                           config("", "client-certificate: /c, client-key: /k")}) {
    EXPECT_NE(SiteAccess(text).status().message().find("names files"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace longhaul::kube
