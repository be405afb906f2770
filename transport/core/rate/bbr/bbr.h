// BBR after draft-ietf-ccwg-bbr ("BBRv3"): the model of the path and the state machine that measures it.
// Names are the draft's; a method that is one of its procedures is called as there.
//
//   STARTUP 2.77 -> DRAIN 0.5 -> PROBE_BW: DOWN 0.9 -> CRUISE 1 -> REFILL 1 -> UP 1.25 -> DOWN ...
//   PROBE_RTT (half a BDP in flight for 200 ms) when the minimum RTT of 5 s is stale and the flow was never
//   idle.
//
// One mechanism a file: bbr_model.cc (rounds, filters, rate signals), bbr_startup.cc (STARTUP, DRAIN),
// bbr_probe_bw.cc, bbr_probe_rtt.cc, bbr_loss.cc (what loss and its undoing mean), bbr_control.cc (rate,
// window).
//
// What the draft fixes and longhaul's controller computes (rate/longhaul_controller.h) is virtual.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/instant.h"
#include "base/random.h"
#include "longhaul/units.h"
#include "transport/core/rate/rate_controller.h"
#include "transport/core/rate/windowed_max.h"

namespace longhaul::transport {

enum class BbrState : uint8_t {
  kStartup,
  kDrain,
  kProbeBwDown,
  kProbeBwCruise,
  kProbeBwRefill,
  kProbeBwUp,
  kProbeRtt,
};
std::string_view BbrStateName(BbrState state);

class Bbr : public RateController {
 public:
  static constexpr double kLossThresh = 0.02;
  static constexpr double kBeta = 0.7;
  static constexpr double kHeadroom = 0.15;
  static constexpr double kStartupPacingGain = 2.77;
  static constexpr double kDrainPacingGain = 0.5;
  static constexpr double kProbeDownPacingGain = 0.9;
  static constexpr double kProbeUpPacingGain = 1.25;
  static constexpr double kDefaultCwndGain = 2.0;
  static constexpr double kProbeUpCwndGain = 2.25;
  static constexpr double kProbeRttCwndGain = 0.5;
  static constexpr double kPacingMargin = 0.99;
  static constexpr int64_t kMinPipePackets = 4;
  static constexpr int64_t kInitialCwndPackets = 32;
  static constexpr int kFullBwRounds = 3;
  static constexpr double kFullBwGrowth = 1.25;
  static constexpr int kStartupFullLossCount = 6;
  static constexpr uint64_t kDrainRounds = 3;
  static constexpr uint64_t kExtraAckedRounds = 10;
  static constexpr Duration kMaxExtraAckedTime = std::chrono::milliseconds(100);
  static constexpr Duration kMinRttFilterLen = std::chrono::seconds(10);
  static constexpr Duration kProbeRttInterval = std::chrono::seconds(5);
  static constexpr Duration kProbeRttDuration = std::chrono::milliseconds(200);
  static constexpr ByteCount kInfinite = ByteCount::Max();

  Bbr(const RateOptions& options, Random random);

  void OnPacketSent(Instant now, ByteCount bytes, ByteCount bytes_in_flight, bool app_limited) override;
  void OnCongestionEvent(const CongestionEvent& event) override;
  void OnWindowStart(Instant now) override;
  void SetGrant(Bandwidth rate) override;

  Bandwidth pacing_rate() const override { return bounded_rate_; }
  ByteCount cwnd() const override { return cwnd_; }
  ByteCount send_quantum() const override { return send_quantum_; }
  bool suppresses_samples() const override { return state_ == BbrState::kProbeRtt; }
  RateLimiter rate_bound() const override { return rate_bound_; }
  RateSnapshot Snapshot() const override;

