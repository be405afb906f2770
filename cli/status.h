// `longhaul status`: a running longhaul-server's state and its job's, as JSON. `longhaul kick`: a worker of
// it is disconnected and kept out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "longhaul/status.h"

namespace longhaul::cli {

struct StatusCommandOptions {
  std::string join;              // HOST:PORT
  std::string key_file = {};     // of the job: a shared key, or a tool's certificate; or
  bool insecure = false;         // the server has no key
  double timeout = 10;           // seconds
  std::string server_name = {};  // that the server's certificate must have; empty: any
};

// Exit codes of RunStatus, RunKick and RunHandOver.
inline constexpr int kStatusUsage = 2;
inline constexpr int kOrderRefused = 1;       // or the rank has no worker
inline constexpr int kStatusUnreachable = 3;  // no server, or it does not answer us

// Prints the server's JSON on standard output.
int RunStatus(const StatusCommandOptions& options);

// Prints after which round all servers of the job have ended.
int RunHandOver(const StatusCommandOptions& options);
// Prints whom the server has kicked.
int RunKick(const StatusCommandOptions& options, uint32_t rank);

// JSON from a peer, for a terminal.

// Objects and arrays within each other; the server's own answers have 3.
constexpr int kMaxJsonDepth = 16;

// `text` indented by two, in printable ASCII and line feeds only: of all else, in names and values, stands
// the \uXXXX, so that it is the same JSON and commands nothing to a terminal. At most 40 times as long as
// `text`. kProtocolViolation: no JSON object, or one deeper than kMaxJsonDepth.
Result<std::string> PrintableJson(std::string_view text);

}  // namespace longhaul::cli
