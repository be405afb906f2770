// The program longhaul-wan, from outside. Needs root and /dev/net/tun; skips loudly otherwise.
#include <gmock/gmock.h>
#include <grp.h>
#include <signal.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/wan/tun/wan_fixture.h"
#include "wan/tun/process.h"

namespace longhaul::wan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uid_t kNobody = 65534;
const char* const kProgram = LONGHAUL_WAN_PROGRAM;

CommandOutput Program(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), kProgram);
  auto output = RunAndCapture(arguments);
  EXPECT_TRUE(output.ok()) << output.status().ToString();
  return output.ok() ? *output : CommandOutput{-1, ""};
}

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class LonghaulWan : public WanTest {
 protected:
  std::vector<std::string> UpArguments(std::vector<std::string> more) const {
    std::vector<std::string> all = {"up", "--sites", "A,B", "--tag", tag_, "--state-dir", StateDirectory()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  CommandOutput Find(const std::string& what, std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {what, "--tag", tag_, "--state-dir", StateDirectory()};
    all.insert(all.end(), more.begin(), more.end());
    return Program(all);
  }
  // In the foreground, with its output in a file; returns when it is up.
  pid_t UpInForeground(std::vector<std::string> more) {
    std::vector<std::string> argv = UpArguments(std::move(more));
    argv.insert(argv.begin(), kProgram);
    const FileDescriptor file(open(Output().c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600));
    const auto pid = Spawn(argv, {.output = file.get()});
    EXPECT_TRUE(pid.ok()) << pid.status().ToString();
    EXPECT_TRUE(Eventually([&] { return Contents(Output()).find("link B->A") != std::string::npos; }))
        << Contents(Output());
    return *pid;
  }
  std::string Output() const { return directory_ + "/output"; }
};

TEST(LonghaulWanUsage, MistakesExitWithTwoAndSayWhatWouldBeRight) {
  for (const auto& [arguments, message] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{}, "subcommand"},
           {{"up"}, "--sites"},
           {{"up", "--sites", "A,B", "--rate", "200"}, "200mbit"},
           {{"up", "--sites", "A,B", "--loss", "2"}, "2%"},
           {{"up", "--sites", "A,B", "--gemodel", "90% burst 2"}, "impossible"},
           {{"up", "--sites", "A,B", "--loss", "2%", "--gemodel", "5% burst 10"}, "--gemodel"},
           {{"up", "--sites", "A,B", "--link", "A-C:loss=1%"}, "unknown site 'C'"},
           {{"up", "--sites", "A,B", "--link", "A-B"}, "FROM-TO"},
           {{"up", "--sites", "A"}, "2 to 64"},
           {{"up", "--sites", "A,B", "--backend", "magic"}, "magic"},
           {{"exec"}, "site"}}) {
    const CommandOutput output = Program(arguments);
    EXPECT_EQ(output.exit_code, 2) << output.text;
    EXPECT_THAT(output.text, HasSubstr(message));
  }
}

TEST(LonghaulWanUsage, HelpExplainsThatTheDelayIsOneWayAndHasExamples) {
  const CommandOutput output = Program({"up", "--help"});
  EXPECT_EQ(output.exit_code, 0);
  EXPECT_THAT(output.text, HasSubstr("--delay 25ms makes a round trip of 50 ms"));
  EXPECT_THAT(output.text, HasSubstr("EXAMPLES"));
}

TEST_F(LonghaulWan, CtrlCCleansUpAndTheTableSaysWhatHappened) {
  const pid_t pid = UpInForeground({"--delay", "1ms", "--backend", "tun"});
  EXPECT_EQ(Namespaces(), 2);
  EXPECT_TRUE(Eventually([&] { return Contents(Output()).find("s  A->B") != std::string::npos; }))
      << "no table";
  kill(pid, SIGINT);
  EXPECT_EQ(*WaitFor(pid), 0);
  EXPECT_EQ(Namespaces(), 0);
  EXPECT_THAT(Contents(Output()), HasSubstr("BACKEND tun"));
  EXPECT_THAT(Contents(Output()), HasSubstr("totals after"));
}

TEST_F(LonghaulWan, ADaemonIsUpWhenTheCommandReturnsAndDownEndsIt) {
  const std::string json = directory_ + "/counters.json";
  const CommandOutput up =
      Program(UpArguments({"--rate", "100mbit", "--delay", "10ms", "--loss", "2%", "--daemon", "--json", json,
                           "--link", "B-A:loss=0%,delay=20ms", "--seed", "5"}));
  ASSERT_EQ(up.exit_code, 0) << up.text;
  EXPECT_THAT(up.text, HasSubstr("link B->A: rate 100mbit delay 20ms loss 0% queue 50ms"));
  EXPECT_EQ(Namespaces(), 2);
  EXPECT_THAT(Find("status").text, HasSubstr("10.77.2.1"));
  EXPECT_EQ(Find("exec", {"A", "--", "sh", "-c", "grep -q wan0 /proc/net/dev && exit 9"}).exit_code, 9);
  EXPECT_EQ(Find("exec", {"A", "--", "/nonexistent"}).exit_code, 127);
  EXPECT_EQ(Find("exec", {"Z", "--", "true"}).exit_code, 1);
  EXPECT_EQ(nlohmann::json::parse(Contents(json)).at("seed"), 5);
  const CommandOutput down = Find("down");
  EXPECT_EQ(down.exit_code, 0) << down.text;
  EXPECT_EQ(Namespaces(), 0);
  EXPECT_THAT(Find("status").text, HasSubstr("nothing is up"));
}

