// longhaul-worker ... -- COMMAND: ranks of this host that are processes of the user's own program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/signals.h"
#include "longhaul/status.h"
#include "longhaul/units.h"

namespace longhaul::worker {

// Which ranks are this host's, of how many.
struct Place {
  uint32_t first_rank = 0;
  uint32_t ranks = 1;
  uint32_t world_size = 1;
  std::optional<uint32_t> host = std::nullopt;  // its place among the job's hosts; unset: by equal hosts
};

// From a hostfile as Open MPI's: a line for each host, "HOST [slots=N]", # begins a comment; ranks in the
// order of the lines. names: how this host may be called. Errors: kInvalidArgument (file and line; this host
// is not there, or twice), those of the file.
Result<Place> PlaceFromHostfile(const std::string& file, const std::vector<std::string>& names);

// What this host is called: its name, with and without its domain, and the addresses of its interfaces.
std::vector<std::string> NamesOfThisHost();

struct LaunchOptions {
  std::vector<std::string> command;  // not empty
  Place place;
  // Where another launcher has started the one rank beside others of this host: which of how many. 0: those
  // of `place` are all.
  uint32_t first_local = 0;
  uint32_t local_size = 0;
  std::string join;       // HOST:PORT; empty: through a site
  uint32_t restarts = 0;  // of each rank that fails
  // Set for all: LONGHAUL_* of the connection.
  std::vector<std::pair<std::string, std::string>> environment;
  // How long the others have after SIGTERM when a rank has failed for good.
  Duration grace = std::chrono::seconds(10);
};

// The environment of one rank: this process' own, the options', and what torchrun, Open MPI and ps-lite would
// set. MASTER_ADDR and MASTER_PORT stay what they are where they are set. Through a site the ranks of the job
// are not known here: none is set, and what says one of this process is not handed to several.
std::vector<std::string> EnvironmentOfRank(const LaunchOptions& options, uint32_t local_rank,
                                           uint32_t restarted);

// The codes of a shell: the program is not there, and 128 + the signal that ended a process.
inline constexpr int kExitNoCommand = 127;

// Those that a launcher hands on. SIGINT, SIGTERM, SIGHUP and SIGQUIT end: after one of them nothing is
// started again, and a second one kills what is left.
inline const std::vector<int> kHandedOn = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

// Starts every rank, starts those that fail again, hands signals on, and returns when all have ended: the
// exit code of the first that failed for good, which ends the others, or 0. signals: of kHandedOn. Call it in
// the main thread.
int Launch(const LaunchOptions& options, const EndingSignals& signals);

}  // namespace longhaul::worker
