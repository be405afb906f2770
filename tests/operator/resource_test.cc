// The custom resources: what is read, what is refused, with which words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/random.h"
#include "operator/resource/node_template.h"
#include "operator/resource/timestamps.h"
#include "operator/resource/training_job.h"
#include "operator/resource/training_profile.h"
#include "tests/operator/model_cluster.h"

namespace longhaul::kube {
namespace {

using testing::HasSubstr;

// A job with one thing changed: by a JSON pointer below spec.
Json Changed(const std::string& pointer, const Json& value) {
  Json job = JobObject();
  job["spec"][Json::json_pointer(pointer)] = value;
  return job;
}

std::string Refusal(const Json& job) {
  const Status status = CheckCreate(job);
  return status.ok() ? "accepted" : status.message();
}

Json Inline(const Json& pod_template) {
  Json job = JobObject();
  job["spec"].erase("profileRef");
  job["spec"]["node"] = {{"maxGPUs", 10}, {"nodeTemplate", pod_template}};
  return job;
}

TEST(S4TrainingJob, ARequestCarriesNameGpusDataAndScript) {
  Json object = JobObject();
  object["spec"]["allocation"] = {{"strategy", "Balanced"}, {"capacity", "Discovered"}};
  object["spec"]["server"] = {{"port", 7800}, {"expose", "LoadBalancer"}, {"storage", {{"size", "1.5Ti"}}}};
  object["spec"]["sites"] = Json::array({{{"name", "ams"}, {"gpus", 10}, {"nodeSelector", {{"a", "b"}}}},
                                         {{"name", "fra"}, {"gpus", 9}, {"kubeconfigSecret", "site-fra"}}});
  object["spec"]["elastic"] = {{"minNodes", 1}};
  object["spec"]["runPolicy"] = {{"suspend", true},
                                 {"startDeadlineSeconds", 600},
                                 {"activeDeadlineSeconds", 7200},
                                 {"ttlSecondsAfterFinished", 0}};
  const auto job = ParseTrainingJob(object);
  ASSERT_TRUE(job.ok());
  ASSERT_TRUE(job->spec_status.ok()) << job->spec_status.message();
  EXPECT_EQ(job->name, "resnet");
  EXPECT_EQ(job->requester, "ada");
  EXPECT_EQ(job->created, Seconds(kEpoch));
  const TrainingJobSpec& spec = job->spec;
  EXPECT_EQ(spec.profile, "a100");
  EXPECT_EQ(spec.total_gpus, 15);
  EXPECT_EQ(spec.image, "registry.example/train:1");
  EXPECT_EQ(spec.script.text, "#!/usr/bin/python3\nprint()\n");
  EXPECT_EQ(spec.data->claim, "imagenet");
  EXPECT_EQ(spec.data->sub_path, "train");
  EXPECT_EQ(spec.strategy, Strategy::kBalanced);
  EXPECT_EQ(spec.capacity, Capacity::kDiscovered);
  EXPECT_EQ(spec.server.port, 7800);
  EXPECT_EQ(spec.server.expose, Expose::kLoadBalancer);
  EXPECT_EQ(spec.server.storage->size, "1.5Ti");
  EXPECT_EQ(spec.sites[1].kubeconfig_secret, "site-fra");
  EXPECT_EQ(spec.sites[0].node_selector.at("a"), "b");
  EXPECT_EQ(spec.min_nodes, 1);
  EXPECT_TRUE(spec.run_policy.suspend);
  EXPECT_EQ(spec.run_policy.start_deadline, std::chrono::seconds(600));
  EXPECT_EQ(spec.run_policy.active_deadline, std::chrono::hours(2));
  EXPECT_EQ(spec.run_policy.ttl_after_finished, Duration(0));
}

TEST(S3TrainingProfile, HasMaxGpusRetriesAndCleanPolicyAndDefaults) {
  const auto least = ParseTrainingProfile(ProfileObject());
  ASSERT_TRUE(least.ok()) << least.status().message();
  EXPECT_EQ(least->config.max_gpus, 10);
  EXPECT_EQ(least->config.min_gpus, 3);
  EXPECT_EQ(least->config.max_retries, 3);
  EXPECT_EQ(least->config.clean_policy, CleanPolicy::kAll);
  EXPECT_EQ(least->config.gpu_resource, "nvidia.com/gpu");
  Json object = ProfileObject();
  object["spec"] = {{"maxGPUs", 8},
                    {"minGPUs", 4},
                    {"maxRetries", 0},
                    {"cleanPolicy", "None"},
                    {"gpuResource", "amd.com/gpu"}};
  const auto profile = ParseTrainingProfile(object);
  ASSERT_TRUE(profile.ok());
  EXPECT_EQ(profile->config.min_gpus, 4);
  EXPECT_EQ(profile->config.max_retries, 0);
  EXPECT_EQ(profile->config.clean_policy, CleanPolicy::kNone);
  EXPECT_EQ(profile->config.gpu_resource, "amd.com/gpu");
}

TEST(S3TrainingProfile, EveryRuleNamesTheFieldAndTheRemedy) {
  const std::pair<Json, const char*> wrong[] = {
      {{{"minGPUs", 3}}, "spec.maxGPUs: is missing: give a whole number from 3 to 62"},
      {{{"maxGPUs", 2}}, "spec.maxGPUs: is 2: give a whole number from 3 to 62"},
      {{{"maxGPUs", 63}}, "spec.maxGPUs: is 63"},
      {{{"maxGPUs", "8"}}, "spec.maxGPUs: is \"8\""},
      {{{"maxGPUs", 8.5}}, "spec.maxGPUs: is 8.5"},
      {{{"maxGPUs", 8}, {"minGPUs", 2}}, "spec.minGPUs: is 2: give a whole number from 3"},
      {{{"maxGPUs", 4}, {"minGPUs", 5}},
       "spec.minGPUs: is 5, more than maxGPUs, 4: lower it, or raise maxGPUs"},
      {{{"maxGPUs", 8}, {"maxRetries", -1}}, "spec.maxRetries: is -1"},
      {{{"maxGPUs", 8}, {"cleanPolicy", "Some"}}, "spec.cleanPolicy: \"Some\" is none of All, Running, None"},
      {{{"maxGPUs", 8}, {"gpuResource", "cpu"}},
       "spec.gpuResource: \"cpu\" is not the name of an extended resource"},
      {{{"maxGPUs", 8}, {"maxGpu", 1}}, "spec.maxGpu: is no field of this version: there are cleanPolicy, "},
      {nullptr, "spec: is missing"},
      {7, "spec: is no object"}};
  for (const auto& [spec, words] : wrong) {
    Json object = ProfileObject();
    object["spec"] = spec;
    const auto profile = ParseTrainingProfile(object);
    ASSERT_FALSE(profile.ok()) << words;
    EXPECT_THAT(profile.status().message(), HasSubstr(words));
  }
}

TEST(S1TrainingJob, EveryRuleIsCheckedHereToo) {
  const std::string long_text(kMostScriptBytes + 1, 'x');
  const std::tuple<const char*, Json, const char*> wrong[] = {
      {"/totalGPUs", 0, "spec.totalGPUs: is 0: give a whole number from 1 to 4096"},
      {"/totalGPUs", 4097, "spec.totalGPUs: is 4097"},
      {"/totalGPUs", nullptr, "spec.totalGPUs: is missing"},
      {"/totalGPUs", UINT64_MAX, "spec.totalGPUs: is 18446744073709551615"},
      {"/image", nullptr, "spec.image: is missing"},
      {"/image", "a b", "spec.image: \"a b\" is not"},
      {"/script", nullptr, "spec.script: is missing"},
      {"/script", Json::object(), "spec.script.inline: is missing: give one of inline and configMapRef"},
      {"/script/inline", "", "spec.script.inline: is empty"},
      {"/script/inline", long_text, "spec.script.inline: has 262145 bytes, and 262144 are the most"},
      {"/script/configMapRef", {{"name", "a"}, {"key", "b"}}, "exclude each other: leave one of them out"},
      {"/script", {{"configMapRef", {{"name", "a"}}}}, "spec.script.configMapRef.key: is missing"},
      {"/profileRef/name", "A", "spec.profileRef.name: \"A\" is not the name of an object"},
      {"/profileRef", nullptr, "spec.profileRef: is missing: give one of profileRef and node"},
      {"/node", {{"maxGPUs", 8}}, "spec.node: profileRef and node exclude each other"},
      {"/data", Json::object(), "spec.data.claimName: is missing"},
      {"/data/uri", "s3://b", "spec.data.uri: claimName and uri exclude each other"},
      {"/data", {{"uri", "bucket"}}, "spec.data.uri: \"bucket\" is not a URI"},
      {"/data/subPath", "../other", "spec.data.subPath: \"../other\" is not a path below the volume"},
      {"/data/subPath", "a/../../b", "spec.data.subPath"},
      {"/data/subPath", "/etc", "spec.data.subPath"},
      {"/data", {{"uri", "s3://b"}, {"subPath", "a"}}, "spec.data.subPath: needs claimName"},
      {"/allocation", {{"strategy", "packed"}}, "\"packed\" is none of Packed, Balanced"},
      {"/allocation", {{"capacity", "All"}}, "is none of Declared, Discovered"},
      {"/server/port", 0, "spec.server.port: is 0"},
      {"/server/expose", "Ingress", "is none of Headless, NodePort, LoadBalancer, HostNetwork"},
      {"/server/storage", {{"size", "0Gi"}}, "spec.server.storage.size: \"0Gi\" is not an amount of storage"},
      {"/server/storage", {{"size", "10 GB"}}, "spec.server.storage.size"},
      {"/server/storage", Json::object(), "spec.server.storage.size: is missing"},
      {"/server/external", {{"host", "a"}, {"port", 7700}}, "spec.server.external.joinSecret: is missing"},
      {"/server/external",
       {{"host", "a"}, {"port", 1}, {"joinSecret", "other-key"}},
       "spec.server.external.joinSecret: ends in -key"},
      {"/server/external", {{"host", "a b"}, {"port", 1}, {"joinSecret", "s"}}, "spec.server.external.host"},
      {"/sites", 7, "spec.sites: is no list of at most 32 entries"},
      {"/sites", Json::array({{{"name", "a"}, {"gpus", 14}}}),
       "spec.sites: have 14 GPUs together, fewer than totalGPUs, 15: raise gpus of a site, or lower "
       "totalGPUs"},
      {"/sites", Json::array({{{"name", "a"}, {"gpus", 9}}, {{"name", "a"}, {"gpus", 9}}}),
       "spec.sites[1].name: \"a\" is there twice"},
      {"/sites", Json::array({{{"name", "a"}, {"gpus", 2}}}), "spec.sites[0].gpus: is 2"},
      {"/sites", Json::array({{{"name", "a"}, {"gpus", 15}, {"kubeconfigSecret", "k"}}}),
       "spec.server.expose: is Headless, which pods of another cluster cannot reach: choose NodePort"},
      {"/sites", Json::array({{{"name", "a"}, {"gpus", 15}, {"nodeSelector", {{"b", 7}}}}}),
       "spec.sites[0].nodeSelector: \"b\" is no label"},
      {"/elastic", {{"minNodes", 0}}, "spec.elastic.minNodes: is 0"},
      {"/runPolicy", {{"suspend", "yes"}}, "spec.runPolicy.suspend: is neither true nor false"},
      {"/runPolicy", {{"startDeadlineSeconds", 0}}, "spec.runPolicy.startDeadlineSeconds: is 0"},
      {"/runPolicy", {{"activeDeadlineSeconds", -5}}, "spec.runPolicy.activeDeadlineSeconds: is -5"},
      {"/runPolicy", {{"ttlSecondsAfterFinished", -1}}, "spec.runPolicy.ttlSecondsAfterFinished: is -1"},
      {"/totalGpus", 15, "spec.totalGpus: is no field of this version"}};
  EXPECT_EQ(Refusal(JobObject()), "accepted");
  for (const auto& [pointer, value, words] : wrong)
    EXPECT_THAT(Refusal(Changed(pointer, value)), HasSubstr(words)) << pointer;
}

// The schema's have the same (tests/kubernetes/resources.py).
TEST(S1TrainingJob, AnAmountOfStorageIsWhatTheSchemaTakes) {
  for (const char* size : {"1Pi", "0.5Ti", "10", "00.5G", "012345678901234567Gi"})
    EXPECT_EQ(Refusal(Changed("/server/storage", {{"size", size}})), "accepted") << size;
  for (const char* size : {"0Gi", "0.0", "1.", ".5G", "1Ei", "0123456789012345678Gi"})
    EXPECT_THAT(Refusal(Changed("/server/storage", {{"size", size}})),
                HasSubstr("is not an amount of storage"))
        << size;
}

TEST(S5TrainingJob, ANameIsALabelThatLeavesRoomForThoseMadeOfIt) {
  for (const char* name : {"", "Resnet", "-a", "a-", "7up", "a.b", "a_b"}) {
    Json job = JobObject();
    job["metadata"]["name"] = name;
    EXPECT_THAT(Refusal(job), HasSubstr("metadata.name: \"" + std::string(name) + "\" is no name of a job"))
        << name;
  }
  Json job = JobObject();
  job["metadata"]["name"] = std::string(45, 'a');
  EXPECT_EQ(Refusal(job), "accepted");
  job["metadata"]["name"] = std::string(46, 'a');
  EXPECT_THAT(Refusal(job), HasSubstr("at most 45 characters"));
}

TEST(S6Templates, AJobsTemplateGetsNoRightsThatItsAuthorLacks) {
  const std::pair<const char*, Json> refused[] = {
      {"spec.serviceAccountName", {{"serviceAccountName", "admin"}}},
      {"spec.serviceAccount", {{"serviceAccount", "admin"}}},
      {"spec.hostNetwork", {{"hostNetwork", true}}},
      {"spec.hostPID", {{"hostPID", true}}},
      {"spec.initContainers", {{"initContainers", Json::array()}}},
      {"spec.somethingNew", {{"somethingNew", 1}}},
      {"spec.automountServiceAccountToken", {{"automountServiceAccountToken", true}}},
      {"spec.restartPolicy", {{"restartPolicy", "Always"}}},
      {"spec.volumes[0].hostPath",
       {{"volumes", Json::array({{{"name", "v"}, {"hostPath", {{"path", "/"}}}}})}}},
      {"spec.volumes[0].secret",
       {{"volumes", Json::array({{{"name", "v"}, {"secret", {{"secretName", "s"}}}}})}}},
      {"spec.volumes[0].projected",
       {{"volumes", Json::array({{{"name", "v"}, {"projected", Json::object()}}})}}},
      {"spec.volumes[0].name",
       {{"volumes", Json::array({{{"name", "longhaul-key"}, {"emptyDir", Json::object()}}})}}},
      {"spec.securityContext.runAsUser", {{"securityContext", {{"runAsUser", 0}}}}},
      {"spec.securityContext.runAsNonRoot", {{"securityContext", {{"runAsNonRoot", false}}}}},
      {"spec.securityContext.sysctls", {{"securityContext", {{"sysctls", Json::array()}}}}},
      {"spec.containers[0].securityContext.privileged",
       {{"containers", Json::array({{{"securityContext", {{"privileged", true}}}}})}}},
      {"spec.containers[0].securityContext.allowPrivilegeEscalation",
       {{"containers", Json::array({{{"securityContext", {{"allowPrivilegeEscalation", true}}}}})}}},
      {"spec.containers[0].securityContext.capabilities.add",
       {{"containers",
         Json::array({{{"securityContext", {{"capabilities", {{"add", Json::array({"SYS_ADMIN"})}}}}}}})}}},
      {"spec.containers[0].securityContext.capabilities.drop",
       {{"containers", Json::array({{{"securityContext", {{"capabilities", {{"drop", Json::array()}}}}}}})}}},
      {"spec.containers[0].securityContext.readOnlyRootFilesystem",
       {{"containers", Json::array({{{"securityContext", {{"readOnlyRootFilesystem", false}}}}})}}},
      {"spec.securityContext.seccompProfile.type",
       {{"securityContext", {{"seccompProfile", {{"type", "Unconfined"}}}}}}},
      {"spec.containers[0].image", {{"containers", Json::array({{{"image", "other"}}})}}},
      {"spec.containers[0].name", {{"containers", Json::array({{{"name", "engine"}}})}}},
      {"spec.containers[0].ports", {{"containers", Json::array({{{"ports", Json::array()}}})}}},
      {"spec.containers[0].command", {{"containers", Json::array({{{"command", "/bin/sh"}}})}}},
      {"spec.containers[0].env[0].name",
       {{"containers", Json::array({{{"env", Json::array({{{"name", "LONGHAUL_KEY"}}})}}})}}},
      {"spec.containers[0].env[0].valueFrom.secretKeyRef",
       {{"containers",
         Json::array({{{"env", Json::array({{{"name", "A"},
                                             {"valueFrom", {{"secretKeyRef", Json::object()}}}}})}}})}}},
      {"spec.containers[0].volumeMounts[0].mountPath",
       {{"containers", Json::array({{{"volumeMounts", Json::array({{{"mountPath", "/longhaul/plan"}}})}}})}}},
      {"spec.containers", {{"containers", Json::array({Json::object(), Json::object()})}}}};
  for (const auto& [field, pod] : refused) {
    EXPECT_THAT(Refusal(Inline({{"spec", pod}})),
                HasSubstr("spec.node.nodeTemplate." + std::string(field) + ": "));
  }
  EXPECT_THAT(Refusal(Inline({{"spec", {{"hostNetwork", true}}}})),
              HasSubstr("name that in spec.profileRef"));
  for (const char* map : {"labels", "annotations"})
    EXPECT_THAT(Refusal(Inline({{"metadata", {{map, {{"team", "vision"}}}}}})),
                HasSubstr("spec.node.nodeTemplate.metadata." + std::string(map) +
                          ".team: only a TrainingProfile may have it"));
  EXPECT_EQ(Refusal(Inline(
                {{"metadata", {{"labels", Json::object()}}},
                 {"spec",
                  {{"nodeSelector", {{"a", "b"}}},
                   {"tolerations", Json::array({{{"key", "gpu"}}})},
                   {"volumes", Json::array({{{"name", "v"}, {"emptyDir", Json::object()}}})},
                   {"securityContext", {{"runAsUser", 1000}}},
                   {"containers", Json::array({{{"name", "trainer"}, {"args", Json::array({"x"})}}})}}}})),
            "accepted");
}

TEST(S6Templates, AProfileMayHaveThemButNotWhatIsTheOperators) {
  Json profile = ProfileObject();
  profile["spec"]["nodeTemplate"]["spec"] = {
      {"serviceAccountName", "gpu"},
      {"hostNetwork", true},
      {"volumes", Json::array({{{"name", "v"}, {"hostPath", {{"path", "/data"}}}}})},
      {"containers", Json::array({{{"securityContext", {{"privileged", true}}}}})}};
  profile["spec"]["nodeTemplate"]["metadata"] = {{"labels", {{"team", "vision"}}}};
  EXPECT_TRUE(ParseTrainingProfile(profile).ok());
  profile["spec"]["nodeTemplate"]["metadata"] = {{"labels", {{"longhaul.dev/role", "server"}}}};
  EXPECT_THAT(ParseTrainingProfile(profile).status().message(), HasSubstr("is the operator's"));
  profile["spec"]["nodeTemplate"].erase("metadata");
  for (const char* ours :
       {"automountServiceAccountToken", "restartPolicy", "hostname", "shareProcessNamespace"}) {
    profile["spec"]["nodeTemplate"]["spec"] = {{ours, true}};
    const auto parsed = ParseTrainingProfile(profile);
    ASSERT_FALSE(parsed.ok()) << ours;
    EXPECT_THAT(parsed.status().message(), HasSubstr("is set by the operator: leave it out"));
  }
}

TEST(S5Updates, WhatMayChangeIsListedAndTheRestIsImmutable) {
  const Json before = JobObject();
  EXPECT_TRUE(CheckUpdate(before, before).ok());
  for (const auto& [pointer, value] : {std::pair<const char*, Json>{"/runPolicy", {{"suspend", true}}},
                                       {"/runPolicy", {{"activeDeadlineSeconds", 60}}},
                                       {"/elastic", {{"minNodes", 1}}}}) {
    EXPECT_TRUE(CheckUpdate(before, Changed(pointer, value)).ok()) << pointer;
  }
  for (const auto& [pointer, value, path] :
       {std::tuple<const char*, Json, const char*>{"/totalGPUs", 16, "spec.totalGPUs"},
        {"/image", "other", "spec.image"},
        {"/script/inline", "other", "spec.script.inline"},
        {"/profileRef/name", "h100", "spec.profileRef.name"},
        {"/server/port", 7701, "spec.server.port"},
        {"/data/subPath", "test", "spec.data.subPath"},
        {"/allocation", {{"strategy", "Balanced"}}, "spec.allocation"}}) {
    const Status status = CheckUpdate(before, Changed(pointer, value));
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << pointer;
    EXPECT_THAT(status.message(),
                testing::StartsWith(std::string(path) + ": cannot change once the job is there, only "
                                                        "spec.runPolicy and spec.elastic.minNodes can"));
  }
  EXPECT_EQ(CheckUpdate(before, Changed("/runPolicy", 7)).code(), StatusCode::kInvalidArgument);
}

TEST(S1Resources, HostileJsonIsRefusedAndNothingThrows) {
  Json deep = 1;
  for (int i = 0; i < 200'000; ++i) {
    Json outer = Json::array();
    outer.push_back(std::move(deep));
    deep = std::move(outer);
  }
  EXPECT_TRUE(DeeperThan(deep, kMaxDepth));
  Json job = JobObject();
  job["spec"]["node"] = std::move(deep);
  EXPECT_THAT(Refusal(job), HasSubstr("nested deeper than 32 levels"));
  EXPECT_FALSE(ParseTrainingJob(job)->spec_status.ok());

  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  const std::string text = Dump(Inline({{"spec", {{"containers", Json::array({{{"name", "trainer"}}})}}}}));
  int parsed = 0;
  for (int i = 0; i < 20'000 / LONGHAUL_SLOWNESS; ++i) {
    std::string bytes = text;
    for (uint64_t n = random.Below(4); n < 4; ++n) {
      static constexpr char kBytes[] = "{}[]\",:0-9.enul\xff\\ a";
      bytes[random.Below(bytes.size())] = kBytes[random.Below(sizeof kBytes - 1)];
    }
    const Json object = Json::parse(bytes, nullptr, false);
    if (object.is_discarded()) continue;
    ++parsed;
    (void)ParseTrainingJob(object);
    (void)ParseTrainingProfile(object);
    (void)CheckCreate(object);
    (void)CheckUpdate(JobObject(), object);
  }
  EXPECT_GT(parsed, 20);
}

TEST(S1Resources, AStatusComesBackAsItWasWritten) {
  JobStatus status;
  status.phase = Phase::kRestarting;
  status.reason = "NodesNotReady";
  status.message = "waits";
  status.requester = "ada";
  status.plan_hash = "0123";
  status.attempt = 3;
  status.observed_generation = 2;
  status.ready_nodes = "1/2";
  status.start_time = Seconds(kEpoch + 1);
  status.completion_time = Seconds(kEpoch + 2);
  status.round = 7;
  NodeStatus node;
  node.name = "resnet-node-0";
  node.site = "ams";
  node.gpus = 10;
  node.phase = NodePhase::kReady;
  node.pod_ip = "10.0.0.1";
  node.retries = 2;
  node.disruptions = 1;
  node.joined = true;
  node.last_exit_code = 137;
  node.retry_at = Seconds(kEpoch + 9);
  status.nodes = {node, {}};
  EXPECT_TRUE(status.Set("Started", ConditionStatus::kTrue, "Started", "all", Seconds(kEpoch)));
  EXPECT_EQ(ParseJobStatus(JobStatusJson(status)), status);
  EXPECT_EQ(JobStatusJson(status)["conditions"][0]["lastTransitionTime"], TimestampText(Seconds(kEpoch)));

  // A transition is a change of the status, not of its words.
  EXPECT_TRUE(status.Set("Started", ConditionStatus::kTrue, "Again", "all", Seconds(kEpoch + 5)));
  EXPECT_EQ(status.TrueSince("Started"), Seconds(kEpoch));
  EXPECT_FALSE(status.Set("Started", ConditionStatus::kTrue, "Again", "all", Seconds(kEpoch + 6)));
  EXPECT_TRUE(status.Set("Started", ConditionStatus::kFalse, "No", "", Seconds(kEpoch + 7)));
  EXPECT_EQ(status.Find("Started")->since, Seconds(kEpoch + 7));
  EXPECT_FALSE(status.IsTrue("Started"));
  EXPECT_FALSE(status.IsTrue("Degraded"));
}

TEST(S1Resources, TimestampsAreRfc3339) {
  for (const char* text :
       {"1970-01-01T00:00:00Z", "2026-11-28T07:53:28Z", "2000-02-29T23:59:59Z", "2261-12-31T23:59:59Z"}) {
    const auto time = ParseTimestamp(text);
    ASSERT_TRUE(time.has_value()) << text;
    EXPECT_EQ(TimestampText(*time), text);
  }
  EXPECT_EQ(ParseTimestamp("1970-01-02T00:00:01Z"), Seconds(86401));
  EXPECT_EQ(ParseTimestamp("2025-11-24T16:00:00.123456Z"), Seconds(kEpoch));
  for (const char* text : {"", "Z", "2026-11-28T07:53:28", "2026-11-28T07:53:28+01:00",
                           "2026-13-28T07:53:28Z", "2026-02-30T07:53:28Z", "2026-11-28T24:53:28Z",
                           "2026-11-28 07:53:28Z", "1969-11-28T07:53:28Z", "2262-11-28T07:53:28Z",
                           "2026-11-28T07:53:28.Z", "2026-11-28T07:53:28.1x2Z", "2o26-11-28T07:53:28Z"}) {
    EXPECT_FALSE(ParseTimestamp(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace longhaul::kube
