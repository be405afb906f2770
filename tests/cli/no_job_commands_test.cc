// The four commands in a build without LONGHAUL_OPERATOR.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/job_commands.h"

namespace longhaul::cli {
namespace {

using ::testing::HasSubstr;

TEST(NoJobCommands, SayHowToGetThem) {
  CLI::App app;
  JobCommands none(app);
  EXPECT_EQ(none.given(), "");
  EXPECT_TRUE(app.get_subcommands([](const CLI::App*) { return true; }).empty());
  for (const char* word : {"submit", "jobs", "logs", "cancel"}) {
    EXPECT_THAT(JobCommands::WhyAbsent(word), HasSubstr("'" + std::string(word) + "' is not in this build"));
    EXPECT_THAT(JobCommands::WhyAbsent(word), HasSubstr("-DLONGHAUL_OPERATOR=ON"));
  }
  EXPECT_EQ(JobCommands::WhyAbsent("run"), "");
}

}  // namespace
}  // namespace longhaul::cli
