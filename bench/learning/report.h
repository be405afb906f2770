// What the learning bench found: differences to the lossless run of the same seed, as Markdown and as plots.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/learning/results.h"
#include "bench/learning/tables.h"

namespace longhaul::bench {

// Differences of the final accuracy to the lossless runs of the same seeds, in points (hundredths).
struct Difference {
  uint32_t seeds = 0;
  double mean = 0;
  double median = 0;
  std::optional<double> standard_error;  // of the mean; needs two seeds
};
// Over the seeds for which both runs are there.
Difference DifferenceOf(const Cell& cell, const Results& results);

// Of one figure to the lossless runs of the same seeds.
struct PairedDifference {
  uint32_t seeds = 0;
  double mean = 0;
  std::optional<double> standard_error;  // needs two seeds

  // Half of the interval that holds the mean at a confidence of 95 %, by Student's t.
  double HalfInterval() const;
  // Two one-sided tests at 5 % (Schuirmann 1987) both say that it is nearer to zero than the target.
  bool Within(double target) const;
};
PairedDifference PairedDifferenceOf(const Cell& cell, const Results& results, double Outcome::*figure);

std::string ToMarkdown(const std::vector<Table>& tables, const Results& results);
// One line a row over the columns' positions, with standard errors. REQUIRES: table.positions not empty.
std::string ToSvg(const Table& table, const Results& results);

}  // namespace longhaul::bench
