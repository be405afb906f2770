#include "server/machine_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/pages.h"

namespace longhaul::server {
namespace {

constexpr uint64_t kKiB = 1024;

// The file's first number; none when there is no such file, or a word such as "max".
std::optional<uint64_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (!(file >> number)) return std::nullopt;
  return number;
}

// The number behind "name:".
std::optional<uint64_t> FieldOf(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name + ":")) continue;
    std::istringstream rest(line.substr(name.size() + 1));
    uint64_t number = 0;
    if (rest >> number) return number;
  }
  return std::nullopt;
}

// A group's limit minus what it uses now.
std::optional<uint64_t> LeftInGroup(const std::string& limit, const std::string& used) {
  const auto most = NumberIn(limit);
  const auto now = NumberIn(used);
  if (!most || !now) return std::nullopt;
  return *most - std::min(*most, *now);
}

// Version 2: "0::/a/b", every group up to the root limits. Inside a container the path may not exist: then
// the root's files are the container's.
void AddGroups(const std::string& root, uint64_t* least) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string path;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) path = line.substr(3);
  }
  const std::string mount = root + "/sys/fs/cgroup";
  for (;; path.resize(path.rfind('/'))) {
    if (path == "/") path.clear();
    if (const auto left = LeftInGroup(mount + path + "/memory.max", mount + path + "/memory.current"))
      *least = std::min(*least, *left);
    if (path.rfind('/') == std::string::npos) break;
  }
  const std::string version1 = mount + "/memory/memory.";
  if (const auto left = LeftInGroup(version1 + "limit_in_bytes", version1 + "usage_in_bytes"))
    *least = std::min(*least, *left);
}

}  // namespace

uint64_t AvailableMemory(const std::string& root) {
  uint64_t least = UINT64_MAX;
  if (const auto available = FieldOf(root + "/proc/meminfo", "MemAvailable"))
    least = std::min(least, *available * kKiB);
  AddGroups(root, &least);
  rlimit address_space{};
  if (getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY) {
    const uint64_t mapped = NumberIn(root + "/proc/self/statm").value_or(0) * PageBytes();
    least = std::min<uint64_t>(least,
                               address_space.rlim_cur - std::min<uint64_t>(address_space.rlim_cur, mapped));
  }
  return least == UINT64_MAX ? 0 : std::max<uint64_t>(least, 1);
}

}  // namespace longhaul::server
