// One bottleneck in virtual time: the sender's recovery and rate parts with the receiver's ACK tracker,
// packets only.
//
//   Flow 0 --+                                             +-- receiver 0
//   Flow 1 --+--[ policer ]--[ queue | rate ]-- delay, loss --+-- receiver 1
//      ^                                                        |
//      +----------------- delay, loss, batching of ACKs --------+
//
// Deterministic: the same options and seed give the same run. The path changes by At(): rate steps, RTT
// changes, outages, stalls.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/random.h"
#include "tests/sim/rate/bottleneck.h"
#include "tests/sim/rate/rate_flow.h"
#include "tests/sim/rate/rate_options.h"

namespace longhaul::transport::sim {

class Simulation {
 public:
  explicit Simulation(const LinkOptions& link);

  size_t AddFlow(const FlowOptions& options);
  void RunUntil(Instant end);
  // Stops as soon as `done` holds after an event; false when `end` came first.
  bool RunUntil(Instant end, const std::function<bool()>& done);
  // Calls `change` at that time, which must not be in the past.
  void At(Instant time, std::function<void()> change) { changes_.emplace(time, std::move(change)); }

  Instant now() const { return now_; }
  size_t flows() const { return flows_.size(); }
  const FlowStats& stats(size_t flow) const { return flows_[flow]->stats(); }
  const RateController& controller(size_t flow) const { return flows_[flow]->controller(); }
  void SetGrant(size_t flow, Bandwidth rate) { flows_[flow]->controller().SetGrant(rate); }
  const LossDetection& loss(size_t flow) const { return flows_[flow]->loss(); }
  RateFlow& flow(size_t flow) { return *flows_[flow]; }
  Bottleneck& path() { return path_; }

  // Forgets what was counted so far, for example STARTUP.
  void ResetStats();

  // --- Changes of the path, now ---
  void SetRate(Bandwidth rate);
  void SetRtt(Duration rtt) { path_.SetRtt(rtt); }
  void SetLoss(double loss, double mean_burst = 0) { path_.SetLoss(loss, mean_burst); }
  void SetDown(bool down) { path_.SetDown(down); }
  void SetAppRate(size_t flow, Bandwidth rate) { flows_[flow]->SetAppRate(rate, now_); }
  void SetPaused(size_t flow, bool paused) { flows_[flow]->SetPaused(paused, now_); }
  void Stall(size_t flow, Duration time) { flows_[flow]->Stall(now_ + time); }
  void StallReceiver(size_t flow, Duration time) { flows_[flow]->StallReceiver(now_ + time); }

  // --- Measures since ResetStats ---
  // Mean and least time that a packet waited in the queue.
  Duration MeanQueue() const { return path_.MeanQueue(); }
  Duration MinQueue() const { return path_.MinQueue(); }
  // Of all flows together, as a share of (1 - random loss) * capacity; the capacity is the present one.
  double Utilisation() const;
  // The same two in bandwidth-delay products, and their difference.
  double MeanQueueBdp() const { return InRtts(MeanQueue()); }
  double StandingQueue() const { return InRtts(MinQueue()); }
  double QueueAboveMinimum() const { return MeanQueueBdp() - StandingQueue(); }
  // Dropped by the queue or the policer, of all that was sent.
  double OwnLoss() const;
  // What arrived of a flow, per second.
  Bandwidth Goodput(size_t flow) const;
  // Each flow's part of what arrived of all.
  std::vector<double> Shares() const;
  // Largest number of bytes in flight beyond cwnd that was ever seen.
  ByteCount worst_overshoot() const;

 private:
  // Handles the next event; false when there is none until `end`.
  bool Step(Instant end);
  double InRtts(Duration time) const {
    return static_cast<double>(time.count()) / static_cast<double>(path_.options().rtt.count());
  }

  Random chance_;
  Bottleneck path_;
  std::vector<std::unique_ptr<RateFlow>> flows_;
  std::multimap<Instant, std::function<void()>> changes_;
  Instant now_;
  Instant measured_from_;
};

// (sum x)^2 / (n sum x^2): 1 when all are equal, 1/n when one has everything.
double JainIndex(const std::vector<double>& shares);

}  // namespace longhaul::transport::sim
