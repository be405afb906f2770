// A flow of the simulator that is looked at after every event, with the rules that hold at any time:
//
//   max_bw   at most what was delivered, over the share that the path does not lose
//   pacing   at most the state's gain times that; UP's while a grant sets the rate
//   l0       at most half of what is sent
//   experiment   nothing leaves faster than 0.75 of what was delivered as it began
//
// What was delivered is counted here, from the events, not read from the controller.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "tests/sim/rate/rate_sim.h"
#include "transport/core/rate/bbr/bbr.h"
#include "transport/core/rate/path_loss.h"

namespace longhaul::transport {

class WatchedFlow {
 public:
  explicit WatchedFlow(const sim::LinkOptions& link, const sim::FlowOptions& flow = {}) : simulation_(link) {
    simulation_.AddFlow(flow);
    simulation_.flow(0).SetObserver([this](const CongestionEvent& event) { Look(event); });
    simulation_.flow(0).SetFilter([this](uint64_t number, Instant) {
      OnDeparture();
      return loses_ && loses_(number) ? sim::PacketFate{.lost = true} : sim::PacketFate();
    });
  }
  WatchedFlow(const WatchedFlow&) = delete;
  WatchedFlow& operator=(const WatchedFlow&) = delete;

  sim::Simulation& simulation() { return simulation_; }
  const Bbr& bbr() const { return dynamic_cast<const Bbr&>(simulation_.controller(0)); }
  const BbrModel& model() const { return bbr().model(); }
  BbrState state() const { return model().state; }
  RateSnapshot snapshot() const { return bbr().Snapshot(); }
  double pacing() const { return bbr().pacing_rate().mbps(); }
  Instant now() const { return simulation_.now(); }
  // The packets of which this is true are lost behind the queue.
  void Lose(std::function<bool(uint64_t number)> loses) { loses_ = std::move(loses); }
  void SetGrant(Bandwidth rate) { simulation_.SetGrant(0, rate); }

  // `each` is called after every event.
  void Run(Duration time, const std::function<void()>& each = {}) {
    simulation_.RunUntil(now() + time, [&] {
      if (each) each();
      return false;
    });
  }
  bool RunUntil(const std::function<bool()>& done, Duration limit = std::chrono::seconds(20)) {
    return simulation_.RunUntil(now() + limit, done);
  }
  bool RunTo(BbrState wanted, Duration limit = std::chrono::seconds(20)) {
    return RunUntil([&] { return state() == wanted; }, limit);
  }
  // Sent so far and from then on, in Mbit/s.
  double SentWhile(Duration time) {
    const ByteCount before = simulation_.stats(0).sent;
    Run(time);
    return Bandwidth::FromBytesAndTime(simulation_.stats(0).sent - before, time).mbps();
  }
  // Packets that left while an experiment was under way.
  int experiment_packets() const { return experiment_packets_; }
  int startup_experiment_packets() const { return startup_experiment_packets_; }
  // The first rule that was broken, with its time; empty: none.
  const std::string& violation() const { return violation_; }
  // As a share of capacity, the largest pacing rate since STARTUP.
  double largest_pacing() const { return largest_pacing_; }

 private:
  // What is excused moves a little within an event.
  static constexpr double kRounding = 1.02;
  // Of 2.6 s each, three halves of it while there is loss; a cycle without a sample does not end.
  static constexpr Duration kTwoCycles = std::chrono::seconds(20);

  struct Sample {
    Instant at;
    Bandwidth rate;
  };

  void Look(const CongestionEvent& event) {
    const Bandwidth delivered =
        std::max(event.sample.valid ? event.sample.delivery_rate : Bandwidth(), event.sample.train_rate);
    // Descending: the first is the largest that is not too old.
    while (!delivered_.empty() && delivered_.back().rate <= delivered) delivered_.pop_back();
    delivered_.push_back({now(), delivered});
    const bool startup = state() == BbrState::kStartup || state() == BbrState::kDrain;
    while (!startup && delivered_.front().at + kTwoCycles < now()) delivered_.pop_front();
    const double excused = bbr().policy().Excused();
    if (excused > PathLoss::kMaxExcused) Broken("l0 " + std::to_string(excused));
    // What was excused when the estimate was made.
    const double most = delivered_.front().rate.mbps() / (1 - std::max(excused, excused_)) * kRounding;
    excused_ = excused;
    if (snapshot().bandwidth.mbps() > most) {
      Broken("max_bw " + std::to_string(snapshot().bandwidth.mbps()) + " of " + std::to_string(most));
    }
    double gain = 1;
    if (state() == BbrState::kStartup) gain = Bbr::kStartupPacingGain;
    const bool granted = model().IsInProbeBw() && !model().grant.IsZero();
    if (state() == BbrState::kProbeBwUp || granted) gain = Bbr::kProbeUpPacingGain;
    if (pacing() > std::max(most * gain, model().initial_rate.mbps())) {
      Broken("pacing " + std::to_string(pacing()) + " of " + std::to_string(most * gain) + " in " +
             std::string(BbrStateName(state())));
    }
    if (state() != BbrState::kStartup) {
      largest_pacing_ = std::max(largest_pacing_, bbr().pacing_rate() / simulation_.path().options().rate);
    }
  }

  void OnDeparture() {
    const Bandwidth ceiling = bbr().policy().RateCeiling();
    if (ceiling == Bandwidth::Max()) return;
    ++experiment_packets_;
    startup_experiment_packets_ += state() == BbrState::kStartup;
    const double most = delivered_.front().rate.mbps() * PathLoss::kExperimentGain * kRounding;
    if (pacing() > std::max(most, model().options.floor.mbps())) {
      Broken("experiment at " + std::to_string(pacing()) + " of " + std::to_string(most));
    }
  }

  void Broken(const std::string& what) {
    if (violation_.empty()) {
      violation_ = what + " after " + std::to_string((now() - Instant()).count() / 1'000'000) + " ms";
    }
  }

  sim::Simulation simulation_;
  std::function<bool(uint64_t)> loses_;
  std::deque<Sample> delivered_;
  double excused_ = 0;
  double largest_pacing_ = 0;
  int experiment_packets_ = 0;
  int startup_experiment_packets_ = 0;
  std::string violation_;
};

}  // namespace longhaul::transport
