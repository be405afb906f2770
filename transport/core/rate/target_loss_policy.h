// longhaul's controller is the BBR draft's model and states with this policy: the target loss is computed
// instead of fixed (transport/core/rate/target_loss_fit.h), and the in-window rule
// (transport/core/rate/loss_response.h) replaces the draft's reaction to every loss.
//
// Where it differs from BbrPolicy, and why (docs/decisions/0010 has the draft's test cases one by one):
//   - Bandwidth is counted in *sent* bytes: a sample counts what was delivered and as much of the loss as the path
//     loses by itself (path_loss.h). So random loss neither lowers the estimate nor, by its noise, raises it.
//   - LossThresh is max(2 %, l*), and "more" means by more than chance explains.
//   - Outside of probing, loss below l* changes nothing; between l* and the halve threshold the rate is held at what
//     the path delivers; at or above, halved. Loss below l* lifts the bound again, round by round.
//   - DOWN lasts two round trips at least, so that the queue is seen to be short and the floor is measured.
//   - UP also ends when it has built a queue of a tenth of the round trip, a fifth where others share the path.
//   - PROBE_RTT only when the minimum was not met again for ten seconds; DOWN and the compute gap measure it for free.
//   - A burst is at most a 64th of the BDP.
#pragma once

#include <optional>

#include "transport/core/rate/bbr/bbr_policy.h"
#include "transport/core/rate/loss_response.h"
#include "transport/core/rate/path_loss.h"
#include "transport/core/rate/target_loss_fit.h"

namespace longhaul::transport {

class TargetLossPolicy final : public BbrPolicy {
 public:
  explicit TargetLossPolicy(BbrModel* model);

  void OnPacketSent(ByteCount bytes) override;
  void OnRoundEnd() override;
  void OnEventEnd() override;
  // The target loss is computed anew.
  void OnWindowStart() override { Refit(); }

  Bandwidth SampleRate(const RateSample& sample) const override;
  bool IsSampleLimited(const RateSample& sample) const override;
  std::optional<Bandwidth> FullBwSample() const override;
  Duration ProbeRttInterval() const override { return MinRttFilter::kFilterLen; }
  bool MeetsMinRtt(Duration rtt) const override;

  double LossThresh() const override;
  bool LossTooHigh(ByteCount lost, ByteCount total) const override;
  bool StartupLossIsOurs() const override;
  bool AdaptLowerBoundsFromCongestion() override;

  void PickProbeWait() override;
  bool IsTimeToProbeBw() const override;
  bool IsTimeToCruise() const override;
  bool IsTimeToGoDown() override;
  void ProbeInflightLongtermUpward() override;
  double DownGain() const override;

  ByteCount InflightWithHeadroom() const override;
  double CwndGain() const override;
  ByteCount SendQuantum() const override;
  // What a grant or a cap lets through is no measure of the path: when it is lifted, the rate is there at
  // once.
  bool suppresses_samples() const override;
  std::optional<double> path_loss() const override;
  FitSnapshot Fit() const override;

 private:
  // A round trip's packets: when they left and what became of them.
  struct SentRound {
    ByteCount bytes;
    Duration length{0};
    std::optional<RatePhase> phase;  // nothing outside of PROBE_BW
    bool limited = true;
    Bandwidth rate() const { return Bandwidth::FromBytesAndTime(bytes, length); }
  };
  // Rounds in a row that were congested and yet far below max_bw.
  struct Contradiction {
    int rounds = 0;
    ByteCount bytes;
    Bandwidth bw;  // the largest of them
  };

  bool YieldToStandingQueue();
  void HoldAtDelivered();
  void Halve();
  void LiftLowerBounds();
  void AdaptCwndGain();
  bool UpBuiltQueue(double of_min_rtt) const;
  void ForgetWhatIsContradicted(Bandwidth sent);
  void FeedFit(const SentRound& sent);
  void Refit();
  std::optional<RatePhase> Phase() const;

  PathLoss path_loss_;
  LossResponse response_;
  TargetLossFit fit_;
  TargetLoss target_;
  SentRound previous_;  // what the round under way acknowledges
  ByteCount sent_in_round_;
  Contradiction contradiction_;
  double steady_cwnd_gain_ = BbrModel::kDefaultCwndGain;  // shrinks while a standing queue overflows
  // As UP began.
  Duration up_start_rtt_{0};
  Bandwidth up_start_bw_;
  double probe_wait_factor_ = 1;
};

}  // namespace longhaul::transport
