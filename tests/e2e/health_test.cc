// Probes and scrapes of real daemons, confined as they are shipped.
//
//   worker 0 ─ server            --metrics of each: /healthz, /readyz, /metrics
//   worker 1 ─┤
//   ranks ─ longhaul-offload ─┘
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "tests/e2e/support/job.h"
#include "tests/health/exposition_reader.h"
#include "tests/health/tcp_peer.h"
#include "transport/udp/resolve.h"

namespace longhaul::e2e {
namespace {

using health::ExpositionReader;
using health::HttpReply;
using health::TcpPeer;
using ::testing::HasSubstr;

// One thread of a child that stands still, while the others go on.
class StoppedThread {
 public:
  explicit StoppedThread(pid_t thread) : thread_(thread) {
    ok_ = ::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) == 0 &&
          ::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0 &&
          ::waitpid(thread, nullptr, __WALL) == thread;
  }
  ~StoppedThread() { ::ptrace(PTRACE_DETACH, thread_, nullptr, nullptr); }
  StoppedThread(const StoppedThread&) = delete;
  StoppedThread& operator=(const StoppedThread&) = delete;
  bool ok() const { return ok_; }

 private:
  pid_t thread_;
  bool ok_ = false;
};

bool WaitsForEvents(pid_t process, const std::string& thread) {
  const std::string in = ReadFile("/proc/" + std::to_string(process) + "/task/" + thread + "/syscall");
  const int call = in.empty() ? -1 : std::atoi(in.c_str());
  return call == SYS_epoll_wait || call == SYS_epoll_pwait || call == SYS_epoll_pwait2;
}

// Threads that wait for events now or a moment later, as a loop without work does.
std::set<pid_t> LoopsOf(pid_t process) {
  std::set<pid_t> loops;
  for (int look = 0; look < 20; ++look) {
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task")) {
      const std::string thread = entry.path().filename();
      if (WaitsForEvents(process, thread)) loops.insert(std::atoi(thread.c_str()));
    }
    Pause(milliseconds(10));
  }
  return loops;
}

// What /readyz says within a moment; empty: nothing, as when the port's own thread stands still.
std::string ReadyOf(const Address& port) {
  const TcpPeer peer(port);
  if (!peer.Send("GET /readyz HTTP/1.1\r\n\r\n")) return "";
  return health::ParseReply(peer.Receive(milliseconds(500) * kSlowness)).body;
}

class HealthJob : public JobTest {
 protected:
  // Readable by a debugger, which a process with a key is not.
  Flags security() const override { return {{"--insecure", ""}}; }

  static Address PortOf(Program& program) {
    const auto line = program.WaitForEvent("metrics");
    EXPECT_TRUE(line) << program.Everything();
    const auto address = line ? udp::ResolvePeer((*line)["address"].get<std::string>())
                              : Result<Address>(Status(StatusCode::kNotFound, "no line"));
    return address.ok() ? *address : Address();
  }
  static bool Becomes(Program& program, const std::string& path, int code, const std::string& word = "") {
    const Address port = PortOf(program);
    return Eventually([&] {
      const HttpReply reply = health::Get(port, path);
      return reply.code == code && reply.body.find(word) != std::string::npos;
    });
  }
  static Flags WithPort(const Flags& more = {}) {
    return Merged({{"--metrics", "127.0.0.1:0"}, {"--progress", "json"}}, more);
  }
  // The thread without which /healthz says that the loop does not answer; found by trying each that waits for
  // events.
  static void ExpectStandstillIsTold(Program& program) {
    int told = 0;
    for (const pid_t thread : LoopsOf(program.pid())) {
      const StoppedThread stopped(thread);
      if (!stopped.ok()) continue;
      const Address port = PortOf(program);
      // A look every second, and two of them until it is given up.
      if (!Eventually([&] { return ReadyOf(port) != "ok\n"; }, seconds(6))) continue;
      if (ReadyOf(port) != "the loop does not answer\n") continue;
      ++told;
      EXPECT_TRUE(Becomes(program, "/healthz", 503, "has not answered for"));
      EXPECT_EQ(health::Get(port, "/metrics").code, 503);
    }
    EXPECT_EQ(told, 1) << "one thread is the loop";
    EXPECT_TRUE(Becomes(program, "/healthz", 200));
    EXPECT_TRUE(Becomes(program, "/readyz", 200));
  }
};