  // --- The draft's variables, for tests and logs ---
  BbrState state() const { return state_; }
  double pacing_gain() const { return pacing_gain_; }
  double cwnd_gain() const { return cwnd_gain_; }
  Bandwidth max_bw() const { return max_bw_; }
  Bandwidth bw() const { return bw_; }
  Bandwidth bw_shortterm() const { return bw_shortterm_; }              // Max() = none
  ByteCount inflight_shortterm() const { return inflight_shortterm_; }  // kInfinite = none
  ByteCount inflight_longterm() const { return inflight_longterm_; }    // kInfinite = none
  bool has_min_rtt() const { return min_rtt_ != Duration::max(); }
  Duration min_rtt() const { return min_rtt_; }  // Duration::max() = none yet
  Duration probe_rtt_min_delay() const { return probe_rtt_min_delay_; }
  Instant probe_rtt_min_stamp() const { return probe_rtt_min_stamp_; }
  bool idle_restart() const { return idle_restart_; }
  ByteCount extra_acked() const { return ByteCount(extra_acked_filter_.Best()); }
  bool full_bw_reached() const { return full_bw_reached_; }
  bool full_bw_now() const { return full_bw_now_; }
  int full_bw_count() const { return full_bw_count_; }
  uint64_t round_count() const { return round_count_; }
  uint64_t drain_start_round() const { return drain_start_round_; }
  Duration bw_probe_wait() const { return bw_probe_wait_; }
  ByteCount probe_up_acked_per_inc() const { return probe_up_acked_per_inc_; }
  std::optional<BbrState> undo_state() const { return undo_state_; }
  Bandwidth undo_bw_shortterm() const { return undo_bw_shortterm_; }
  ByteCount undo_inflight_shortterm() const { return undo_inflight_shortterm_; }
  ByteCount undo_inflight_longterm() const { return undo_inflight_longterm_; }
  // Inflight(gain): gain * BDP, raised to what hosts' bursts and four packets need.
  ByteCount Inflight(double gain) const;
  virtual ByteCount InflightWithHeadroom() const;

 protected:
  enum class AckPhase : uint8_t { kInit, kRefilling, kProbeStarting, kProbeFeedback, kProbeStopping };

  // --- What longhaul's controller computes instead ---
  virtual std::string_view name() const { return "bbr"; }
  // BBR.LossThresh: what share of a round trip's packets may be lost while probing.
  virtual double LossThresh() const { return kLossThresh; }
  // Whether `lost` of `total` bytes exceed LossThresh().
  virtual bool LossTooHigh(ByteCount lost, ByteCount total) const;
  // The rate sample that the bandwidth filter takes.
  virtual Bandwidth SampleRate(const RateSample& sample) const { return sample.delivery_rate; }
  virtual bool IsSampleLimited(const RateSample& sample) const { return sample.app_limited; }
  // As a round trip starts: by what rate the pipe is judged to be full; nothing when the application limited
  // it.
  virtual std::optional<Bandwidth> FullBwSample() const;
  // Once per round trip.
  virtual void AdaptLowerBoundsFromCongestion();
  // Sets rounds_since_probe_up_ and bw_probe_wait_ for the cycle that starts.
  virtual void PickProbeWait();
  virtual bool IsRenoCoexistenceProbeTime() const;
  // In DOWN and CRUISE: whether to look for more bandwidth now.
  virtual bool MayProbeBw() const { return true; }
  virtual bool IsTimeToCruise() const;
  virtual bool IsTimeToGoDown();
  // Raises inflight_longterm in UP while loss is low.
  virtual void ProbeInflightLongtermUpward();
  virtual double DownGain() const { return kProbeDownPacingGain; }
  // How many BDPs may be in flight.
  virtual double CwndGain() const { return cwnd_gain_; }
  // STARTUP has lost more than LossThresh() for a round trip: whether that is reason to end it.
  virtual bool StartupLossIsOurs() const { return true; }
  virtual Duration ProbeRttInterval() const { return kProbeRttInterval; }
  // Whether an RTT sample counts as the minimum met again, so that PROBE_RTT is not needed.
  virtual bool MeetsMinRtt(Duration rtt) const {
    (void)rtt;
    return false;
  }
  // A packet-timed round trip has ended: last_round_. Called before the state machine sees it.
  virtual void OnRoundEnd() {}

