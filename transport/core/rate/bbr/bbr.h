// BBR after draft-ietf-ccwg-bbr ("BBRv3"): the state machine that measures the path. A method that is one of
// the draft's procedures has its name.
//
//   STARTUP 2.77 -> DRAIN 0.5 -> PROBE_BW: DOWN 0.9 -> CRUISE 1 -> REFILL 1 -> UP 1.25 -> DOWN ...
//   PROBE_RTT (half a BDP in flight for 200 ms) when the minimum RTT is stale and the flow was never idle.
//
// It coordinates: BbrModel holds what is known, BbrPolicy says what loss, queue and samples mean.
// RateOptions::control picks the policy: the draft's (kBbr) or the target loss's (kLonghaul).
//
// bbr.cc: events, loss, rate and window. bbr_states.cc: the states.
#pragma once

#include <memory>

#include "base/instant.h"
#include "base/random.h"
#include "longhaul/units.h"
#include "transport/core/rate/bbr/bbr_model.h"
#include "transport/core/rate/bbr/bbr_policy.h"
#include "transport/core/rate/rate_controller.h"

namespace longhaul::transport {

class Bbr : public RateController {
 public:
  // Gains of the states, as the draft has them.
  static constexpr double kStartupPacingGain = 2.77;  // doubles the rate each round trip: 4 ln 2
  static constexpr double kDrainPacingGain = 0.5;
  static constexpr double kProbeUpPacingGain = 1.25;
  static constexpr double kProbeUpCwndGain = 2.25;  // the default plus UP's quarter
  static constexpr double kProbeRttCwndGain = 0.5;
  static constexpr uint64_t kDrainRounds = 3;  // the draft's: DRAIN ends after more
  static constexpr Duration kProbeRttDuration =
      std::chrono::milliseconds(200);  // the draft's ProbeRTTDuration

  Bbr(const RateOptions& options, Random random);

  void OnPacketSent(Instant now, ByteCount bytes, ByteCount bytes_in_flight, bool app_limited) override;
  void OnCongestionEvent(const CongestionEvent& event) override;
  void OnWindowStart(Instant now) override;
  void SetGrant(Bandwidth rate) override;
  void SetBounds(Bandwidth floor, Bandwidth cap) override {
    model_.options.floor = floor, model_.options.cap = cap;
  }
  void SetLossLimits(const LossLimits& limits) override { model_.options.loss_limits = limits; }

  Bandwidth pacing_rate() const override { return model_.bounded_rate; }
  ByteCount cwnd() const override { return model_.cwnd; }
  ByteCount send_quantum() const override { return model_.send_quantum; }
  bool suppresses_samples() const override { return policy_->suppresses_samples(); }
  RateLimiter rate_bound() const override { return model_.rate_bound; }
  std::optional<double> path_loss() const override { return policy_->path_loss(); }
  RateSnapshot Snapshot() const override;

  const BbrModel& model() const { return model_; }
  const BbrPolicy& policy() const { return *policy_; }

 private:
  // --- Events and loss (bbr.cc; §5.2.3, §5.5.10, §5.5.11) ---
  void Process(const CongestionEvent& event);
  void TakeEvent(const CongestionEvent& event);
  void UpdateRound();
  void TakeLosses(const CongestionEvent& event);
  void NoteLoss();
  void SaveStateUponLoss();
  void HandleLostPacket(const LostPacket& packet);
  void HandleInflightTooHigh(ByteCount tx_in_flight, bool app_limited);
  ByteCount InflightAtLoss(const LostPacket& packet) const;
  // IsInflightTooHigh() of the rate sample at hand.
  bool IsInflightTooHigh() const;
  void UpdateCongestionSignals();
  void HandleSpuriousLossDetection();
  // --- Rate and window (bbr.cc; §5.6) ---
  void SetPacingRateWithGain(double gain);
  void BoundRate();
  void SetCwnd();
  void BoundCwndForModel();

  // --- States (bbr_states.cc; §5.3) ---
  void SetState(BbrState state, double pacing_gain, double cwnd_gain);
  void EnterStartup();
  void CheckFullBwReached();
  void CheckStartupDone();
  void CheckStartupHighLoss();
  void CheckDrainDone();
  void StartProbeBwDown();
  void StartProbeBwCruise();
  void StartProbeBwRefill();
  void StartProbeBwUp();
  void UpdateProbeBwCyclePhase();
  bool AdaptLongTermModel();
  void UpdateMinRtt();
  void CheckProbeRtt();
  void HandleProbeRtt();
  void CheckProbeRttDone();
  ByteCount ProbeRttCwnd() const;
  void HandleRestartFromIdle();

  BbrModel model_;
  std::unique_ptr<BbrPolicy> policy_;
  // PROBE_RTT.
  Instant probe_rtt_done_stamp_ = Instant::Infinite();  // Infinite() = the time has not begun
  bool probe_rtt_round_done_ = false;
  // STARTUP.
  bool startup_recovering_ = false;  // its last round trip has lost something
};

}  // namespace longhaul::transport
