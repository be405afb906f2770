#include "operator/plan/job_plan.h"

#include <algorithm>
#include <utility>

#include "operator/resource/stamp.h"

namespace longhaul::kube {
namespace {

PlanError ErrorOf(const AllocationError& error, std::string_view site) {
  const std::string where = site.empty() ? "" : "site " + std::string(site) + ": ";
  return {std::string(ReasonOf(error.problem)), where + error.message,
          error.problem == AllocationProblem::kNotEnoughCapacity};
}

using Counts = std::variant<std::vector<int>, PlanError>;

// Of one site, or of the only one, "".
Counts SplitSite(const TrainingJobSpec& spec, const NodeConfig& config, const std::vector<FreeGpus>& free,
                 std::string_view site, int total) {
  std::variant<Shares, AllocationError> split;
  if (spec.capacity == Capacity::kDiscovered) {
    std::vector<int> capacities;
    for (const FreeGpus& node : free) {
      if (node.site == site) capacities.push_back(std::min(node.gpus, config.max_gpus));
    }
    split = Allocate(capacities, config.min_gpus, total, spec.strategy);
  } else {
    split = AllocateUniform(config.max_gpus, config.min_gpus, total, spec.strategy);
  }
  if (const auto* error = std::get_if<AllocationError>(&split)) return ErrorOf(*error, site);
  std::vector<int> counts;
  for (const Share& share : std::get<Shares>(split)) counts.push_back(share.gpus);
  return counts;
}

}  // namespace

std::string NodeName(std::string_view job, size_t rank) {
  return std::string(job) + "-node-" + std::to_string(rank);
}

std::variant<JobPlan, PlanError> MakePlan(const TrainingJob& job, const NodeConfig& config,
                                          const std::vector<FreeGpus>& free, std::string script) {
  const TrainingJobSpec& spec = job.spec;
  std::vector<std::pair<std::string, int>> sites;
  if (spec.sites.empty()) {
    sites.emplace_back("", spec.total_gpus);
  } else {
    std::vector<int> quotas;
    for (const Site& site : spec.sites) quotas.push_back(site.gpus);
    auto shares = Allocate(quotas, config.min_gpus, spec.total_gpus, spec.strategy);
    if (const auto* error = std::get_if<AllocationError>(&shares)) {
      PlanError refused = ErrorOf(*error, "");
      refused.message = "of the sites' quotas (spec.sites): " + refused.message;
      refused.may_pass = false;  // quotas do not change
      return refused;
    }
    for (const Share& share : std::get<Shares>(shares))
      sites.emplace_back(spec.sites[share.source].name, share.gpus);
  }
  std::vector<PlannedNode> nodes;
  for (const auto& [site, total] : sites) {
    auto counts = SplitSite(spec, config, free, site, total);
    if (auto* error = std::get_if<PlanError>(&counts)) return std::move(*error);
    for (const int gpus : std::get<std::vector<int>>(counts)) {
      nodes.push_back({NodeName(job.name, nodes.size()), site, gpus});
    }
  }
  if (nodes.size() > kMostNodes) {
    return PlanError{"TooManyNodes", "the plan has " + std::to_string(nodes.size()) +
                                         " nodes, and a server has " + std::to_string(kMostNodes) +
                                         " members at most: raise maxGPUs"};
  }
  return PlanOf(std::move(nodes), std::move(script));
}

std::string Fingerprint(std::string_view text) {
  uint64_t hash = 14695981039346656037ull;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ull;
  std::string digits(16, '0');
  for (size_t i = 0; i < digits.size(); ++i) digits[i] = "0123456789abcdef"[hash >> (60 - 4 * i) & 15];
  return digits;
}

JobPlan PlanOf(std::vector<PlannedNode> nodes, std::string script) {
  JobPlan plan{std::move(nodes), std::move(script), ""};
  plan.hash = Fingerprint(NodesJson(plan) + '\0' + ScriptMark(plan.script));
  return plan;
}

std::string NodesJson(const JobPlan& plan) {
  Json nodes = Json::array();
  for (size_t rank = 0; rank < plan.nodes.size(); ++rank) {
    const PlannedNode& node = plan.nodes[rank];
    nodes.push_back({{"rank", rank}, {"name", node.name}, {"site", node.site}, {"gpus", node.gpus}});
  }
  return Dump({{"nodes", std::move(nodes)}});
}

Result<std::vector<PlannedNode>> ParseNodesJson(std::string_view text) {
  const Status wrong(StatusCode::kInvalidArgument, "nodes.json: is not as the operator wrote it");
  const Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const Json& list = At(parsed, {"nodes"});
  if (!list.is_array() || list.empty() || list.size() > kMostNodes) return wrong;
  std::vector<PlannedNode> nodes;
  for (const Json& node : list) {
    PlannedNode planned{TextAt(node, {"name"}), TextAt(node, {"site"}),
                        static_cast<int>(NumberAt(node, {"gpus"}, 0))};
    if (NumberAt(node, {"rank"}, -1) != static_cast<int64_t>(nodes.size()) || planned.name.empty())
      return wrong;
    if (planned.gpus < 1 || planned.gpus > kMostGpus) return wrong;
    nodes.push_back(std::move(planned));
  }
  return nodes;
}

}  // namespace longhaul::kube
