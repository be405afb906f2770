// A site with real daemons:   worker 0 ─┐
//                             worker 1 ─┼─ shared memory ─ longhaul-offload ─ loopback ─ server
//                             worker 2 ─┤
//                             worker 3 ─┘
#include <csignal>
#include <iostream>

#include "tests/e2e/support/job.h"

namespace longhaul::e2e {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class SiteJob : public JobTest {
 protected:
  static constexpr int kRanks = 4;
  static constexpr int kRounds = 30;

  std::string JsonFile(const std::string& of) const { return directory() + "/" + of + ".json"; }
  json Summary(const std::string& of) const {
    return json::parse(ReadFile(JsonFile(of)), nullptr, /*allow_exceptions=*/false);
  }
  std::string socket() const { return directory() + "/site.sock"; }

  // Everything arrives, however busy the machine is: bytes of two runs can be compared.
  Program& StartSiteServer(int members, const Flags& more = {}) {
    return StartServer(Merged({{"--workers", std::to_string(members)},
                               {"--once", ""},
                               {"--high-share", "1"},
                               {"--json", JsonFile("server")}},
                              more));
  }
  Program& StartOffload(const Flags& more = {}) {
    const Flags flags = Merged({{"--listen", socket()},
                                {"--ranks-per-node", std::to_string(kRanks)},
                                {"--server", address()},
                                {"--key", key_file()},
                                {"--site", "here"},
                                {"--idle-timeout", std::to_string(kIdleSeconds)},
                                {"--progress", "json"},
                                {"--json", JsonFile("offload")}},
                               more);
    std::vector<std::string> words;
    for (const auto& [name, value] : flags) {
      words.push_back(name);
      if (!value.empty()) words.push_back(value);
    }
    Program& offload = Start("longhaul-offload", words);
    EXPECT_TRUE(offload.WaitForEvent("listening")) << offload.Everything();
    return offload;
  }
  Program& StartRank(const std::string& rounds, int rank) {
    return Start(
        "longhaul-worker",
        {"--offload", "unix:" + socket(), "--site-rank", std::to_string(rank), "--rounds", rounds, "--batch",
         "16", "--data", dataset(), "--eval-every", "0", "--progress", "json", "--idle-timeout",
         std::to_string(kIdleSeconds), "--json", JsonFile("worker" + std::to_string(rank))});
  }
  std::vector<Program*> StartRanks(int rounds) {
    std::vector<Program*> ranks;
    for (int rank = 0; rank < kRanks; ++rank) ranks.push_back(&StartRank(std::to_string(rounds), rank));
    return ranks;
  }
};

TEST_F(SiteJob, FourRanksCostTheBytesOfOne) {
  int64_t up[2], down[2];
  double accuracy[2];
  for (const bool site : {false, true}) {
    Program& server = StartSiteServer(site ? 1 : kRanks);
    std::vector<Program*> workers;
    Program* const offload = site ? &StartOffload() : nullptr;
    if (site) {
      workers = StartRanks(kRounds);
    } else {
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        workers.push_back(&StartWorker(rank, {{"--world-size", std::to_string(kRanks)},
                                              {"--rounds", std::to_string(kRounds)},
                                              {"--json", JsonFile("worker" + std::to_string(rank))}}));
      }
    }
    for (Program* worker : workers) ExpectEnd(*worker, 0);
    if (offload != nullptr) ExpectEnd(*offload, 0);
    ExpectEnd(server, 0);
    up[site] = Summary("server").value("bytes_up", int64_t{0});
    down[site] = Summary("server").value("bytes_down", int64_t{0});
    accuracy[site] = Summary("worker0").value("accuracy", 0.0);
  }
  std::cout << "WAN bytes of " << kRanks << " workers: " << up[0] << " up, " << down[0]
            << " down; of a site of them: " << up[1] << " up, " << down[1] << " down\n";
  ASSERT_GT(up[0], 0);
  const double most = 1.0 / kRanks + 0.03;
  EXPECT_LE(static_cast<double>(up[1]), most * static_cast<double>(up[0]));
  EXPECT_LE(static_cast<double>(down[1]), most * static_cast<double>(down[0]));
  EXPECT_GT(accuracy[0], 0.9);
  EXPECT_GT(accuracy[1], 0.9);
  const json offload = Summary("offload");
  EXPECT_GT(offload["wan"].value("bytes_sent", int64_t{0}), kRounds * 100'000);
  EXPECT_EQ(offload["wan"].value("operations_failed", 99), 0);
  EXPECT_EQ(offload["nodes"][0].value("messages_failed", 99), 0);
  EXPECT_EQ(Summary("worker3").value("rank", 0), 3);
}

TEST_F(SiteJob, ARankThatIsKilledIsNamedAndTheOthersFinish) {
  Program& server = StartSiteServer(1);
  Program& offload = StartOffload({{"--fault", "delay=5ms"}});
  const std::vector<Program*> ranks = StartRanks(200);
  ASSERT_TRUE(ranks[2]->WaitForEvent("round")) << ranks[2]->Everything();
  ranks[2]->Signal(SIGKILL);
  EXPECT_TRUE(offload.WaitForError("rank 2 of the site has died: the site goes on with 3 ranks"));
  for (const int rank : {0, 1, 3}) {
    ExpectEnd(*ranks[rank], 0);
    EXPECT_EQ(Summary("worker" + std::to_string(rank)).value("rounds", 0), 200);
  }
  // It is no end in order: the server learns of the death.
  ExpectEnd(offload, 1);
  EXPECT_THAT(offload.Errors(), HasSubstr("rank 2 of the site has died"));
  (void)server.WaitForEnd();
}

TEST_F(SiteJob, ARelayThatIsKilledIsNamedByEveryRank) {
  StartSiteServer(1);
  Program& offload = StartOffload({{"--fault", "delay=5ms"}});
  const std::vector<Program*> ranks = StartRanks(100'000);
  ASSERT_TRUE(ranks[0]->WaitForEvent("round")) << ranks[0]->Everything();
  offload.Signal(SIGKILL);
  for (Program* rank : ranks) {
    ExpectEnd(*rank, 1);
    EXPECT_THAT(rank->Errors(), HasSubstr("longhaul-offload at unix:" + socket() + " has ended"));
  }
}

TEST_F(SiteJob, AServerThatIsKilledIsNamedByEveryRank) {
  Program& server = StartSiteServer(1);
  Program& offload = StartOffload({{"--fault", "delay=5ms"}});
  const std::vector<Program*> ranks = StartRanks(100'000);
  ASSERT_TRUE(ranks[0]->WaitForEvent("round")) << ranks[0]->Everything();
  server.Signal(SIGKILL);
  for (Program* rank : ranks) {
    ExpectEnd(*rank, 1);
    EXPECT_THAT(rank->Errors(), HasSubstr(address()));
  }
  ExpectEnd(offload, 1);
}

TEST_F(SiteJob, ASignalToTheDaemonEndsTheSiteInOrder) {
  Program& server = StartSiteServer(1);
  Program& offload = StartOffload({{"--fault", "delay=5ms"}});
  const std::vector<Program*> ranks = StartRanks(100'000);
  ASSERT_TRUE(ranks[0]->WaitForEvent("round")) << ranks[0]->Everything();
  offload.Signal(SIGTERM);
  ExpectEnd(offload, 0);
  for (Program* rank : ranks) ExpectEnd(*rank, 1);
  EXPECT_TRUE(server.WaitForError("the site's relay ends")) << server.Everything();
}

TEST_F(SiteJob, WhatHasNoMeaningIsRefused) {
  const std::string offload = "unix:" + socket();
  const std::vector<std::pair<std::vector<std::string>, std::string>> mistakes = {
      {{"longhaul-worker", "--offload", offload, "--join", "127.0.0.1:1"}, "one of --join and --offload"},
      {{"longhaul-worker"}, "one of --join and --offload"},
      {{"longhaul-worker", "--offload", offload, "--rank", "1"}, "--rank has no meaning with --offload"},
      {{"longhaul-worker", "--offload", offload, "--insecure"}, "--insecure has no meaning with --offload"},
      {{"longhaul-worker", "--join", "127.0.0.1:1", "--insecure", "--site-rank", "1"},
       "--site-rank needs --offload"},
      {{"longhaul-worker", "--offload", "inproc:site"}, "offload is unix:PATH"},
      {{"longhaul-offload", "--world-size", "2"}, "--world-size needs --server"},
      {{"longhaul-offload", "--server", "127.0.0.1:1"}, "--insecure"},
      {{"longhaul-offload", "--server", "127.0.0.1:1", "--insecure", "--nodes", "2"}, "one node"},
      {{"longhaul-offload", "--server", "127.0.0.1:1", "--insecure", "--seg-bytes", "512"}, "--seg-bytes"},
      {{"longhaul-offload", "--server", "127.0.0.1:1", "--insecure", "--rank", "1"},
       "is not below --world-size"}};
  for (const auto& [words, message] : mistakes) {
    std::vector<std::string> arguments(words.begin() + 1, words.end());
    if (words[0] == "longhaul-worker") arguments.insert(arguments.end(), {"--data", dataset()});
    Program& program = Start(words[0], arguments);
    ExpectEnd(program, 2);
    EXPECT_THAT(program.Errors(), HasSubstr(message));
  }
}

TEST_F(SiteJob, LaunchersVariablesDoNotConcernARank) {
  Program& server = StartSiteServer(1);
  StartOffload({{"--ranks-per-node", "1"}});
  Program& worker = Start("/usr/bin/env", {"RANK=3", "WORLD_SIZE=8", "MASTER_ADDR=127.0.0.1",
                                           std::string(LONGHAUL_PROGRAMS) + "/longhaul-worker", "--offload",
                                           "unix:" + socket(), "--rounds", "2", "--data", dataset()});
  ExpectEnd(worker, 0);
  ExpectEnd(server, 0);
}

}  // namespace
}  // namespace longhaul::e2e
