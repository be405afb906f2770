// The operator's counters for Prometheus.
#pragma once

#include "health/metric_page.h"
#include "operator/controller/operator_loop.h"

namespace longhaul::kube {

void AddMetrics(const OperatorReport& report, health::MetricPage* page);

}  // namespace longhaul::kube