TEST_F(LonghaulWan, DownCleansUpAfterACrashOfEverything) {
  const pid_t pid = UpInForeground({"--delay", "1ms", "--backend", "tun"});
  const auto runs = ListRunStates(StateDirectory());
  ASSERT_EQ(runs.size(), 1u);
  kill(runs[0].guardian, SIGKILL);
  kill(pid, SIGKILL);
  EXPECT_EQ(*WaitFor(pid), 128 + SIGKILL);
  EXPECT_EQ(Namespaces(), 2);
  EXPECT_THAT(Find("status").text, HasSubstr("DEAD"));
  const CommandOutput down = Find("down");
  EXPECT_EQ(down.exit_code, 0);
  EXPECT_THAT(down.text, HasSubstr("cleaned up"));
  EXPECT_EQ(Namespaces(), 0);
}

TEST_F(LonghaulWan, NetemOnDemandFailsLoudlyWhereTheKernelHasNone) {
  if (ProbeNetem().ok()) GTEST_SKIP() << "this kernel has netem";
  const CommandOutput output = Program(UpArguments({"--backend", "netem"}));
  EXPECT_EQ(output.exit_code, 4);
  EXPECT_THAT(output.text, HasSubstr("sch_netem"));
}

// As a user without rights. `tun_device` may be opened by him or not.
class LonghaulWanAsNobody : public LonghaulWan {
 protected:
  void SetUp() override {
    LonghaulWan::SetUp();
    if (IsSkipped()) return;
    if (access("/usr/bin/setpriv", X_OK) != 0) GTEST_SKIP() << "setpriv is missing";
    if (AsNobody({"--help"}).exit_code != 0) GTEST_SKIP() << "nobody cannot execute " << kProgram;
  }
  CommandOutput AsNobody(std::vector<std::string> arguments) {
    const std::string id = std::to_string(kNobody);
    std::vector<std::string> argv = {"setpriv", "--reuid", id, "--regid", id, "--clear-groups", kProgram};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    const auto output = RunAndCapture(argv);
    EXPECT_TRUE(output.ok()) << output.status().ToString();
    return output.ok() ? *output : CommandOutput{-1, ""};
  }
};

TEST_F(LonghaulWanAsNobody, ARefusedTunDeviceIsNamedAsTheStep) {
  struct stat tun {};
  ASSERT_EQ(stat("/dev/net/tun", &tun), 0);
  if ((tun.st_mode & S_IROTH) != 0) GTEST_SKIP() << "everybody may open /dev/net/tun here";
  const CommandOutput output = AsNobody(UpArguments({"--backend", "tun"}));
  EXPECT_EQ(output.exit_code, 3);
  EXPECT_THAT(output.text, HasSubstr("opening /dev/net/tun"));
}

TEST_F(LonghaulWanAsNobody, AUserNamespaceIsEnoughWhenTheDeviceMayBeOpened) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer starts a thread, and a process with threads cannot enter a user namespace";
#endif
  const std::string device = directory_ + "/tun";
  ASSERT_EQ(mknod(device.c_str(), S_IFCHR | 0666, makedev(10, 200)), 0);
  ASSERT_EQ(chmod(device.c_str(), 0666), 0);
  const CommandOutput up = AsNobody(UpArguments({"--delay", "5ms", "--tun-device", device, "--daemon"}));
  if (up.exit_code == 3) GTEST_SKIP() << "user namespaces are forbidden here: " << up.text;
  ASSERT_EQ(up.exit_code, 0) << up.text;
  EXPECT_EQ(Namespaces(), 0) << "root's namespaces are not touched";
  const std::vector<std::string> find = {"--tag", tag_, "--state-dir", StateDirectory()};
  const auto with = [&find](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), find.begin(), find.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const CommandOutput inside =
      AsNobody(with({"exec"}, {"B", "--", "sh", "-c", "pwd; cat /proc/net/fib_trie"}));
  EXPECT_EQ(inside.exit_code, 0) << inside.text;
  EXPECT_THAT(inside.text, StartsWith(std::filesystem::current_path().string() + "\n"));
  EXPECT_THAT(inside.text, HasSubstr("10.77.2.1"));
  const CommandOutput down = AsNobody(with({"down"}, {}));
  EXPECT_EQ(down.exit_code, 0) << down.text;
  EXPECT_THAT(AsNobody(with({"status"}, {})).text, HasSubstr("nothing is up"));
}

}  // namespace
}  // namespace longhaul::wan
