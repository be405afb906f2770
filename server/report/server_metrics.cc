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

MetricPage::Labels LabelsOf(const NamedStats& job) {
  if (job.job.empty()) return {};
  return {{"job", job.job}};
}
MetricPage::Labels LabelsOf(const NamedStats& job, const MemberStats& member) {
  auto labels = LabelsOf(job);
  labels.emplace_back("rank", std::to_string(member.rank));
  labels.emplace_back("site", member.site);
  return labels;
}

void AddJobs(const std::vector<NamedStats>& jobs, MetricPage* page) {
  const auto state = [page, &jobs](const char* name, const char* help, auto value) {
    std::vector<MetricPage::Sample> samples;
    for (const NamedStats& job : jobs) samples.push_back({value(job.stats), LabelsOf(job)});
    page->AddFamily(std::string("longhaul_server_") + name, help, false, samples);
  };
  const auto seconds = [](Duration time) { return std::chrono::duration<double>(time).count(); };
  std::vector<MetricPage::Sample> info;
  for (const auto& [name, stats] : jobs) {
    info.push_back({1,
                    {{"job", stats.job},
                     {"security", stats.security},
                     {"policy", std::string(NameOf(stats.job_spec.policy))}}});
  }
  page->AddFamily("longhaul_server_job_info",
                  "1, with the job's name, the kind of its keys and its loss policy", false, info);
  state("job_running", "1 while a job runs, 0 while its workers are waited for",
        [](const ServerStats& s) { return s.phase == ServerStats::Phase::kRunning ? 1.0 : 0.0; });
  state("job_seconds", "since the job's start", [&](const ServerStats& s) { return seconds(s.running); });
  state("workers", "workers of a job", [](const ServerStats& s) { return double{1} * s.world_size; });
  state("joined", "of them, in now", [](const ServerStats& s) { return double{1} * s.joined; });
  state("round_p50_seconds", "median time of the last 4,096 rounds",
        [&](const ServerStats& s) { return seconds(s.round_p50); });
  state("round_p99_seconds", "99th percentile of them",
        [&](const ServerStats& s) { return seconds(s.round_p99); });
  state("capacity_bytes_per_second", "rate of the link that the workers share, given or estimated",
        [](const ServerStats& s) { return s.grants.capacity.mbps() * 125'000; });
}

// For how long each limiter has held a connection's sending back.
void AddLimited(const std::vector<MetricPage::Of<MemberStats>>& members, MetricPage* page) {
  std::vector<MetricPage::Sample> samples;
  for (const auto& member : members) {
    const auto& limited = member.values->traffic.limited;
    for (size_t i = 0; i < limited.size(); ++i) {
      auto labels = member.labels;
      labels.emplace_back("by", transport::RateLimiterName(static_cast<transport::RateLimiter>(i)));
      samples.push_back({std::chrono::duration<double>(limited[i]).count(), labels});
    }
  }
  page->AddFamily("longhaul_connection_limited_seconds_total",
                  "time in which this held the sending to the member back", true, samples);
}

}  // namespace

void AddMetrics(const std::vector<NamedStats>& jobs, MetricPage* page) {
  std::vector<MetricPage::Of<ServerStats>> servers;
  std::vector<MetricPage::Of<transport::EndpointStats>> endpoints;
  std::vector<MetricPage::Of<MemberStats>> members;
  std::vector<MetricPage::Of<transport::ConnectionStats>> traffic;
  std::vector<MetricPage::Sample> joined, granted;
  for (const NamedStats& job : jobs) {
    servers.push_back({&job.stats, LabelsOf(job)});
    endpoints.push_back({&job.stats.endpoint, LabelsOf(job)});
    for (const MemberStats& member : job.stats.members) {
      if (member.state == Member::State::kEmpty) continue;
      const auto labels = LabelsOf(job, member);
      members.push_back({&member, labels});
      traffic.push_back({&member.traffic, labels});
      joined.push_back({member.state == Member::State::kJoined ? 1.0 : 0.0, labels});
      granted.push_back({member.grant.rate.mbps() * 125'000, labels});
    }
  }
  page->Add<ServerStats>("server", kServerCounters, servers);
  AddJobs(jobs, page);
  page->Add<transport::EndpointStats>("endpoint", transport::kEndpointCounters, endpoints);
  page->AddFamily("longhaul_member_joined", "1 while the member is in, 0 once it has left or is lost", false,
                  joined);
  page->AddFamily("longhaul_member_granted_bytes_per_second", "how fast the member may send", false, granted);
  page->Add<MemberStats>("member", kMemberCounters, members);
  page->Add<transport::ConnectionStats>("connection", transport::kConnectionCounters, traffic);
  AddLimited(members, page);
}

}  // namespace longhaul::server
