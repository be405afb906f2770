#include "pslite/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace longhaul::pslite {
namespace {

using ::testing::HasSubstr;

// A right environment; the process' own comes back at the end.
class PsSettings : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "MASTER_ADDR", "LONGHAUL_JOIN", "LONGHAUL_KEY", "LONGHAUL_INSECURE"})
      Set(name, nullptr);
    Set("DMLC_ROLE", "worker");
    Set("DMLC_NUM_WORKER", "4");
    Set("DMLC_NUM_SERVER", "2");
    Set("DMLC_PS_ROOT_URI", "10.0.0.1");
    Set("DMLC_PS_ROOT_PORT", "8000");
  }
  void TearDown() override {
    for (const auto& [name, value] : before_) Set(name, value.empty() ? nullptr : value.c_str());
  }
  void Set(const std::string& name, const char* value) {
    const char* const now = std::getenv(name.c_str());
    before_.try_emplace(name, now == nullptr ? "" : now);
    value == nullptr ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value, 1);
  }
  void ExpectWrong(const std::string& name, const char* value, const std::string& words) {
    const char* const now = std::getenv(name.c_str());
    const std::string right = now == nullptr ? "" : now;
    Set(name, value);
    const auto place = ReadPlace();
    EXPECT_EQ(place.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(place.status().message(), HasSubstr(words));
    Set(name, right.c_str());
  }

 private:
  std::map<std::string, std::string> before_;
};

TEST_F(PsSettings, AreThoseOfPsLite) {
  const auto place = ReadPlace();
  ASSERT_TRUE(place.ok()) << place.status().ToString();
  EXPECT_EQ(place->role, Role::kWorker);
  EXPECT_EQ(place->workers, 4u);
  EXPECT_EQ(place->servers, 2u);
  EXPECT_EQ(place->scheduler, "10.0.0.1:8000");
}

TEST_F(PsSettings, ThatAreWrongAreNamed) {
  ExpectWrong("DMLC_ROLE", nullptr, "DMLC_ROLE is not set");
  ExpectWrong("DMLC_ROLE", "master", "DMLC_ROLE is 'master': wanted is scheduler, server or worker");
  ExpectWrong("DMLC_NUM_WORKER", nullptr, "DMLC_NUM_WORKER is not set");
  ExpectWrong("DMLC_NUM_WORKER", "2x", "DMLC_NUM_WORKER is '2x'");
  ExpectWrong("DMLC_NUM_SERVER", "0", "DMLC_NUM_SERVER is '0'");
  ExpectWrong("DMLC_NUM_SERVER", "5000", "wanted is 1 to 4096");
  ExpectWrong("DMLC_PS_ROOT_PORT", "70000", "DMLC_PS_ROOT_PORT is '70000'");
  ExpectWrong("DMLC_PS_ROOT_URI", nullptr, "DMLC_PS_ROOT_URI is not set");
}

TEST_F(PsSettings, AskForAKeyOrForInsecureByAddress) {
  const Place place = *ReadPlace();
  EXPECT_THAT(ReadConnection(place).status().message(), HasSubstr("LONGHAUL_INSECURE=10.0.0.1:8000"));
  Set("LONGHAUL_INSECURE", "10.0.0.2:8000");
  EXPECT_THAT(ReadConnection(place).status().message(),
              HasSubstr("LONGHAUL_INSECURE is for 10.0.0.2:8000, and the scheduler is 10.0.0.1:8000"));
  Set("LONGHAUL_INSECURE", "10.0.0.1:8000");
  ASSERT_TRUE(ReadConnection(place).ok());
  EXPECT_TRUE(ReadConnection(place)->insecure);
  Set("LONGHAUL_KEY", "job.key");
  EXPECT_FALSE(ReadConnection(place)->insecure);
  EXPECT_EQ(ReadConnection(place)->key_file, "job.key");
  Set("LONGHAUL_IDLE_TIMEOUT", "soon");
  EXPECT_THAT(ReadConnection(place).status().message(), HasSubstr("idle-timeout"));
  Set("LONGHAUL_IDLE_TIMEOUT", nullptr);
}

TEST_F(PsSettings, DoNotTakeALaunchersRankForTheirOwn) {
  Set("LONGHAUL_KEY", "job.key");
  Set("RANK", "7");
  Set("MASTER_ADDR", "10.9.9.9");
  const auto options = ReadConnection(*ReadPlace());
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->servers.at(0), "10.0.0.1:8000");
}

}  // namespace
}  // namespace longhaul::pslite
