// A rate controller after draft-ietf-ccwg-bbr: paces at gain * bandwidth, the gain going up to build a queue
// and down to drain it, and takes loss by the in-window rule (loss_response.h).
//
//   STARTUP 2.77 -> DRAIN 0.36 -> PROBE_BW: DOWN 0.9 -> CRUISE 1 -> REFILL 1 -> UP 1.25 -> DOWN ...
//   PROBE_RTT (half a BDP in flight for 200 ms) from any state when the RTT minimum is older than 10 s.
//
// The delivered rate excludes what the path loses, so the pacing rate is divided by 1 - floor (loss_floor.h).
// DOWN and DRAIN are not compensated: sent below what was ever delivered, they cannot lose by their own rate
// whatever the floor is believed to be, and so they measure it.
#pragma once

#include "transport/core/rate/bandwidth_model.h"
#include "transport/core/rate/loss_floor.h"
#include "transport/core/rate/loss_response.h"
#include "transport/core/rate/rate_controller.h"

namespace longhaul::transport {

class BbrLikeController : public RateController {
 public:
  enum class State : uint8_t { kStartup, kDrain, kDown, kCruise, kRefill, kUp, kProbeRtt };

  BbrLikeController(const RateOptions& options, Random random);

  void OnPacketSent(Instant now, ByteCount bytes, ByteCount bytes_in_flight, bool app_limited) override;
  void OnCongestionEvent(const CongestionEvent& event) override;
  // The rate of the window is gain * estimate from its first packet on; nothing is learned anew.
  void OnWindowStart(Instant now) override;
  void SetGrant(Bandwidth rate) override;

  Bandwidth pacing_rate() const override { return pacing_rate_; }
  ByteCount cwnd() const override { return cwnd_; }
  ByteCount send_quantum() const override { return ByteCount::Max(); }
  RateSnapshot Snapshot() const override;

  State state() const { return state_; }

 private:
  void OnRoundEnd();
  void LearnFromRound();
  void AdvanceStartup();
  void LeaveDown();
  void AdaptCwndGain(const BandwidthModel::Round& round);
  double Compensation() const;
  void AdvanceState(const CongestionEvent& event, bool new_round);
  void AdvanceProbeRtt(const CongestionEvent& event);
  void LeaveProbeRtt(Instant now);
  void Enter(State state);
  bool QueueSeen(const BandwidthModel::Round& round) const;
  bool SendsBelowDelivery() const;
  double Gain() const;
  Bandwidth UnboundedRate() const;
  // Bytes in flight that fill the path, those counted that will be lost.
  ByteCount FullPath() const;
  void Update();

  RateOptions options_;
  Random random_;
  BandwidthModel model_;
  LossFloor floor_;
  LossResponse response_;
  State state_ = State::kStartup;
  uint64_t rounds_in_state_ = 0;  // round trips ended since the state began
  uint64_t cruise_rounds_ = 0;    // how long this CRUISE is to last
  ByteCount sent_in_state_;
  bool pipe_filled_ = false;        // STARTUP is over for good
  bool idle_restart_ = false;       // the next RTT sample is of a packet sent into an empty path
  bool round_sent_low_ = false;     // every packet of the round under way left below the delivered rate
  bool previous_sent_low_ = false;  // those of the round before, whose fate this round tells
  Instant probe_rtt_end_ = Instant::Infinite();
  uint64_t probe_rtt_round_ = 0;
  Duration probe_rtt_min_ = Duration::max();
  bool queue_standing_ = false;    // sending low did not drain the queue: nothing is gained by sending more
  double cwnd_gain_;               // shrinks while a standing queue overflows
  Bandwidth bandwidth_before_up_;  // tells whether the last UP found more
  double recent_loss_ = 0;
  Bandwidth grant_;
  Bandwidth pacing_rate_;
  ByteCount cwnd_;
};

std::string_view StateName(BbrLikeController::State state);

}  // namespace longhaul::transport
