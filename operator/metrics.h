// The operator's counters for Prometheus.
#pragma once

#include <array>
#include <chrono>
#include <string>

#include "health/metric_page.h"
#include "operator/controller/operator_loop.h"
#include "operator/webhook/webhook_server.h"

namespace longhaul::kube {

inline constexpr std::array<Counter<ControllerCounters>, 13> kController = {{
    {&ControllerCounters::reconciles, "reconciles", "times that a job was looked at"},
    {&ControllerCounters::waits, "waits", "times that a job waited for an answer before that"},
    {&ControllerCounters::created, "created", "objects made"},
    {&ControllerCounters::deleted, "deleted", "objects deleted"},
    {&ControllerCounters::statuses, "statuses", "writes of a job's status"},
    {&ControllerCounters::conflicts, "conflicts",
     "writes that another one was ahead of: the job is looked at again"},
    {&ControllerCounters::failures, "failures", "actions that the API server refused or did not answer"},
    {&ControllerCounters::taken_names, "taken_names", "objects whose name is another's"},
    {&ControllerCounters::postponed, "postponed", "times that a job was put off for want of a place"},
    {&ControllerCounters::reconcile_p50, "reconcile_p50", "median time of the last 1,024 looks at a job"},
    {&ControllerCounters::reconcile_p99, "reconcile_p99", "99th percentile of them"},
    {&ControllerCounters::pass_p50, "pass_p50", "median time to the answer to the last action of a look"},
    {&ControllerCounters::pass_p99, "pass_p99", "99th percentile of it"},
}};

inline constexpr std::array<Counter<api::RestCounters>, 10> kApi = {{
    {&api::RestCounters::requests, "requests", "requests to the API server"},
    {&api::RestCounters::attempts, "attempts", "times that one was sent"},
    {&api::RestCounters::retries, "retries", "of them, again"},
    {&api::RestCounters::throttled, "throttled", "answers 429, or 503 with Retry-After"},
    {&api::RestCounters::timed_out, "timed_out", "requests without an answer in time"},
    {&api::RestCounters::malformed, "malformed", "answers that are not what the API promises"},
    {&api::RestCounters::tokens_read, "tokens_read", "times that the token was read"},
    {&api::RestCounters::watch_events, "watch_events", "events of watches"},
    {&api::RestCounters::pauses, "pauses", "times that a watch was not read since events waited"},
    {&api::RestCounters::refused, "refused", "requests beyond the most at once"},
}};

inline constexpr std::array<Counter<api::WorkQueueCounters>, 6> kQueue = {{
    {&api::WorkQueueCounters::added, "added", "jobs that came into the queue"},
    {&api::WorkQueueCounters::merged, "merged", "changes of jobs that waited there already"},
    {&api::WorkQueueCounters::retries, "retries", "jobs that came again after a failure"},
    {&api::WorkQueueCounters::refused, "refused", "jobs beyond its bound: the next resync brings them"},
    {&api::WorkQueueCounters::taken, "taken", "jobs that were taken from it"},
    {&api::WorkQueueCounters::longest_wait, "longest_wait", "longest time that a job was due"},
}};

inline constexpr std::array<Counter<api::InformerCounters>, 6> kInformers = {{
    {&api::InformerCounters::lists, "lists", "lists of objects begun"},
    {&api::InformerCounters::watches, "watches", "watches begun"},
    {&api::InformerCounters::events, "events", "changes that watches told"},
    {&api::InformerCounters::gone, "gone", "answers 410: listed again"},
    {&api::InformerCounters::failures, "failures", "lists and watches that failed otherwise"},
    {&api::InformerCounters::overflows, "overflows", "times that there were more objects than the bound"},
}};

inline constexpr std::array<Counter<api::PermissionCacheCounters>, 3> kPermissions = {{
    {&api::PermissionCacheCounters::hits, "hits", "permissions that were known"},
    {&api::PermissionCacheCounters::misses, "misses", "permissions that the API server was asked for"},
    {&api::PermissionCacheCounters::evicted, "evicted", "known ones that went for newer ones"},
}};

inline constexpr std::array<Counter<api::LeaseCounters>, 4> kLease = {{
    {&api::LeaseCounters::acquired, "acquired", "times that the lease was taken"},
    {&api::LeaseCounters::renewed, "renewed", "times that it was renewed"},
    {&api::LeaseCounters::lost, "lost", "times that it was not renewed in time"},
    {&api::LeaseCounters::failures, "failures", "requests for it without a useful answer"},
}};

inline constexpr std::array<Counter<EventCounters>, 3> kEvents = {{
    {&EventCounters::sent, "sent", "events about jobs"},
    {&EventCounters::merged, "merged", "said again within a minute: not sent"},
    {&EventCounters::dropped, "dropped", "beyond the most at once, or refused"},
}};

inline constexpr std::array<Counter<SiteCounters>, 4> kSites = {{
    {&SiteCounters::opened, "opened", "clients of other clusters made"},
    {&SiteCounters::closed, "closed", "of them, closed: no job names them"},
    {&SiteCounters::refused, "refused", "looks at a site beyond the most at once"},
    {&SiteCounters::secrets_read, "secrets_read", "answers to reads of their Secrets"},
}};

inline constexpr std::array<Counter<ProgressCounters>, 3> kProgress = {{
    {&ProgressCounters::reads, "reads", "pages of servers asked for"},
    {&ProgressCounters::failures, "failures", "of them, without rounds, or no answer in 2 s"},
    {&ProgressCounters::refused, "refused", "beyond the most at once: at the next time"},
}};

inline void AddMetrics(const OperatorReport& report, health::MetricPage* page) {
  const auto state = [page](const char* name, const char* help, double value) {
    page->AddFamily(std::string("longhaul_operator_") + name, help, false, {{value}});
  };
  state("leads", "1 while this operator has the lease and works", report.leads ? 1 : 0);
  state("jobs", "training jobs", static_cast<double>(report.jobs));
  state("objects", "objects of jobs, jobs and profiles that are kept", static_cast<double>(report.objects));
  state("queue_waiting", "jobs that are due", static_cast<double>(report.waiting));
  state("queue_delayed", "jobs that are due later", static_cast<double>(report.delayed));
  state("in_work", "jobs whose actions wait for answers", static_cast<double>(report.in_work));
  state("api_calls", "requests under way, watches included", static_cast<double>(report.calls));
  state("sites", "other clusters that are open", static_cast<double>(report.open_sites));
  page->Add<ControllerCounters>("operator", kController, {{&report.controller}});
  page->Add<api::RestCounters>("operator_api", kApi, {{&report.api}});
  page->Add<api::WorkQueueCounters>("operator_queue", kQueue, {{&report.queue}});
  page->Add<api::InformerCounters>("operator_informers", kInformers, {{&report.informers}});
  page->Add<api::PermissionCacheCounters>("operator_permissions", kPermissions, {{&report.permissions}});
  page->Add<api::LeaseCounters>("operator_lease", kLease, {{&report.lease}});
  page->Add<EventCounters>("operator_events", kEvents, {{&report.events}});
  page->Add<SiteCounters>("operator_sites", kSites, {{&report.sites}});
  page->Add<ProgressCounters>("operator_progress", kProgress, {{&report.progress}});
}

inline void AddWebhookMetrics(const webhook::WebhookState& state, health::MetricPage* page) {
  page->Add<webhook::WebhookCounters>("operator_webhook", webhook::kWebhookCounters, {{&state.port}});
  page->Add<webhook::AdmissionCounters>("operator_admission", webhook::kAdmissionCounters,
                                        {{&state.admission}});
}

}  // namespace longhaul::kube
