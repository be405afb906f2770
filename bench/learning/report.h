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

std::string ToMarkdown(const std::vector<Table>& tables, const Results& results);
// One line a row over the columns' positions, with standard errors. REQUIRES: table.positions not empty.
std::string ToSvg(const Table& table, const Results& results);

}  // namespace longhaul::bench
