#include "cli/jobs/job_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace longhaul::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kHead = "apiVersion: longhaul.dev/v1alpha1\nkind: TrainingJob\n";
const std::string kYaml = kHead +
                          "metadata: {name: resnet}\n"
                          "spec:\n"
                          "  profileRef: {name: a100}\n"
                          "  totalGPUs: 15\n"
                          "  image: registry.example/worker\n"
                          "  script:\n"
                          "    inline: |\n"
                          "      #!/bin/sh\n"
                          "      exec train\n";

json Read(const std::string& text) {
  auto job = ReadJobText(text);
  EXPECT_TRUE(job.ok()) << job.status().message();
  return job.ok() ? *job : json();
}
std::string Problem(const std::string& text) {
  const auto job = ReadJobText(text);
  EXPECT_FALSE(job.ok());
  return job.ok() ? "" : job.status().message();
}

TEST(JobFile, YamlAndJsonMeanTheSame) {
  const json job = Read(kYaml);
  EXPECT_EQ(job["spec"]["totalGPUs"], 15);
  EXPECT_EQ(job["spec"]["script"]["inline"], "#!/bin/sh\nexec train\n");
  EXPECT_EQ(Read(job.dump()), job);
  EXPECT_EQ(Read("\n  " + job.dump(2)), job);
}

TEST(JobFile, ScalarsAreWhatTheyLookLikeAndQuotedOnesAreText) {
  const json x = Read(kHead +
                      "x: [7, -7, +7, '7', \"true\", true, False, null, ~, 1.5, 1e3, 0x1f, 010, 2026-11-28, "
                      "10Gi, .inf, nan, -, '', 99999999999999999999]\n")["x"];
  EXPECT_EQ(x, json({7,      -7,     7,  "7",          "true", true,   false, nullptr, nullptr, 1.5,
                     1000.0, "0x1f", 10, "2026-11-28", "10Gi", ".inf", "nan", "-",     "",      1e20}));
}

TEST(JobFile, WhatIsNoJobIsRefusedInWords) {
  EXPECT_THAT(Problem(""), HasSubstr("empty"));
  EXPECT_THAT(Problem(" \n"), HasSubstr("empty"));
  EXPECT_THAT(Problem("text"), HasSubstr("no object"));
  EXPECT_THAT(Problem("{\"kind\": "), HasSubstr("no JSON"));
  EXPECT_THAT(Problem("a: [1"), HasSubstr("no YAML"));
  EXPECT_THAT(Problem(kYaml + "---\n" + kYaml), HasSubstr("2 documents"));
  EXPECT_THAT(Problem("apiVersion: v1\nkind: Pod\n"), HasSubstr("kind Pod of v1 is not submitted"));
  EXPECT_THAT(Problem(kHead + "a: 1\nb: 2\na: 3\n"), HasSubstr("line 5: a is there twice"));
  EXPECT_THAT(Problem(kHead + "[1, 2]: 3\n"), HasSubstr("no text"));
  EXPECT_THAT(Problem(std::string(kMaxJobFileBytes + 1, ' ')), HasSubstr("larger than 1048576"));
}

TEST(JobFile, BombsAreRefused) {
  std::string aliases = kHead + "a0: &a0 [0,0,0,0,0,0,0,0,0,0]\n";
  for (int i = 1; i < 9; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    aliases += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + before;
    for (int k = 0; k < 9; ++k) aliases += ", " + before;
    aliases += "]\n";
  }
  EXPECT_THAT(Problem(aliases), HasSubstr("more than 100000 values"));
  EXPECT_THAT(Problem(kHead + "a: " + std::string(100, '[') + std::string(100, ']')), HasSubstr("64 levels"));
  EXPECT_THAT(Problem(kHead + "a: " + std::string(100'000, '[')), HasSubstr("no YAML"));
}

TEST(JobFile, OptionsMakeTheJobThatTheFileWouldBe) {
  json job = MakeJob({.name = "resnet",
                      .gpus = 15,
                      .image = "registry.example/worker",
                      .profile = "a100",
                      .script = "#!/bin/sh\nexec train\n",
                      .claim = ""});
  EXPECT_EQ(job, Read(kYaml));
  EXPECT_TRUE(PrepareJob("", "training", &job).ok());
  job = MakeJob(
      {.name = "resnet", .gpus = 15, .image = "i", .profile = "a100", .script = "x", .claim = "imagenet"});
  EXPECT_EQ(job["spec"]["data"]["claimName"], "imagenet");
  EXPECT_TRUE(PrepareJob("", "training", &job).ok());
}

TEST(JobFile, TheNamespaceIsTheFilesOrTheOptionsOrTheContexts) {
  json job = Read(kYaml);
  ASSERT_TRUE(PrepareJob("", "usual", &job).ok());
  EXPECT_EQ(job["metadata"]["namespace"], "usual");
  job = Read(kYaml);
  ASSERT_TRUE(PrepareJob("typed", "usual", &job).ok());
  EXPECT_EQ(job["metadata"]["namespace"], "typed");
  ASSERT_TRUE(PrepareJob("", "usual", &job).ok());
  EXPECT_EQ(job["metadata"]["namespace"], "typed");
  EXPECT_THAT(PrepareJob("other", "usual", &job).message(), HasSubstr("leave one of them out"));
}

TEST(JobFile, WhatTheClusterWouldRefuseIsSaidBefore) {
  json job = Read(kYaml);
  job["spec"]["totalGPUs"] = 0;
  EXPECT_THAT(PrepareJob("", "n", &job).message(), HasSubstr("spec.totalGPUs"));
  job = Read(kHead + "spec: {}\n");
  EXPECT_THAT(PrepareJob("", "n", &job).message(), HasSubstr("metadata"));
}

}  // namespace
}  // namespace longhaul::cli
