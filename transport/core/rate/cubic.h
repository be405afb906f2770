// CUBIC (RFC 9438) with HyStart++ (RFC 9406), for comparison and for networks that demand it: what the
// kernel's default does, over the same loss detection. A window-based control; it is paced only so that its
// bursts do not measure the pacer. Random loss makes it collapse (about 1.2 / sqrt(loss) datagrams in
// flight): that is CUBIC.
//
//   slow_start -> congestion_avoidance <-> recovery
//
// One reduction per round trip: packets sent before the last reduction do not reduce again (RFC 9002 §7.3.2).
// A CE mark is a congestion event. Probe timeouts alone change nothing (RFC 9002 §6.2); silence over two of
// them whose packets are all found lost afterwards is persistent congestion, the counterpart of a
// retransmission timeout (RFC 9438 §4.8). A reduction all of whose losses were spurious is undone (§4.9).
// While the window is not used up it does not grow and the cubic's clock stands still (§5.8).
#pragma once

#include <cstdint>
#include <optional>

#include "transport/core/rate/rate_controller.h"

namespace longhaul::transport {

// HyStart++ (RFC 9406): leaves slow start when the round-trip time grows, before the queue overflows.
//
//   slow start --[RTT of a round above that of the last]--> conservative slow start (a quarter of the growth)
//       ^------[RTT back below the baseline]---------------------'   --[5 rounds]--> done
//
// Sizes are the caller's: this part says only by how much an acknowledged byte may raise the window. As the
// sender paces, L (the bound per ACK) is infinite (§4.2).
class HyStart {
 public:
  static constexpr Duration kMinRttThresh = std::chrono::milliseconds(4);
  static constexpr Duration kMaxRttThresh = std::chrono::milliseconds(16);
  static constexpr int kMinRttDivisor = 8;
  static constexpr int kRttSamples = 8;  // N_RTT_SAMPLE
  static constexpr int kCssGrowthDivisor = 4;
  static constexpr int kCssRounds = 5;

  // A packet-timed round trip begins.
  void OnRoundStart();
  void OnRttSample(Duration rtt);

  bool conservative() const { return conservative_; }  // in CSS
  bool done() const { return done_; }                  // slow start is over: ssthresh = cwnd
  // Growth of the window per acknowledged byte.
  double growth() const { return conservative_ ? 1.0 / kCssGrowthDivisor : 1.0; }

 private:
  bool RttGrew() const;

  Duration last_round_min_ = Duration::max();
  Duration round_min_ = Duration::max();
  int samples_ = 0;
  bool conservative_ = false;
  Duration css_baseline_ = Duration::max();
  int css_rounds_ = 0;
  bool done_ = false;
};

class Cubic : public RateController {
 public:
  static constexpr double kC = 0.4;     // datagrams per second cubed (RFC 9438 §5.1)
  static constexpr double kBeta = 0.7;  // multiplicative decrease (RFC 9438 §4.6)
  static constexpr double kAlpha =
      3 * (1 - kBeta) / (1 + kBeta);                // additive increase of the Reno-friendly region
  static constexpr int64_t kInitialDatagrams = 10;  // RFC 9002 §7.2
  static constexpr int64_t kMinDatagrams = 2;       // RFC 9002 §7.2
  static constexpr double kSlowStartPacing =
      2.0;  // the window doubles in a round trip: its ACKs, not the pacer, limit it
  static constexpr double kPacing = 1.25;  // RFC 9002 §7.7

  explicit Cubic(const RateOptions& options);

  void OnPacketSent(Instant now, ByteCount bytes, ByteCount bytes_in_flight, bool app_limited) override;
  void OnCongestionEvent(const CongestionEvent& event) override;
  void OnWindowStart(Instant) override {}  // the window is what it is; idling has not aged it
  void SetBounds(Bandwidth floor, Bandwidth cap) override { options_.floor = floor, options_.cap = cap; }
  void SetGrant(Bandwidth rate) override;

  Bandwidth pacing_rate() const override { return pacing_rate_; }
  ByteCount cwnd() const override;
  ByteCount send_quantum() const override { return ByteCount::Max(); }
  RateLimiter rate_bound() const override { return bound_; }
  RateSnapshot Snapshot() const override;

 private:
  // What a congestion event changes, so that a spurious one can be undone. Windows are in datagrams.
  struct Window {
    double cwnd = kInitialDatagrams;
    double ssthresh = 1e18;
    double cwnd_prior = 0;         // when the last congestion event began
    double w_max = 0;              // where the cubic has its plateau
    double k = 0;                  // seconds from the epoch's start to w_max
    double w_est = 0;              // what Reno would have
    std::optional<Instant> epoch;  // start of this congestion avoidance stage
    bool plateau_here = false;     // the next stage starts at its plateau: after slow start, or a timeout
  };

  bool InSlowStart() const { return window_.cwnd < window_.ssthresh; }
  bool InRecovery() const { return recovery_start_.has_value(); }
  double Datagrams(ByteCount bytes) const { return bytes / options_.max_datagram; }
  void UpdateRound(const CongestionEvent& event);
  void UpdateRecovery(const CongestionEvent& event);
  void TakeLosses(const CongestionEvent& event);
  // Bytes of `event.lost_packets` that speak of new congestion: not excused by host drops, not sent before
  // the last reduction.
  ByteCount NewLoss(const CongestionEvent& event);
  bool IsPersistent(const CongestionEvent& event) const;
  // lost: what is behind it, zero for a mark.
  void Reduce(Instant now, ByteCount lost);
  void Collapse();
  void Undo(Instant now);
  void Grow(const CongestionEvent& event);
  void GrowSlowStart(double acked);
  void GrowCubic(const CongestionEvent& event, double acked);
  void BeginEpoch(Instant now);
  void StopClock(Duration time);
  bool IsWindowUsed() const;
  void Update();

  RateOptions options_;
  Window window_;
  std::optional<Window> undo_;
  ByteCount undo_lost_;  // losses behind the last reduction that have not turned out spurious
  std::optional<HyStart> hystart_ = HyStart();  // only before the first congestion event
  std::optional<Instant> recovery_start_;       // set until a packet sent later is acknowledged
  Instant last_reduction_;
  bool reduced_ = false;
  Instant last_ack_;

  ByteCount next_round_delivered_;
  ByteCount round_max_in_flight_;        // of the round under way
  ByteCount last_round_max_in_flight_;   // of the one before
  std::optional<Instant> unused_since_;  // the window is not used up: the cubic's clock stands still

  int timeouts_ = 0;  // since the last acknowledgement
  Instant first_timeout_;
  uint64_t excused_drops_ = 0;  // datagrams that the peer's host dropped and loss detection may still report
  uint64_t excused_drops_of_last_ = 0;  // of these, from the round before: they expire with this one

  Bandwidth grant_;
  Duration smoothed_rtt_{0};
  Duration min_rtt_{0};
  double recent_loss_ = 0;
  Bandwidth pacing_rate_;
  RateLimiter bound_ = RateLimiter::kPacing;
};

}  // namespace longhaul::transport
