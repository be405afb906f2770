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

#include "transport/core/rate/hystart.h"
#include "transport/core/rate/rate_controller.h"

namespace longhaul::transport {

class Cubic : public RateController {
 public:
  static constexpr double kC = 0.4;     // datagrams per second cubed
  static constexpr double kBeta = 0.7;  // multiplicative decrease
  static constexpr double kAlpha =
      3 * (1 - kBeta) / (1 + kBeta);                // additive increase of the Reno-friendly region
  static constexpr int64_t kInitialDatagrams = 10;  // RFC 9002 §7.2
  static constexpr int64_t kMinDatagrams = 2;
  static constexpr double kSlowStartPacing = 2.0;
  static constexpr double kPacing = 1.25;

  explicit Cubic(const RateOptions& options);

  void OnPacketSent(Instant now, ByteCount bytes, ByteCount bytes_in_flight, bool app_limited) override;
  void OnCongestionEvent(const CongestionEvent& event) override;
  void OnWindowStart(Instant) override {}  // the window is what it is; idling has not aged it
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
