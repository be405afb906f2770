// What a load generator measured, as JSON and as a line for people. Names of fields are stable.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/load/flow_core.h"

namespace longhaul::load {

nlohmann::json FlowJson(const FlowReport& report);
// One object per point; goodput since the point before.
nlohmann::json SeriesJson(const std::vector<FlowPoint>& series);
// "  3 s  187.3 Mbit/s  rtt 52.1 ms  queue 1.2 ms  loss 1.02 %  longhaul/probe_bw_cruise 190 Mbit/s".
std::string FlowLine(double at_seconds, double goodput_mbps, const transport::ConnectionStats& now,
                     double loss);

}  // namespace longhaul::load
