#include "server/member/weight_ledger.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace longhaul::server {

WeightLedger::WeightLedger(double times, std::vector<uint32_t> stands_for, bool fixed)
    : times_(times), fixed_(fixed), of_(stands_for.size()), shares_(stands_for.size(), 0.0) {
  LH_CHECK(times >= 1);
  for (size_t rank = 0; rank < of_.size(); ++rank) of_[rank].stands_for = stands_for[rank];
}

double WeightLedger::Share(double times, double stands_for, double all) {
  if (std::isinf(times)) return 1;
  return times * stands_for / (all - stands_for + times * stands_for);
}

double WeightLedger::Median(const std::vector<bool>& members) const {
  std::vector<std::pair<double, double>> usual;  // by worker, and how many of them
  double all = 0;
  for (size_t rank = 0; rank < of_.size(); ++rank) {
    if (!members[rank]) continue;
    usual.emplace_back(of_[rank].usual / of_[rank].stands_for, of_[rank].stands_for);
    all += of_[rank].stands_for;
  }
  std::ranges::sort(usual);
  double below = 0;
  for (const auto& [weight, workers] : usual) {
    below += workers;
    if (2 * below >= all) return weight;
  }
  return std::numeric_limits<double>::infinity();  // no member
}

// The heaviest are cut off at their share of T, the sum of all: T = rest / (1 - sum of their shares).
std::vector<double> WeightLedger::Fair(const std::vector<bool>& members, double median, double all) const {
  std::vector<double> fair(of_.size(), 0.0);
  std::vector<std::pair<double, size_t>> by_excess;
  for (size_t rank = 0; rank < of_.size(); ++rank) {
    if (!members[rank]) continue;
    fair[rank] = std::min(of_[rank].usual, times_ * of_[rank].stands_for * median);
    by_excess.emplace_back(fair[rank] / Share(times_, of_[rank].stands_for, all), rank);
  }
  std::ranges::sort(by_excess, std::greater<>());
  double rest = std::accumulate(fair.begin(), fair.end(), 0.0);
  double cut = 0;  // sum of the shares of those that are
  double sum = rest;
  size_t heaviest = 0;
  for (; heaviest < by_excess.size() && by_excess[heaviest].first > sum; ++heaviest) {
    const size_t rank = by_excess[heaviest].second;
    cut += Share(times_, of_[rank].stands_for, all);
    rest -= fair[rank];
    if (cut >= 1) return fair;  // together they have all: the median alone bounds them
    sum = rest / (1 - cut);
  }
  for (size_t i = 0; i < heaviest; ++i) {
    const size_t rank = by_excess[i].second;
    fair[rank] = Share(times_, of_[rank].stands_for, all) * sum;
  }
  return fair;
}

void WeightLedger::Begin(const std::vector<bool>& members) {
  LH_CHECK_OP(members.size(), ==, of_.size());
  if (std::isinf(times_)) return;
  double all = 0;
  for (size_t rank = 0; rank < of_.size(); ++rank) all += members[rank] ? of_[rank].stands_for : 0;
  const double median = Median(members);
  const std::vector<double> fair = Fair(members, median, all);
  const double sum = std::accumulate(fair.begin(), fair.end(), 0.0);
  for (size_t rank = 0; rank < of_.size(); ++rank) {
    OfRank& of = of_[rank];
    const double others = all - (members[rank] ? of.stands_for : 0);
    of.bound = std::numeric_limits<double>::infinity();
    if (others <= 0) continue;  // alone
    of.bound = times_ * of.stands_for * std::min(median, (sum - fair[rank]) / others);
  }
}

float WeightLedger::Count(uint32_t rank, float said) {
  OfRank& of = of_[rank];
  const double most = std::isinf(of.bound) ? of.bound : std::max(of.bound - of.excess, of.bound / times_);
  const auto counted = std::max(std::min(said, static_cast<float>(most)), std::numeric_limits<float>::min());
  of.said = static_cast<double>(said);
  of.counted = std::max(of.counted, static_cast<double>(counted));
  return counted;
}

float WeightLedger::Expected(uint32_t rank) const {
  return static_cast<float>(std::min(of_[rank].usual, of_[rank].bound));
}

void WeightLedger::Learn(OfRank& of, double total, double all) const {
  of.excess = std::max(0.0, of.excess + of.counted - Share(times_, of.stands_for, all) * total);
  of.usual = of.pushed ? of.usual + kNewShare * (of.said - of.usual) : of.said;
  of.pushed = true;
}

const std::vector<double>& WeightLedger::End() {
  double total = 0;
  double all = 0;  // workers that those who pushed stand for
  for (const OfRank& of : of_) {
    total += of.counted;
    all += of.counted > 0 ? of.stands_for : 0;
  }
  for (size_t rank = 0; rank < of_.size(); ++rank) {
    OfRank& of = of_[rank];
    shares_[rank] = of.counted > 0 ? of.counted / total : 0;
    if (of.counted > 0 && !fixed_) Learn(of, total, all);
    of.counted = 0;
  }
  return shares_;
}

}  // namespace longhaul::server
