#include "cli/jobs/job_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "operator/resource/timestamps.h"

namespace longhaul::cli {
namespace {

using nlohmann::json;
using std::chrono::seconds;
using ::testing::HasSubstr;

const Instant kNow = *kube::ParseTimestamp("2026-11-28T12:00:00Z");

json Job() {
  return json::parse(R"({
    "metadata": {"name": "resnet", "namespace": "training", "creationTimestamp": "2026-11-28T11:54:30Z",
                 "annotations": {"longhaul.dev/requester": "alice"}},
    "spec": {"totalGPUs": 15, "image": "worker", "profileRef": {"name": "a100"}},
    "status": {"phase": "Running", "readyNodes": "1/2", "progress": {"round": 120},
      "reason": "NodeNotReady", "message": "node 1 is starting",
      "nodes": [{"name": "resnet-node-0", "gpus": 10, "phase": "Ready", "podIP": "10.0.0.7", "retries": 0, "disruptions": 0},
                {"name": "resnet-node-1", "site": "fra", "gpus": 5, "phase": "Starting", "retries": 2, "disruptions": 1,
                 "lastExitCode": 137}],
      "conditions": [{"type": "Planned", "status": "True", "reason": "Planned", "message": "10 + 5",
                      "lastTransitionTime": "2026-11-28T11:54:35Z"}]}})");
}

TEST(JobText, TheTableIsThatOfKubectl) {
  json fresh = {{"metadata", {{"name", "b"}, {"creationTimestamp", "2026-11-28T11:59:15Z"}}},
                {"spec", {{"totalGPUs", 3}}}};
  EXPECT_EQ(JobTable({Job(), fresh}, false, kNow),
            "NAME     PHASE     GPUS   READY   ROUND   AGE\n"
            "resnet   Running   15     1/2     120     5m30s\n"
            "b        -         3      -       -       45s\n");
  EXPECT_EQ(JobTable({Job()}, true, kNow),
            "NAMESPACE   NAME     PHASE     GPUS   READY   ROUND   AGE\n"
            "training    resnet   Running   15     1/2     120     5m30s\n");
}

TEST(JobText, OfOneJobAllIsSaid) {
  const json events = {{{"type", "Warning"},
                        {"reason", "Second"},
                        {"message", "late"},
                        {"count", 3},
                        {"lastTimestamp", "2026-11-28T11:59:00Z"}},
                       {{"type", "Normal"},
                        {"reason", "First"},
                        {"message", "early"},
                        {"eventTime", "2026-11-28T11:55:00.5Z"}}};
  const std::string text = JobDescription(Job(), events, kNow);
  for (const char* part :
       {"Name:        resnet\n", "Requester:   alice\n", "Profile:     a100\n",
        "State:       Running, 1/2 nodes ready, round 120, NodeNotReady: node 1 is starting\n",
        "  resnet-node-1   fra    5      Starting   -          2         1             137\n",
        "  Planned   True     5m25s   Planned   10 + 5\n", "  60s   Warning   Second   3       late\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_LT(text.find("First"), text.find("Second"));
  EXPECT_THAT(JobDescription({{"metadata", {{"name", "a"}}}}, {}, kNow),
              HasSubstr("is longhaul-operator running?"));
}

TEST(JobText, WhatAClusterSaysCommandsNoTerminal) {
  json job = Job();
  job["metadata"]["name"] = "a\x1b[2J\nb";
  job["status"]["message"] = "\x1b]0;x\x07";
  job["status"]["conditions"][0]["message"] = "\x1b";
  for (const std::string& text : {JobTable({job}, true, kNow), JobDescription(job, {job}, kNow)})
    EXPECT_EQ(text.find_first_of("\x1b\x07"), std::string::npos);
}

TEST(JobText, AgesAreThoseOfKubectl) {
  const std::pair<int, const char*> ages[] = {
      {-5, "0s"},      {119, "119s"},   {120, "2m"},      {330, "5m30s"},   {599, "9m59s"},
      {600, "10m"},    {10799, "179m"}, {10800, "3h"},    {26000, "7h13m"}, {28800, "8h"},
      {172799, "47h"}, {172800, "2d"},  {180000, "2d2h"}, {691200, "8d"}};
  for (const auto& [age, text] : ages) EXPECT_EQ(AgeText(seconds(age)), text);
}

}  // namespace
}  // namespace longhaul::cli
