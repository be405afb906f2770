#include "bench/rate_grid_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

namespace longhaul::bench {
namespace {

struct Measure {
  std::string_view name;
  double Sample::*value;
};

constexpr std::array<Measure, 7> kMeasures{{{"utilisation", &Sample::utilisation},
                                            {"queue", &Sample::queue},
                                            {"standing", &Sample::standing},
                                            {"own_loss", &Sample::own_loss},
                                            {"jain", &Sample::jain},
                                            {"share", &Sample::share},
                                            {"recovery", &Sample::recovery}}};

constexpr std::string_view kLegend =
    R"(Median over the seeds: utilisation of (1 - loss) * capacity (smallest), q = mean queue above the standing minimum
in BDP, l = own loss in %, J = Jain's index, share = of the flow under test; seconds = until four round trips carried
90 % with a queue of at most half a BDP, or until a late joiner has 45..55 %, as the mean of the two seconds from then
on. A buffer holds at least four datagrams.

)";

std::vector<double> Values(std::span<const Sample> samples, double Sample::*measure) {
  std::vector<double> values;
  for (const Sample& sample : samples) {
    if (!std::isnan(sample.*measure)) values.push_back(sample.*measure);
  }
  std::sort(values.begin(), values.end());
  return values;
}

std::string Format(const char* format, double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

// "0.97 (0.95) q 0.08 l 0.2 %": only what the cell measured.
std::string Text(const CellResult& result) {
  const auto median = [&](double Sample::*measure) { return Median(result.samples, measure); };
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : " ") + part; };
  if (const double recovery = median(&Sample::recovery); !std::isnan(recovery)) {
    add(std::isinf(recovery) ? "never" : Format("%.1f s", recovery));
  }
  if (const double share = median(&Sample::share); !std::isnan(share)) add(Format("share %.2f", share));
  if (const double jain = median(&Sample::jain); !std::isnan(jain)) add(Format("J %.2f", jain));
  if (const double utilisation = median(&Sample::utilisation); !std::isnan(utilisation)) {
    add(Format("%.2f", utilisation) + Format(" (%.2f)", Least(result.samples, &Sample::utilisation)));
    add(Format("q %.2f", median(&Sample::queue)));
    add(Format("l %.1f", 100 * median(&Sample::own_loss)));
  }
  return text;
}

template <typename Key>
std::vector<std::string> Distinct(std::span<const CellResult> results, Key key) {
  std::vector<std::string> names;
  for (const CellResult& result : results) {
    if (std::find(names.begin(), names.end(), key(*result.cell)) == names.end())
      names.push_back(key(*result.cell));
  }
  return names;
}

void PrintTable(std::ostream& out, const std::string& table, std::span<const CellResult> all) {
  std::vector<CellResult> results;
  for (const CellResult& result : all) {
    if (result.cell->table == table) results.push_back(result);
  }
  const auto columns = Distinct(results, [](const Cell& c) { return c.column; });
  out << "### " << table << "\n\n| |";
  for (const std::string& column : columns) out << ' ' << column << " |";
  out << "\n|---|";
  for (size_t i = 0; i < columns.size(); ++i) out << "---|";
  out << '\n';
  for (const std::string& row : Distinct(results, [](const Cell& c) { return c.row; })) {
    out << "| " << row << " |";
    for (const std::string& column : columns) {
      const auto at = std::find_if(results.begin(), results.end(), [&](const CellResult& r) {
        return r.cell->row == row && r.cell->column == column;
      });
      out << ' ' << (at == results.end() ? "" : Text(*at)) << " |";
    }
    out << '\n';
  }
  out << '\n';
}

}  // namespace

double Median(std::span<const Sample> samples, double Sample::*measure) {
  const std::vector<double> values = Values(samples, measure);
  if (values.empty()) return kNone;
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double Least(std::span<const Sample> samples, double Sample::*measure) {
  const std::vector<double> values = Values(samples, measure);
  return values.empty() ? kNone : values.front();
}

void PrintTables(std::ostream& out, std::span<const CellResult> results) {
  out << kLegend;
  for (const std::string& table : Distinct(results, [](const Cell& c) { return c.table; })) {
    PrintTable(out, table, results);
  }
}

std::string ToJson(std::span<const CellResult> results) {
  nlohmann::json list = nlohmann::json::array();
  for (const CellResult& result : results) {
    nlohmann::json cell = {
        {"table", result.cell->table}, {"row", result.cell->row}, {"column", result.cell->column}};
    for (const Measure& measure : kMeasures) {
      const std::vector<double> values = Values(result.samples, measure.value);
      if (values.empty()) continue;
      // Infinity has no place in JSON: null.
      nlohmann::json samples = nlohmann::json::array();
      for (const double value : values)
        samples.push_back(std::isinf(value) ? nlohmann::json() : nlohmann::json(value));
      const double median = Median(result.samples, measure.value);
      cell[std::string(measure.name)] = {
          {"median", std::isinf(median) ? nlohmann::json() : nlohmann::json(median)}, {"samples", samples}};
    }
    list.push_back(std::move(cell));
  }
  return list.dump(1) + "\n";
}

std::vector<std::string> Misses(std::span<const CellResult> results) {
  std::vector<std::string> misses;
  for (const CellResult& result : results) {
    const auto ask = [&](std::string_view what, double Sample::*measure, std::optional<double> bound,
                         bool at_least) {
      if (!bound) return;
      const double value = Median(result.samples, measure);
      if (at_least ? value >= *bound : value <= *bound) return;
      misses.push_back(result.cell->name() + ": " + std::string(what) + Format(" %.3f", value) +
                       (at_least ? ", at least" : ", at most") + Format(" %.3f", *bound));
    };
    const Targets& targets = result.cell->targets;
    ask("utilisation", &Sample::utilisation, targets.min_utilisation, true);
    ask("queue", &Sample::queue, targets.max_queue, false);
    ask("own loss", &Sample::own_loss, targets.max_own_loss, false);
    ask("Jain", &Sample::jain, targets.min_jain, true);
    ask("share", &Sample::share, targets.min_share, true);
    ask("share", &Sample::share, targets.max_share, false);
    ask("recovery", &Sample::recovery, targets.max_recovery, false);
  }
  return misses;
}

}  // namespace longhaul::bench
