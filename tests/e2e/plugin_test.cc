// A plug-in in the daemon: loaded before system calls are given up, for all of its jobs, and refused in
// words.
//
//   worker 0 ─┐
//             ├─ longhaul-server --plugin plugin_sgd.so ── checkpoints
//   worker 1 ─┘
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "server/store/checkpoint.h"
#include "tests/e2e/support/job.h"

namespace longhaul::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PluginTest : public JobTest {
 protected:
  static constexpr const char* kExample = LONGHAUL_EXAMPLE_PLUGIN;

  void Train(const Flags& more) {
    std::vector<Program*> workers;
    for (uint32_t rank = 0; rank < 2; ++rank)
      workers.push_back(&StartWorker(rank, Merged({{"--rounds", "10"}, {"--constant-lr", ""}}, more)));
    for (Program* worker : workers) ExpectEnd(*worker, 0);
  }
  std::vector<float> Learned(const std::string& name) const {
    const auto newest = server::store::LoadNewestCheckpoint(SystemFiles(), directory() + "/" + name);
    EXPECT_TRUE(newest.ok() && newest->loaded) << name;
    std::vector<float> values;
    if (!newest.ok() || !newest->loaded) return values;
    EXPECT_EQ(newest->loaded->image.rounds, 10u);
    for (const auto& tensor : newest->loaded->image.tensors) {
      values.insert(values.end(), tensor.values->span().begin(), tensor.values->span().end());
      EXPECT_EQ(tensor.state.size(), 1u) << tensor.optimizer;
    }
    return values;
  }
  Flags Server(const std::string& name) const {
    return {{"--once", ""},
            {"--deterministic", ""},
            {"--high-share", "1"},
            {"--checkpoint-dir", directory() + "/" + name}};
  }
};

TEST_F(PluginTest, LearnsBitForBitWhatTheBuiltInOptimizerDoes) {
  Program& own = StartServer(Merged(Server("own"), {{"--plugin", kExample}}));
  Train({{"--optimizer", "my_sgd:lr=0.05,momentum=0.9"}});
  ExpectEnd(own, 0);
  Program& built_in = StartServer(Server("built-in"));
  Train({{"--optimizer", "sgd:lr=0.05,momentum=0.9"}});
  ExpectEnd(built_in, 0);
  const std::vector<float> values = Learned("own");
  EXPECT_GT(values.size(), 1000u);
  EXPECT_EQ(values, Learned("built-in"));
}

// The checkpoint of a plug-in's optimizer is read by tools that do not have it.
TEST_F(PluginTest, ToolsReadItsCheckpoints) {
  Program& server = StartServer(Merged(Server("own"), {{"--plugin", kExample}}));
  Train({{"--optimizer", "my_sgd:lr=0.05,momentum=0.9"}});
  ExpectEnd(server, 0);
  Program& verify = Start("longhaul", {"checkpoint", "verify", directory() + "/own"});
  ExpectEnd(verify, 0);
  Program& exported = Start("longhaul", {"checkpoint", "export", "--optimizer", directory() + "/own", "--out",
                                         directory() + "/out.safetensors"});
  ExpectEnd(exported, 0);
  EXPECT_GT(std::filesystem::file_size(directory() + "/out.safetensors"), 8000u);
}

TEST_F(PluginTest, AWorkerWhoseServerLacksItEndsInWords) {
  StartServer({{"--workers", "1"}});
  Program& worker = StartWorker(0, {{"--world-size", "1"}, {"--optimizer", "my_sgd:lr=0.05"}});
  ExpectEnd(worker, 2);
  EXPECT_THAT(worker.Errors(),
              HasSubstr("optimizer \"my_sgd:lr=0.05\": unknown; known are aggregate, sgd:lr"));
}

TEST_F(PluginTest, WhatIsNoneIsWrongUsage) {
  const std::string wrong = LONGHAUL_WRONG_PLUGINS;
  for (const auto& [file, words] :
       {std::pair(wrong + "OTHER_VERSION.so", "version 2 of longhaul/plugin_api.h, and this is version 1"),
        std::pair(wrong + "TAKEN.so", "the name is taken"),
        std::pair(std::string("/nowhere/x.so"), "No such file")}) {
    Program& server = Start("longhaul-server", {"--insecure", "--listen", "127.0.0.1:0", "--plugin", file});
    ExpectEnd(server, 2);
    EXPECT_THAT(server.Errors(), AllOf(HasSubstr("--plugin: plug-in " + file), HasSubstr(words)));
  }
}

// One for all jobs of the process; a job's section has none.
TEST_F(PluginTest, IsForAllJobsOfAProcess) {
  const std::string path = directory() + "/jobs.toml";
  const auto write = [&](const std::string& more) {
    std::ofstream(path) << "insecure = true\nonce = true\nworkers = 1\nlisten = \"127.0.0.1:0\"\n"
                        << "[job.a]\n"
                        << more << "[job.b]\n";
  };
  const std::vector<std::string> arguments = {"--jobs", path, "--progress", "json", "--plugin", kExample};
  write("plugin = \"x.so\"\n");
  Program& refused = Start("longhaul-server", arguments, LeaveTerminal);
  ExpectEnd(refused, 2);
  EXPECT_THAT(refused.Errors(), HasSubstr("plugin is the whole process'"));
  write("");
  Program& jobs = Start("longhaul-server", arguments, LeaveTerminal);
  std::map<std::string, std::string> addresses;
  ASSERT_TRUE(Eventually([&] {
    std::istringstream lines(jobs.Output());
    for (std::string line; std::getline(lines, line);) {
      const auto event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (event.is_object() && event.value("event", "") == "listening")
        addresses[event.value("job", "")] = event.value("address", "");
    }
    return addresses.size() == 2;
  })) << jobs.Everything();
  for (const auto& [job, address] : addresses) {
    Program& worker = StartWorker(0, {{"--world-size", "1"},
                                      {"--join", address},
                                      {"--job", job},
                                      {"--insecure", ""},
                                      {"--rounds", "2"},
                                      {"--optimizer", "my_sgd:lr=0.05"}});
    ExpectEnd(worker, 0);
  }
  ExpectEnd(jobs, 0);
}

}  // namespace
}  // namespace longhaul::e2e
