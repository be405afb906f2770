#include "bench/rate_hosts_report.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace longhaul::bench {
namespace {

struct HostMeasure {
  std::string_view name;
  double HostSample::*value;
};

constexpr std::array<HostMeasure, 7> kHostMeasures{{{"utilisation", &HostSample::utilisation},
                                                    {"own_loss", &HostSample::own_loss},
                                                    {"queue_ms", &HostSample::queue_ms},
                                                    {"jain", &HostSample::jain},
                                                    {"share", &HostSample::share},
                                                    {"runaway", &HostSample::runaway},
                                                    {"fitted", &HostSample::fitted}}};

// What is asked. A queue of five milliseconds holds what a host sends late; a shorter one does not.
constexpr double kOwnLossBase = 0.02;
constexpr double kOwnLossFactor = 1.5;
constexpr Duration kLongQueue = std::chrono::milliseconds(5);
constexpr double kLongQueueUtilisation = 0.92;
constexpr double kShortQueueUtilisation = 0.85;
constexpr double kNoise = 0.01;

std::vector<double> SortedOf(std::span<const HostSample> samples, double HostSample::*value) {
  std::vector<double> values;
  for (const HostSample& sample : samples) {
    if (!std::isnan(sample.*value)) values.push_back(sample.*value);
  }
  std::sort(values.begin(), values.end());
  return values;
}

// NaN where nothing was measured.
double MedianOf(std::span<const HostSample> samples, double HostSample::*value) {
  const std::vector<double> values = SortedOf(samples, value);
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::optional<double> OwnLossMiss(const HostResult& result) {
  const double reference = MedianOf(result.reference, &HostSample::own_loss);
  return MedianOf(result.tested, &HostSample::own_loss) - (kOwnLossBase + kOwnLossFactor * reference);
}

std::optional<double> UtilisationMiss(const HostResult& result) {
  if (!result.cell.bulk() || result.cell.cross()) return std::nullopt;
  const double asked = result.cell.queue() >= kLongQueue ? kLongQueueUtilisation : kShortQueueUtilisation;
  const double reference = MedianOf(result.reference, &HostSample::utilisation);
  return std::min(reference, asked) - kNoise - MedianOf(result.tested, &HostSample::utilisation);
}

constexpr std::array<HostRule, 2> kRules{
    {{"own loss", "own loss <= 2 % + 1.5 x that of the reference", &OwnLossMiss},
     {"utilisation",
      "utilisation >= min(the reference's, 0.92, or 0.85 where the queue is below 5 ms) - 0.01; one kind of "
      "flow, bulk",
      &UtilisationMiss}}};

std::string Shown(const char* format, double value) {
  if (std::isnan(value)) return "";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

// "12.3 (14.0)": the median and the worst seed.
std::string MedianAndWorst(std::span<const HostSample> samples, double HostSample::*value, bool high_is_worse,
                           double scale, const char* format) {
  const std::vector<double> values = SortedOf(samples, value);
  if (values.empty()) return "";
  return Shown(format, scale * MedianOf(samples, value)) + " (" +
         Shown(format, scale * (high_is_worse ? values.back() : values.front())) + ")";
}

struct Missed {
  const HostResult* result;
  double miss;
};

std::vector<Missed> MissedBy(const HostRule& rule, std::span<const HostResult> results) {
  std::vector<Missed> missed;
  for (const HostResult& result : results) {
    if (const std::optional<double> miss = rule.miss(result); miss && *miss > 0)
      missed.push_back({&result, *miss});
  }
  std::stable_sort(missed.begin(), missed.end(),
                   [](const Missed& a, const Missed& b) { return a.miss > b.miss; });
  return missed;
}

void PrintRow(std::ostream& out, const HostResult& result, double miss) {
  const auto median = [&](double HostSample::*value) { return MedianOf(result.tested, value); };
  out << "| " << Shown("%.1f", 100 * miss) << " | "
      << MedianAndWorst(result.tested, &HostSample::own_loss, true, 100, "%.1f") << " | "
      << MedianAndWorst(result.reference, &HostSample::own_loss, true, 100, "%.1f") << " | "
      << MedianAndWorst(result.tested, &HostSample::utilisation, false, 1, "%.2f") << " | "
      << MedianAndWorst(result.reference, &HostSample::utilisation, false, 1, "%.2f") << " | "
      << Shown("%.1f", median(&HostSample::queue_ms)) << " | " << Shown("%.2f", median(&HostSample::jain))
      << " | " << Shown("%.2f", median(&HostSample::share)) << " | "
      << Shown("%.1f", median(&HostSample::runaway)) << " | " << Shown("%.2f", median(&HostSample::fitted))
      << " | " << result.set << " | `" << result.cell.Name() << "` |\n";
}

// Where the misses are: "rtt: 40 4/43, 1 0/12".
void PrintMissesByValue(std::ostream& out, const HostRule& rule, std::span<const HostResult> results) {
  out << "Missed/asked by value, without the random cells:\n\n";
  for (size_t i = 0; i < kHostDimensions; ++i) {
    const auto dimension = static_cast<HostDimension>(i);
    out << "- " << HostDimensionKey(dimension) << ':';
    for (const std::string_view value : HostValues(dimension)) {
      int asked = 0;
      int missed = 0;
      for (const HostResult& result : results) {
        const std::optional<double> miss = rule.miss(result);
        if (!miss || result.set == "random" || result.cell[dimension] != value) continue;
        ++asked;
        missed += *miss > 0;
      }
      out << "  " << value << " **" << missed << "**/" << asked;
    }
    out << '\n';
  }
  out << '\n';
}

constexpr std::string_view kTableHead =
    "| miss, points | own loss, % (worst seed) | reference | utilisation (worst seed) | reference | queue, "
    "ms | Jain "
    "| share | runaway | fitted | set | cell |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n";

nlohmann::json SamplesJson(std::span<const HostSample> samples) {
  nlohmann::json json;
  for (const HostMeasure& measure : kHostMeasures) {
    nlohmann::json values = nlohmann::json::array();
    // NaN has no place in JSON: null.
    for (const HostSample& sample : samples) {
      const double value = sample.*measure.value;
      values.push_back(std::isnan(value) ? nlohmann::json() : nlohmann::json(value));
    }
    json[std::string(measure.name)] = std::move(values);
  }
  return json;
}

}  // namespace

std::span<const HostRule> HostRules() { return kRules; }

size_t CountMisses(std::span<const HostResult> results) {
  return static_cast<size_t>(std::count_if(results.begin(), results.end(), [](const HostResult& result) {
    return std::any_of(kRules.begin(), kRules.end(),
                       [&](const HostRule& rule) { return rule.miss(result).value_or(0) > 0; });
  }));
}

void PrintHostReport(std::ostream& out, std::span<const HostResult> results, size_t worst) {
  for (const HostRule& rule : kRules) {
    const auto asked = std::count_if(results.begin(), results.end(),
                                     [&](const HostResult& result) { return rule.miss(result).has_value(); });
    const std::vector<Missed> missed = MissedBy(rule, results);
    out << "### " << rule.name << "\n\n"
        << "Asked: " << rule.text << ". " << asked - static_cast<std::ptrdiff_t>(missed.size()) << " of "
        << asked << " cells meet it, " << missed.size() << " miss it.\n\n";
    if (missed.empty() || worst == 0) continue;
    if (results.size() > 1) PrintMissesByValue(out, rule, results);
    out << kTableHead;
    for (const Missed& miss : std::span(missed).first(std::min(worst, missed.size()))) {
      PrintRow(out, *miss.result, miss.miss);
    }
    out << '\n';
  }
}

std::string HostJson(std::span<const HostResult> results) {
  nlohmann::json list = nlohmann::json::array();
  for (const HostResult& result : results) {
    nlohmann::json cell = {{"set", result.set}, {"name", result.cell.Name()}};
    for (size_t i = 0; i < kHostDimensions; ++i) {
      const auto dimension = static_cast<HostDimension>(i);
      cell["dimensions"][std::string(HostDimensionKey(dimension))] = result.cell[dimension];
    }
    for (const HostRule& rule : kRules) {
      const std::optional<double> miss = rule.miss(result);
      cell["miss"][std::string(rule.name)] = miss ? nlohmann::json(*miss) : nlohmann::json();
    }
    cell["tested"] = SamplesJson(result.tested);
    cell["reference"] = SamplesJson(result.reference);
    list.push_back(std::move(cell));
  }
  return list.dump(1) + "\n";
}

}  // namespace longhaul::bench
