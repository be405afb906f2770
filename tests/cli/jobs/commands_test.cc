// The four commands against an API server that does what the test says.
#include "cli/jobs/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>

#include "tests/operator/api/fault_server.h"
#include "tests/operator/api/temporary_folder.h"

namespace longhaul::cli {
namespace {

using kube::api::FaultRequest;
using kube::api::FaultServer;
using kube::api::TemporaryFolder;
using nlohmann::json;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Peer = FaultServer::Peer;

const std::string kJobs = "/apis/longhaul.dev/v1alpha1/namespaces/training/trainingjobs";

std::string StatusText(const char* reason, const std::string& message) {
  return json({{"kind", "Status"}, {"reason", reason}, {"message", message}}).dump();
}
json JobIn(const char* phase, int round = 0, const char* uid = "u1") {
  json job = {{"metadata", {{"name", "resnet"}, {"namespace", "training"}, {"uid", uid}}},
              {"spec", {{"totalGPUs", 15}}},
              {"status", {{"phase", phase}, {"readyNodes", "2/2"}}}};
  if (round > 0) job["status"]["progress"]["round"] = round;
  return job;
}

class CommandsTest : public ::testing::Test {
 protected:
  CommandsTest()
      : server_([this](const FaultRequest& request, Peer& peer) { return handler_(request, peer); }) {
    kubeconfig_ =
        folder_.Write("config",
                      "current-context: c\ncontexts: [{name: c, context: {cluster: c, namespace: training}}, "
                      "{name: d, context: {cluster: c, namespace: other}}]\nclusters: [{name: c, cluster: "
                      "{server: \"" +
                          server_.url() + "\"}}]\n");
    folder_.Write("train.sh", "#!/bin/sh\ntrain\n");
  }
  ClusterOptions Cluster() { return {.kubeconfig = kubeconfig_, .context = "", .name_space = ""}; }
  SubmitOptions Submit() {
    SubmitOptions options;
    options.cluster = Cluster();
    options.job = {
        .name = "resnet", .gpus = 15, .image = "worker", .profile = "a100", .script = "", .claim = ""};
    options.script_file = folder_.path() + "/train.sh";
    options.look_every = milliseconds(1);
    return options;
  }
  // The exit code; what was printed is in out_ and err_.
  int Run(const std::function<int()>& command) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int code = command();
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    return code;
  }
  void Answer(int code, const std::string& body) {
    handler_ = [code, body](const FaultRequest&, Peer& peer) {
      peer.Answer(code, body);
      return true;
    };
  }

  TemporaryFolder folder_;
  std::function<bool(const FaultRequest&, Peer&)> handler_ = [](const FaultRequest&, Peer& peer) {
    peer.Answer(500, "");
    return true;
  };
  FaultServer server_;
  std::string kubeconfig_, out_, err_;
};

TEST_F(CommandsTest, SubmitCreatesTheJobOfTheOptions) {
  Answer(201, JobIn("Pending").dump());
  EXPECT_EQ(Run([&] { return RunSubmit(Submit()); }), 0) << err_;
  EXPECT_EQ(
      out_,
      "created the job resnet in the namespace training; `longhaul jobs resnet -n training` shows how it "
      "goes\n");
  ASSERT_EQ(server_.requests().size(), 1u);
  const FaultRequest request = server_.requests()[0];
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.target, kJobs + "?fieldManager=longhaul");
  const json job = json::parse(request.body);
  EXPECT_EQ(job["spec"]["totalGPUs"], 15);
  EXPECT_EQ(job["spec"]["script"]["inline"], "#!/bin/sh\ntrain\n");
  EXPECT_EQ(job["metadata"]["namespace"], "training");
}

TEST_F(CommandsTest, SubmitTakesAFileAndTheContextsNamespace) {
  Answer(201, JobIn("Pending").dump());
  SubmitOptions options = Submit();
  json job = MakeJob(options.job);
  job["spec"]["script"]["inline"] = "x";
  options.file = folder_.Write("job.json", job.dump());
  options.cluster.context = "d";
  EXPECT_EQ(Run([&] { return RunSubmit(options); }), 0) << err_;
  EXPECT_EQ(server_.requests()[0].target,
            "/apis/longhaul.dev/v1alpha1/namespaces/other/trainingjobs?fieldManager=longhaul");
}

