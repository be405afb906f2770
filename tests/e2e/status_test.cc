// `longhaul status`: a running server tells who may know how its job is, and how it is protected.
#include "server/report/server_json.h"
#include "tests/e2e/support/job.h"

namespace longhaul::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class StatusTest : public JobTest {
 protected:
  Program& Ask(const std::vector<std::string>& words) {
    std::vector<std::string> arguments = {"status", "--join", address(), "--timeout", "2"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    return Start("longhaul", arguments);
  }
  // Of a question that is answered.
  nlohmann::json Answer(const std::vector<std::string>& words) {
    Program& status = Ask(words);
    ExpectEnd(status, 0);
    EXPECT_EQ(status.Errors(), "");
    return nlohmann::json::parse(status.Output(), nullptr, false);
  }
  void ExpectNoAnswer(const std::vector<std::string>& words, int code, const std::string& why) {
    Program& status = Ask(words);
    ExpectEnd(status, code);
    EXPECT_THAT(status.Errors(), HasSubstr(why));
    EXPECT_EQ(status.Output(), "");
  }
  std::string Path(const std::string& name) const { return directory() + "/" + name; }
  std::string Certificate(const std::string& role, const std::string& name) {
    ExpectEnd(Start("longhaul", {"keygen", "--from", Path("ca.key"), "--role", role, "--name", name, "--out",
                                 Path(name)}),
              0);
    return Path(name);
  }
};

TEST_F(StatusTest, ARunningJobIsShownWithItsRoundsMembersAndProtection) {
  StartRunningJob();
  const nlohmann::json status = Answer({"--key", key_file()});
  EXPECT_EQ(status.value("job", ""), "default");
  EXPECT_EQ(status.value("phase", ""), "running");
  EXPECT_EQ(status.value("security", ""), "tls-psk");
  EXPECT_EQ(status.value("identity", ""), "shared key of job default");
  EXPECT_EQ(status.value("workers", 0), 2);
  EXPECT_EQ(status.value("joined", 0), 2);
  EXPECT_GE(status.value("rounds", 0), 1);
  ASSERT_THAT(status["members"], SizeIs(2));
  EXPECT_EQ(status["members"][1].value("site", ""), "site1");
  EXPECT_GT(status["endpoint"].value("datagrams_received", 0), 0);
  // The status request does not disturb the job.
  ExpectRunningJobFinishes();
  EXPECT_EQ(server().FindEvent("finished")->value("security", ""), "tls-psk");
  EXPECT_EQ(worker(0).FindEvent("finished")->value("security", ""), "tls-psk");
}

TEST_F(StatusTest, InsecureIsSaidWhereverSomebodyLooks) {
  StartServer({{"--insecure", ""}, {"--json", Path("summary.json")}});
  EXPECT_EQ(server().FindEvent("listening")->value("security", ""), "insecure");
  EXPECT_TRUE(server().WaitForError("INSECURE")) << server().Errors();
  EXPECT_TRUE(server().WaitForError("security: insecure")) << server().Errors();
  const nlohmann::json answer = Answer({"--insecure"});
  EXPECT_EQ(answer.value("security", ""), "insecure");
  EXPECT_EQ(answer.value("identity", ""), "insecure");
  Program& a = StartWorker(0, {{"--insecure", ""}, {"--rounds", "3"}});
  Program& b = StartWorker(1, {{"--insecure", ""}, {"--rounds", "3"}});
  ExpectEnd(a, 0);
  ExpectEnd(b, 0);
  EXPECT_THAT(a.Errors(), HasSubstr("INSECURE"));
  EXPECT_EQ(a.FindEvent("finished")->value("security", ""), "insecure");
  const auto finished = server().WaitForEvent("finished");
  ASSERT_TRUE(finished) << server().Everything();
  EXPECT_EQ(finished->value("security", ""), "insecure");
  EXPECT_TRUE(Eventually([&] { return !ReadFile(Path("summary.json")).empty(); }));
  EXPECT_EQ(nlohmann::json::parse(ReadFile(Path("summary.json"))).value("security", ""), "insecure");
}

TEST_F(StatusTest, WhoHasNoKeyOrAnotherOneIsTold) {
  StartServer();
  ExpectNoAnswer({}, 2, "--key");
  ExpectNoAnswer({"--key", Path("missing.key")}, 2, "longhaul status: NotFound: ");
  ExpectNoAnswer({"--insecure"}, 3, "do both have the same key (or both none)");
  ExpectEnd(Start("longhaul", {"keygen", "--out", Path("other.key")}), 0);
  ExpectNoAnswer({"--key", Path("other.key")}, 3, "do both have the same key");
  StartServer({{"--insecure", ""}});
  ExpectNoAnswer({"--key", key_file()}, 3, "do both have the same key");
  Program& nowhere = Start("longhaul", {"status", "--join", "nonsense", "--insecure"});
  ExpectEnd(nowhere, 2);
  EXPECT_THAT(nowhere.Errors(), HasSubstr("--join"));
}

TEST_F(StatusTest, OfCertificatesOnlyAToolsMayAskAndOnlyIfItIsListed) {
  ExpectEnd(Start("longhaul", {"keygen", "--ca", "--out", Path("ca.key")}), 0);
  const std::string ams = Certificate("server", "ams");
  const std::string desk = Certificate("tool", "desk");
  const std::string other = Certificate("tool", "other");
  const std::string fra = Certificate("worker", "fra");
  StartServer({{"--key", ams}, {"--allow", "fra,tool/desk"}});
  const nlohmann::json status = Answer({"--key", desk});
  EXPECT_EQ(status.value("security", ""), "tls-certificates");
  EXPECT_EQ(status.value("identity", ""), "certificate server/ams of job default");
  ExpectNoAnswer({"--key", other}, 3, "not on the list");
  ExpectNoAnswer({"--key", fra}, 2, "worker");
}

// A control message has a largest size: the status of too large a job omits the members, not the rest.
TEST(StatusText, LeavesMembersOutWhereTheyDoNotFit) {
  server::ServerStats stats;
  stats.members.resize(200);
  const auto whole = nlohmann::json::parse(server::StatusText(stats, size_t{1} << 20));
  EXPECT_THAT(whole["members"], SizeIs(200));
  EXPECT_FALSE(whole.contains("members_left_out"));
  const std::string text = server::StatusText(stats, 32768);
  EXPECT_LE(text.size(), 32768u);
  const auto cut = nlohmann::json::parse(text);
  EXPECT_THAT(cut["members"], SizeIs(0));
  EXPECT_EQ(cut.value("members_left_out", 0), 200);
  EXPECT_EQ(cut.value("security", "?"), "");
}

}  // namespace
}  // namespace longhaul::e2e
