#include "wan/tun/run_state.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "wan/tun/namespaces.h"
#include "wan/tun/process.h"

namespace longhaul::wan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string StatePath(const std::string& directory, const std::string& tag) {
  return directory + "/" + tag + ".json";
}

json ToJson(const RunState& state) {
  json sites = json::array();
  for (const auto& site : state.sites) {
    sites.push_back(
        {{"name", site.name}, {"address", site.address}, {"namespace_path", site.namespace_path}});
  }
  return {{"tag", state.tag},
          {"pid", state.pid},
          {"pid_start", state.pid_start},
          {"guardian", state.guardian},
          {"command_line", state.command_line},
          {"user_namespace", state.user_namespace},
          {"backend", state.backend},
          {"sites", sites},
          {"extra_namespaces", state.extra_namespaces}};
}

// Throws what nlohmann::json throws when a field is missing or has another type.
RunState FromJson(const json& j) {
  RunState state;
  j.at("tag").get_to(state.tag);
  j.at("pid").get_to(state.pid);
  j.at("pid_start").get_to(state.pid_start);
  j.at("guardian").get_to(state.guardian);
  j.at("command_line").get_to(state.command_line);
  j.at("user_namespace").get_to(state.user_namespace);
  j.at("backend").get_to(state.backend);
  j.at("extra_namespaces").get_to(state.extra_namespaces);
  for (const json& site : j.at("sites")) {
    state.sites.push_back({site.at("name"), site.at("address"), site.at("namespace_path")});
  }
  return state;
}

// In a shared /tmp any user may have made the directory: it counts only when it is ours or root's.
bool IsOursOrRoots(const std::string& directory) {
  struct stat owner {};
  return stat(directory.c_str(), &owner) == 0 && (owner.st_uid == geteuid() || owner.st_uid == 0);
}

Status MakeDirectory(const std::string& directory) {
  std::error_code error;
  if (fs::create_directories(directory, error)) chmod(directory.c_str(), geteuid() == 0 ? 0755 : 0700);
  if (error) return OsError("making " + directory, error.value());
  return IsOursOrRoots(directory) ? Status::Ok()
                                  : OsError("using " + directory + ", which belongs to another user", EPERM);
}

}  // namespace

bool RunState::IsAlive() const { return pid > 0 && pid_start != 0 && ProcessStartTime(pid) == pid_start; }

std::vector<std::string> RunState::NamespacePaths() const {
  std::vector<std::string> paths = extra_namespaces;
  for (const Site& site : sites) paths.push_back(site.namespace_path);
  return paths;
}

std::string DefaultStateDirectory() {
  const uid_t uid = OutsideUserId();
  if (uid == 0) return "/run/longhaul-wan";
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && access(runtime, W_OK) == 0) return std::string(runtime) + "/longhaul-wan";
  return "/tmp/longhaul-wan-" + std::to_string(uid);
}

std::string CountersPath(const std::string& directory, const std::string& tag) {
  return directory + "/" + tag + ".counters";
}

Status WriteRunState(const std::string& directory, const RunState& state) {
  if (Status s = MakeDirectory(directory); !s.ok()) return s;
  return WriteFileAtomically(StatePath(directory, state.tag), ToJson(state).dump(2) + "\n");
}

std::vector<RunState> ListRunStates(const std::string& directory) {
  if (!IsOursOrRoots(directory)) return {};
  std::vector<RunState> states;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream file(entry.path());
    try {
      states.push_back(FromJson(json::parse(file)));
    } catch (const json::exception&) {
      // Not ours, or cut off by a full disk: it names nothing that could be cleaned.
    }
  }
  std::ranges::sort(states, {}, &RunState::tag);
  return states;
}

Status RemoveRun(const std::string& directory, const RunState& state) {
  Status first;
  // The mounts of a dead user namespace died with it, and its paths may belong to another run by now.
  if (!state.user_namespace || InUserNamespace()) {
    for (const std::string& path : state.NamespacePaths()) {
      if (Status s = RemoveNamespace(path); !s.ok() && first.ok()) first = s;
    }
  }
  if (!first.ok()) return first;
  unlink(CountersPath(directory, state.tag).c_str());
  unlink(StatePath(directory, state.tag).c_str());
  rmdir(directory.c_str());  // only when it was the last one
  return Status::Ok();
}

}  // namespace longhaul::wan