TEST_F(CommandsTest, S5ADuplicateNameIsSaidInTheSameWordsWhicheverRefusesIt) {
  for (const char* words :
       {"trainingjobs.longhaul.dev \"resnet\" already exists",
        "admission webhook \"permission.trainingjobs.longhaul.dev\" denied the request: task name "
        "already exists: there is a trainingjob resnet"}) {
    Answer(409, StatusText("AlreadyExists", words));
    EXPECT_EQ(Run([&] { return RunSubmit(Submit()); }), kJobsRefused);
    EXPECT_EQ(
        err_,
        "longhaul submit: task name already exists: there is a job resnet in the namespace training; choose "
        "another name, or end that one first (`longhaul cancel resnet -n training`)\n");
  }
}

TEST_F(CommandsTest, S6AMissingVerbIsNamed) {
  Answer(403, StatusText("Forbidden", "User \"bob\" cannot create resource \"trainingjobs\""));
  EXPECT_EQ(Run([&] { return RunSubmit(Submit()); }), kJobsRefused);
  EXPECT_THAT(err_, AllOf(HasSubstr("User \"bob\" cannot create"),
                          HasSubstr("the verb create on trainingjobs.longhaul.dev in the namespace training"),
                          HasSubstr("longhaul-user")));
  Answer(403, StatusText("Forbidden",
                         "admission webhook \"x\" denied the request: bob may not use the training "
                         "profile a100; ask for a role with the verb use"));
  EXPECT_EQ(Run([&] { return RunSubmit(Submit()); }), kJobsRefused);
  EXPECT_THAT(err_, AllOf(HasSubstr("with the verb use"), Not(HasSubstr("verb create"))));
  Answer(403, StatusText("Forbidden", "no"));
  JobsOptions all{.cluster = Cluster(), .name = "", .all_namespaces = true, .json = false};
  EXPECT_EQ(Run([&] { return RunJobs(all); }), kJobsRefused);
  EXPECT_THAT(err_, HasSubstr("the verb list on trainingjobs.longhaul.dev in all namespaces"));
  LogsOptions logs;
  logs.cluster = Cluster();
  logs.name = "resnet";
  EXPECT_EQ(Run([&] { return RunLogs(logs); }), kJobsRefused);
  EXPECT_THAT(err_, HasSubstr("the verb get on pods/log in the namespace training"));
  EXPECT_EQ(Run([&] { return RunCancel({.cluster = Cluster(), .name = "resnet"}); }), kJobsRefused);
  EXPECT_THAT(err_, HasSubstr("the verb get on trainingjobs"));
}

TEST_F(CommandsTest, OtherFailuresHaveTheirWordsAndTheirCode) {
  Answer(422, StatusText("Invalid", "spec.x: wrong"));
  EXPECT_EQ(Run([&] { return RunSubmit(Submit()); }), kJobsRefused);
  EXPECT_EQ(err_, "longhaul submit: spec.x: wrong\n");
  Answer(401, StatusText("Unauthorized", "Unauthorized"));
  EXPECT_EQ(Run([&] { return RunSubmit(Submit()); }), kJobsRefused);
  EXPECT_THAT(err_, HasSubstr("does not take the credentials"));
  Answer(404, "404 page not found");
  EXPECT_EQ(Run([&] { return RunSubmit(Submit()); }), kJobsRefused);
  EXPECT_THAT(err_, HasSubstr("kubectl apply -k deploy/kubernetes"));
  Answer(404, StatusText("NotFound", "namespaces \"training\" not found"));
  EXPECT_EQ(Run([&] { return RunSubmit(Submit()); }), kJobsRefused);
  EXPECT_EQ(err_, "longhaul submit: namespaces \"training\" not found\n");
  // A create is not sent twice, and it may have happened.
  Answer(500, StatusText("InternalError", "etcd is away"));
  const size_t before = server_.requests().size();
  EXPECT_EQ(Run([&] { return RunSubmit(Submit()); }), kJobsUnreachable);
  EXPECT_THAT(
      err_,
      AllOf(HasSubstr("etcd is away"),
            HasSubstr("whether the job was created is not known: `longhaul jobs -n training` says it")));
  EXPECT_EQ(server_.requests().size(), before + 1);
}

