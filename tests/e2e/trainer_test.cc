// longhaul-trainer is a program like any of a user's: longhaul-worker starts it, by its name or for want of a
// command.
#include <fstream>

#include "tests/e2e/support/job.h"

namespace longhaul::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

class Trainer : public JobTest {
 protected:
  static std::string ProgramOf(pid_t pid) {
    const std::string line = CommandLine(pid);
    const std::string path = line.substr(0, line.find(' '));
    return path.substr(path.rfind('/') + 1);
  }
  Words OfConnection() const { return {"--join", address(), "--key", key_file()}; }
  Words OfTraining(const std::string& rounds) const {
    return {"--rounds", rounds, "--batch", "16", "--data", dataset(), "--progress", "json"};
  }
  Program& Launch(std::initializer_list<Words> parts) {
    Words words;
    for (const Words& part : parts) words.insert(words.end(), part.begin(), part.end());
    return Start("longhaul-worker", words);
  }
  const std::string path_ = std::string(LONGHAUL_PROGRAMS) + "/longhaul-trainer";
};

// A rank costs one process, which knows of the connection by its environment.
TEST_F(Trainer, TakesTheProcessOfALauncherThatHasOneRank) {
  StartRunningJob();
  for (const size_t rank : {0, 1}) {
    EXPECT_EQ(ProgramOf(worker(rank).pid()), "longhaul-trainer");
    EXPECT_TRUE(Descendants(worker(rank).pid()).empty());
    EXPECT_THAT(CommandLine(worker(rank).pid()), AllOf(HasSubstr("--rounds 200"), Not(HasSubstr("--join"))));
  }
  ExpectRunningJobFinishes();
}

TEST_F(Trainer, IsThatOfAllRanksOfAHostAndTakesTheirConnectionFromTheLauncher) {
  Program& server = StartServer({{"--once", ""}});
  Program& launcher =
      Launch({OfConnection(),
              {"--world-size", "2", "--ranks", "2", "--weight", "2.5", "--fault", "delay=10ms"},
              OfTraining("50")});
  ASSERT_TRUE(launcher.WaitForEvent("round")) << launcher.Everything();
  Program& status = Start("longhaul", {"status", "--join", address(), "--key", key_file()});
  ExpectEnd(status, 0);
  const auto members = nlohmann::json::parse(status.Output(), nullptr, false)["members"];
  ASSERT_EQ(members.size(), 2u) << status.Everything();
  for (const auto& member : members) EXPECT_EQ(member.value("weight", 0.0), 2.5) << "not that of its shard";
  ExpectEnd(launcher, 0);
  ExpectEnd(server, 0);
  EXPECT_TRUE(launcher.FindEvent("finished")) << launcher.Everything();
}

TEST_F(Trainer, IsACommandLikeAnyOtherAndItsExitCodeIsTheLaunchers) {
  Program& server = StartServer({{"--once", ""}, {"--workers", "1"}});
  Program& fails = Launch({OfConnection(), {"--", path_, "--data", directory() + "/nothing"}});
  ExpectEnd(fails, 3);
  EXPECT_THAT(fails.Errors(),
              HasSubstr("longhaul-trainer: NotFound: cannot open " + directory() + "/nothing"));
  Program& trains = Launch({OfConnection(), {"--", path_}, OfTraining("5")});
  ExpectEnd(trains, 0);
  ExpectEnd(server, 0);
}

TEST_F(Trainer, AnExitCodeReachesRun) {
  Program& run = Start("longhaul", {"run", "--wan", "loopback", "--workers", "1", "--logs",
                                    directory() + "/logs", "--", path_, "--data", directory() + "/nothing"});
  ExpectEnd(run, 1);
  EXPECT_THAT(run.Errors(),
              AllOf(HasSubstr("workersB ended with code 3"), HasSubstr("dataset-fashion-mnist")));
}

TEST_F(Trainer, IsNotLeftByALauncherThatIsKilled) {
  StartServer();
  Program& launcher = Launch({OfConnection(), {"--world-size", "2", "--ranks", "2"}, OfTraining("1000000")});
  ASSERT_TRUE(launcher.WaitForEvent("round")) << launcher.Everything();
  const auto ranks = Descendants(launcher.pid());
  ASSERT_EQ(ranks.size(), 2u);
  for (const auto& [pid, start] : ranks) EXPECT_EQ(ProgramOf(pid), "longhaul-trainer");
  launcher.Signal(SIGKILL);
  ExpectEnd(launcher, 128 + SIGKILL);
  EXPECT_TRUE(Eventually([&] { return CountAlive(ranks) == 0; }));
}

// Each program takes from the file what is its own.
TEST_F(Trainer, SharesAConfigFileWithItsLauncher) {
  Program& server = StartServer({{"--once", ""}, {"--workers", "1"}});
  const std::string file = directory() + "/worker.toml";
  std::ofstream(file) << "join = \"" << address() << "\"\nkey = \"" << key_file()
                      << "\"\nrounds = 1000000\nbatch = 16\nconstant-lr = true\ndata = \"" << dataset()
                      << "\"\nprogress = \"json\"\n";
  Program& worker = Launch({{"--config", file, "--rounds=3"}});
  ExpectEnd(worker, 0);
  ExpectEnd(server, 0);
  const auto finished = worker.FindEvent("finished");
  ASSERT_TRUE(finished) << worker.Everything();
  EXPECT_EQ(finished->value("rounds", 0), 3);

  for (const auto& [text, word] : {std::pair{"roundz = 3\n", "--roundz=3"},
                                   std::pair{"config = \"other\"\n", "line 1: unknown option config"},
                                   std::pair{"[trainer]\nrounds = 3\n", "there are no sections"}}) {
    std::ofstream(file) << text;
    Program& mistaken = Launch({OfConnection(), {"--config", file}});
    ExpectEnd(mistaken, 2);
    EXPECT_THAT(mistaken.Errors(), HasSubstr(word));
  }
  std::ofstream(file) << "rounds = 3\n";
  Program& meaningless = Launch({OfConnection(), {"--config", file, "--", "true"}});
  ExpectEnd(meaningless, 2);
  EXPECT_THAT(meaningless.Errors(), HasSubstr("--rounds=3 has no meaning with a command"));
}

TEST_F(Trainer, AloneSaysWhatStartsIt) {
  Program& trainer = Start("longhaul-trainer", Words{"--data", dataset()});
  ExpectEnd(trainer, 2);
  EXPECT_THAT(trainer.Errors(),
              AllOf(HasSubstr("one of --join and --offload"), HasSubstr("longhaul-worker")));
}

}  // namespace
}  // namespace longhaul::e2e
