#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/sim/policy_models.h"

namespace longhaul::sim {
namespace {

using Values = std::vector<double>;

bool MembersChanged(const JobPlan& job, const JobLedger& ledger) {
  const auto refused = std::ranges::count(ledger.processes, true, &ProcessRecord::meant_to_be_refused);
  return job.start_workers != 0 || ledger.fewest_started < job.workers || !ledger.losses.empty() ||
         std::ssize(ledger.processes) - refused > job.workers ||
         std::ranges::any_of(ledger.processes,
                             [](const ProcessRecord& p) { return !p.meant_to_be_refused && !p.finished; });
}

// What the versions say was applied: the sum of the rounds' means. Empty when a version is missing.
Values Applied(const JobPlan& job, uint32_t tensor, const JobLedger& ledger) {
  const TensorPlan& plan = job.tensors[tensor];
  Values sum;
  if (job.IsOfSteps()) {  // the last one is seen by its worker
    const auto first = ledger.versions.find({tensor, 0});
    const auto last = std::prev(ledger.versions.upper_bound({tensor, UINT64_MAX}));
    if (first == ledger.versions.end()) return {};
    for (size_t e = 0; e < first->second.values.size(); ++e) {
      const double step =
          static_cast<double>(first->second.values[e]) - static_cast<double>(last->second.values[e]);
      sum.push_back(step / static_cast<double>(plan.lr));
    }
    return sum;
  }
  const std::vector<float>* before = nullptr;
  for (uint64_t version = 0; version <= job.rounds; ++version) {
    const auto found = ledger.versions.find({tensor, version});
    if (found == ledger.versions.end()) return {};
    const std::vector<float>& now = found->second.values;
    sum.resize(now.size(), 0);
    for (size_t e = 0; e < now.size() && version > 0; ++e) {
      const double step = static_cast<double>((*before)[e]) - static_cast<double>(now[e]);
      sum[e] += plan.sgd ? step / static_cast<double>(plan.lr) : static_cast<double>(now[e]);
    }
    before = &now;
  }
  return sum;
}

// What the workers produced, less what they owe; weighted.
Values Delivered(const JobPlan& job, uint32_t tensor, const JobLedger& ledger, size_t count) {
  Values sum(count, 0);
  for (const PushRecord& push : ledger.pushes) {
    if (push.id.tensor != tensor) continue;
    for (size_t e = 0; e < count; ++e) {
      sum[e] += static_cast<double>(job.weights[push.id.rank]) *
                GradientValue(push.id, e, job.tensors[tensor].Gradients());
    }
  }
  for (const ResidualRecord& residual : ledger.residuals) {
    if (residual.tensor != tensor) continue;
    for (size_t e = 0; e < residual.values.size() && e < count; ++e) {
      sum[e] -= static_cast<double>(job.weights[residual.rank]) * static_cast<double>(residual.values[e]);
    }
  }
  return sum;
}

}  // namespace

ModelOutcome CheckSums(const JobPlan& job, uint32_t, uint32_t tensor, const JobLedger& ledger) {
  ModelOutcome outcome;
  outcome.contributions.resize(job.workers, 0);
  outcome.ambiguous = true;
  if (MembersChanged(job, ledger)) return outcome;
  const Values applied = Applied(job, tensor, ledger);
  if (applied.empty()) return outcome;
  const Values delivered = Delivered(job, tensor, ledger, applied.size());
  double weight = 0;
  for (const float of : job.weights) weight += static_cast<double>(of);
  for (size_t e = 0; e < applied.size(); ++e) {
    // Integers, but for the rounding of as many means.
    if (std::abs(applied[e] * weight - delivered[e]) < 0.4 + 1e-5 * std::abs(delivered[e])) continue;
    outcome.violations.push_back("tensor " + std::to_string(tensor) + " element " + std::to_string(e) + ": " +
                                 std::to_string(applied[e] * weight) + " was applied, and " +
                                 std::to_string(delivered[e]) + " is what the workers no longer have");
    return outcome;
  }
  outcome.complete = true;
  outcome.rounds_checked = job.rounds;
  return outcome;
}

}  // namespace longhaul::sim
