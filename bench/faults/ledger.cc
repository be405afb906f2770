#include "bench/faults/ledger.h"

#include <fstream>
#include <sstream>

namespace longhaul::bench::faults {

Ledger ReadLedger(const std::string& path) {
  Ledger ledger;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line) && !file.eof();) {
    std::istringstream words(line);
    std::string what;
    uint64_t number = 0;
    Ledger::Ack ack;
    words >> what >> number >> ack.round >> ack.lost_chunks;
    if (what == "begin") ledger.begun = number;
    if (what == "ack") ledger.acked[number] = ack;
  }
  return ledger;
}

}  // namespace longhaul::bench::faults
