// What a BBR controller judges by, apart from the model and the states that all share: this class has the
// answers of draft-ietf-ccwg-bbr, TargetLossPolicy (transport/core/rate/target_loss_policy.h) those of
// longhaul's controller.
//
// A policy reads and bounds the model; the state changes in class Bbr alone.
#pragma once

#include <optional>
#include <string_view>

#include "transport/core/rate/bbr/bbr_model.h"

namespace longhaul::transport {

class BbrPolicy {
 public:
  static constexpr double kLossThresh = 0.02;      // the draft's LossThresh
  static constexpr int kStartupFullLossCount = 6;  // the draft's: runs of lost packets in a round trip
  static constexpr double kHeadroom = 0.15;  // the draft's Headroom: left free for other flows in CRUISE
  // The draft's PacingMarginPercent: a queue drains in the long run.
  static constexpr double kPacingMargin = 0.99;
  static constexpr double kProbeDownPacingGain = 0.9;                     // the draft's
  static constexpr Duration kProbeRttInterval = std::chrono::seconds(5);  // the draft's ProbeRTTInterval

  explicit BbrPolicy(BbrModel* model) : m_(*model) {}
  virtual ~BbrPolicy() = default;

  // --- Events ---
  virtual void OnPacketSent(ByteCount bytes) { (void)bytes; }
  // A round trip has ended: m.rounds.last(). The states have not seen the event yet.
  virtual void OnRoundEnd() {}
  // The event has been taken in full.
  virtual void OnEventEnd() {}
  // Before a window's rate is set.
  virtual void OnWindowStart() {}

  // --- Samples ---
  // What the bandwidth filter takes; zero when there is none.
  virtual Bandwidth SampleRate(const RateSample& sample) const { return sample.delivery_rate; }
  // What share of what is sent counts as served although it was lost, 0..1.
  virtual double Excused() const { return 0; }
  virtual bool IsSampleLimited(const RateSample& sample) const { return sample.app_limited; }
  // As a round trip starts: the rate that the pipe is judged by; nullopt when the application limited it.
  virtual std::optional<Bandwidth> FullBwSample() const;
  virtual Duration ProbeRttInterval() const { return kProbeRttInterval; }
  // Whether an RTT sample counts as the minimum met again, so that PROBE_RTT is not needed.
  virtual bool MeetsMinRtt(Duration rtt) const;

  // --- Loss ---
  // What share of a round trip's packets may be lost while probing, 0..1.
  virtual double LossThresh() const { return kLossThresh; }
  // Whether `lost` of `total` bytes exceed LossThresh().
  virtual bool LossTooHigh(ByteCount lost, ByteCount total) const;
  // As a round trip of STARTUP has ended with loss: whether that is reason to end STARTUP. recovering: the
  // round trip before had lost something, too.
  virtual bool EndsStartup(bool recovering);
  // Once per round trip with a new look at loss: sets the short-term bounds. True: DOWN must start now.
  virtual bool AdaptLowerBoundsFromCongestion();

  // --- PROBE_BW ---
  // Sets rounds_since_probe_up and bw_probe_wait for the cycle that starts.
  virtual void PickProbeWait();
  // In DOWN and CRUISE: whether to look for more bandwidth now.
  virtual bool IsTimeToProbeBw() const;
  virtual bool IsTimeToCruise() const;
  virtual bool IsTimeToGoDown();
  // Raises inflight_longterm in UP while loss is low.
  virtual void ProbeInflightLongtermUpward();

  // At `gain`, before grant and cap bound it.
  virtual Bandwidth PacingRate(double gain) const;
  // No packet leaves faster, whatever the model says.
  virtual Bandwidth RateCeiling() const { return Bandwidth::Max(); }

  // --- Output ---
  virtual ByteCount InflightWithHeadroom() const;
  // How many BDPs may be in flight.
  virtual double CwndGain() const { return m_.cwnd_gain; }
  virtual ByteCount SendQuantum() const;
  virtual bool suppresses_samples() const { return m_.state == BbrState::kProbeRtt; }
  virtual std::optional<double> path_loss() const { return std::nullopt; }
  virtual FitSnapshot Fit() const { return {}; }

 protected:
  BbrModel& m_;
};

}  // namespace longhaul::transport
