// A server and n workers that push at the same moment, round after round, through whatever links: the whole
// cores in virtual time, nothing checked but traffic. For incast, where the cluster simulation (cluster.h) is
// for faults.
//
//   worker 0 ──┐  site 1: one link for all, into site 0
//   worker 1 ──┼──[ queue | rate ]── delay ── server, site 0
//   ...      ──┘  (or every worker on a site and link of its own)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longhaul/stats.h"
#include "longhaul/units.h"
#include "server/settings.h"
#include "wan/link_model.h"

namespace longhaul::sim {

struct IncastOptions {
  uint32_t workers = 8;
  uint32_t rounds = 4;
  uint64_t bytes = 1'000'000;  // of every gradient
  // The link into the server that all workers share; the other way has the same rate and delay and a long
  // queue.
  wan::LinkOptions link;
  // Not empty: every worker has a link of its own instead, and these are they.
  std::vector<wan::LinkOptions> own_links = {};
  bool with_results = false;  // PushPull instead of Push
  Duration compute{0};        // between a round's end and the next one's start
  Duration stagger{0};        // workers begin a round at random within this time
  server::GrantSettings grants = {};
  uint64_t seed = 1;
};

struct IncastRound {
  std::vector<Duration> finished;  // by worker: from its own push to the end of it; zero: did not push
  Duration duration{0};            // first push to last end
  uint64_t packets = 0;            // that entered the links into the server, up to the round's end
  uint64_t queue_drops = 0;
  uint64_t random_drops = 0;
  Duration longest_queue{0};  // so far
  // Slowest worker's time over the fastest one's.
  double spread() const;
};

struct IncastResult {
  std::string failure;  // empty: every round came to its end
  std::vector<IncastRound> rounds;
  std::vector<ClientStats> workers;  // at the end
  Bandwidth capacity;                // as the server has it at the end
  uint64_t grants = 0;

  // Of the rounds [from, to).
  double OwnLoss(size_t from, size_t to) const;
  double Spread(size_t from, size_t to) const;  // the worst
  Duration Mean(size_t from, size_t to) const;  // of the durations
};

IncastResult RunIncast(const IncastOptions& options);

}  // namespace longhaul::sim