TEST_F(CommandsTest, WhatCannotBeSubmittedIsNotSent) {
  SubmitOptions options = Submit();
  options.script_file = folder_.path() + "/none";
  EXPECT_EQ(Run([&] { return RunSubmit(options); }), kJobsUsage);
  EXPECT_THAT(err_, HasSubstr("/none"));
  options = Submit();
  options.job.name = "Not_A_Name";
  EXPECT_EQ(Run([&] { return RunSubmit(options); }), kJobsUsage);
  EXPECT_THAT(err_, HasSubstr("metadata.name"));
  options = Submit();
  options.file = folder_.Write("pod.yaml", "kind: Pod\napiVersion: v1\n");
  EXPECT_EQ(Run([&] { return RunSubmit(options); }), kJobsUsage);
  EXPECT_THAT(err_, HasSubstr("pod.yaml: kind Pod"));
  options = Submit();
  options.cluster.kubeconfig = folder_.path() + "/no-config";
  EXPECT_EQ(Run([&] { return RunSubmit(options); }), kJobsUsage);
  EXPECT_THAT(err_, HasSubstr("no-config"));
  for (const char* name : {"", "..", "a/b", "a?x"})
    EXPECT_EQ(Run([&] { return RunCancel({.cluster = Cluster(), .name = name}); }), kJobsUsage) << name;
  EXPECT_TRUE(server_.requests().empty());
}

TEST_F(CommandsTest, WaitShowsHowItGoesUntilTheEnd) {
  std::atomic<int> look{0};
  handler_ = [&](const FaultRequest& request, Peer& peer) {
    if (request.method == "POST") {
      peer.Answer(201, JobIn("Pending").dump());
      return true;
    }
    const int now = look++;
    if (now == 2) {  // the API server restarts
      peer.Answer(500, "");
      return true;
    }
    peer.Answer(200, now < 2   ? JobIn("Starting").dump()
                     : now < 5 ? JobIn("Running", now).dump()
                               : JobIn("Succeeded", 9).dump());
    return true;
  };
  SubmitOptions options = Submit();
  options.wait = true;
  EXPECT_EQ(Run([&] { return RunSubmit(options); }), 0) << err_;
  EXPECT_EQ(out_,
            "created the job resnet in the namespace training\n"
            "resnet: Starting, 2/2 nodes ready\n"
            "resnet: Running, 2/2 nodes ready, round 3\n"
            "resnet: Succeeded, 2/2 nodes ready, round 9\n");
  EXPECT_EQ(server_.requests()[1].target, kJobs + "/resnet");
}

TEST_F(CommandsTest, WaitEndsWithTheJobsFailureOrItsDeletion) {
  std::atomic<int> what{0};
  handler_ = [&](const FaultRequest& request, Peer& peer) {
    if (request.method == "POST") {
      peer.Answer(201, JobIn("Pending").dump());
    } else if (what == 0) {
      json job = JobIn("Failed");
      job["status"]["reason"] = "RetriesExhausted";
      job["status"]["message"] = "node 1 ended with 1";
      peer.Answer(200, job.dump());
    } else if (what == 1) {
      peer.Answer(404, StatusText("NotFound", "gone"));
    } else if (what == 2) {
      peer.Answer(200, JobIn("Running", 0, "u2").dump());
    } else {
      peer.Answer(500, "");
    }
    return true;
  };
  SubmitOptions options = Submit();
  options.wait = true;
  options.patience = milliseconds(50);
  EXPECT_EQ(Run([&] { return RunSubmit(options); }), kJobsRefused);
  EXPECT_THAT(out_, HasSubstr("Failed, 2/2 nodes ready, RetriesExhausted: node 1 ended with 1"));
  what = 1;
  EXPECT_EQ(Run([&] { return RunSubmit(options); }), kJobsRefused);
  EXPECT_THAT(err_, HasSubstr("the job was deleted"));
  what = 2;
  EXPECT_EQ(Run([&] { return RunSubmit(options); }), kJobsRefused);
  EXPECT_THAT(err_, HasSubstr("another one of its name"));
  what = 3;
  EXPECT_EQ(Run([&] { return RunSubmit(options); }), kJobsUnreachable);
  EXPECT_THAT(err_, HasSubstr("the job goes on, and is not watched any more"));
}

