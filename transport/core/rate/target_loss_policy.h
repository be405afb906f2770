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
#include "transport/core/recovery/empty_path.h"

namespace longhaul::transport {

class TargetLossPolicy final : public BbrPolicy {
 public:
  explicit TargetLossPolicy(BbrModel* model);

  void OnPacketSent(ByteCount bytes) override;
  void OnRoundEnd() override;
  void OnEventEnd() override;
  // The target loss is computed anew.
  void OnWindowStart() override { Refit(); }

  double Excused() const override { return path_loss_.Excused(); }
  Bandwidth SampleRate(const RateSample& sample) const override;
  bool IsSampleLimited(const RateSample& sample) const override;
  std::optional<Bandwidth> FullBwSample() const override;
  Duration ProbeRttInterval() const override { return MinRttFilter::kFilterLen; }
  bool MeetsMinRtt(Duration rtt) const override;

  double LossThresh() const override;
  bool LossTooHigh(ByteCount lost, ByteCount total) const override;
  bool EndsStartup(bool recovering) override;
  bool AdaptLowerBoundsFromCongestion() override;

  void PickProbeWait() override;
  bool IsTimeToProbeBw() const override;
  bool IsTimeToCruise() const override;
  bool IsTimeToGoDown() override;
  void ProbeInflightLongtermUpward() override;
  Bandwidth RateCeiling() const override;
  Bandwidth PacingRate(double gain) const override;

  ByteCount InflightWithHeadroom() const override;
  double CwndGain() const override;
  ByteCount SendQuantum() const override;
  // What a grant or a cap lets through is no measure of the path: when it is lifted, the rate is there at
  // once.
  bool suppresses_samples() const override;
  std::optional<double> path_loss() const override;
  FitSnapshot Fit() const override;

 private:
  // Bytes that left, or were acknowledged, in a round trip, and how fast: those after the first over the time
  // since it.
  struct Span {
    ByteCount bytes;
    ByteCount first_bytes;
    Instant first;
    Instant last;
    void Add(Instant now, ByteCount more);
    Duration length() const { return last - first; }
    Bandwidth rate() const { return Bandwidth::FromBytesAndTime(bytes - first_bytes, length()); }
  };
  struct SentRound {
    Span span;
    Bandwidth pace;  // the largest at which one of its packets left
    bool experiment = false;
    bool granted = false;  // a grant set the rate as its last packet left
  };
  // Rounds in a row that were congested and yet far below max_bw.
  struct Contradiction {
    int rounds = 0;
    ByteCount bytes;
    Bandwidth bw;  // the largest of them
    Bandwidth delivered;
  };

  // Round trips whose loss is not yet explained.
  struct Question {
    ByteCount lost;
    ByteCount total;
    int loss_events = 0;  // runs of lost packets
  };

  // To a standing queue.
  struct Yielding {
    int rounds = 0;
    Duration queue{0};  // the shortest so far
  };

  static constexpr uint64_t kRecentRounds = 4;
  // A queue stands when it is met in all of so many round trips; what ACKs that come together and hosts add,
  // is not.
  static constexpr uint64_t kStandingRounds = 6;

  bool FollowsGrant() const;
  bool QueueStands() const;
  bool YieldToStandingQueue();
  void NoticeLongerPath();
  bool IsYieldingFutile() const;
  void OnAnswer();
  Bandwidth MeanServed() const;
  void HoldAtDelivered();
  void Halve();
  void LiftLowerBounds();
  void AdaptCwndGain();
  bool UpBuiltQueue(double of_min_rtt) const;
  void ForgetWhatIsContradicted();
  void FeedFit(const SentRound& sent);
  void Refit();
  RatePhase Phase(const SentRound& sent) const;

  PathLoss path_loss_;
  LossResponse response_;
  TargetLossFit fit_;
  TargetLoss target_;
  double app_limited_ = 0;  // share of the last rounds that were too short or broken for the fit
  SentRound previous_;      // what the round under way acknowledges
  SentRound sending_;       // the round under way
  SentRound acknowledged_;  // the round before it
  Span acked_;              // likewise
  Contradiction contradiction_;
  Question question_;
  WindowedMax<Bandwidth, uint64_t> recent_bw_{kRecentRounds};
  WindowedMax<int64_t, uint64_t> shortest_queue_{kStandingRounds};  // ns, its negative
  WindowedMax<int64_t, uint64_t> newest_queue_{1};  // of this round trip and the last, likewise
  Yielding yielding_;
  EmptyPath empty_path_;
  int calm_rounds_ = 0;  // in a row with loss below the target
  bool startup_loss_is_ours_ = false;
  double steady_cwnd_gain_ = BbrModel::kDefaultCwndGain;  // shrinks while a standing queue overflows
  // As UP began.
  Duration up_start_rtt_{0};
  Bandwidth up_start_bw_;
  double probe_wait_factor_ = 1;
};

}  // namespace longhaul::transport