  // --- Rounds, filters, signals (bbr_model.cc) ---
  void TakeEvent(const CongestionEvent& event);
  ByteCount ExcuseHostDrops(const CongestionEvent& event);
  void UpdateRound();
  void StartRound() { next_round_delivered_ = delivered_; }
  void UpdateMaxBw();
  void AdvanceMaxBwFilter();
  void UpdateLatestDeliverySignals();
  void AdvanceLatestDeliverySignals();
  void UpdateAckAggregation();
  void ResetCongestionSignals();
  void ResetShortTermModel();
  void ResetFullBw();
  void CheckFullBwReached();
  ByteCount Bdp() const;

  // --- STARTUP and DRAIN (bbr_startup.cc) ---
  void EnterStartup();
  void CheckStartupDone();
  void CheckStartupHighLoss();
  void EnterDrain();
  void CheckDrainDone();

  // --- PROBE_BW (bbr_probe_bw.cc) ---
  bool IsInProbeBw() const;
  bool IsProbingBw() const;
  void EnterProbeBw();
  void StartProbeBwDown();
  void StartProbeBwCruise();
  void StartProbeBwRefill();
  void StartProbeBwUp();
  void UpdateProbeBwCyclePhase();
  bool AdaptLongTermModel();
  bool IsTimeToProbeBw();
  void RaiseInflightLongtermSlope();
  bool HasElapsedInPhase(Duration interval) const { return now_ > cycle_stamp_ + interval; }
  // IsInflightTooHigh() of the rate sample at hand.
  bool IsInflightTooHigh() const { return LossTooHigh(rs_.lost, rs_.tx_in_flight); }

  // --- PROBE_RTT and the minimum RTT (bbr_probe_rtt.cc) ---
  void UpdateMinRtt();
  void CheckProbeRtt();
  void EnterProbeRtt();
  void HandleProbeRtt();
  void CheckProbeRttDone();
  void ExitProbeRtt();
  ByteCount ProbeRttCwnd() const;
  void HandleRestartFromIdle();

  // --- Loss and its undoing (bbr_loss.cc) ---
  void NoteLoss();
  void SaveStateUponLoss();
  void HandleLostPacket(const LostPacket& packet);
  void HandleInflightTooHigh(ByteCount tx_in_flight, bool app_limited);
  ByteCount InflightAtLoss(const LostPacket& packet) const;
  void UpdateCongestionSignals();
  void InitLowerBounds();
  void HandleSpuriousLossDetection();

  // --- Rate and window (bbr_control.cc) ---
  void SetPacingRateWithGain(double gain);
  void BoundRate();
  virtual void SetSendQuantum();
  void SetCwnd();
  void BoundCwndForModel();
  ByteCount QuantizationBudget(ByteCount inflight_cap) const;
  void SaveCwnd();
  void RestoreCwnd();

  RateOptions options_;
  Random random_;

  BbrState state_ = BbrState::kStartup;
  double pacing_gain_ = kStartupPacingGain;
  double cwnd_gain_ = kDefaultCwndGain;

  // The event at hand.
  Instant now_;
  RateSample rs_;
  Bandwidth sample_rate_;       // SampleRate(rs_); zero when there is none
  bool sample_limited_ = true;  // RS.is_app_limited, or no sample at all
  ByteCount newly_acked_;
  ByteCount newly_lost_;  // what the peer's host dropped left out, CE marks counted
  Duration rtt_{0};       // RS.rtt; zero when there is none
  // Of it, what the path and its queue took, without the peer's ACK delay. At a low rate the delay is all of
  // the RTT of a short path: taken for a queue, it would keep the rate low.
  Duration path_rtt_{0};
  ByteCount delivered_;  // C.delivered
  ByteCount in_flight_;  // C.inflight

