#include "worker/daemon/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace longhaul::worker {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class Hostfile : public ::testing::Test {
 protected:
  ~Hostfile() override { std::filesystem::remove(file_); }
  Result<Place> Read(const std::string& text) {
    std::ofstream(file_) << text;
    return PlaceFromHostfile(file_, {"here", "10.0.0.7"});
  }
  const std::string file_ = std::filesystem::temp_directory_path() / ("hosts" + std::to_string(::getpid()));
};

TEST_F(Hostfile, RanksAreInTheOrderOfItsLines) {
  const auto place = Read("# sites\n\n  a slots=3  # the first\n10.0.0.7 slots=2 max_slots=9\nb\n");
  ASSERT_TRUE(place.ok()) << place.status().ToString();
  EXPECT_EQ(place->first_rank, 3u);
  EXPECT_EQ(place->ranks, 2u);
  EXPECT_EQ(place->world_size, 6u);
}

TEST_F(Hostfile, WhatIsWrongIsNamedWithItsLine) {
  for (const auto& [text, words] : {std::pair{"a\nhere slots=0\n", "line 2: 'slots=0'"},
                                    {"here slots=1x\n", "line 1: 'slots=1x'"},
                                    {"here slots\n", "line 1: 'slots'"},
                                    {"here x\n", "line 1: 'x'"},
                                    {"here\n10.0.0.7\n", "line 2: this host is here twice"},
                                    {"here slots=65536\nb\n", "line 2: more than 65536"},
                                    {"a\n", "does not name this host (here)"}}) {
    const auto place = Read(text);
    EXPECT_EQ(place.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(place.status().message(), HasSubstr(words));
  }
  EXPECT_EQ(PlaceFromHostfile("/nonexistent", {"here"}).status().code(), StatusCode::kNotFound);
}

TEST(EnvironmentOfARank, IsThatOfTheLaunchersThatUsersKnow) {
  LaunchOptions options{.command = {"true"},
                        .place = {.first_rank = 4, .ranks = 2, .world_size = 8},
                        .join = "[::1]:77",
                        .restarts = 3,
                        .environment = {{"LONGHAUL_KEY", "k"}}};
  EXPECT_THAT(EnvironmentOfRank(options, 1, 2),
              AllOf(Contains("RANK=5"), Contains("LOCAL_RANK=1"), Contains("WORLD_SIZE=8"),
                    Contains("LOCAL_WORLD_SIZE=2"), Contains("LONGHAUL_RANK=5"), Contains("LONGHAUL_KEY=k"),
                    Contains("OMPI_COMM_WORLD_LOCAL_RANK=1"), Contains("DMLC_WORKER_ID=5"),
                    Contains("DMLC_PS_ROOT_URI=[::1]"), Contains("DMLC_PS_ROOT_PORT=77"),
                    Contains("TORCHELASTIC_RESTART_COUNT=2")));
  options.join = "";
  EXPECT_THAT(EnvironmentOfRank(options, 1, 0),
              AllOf(Contains("LONGHAUL_SITE_RANK=1"), Not(Contains(HasSubstr("LONGHAUL_RANK="))),
                    Contains("LOCAL_RANK=1"), Not(Contains("RANK=5"))));
}

TEST(NamesOfThisHostTest, AreItsNameAndItsAddresses) {
  EXPECT_THAT(NamesOfThisHost(), Contains("127.0.0.1"));
}

}  // namespace
}  // namespace longhaul::worker