TEST_F(CommandsTest, JobsAreListedPageByPage) {
  handler_ = [&](const FaultRequest& request, Peer& peer) {
    const bool second = request.target.find("continue=more") != std::string::npos;
    json list = {{"items", {JobIn(second ? "Failed" : "Running", 7)}},
                 {"metadata", {{"continue", second ? "" : "more"}}}};
    list["items"][0]["metadata"]["name"] = second ? "b" : "a";
    peer.Answer(200, list.dump());
    return true;
  };
  JobsOptions options{.cluster = Cluster(), .name = "", .all_namespaces = false, .json = false};
  EXPECT_EQ(Run([&] { return RunJobs(options); }), 0) << err_;
  EXPECT_EQ(out_,
            "NAME   PHASE     GPUS   READY   ROUND   AGE\n"
            "a      Running   15     2/2     7       -\n"
            "b      Failed    15     2/2     7       -\n");
  options.json = true;
  EXPECT_EQ(Run([&] { return RunJobs(options); }), 0);
  EXPECT_EQ(json::parse(out_).size(), 2u);
  options.all_namespaces = true;
  EXPECT_EQ(Run([&] { return RunJobs(options); }), 0);
  EXPECT_THAT(server_.requests().back().target, HasSubstr("/apis/longhaul.dev/v1alpha1/trainingjobs?"));
  Answer(200, R"({"items":[],"metadata":{}})");
  options = {.cluster = Cluster(), .name = "", .all_namespaces = false, .json = false};
  EXPECT_EQ(Run([&] { return RunJobs(options); }), 0);
  EXPECT_EQ(out_, "");
  EXPECT_EQ(err_, "no jobs in the namespace training\n");
}

TEST_F(CommandsTest, OfOneJobEventsAreShownWhereTheyMayBeSeen) {
  std::atomic<bool> may{true};
  handler_ = [&](const FaultRequest& request, Peer& peer) {
    if (request.target.find("/events") == std::string::npos) {
      peer.Answer(200, JobIn("Running", 7).dump());
    } else if (may) {
      peer.Answer(200, R"({"items":[{"reason":"Planned","message":"10 + 5"}],"metadata":{}})");
    } else {
      peer.Answer(403, StatusText("Forbidden", "no"));
    }
    return true;
  };
  JobsOptions options{.cluster = Cluster(), .name = "resnet", .all_namespaces = false, .json = false};
  EXPECT_EQ(Run([&] { return RunJobs(options); }), 0) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("Running, 2/2 nodes ready, round 7"), HasSubstr("10 + 5")));
  EXPECT_EQ(server_.requests()[1].target,
            "/api/v1/namespaces/training/"
            "events?fieldSelector=involvedObject.kind%3DTrainingJob%2CinvolvedObject.name%3D"
            "resnet%2CinvolvedObject.uid%3Du1&limit=500");
  may = false;
  EXPECT_EQ(Run([&] { return RunJobs(options); }), 0);
  EXPECT_THAT(err_, HasSubstr("no events: no; that takes the verb list on events"));
  options.json = true;
  EXPECT_EQ(Run([&] { return RunJobs(options); }), 0);
  EXPECT_EQ(json::parse(out_), JobIn("Running", 7));
  Answer(404, StatusText("NotFound", "not found"));
  EXPECT_EQ(Run([&] { return RunJobs(options); }), kJobsRefused);
  EXPECT_EQ(err_,
            "longhaul jobs: there is no job resnet in the namespace training; `longhaul jobs -n training` "
            "lists those "
            "that there are\n");
}

TEST_F(CommandsTest, LogsComeAsTheyAre) {
  handler_ = [&](const FaultRequest&, Peer& peer) {
    peer.BeginChunks();
    peer.Chunk("epoch 1\n");
    peer.Chunk("no line end");
    peer.EndChunks();
    return true;
  };
  LogsOptions options;
  options.cluster = Cluster();
  options.name = "resnet";
  options.node = 1;
  EXPECT_EQ(Run([&] { return RunLogs(options); }), 0) << err_;
  EXPECT_EQ(out_, "epoch 1\nno line end");
  EXPECT_EQ(server_.requests()[0].target,
            "/api/v1/namespaces/training/pods/resnet-node-1/log?container=trainer");
}

