// Outcomes as a table for people (Markdown) and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/wan/cell.h"

namespace longhaul::bench {

struct CellResult {
  Path path;
  std::vector<Outcome> outcomes;  // in the order in which they ran
};

nlohmann::json ToJson(const std::vector<CellResult>& cells);
// Goodput by path and runner: the median of its runs, and its share of the limit; below it what the link and
// the processors say.
std::string ToMarkdown(const std::vector<CellResult>& cells);
// One line about one run, for progress.
std::string ToLine(const Path& path, const Outcome& outcome);

}  // namespace longhaul::bench
