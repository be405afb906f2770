#include "bench/wan/programs.h"

#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/files.h"

namespace longhaul::bench {

using cli::ChildProcess;
using nlohmann::json;

std::string ProgramPath(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

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

Scratch::Scratch() {
  char name[] = "/tmp/longhaul-wan-bench-XXXXXX";
  path_ = ::mkdtemp(name) == nullptr ? "/tmp" : name;
}

Scratch::~Scratch() {
  std::error_code ignored;
  if (path_ != "/tmp") std::filesystem::remove_all(path_, ignored);
}

std::string LastLine(const std::string& file) {
  std::ifstream in(file);
  std::string last;
  for (std::string line; std::getline(in, line);) last = line.empty() ? last : line;
  return last;
}

std::optional<json> ReadJson(const std::string& file) {
  std::ifstream in(file);
  json value = json::parse(in, nullptr, false);
  return value.is_object() ? std::optional(std::move(value)) : std::nullopt;
}

Result<ChildProcess> StartIn(wan::TunWan* wan, const std::string& site, const std::string& name,
                             const std::vector<std::string>& argv, const std::string& log) {
  if (wan == nullptr) return ChildProcess::Start(name, argv, {}, log);
  const auto fd = wan->OpenSiteNamespace(site);
  if (!fd.ok()) return fd.status();
  const FileDescriptor owned(*fd);
  const int raw = owned.get();
  return ChildProcess::Start(
      name, argv, [raw] { return ::setns(raw, CLONE_NEWNET); }, log);
}

bool IsListening(ChildProcess& daemon) {
  bool listening = false;
  for (int i = 0; i < 1000 && !listening; ++i) {
    ::poll(nullptr, 0, 10);
    daemon.ReadLines([&](const std::string& line) {
      listening = listening || line.find("listening") != std::string::npos;
    });
    if (daemon.Poll()) break;
  }
  return listening;
}

Result<ChildProcess> StartServer(wan::TunWan* wan, const Scratch& scratch, const Protection& protection,
                                 const std::vector<std::string>& more_flags) {
  std::vector<std::string> argv = {ProgramPath("longhaul-server"), "--listen",
                                   wan == nullptr ? kLoopbackAddress : kServerAddress, "--progress", "json"};
  const std::vector<std::string> key = protection.ServerFlags();
  argv.insert(argv.end(), key.begin(), key.end());
  argv.insert(argv.end(), more_flags.begin(), more_flags.end());
  auto server = StartIn(wan, "A", "server", argv, scratch.File("server.log"));
  if (!server.ok()) return server;
  if (IsListening(*server)) return server;
  return Status(StatusCode::kInternal, "the server does not listen: " + LastLine(scratch.File("server.log")));
}

}  // namespace longhaul::bench
