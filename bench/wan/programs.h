// longhaul's real programs in the sites of an emulated link.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/wan/protection.h"
#include "cli/child_process.h"
#include "wan/tun/tun_wan.h"

namespace longhaul::bench {

// Where longhaul-server listens, in site A; without a link between sites, on this machine.
inline constexpr const char* kServerAddress = "10.77.1.1:7700";
inline constexpr const char* kLoopbackAddress = "127.0.0.1:17700";

// A program beside this one.
std::string ProgramPath(const std::string& name);
// User and system time of a process, in seconds.
double CpuSeconds(pid_t pid);

// A directory for the output of the programs; removed at the end.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Of a log: its last line that is not empty.
std::string LastLine(const std::string& file);
std::optional<nlohmann::json> ReadJson(const std::string& file);

// `wan` may be null: on this machine, in no site.
Result<cli::ChildProcess> StartIn(wan::TunWan* wan, const std::string& site, const std::string& name,
                                  const std::vector<std::string>& argv, const std::string& log);
// False: it has ended, or has not said within 10 s that it listens.
bool IsListening(cli::ChildProcess& daemon);
// Returns once it listens.
Result<cli::ChildProcess> StartServer(wan::TunWan* wan, const Scratch& scratch, const Protection& protection,
                                      const std::vector<std::string>& more_flags = {});

}  // namespace longhaul::bench
