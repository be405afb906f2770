#include "bench/learning/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <set>

namespace longhaul::bench {
namespace {

template <typename... Args>
std::string Format(const char* format, Args... args) {
  char text[256];
  std::snprintf(text, sizeof text, format, args...);
  return text;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::string CellText(const Difference& d, bool medians) {
  if (d.seeds == 0) return "";
  std::string text = Format("%+.2f", d.mean);
  if (d.standard_error) text += Format(" ± %.2f", *d.standard_error);
  if (medians) text = Format("**%+.2f** (", d.median) + text + Format(", n %u)", d.seeds);
  return text;
}

// Student's t: the quantile at 97.5 %, or at 95 %.
double StudentT(uint32_t degrees, bool both_sides) {
  constexpr std::array<std::array<double, 4>, 2> kFew = {
      {{6.314, 2.920, 2.353, 2.132}, {12.706, 4.303, 3.182, 2.776}}};
  if (degrees <= 4) return kFew[both_sides ? 1 : 0][degrees - 1];
  // Cornish and Fisher's expansion about the normal distribution's quantile.
  const double z = both_sides ? 1.95996 : 1.64485;
  const double n = degrees;
  const double square = z * z;
  return z + z * (square + 1) / (4 * n) + z * (5 * square * square + 16 * square + 3) / (96 * n * n);
}

// Of the mean of the weights.
struct Costs {
  PairedDifference accuracy, loss;
};

Costs CostsOf(const Cell& cell, const Results& results) {
  return {PairedDifferenceOf(cell, results, &Outcome::averaged_accuracy),
          PairedDifferenceOf(cell, results, &Outcome::averaged_loss)};
}

// The mean is worse than the target, in hundredths.
bool Fails(const Costs& costs, double target) {
  return costs.accuracy.seeds >= 2 && std::max(-costs.accuracy.mean, costs.loss.mean) * 100 > target;
}

// Rows of which a cell fails are first.
std::vector<Table::Row> WorstFirst(const Table& table, const Results& results) {
  std::vector<Table::Row> rows = table.rows;
  if (table.targets.empty()) return rows;
  std::stable_partition(rows.begin(), rows.end(), [&](const Table::Row& row) {
    for (size_t i = 0; i < row.cells.size(); ++i) {
      if (Fails(CostsOf(row.cells[i], results), table.targets[i])) return true;
    }
    return false;
  });
  return rows;
}

// Accuracy and cross-entropy, both in hundredths; bold where both are within the target.
std::string TargetText(const Cell& cell, const Results& results, double target) {
  const Costs costs = CostsOf(cell, results);
  const auto& [accuracy, loss] = costs;
  if (accuracy.seeds < 2) return "";
  const auto points = [](const PairedDifference& d) {
    return Format("%+.2f ± %.2f", d.mean * 100, d.HalfInterval() * 100);
  };
  std::string text = points(accuracy) + "; " + points(loss);
  if (accuracy.Within(target / 100) && loss.Within(target / 100)) text = "**" + text + "**";
  if (Fails(costs, target)) text = "fails: " + text;
  double high = 0;
  Scenario s = cell.scenario;
  uint32_t seeds = 0;
  for (s.seed = 1; s.seed <= cell.seeds; ++s.seed) {
    const TimedOutcome* found = results.Find(s);
    if (found == nullptr) continue;
    high += found->outcome.high_share;
    ++seeds;
  }
  return text + Format("; %.0f %%; n %u", 100 * high / seeds, accuracy.seeds);
}

// Accuracy of the lossless runs that a table is compared with, each with the first of its cells.
std::string LosslessText(const Table& table, const Results& results) {
  std::set<std::string> known;
  std::string text;
  for (const Table::Row& row : table.rows) {
    for (size_t i = 0; i < row.cells.size(); ++i) {
      const Cell& cell = row.cells[i];
      std::vector<double> accuracies;
      Scenario s = cell.scenario.Lossless();
      for (s.seed = 1; s.seed <= cell.seeds; ++s.seed) {
        if (const TimedOutcome* found = results.Find(s)) accuracies.push_back(found->outcome.accuracy * 100);
      }
      s.seed = 1;
      if (accuracies.empty() || !known.insert(s.Key()).second) continue;
      const auto [low, high] = std::minmax_element(accuracies.begin(), accuracies.end());
      text += (text.empty() ? "" : "; ") + row.label + ", " + table.columns[i] +
              Format(": %.2f (%.2f..%.2f)", Median(accuracies), *low, *high);
    }
  }
  return text;
}

}  // namespace

double PairedDifference::HalfInterval() const {
  return seeds < 2 ? std::numeric_limits<double>::infinity() : *standard_error * StudentT(seeds - 1, true);
}

bool PairedDifference::Within(double target) const {
  return seeds >= 2 && std::abs(mean) + *standard_error * StudentT(seeds - 1, false) < target;
}

PairedDifference PairedDifferenceOf(const Cell& cell, const Results& results, double Outcome::*figure) {
  std::vector<double> differences;
  Scenario s = cell.scenario;
  for (s.seed = 1; s.seed <= cell.seeds; ++s.seed) {
    const TimedOutcome* with = results.Find(s);
    const TimedOutcome* without = results.Find(s.Lossless());
    if (with != nullptr && without != nullptr)
      differences.push_back(with->outcome.*figure - without->outcome.*figure);
  }
  PairedDifference d;
  d.seeds = static_cast<uint32_t>(differences.size());
  const auto n = static_cast<double>(differences.size());
  for (const double x : differences) d.mean += x / n;
  if (differences.size() < 2) return d;
  double squares = 0;
  for (const double x : differences) squares += (x - d.mean) * (x - d.mean);
  d.standard_error = std::sqrt(squares / (n - 1) / n);
  return d;
}

Difference DifferenceOf(const Cell& cell, const Results& results) {
  std::vector<double> points;
  Scenario s = cell.scenario;
  for (s.seed = 1; s.seed <= cell.seeds; ++s.seed) {
    const TimedOutcome* with = results.Find(s);
    const TimedOutcome* without = results.Find(s.Lossless());
    if (with != nullptr && without != nullptr) {
      points.push_back((with->outcome.accuracy - without->outcome.accuracy) * 100);
    }
  }
  Difference d;
  d.seeds = static_cast<uint32_t>(points.size());
  if (points.empty()) return d;
  const auto n = static_cast<double>(points.size());
  for (const double p : points) d.mean += p / n;
  d.median = Median(points);
  if (points.size() < 2) return d;
  double squares = 0;
  for (const double p : points) squares += (p - d.mean) * (p - d.mean);
  d.standard_error = std::sqrt(squares / (n - 1) / n);
  return d;
}

std::string ToMarkdown(const std::vector<Table>& tables, const Results& results) {
  std::string text;
  for (const Table& table : tables) {
    text += "## " + table.title + "\n\n" + table.text + "\n";
    text += "Lossless accuracy, median (range over seeds), %, from this row and column on: " +
            LosslessText(table, results) + ".\n\n";
    text += "| " + table.corner + " |";
    for (const std::string& column : table.columns) text += " " + column + " |";
    text += "\n|---|";
    for (size_t i = 0; i < table.columns.size(); ++i) text += "---|";
    text += "\n";
    for (const Table::Row& row : WorstFirst(table, results)) {
      text += "| " + row.label + " |";
      for (size_t i = 0; i < row.cells.size(); ++i) {
        text += " " +
                (table.targets.empty() ? CellText(DifferenceOf(row.cells[i], results), table.medians)
                                       : TargetText(row.cells[i], results, table.targets[i])) +
                " |";
      }
      text += "\n";
    }
    text += "\n";
  }
  return text;
}

std::string ToSvg(const Table& table, const Results& results) {
  constexpr double kLeft = 60, kTop = 40, kWidth = 560, kHeight = 320;
  constexpr const char* kColours[] = {"#7f7f7f", "#1f77b4", "#9467bd", "#2ca02c",
                                      "#ff7f0e", "#d62728", "#e377c2", "#8c564b"};
  double lowest = -0.5, highest = 0.2;
  for (const Table::Row& row : table.rows) {
    for (const Cell& cell : row.cells) {
      const Difference d = DifferenceOf(cell, results);
      if (d.seeds == 0) continue;
      lowest = std::min(lowest, d.mean - d.standard_error.value_or(0));
      highest = std::max(highest, d.mean + d.standard_error.value_or(0));
    }
  }
  lowest = std::floor(lowest * 2) / 2;
  highest = std::ceil(highest * 10) / 10;
  const double right = table.positions.back();
  const auto x = [&](double position) { return kLeft + position / right * kWidth; };
  const auto y = [&](double points) { return kTop + (highest - points) / (highest - lowest) * kHeight; };

  std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"800\" height=\"420\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"800\" height=\"420\" fill=\"white\"/>\n";
  svg += Format("<text x=\"%.0f\" y=\"20\" font-size=\"14\">", kLeft) + table.title +
         ": accuracy minus lossless, points</text>\n";
  const double step = highest - lowest > 3 ? 1.0 : highest - lowest > 1.5 ? 0.5 : 0.1;
  for (double points = std::ceil(lowest / step) * step; points <= highest + 1e-9; points += step) {
    svg += Format("<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", kLeft,
                  kLeft + kWidth, y(points), y(points), std::abs(points) < 1e-9 ? "black" : "#dddddd");
    svg += Format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.1f</text>\n", kLeft - 6, y(points) + 4,
                  std::abs(points) < 1e-9 ? 0.0 : points);
  }
  for (size_t i = 0; i < table.columns.size(); ++i) {
    svg += Format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", x(table.positions[i]),
                  kTop + kHeight + 18, table.columns[i].c_str());
  }
  svg += Format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">mean packet loss</text>\n",
                kLeft + kWidth / 2, kTop + kHeight + 38);
  for (size_t r = 0; r < table.rows.size(); ++r) {
    const char* colour = kColours[r % std::size(kColours)];
    std::string points;
    for (size_t i = 0; i < table.rows[r].cells.size(); ++i) {
      const Difference d = DifferenceOf(table.rows[r].cells[i], results);
      if (d.seeds == 0) continue;
      const double at = x(table.positions[i]);
      points += Format("%.1f,%.1f ", at, y(d.mean));
      svg += Format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"%s\"/>\n", at, y(d.mean), colour);
      if (!d.standard_error) continue;
      svg += Format(
          "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"0.8\"/>\n", at,
          at, y(d.mean - *d.standard_error), y(d.mean + *d.standard_error), colour);
    }
    svg += "<polyline fill=\"none\" stroke=\"" + std::string(colour) + "\" stroke-width=\"1.6\" points=\"" +
           points + "\"/>\n";
    const double legend = kTop + 10 + 20 * static_cast<double>(r);
    svg += Format("<line x1=\"635\" x2=\"655\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"2\"/>\n",
                  legend, legend, colour);
    svg += Format("<text x=\"661\" y=\"%.1f\">%s</text>\n", legend + 4, table.rows[r].label.c_str());
  }
  return svg + "</svg>\n";
}

}  // namespace longhaul::bench
