// Which of the product's marks of rare states (base/reached.h) a sweep has reached.
#pragma once

#include <string>
#include <vector>

namespace longhaul::sim {

// Runs every named scenario, so that what no seed may happen to draw is reached as well. What went wrong.
std::vector<std::string> RunScenarios();

struct Coverage {
  size_t marks = 0;
  size_t reached = 0;
  std::vector<std::string> never;   // and should be
  std::vector<std::string> beyond;  // what the simulator has no means for: name and reason
};

// Of this process so far.
Coverage ReachedMarks();
// Name and times, a line each; the rarest first.
std::string MarksTable();

}  // namespace longhaul::sim
