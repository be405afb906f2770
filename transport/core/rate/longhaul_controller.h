// longhaul's rate controller: the BBR draft's model and states with the target loss computed instead of fixed
// (rate/target_loss_fit.h), and the in-window rule (rate/loss_response.h) in place of the draft's reaction to
// every loss.
//
// Where it differs from class Bbr, and why (docs/decisions/0010 has the test cases one by one):
//   - Bandwidth is counted in *sent* bytes: a sample counts what was delivered and as much of the loss as the
//     path is known to lose by itself (the floor). So random loss neither lowers the estimate nor, by its
//     noise, raises it.
//   - LossThresh is max(2 %, l*), and "more" means by more than chance explains.
//   - Outside of probing, loss below l* changes nothing; between l* and the bubble threshold the rate is held
//     at what the path delivers; at or above, halved. Loss below l* lifts the bound again, round by round.
//   - DOWN lasts two round trips at least, so that the queue is seen to be short and the floor is measured.
//   - UP also ends when it has built a queue of a tenth of the round trip, a fifth where others share the path.
//   - PROBE_RTT only when the minimum was not met again for ten seconds; DOWN and the compute gap measure it
//     for free.
//   - A burst is at most a 64th of the BDP.
#pragma once

#include <optional>

#include "transport/core/rate/bbr/bbr.h"
#include "transport/core/rate/loss_floor.h"
#include "transport/core/rate/loss_response.h"
#include "transport/core/rate/target_loss_fit.h"

namespace longhaul::transport {

class LonghaulController final : public Bbr {
 public:
  LonghaulController(const RateOptions& options, Random random);

  void OnPacketSent(Instant now, ByteCount bytes, ByteCount bytes_in_flight, bool app_limited) override;
  void OnCongestionEvent(const CongestionEvent& event) override;
  // Besides the draft's: the target loss is computed anew.
  void OnWindowStart(Instant now) override;
  // What a grant or a cap lets through is no measure of the path: when it is lifted, the rate is there at
  // once.
  bool suppresses_samples() const override {
    return Bbr::suppresses_samples() || rate_bound() != RateLimiter::kPacing;
  }
  std::optional<double> path_loss() const override;
  RateSnapshot Snapshot() const override;

  // l0: what the path loses by itself, 0..0.5.
  double floor() const;

 private:
  static constexpr uint64_t kQueueMemoryRounds = 128;

  std::string_view name() const override { return "longhaul"; }
  double LossThresh() const override;
  bool LossTooHigh(ByteCount lost, ByteCount total) const override;
  Bandwidth SampleRate(const RateSample& sample) const override;
  bool IsSampleLimited(const RateSample& sample) const override;
  std::optional<Bandwidth> FullBwSample() const override;
  void AdaptLowerBoundsFromCongestion() override;
  bool MayProbeBw() const override;
  void PickProbeWait() override;
  bool IsRenoCoexistenceProbeTime() const override { return false; }
  double DownGain() const override;
  bool IsTimeToCruise() const override;
  ByteCount InflightWithHeadroom() const override;
  bool IsTimeToGoDown() override;
  void ProbeInflightLongtermUpward() override;
  double CwndGain() const override;
  bool StartupLossIsOurs() const override;
  bool MeetsMinRtt(Duration rtt) const override;
  void OnRoundEnd() override;
  void SetSendQuantum() override;
  Duration ProbeRttInterval() const override { return kMinRttFilterLen; }

  bool YieldToStandingQueue();
  void LiftLowerBounds();
  void AdaptCwndGain();
  bool UpBuiltQueue(double of_min_rtt) const;
  // How much of the loss counts as served when bandwidth is measured.
  double Excused() const;
  bool FloorKnown() const;
  bool FloorIsOfShortQueue() const;
  bool QueueInvisible() const;
  bool QueueSeen(const Round& round) const;
  void LearnBurst();
  void ForgetAnotherPath();
  void LearnShortQueueFloor();
  void LearnLowRateFloor();
  void ForgetWhatIsContradicted();
  void FeedFit();
  void Refit();
  // What the rate of the present state tells the fit; nothing outside of PROBE_BW.
  std::optional<RatePhase> Phase() const;

  LossFloor short_queue_floor_;       // while the queue was short
  SmallestLossFloor low_rate_floor_;  // in rounds sent below the bandwidth
  ByteCount low_rate_bytes_in_down_;  // measured in this DOWN
  bool round_sent_low_ = false;       // every packet of the round under way left below the bandwidth
  bool previous_sent_low_ = false;    // those of the round before, whose fate this round tells
  LossResponse response_;
  TargetLossFit fit_;
  TargetLoss target_;
  bool previous_limited_ = true;  // the round before last
  std::optional<RatePhase> previous_phase_;
  double steady_cwnd_gain_ = kDefaultCwndGain;  // shrinks while a standing queue overflows
  double mean_burst_ = 1;                       // packets lost in a row
  Duration last_rtt_{0};
  Duration known_min_rtt_{0};
  WindowedMax<int64_t, uint64_t> longest_queue_{kQueueMemoryRounds};  // ns above the minimum RTT
  // Rounds in a row that were congested and yet far below max_bw.
  int contradicting_rounds_ = 0;
  ByteCount contradicting_bytes_;
  Bandwidth contradicting_bw_;
  ByteCount sent_in_round_;
  ByteCount previous_sent_;  // in the round before, whose fate this round tells
  Duration previous_length_{0};
  // As UP began.
  Duration up_start_rtt_{0};
  Bandwidth up_start_bw_;
  double probe_wait_factor_ = 1;
};

}  // namespace longhaul::transport
