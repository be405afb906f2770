// longhaul_rate_grid --hosts: what real hosts and shared paths do, against a reference controller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "transport/core/rate/rate_controller.h"

namespace longhaul::bench {

struct HostGridOptions {
  RateControl controller = RateControl::kLonghaul;
  RateControl reference = RateControl::kBbr;
  size_t seeds = 3;
  uint64_t first_seed = 1;
  size_t random = 200;                  // random cells
  std::optional<uint64_t> random_seed;  // none: a fresh one, printed
  std::string filter;                   // of "SET NAME"
  std::string cell;                     // only this one
  bool trace = false;                   // of that cell, with the first seed
  size_t worst = 10;
  std::string json;
  unsigned jobs = 1;
  bool check = false;
  bool list = false;
};

// Returns the exit code: 1 where --check finds misses, 2 where the options are wrong.
int RunHostGrid(const HostGridOptions& options);
// Whether the cover is one; says what is missing.
int CheckHostCover();

}  // namespace longhaul::bench
