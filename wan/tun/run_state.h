// What a run leaves on disk so that another process can find it, enter its sites, or clean up after its
// crash.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "longhaul/status.h"

namespace longhaul::wan {

struct RunState {
  struct Site {
    std::string name;
    std::string address;         // "10.77.1.1"
    std::string namespace_path;  // "/run/netns/lh-A-1234"
  };

  std::string tag;
  pid_t pid = 0;                // of the process that forwards
  uint64_t pid_start = 0;       // ProcessStartTime(pid): pids are used again
  pid_t guardian = 0;           // 0 before it runs
  bool command_line = false;    // made by `longhaul-wan up`, so `longhaul-wan down` may end it
  bool user_namespace = false;  // its mounts are visible inside its user namespace only
  std::string backend;
  std::vector<Site> sites;
  std::vector<std::string> extra_namespaces;  // paths; netem's hub

  // Whether the process that made it still lives.
  bool IsAlive() const;
  std::vector<std::string> NamespacePaths() const;
};

// Root: /run/longhaul-wan. Others: $XDG_RUNTIME_DIR/longhaul-wan, or /tmp/longhaul-wan-UID.
std::string DefaultStateDirectory();

// Makes the directory (0700 unless root) and writes <tag>.json, replacing it atomically.
Status WriteRunState(const std::string& directory, const RunState& state);
// The path of a file that lies beside the state and goes with it, such as the live counters.
std::string CountersPath(const std::string& directory, const std::string& tag);
// Every readable state, ordered by tag. A directory that does not exist holds none.
std::vector<RunState> ListRunStates(const std::string& directory);
// Removes what the run made: namespaces first, then its files. Ok when it is gone already.
Status RemoveRun(const std::string& directory, const RunState& state);

}  // namespace longhaul::wan
