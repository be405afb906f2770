// Every program explains itself.
#include <fstream>

#include "tests/e2e/support/job.h"

namespace longhaul::e2e {
namespace {

using ::testing::HasSubstr;

struct Manual {
  std::string program;
  std::vector<std::string> arguments;
  std::vector<std::string> names;  // what must be in it
};

// For gtest's messages.
void PrintTo(const Manual& manual, std::ostream* out) { *out << manual.program; }

std::string NameOf(const ::testing::TestParamInfo<Manual>& test) {
  std::string name = test.param.program;
  for (const std::string& argument : test.param.arguments) name += "_" + argument;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class Help : public JobTest, public ::testing::WithParamInterface<Manual> {};

TEST_P(Help, ExitsWithZeroAndNamesTheMainOptions) {
  std::vector<std::string> arguments = GetParam().arguments;
  arguments.push_back("--help");
  Program& program = Start(GetParam().program, arguments);
  ExpectEnd(program, 0, seconds(5) * kSlowness);
  for (const std::string& name : GetParam().names) EXPECT_THAT(program.Output(), HasSubstr(name));
  EXPECT_EQ(program.Errors(), "");
}

// The example of --config in `program`'s manual, in a file.
class Example : public JobTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(Example, OfAConfigFileIsTakenByTheProgramThatNamesIt) {
  Program& help = Start(GetParam(), {"--help"});
  ExpectEnd(help, 0);
  std::string text = help.Output();
  std::erase(text, '\n');
  const size_t begin = text.find("e.g. ", text.find("--config")) + 5;
  const std::string file = directory() + "/example.toml";
  std::ofstream(file) << text.substr(begin, text.find(';', begin) - begin) << "\n";
  // It gets as far as the key, which is not there.
  Program& program =
      Start(GetParam(), {"--config", file, "--key", directory() + "/missing.key",
                         GetParam() == "longhaul-worker" ? "--join" : "--listen", "127.0.0.1:0"});
  ExpectEnd(program, 2);
  EXPECT_THAT(program.Errors(), HasSubstr("missing.key"));
}

INSTANTIATE_TEST_SUITE_P(Programs, Example, ::testing::Values("longhaul-server", "longhaul-worker"),
                         [](const auto& test) { return test.param.substr(9); });

INSTANTIATE_TEST_SUITE_P(
    Programs, Help,
    ::testing::Values(
        Manual{
            "longhaul-server",
            {},
            {"--listen", "--workers", "--min-workers", "--policy", "--idle-timeout", "--once",
             "--max-load-generators", "--key", "--allow", "--insecure", "--fault", "--json", "Exit codes"}},
        Manual{"longhaul-worker",
               {},
               {"--join", "--rank", "--world-size", "--site", "--idle-timeout", "--key", "--insecure",
                "--fault", "--hostfile", "longhaul-trainer", "Exit codes"}},
        Manual{"longhaul-trainer", {}, {"--rounds", "--data", "--json", "longhaul-worker", "Exit codes"}},
        Manual{"longhaul-offload",
               {},
               {"--listen", "--ranks-per-node", "--rank-memory-bytes", "--spin-us", "--no-seccomp", "--json",
                "Exit codes"}},
        Manual{
            "longhaul", {"keygen"}, {"--out", "--ca", "--from", "--role", "--name", "--days", "Exit codes"}},
        Manual{"longhaul",
               {"status"},
               {"--join", "--key", "--insecure", "--timeout", "--allow", "tls-psk", "tls-certificates",
                "Exit codes"}},
        Manual{"longhaul",
               {},
               {"run", "status", "keygen", "longhaul-server", "longhaul-worker", "longhaul-wan"}},
        Manual{"longhaul",
               {"run"},
               {"--workers", "--rate", "--delay", "--loss", "--rounds", "--policy", "--seed", "--json",
                "--wan", "Exit codes"}},
        Manual{"longhaul", {"bench"}, {"flow"}},
        Manual{"longhaul",
               {"bench", "flow"},
               {"--join", "--bytes", "--class", "--seconds", "--warmup", "--rate-controller", "--rate-cap",
                "--rate-floor", "--json", "--series", "Exit codes"}},
        Manual{"longhaul",
               {"bench", "offload"},
               {"--only", "--repeats", "--json", "tools/dev setup peers", "Exit codes"}},
        Manual{"longhaul-wan", {}, {"up", "down", "status", "exec", "EXIT CODES"}},
        Manual{"longhaul-wan", {"up"}, {"--sites", "--rate", "--delay", "--loss", "--queue"}}),
    NameOf);

#ifdef LONGHAUL_HAS_OPERATOR
INSTANTIATE_TEST_SUITE_P(
    OfJobs, Help,
    ::testing::Values(
        Manual{
            "longhaul", {"submit"}, {"--name", "--gpus", "--script", "--wait", "--kubeconfig", "Exit codes"}},
        Manual{"longhaul", {"jobs"}, {"--all-namespaces", "--json", "--kubeconfig", "Exit codes"}},
        Manual{"longhaul", {"logs"}, {"--node", "--container", "--follow", "--kubeconfig", "Exit codes"}},
        Manual{"longhaul", {"cancel"}, {"--context", "--kubeconfig", "Exit codes"}},
        Manual{
            "longhaul-operator",
            {},
            {"--kubeconfig", "--lease-namespace", "--permission", "--webhook", "--metrics", "Exit codes"}}),
    NameOf);
#endif

class Version : public JobTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(Version, ExitsWithZeroAndNamesTheProgram) {
  Program& program = Start(GetParam(), {"--version"});
  ExpectEnd(program, 0, seconds(5) * kSlowness);
  EXPECT_THAT(program.Output(), HasSubstr(GetParam() + " 0."));
}

INSTANTIATE_TEST_SUITE_P(Programs, Version,
                         ::testing::Values("longhaul-server", "longhaul-worker", "longhaul-trainer",
                                           "longhaul", "longhaul-wan", "longhaul-offload"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

#ifdef LONGHAUL_HAS_OPERATOR
INSTANTIATE_TEST_SUITE_P(OfJobs, Version, ::testing::Values("longhaul-operator"));
#endif

}  // namespace
}  // namespace longhaul::e2e
