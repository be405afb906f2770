// What BBR knows of the path and of its own progress (draft-ietf-ccwg-bbr). The names are the draft's without
// its prefix "BBR.". Class Bbr moves it, a BbrPolicy judges by it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/instant.h"
#include "base/random.h"
#include "longhaul/units.h"
#include "transport/core/rate/bbr/bbr_filters.h"
#include "transport/core/rate/rate_controller.h"

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

// BBR.ack_phase: to which part of a bandwidth probe the ACKs now arriving belong.
enum class AckPhase : uint8_t { kInit, kRefilling, kProbeStarting, kProbeFeedback, kProbeStopping };

// The event at hand; what it does not bring stays from the last.
struct BbrEvent {
  Instant now;
  RateSample rs;
  Bandwidth sample_rate;       // of rs by the policy; zero when there is none
  Bandwidth delivered_rate;    // the same in delivered bytes
  bool sample_limited = true;  // RS.is_app_limited, or no sample at all
  ByteCount newly_acked;
  ByteCount newly_lost;  // CE marks counted, drops of the peer's host not
  Duration rtt{0};       // RS.rtt; zero when there is none
  // Of rtt, what the path and its queue took, without the peer's ACK delay. At a low rate the delay is all of
  // the RTT of a short path: taken for a queue, it would keep the rate low.
  Duration path_rtt{0};
  bool void_min_rtt = false;
  Duration smoothed_rtt{0};
  ByteCount delivered;  // C.delivered
  ByteCount in_flight;  // C.inflight
};

// Packet-timed round trips and what happened in each.
class BbrRounds {
 public:
  struct Round {
    ByteCount acked;
    ByteCount lost;       // CE marks counted
    ByteCount marked;     // of `lost`
    int loss_events = 0;  // runs of consecutive packets
    Duration min_rtt = Duration::max();
    Bandwidth bw;            // largest sample
    Bandwidth delivered_bw;  // the same in delivered bytes
    bool limited = true;     // no sample but application-limited ones
    Instant start;
    ByteCount Total() const { return acked + lost; }
    double Loss() const { return lost / Total(); }  // REQUIRES: Total() > 0
  };

  void OnPacketSent(ByteCount in_flight, ByteCount cwnd);
  // Of `lost`, what the peer's host did not drop. The drop may be reported before the packet is declared lost
  // or after it; whichever comes first waits for the other.
  ByteCount ExcuseHostDrops(ByteCount lost, ByteCount dropped);
  void CountLoss(ByteCount lost, ByteCount marked);
  void CountLostPacket(uint64_t number);
  // Whether the event's ACK starts a round trip; then last() is the one that has ended.
  bool Advance(const BbrEvent& event);
  // Counts the event in the round under way.
  void Count(const BbrEvent& event);
  // The next round trip starts with what is sent from now on.
  void StartRound(ByteCount delivered) { next_round_delivered_ = delivered; }

  uint64_t count() const { return count_; }
  bool round_start() const { return round_start_; }  // the event at hand starts a round trip
  const Round& current() const { return current_; }
  const Round& last() const { return last_; }
  bool cwnd_limited() const { return cwnd_limited_; }  // C.is_cwnd_limited: in this round or the one before
  double recent_loss() const { return recent_loss_; }  // smoothed over rounds, 0..1

 private:
  uint64_t count_ = 0;
  bool round_start_ = false;
  ByteCount next_round_delivered_;
  Round current_;
  Round last_;
  uint64_t last_lost_number_ = 0;
  ByteCount host_drop_credit_;  // dropped by the peer's host and not yet declared lost
  bool cwnd_limited_ = false;
  bool cwnd_limited_in_round_ = false;
  double recent_loss_ = 0;
};

// How much may be sent and be in flight, from loss: for long from probing, for short from the rest (§5.5.10),
// and what a spurious loss brings back (§5.5.11).
struct BbrBounds {
  static constexpr double kBeta = 0.7;                      // the draft's Beta: what a bound keeps at a loss
  static constexpr ByteCount kInfinite = ByteCount::Max();  // no bound

  Bandwidth bw_shortterm = Bandwidth::Max();  // Max() = none
  ByteCount inflight_shortterm = kInfinite;
  ByteCount inflight_longterm = kInfinite;
  // Of the latest round trip.
  Bandwidth bw_latest;
  ByteCount inflight_latest;
  bool loss_in_round = false;
  bool loss_round_start = false;
  ByteCount loss_round_delivered;

