// The rounds that a fit looks at: the newest of each phase, and none from before the path changed.
//
// UP and DOWN rounds are rare and are the experiment, so each phase has its own places. A change of the path
// shows as yields that leave the hinge fitted so far: a two-sided CUSUM (Page, 1954) of the standardised
// residuals per phase, with a slack of kSlack deviations, alarms at kAlarm. Then every round from before the
// deviation began is forgotten. At these values three to five rounds of a halved capacity suffice, while
// chance alone alarms less than once in ten thousand rounds. A model that does not describe the path cannot
// be contradicted by it: nothing is forgotten then.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "transport/core/rate/path_hinge.h"

namespace longhaul::transport {

// What the sender did in a round.
enum class RatePhase : uint8_t { kDown, kCruise, kUp };
inline constexpr size_t kRatePhases = 3;

struct RememberedRound {
  double sent = 0;     // bit/s, > 0
  double yield = 0;    // delivered / sent
  double loss = 0;     // 0..1
  double packets = 0;  // > 0
  double queue = 0;    // s
  uint64_t number = 0;
};

class RoundMemory {
 public:
  static constexpr size_t kRoundsPerPhase = 48;  // beyond, 0.97^48 = 0.23 of a round's weight is left
  // A round is forgotten after so many later ones, whatever they say. UP may come once in sixty rounds.
  static constexpr uint64_t kMaxAge = 512;
  static constexpr double kSlack = 0.5;  // deviations
  static constexpr double kAlarm = 10;   // deviations beyond the slack, summed
  // One round alone cannot be more than so many deviations off: a stalled receiver is not another path.
  static constexpr double kMaxDeviations = 4;
  static_assert(2 * (kMaxDeviations - kSlack) < kAlarm, "two rounds alone never alarm");
  // Yields are measured by the clock of ACKs: a standard deviation of 2 % on top of the binomial one.
  static constexpr double kTimingError = 0.02;

  // `hinge`: the model of the rounds remembered so far, nullopt when there is none to rely on.
  void Add(RatePhase phase, RememberedRound round, const std::optional<PathHinge>& hinge);
  void Clear();
  // A change of the path is suspected. The model must not be fitted anew until it is decided, since the
  // rounds in doubt would pull it to their side.
  bool InDoubt() const;

  // Oldest first.
  const std::vector<RememberedRound>& Of(RatePhase phase) const {
    return rounds_[static_cast<size_t>(phase)];
  }
  size_t size() const { return rounds_[0].size() + rounds_[1].size() + rounds_[2].size(); }
  uint64_t changes() const { return changes_; }

 private:
  // One side of a CUSUM, and the round at which it left zero.
  struct Excursion {
    double sum = 0;
    uint64_t since = 0;
    void Add(double deviation, uint64_t number);
  };
  struct Watch {
    Excursion more, less;
  };

  void ForgetBefore(uint64_t number);

  std::array<std::vector<RememberedRound>, kRatePhases> rounds_;
  std::array<Watch, kRatePhases> watch_;
  uint64_t next_number_ = 0;
  uint64_t changes_ = 0;
};

}  // namespace longhaul::transport
