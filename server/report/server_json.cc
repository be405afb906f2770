#include "server/report/server_json.h"

#include <array>
#include <cstdio>

#include "base/units_text.h"

#include "base/flags/counter_json.h"
#include "base/flags/job_json.h"

namespace longhaul::server {
namespace {

using nlohmann::json;

double Milliseconds(Duration d) { return ToSeconds(d) * 1e3; }

double Mbps(uint64_t bytes, Duration time) {
  return time.count() <= 0 ? 0.0 : static_cast<double>(bytes) * 8e-6 / ToSeconds(time);
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

json TrafficJson(const transport::ConnectionStats& traffic) {
  json out = CountersJson<transport::ConnectionStats>(transport::kConnectionCounters, traffic);
  for (size_t i = 0; i < traffic.limited.size(); ++i) {
    const auto limiter = static_cast<transport::RateLimiter>(i);
    out["limited_by_" + std::string(transport::RateLimiterName(limiter)) + "_ms"] =
        Milliseconds(traffic.limited[i]);
  }
  return out;
}

json ToJson(const MemberStats& member) {
  json out = {{"rank", member.rank},
              {"state", StateName(member.state)},
              {"site", member.site},
              {"identity", member.identity},
              {"peer", member.peer.ToString()},
              {"incarnation", member.incarnation},
              {"weight", member.weight},
              {"counted_weight", member.counted_weight},
              {"weight_share", member.weight_share},
              {"max_weight_share", member.max_weight_share},
              {"weights_bounded", member.weights_bounded},
              {"stands_for", member.stands_for},
              {"silent_seconds", ToSeconds(member.silent)},
              {"chunks", member.chunks},
              {"repaired_chunks", member.repaired},
              {"lost_chunks", member.lost},
              {"rejected_chunks", member.rejected},
              {"rounds_excluded", member.excluded},
              {"lags", member.lags},
              {"windows_closed", CloseReasons(member.close_reasons)},
              {"granted_mbps", member.grant.rate.mbps()},
              {"granted_window", member.grant.receive_window.value()},
              {"arrival_mbps", member.grant.arrival.mbps()},
              {"traffic", TrafficJson(member.traffic)}};
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
  json out = CountersJson<ServerStats>(kServerCounters, stats);
  out.update(json{{"job", stats.job},
                  {"security", stats.security},
                  {"policy", NameOf(stats.job_spec.policy)},
                  {"bubble_threshold", stats.job_spec.bubble_threshold},
                  {"workers", stats.world_size},
                  {"seconds", ToSeconds(stats.running)},
                  {"observed_loss", Share(stats.low_lost, stats.low_chunks)},
                  {"rounds_excluded", excluded},
                  {"windows_closed", CloseReasons(closed)},
                  {"round_ms_p50", Milliseconds(stats.round_p50)},
                  {"round_ms_p99", Milliseconds(stats.round_p99)},
                  {"capacity_mbps", stats.grants.capacity.mbps()},
                  {"capacity_estimated", stats.grants.estimated},
                  {"grant_updates", stats.grants.updates},
                  {"bytes_up", stats.traffic.bytes_received},
                  {"bytes_down", stats.traffic.bytes_sent},
                  {"chunk_bytes_up", stats.traffic.chunk_bytes_received},
                  {"chunk_bytes_down", stats.traffic.chunk_bytes_sent},
                  {"retransmissions", stats.traffic.retransmissions}});
  out["traffic"] = CountersJson<transport::ConnectionStats>(transport::kConnectionCounters, stats.traffic,
                                                            /*states=*/false);
  return out;
}

json ToJson(const ServerStats& stats) {
  json out = JobSummary(stats);
  out["phase"] = stats.phase == ServerStats::Phase::kRunning ? "running" : "waiting";
  out["joined"] = stats.joined;
  out["identity"] = stats.identity;
  out["waits"] = stats.waits;
  out["settings"] = stats.job_spec;
  out["endpoint"] = CountersJson<transport::EndpointStats>(transport::kEndpointCounters, stats.endpoint);
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
  for (json& member : status["members"]) member.erase("traffic");
  text = print(status);
  if (text.size() <= max_bytes) return text;
  status["members"] = json::array();
  status["members_left_out"] = stats.members.size();
  return print(status);
}

json RoundJson(const JobRound& round, const ServerStats& stats) {
  json rtt = json::array();
  for (const MemberStats& member : stats.members) rtt.push_back(Milliseconds(member.traffic.smoothed_rtt));
  return {{"event", "round"},
          {"round", round.round},
          {"seconds", ToSeconds(round.duration)},
          {"interval_seconds", ToSeconds(round.interval)},
          {"tensors", round.tensors},
          {"contributors", round.contributors},
          {"loss", round.loss},
          {"low_chunks", round.low_chunks},
          {"low_lost", round.low_lost},
          {"bubble_threshold", stats.job_spec.bubble_threshold},
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
                static_cast<unsigned long long>(round.round), ToSeconds(round.duration), round.loss * 100,
                round.repaired_chunks, round.filled_chunks, Mbps(round.chunk_bytes_up, round.interval),
                Mbps(round.chunk_bytes_down, round.interval), round.last_rank);
  return text;
}

}  // namespace longhaul::server
