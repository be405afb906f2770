// Output that no process reads stops no daemon, and signals end a daemon in order, or at once.
//
//   worker 0 ─┐
//             ├─ server ──► a pipe that is full, closed, or a terminal that goes away
//   worker 1 ─┘
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/files.h"
#include "tests/e2e/support/full_pipe.h"
#include "tests/e2e/support/job.h"
#include "tests/e2e/support/udp_peer.h"

namespace longhaul::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Output : public JobTest {
 protected:
  // A server on a port that was free, since it cannot say which one it has.
  Program& StartMuteServer(const std::vector<std::string>& more) {
    where_ = UdpPeer().address();
    std::vector<std::string> words = {"--listen", where_,       "--workers", "2",           "--key",
                                      key_file(), "--progress", "json",      "--log-level", "debug"};
    words.insert(words.end(), more.begin(), more.end());
    return Start("longhaul-server", words, pipe_.TakesOutput());
  }
  Program& StartShortWorker(uint32_t rank, const Flags& more = {}) {
    return StartWorker(rank, Merged({{"--join", where_}, {"--rounds", "10"}}, more));
  }

  FullPipe pipe_;
  std::string where_;
};

TEST_F(Output, OfAServerThatNobodyReadsStopsNoJob) {
  const std::string summary = directory() + "/s.json";
  Program& server = StartMuteServer({"--once", "--json", summary});
  Program& first = StartShortWorker(0);
  Program& second = StartShortWorker(1);
  ExpectEnd(first, 0);
  ExpectEnd(second, 0);
  ExpectEnd(server, 0, seconds(6) * kSlowness);
  EXPECT_THAT(ReadFile(summary), HasSubstr("\"event\":\"finished\""));
}

TEST_F(Output, ThatNobodyReadsKeepsNoServerFromEnding) {
  Program& server = StartMuteServer({});
  Program& worker = StartShortWorker(0);
  ASSERT_TRUE(worker.WaitForEvent("joined")) << worker.Everything();
  server.Signal(SIGTERM);
  ExpectEnd(server, 0, seconds(6) * kSlowness);
  ExpectEnd(worker, 1);
}

TEST_F(Output, OfAWorkerThatNobodyReadsStopsNoRound) {
  Program& server = StartServer({{"--once", ""}});
  where_ = address();
  Program& other = StartShortWorker(1);
  Program& mute = Start("longhaul-worker",
                        {"--join", where_, "--rank", "0", "--world-size", "2", "--rounds", "10", "--batch",
                         "16", "--data", dataset(), "--key", key_file(), "--progress", "json"},
                        pipe_.TakesOutput());
  ExpectEnd(other, 0);
  ExpectEnd(mute, 0, seconds(6) * kSlowness);
  ExpectEnd(server, 0);
}

// `longhaul-worker | head`.
TEST_F(Output, WhoseReaderHasGoneEndsNoWorker) {
  Program& server = StartServer({{"--once", ""}, {"--workers", "1"}});
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  FileDescriptor reader(ends[0]);
  const FileDescriptor writer(ends[1]);
  Program& worker = Start(
      "longhaul-worker",
      {"--join", address(), "--rounds", "10", "--batch", "16", "--data", dataset(), "--key", key_file()},
      [fd = writer.get()] { return ::dup2(fd, STDOUT_FILENO) >= 0 ? 0 : 1; });
  reader.Reset();
  ExpectEnd(worker, 0);
  ExpectEnd(server, 0);
  EXPECT_THAT(worker.Errors(),
              AllOf(HasSubstr("lines of standard output were lost"), HasSubstr("Broken pipe")));
}

class Signals : public JobTest {};

// The first one tells peers that do not hear it, which takes a second or two.
TEST_F(Signals, ASecondOneEndsAServerAtOnce) {
  StartRunningJob();
  for (const size_t rank : {0, 1}) worker(rank).Signal(SIGSTOP);
  server().Signal(SIGTERM);
  ASSERT_TRUE(Eventually([&] { return server().Errors().find("shutting down") != std::string::npos; }));
  server().Signal(SIGTERM);
  ExpectEnd(server(), 128 + SIGTERM, seconds(1) * kSlowness);
}

TEST_F(Signals, ASecondOneEndsAWorkerAtOnce) {
  StartRunningJob();
  server().Signal(SIGSTOP);
  worker(0).Signal(SIGINT);
  Pause(milliseconds(300) * kSlowness);
  ASSERT_TRUE(worker(0).running()) << worker(0).Everything();
  worker(0).Signal(SIGINT);
  ExpectEnd(worker(0), 128 + SIGINT, seconds(1) * kSlowness);
}

TEST_F(Signals, AHangUpWithoutATerminalReloadsTheServerAndEndsNothing) {
  const std::string file = directory() + "/server.toml";
  std::ofstream(file) << "log-level = \"warn\"\nworkers = 1\n";
  Program& server =
      Start("longhaul-server", {"--listen", "127.0.0.1:0", "--insecure", "--config", file}, LeaveTerminal);
  ASSERT_TRUE(server.WaitForLine("listening on"));
  std::ofstream(file) << "log-level = \"info\"\nworkers = 2\n";
  server.Signal(SIGHUP);
  EXPECT_TRUE(Eventually([&] { return server.Errors().find("SIGHUP") != std::string::npos; }));
  EXPECT_THAT(server.Errors(),
              AllOf(HasSubstr("reloaded --log-level info"), HasSubstr("has changed: --workers")));
  std::ofstream(file) << "log-level = \"loud\"\n";
  server.Signal(SIGHUP);
  EXPECT_TRUE(Eventually([&] { return server.Errors().find("nothing is reloaded") != std::string::npos; }));
  EXPECT_THAT(server.Errors(), HasSubstr("loud"));
  EXPECT_TRUE(server.running());
  server.Signal(SIGTERM);
  ExpectEnd(server, 0);
}