TEST_F(HealthJob, AServerAndItsWorkersAreReadyScrapedAndNotReadyWhenTheyAreToldToStop) {
  Program& server = StartServer(WithPort({{"--workers", "2"}}));
  EXPECT_TRUE(Becomes(server, "/readyz", 200)) << "a server waits for its workers";
  Program& first = StartWorker(0, WithPort());
  EXPECT_TRUE(Becomes(first, "/healthz", 200));
  Program& second = StartWorker(1, WithPort());
  EXPECT_TRUE(Becomes(first, "/readyz", 200));
  EXPECT_TRUE(Becomes(second, "/readyz", 200));
  ASSERT_TRUE(second.WaitForEvent("round")) << second.Everything();
  // A sanitizer makes calls of its own.
  if (server.Errors().find("this build has no seccomp filter") == std::string::npos) {
    EXPECT_THAT(server.Errors(), ::testing::Not(HasSubstr("not confined")));
  }

  const ExpositionReader page(health::Get(PortOf(server), "/metrics").body);
  ASSERT_EQ(page.error, "");
  EXPECT_GE(page.Value("longhaul_server_rounds_total").value_or(-1), 1);
  EXPECT_EQ(page.Value("longhaul_server_joined"), 2);
  EXPECT_EQ(page.Value("longhaul_member_joined", {{"rank", "1"}, {"site", "site1"}}), 1);
  EXPECT_GT(
      page.Value("longhaul_connection_bytes_received_total", {{"rank", "0"}, {"site", "site0"}}).value_or(0),
      0);
  EXPECT_GT(page.Value("longhaul_endpoint_datagrams_received_total").value_or(0), 0);
  EXPECT_GT(page.Value("longhaul_last_progress_timestamp_seconds").value_or(0),
            page.Value("longhaul_start_timestamp_seconds").value_or(0));
  const ExpositionReader worker(health::Get(PortOf(first), "/metrics").body);
  ASSERT_EQ(worker.error, "");
  EXPECT_GE(worker.Value("longhaul_client_operations_succeeded_total").value_or(-1), 1);
  EXPECT_EQ(worker.Value("longhaul_ready"), 1);

  // Its peers do not answer the farewell: a drain of a second and a half.
  first.Signal(SIGSTOP);
  second.Signal(SIGSTOP);
  server.Signal(SIGTERM);
  EXPECT_TRUE(Becomes(server, "/readyz", 503, "told to stop by signal 15"));
  EXPECT_EQ(health::Get(PortOf(server), "/healthz").code, 200);
  ExpectEnd(server, 0);
  first.Signal(SIGCONT);
  second.Signal(SIGCONT);
}

TEST_F(HealthJob, AWorkerIsNotReadyBeforeItHasJoined) {
  Program& server = StartServer(WithPort({{"--workers", "2"}}));
  server.Signal(SIGSTOP);
  Program& worker = StartWorker(0, WithPort());
  EXPECT_TRUE(Becomes(worker, "/readyz", 503, "starting"));
  EXPECT_TRUE(Becomes(worker, "/healthz", 200));
  server.Signal(SIGCONT);
  EXPECT_TRUE(Becomes(worker, "/readyz", 200));
}

TEST_F(HealthJob, AServerWhoseLoopStandsStillIsNotHealthy) {
  Program& server = StartServer(WithPort());
  EXPECT_TRUE(Becomes(server, "/readyz", 200));
  ExpectStandstillIsTold(server);
}

TEST_F(HealthJob, AWorkerWhoseLoopStandsStillIsNotHealthy) {
  StartServer(WithPort({{"--workers", "2"}, {"--idle-timeout", "120"}}));
  Program& worker = StartWorker(0, WithPort({{"--idle-timeout", "120"}}));  // waits for the other one
  EXPECT_TRUE(Becomes(worker, "/readyz", 200));
  ExpectStandstillIsTold(worker);
}

