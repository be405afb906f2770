#include "worker/c/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace longhaul::c {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Variables of the process, as they were at the end.
class ConnectSettings : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LONGHAUL_JOIN", "LONGHAUL_INSECURE"})
      Set(name, nullptr);
  }
  void TearDown() override {
    for (const auto& [name, value] : before_) {
      if (value.empty()) {
        ::unsetenv(name.c_str());
      } else {
        ::setenv(name.c_str(), value.c_str(), 1);
      }
    }
  }
  void Set(const std::string& name, const char* value) {
    const char* const now = std::getenv(name.c_str());
    before_.try_emplace(name, now == nullptr ? "" : now);
    if (value == nullptr) {
      ::unsetenv(name.c_str());
    } else {
      ::setenv(name.c_str(), value, 1);
    }
  }
  static Result<ConnectOptions> Parse(std::vector<const char*> settings) { return ParseConnect(settings); }

 private:
  std::map<std::string, std::string> before_;
};

TEST_F(ConnectSettings, AreTheOptionsOfTheWorker) {
  const auto options = Parse({"join=a:1", "rank=2", "world-size=3", "insecure=true", "rate-cap=100mbit",
                              "idle-timeout=1.5", "cipher=aes-128-gcm", "weight=4", "state-dir=s", "rank=1"});
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_THAT(options->servers, ElementsAre("a:1"));
  EXPECT_EQ(options->rank, 1u) << "the last one counts";
  EXPECT_EQ(options->world_size, 3u);
  EXPECT_TRUE(options->insecure);
  EXPECT_EQ(options->rate_cap.mbps(), 100);
  EXPECT_EQ(options->idle_timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(options->weight, 4);
  EXPECT_EQ(options->state_dir, "s");
}

TEST_F(ConnectSettings, ComeFromTheEnvironmentWhereTheyAreNotGiven) {
  Set("RANK", "5");
  Set("WORLD_SIZE", "8");
  Set("MASTER_ADDR", "::1");
  Set("LONGHAUL_RANK", "3");
  Set("LONGHAUL_IDLE_TIMEOUT", "7");
  auto options = Parse({"idle-timeout=2"});
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_THAT(options->servers, ElementsAre("[::1]:7700"));
  EXPECT_EQ(options->rank, 3u);
  EXPECT_EQ(options->world_size, 8u);
  EXPECT_EQ(options->idle_timeout, std::chrono::seconds(2));
  // A site's ranks have no place of their own.
  options = Parse({"offload=unix:x"});
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->rank, 0u);
}

TEST_F(ConnectSettings, WhatIsGivenStandsAlone) {
  Set("LONGHAUL_OFFLOAD", "unix:x");
  Set("LONGHAUL_SITE_RANK", "1");
  Set("LONGHAUL_KEY", "k");
  auto options = Parse({"join=a:1", "insecure=true"});
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_TRUE(options->insecure && options->key_file.empty() && options->offload.empty());
  options = Parse({"join=a:1", "insecure=false"});
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->key_file, "k");
  Set("LONGHAUL_KEY", nullptr);
  options = Parse({});
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->offload, "unix:x");
  EXPECT_EQ(options->site_rank, 1);
}

TEST_F(ConnectSettings, InsecureOfTheEnvironmentIsForOneAddress) {
  Set("LONGHAUL_INSECURE", "a:1");
  EXPECT_TRUE(Parse({"join=a:1"})->insecure);
  EXPECT_FALSE(Parse({"join=a:2"})->insecure);
  EXPECT_FALSE(Parse({"join=a:1", "key=k"})->insecure);
  Set("LONGHAUL_INSECURE", "true");
  EXPECT_FALSE(Parse({"join=a:1"})->insecure);
}

TEST_F(ConnectSettings, ThatAreWrongAreNamed) {
  const std::vector<std::pair<std::vector<const char*>, const char*>> cases = {
      {{"join"}, "NAME=VALUE"},
      {{"=a"}, "NAME=VALUE"},
      {{""}, "NAME=VALUE"},
      {{nullptr}, "null"},
      {{"join=a:1", "colour=red"}, "no setting 'colour'"},
      {{"join=a:1", "help=1"}, "no setting 'help'"},
      {{"join=a:1", "allow-core-dump=1"}, "no setting"},
      {{"join=a:1", "rank=x"}, "x"},
      {{"join=a:1", "rank="}, "missing"},
      {{"join=a:1", "rank=-1"}, "negative"},
      {{"join=a:1", "idle-timeout=nan"}, "finite"},
      {{"join=a:1", "idle-timeout=0"}, "0.1"},
      {{"join=a:1", "rank=1"}, "not below"},
      {{"join=a:1", "rate-cap=1mbit", "rate-floor=2mbit"}, "above"},
      {{"join=a:1", "key=k", "insecure=true"}, "excludes"},
      {{"join=a:1", "site-rank=1"}, "--site-rank needs"},
      {{}, "one of --join and --offload"}};
  for (const auto& [settings, words] : cases) {
    const auto options = Parse(settings);
    EXPECT_EQ(options.status().code(), StatusCode::kInvalidArgument) << words;
    EXPECT_THAT(options.status().message(), HasSubstr(words));
  }
}

TEST(TensorSettings, AreThoseOfTensorOptions) {
  const std::vector<const char*> given = {"wire-dtype=int2",    "topk-share=0.015625", "priority=-3",
                                          "optimizer=sgd:lr=1", "high-share=0.25",     "staleness=-1",
                                          "quorum=2",           "high=0:16",           "high=4096:4096",
                                          "high-energy=0.5",    "result-dtype=float16"};
  const auto options = ParseTensor(given);
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->wire_dtype, DType::kInt2);
  EXPECT_EQ(options->topk_share, 1.0 / 64);
  EXPECT_EQ(options->result_dtype, DType::kFloat16);
  EXPECT_EQ(options->priority, -3);
  EXPECT_EQ(options->optimizer, "sgd:lr=1");
  EXPECT_EQ(options->high_share, 0.25);
  EXPECT_EQ(options->high_energy, 0.5);
  EXPECT_EQ(options->staleness, -1);
  EXPECT_EQ(options->quorum, 2u);
  EXPECT_THAT(options->high_ranges,
              ElementsAre(TensorOptions::Range{0, 16}, TensorOptions::Range{4096, 4096}));
  for (const char* wrong : {"wire-dtype=int3", "topk-share=2", "result-dtype=int8", "high=5", "high=5:",
                            "high=:5", "high=1:2:3", "high-share=2", "quorum=-1", "staleness=x", "rank=1"}) {
    const std::vector<const char*> one = {wrong};
    EXPECT_EQ(ParseTensor(one).status().code(), StatusCode::kInvalidArgument) << wrong;
  }
}

}  // namespace
}  // namespace longhaul::c
