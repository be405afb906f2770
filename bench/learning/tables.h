// The tables that the learning bench fills: which scenarios they hold, in the order of their importance.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bench/learning/scenario.h"

namespace longhaul::bench {

struct Cell {
  Scenario scenario;   // its seed does not count
  uint32_t seeds = 0;  // 1..seeds
};

struct Table {
  std::string name;  // of its plot's file
  std::string title;
  std::string text;  // for the reader, above the table
  std::string corner;
  std::vector<std::string> columns;
  struct Row {
    std::string label;
    std::vector<Cell> cells;  // one a column
  };
  std::vector<Row> rows;
  bool medians = false;           // show medians as well
  std::vector<double> positions;  // of the columns, for a plot; empty: none
  std::vector<double> targets;    // of the columns: show how it compares with them, in points; empty: none
  int stage = 0;                  // tables of a lower one are run first
};

// quick: one seed, a tenth of the rounds, the first tables only.
std::vector<Table> LearningTables(bool quick);

// The default policy where matrices are stored in either way, with so many seeds; and others beside it, with
// eight at most.
std::vector<Table> LayoutTables(uint32_t seeds);

// Everything that has to be run for the tables, once each: stage by stage, and in these all cells with the
// first seed before any with the second.
std::vector<Scenario> RunsOf(const std::vector<Table>& tables);

// Synchronous rounds, SSP and ASP, with each optimizer: without loss, alike workers and one that takes ten
// times as long; and each loss policy that may be combined with staleness at a loss of 10 %.
std::vector<Scenario> ConsistencyRuns();

}  // namespace longhaul::bench