TEST_F(HealthJob, AnOffloadEngineIsScrapedAndToldWhenItStandsStill) {
  StartServer(WithPort({{"--workers", "1"}}));
  Program& offload = Start("longhaul-offload", {"--listen", directory() + "/site.sock", "--ranks-per-node",
                                                "1", "--server", address(), "--insecure", "--idle-timeout",
                                                "120", "--metrics", "127.0.0.1:0", "--progress", "json"});
  EXPECT_TRUE(Becomes(offload, "/readyz", 200)) << offload.Everything();
  const ExpositionReader page(health::Get(PortOf(offload), "/metrics").body);
  ASSERT_EQ(page.error, "");
  EXPECT_TRUE(page.Value("longhaul_offload_requests_total", {{"node", "0"}}));
  EXPECT_GT(page.Value("longhaul_client_packets_sent_total").value_or(0), 0);
  offload.Signal(SIGTERM);
  EXPECT_TRUE(offload.WaitForEnd());
}

TEST_F(HealthJob, AnOffloadEngineWithoutItsServerIsNotReady) {
  Program& offload =
      Start("longhaul-offload",
            {"--listen", directory() + "/site.sock", "--ranks-per-node", "1", "--server", "127.0.0.1:9",
             "--insecure", "--connect-timeout", "30", "--metrics", "127.0.0.1:0", "--progress", "json"});
  EXPECT_TRUE(Becomes(offload, "/readyz", 503, "not connected to the server")) << offload.Everything();
  EXPECT_TRUE(Becomes(offload, "/healthz", 200));
}

TEST_F(HealthJob, AnEngineAloneIsReadyAndToldWhenItStandsStill) {
  Program& offload = Start("longhaul-offload", {"--listen", directory() + "/site.sock", "--metrics",
                                                "127.0.0.1:0", "--progress", "json"});
  EXPECT_TRUE(Becomes(offload, "/readyz", 200)) << offload.Everything();
  ExpectStandstillIsTold(offload);
}

TEST_F(HealthJob, APortThatCannotBeHadIsNamed) {
  Program& server = StartServer(WithPort());
  const std::string taken = PortOf(server).ToString();
  for (const auto& [where, code, word] : {std::tuple{taken, 3, "Address already in use"},
                                          std::tuple{std::string("192.0.2.7:9464"), 3, "Cannot assign"},
                                          std::tuple{std::string("nonsense"), 2, "nonsense"}}) {
    for (const char* name : {"longhaul-server", "longhaul-worker", "longhaul-offload"}) {
      std::vector<std::string> words = {"--metrics", where};
      if (std::string(name) == "longhaul-server")
        words.insert(words.end(), {"--listen", "127.0.0.1:0", "--insecure"});
      if (std::string(name) == "longhaul-worker")
        words.insert(words.end(), {"--join", address(), "--insecure"});
      if (std::string(name) == "longhaul-offload")
        words.insert(words.end(), {"--listen", directory() + "/x.sock"});
      Program& program = Start(name, words);
      ExpectEnd(program, code);
      EXPECT_THAT(program.Errors(), ::testing::AllOf(HasSubstr("--metrics"), HasSubstr(word))) << name;
    }
  }
}

// What a stranger sends to the port costs the job nothing.
TEST_F(HealthJob, AFloodAtThePortLeavesTheJobAlone) {
  Program& server = StartServer(WithPort({{"--workers", "1"}}));
  Program& worker = StartWorker(0, {{"--world-size", "1"}, {"--progress", "json"}});
  ASSERT_TRUE(worker.WaitForEvent("round")) << worker.Everything();
  const Address port = PortOf(server);
  std::deque<TcpPeer> peers;
  for (int i = 0; i < 300; ++i) {
    const TcpPeer& peer = peers.emplace_back(port);
    (void)peer.Send(i % 3 == 0   ? std::string(20'000, 'x')
                    : i % 3 == 1 ? "GET /metrics HTTP/1.1\r\n\r\n"
                                 : "GET ");
    if (peers.size() > 100) peers.pop_front();
  }
  EXPECT_TRUE(Becomes(server, "/healthz", 200));
  const ExpositionReader page(health::Get(port, "/metrics").body);
  EXPECT_GE(page.Value("longhaul_health_refused_total").value_or(0), 50);
  const double rounds = page.Value("longhaul_server_rounds_total").value_or(0);
  EXPECT_TRUE(Eventually([&] {
    const ExpositionReader later(health::Get(port, "/metrics").body);
    return later.Value("longhaul_server_rounds_total").value_or(0) > rounds;
  }));
}

}  // namespace
}  // namespace longhaul::e2e