TEST_F(CommandsTest, FollowWaitsForTheStartAndEndsWithTheNode) {
  std::atomic<int> tries{0};
  handler_ = [&](const FaultRequest&, Peer& peer) {
    if (tries++ < 2) {
      peer.Answer(400, StatusText("BadRequest",
                                  "container \"trainer\" in pod is waiting to start: ContainerCreating"));
      return true;
    }
    peer.BeginChunks();
    peer.Chunk("begun\n");
    peer.EndChunks();
    return true;
  };
  LogsOptions options;
  options.cluster = Cluster();
  options.name = "resnet";
  options.look_every = milliseconds(1);
  EXPECT_EQ(Run([&] { return RunLogs(options); }), kJobsRefused);
  EXPECT_THAT(err_, HasSubstr("node 0 of the job resnet has not started yet; --follow waits for it"));
  options.follow = true;
  EXPECT_EQ(Run([&] { return RunLogs(options); }), 0) << err_;
  EXPECT_EQ(out_, "begun\n");
  EXPECT_THAT(server_.requests().back().target, HasSubstr("container=trainer&follow=true"));
}

TEST_F(CommandsTest, LogsOfNoPodSayWhetherThereIsSuchAJobAndSuchANode) {
  json job = JobIn("Restarting");
  for (const char* name : {"resnet-node-0", "resnet-node-1"})
    job["status"]["nodes"].push_back({{"name", name}, {"phase", "Lost"}});
  std::atomic<bool> there{true};
  handler_ = [&](const FaultRequest& request, Peer& peer) {
    if (there && request.target == kJobs + "/resnet")
      peer.Answer(200, job.dump());
    else
      peer.Answer(404, StatusText("NotFound", "not found"));
    return true;
  };
  LogsOptions options;
  options.cluster = Cluster();
  options.name = "resnet";
  options.node = 1;
  EXPECT_EQ(Run([&] { return RunLogs(options); }), kJobsRefused);
  EXPECT_EQ(err_,
            "longhaul logs: node 1 of the job resnet has no pod now; `longhaul jobs resnet -n training` says "
            "why: not found\n");
  options.node = 7;
  EXPECT_EQ(Run([&] { return RunLogs(options); }), kJobsRefused);
  EXPECT_EQ(err_, "longhaul logs: the job resnet has no node 7: it has the nodes 0 to 1\n");
  job["spec"]["sites"] = {{{"name", "ams"}, {"gpus", 10}},
                          {{"name", "fra"}, {"gpus", 5}, {"kubeconfigSecret", "site-fra"}}};
  job["status"]["nodes"][0]["site"] = "ams";
  job["status"]["nodes"][1]["site"] = "fra";
  options.node = 1;
  EXPECT_EQ(Run([&] { return RunLogs(options); }), kJobsRefused);
  EXPECT_THAT(err_, HasSubstr("is a pod of another cluster, the site fra: name that cluster"));
  options.node = 0;
  EXPECT_EQ(Run([&] { return RunLogs(options); }), kJobsRefused);
  EXPECT_THAT(err_, HasSubstr("has no pod now"));
  there = false;
  EXPECT_EQ(Run([&] { return RunLogs(options); }), kJobsRefused);
  EXPECT_THAT(err_, HasSubstr("longhaul logs: there is no job resnet in the namespace training"));
}

TEST_F(CommandsTest, CancelDeletesTheJobThatItSawAndSaysSo) {
  handler_ = [&](const FaultRequest&, Peer& peer) {
    peer.Answer(200, JobIn("Running", 7).dump());
    return true;
  };
  EXPECT_EQ(Run([&] { return RunCancel({.cluster = Cluster(), .name = "resnet"}); }), 0) << err_;
  EXPECT_EQ(out_,
            "deleted the job resnet in the namespace training (it was Running, 2/2 nodes ready, round 7); "
            "its pods, "
            "its server and its checkpoints go with it\n");
  ASSERT_EQ(server_.requests().size(), 2u);
  EXPECT_EQ(server_.requests()[1].method, "DELETE");
  EXPECT_EQ(server_.requests()[1].target, kJobs + "/resnet");
  EXPECT_EQ(json::parse(server_.requests()[1].body)["preconditions"]["uid"], "u1");
  Answer(404, StatusText("NotFound", "not found"));
  EXPECT_EQ(Run([&] { return RunCancel({.cluster = Cluster(), .name = "resnet"}); }), kJobsRefused);
  EXPECT_THAT(err_, HasSubstr("there is no job resnet"));
}

}  // namespace
}  // namespace longhaul::cli
