// Outcomes of runs by scenario, kept in a file with one line a run: an interrupted table goes on where it
// was.
#pragma once

#include <map>
#include <string>

#include "bench/learning/training.h"

namespace longhaul::bench {

struct TimedOutcome {
  Outcome outcome;
  double seconds = 0;  // processor time
};

class Results {
 public:
  // Reads what is there. Errors: kDataLoss (a line that is none of ours, with its number).
  static Result<Results> Open(const std::string& path);

  const TimedOutcome* Find(const Scenario& scenario) const;
  // Remembers and appends. Errors: kUnavailable when the file cannot be written.
  Status Add(const Scenario& scenario, const TimedOutcome& outcome);

 private:
  std::string path_;
  std::map<std::string, TimedOutcome> outcomes_;
};

}  // namespace longhaul::bench
