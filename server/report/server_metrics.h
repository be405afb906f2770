// What a server knows about itself as metrics (health/metric_page.h).
#pragma once

#include <string>
#include <vector>

#include "health/metric_page.h"
#include "server/report/server_stats.h"

namespace longhaul::server {

struct NamedStats {
  std::string job;  // of several in one process: the label `job` of all its metrics; empty: none
  ServerStats stats;
};

// All of their counters: of the job and the server, of the endpoint, and of each member's connection, with
// its rank and its site as labels.
void AddMetrics(const std::vector<NamedStats>& jobs, health::MetricPage* page);

}  // namespace longhaul::server
