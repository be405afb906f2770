// longhaul-server's options, of one job.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/load/sink.h"
#include "longhaul/server.h"

namespace CLI {
class App;
}

namespace longhaul::server {

struct ServerFlags {
  ServerOptions server;
  load::SinkOptions load;
  int64_t max_model_bytes = int64_t{1} << 30;
  int64_t max_memory_bytes = 0;
  std::string progress = "text";
  std::string json_file;
  std::string jobs_file;
  std::vector<std::string> plugins;
  uint32_t share = 1;
  std::string metrics;
  std::string log_level = "info";
  bool no_grants = false;
  bool allow_core_dump = false;
  bool no_seccomp = false;
  double half_open_seconds = 5;
  std::string capacity = "auto";
  std::string capacity_floor;
  std::string capacity_cap;
  std::string worker_rate_cap;
  std::string worker_rate_floor;
};

// Every option of the command line, but --config.
void AddFlags(CLI::App& app, ServerFlags& flags);
// Of them, those of the whole process: where it has several jobs (--jobs) all others are a job's. Without
// dashes.
std::span<const std::string_view> ProcessOptions();

// What was given, as flags->server. REQUIRES: it has passed its checks. kInvalidArgument names the flags that
// do not go together.
Status TakeFlags(const CLI::App& app, ServerFlags* flags);

}  // namespace longhaul::server
