// What a server knows about itself as metrics (health/metric_page.h).
#pragma once

#include "health/metric_page.h"
#include "server/report/server_stats.h"

namespace longhaul::server {

// All of its counters: of the job and the server, of the endpoint, and of each member's connection, with its
// rank and its site as labels.
void AddMetrics(const ServerStats& stats, health::MetricPage* page);

}  // namespace longhaul::server
