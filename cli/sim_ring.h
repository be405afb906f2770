// `longhaul sim ring`: ring all-reduce with slow nodes in virtual time.
#pragma once

#include <cstdint>
#include <string>

namespace longhaul::cli {

struct SimRingOptions {
  std::string reduce_time = "3us";  // T: receive, reduce and send at a node
  std::string link_delay = "5us";
  int64_t bytes = 8192;  // of a chunk
  std::string rate = "100gbit";
  double alpha = 1.8;
  uint64_t runs = 1000;   // random ones of each policy
  uint64_t seed = 0;      // of the first of them; 0: a new one
  std::string json_file;  // - for standard output
  std::string plot_file;  // a script for gnuplot
};

// 0 fine; 1 a run was stuck or counted a part other than once, or a file cannot be written; 2 bad options.
int RunSimRing(const SimRingOptions& options);

}  // namespace longhaul::cli
