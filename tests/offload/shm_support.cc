#include "tests/offload/shm_support.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

extern char** environ;

namespace longhaul::offload {
namespace {
using Clock = std::chrono::steady_clock;
}

TemporaryFolder::TemporaryFolder() {
  std::string name = "/tmp/longhaul-offload-XXXXXX";
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Device ShmSite::Open(uint8_t rank, uint8_t node) const {
  return Device::Open(where(), {.node = node, .rank = rank}).value();
}

ThreadSite::ThreadSite(const SiteOptions& site, uint64_t rank_memory_bytes) {
  DaemonOptions options;
  options.path = path();
  options.site = site;
  options.rank_memory_bytes = rank_memory_bytes;
  daemon_ = SiteDaemon::Start(options).value();
  thread_ = std::thread([this] { daemon_->Run(); });
}

ThreadSite::~ThreadSite() {
  daemon_->Stop();
  thread_.join();
}

ProcessSite::ProcessSite(const SiteOptions& site, std::vector<std::string> more, bool listens)
    : site_(site), more_(std::move(more)), listens_(listens) {
  Start();
}

void ProcessSite::Start() {
  std::vector<std::string> words = {
      LONGHAUL_OFFLOAD_PROGRAM, "--listen", path(), "--progress", "none", "--log-level", "warn"};
  const auto add = [&words](const char* name, uint64_t value) {
    words.emplace_back(name);
    words.push_back(std::to_string(value));
  };
  add("--nodes", site_.nodes);
  add("--ranks-per-node", site_.ranks_per_node);
  add("--seg-bytes", site_.seg_bytes);
  add("--pool-segs", site_.pool_segs);
  add("--window-segs", site_.window_segs);
  add("--queue-depth", site_.queue_depth);
  add("--scratch-bytes", site_.scratch_bytes);
  if (site_.aggregator) words.emplace_back("--aggregator");
  words.insert(words.end(), more_.begin(), more_.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ASSERT_EQ(posix_spawn(&pid_, words[0].c_str(), nullptr, nullptr, arguments.data(), environ), 0);
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (listens_ && !SocketFile::Connect(path()).ok()) {
    ASSERT_LT(Clock::now(), end) << "the daemon does not listen";
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

int ProcessSite::End(int signal) {
  if (pid_ <= 0) return 0;
  kill(pid_, signal);
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

ProcessSite::~ProcessSite() { End(SIGKILL); }

size_t ProcessSite::CountFds() const {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid_) + "/fd")) {
    count += entry.exists() || true;
  }
  return count;
}

size_t ProcessSite::CountMaps() const {
  std::ifstream maps("/proc/" + std::to_string(pid_) + "/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:") != std::string::npos;
  return count;
}

Duration ProcessSite::CpuTime() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
  std::string text, word;
  std::getline(file, text);
  std::istringstream words(text.substr(text.rfind(')') + 2));
  for (int i = 3; i < 14; ++i) words >> word;
  int64_t user = 0, system = 0;
  words >> user >> system;
  return std::chrono::nanoseconds((user + system) * (1'000'000'000 / sysconf(_SC_CLK_TCK)));
}

RawRank::RawRank(const std::string& path, uint8_t rank, bool may_fail) {
  auto socket = SocketFile::Connect(path);
  if (!socket.ok()) {
    EXPECT_TRUE(may_fail) << socket.status().ToString();
    return;
  }
  control_ = std::move(*socket);
  ControlRequest hello;
  hello.rank = rank;
  hello.site = Encode(SiteOptions());
  auto answer = Ask(control_.get(), hello);
  if (!answer.ok()) {
    EXPECT_TRUE(may_fail) << answer.status().ToString();
    return;
  }
  memory_fd_.Reset(fcntl(answer->descriptors[0].get(), F_DUPFD_CLOEXEC, 0));
  wake_up_ = std::move(answer->descriptors[1]);
  memory_.emplace(SharedMemory::Map(std::move(answer->descriptors[0]), answer->reply.bytes).value(),
                  answer->reply.ring);
}

void RawRank::Wake() { (void)!send(wake_up_.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL); }

void RawRank::Post(const WireRequest& request) {
  memory_->requests()[tail_++ % memory_->ring()].Write(request);
  memory_->words().request_tail.value = tail_;
  Wake();
}

std::optional<WireCompletion> RawRank::Next() {
  const auto end = Clock::now() + std::chrono::seconds(5);
  while (memory_->words().completion_tail.value == head_) {
    if (Clock::now() > end) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const WireCompletion completion = memory_->completions()[head_++ % memory_->ring()].Read();
  memory_->words().completion_head.value = head_;
  return completion;
}

Result<ReceivedReply> RawRank::Allocate(uint64_t bytes, std::string_view name) {
  ControlRequest request;
  request.kind = ControlKind::kAllocate;
  request.bytes = bytes;
  SetText(name, &request.name);
  return Ask(control_.get(), request);
}

bool RawRank::IsEnded() {
  pollfd wait{control_.get(), POLLIN, 0};
  return poll(&wait, 1, 5000) == 1 && (wait.revents & (POLLHUP | POLLERR)) != 0;
}

}  // namespace longhaul::offload
