// The cells of the rate grid: which simulated paths a controller is judged on, what is measured and what is
// asked.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "longhaul/units.h"
#include "transport/core/rate/rate_controller.h"

namespace longhaul::bench {

inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();  // not measured in this cell

// One run with one seed.
struct Sample {
  double utilisation = kNone;  // of (1 - random loss) * capacity
  double queue = kNone;        // mean above the standing minimum, in bandwidth-delay products
  double standing = kNone;     // that minimum
  double own_loss = kNone;     // dropped by the queue or the policer, of all that was sent
  double jain = kNone;         // 1: every flow has the same
  double share = kNone;        // of the flow under test, 0..1
  double recovery = kNone;     // seconds; infinite when the run ended first
};

// What --check asks of a cell's medians.
struct Targets {
  std::optional<double> min_utilisation;
  std::optional<double> max_queue;
  std::optional<double> max_own_loss;
  std::optional<double> min_jain;
  std::optional<double> min_share;
  std::optional<double> max_share;
  std::optional<double> max_recovery;
};

struct Cell {
  std::string table;
  std::string row;
  std::string column;
  Targets targets;
  std::function<Sample(uint64_t seed)> run;
  std::string name() const { return table + " / " + row + " / " + column; }
};

struct GridOptions {
  RateControl controller = RateControl::kLonghaul;
  Bandwidth rate = Bandwidth::Mbps(100);
};

// Constant paths: loss x RTT x buffer x number of flows.
std::vector<Cell> SteadyCells(const GridOptions& options);
// Paths that change once: rate steps, an outage, a longer RTT; and a policer.
std::vector<Cell> ChangeCells(const GridOptions& options);
// Loss that begins, and ends, while one flow or four are sending.
std::vector<Cell> LossStepCells(const GridOptions& options);
// Flows among themselves, against CUBIC and BBR, and a late joiner.
std::vector<Cell> FairnessCells(const GridOptions& options);

}  // namespace longhaul::bench
