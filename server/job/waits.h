// What the job waits for and for whom, in words: for the log, the status, and the workers that wait.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/instant.h"
#include "server/job/barriers.h"
#include "server/member/membership.h"
#include "server/report/server_stats.h"
#include "server/round/round_engine.h"

namespace longhaul::server {

// "barrier \"epoch\" waits for rank 2, which has not joined (12.0 s)".
std::string WaitText(const Membership& membership, const Wait& wait, Instant now);

// since: when the first worker joined. REQUIRES: the job has not started.
Wait StartWait(const Membership& membership, Instant since);
// What the barrier still waited for when this rank gave up.
std::string GaveUpText(const Membership& membership, const std::string& name, Barriers::Barrier barrier,
                       uint32_t rank, Instant now);

class Waits {
 public:
  // Said after so long, and again whenever it has passed.
  static constexpr Duration kEvery = std::chrono::seconds(5);
  static constexpr Duration kLook = std::chrono::seconds(1);

  // At most one of each kind, the longest: the start, or a round, a declaration and a barrier. engine: null
  // before the start.
  static std::vector<Wait> Of(const Membership& membership, const RoundEngine* engine,
                              const Barriers& barriers, Instant first_joined);
  // Says those that are due to the events (may be null), and returns them for the workers; empty: none. To be
  // called every kLook or more often.
  std::string Say(std::vector<Wait> waits, const Membership& membership, Instant now, ServerEvents* events);
  bool LooksAt(Instant now) const { return now >= looked_ + kLook; }

 private:
  std::vector<Wait> Due(std::vector<Wait> waits, Instant now);

  Instant looked_;
};

}  // namespace longhaul::server
