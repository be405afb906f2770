#include "server/server_json.h"

#include <array>
#include <cstdio>

namespace longhaul::server {
namespace {

using nlohmann::json;

double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
double Milliseconds(Duration d) { return Seconds(d) * 1e3; }

double Mbps(uint64_t bytes, Duration time) {
  return time.count() <= 0 ? 0.0 : static_cast<double>(bytes) * 8e-6 / Seconds(time);
}

double Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

const char* StateName(Member::State state) {
  switch (state) {
    case Member::State::kEmpty:
      return "empty";
    case Member::State::kJoined:
      return "joined";
    case Member::State::kLeft:
      return "left";
    case Member::State::kLost:
      return "lost";
  }
  return "unknown";
}

template <typename Counts>
json CloseReasons(const Counts& counts) {
  constexpr std::array names = {"complete", "ratio", "soft", "hard", "excluded", "cancelled"};
  json reasons = json::object();
  for (size_t i = 0; i < names.size(); ++i) reasons[names[i]] = counts[i];
  return reasons;
}

json LimitedSeconds(const std::array<Duration, transport::kRateLimiters>& limited) {
  json seconds = json::object();
  for (size_t i = 0; i < limited.size(); ++i) {
    seconds[transport::RateLimiterName(static_cast<transport::RateLimiter>(i))] = Seconds(limited[i]);
  }
  return seconds;
}

void AddTraffic(const TrafficTotals& traffic, json* out) {
  json& o = *out;
  o["bytes_up"] = traffic.bytes_received;
  o["bytes_down"] = traffic.bytes_sent;
  o["chunk_bytes_up"] = traffic.chunk_bytes_received;
  o["chunk_bytes_down"] = traffic.chunk_bytes_sent;
  o["packets_up"] = traffic.packets_received;
  o["packets_down"] = traffic.packets_sent;
  o["packets_lost_down"] = traffic.packets_lost;
  o["retransmissions"] = traffic.retransmissions;
  o["repair_symbols_up"] = traffic.repair_received;
  o["repair_symbols_down"] = traffic.repair_sent;
  o["duplicates_dropped"] = traffic.duplicates_dropped;
  o["bad_tag_dropped"] = traffic.bad_tag_dropped;
  o["malformed_dropped"] = traffic.malformed_dropped;
  o["late_dropped"] = traffic.late_dropped;
}

json ToJson(const transport::EndpointStats& endpoint) {
  return {{"datagrams", endpoint.datagrams_received},
          {"accepted", endpoint.accepted},
          {"handshakes_failed", endpoint.handshakes_failed},
          {"half_open", endpoint.half_open},
          {"unknown_connection_dropped", endpoint.unknown_connection_dropped},
          {"malformed_dropped", endpoint.malformed_dropped},
          {"not_authentic_dropped", endpoint.not_authentic_dropped},
          {"late_long_dropped", endpoint.late_long_dropped},
          {"failures_limited", endpoint.failures_limited},
          {"inits_limited", endpoint.inits_limited},
          {"half_open_refused", endpoint.half_open_refused},
          {"capacity_refused", endpoint.capacity_refused},
          {"version_refused", endpoint.version_refused},
          {"retries_sent", endpoint.retries_sent},
          {"retries_limited", endpoint.retries_limited},
          {"cookies_refused", endpoint.cookies_refused},
          {"refusals_sent", endpoint.refusals_sent},
          {"refusals_limited", endpoint.refusals_limited},
          {"resets_sent", endpoint.resets_sent},
          {"resets_limited", endpoint.resets_limited},
          {"stateless_dropped", endpoint.stateless_dropped}};
}

json ToJson(const MemberStats& member) {
  json out = {{"rank", member.rank},
              {"state", StateName(member.state)},
              {"site", member.site},
              {"identity", member.identity},
              {"cipher", member.cipher},
              {"peer", member.peer.ToString()},
              {"incarnation", member.incarnation},
              {"silent_seconds", Seconds(member.silent)},
              {"rtt_ms", Milliseconds(member.smoothed_rtt)},
              {"min_rtt_ms", Milliseconds(member.min_rtt)},
              {"loss_down", member.loss},
              {"chunks", member.chunks},
              {"repaired_chunks", member.repaired},
              {"lost_chunks", member.lost},
              {"rejected_chunks", member.rejected},
              {"rounds_excluded", member.excluded},
              {"windows_closed", CloseReasons(member.close_reasons)},
              {"granted_mbps", member.grant.rate.mbps()},
              {"granted_window", member.grant.receive_window.value()},
              {"arrival_mbps", member.grant.arrival.mbps()},
              {"limited_seconds_down", LimitedSeconds(member.limited)}};
  AddTraffic(member.traffic, &out);
  return out;
}

}  // namespace

json JobSummary(const ServerStats& stats) {
  std::array<uint64_t, 6> closed{};
  uint64_t excluded = 0;
  for (const MemberStats& member : stats.members) {
    excluded += member.excluded;
    for (size_t i = 0; i < closed.size(); ++i) closed[i] += member.close_reasons[i];
  }
  json out = {{"job", stats.job},
              {"security", stats.security},
              {"policy", stats.policy},
              {"bubble_threshold", stats.bubble_threshold},
              {"workers", stats.world_size},
              {"rounds", stats.rounds},
              {"seconds", Seconds(stats.running)},
              {"tensors", stats.tensors},
              {"elements", stats.elements},
              {"observed_loss", Share(stats.low_lost, stats.low_chunks)},
              {"repaired_chunks", stats.repaired},
              {"filled_chunks", stats.filled},
              {"tolerated_chunks", stats.tolerated},
              {"lost_chunks", stats.lost},
              {"rejected_chunks", stats.rejected},
              {"rounds_excluded", excluded},
              {"windows_closed", CloseReasons(closed)},
              {"round_ms_p50", Milliseconds(stats.round_p50)},
              {"round_ms_p99", Milliseconds(stats.round_p99)},
              {"duplicate_contributions", stats.duplicate_contributions},
              {"taken_and_dropped", stats.taken_and_dropped},
              {"late_chunks", stats.late_chunks},
              {"old_windows_refused", stats.old_windows_refused},
              {"late_windows_taken", stats.late_windows_taken},
              {"epoch_refused", stats.epoch_refused},
              {"results_outdated", stats.results_outdated},
              {"memory_bytes", stats.memory_bytes},
              {"memory_member_bytes", stats.memory_member_bytes},
              {"memory_budget_bytes", stats.memory_budget_bytes},
              {"pulls_held", stats.pulls_held},
              {"result_chunks_lost", stats.result_chunks_lost},
              {"result_chunks_repaid", stats.result_chunks_repaid},
              {"state_hashes", stats.state_hashes},
              {"capacity_mbps", stats.grants.capacity.mbps()},
              {"capacity_estimated", stats.grants.estimated},
              {"grant_updates", stats.grants.updates}};
  AddTraffic(stats.traffic, &out);
  return out;
}

json ToJson(const ServerStats& stats) {
  json out = JobSummary(stats);
  out["phase"] = stats.phase == ServerStats::Phase::kRunning ? "running" : "waiting";
  out["joined"] = stats.joined;
  out["jobs_finished"] = stats.jobs_finished;
  out["jobs_aborted"] = stats.jobs_aborted;
  out["joins_refused"] = stats.joins_refused;
  out["strangers"] = stats.strangers;
  out["strangers_displaced"] = stats.strangers_displaced;
  out["identity"] = stats.identity;
  out["endpoint"] = ToJson(stats.endpoint);
  out["bench"] = {{"connections", stats.bench_connections},
                  {"served", stats.bench_served},
                  {"bytes_up", stats.bench_bytes}};
  json members = json::array();
  for (const MemberStats& member : stats.members) members.push_back(ToJson(member));
  out["members"] = members;
  return out;
}

std::string StatusText(const ServerStats& stats, size_t max_bytes) {
  const auto print = [](const json& value) {
    return value.dump(-1, ' ', false, json::error_handler_t::replace);
  };
  json status = ToJson(stats);
  std::string text = print(status);
  if (text.size() <= max_bytes) return text;
  status["members"] = json::array();
  status["members_left_out"] = stats.members.size();
  return print(status);
}

json RoundJson(const JobRound& round, const ServerStats& stats) {
  json rtt = json::array();
  for (const MemberStats& member : stats.members) rtt.push_back(Milliseconds(member.smoothed_rtt));
  return {{"event", "round"},
          {"round", round.round},
          {"seconds", Seconds(round.duration)},
          {"interval_seconds", Seconds(round.interval)},
          {"tensors", round.tensors},
          {"contributors", round.contributors},
          {"loss", round.loss},
          {"low_chunks", round.low_chunks},
          {"low_lost", round.low_lost},
          {"bubble_threshold", stats.bubble_threshold},
          {"windows_closed", CloseReasons(round.closed)},
          {"repaired_chunks", round.repaired_chunks},
          {"filled_chunks", round.filled_chunks},
          {"lost_chunks", round.lost_chunks},
          {"rejected_chunks", round.rejected_chunks},
          {"tolerated_chunks", round.tolerated_chunks},
          {"fill_reason", codec::FillReasonName(round.fill_reason)},
          {"excluded", round.excluded},
          {"last_rank", round.last_rank},
          {"up_mbps", Mbps(round.chunk_bytes_up, round.interval)},
          {"down_mbps", Mbps(round.chunk_bytes_down, round.interval)},
          {"rtt_ms", rtt}};
}

std::string RejectionText(const Rejection& rejection, const std::string& who) {
  std::string text = who + " pushed ";
  if (rejection.excess > 0) {
    char times[48];
    std::snprintf(times, sizeof times, "a norm %.3g times the usual one", rejection.excess);
    text += times;
  } else if (rejection.why == GuardVerdictName(ContributionGuard::Verdict::kOverflows)) {
    text += "values that overflow a sum of float32";
  } else {
    text += "NaN or infinity";
  }
  return text + " in tensor \"" + rejection.tensor + "\", round " + std::to_string(rejection.round) +
         ", chunk " + std::to_string(rejection.chunk) +
         (rejection.excess > 0 ? ": such chunks are not counted (--norm-guard)"
          : rejection.why == GuardVerdictName(ContributionGuard::Verdict::kNotFinite)
              ? ": nothing more of this push is counted"
              : ": such chunks are not counted");
}

json RejectionJson(const Rejection& rejection, const std::string& who) {
  json out = {{"event", "rejected"},        {"rank", rejection.rank},   {"who", who},
              {"tensor", rejection.tensor}, {"round", rejection.round}, {"chunk", rejection.chunk},
              {"why", rejection.why}};
  if (rejection.excess > 0) out["excess"] = rejection.excess;
  return out;
}

std::string RoundText(const JobRound& round) {
  char text[200];
  std::snprintf(text, sizeof(text),
                "round %llu: %.3f s, lost %.1f %% of low, repaired %u, filled %u, up %.1f down %.1f Mbit/s, "
                "last rank %u",
                static_cast<unsigned long long>(round.round), Seconds(round.duration), round.loss * 100,
                round.repaired_chunks, round.filled_chunks, Mbps(round.chunk_bytes_up, round.interval),
                Mbps(round.chunk_bytes_down, round.interval), round.last_rank);
  return text;
}

}  // namespace longhaul::server
