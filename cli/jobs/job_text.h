// TrainingJobs as a person reads them in a terminal. Pure; `now` is the time since the Unix epoch. Names and
// messages of the cluster are made printable.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/instant.h"
#include "operator/resource/training_job.h"

namespace longhaul::cli {

// Of items of a list: the printer columns that kubectl shows. all_namespaces: with the namespace of each.
std::string JobTable(const std::vector<nlohmann::json>& jobs, bool all_namespaces, Instant now);

// Of one: what it is, its nodes, conditions, and `events` (objects of the kind Event), the oldest first.
std::string JobDescription(const nlohmann::json& job, const std::vector<nlohmann::json>& events, Instant now);

// A line: "Running, 2/2 nodes ready, round 120"; with what is wrong behind it.
std::string JobProgress(const kube::JobStatus& status);

// As kubectl writes ages: 45s, 5m30s, 90m, 7h12m, 2d3h, 12d.
std::string AgeText(Duration age);

}  // namespace longhaul::cli
