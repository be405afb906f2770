#include "server/report/server_metrics.h"

#include <array>
#include <string>
#include <vector>

namespace longhaul::server {
namespace {

using health::MetricPage;

constexpr std::array<Counter<MemberStats>, 9> kMemberCounters = {{
    {&MemberStats::excluded, "rounds_excluded", "rounds of tensors that were over without the member"},
    {&MemberStats::chunks, "chunks", "contributions of the member that were added"},
    {&MemberStats::repaired, "repaired_chunks", "of them, rebuilt by FEC"},
    {&MemberStats::lost, "lost_chunks", "contributions that did not arrive, or were rejected"},
    {&MemberStats::rejected, "rejected_chunks", "of them, refused by the guard"},
    {&MemberStats::weights_bounded, "weights_bounded",
     "windows that counted with less weight than they said"},
    {&MemberStats::stands_for, "workers", "workers that the member stands for"},
    {&MemberStats::weight_share, "weight_share", "of what counted in the last 64 rounds of tensors, 0..1"},
    {&MemberStats::silent, "silent", "since the member was last heard"},
}};

MetricPage::Labels LabelsOf(const MemberStats& member) {
  return {{"rank", std::to_string(member.rank)}, {"site", member.site}};
}

void AddJob(const ServerStats& stats, MetricPage* page) {
  const auto state = [page](const char* name, const char* help, double value) {
    page->AddFamily(std::string("longhaul_server_") + name, help, false, {{value}});
  };
  page->AddFamily("longhaul_server_job_info",
                  "1, with the job's name, the kind of its keys and its loss policy", false,
                  {{1,
                    {{"job", stats.job},
                     {"security", stats.security},
                     {"policy", std::string(NameOf(stats.job_spec.policy))}}}});
  state("job_running", "1 while a job runs, 0 while its workers are waited for",
        stats.phase == ServerStats::Phase::kRunning ? 1 : 0);
  state("job_seconds", "since the job's start", std::chrono::duration<double>(stats.running).count());
  state("workers", "workers of a job", stats.world_size);
  state("joined", "of them, in now", stats.joined);
  state("round_p50_seconds", "median time of the last 4,096 rounds",
        std::chrono::duration<double>(stats.round_p50).count());
  state("round_p99_seconds", "99th percentile of them",
        std::chrono::duration<double>(stats.round_p99).count());
  state("capacity_bytes_per_second", "rate of the link that the workers share, given or estimated",
        stats.grants.capacity.mbps() * 125'000);
}

// For how long each limiter has held a connection's sending back.
void AddLimited(const std::vector<const MemberStats*>& members, MetricPage* page) {
  std::vector<MetricPage::Sample> samples;
  for (const MemberStats* member : members) {
    for (size_t i = 0; i < member->traffic.limited.size(); ++i) {
      auto labels = LabelsOf(*member);
      labels.emplace_back("by", transport::RateLimiterName(static_cast<transport::RateLimiter>(i)));
      samples.push_back({std::chrono::duration<double>(member->traffic.limited[i]).count(), labels});
    }
  }
  page->AddFamily("longhaul_connection_limited_seconds_total",
                  "time in which this held the sending to the member back", true, samples);
}

}  // namespace

void AddMetrics(const ServerStats& stats, MetricPage* page) {
  page->Add<ServerStats>("server", kServerCounters, {{&stats}});
  AddJob(stats, page);
  page->Add<transport::EndpointStats>("endpoint", transport::kEndpointCounters, {{&stats.endpoint}});
  std::vector<const MemberStats*> members;
  std::vector<MetricPage::Of<MemberStats>> of_members;
  std::vector<MetricPage::Of<transport::ConnectionStats>> traffic;
  std::vector<MetricPage::Sample> joined, granted;
  for (const MemberStats& member : stats.members) {
    if (member.state == Member::State::kEmpty) continue;
    const auto labels = LabelsOf(member);
    members.push_back(&member);
    of_members.push_back({&member, labels});
    traffic.push_back({&member.traffic, labels});
    joined.push_back({member.state == Member::State::kJoined ? 1.0 : 0.0, labels});
    granted.push_back({member.grant.rate.mbps() * 125'000, labels});
  }
  page->AddFamily("longhaul_member_joined", "1 while the member is in, 0 once it has left or is lost", false,
                  joined);
  page->AddFamily("longhaul_member_granted_bytes_per_second", "how fast the member may send", false, granted);
  page->Add<MemberStats>("member", kMemberCounters, of_members);
  page->Add<transport::ConnectionStats>("connection", transport::kConnectionCounters, traffic);
  AddLimited(members, page);
}

}  // namespace longhaul::server
