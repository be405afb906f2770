// Who gets in with which key, told in words on both sides.
//
//   worker 0, worker 1 ── server ── a peer with no key, another key, a certificate of another kind
#include <sys/resource.h>
#include <sys/stat.h>

#include <ctime>
#include <fstream>
#include <iterator>

#include "proto/packet_header.h"
#include "tests/e2e/support/job.h"
#include "tests/e2e/support/udp_peer.h"
#include "transport/crypto/keygen.h"
#include "transport/keys/key_file.h"

namespace longhaul::e2e {
namespace {

using crypto::Role;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kDay = 86400;

class SecurityTest : public JobTest {
 protected:
  // A worker that is not let in ends with 1, and says one of these words.
  void ExpectKeptOut(const Flags& flags, const std::string& word) {
    Program& stranger = StartWorker(0, Merged({{"--connect-timeout", "2"}}, flags));
    ExpectEnd(stranger, 1);
    EXPECT_THAT(stranger.Errors(), HasSubstr(word));
    EXPECT_FALSE(server().FindEvent("join")) << server().Everything();
    // The server's log names the refused peer and the reason.
    EXPECT_TRUE(server().WaitForEvent("handshake_failed")) << server().Everything();
    EXPECT_TRUE(server().WaitForError("handshake with 127.0.0.1:")) << server().Errors();
  }
  std::string Path(const std::string& name) const { return directory() + "/" + name; }
  void Keygen(const std::vector<std::string>& words, int code = 0) {
    std::vector<std::string> arguments = {"keygen"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    ExpectEnd(Start("longhaul", arguments), code);
  }
  // Both of a job's workers come in and finish.
  void ExpectJob(const Flags& first, const Flags& second) {
    Program& a = StartWorker(0, Merged(first, {{"--rounds", "5"}}));
    Program& b = StartWorker(1, Merged(second, {{"--rounds", "5"}}));
    ExpectEnd(a, 0);
    ExpectEnd(b, 0);
  }
};

TEST_F(SecurityTest, WithoutAKeyNothingStartsAndTheWayOutIsSaid) {
  Program& server = Start("longhaul-server", {"--listen", "127.0.0.1:0"});
  ExpectEnd(server, 2);
  EXPECT_THAT(server.Errors(),
              AllOf(HasSubstr("--key"), HasSubstr("longhaul keygen"), HasSubstr("--insecure")));
  Program& worker = Start("longhaul-worker", {"--join", "127.0.0.1:9", "--data", dataset()});
  ExpectEnd(worker, 2);
  EXPECT_THAT(worker.Errors(), AllOf(HasSubstr("--key"), HasSubstr("--insecure")));
  Program& flow = Start("longhaul", {"bench", "flow", "--join", "127.0.0.1:9"});
  ExpectEnd(flow, 2);
  EXPECT_THAT(flow.Errors(), HasSubstr("--key"));
}

TEST_F(SecurityTest, AKeyThatOthersMayReadIsRefused) {
  ASSERT_EQ(::chmod(key_file().c_str(), 0644), 0);
  for (const char* program : {"longhaul-server", "longhaul-worker"}) {
    std::vector<std::string> arguments = {"--key", key_file()};
    if (std::string(program) == "longhaul-worker") {
      arguments.insert(arguments.end(), {"--join", "127.0.0.1:9", "--data", dataset()});
    }
    Program& refused = Start(program, arguments);
    ExpectEnd(refused, 2);
    EXPECT_THAT(refused.Errors(), HasSubstr("chmod 600 " + key_file()));
  }
}

TEST_F(SecurityTest, InsecureMustBeSaidOnBothSides) {
  StartServer();
  ExpectKeptOut({{"--insecure", ""}}, "the same key");
  StartServer({{"--insecure", ""}});
  ExpectKeptOut({}, "the same key");
}

TEST_F(SecurityTest, InsecureStaysOnLoopbackUnlessToldTwice) {
  Program& refused = Start("longhaul-server", {"--listen", "0.0.0.0:0", "--insecure"});
  ExpectEnd(refused, 2);
  EXPECT_THAT(refused.Errors(), AllOf(HasSubstr("loopback"), HasSubstr("--insecure-bind")));
  Program& told = Start("longhaul-server",
                        {"--listen", "0.0.0.0:0", "--insecure", "--insecure-bind", "--progress", "json"});
  EXPECT_TRUE(told.WaitForEvent("listening")) << told.Everything();
  EXPECT_TRUE(told.WaitForError("INSECURE")) << told.Everything();
}

TEST_F(SecurityTest, AnotherKeyIsNoKey) {
  StartServer();
  Keygen({"--out", Path("other.key")});
  ExpectKeptOut({{"--key", Path("other.key")}}, "the same key");
  EXPECT_TRUE(server().WaitForError("its INIT does not open: it has another key")) << server().Errors();
  // And the right one still is.
  ExpectJob({}, {});
}

// In the worker's log, long before it gives up.
TEST_F(SecurityTest, AWrongKeyNoServerAndAFirewallAreToldApart) {
  StartServer();
  Keygen({"--out", Path("other.key")});
  UdpPeer silent;  // takes what comes, as a firewall does
  const std::string free_again = UdpPeer().address();
  const struct {
    Flags flags;
    std::string words;
  } kCases[] = {{{{"--key", Path("other.key")}}, "do both have the same key"},
                {{{"--join", free_again}}, "no program listens on this UDP port"},
                {{{"--join", silent.address()}}, "nothing comes back"}};
  for (const auto& [flags, words] : kCases) {
    const auto begin = Clock::now();
    Program& stranger = StartWorker(0, Merged({{"--connect-timeout", "30"}}, flags));
    const auto said = [&] { return stranger.Errors().find(words) != std::string::npos; };
    EXPECT_TRUE(Eventually(said, seconds(5))) << words << "\n" << stranger.Errors();
    EXPECT_LT(SecondsFrom(begin, Clock::now()), 2 * kSlowness) << words;
  }
}

TEST_F(SecurityTest, TheKeyOfAnotherJobIsRefused) {
  StartServer();
  Keygen({"--out", Path("pears.key"), "--job", "pears"});
  ExpectKeptOut({{"--key", Path("pears.key")}}, "the same key");
  // A job that is not the key's is refused before a packet leaves.
  Program& confused = StartWorker(0, {{"--job", "pears"}});
  ExpectEnd(confused, 2);
  EXPECT_THAT(confused.Errors(), AllOf(HasSubstr("pears"), HasSubstr("default")));
}

TEST_F(SecurityTest, EveryCipherCarriesAJob) {
  for (const char* cipher : {"aes-128-gcm", "aes-256-gcm", "chacha20-poly1305"}) {
    StartServer({{"--once", ""}});
    ExpectJob({{"--cipher", cipher}}, {{"--cipher", cipher}});
    ExpectEnd(server(), 0);
  }
}

TEST_F(SecurityTest, TheJobOfCertificatesLetsInWhomItNames) {
  Keygen({"--ca", "--out", Path("ca.key")});
  const auto issue = [&](const std::string& role, const std::string& name,
                         const std::string& job = "default") {
    Keygen({"--from", Path("ca.key"), "--role", role, "--name", name, "--job", job, "--out",
            Path(name + ".key")});
    return Path(name + ".key");
  };
  const std::string ams = issue("server", "ams");
  const std::string fra = issue("worker", "fra");
  const std::string nyc = issue("worker", "nyc");
  const std::string rio = issue("worker", "rio");
  const std::string pears = issue("worker", "oslo", "pears");
  StartServer({{"--key", ams}, {"--allow", "fra,nyc"}});
  EXPECT_TRUE(server().WaitForError("certificate server/ams")) << server().Errors();
  ExpectKeptOut({{"--key", rio}}, "rio");
  EXPECT_TRUE(server().WaitForError("failed: PermissionDenied: the peer's certificate is of worker rio"))
      << server().Errors();
  ExpectKeptOut({{"--key", pears}}, "pears");
  EXPECT_TRUE(server().WaitForError("refuses: the peer's certificate is of job default, not of pears"))
      << server().Errors();
  ExpectKeptOut({}, "the same key");  // a shared key at a server of certificates
  ExpectJob({{"--key", fra}}, {{"--key", nyc}});
  // Both logs name the flag, not the field of the API.
  StartServer({{"--key", ams}, {"--allow", "fra:0,nyc:1"}});
  Program& elsewhere = StartWorker(1, {{"--key", fra}});
  ExpectEnd(elsewhere, 1);
  EXPECT_THAT(elsewhere.Errors(), HasSubstr("--allow says worker/fra:0"));
  EXPECT_TRUE(server().WaitForError("--allow says worker/fra:0")) << server().Errors();
  const auto event = server().WaitForEvent("refused");
  ASSERT_TRUE(event) << server().Everything();
  EXPECT_THAT(event->value("message", ""), HasSubstr("--allow says worker/fra:0"));
  // A server's certificate is no worker's, and the other way round.
  Program& wrong = Start("longhaul-server", {"--listen", "127.0.0.1:0", "--key", fra});
  ExpectEnd(wrong, 2);
  EXPECT_THAT(wrong.Errors(), HasSubstr("worker"));
}

// A list that is empty by mistake, of an unset variable for example, must not let every peer in.
TEST_F(SecurityTest, TheAllowListIsCheckedAndShown) {
  Keygen({"--ca", "--out", Path("ca.key")});
  Keygen({"--from", Path("ca.key"), "--role", "server", "--name", "ams", "--out", Path("ams.key")});
  for (const char* empty : {"", ",", "fra,", "fra,,nyc", " , "}) {
    Program& refused =
        Start("longhaul-server", {"--listen", "127.0.0.1:0", "--key", Path("ams.key"), "--allow", empty});
    ExpectEnd(refused, 2);
    EXPECT_THAT(refused.Errors(), AllOf(HasSubstr("--allow"), HasSubstr("empty"))) << '"' << empty << '"';
  }
  StartServer({{"--key", Path("ams.key")}, {"--allow", "fra, nyc"}});
  EXPECT_TRUE(server().WaitForError("may connect (--allow): worker/fra, worker/nyc")) << server().Errors();
  StartServer({{"--key", Path("ams.key")}});
  EXPECT_TRUE(server().WaitForError("may connect: every certificate")) << server().Errors();
  // Of a file, as of the command line.
  std::ofstream(Path("list.toml")) << "allow = [\"fra\", \"nyc\"]\n";
  StartServer({{"--key", Path("ams.key")}, {"--config", Path("list.toml")}});
  EXPECT_TRUE(server().WaitForError("may connect (--allow): worker/fra, worker/nyc")) << server().Errors();
  std::ofstream(Path("none.toml")) << "allow = []\n";
  Program& refused = Start("longhaul-server", {"--listen", "127.0.0.1:0", "--key", Path("ams.key"),
                                               "--config", Path("none.toml")});
  ExpectEnd(refused, 2);
  EXPECT_THAT(refused.Errors(), HasSubstr("--allow"));
}

TEST_F(SecurityTest, KeygenRefusesWhatMeansNothingTogether) {
  const auto refused = [&](std::vector<std::string> words, const std::string& why) {
    words.insert(words.begin(), {"keygen", "--out", Path("never.key")});
    Program& keygen = Start("longhaul", words);
    ExpectEnd(keygen, 2);
    EXPECT_THAT(keygen.Errors(), HasSubstr(why));
    EXPECT_EQ(ReadFile(Path("never.key")), "");
  };
  Keygen({"--ca", "--out", Path("ca.key")});
  const std::string ca = Path("ca.key");
  refused({"--ca", "--from", ca}, "--from");
  refused({"--ca", "--job", "pears"}, "--job and --ca");
  refused({"--ca", "--name", "ams"}, "--name");
  refused({"--ca", "--role", "server"}, "--role");
  refused({"--name", "ams"}, "--name");
  refused({"--role", "worker"}, "--role");
  refused({"--days", "30"}, "--days");
  refused({"--ranks", "1-3"}, "--ranks");
  refused({"--from", ca, "--name", "ops", "--role", "tool", "--ranks", "1"}, "--ranks");
  refused({"--from", ca, "--name", "fra", "--ranks", "3-1"}, "like 3 or 1-3");
  refused({"--from", ca}, "--name");
  refused({"--from", ca, "--name", "a b"}, "A-Z a-z");
  refused({"--from", ca, "--name", "ams", "--job", "a/b"}, "A-Z a-z");
  refused({"--from", key_file(), "--name", "ams"}, "CA file");
}

// Who has the authority's file finds out here, and not at the first handshake after its end.
TEST_F(SecurityTest, KeygenIssuesNothingThatItsAuthorityDoesNotOutlive) {
  const int64_t now = ::time(nullptr);
  const auto authority = [&](const std::string& name, int64_t from, int64_t to) {
    const auto text = crypto::NewCa(name, {from, to});
    EXPECT_TRUE(text.ok() && keys::WriteKeyFile(Path(name), text->text()).ok());
    return Path(name);
  };
  const auto issue = [&](const std::string& ca, const std::string& days, int code) -> Program& {
    Program& keygen = Start("longhaul", {"keygen", "--from", ca, "--name", "fra", "--days", days, "--out",
                                         ca + "." + days + ".key"});
    ExpectEnd(keygen, code);
    return keygen;
  };
  EXPECT_THAT(issue(authority("old", now - 9 * kDay, now - kDay), "1", 2).Errors(),
              HasSubstr("the authority ended"));
  EXPECT_THAT(issue(Path("old"), "0", 2).Errors(), HasSubstr("the authority ended"));
  EXPECT_THAT(issue(authority("early", now + kDay, now + 9 * kDay), "1", 2).Errors(), HasSubstr("clock"));
  const std::string ca = authority("ten", now - kDay, now + 10 * kDay + 600);
  EXPECT_THAT(issue(ca, "11", 2).Errors(), AllOf(HasSubstr("--days 11"), HasSubstr("at most 10")));
  EXPECT_THAT(issue(ca, "10", 0).Output(), HasSubstr("certificate of worker fra for job default until "));
  issue(ca, "0", 0);  // as long as the authority lives
  Keygen({"--from", ca, "--role", "server", "--name", "ams", "--out", Path("ams.key")});
  StartServer({{"--key", Path("ams.key")}, {"--allow", "fra:0-1"}});  // both are fra's
  ExpectJob({{"--key", ca + ".0.key"}}, {{"--key", ca + ".10.key"}});
}

TEST_F(SecurityTest, CertificatesOutOfTimeOrOfAnotherAuthorityAreRefused) {
  const int64_t now = ::time(nullptr);
  const auto authority = crypto::NewCa("one", {now - 30 * kDay, now + 30 * kDay});
  const auto other = crypto::NewCa("two", {now - 30 * kDay, now + 30 * kDay});
  ASSERT_TRUE(authority.ok() && other.ok());
  const auto issue = [&](const crypto::SecretBytes& ca, Role role, const std::string& name, int64_t from,
                         int64_t to) {
    const auto text = crypto::IssueCertificate(ca.text(), "default", role, name, {from, to});
    EXPECT_TRUE(text.ok() && keys::WriteKeyFile(Path(name), text->text()).ok());
    return Path(name);
  };
  StartServer({{"--key", issue(*authority, Role::kServer, "server", now - kDay, now + kDay)}});
  ExpectKeptOut({{"--key", issue(*authority, Role::kWorker, "old", now - 2 * kDay, now - kDay)}}, "expired");
  ExpectKeptOut({{"--key", issue(*authority, Role::kWorker, "early", now + kDay, now + 2 * kDay)}},
                "not valid yet");
  // Each side finds out: a worker that trusts its own authority only refuses the server, and one that trusts
  // ours and shows another's certificate is refused by it.
  const std::string foreign = issue(*other, Role::kWorker, "foreign", now - kDay, now + kDay);
  ExpectKeptOut({{"--key", foreign}},
                "server " + address() + ": the peer's certificate was not issued by our CA");
  const std::string ours = ReadFile(issue(*authority, Role::kWorker, "ours", now - kDay, now + kDay));
  const std::string theirs = ReadFile(foreign);
  const std::string begin =
      "-----BEGIN CERTIFICATE-----";  // of the certificate, and of the authority's after it
  ASSERT_TRUE(keys::WriteKeyFile(Path("mixed"),
                                 theirs.substr(0, theirs.rfind(begin)) + ours.substr(ours.rfind(begin)))
                  .ok());
  ExpectKeptOut({{"--key", Path("mixed")}}, "refuses: the peer's certificate was not issued by our CA");
  ExpectJob({{"--key", issue(*authority, Role::kWorker, "a", now - kDay, now + kDay)}},
            {{"--key", issue(*authority, Role::kWorker, "b", now - kDay, now + kDay)}});
}

// What a server answers a packet of a connection that it does not know: the last 16 bytes are the token of
// that ID.
std::string ResetToken(uint16_t port, uint64_t connection) {
  std::vector<uint8_t> packet(200);
  ByteWriter out(packet);
  wire::Encode(wire::ShortHeader{.destination = {connection}, .packet_number = 1}, out);
  UdpPeer peer;
  peer.Send(port, packet);
  const auto answer = peer.Receive(kPatience);
  if (!answer || answer->bytes.size() < 32) return "none";
  return {answer->bytes.end() - 16, answer->bytes.end()};
}

// A peer believes a token that it gets: a server of the same key must not make another's, and a restarted one
// must make its own again.
TEST_F(SecurityTest, ResetTokensAreTheServersOwnAndSurviveARestart) {
  constexpr uint64_t kConnection = 0x1122334455667788;
  StartServer();
  const std::string listen = address();
  const std::string token = ResetToken(port(), kConnection);
  ASSERT_EQ(token.size(), 16u) << server().Everything();
  EXPECT_EQ(ResetToken(port(), kConnection), token);
  EXPECT_NE(ResetToken(port(), kConnection + 1), token);
  Program& first = server();
  StartServer();
  ASSERT_NE(address(), listen);
  const std::string other = ResetToken(port(), kConnection);
  EXPECT_EQ(other.size(), 16u);
  EXPECT_NE(other, token) << "one key, another port";
  first.Signal(SIGTERM);
  ExpectEnd(first, 0);
  StartServer({{"--listen", listen}});
  ASSERT_EQ(address(), listen);
  EXPECT_EQ(ResetToken(port(), kConnection), token) << "the same key and port, after a restart";
}

// The other way round: a worker gives its gradients to no server that cannot prove itself.
TEST_F(SecurityTest, WorkersRefuseAServerOutOfTimeOrOfAnotherAuthorityOrJob) {
  const int64_t now = ::time(nullptr);
  const auto authority = crypto::NewCa("one", {now - 30 * kDay, now + 30 * kDay});
  const auto other = crypto::NewCa("two", {now - 30 * kDay, now + 30 * kDay});
  ASSERT_TRUE(authority.ok() && other.ok());
  const auto issue = [&](const crypto::SecretBytes& ca, const std::string& job, Role role,
                         const std::string& name, int64_t from, int64_t to) {
    const auto text = crypto::IssueCertificate(ca.text(), job, role, name, {from, to});
    EXPECT_TRUE(text.ok() && keys::WriteKeyFile(Path(name), text->text()).ok());
    return Path(name);
  };
  const Flags fra = {{"--key", issue(*authority, "default", Role::kWorker, "fra", now - kDay, now + kDay)}};
  const Flags nyc = {{"--key", issue(*authority, "default", Role::kWorker, "nyc", now - kDay, now + kDay)}};
  StartServer({{"--key", issue(*authority, "default", Role::kServer, "old", now - 2 * kDay, now - kDay)}});
  ExpectKeptOut(fra, "certificate has expired");
  StartServer({{"--key", issue(*authority, "default", Role::kServer, "early", now + kDay, now + 2 * kDay)}});
  ExpectKeptOut(fra, "certificate is not valid yet");
  StartServer({{"--key", issue(*other, "default", Role::kServer, "foreign", now - kDay, now + kDay)}});
  ExpectKeptOut(fra, "not issued by our CA");
  StartServer({{"--key", issue(*authority, "pears", Role::kServer, "pear", now - kDay, now + kDay)}});
  ExpectKeptOut(fra, "pears");
  // And the right one still is.
  StartServer({{"--key", issue(*authority, "default", Role::kServer, "good", now - kDay, now + kDay)}});
  ExpectJob(fra, nyc);
}

// The soft limit of a core dump's size, as the kernel has it.
std::string CoreLimit(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/limits");
  const std::string limits{std::istreambuf_iterator<char>(in), {}};
  const size_t line = limits.find("Max core file size");
  const size_t begin = limits.find_first_not_of(' ', line + 18);
  return line == std::string::npos ? "" : limits.substr(begin, limits.find(' ', begin) - begin);
}

TEST_F(SecurityTest, WhoHasAKeyLeavesNoCoreDumpUnlessToldTo) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_CORE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;  // as in `ulimit -c unlimited`; programs inherit it
  ASSERT_EQ(::setrlimit(RLIMIT_CORE, &limit), 0);
  const std::string usual = CoreLimit(::getpid());
  ASSERT_FALSE(usual.empty());
  const std::string none = usual == "0" ? "0" : "1";
  StartServer();
  Program& worker = StartWorker(0);
  ASSERT_TRUE(server().WaitForEvent("join")) << server().Everything();
  EXPECT_EQ(CoreLimit(server().pid()), none);
  EXPECT_EQ(CoreLimit(worker.pid()), none);
  StartServer({{"--allow-core-dump", ""}});
  EXPECT_EQ(CoreLimit(server().pid()), usual);
  Program& allowed = StartWorker(0, {{"--allow-core-dump", ""}});
  ASSERT_TRUE(server().WaitForEvent("join")) << server().Everything();
  EXPECT_EQ(CoreLimit(allowed.pid()), usual);
  StartServer({{"--insecure", ""}});
  EXPECT_EQ(CoreLimit(server().pid()), usual);
}

}  // namespace
}  // namespace longhaul::e2e
