// What the server says about itself, as JSON and as lines for people. Names of fields are stable.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "server/report/server_stats.h"
#include "server/round/round_engine.h"

namespace longhaul::server {

// Everything of the stats; one entry of "members" per worker that is or was in.
nlohmann::json ToJson(const ServerStats& stats);
// The same as text. What would be longer than `max_bytes` has no "members", and "members_left_out" says how
// many.
std::string StatusText(const ServerStats& stats, size_t max_bytes);
// The summary of a job: job, security, rounds, seconds, bytes_up, bytes_down, observed_loss, repaired_chunks,
// filled_chunks, lost_chunks, retransmissions, round_ms_p50, round_ms_p99, ...
nlohmann::json JobSummary(const ServerStats& stats);
// round, seconds, loss, bubble_threshold, filled_chunks, tolerated_chunks, fill_reason, windows_closed by
// reason, rtt_ms by rank, ...: docs/reference/counters.md has them all.
nlohmann::json RoundJson(const JobRound& round, const ServerStats& stats);
// A push of which something was refused: a line that names the worker, and rank, who, tensor, round, chunk,
// why
// ("not finite", "too large") and, of the latter, excess.
std::string RejectionText(const Rejection& rejection, const std::string& who);
nlohmann::json RejectionJson(const Rejection& rejection, const std::string& who);
// "round 12: 0.183 s, lost 2.1 % of low, repaired 4, filled 0, up 41.2 down 40.1 Mbit/s, last rank 3".
std::string RoundText(const JobRound& round);

}  // namespace longhaul::server
