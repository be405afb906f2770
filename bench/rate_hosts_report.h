// The host grid's results: the rules, the worst cells as Markdown, everything as JSON.
#pragma once

#include <cstddef>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/rate_hosts_cells.h"
#include "bench/rate_hosts_run.h"

namespace longhaul::bench {

struct HostResult {
  std::string_view set;  // "cover", "single", "random", "cell"
  HostCell cell;
  // One a seed: of the controller under test, and of the reference on the same path.
  std::vector<HostSample> tested;
  std::vector<HostSample> reference;
};

// A rule on the medians over the seeds.
struct HostRule {
  std::string_view name;
  std::string_view text;
  // By how much a result misses the rule, in points of a share: positive is a miss. nullopt: does not apply.
  std::optional<double> (*miss)(const HostResult& result);
};
std::span<const HostRule> HostRules();

// How many cells miss a rule.
size_t CountMisses(std::span<const HostResult> results);
// Per rule how many cells meet it, and the `worst` furthest from it.
void PrintHostReport(std::ostream& out, std::span<const HostResult> results, size_t worst);
std::string HostJson(std::span<const HostResult> results);

}  // namespace longhaul::bench
