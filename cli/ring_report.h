// What `longhaul sim ring` has found, for people, programs and gnuplot.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "offload/ringsim/figures.h"
#include "offload/ringsim/random_runs.h"

namespace longhaul::cli {

// Random runs of one policy.
struct RingTally {
  std::string policy;
  std::string load;
  offload::ringsim::RandomTally tally;
};

struct RingReport {
  offload::ringsim::RingModel model;
  offload::ringsim::PaperFigures paper;
  std::vector<offload::ringsim::Row> hides;
  std::vector<offload::ringsim::Row> policies;
  std::vector<RingTally> random;
  uint64_t seed = 0;

  // Runs of the product's policies that were stuck or counted a part other than once.
  uint64_t failures() const;
};

std::string RingText(const RingReport& report);
// Names of fields are stable. Times in us, savings 0..1.
nlohmann::json RingJson(const RingReport& report);
// A script for gnuplot with its data: the paper's four figures, as SVG on its standard output.
std::string RingPlot(const RingReport& report);

}  // namespace longhaul::cli