  // Rounds.
  struct Round {
    ByteCount acked;
    ByteCount lost;       // CE marks counted
    ByteCount marked;     // of `lost`
    int loss_events = 0;  // runs of consecutive packets
    Duration min_rtt = Duration::max();
    Bandwidth bw;         // largest sample
    bool limited = true;  // no sample but application-limited ones
    Instant start;
    ByteCount Total() const { return acked + lost; }
  };
  uint64_t round_count_ = 0;
  bool round_start_ = false;
  ByteCount next_round_delivered_;
  Round round_;       // under way
  Round last_round_;  // has ended
  uint64_t last_lost_number_ = 0;
  ByteCount host_drop_credit_;  // dropped by the peer's host and not yet seen as lost
  bool cwnd_limited_ = false;   // C.is_cwnd_limited: in this round or the one before
  bool cwnd_limited_in_round_ = false;

  // Model: rates.
  std::array<Bandwidth, 2> max_bw_slots_{};  // this cycle and the last
  size_t max_bw_slot_ = 0;
  Bandwidth max_bw_;
  Bandwidth bw_;
  Bandwidth bw_shortterm_ = Bandwidth::Max();
  Bandwidth bw_latest_;
  // Model: volumes.
  ByteCount inflight_longterm_ = kInfinite;
  ByteCount inflight_shortterm_ = kInfinite;
  ByteCount inflight_latest_;
  WindowedMax<int64_t, uint64_t> extra_acked_filter_{kExtraAckedRounds};
  Instant extra_acked_interval_start_;
  ByteCount extra_acked_delivered_;
  // Model: delays.
  Duration min_rtt_ = Duration::max();
  Instant min_rtt_stamp_;
  Duration probe_rtt_min_delay_ = Duration::max();
  Instant probe_rtt_min_stamp_;
  bool probe_rtt_expired_ = false;
  Duration smoothed_rtt_{0};

  // STARTUP, DRAIN.
  bool full_bw_reached_ = false;
  bool full_bw_now_ = false;
  Bandwidth full_bw_;
  int full_bw_count_ = 0;
  uint64_t drain_start_round_ = 0;
  std::optional<ByteCount> startup_recovery_delivered_;  // C.delivered one round into STARTUP's loss

  // PROBE_BW.
  AckPhase ack_phase_ = AckPhase::kInit;
  bool bw_probe_sample_ = false;
  bool prev_probe_too_high_ = false;
  bool prev_probe_precautionary_ = false;
  ByteCount bw_probe_up_acked_;
  ByteCount probe_up_acked_per_inc_ = kInfinite;
  int bw_probe_up_rounds_ = 0;
  uint64_t rounds_since_probe_up_ = 0;
  Duration bw_probe_wait_{0};
  uint64_t rounds_in_down_ = 0;  // round trips ended since DOWN began
  Instant cycle_stamp_;

  // PROBE_RTT.
  Instant probe_rtt_done_stamp_ = Instant::Infinite();  // Infinite() = the time has not begun
  bool probe_rtt_round_done_ = false;
  bool idle_restart_ = false;

  // Loss.
  bool loss_in_round_ = false;
  bool loss_round_start_ = false;
  ByteCount loss_round_delivered_;
  std::optional<BbrState> undo_state_;
  Bandwidth undo_bw_shortterm_ = Bandwidth::Max();
  ByteCount undo_inflight_shortterm_ = kInfinite;
  ByteCount undo_inflight_longterm_ = kInfinite;
  uint64_t undo_round_ = 0;  // in which it was saved
  ByteCount undo_lost_;      // declared lost in the episode and not yet known to be spurious

  // Output.
  ByteCount prior_cwnd_;
  ByteCount cwnd_;
  Bandwidth pacing_rate_;  // the model's
  Bandwidth bounded_rate_;
  RateLimiter rate_bound_ = RateLimiter::kPacing;
  ByteCount send_quantum_;
  Bandwidth grant_;
  double recent_loss_ = 0;
};

}  // namespace longhaul::transport
