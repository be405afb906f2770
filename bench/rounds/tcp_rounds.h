// A parameter server over TCP, as small as it can be: workers push a gradient, the server adds them up and
// sends the sum back. The kernel's TCP, one connection a worker, two threads at each of its ends.
//
// With one part everything is pushed before anything returns, as parameter servers are ordinarily used; with
// several, a part returns as soon as all workers have pushed it, so that both directions of the link are
// busy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longhaul/units.h"
#include "wan/tun/tun_wan.h"

namespace longhaul::bench {

struct RoundsPlan {
  uint32_t workers = 4;
  uint64_t bytes = 1'000'000;  // of every worker's gradient
  uint32_t rounds = 100;       // measured
  uint32_t warmup = 5;         // before them
  Duration gap{0};
  Duration limit = std::chrono::seconds(120);  // of the whole run; what is measured until then is reported
};

struct RoundsOutcome {
  std::string runner;
  std::vector<double> seconds;  // of the measured rounds
  std::string error;            // empty: all rounds were done
};

struct TcpRunner {
  std::string control;  // TCP_CONGESTION
  bool tuned = true;    // buffer bounds of 64 MB, else the kernel's
  uint32_t parts = 1;
};

// Without a link (`wan` null) over loopback, where runner.tuned changes nothing.
RoundsOutcome RunTcpRounds(wan::TunWan* wan, const TcpRunner& runner, const RoundsPlan& plan);

}  // namespace longhaul::bench
