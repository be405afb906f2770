// The seam between the connection and whatever decides how fast it may send. One object per path; it lives
// across windows and rounds. The names are those of draft-ietf-ccwg-bbr.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "base/instant.h"
#include "base/random.h"
#include "longhaul/job.h"
#include "longhaul/units.h"
#include "transport/core/rate/delivery_rate.h"

namespace longhaul::transport {

// What one ACK (or a loss timer) brings to the controller.
struct CongestionEvent {
  Instant now;
  RateSample sample;          // sample.valid may be false
  ByteCount acked;            // newly acknowledged by this event
  ByteCount lost;             // newly declared lost by this event: raw loss, before FEC repair
  ByteCount bytes_in_flight;  // after the event
  ByteCount delivered;        // C.delivered after the event
  Duration latest_rtt{0};     // zero when the event gave no RTT sample
  Duration adjusted_rtt{0};   // latest_rtt without the peer's ACK delay, where it has reported one
  bool void_min_rtt = false;  // the samples before are not of this path: those that have overtaken others
  Duration smoothed_rtt{0};
  Duration min_rtt{0};                       // over the connection's life
  uint64_t ecn_ce = 0;                       // new CE marks
  uint64_t host_drops = 0;                   // new drops in the peer's socket buffer: not network loss
  std::span<const LostPacket> lost_packets;  // those of `lost`, ascending by number; valid during the call
  ByteCount spurious;                        // declared lost earlier, acknowledged by this event
  bool timeout = false;                      // a probe timeout has fired
};

// What the rate is limited by at present; exported as a share of time per reason.
enum class RateLimiter : uint8_t { kApp, kPacing, kCwnd, kReceiveWindow, kGrant, kCap };
inline constexpr size_t kRateLimiters = 6;
std::string_view RateLimiterName(RateLimiter limiter);

// The fitted path (transport/core/rate/target_loss_fit.h).
struct FitSnapshot {
  double floor = 0;      // l0: the share that the path loses at any rate, 0..1
  Bandwidth capacity;    // C, in sent bytes
  double r_squared = 0;  // of the hinge
  int samples = 0;       // rounds in the fit
  // "fitted" or "granted" (C is the grant), or why not: "few_samples", "app_limited", "no_excitation", ...
  std::string_view state;
  std::string_view basis;  // of the target: "curves", or why not: "floor", "flat_loss", ...
};

struct RateSnapshot {
  std::string_view name;   // "longhaul", "bbr", "cubic"
  std::string_view state;  // "startup", "drain", "probe_bw_up", ...
  Bandwidth bandwidth;     // estimate of the bottleneck
  Bandwidth pacing_rate;
  ByteCount cwnd;
  Duration min_rtt{0};      // filtered, as the model uses it
  double loss = 0;          // recent raw loss, 0..1
  double target_loss = 0;   // l*; 0 when the controller has none
  Duration queue_delay{0};  // smoothed RTT above the minimum
  ByteCount send_quantum;
  FitSnapshot fit;  // samples = 0 when the controller fits nothing
};

// What the job says of loss, each as a share of a round trip's packets beyond what the path loses by itself.
struct LossLimits {
  double halve_threshold = JobSpec().halve_threshold;  // halves the rate
  // What the windows' semantics afford: the fitted target loss never exceeds it. Of the low class the share
  // that is tolerated as it is; what FEC repairs of the high class is sized by the path's loss and leaves no
  // room on top.
  double budget = (1 - JobSpec().high_share) * JobSpec().bubble_threshold;
  static LossLimits Of(const JobSpec& job) {
    return {job.halve_threshold, (1 - job.high_share) * job.bubble_threshold};
  }
};

struct RateOptions {
  RateControl control = RateControl::kLonghaul;
  ByteCount max_datagram{1452};
  Bandwidth floor = Bandwidth::BitsPerSecond(100'000);
  Bandwidth cap = Bandwidth::Max();
  Bandwidth initial = Bandwidth::Mbps(10);  // pacing rate before the first sample
  LossLimits loss_limits;
};

class RateController {
 public:
  virtual ~RateController() = default;

  // A packet left; `bytes_in_flight` includes it. app_limited: C.app_limited of the sampler as the packet
  // left, so the application had had nothing to send.
  virtual void OnPacketSent(Instant now, ByteCount bytes, ByteCount bytes_in_flight, bool app_limited) = 0;
  virtual void OnCongestionEvent(const CongestionEvent& event) = 0;
  // A packet-transmission window starts: compute the initial sending rate from the estimate (mission A4).
  virtual void OnWindowStart(Instant now) = 0;
  // The peer's GRANT. Bandwidth::Zero() = no bound.
  virtual void SetGrant(Bandwidth rate) = 0;
  // RateOptions::loss_limits from now on. Only the longhaul controller has such rules.
  virtual void SetLossLimits(const LossLimits& limits) { (void)limits; }
  // RateOptions::floor and cap from now on. REQUIRES: floor <= cap.
  virtual void SetBounds(Bandwidth floor, Bandwidth cap) = 0;

  virtual Bandwidth pacing_rate() const = 0;
  virtual ByteCount cwnd() const = 0;
  // Largest burst that may leave at once (C.send_quantum); the pacer keeps to it.
  virtual ByteCount send_quantum() const = 0;
  // The controller itself holds the flow back (PROBE_RTT): samples of what leaves now are
  // application-limited.
  virtual bool suppresses_samples() const { return false; }
  // By which of its own bounds the pacing rate is set: kPacing (the estimate), kGrant or kCap.
  virtual RateLimiter rate_bound() const { return RateLimiter::kPacing; }
  // At most so much is lost at whatever rate, 0..1: what a full queue drops is not in it. nullopt: not known.
  virtual std::optional<double> path_loss() const { return std::nullopt; }
  virtual RateSnapshot Snapshot() const = 0;
};

// The controller that `options` names. `random` picks phases, so that flows do not probe in step.
std::unique_ptr<RateController> MakeRateController(const RateOptions& options, Random random);

}  // namespace longhaul::transport
