// `longhaul status`: what a running longhaul-server says of itself and its job, as JSON.
#pragma once

#include <string>

namespace longhaul::cli {

struct StatusCommandOptions {
  std::string join;           // HOST:PORT
  std::string key_file = {};  // of the job: a shared key, or a tool's certificate; or
  bool insecure = false;      // the server has no key
  double timeout = 10;        // seconds
};

// Exit codes of RunStatus.
inline constexpr int kStatusUsage = 2;
inline constexpr int kStatusUnreachable = 3;  // no server, or it does not answer us

// Prints the server's JSON on standard output.
int RunStatus(const StatusCommandOptions& options);

}  // namespace longhaul::cli
