// What an application has to send: everything at any time, rounds of packets, or so much per second, on and
// off.
#pragma once

#include <optional>
#include <vector>

#include "tests/sim/rate/rate_options.h"

namespace longhaul::transport::sim {

class Application {
 public:
  explicit Application(const FlowOptions& options) : options_(options), updated_(options.start) {}

  // idle: nothing is in flight. May end a round, or begin the next.
  bool HasData(Instant now, bool idle);
  // A packet left.
  void OnSent();
  // When there may be data although no ACK came; Infinite(): only then.
  Instant NextData(Instant now) const;
  // Whether a round has begun since this was last asked.
  bool TakeStarted();

  void SetRate(Bandwidth rate, Instant now);
  void SetPaused(bool paused) { paused_ = paused; }
  // Rounds that have ended since this was last asked: first packet sent to last settled.
  std::vector<Duration> TakeRounds();

 private:
  bool HasRound(Instant now, bool idle);
  void Produce(Instant now);
  bool IsOn(Instant now) const;
  Instant NextOn(Instant now) const;
  Duration OnTime(Instant until) const;

  FlowOptions options_;
  bool paused_ = false;
  // Rounds.
  int left_ = 0;  // packets of this round not yet sent
  bool in_round_ = false;
  bool started_ = false;
  Instant round_start_;
  Instant resume_;
  std::vector<Duration> rounds_;
  // A rate.
  double produced_ = 0;  // bytes, as of updated_
  Instant updated_;
};

}  // namespace longhaul::transport::sim
