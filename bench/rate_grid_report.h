// The results of the rate grid: medians over seeds, as Markdown tables, as JSON, and against the targets.
#pragma once

#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "bench/rate_grid_cells.h"

namespace longhaul::bench {

struct CellResult {
  const Cell* cell = nullptr;
  std::vector<Sample> samples;  // one a seed
};

// Of one measure of the samples; NaN where it was not measured.
double Median(std::span<const Sample> samples, double Sample::*measure);
double Least(std::span<const Sample> samples, double Sample::*measure);

void PrintTables(std::ostream& out, std::span<const CellResult> results);
std::string ToJson(std::span<const CellResult> results);
// One line for each target that a median misses.
std::vector<std::string> Misses(std::span<const CellResult> results);

}  // namespace longhaul::bench
