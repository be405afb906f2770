// Workers that come to a job that runs, and go.
#include <sstream>

#include "tests/e2e/support/job.h"

namespace longhaul::e2e {
namespace {

using Ranks = std::vector<uint32_t>;

class Elastic : public JobTest {
 protected:
  static std::vector<nlohmann::json> Events(const Program& worker) {
    std::vector<nlohmann::json> events;
    std::istringstream output(worker.Output());
    for (std::string line; std::getline(output, line);) {
      nlohmann::json event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (event.is_object()) events.push_back(std::move(event));
    }
    return events;
  }
  // The worker's last word on which ranks are in.
  static Ranks RanksOf(const Program& worker) {
    Ranks ranks;
    for (const nlohmann::json& line : Events(worker)) {
      if (line.value("event", "") == "membership") ranks = line.at("ranks").get<Ranks>();
    }
    return ranks;
  }
  // Rounds of the worker after it heard of three members until three contribute.
  static int RoundsUntilThreeContribute(const Program& worker) {
    bool heard = false;
    int rounds = 0;
    for (const nlohmann::json& line : Events(worker)) {
      if (line.value("event", "") == "membership") heard |= line.at("ranks").size() == 3;
      if (!heard || line.value("event", "") != "round") continue;
      if (line.at("report").value("contributors", 0) == 3) return rounds;
      ++rounds;
    }
    return -1;
  }
};

TEST_F(Elastic, ANewcomerContributesWithinTwoRoundsAndEveryWorkerKnowsOfIt) {
  Program& server =
      StartServer({{"--workers", "4"}, {"--min-workers", "1"}, {"--start-workers", "2"}, {"--once", ""}});
  const Flags flags = {{"--world-size", "4"}, {"--rounds", "100000"}, {"--fault", "delay=10ms"}};
  Program& first = StartWorker(0, flags);
  Program& second = StartWorker(2, flags);
  ASSERT_TRUE(first.WaitForLine("\"round\":5,")) << first.Everything() << server.Everything();
  EXPECT_EQ(RanksOf(first), (Ranks{0, 2}));
  Program& third = StartWorker(3, flags);
  ASSERT_TRUE(third.WaitForEvent("round")) << third.Everything();
  ASSERT_TRUE(Eventually([&] { return RoundsUntilThreeContribute(first) >= 0; })) << first.Everything();
  EXPECT_LE(RoundsUntilThreeContribute(first), 2);
  EXPECT_EQ(RanksOf(third), (Ranks{0, 2, 3}));
  second.Signal(SIGKILL);
  for (Program* left : {&first, &third}) {
    EXPECT_TRUE(Eventually([&] { return RanksOf(*left) == Ranks{0, 3}; })) << left->Everything();
  }
  for (Program* left : {&first, &third}) left->Signal(SIGTERM);
  first.WaitForEnd();
  third.WaitForEnd();
}

TEST_F(Elastic, AJobThatStartsWithFewerThanItNeedsIsAWrongCommandLine) {
  Program& server = Start("longhaul-server",
                          {"--insecure", "--workers", "4", "--min-workers", "3", "--start-workers", "2"});
  ExpectEnd(server, 2);
  EXPECT_THAT(server.Everything(),
              ::testing::HasSubstr("--start-workers 2 is not in 3..4 (--min-workers..--workers)"));
}

}  // namespace
}  // namespace longhaul::e2e
