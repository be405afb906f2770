#include "bench/wan/longhaul_flow.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <optional>

#include "cli/child_process.h"
#include "wan/tun/unique_fd.h"

namespace longhaul::bench {
namespace {

using cli::ChildProcess;
using nlohmann::json;

std::string ProgramPath(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

// User and system time of a process, in seconds.
double CpuSeconds(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return 0;
  std::istringstream fields(text.substr(end + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// A directory for what the programs say; removed at the end.
class Scratch {
 public:
  Scratch() {
    char name[] = "/tmp/longhaul-wan-bench-XXXXXX";
    path_ = ::mkdtemp(name) == nullptr ? "/tmp" : name;
  }
  ~Scratch() {
    std::error_code ignored;
    if (path_ != "/tmp") std::filesystem::remove_all(path_, ignored);
  }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string LastLine(const std::string& file) {
  std::ifstream in(file);
  std::string last;
  for (std::string line; std::getline(in, line);) last = line.empty() ? last : line;
  return last;
}

Result<ChildProcess> StartIn(wan::TunWan* wan, const std::string& site, const std::string& name,
                             const std::vector<std::string>& argv, const std::string& log) {
  const auto fd = wan->OpenSiteNamespace(site);
  if (!fd.ok()) return fd.status();
  const wan::UniqueFd owned(*fd);
  const int raw = owned.get();
  return ChildProcess::Start(
      name, argv, [raw] { return ::setns(raw, CLONE_NEWNET); }, log);
}

Result<ChildProcess> StartServer(wan::TunWan* wan, const Scratch& scratch) {
  auto server = StartIn(wan, "A", "server",
                        {ProgramPath("longhaul-server"), "--listen", "10.77.1.1:7700", "--insecure",
                         "--insecure-bind", "--progress", "json", "--allow-bench", "64"},
                        scratch.File("server.log"));
  if (!server.ok()) return server;
  bool listening = false;
  for (int i = 0; i < 1000 && !listening; ++i) {
    ::poll(nullptr, 0, 10);
    server->ReadLines([&](const std::string& line) {
      listening = listening || line.find("\"listening\"") != std::string::npos;
    });
    if (server->Poll()) break;
  }
  if (listening) return server;
  return Status(StatusCode::kInternal, "the server does not listen: " + LastLine(scratch.File("server.log")));
}

std::vector<std::string> FlowArguments(const std::string& json_file, const std::string& control) {
  return {ProgramPath("longhaul"),
          "bench",
          "flow",
          "--join",
          "10.77.1.1:7700",
          "--insecure",
          "--quiet",
          "--json",
          json_file,
          "--rate-controller",
          control};
}

std::optional<json> ReadJson(const std::string& file) {
  std::ifstream in(file);
  json value = json::parse(in, nullptr, false);
  return value.is_object() ? std::optional(std::move(value)) : std::nullopt;
}

}  // namespace

void RunLonghaul(wan::TunWan* wan, const Runner& runner, const Timing& timing, double series,
                 const std::vector<std::string>& more_flags, Outcome* outcome) {
  const Scratch scratch;
  auto server = StartServer(wan, scratch);
  if (!server.ok()) {
    outcome->error = server.status().message();
    return;
  }
  const auto seconds = [](Duration d) { return std::chrono::duration<double>(d).count(); };
  std::vector<std::string> argv = FlowArguments(scratch.File("flow.json"), runner.control);
  argv.insert(argv.end(), {"--seconds", std::to_string(seconds(timing.length)), "--warmup",
                           std::to_string(seconds(timing.warmup)), "--series", std::to_string(series)});
  argv.insert(argv.end(), more_flags.begin(), more_flags.end());
  const double server_cpu = CpuSeconds(server->pid());
  auto flow = StartIn(wan, "B", "flow", argv, scratch.File("flow.log"));
  if (!flow.ok()) {
    outcome->error = flow.status().message();
    return;
  }
  while (!flow->WaitFor(std::chrono::milliseconds(200))) {
    server->ReadLines([](const std::string&) {});
  }
  const double wall = seconds(timing.length);
  outcome->receiver_cpu = (CpuSeconds(server->pid()) - server_cpu) / wall;
  server->Signal(SIGTERM);
  const auto result = ReadJson(scratch.File("flow.json"));
  if (flow->exit_code() != 0 || !result) {
    outcome->error = LastLine(scratch.File("flow.log"));
    if (outcome->error.empty())
      outcome->error = "longhaul bench flow ended with " + std::to_string(flow->exit_code());
    if (!result) return;
  }
  outcome->details = *result;
  outcome->goodput_mbps = result->value("goodput_mbps", 0.0);
  outcome->sender_cpu = result->value("cpu_seconds", 0.0) / wall;
  outcome->payload_share = result->value("chunk_bytes", 0.0) / (result->value("datagram_bytes", 0.0) + 28);
}

void RunIncast(wan::TunWan* wan, const IncastOptions& options, Outcome* outcome) {
  const Scratch scratch;
  auto server = StartServer(wan, scratch);
  if (!server.ok()) {
    outcome->error = server.status().message();
    return;
  }
  std::deque<ChildProcess> flows;
  for (int i = 0; i < options.workers; ++i) {
    const std::string name = "flow" + std::to_string(i);
    std::vector<std::string> argv = FlowArguments(scratch.File(name + ".json"), options.control);
    argv.insert(argv.end(), {"--seconds", "60", "--windows", std::to_string(options.windows), "--bytes",
                             options.bytes, "--site", name});
    auto flow = StartIn(wan, "B", name, argv, scratch.File(name + ".log"));
    if (!flow.ok()) {
      outcome->error = flow.status().message();
      return;
    }
    flows.push_back(std::move(*flow));
  }
  json finish = json::array();
  uint64_t bytes = 0;
  double slowest = 0;
  for (int i = 0; i < options.workers; ++i) {
    const std::string name = "flow" + std::to_string(i);
    ChildProcess& flow = flows[static_cast<size_t>(i)];
    if (!flow.WaitFor(std::chrono::seconds(70)) || flow.exit_code() != 0) {
      outcome->error = name + ": " + LastLine(scratch.File(name + ".log"));
      return;
    }
    const auto result = ReadJson(scratch.File(name + ".json"));
    if (!result) {
      outcome->error = name + " wrote no result";
      return;
    }
    finish.push_back(result->value("window_ms_p99", 0.0));
    slowest = std::max(slowest, result->value("window_ms_p99", 0.0));
    bytes += result->value("bytes", uint64_t{0});
  }
  server->Signal(SIGTERM);
  outcome->goodput_mbps = slowest <= 0 ? 0 : static_cast<double>(bytes) * 8e-3 / slowest;
  outcome->details = {{"finish_ms", finish}, {"windows", options.windows}, {"bytes", bytes}};
}

}  // namespace longhaul::bench