  // Before the last loss episode.
  struct Undo {
    std::optional<BbrState> state;
    Bandwidth bw_shortterm = Bandwidth::Max();
    ByteCount inflight_shortterm = kInfinite;
    ByteCount inflight_longterm = kInfinite;
    uint64_t round = 0;  // in which it was saved
    ByteCount lost;      // declared lost in the episode and not known to be spurious
  } undo;

  void UpdateLatestDeliverySignals(const BbrEvent& event);
  void AdvanceLatestDeliverySignals(const BbrEvent& event);
  void ResetCongestionSignals();
  void ResetShortTermModel();
  // Gives the short-term bounds a value to be lowered from.
  void InitLowerBounds(Bandwidth max_bw, ByteCount cwnd);
  void Save(uint64_t round);
  // Back to what was saved, where that is more.
  void Restore();
};

// The cycle of PROBE_BW.
struct ProbeBwCycle {
  AckPhase ack_phase = AckPhase::kInit;
  bool bw_probe_sample = false;
  bool prev_probe_too_high = false;
  bool prev_probe_precautionary = false;
  ByteCount bw_probe_up_acked;
  ByteCount probe_up_acked_per_inc = BbrBounds::kInfinite;
  int bw_probe_up_rounds = 0;
  uint64_t rounds_since_probe_up = 0;
  Duration bw_probe_wait{0};
  uint64_t rounds_in_down = 0;  // round trips ended since DOWN began
  Instant cycle_stamp;

  bool HasElapsed(Instant now, Duration interval) const { return now > cycle_stamp + interval; }
  void RaiseInflightLongtermSlope(ByteCount cwnd, ByteCount max_datagram);
};

struct BbrModel {
  static constexpr int64_t kMinPipePackets = 4;  // the draft's MinPipeCwnd: delayed ACKs do not stall it
  static constexpr int64_t kInitialCwndPackets =
      32;  // STARTUP is log2(32 / 10) = 1.7 round trips shorter than from RFC 9002's 10
  static constexpr double kDefaultCwndGain = 2.0;  // the draft's DefaultCwndGain: room for delayed ACKs

  BbrModel(const RateOptions& rate_options, Random chance) : options(rate_options), random(chance) {}

  RateOptions options;
  Random random;
  BbrState state = BbrState::kStartup;
  double pacing_gain = 1;
  double cwnd_gain = kDefaultCwndGain;

  BbrEvent event;
  BbrRounds rounds;
  MaxBwFilter max_bw_filter;
  MinRttFilter min_rtt_filter;
  AckAggregation aggregation;
  FullPipe full_pipe;
  BbrBounds bounds;
  ProbeBwCycle cycle;
  bool idle_restart = false;
  uint64_t drain_start_round = 0;

  // What follows from it (§5.6).
  Bandwidth bw;            // min(max_bw, bw_shortterm)
  Bandwidth pacing_rate;   // of the model alone
  Bandwidth initial_rate;  // before the first sample, and STARTUP's least
  Bandwidth bounded_rate;  // within grant, cap and floor
  RateLimiter rate_bound = RateLimiter::kPacing;
  Bandwidth grant;  // zero = none
  ByteCount send_quantum;
  ByteCount cwnd;
  ByteCount prior_cwnd;

  Bandwidth max_bw() const { return max_bw_filter.max_bw(); }
  bool has_min_rtt() const { return min_rtt_filter.known(); }
  Duration min_rtt() const { return min_rtt_filter.min_rtt(); }  // Duration::max() = none yet
  bool IsInProbeBw() const { return state >= BbrState::kProbeBwDown && state <= BbrState::kProbeBwUp; }
  bool IsProbingBw() const {
    return state == BbrState::kStartup || state == BbrState::kProbeBwRefill || state == BbrState::kProbeBwUp;
  }
  ByteCount Packets(int64_t n) const { return options.max_datagram * n; }
  // Smoothed RTT above the minimum; zero while the minimum is not known.
  Duration QueueDelay() const;
  ByteCount Bdp() const;
  ByteCount QuantizationBudget(ByteCount inflight_cap) const;
  // gain * BDP, raised to what hosts' bursts and four packets need.
  ByteCount Inflight(double gain) const { return QuantizationBudget(Bdp() * gain); }
  void InitLowerBounds() { bounds.InitLowerBounds(max_bw(), cwnd); }
  void StartRound() { rounds.StartRound(event.delivered); }
  void SaveCwnd();
  void RestoreCwnd() { cwnd = cwnd < prior_cwnd ? prior_cwnd : cwnd; }
};

}  // namespace longhaul::transport