TEST_F(Signals, AHangUpWithoutATerminalEndsNoWorker) {
  StartServer({{"--workers", "1"}});
  Program& worker = Start("longhaul-worker",
                          {"--join", address(), "--rounds", "100", "--batch", "16", "--data", dataset(),
                           "--key", key_file(), "--progress", "json", "--fault", "delay=5ms"},
                          LeaveTerminal);
  ASSERT_TRUE(worker.WaitForEvent("round"));
  worker.Signal(SIGHUP);
  ExpectEnd(worker, 0);
  EXPECT_THAT(worker.Errors(), HasSubstr("SIGHUP"));
}

TEST_F(Signals, ATerminalThatClosesEndsTheServerInOrder) {
  const std::string where = UdpPeer().address();
  const std::string server = std::string(LONGHAUL_PROGRAMS) + "/longhaul-server";
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::execl(server.c_str(), "longhaul-server", "--listen", where.c_str(), "--workers", "2", "--key",
            key_file().c_str(), nullptr);
    ::_exit(127);
  }
  ASSERT_EQ(::fcntl(terminal, F_SETFD, FD_CLOEXEC), 0);  // the only one
  Program& worker = StartWorker(0, {{"--join", where}});
  EXPECT_TRUE(worker.WaitForEvent("joined")) << worker.Everything();
  const auto closed = Clock::now();
  ::close(terminal);
  ExpectEnd(worker, 1);
  EXPECT_LT(SecondsFrom(closed, worker.ended_at()), 2.0 * kSlowness);
  EXPECT_THAT(worker.Errors(), HasSubstr("the server is shutting down"));
  int status = 0;
  EXPECT_TRUE(
      Eventually([&] { return ::waitpid(child, &status, WNOHANG) == child; }, seconds(5) * kSlowness));
  ::kill(child, SIGKILL);
  EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// A result file is of this run, or not there.
class ResultFile : public JobTest {};

TEST_F(ResultFile, OfAWorkerThatFailsSaysSoAndNothingOfAnEarlierRun) {
  const std::string file = directory() + "/w.json";
  std::ofstream(file) << "of the last run";
  Program& worker =
      StartWorker(0, {{"--join", UdpPeer().address()}, {"--connect-timeout", "1"}, {"--json", file}});
  ExpectEnd(worker, 1);
  const auto result = nlohmann::json::parse(ReadFile(file), nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(result.is_object()) << ReadFile(file);
  EXPECT_EQ(result.value("event", ""), "failed");
  EXPECT_EQ(result.value("code", ""), "Unavailable");
  EXPECT_FALSE(std::filesystem::exists(file + ".part"));
}

TEST_F(ResultFile, OfAnEarlierRunIsGoneWhenAServerStarts) {
  const std::string file = directory() + "/s.json";
  std::ofstream(file) << "of the last run";
  Program& server = StartServer({{"--json", file}, {"--once", ""}});
  EXPECT_FALSE(std::filesystem::exists(file));
  server.Signal(SIGTERM);
  ExpectEnd(server, 1);
  EXPECT_THAT(server.Errors(), HasSubstr("told to stop before a job was finished"));
}

TEST_F(ResultFile, ThatIsAPipeWithoutReaderIsRefused) {
  const std::string pipe = directory() + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  Program& server = Start("longhaul-server", {"--listen", "127.0.0.1:0", "--insecure", "--json", pipe});
  ExpectEnd(server, 2, seconds(5) * kSlowness);
  EXPECT_THAT(server.Errors(), HasSubstr(pipe));
}

// `ulimit -f`, or a quota by it: by default the write that is too much ends the process by SIGXFSZ.
TEST_F(Signals, AFileThatMayGrowNoMoreEndsNoJobAndIsReported) {
  const std::string summary = directory() + "/s.json";
  constexpr rlim_t kMost = 1000;
  Program& server = Start("longhaul-server",
                          {"--listen", "127.0.0.1:0", "--workers", "1", "--key", key_file(), "--once",
                           "--json", summary, "--log-level", "error", "--progress", "json"},
                          [] {
                            const rlimit bound{kMost, kMost};
                            return ::setrlimit(RLIMIT_FSIZE, &bound);
                          });
  const auto listening = server.WaitForEvent("listening");
  ASSERT_TRUE(listening) << server.Everything();
  Program& worker = Start("longhaul-worker", {"--join", (*listening)["address"], "--rounds", "3", "--batch",
                                              "16", "--data", dataset(), "--key", key_file()});
  ExpectEnd(worker, 0);
  EXPECT_TRUE(server.WaitForEvent("finished")) << server.Everything();
  ExpectEnd(server, 1);
  EXPECT_THAT(server.Errors(), AllOf(HasSubstr("--json: "), HasSubstr("File too large")));
}

}  // namespace
}  // namespace longhaul::e2e
