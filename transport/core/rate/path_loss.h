// What the path loses by itself, l0. Loss is a question to the path, answered by experiment: what is still
// lost while packets leave clearly slower than the path has just delivered is the path's; what is gone then
// was the sender's own.
//
//   experiment   rounds in which every packet left below kLowShare of what was being delivered: DOWN at
//                kExperimentGain of it, and each round that a grant or the application has kept so low
//   short queue  where the queue can be seen, the loss behind a short one: of many packets, so precise, and
//                wrong where something else than a full queue drops. It only refines what experiments allow.
//   everything   the path cannot lose more than is lost at all
//
// Never is more excused than experiments have shown, two standard errors included. An answer that the next
// experiment contradicts is forgotten: at once when less is lost, after three in a row when it is more. Flows
// that share an overload then experiment together, and it ends.
//
// Reads the model of the connection's BBR. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/instant.h"
#include "longhaul/units.h"
#include "transport/core/rate/bbr/bbr_model.h"
#include "transport/core/rate/loss_floor.h"
#include "transport/core/rate/windowed_max.h"

namespace longhaul::transport {

class PathLoss {
 public:
  // A queue below the granularity of timers (RFC 9002 §6.1.2) cannot be distinguished from their lateness.
  static constexpr Duration kTimerSlack = std::chrono::milliseconds(1);
  // An experiment's rate, of what the last round trip has delivered: below it by more than samples scatter,
  // and by more than a flow of several can have taken too much.
  static constexpr double kExperimentGain = 0.75;
  // Up to this share of it a round counts as one: 7 % for a rate that is measured.
  static constexpr double kLowShare = 0.8;
  // Packets: longer runs are a queue's that overflows, and would make any two answers agree.
  static constexpr double kMaxBurst = 10;
  static constexpr double kMaxExcused = 0.5;  // of what was sent: false ACKs double the bandwidth at most

  explicit PathLoss(const BbrModel* model);

  void OnPacketSent();
  // A round trip has ended. lossy: it has lost more than the target. True: an experiment has ended, too.
  bool OnRoundEnd(bool lossy);
  // The event has been taken in full. True when the path has become another: what was learned of it is
  // forgotten.
  bool OnEventEnd();

  // DOWN begins: an experiment, where it has to tell others' overload from the path's loss.
  void OnDown();
  // l0, 0..kMaxExcused: as far as experiments have shown. 0 while there was none.
  double floor() const;
  // An experiment has ended.
  bool known() const { return confirmed_.known(); }
  // An experiment is under way, or one will begin as soon as the state allows it.
  bool asks() const { return asked_ || experiment_; }
  // An experiment is under way: no packet leaves faster than kExperimentGain of reference().
  bool experiment() const { return experiment_; }
  // Whether floor() is refined by what was lost behind a short queue.
  bool IsOfShortQueue() const { return !QueueInvisible() && short_queue_.known(); }
  // The path hardly loses more, 0..1: two standard errors, of bursts where loss comes in bursts. REQUIRES:
  // known().
  double upper() const;
  // The share of what was sent that counts as served although it was lost, when bandwidth is measured.
  double Excused() const;
  double burst() const { return burst_; }  // packets lost in a row, 1..kMaxBurst
  // What the last round trips delivered as the experiment began.
  Bandwidth reference() const { return reference_; }
  // A queue too short to be distinguished from the noise of ACKs.
  bool QueueInvisible() const;
  // Whether all packets of the round met a queue.
  bool QueueSeen(const BbrRounds::Round& round) const;

 private:
  // Round trips over which the longest queue is remembered: from 20 ms on two probes, 1 to 1.5 s apart.
  static constexpr uint64_t kQueueMemoryRounds = 128;
  // Round trips whose largest delivery rate a limited round is compared with.
  static constexpr uint64_t kDeliveredRounds = 8;

  // Those of an experiment's reference(): one round alone may be a burst's.
  static constexpr uint64_t kNewestRounds = 4;

  // What became of the packets that left in one round trip. It counts as soon as the path has delivered more
  // than they asked for: at once in an experiment, one round trip later in STARTUP.
  struct PastRound {
    Bandwidth rate;  // the largest at which one of them left; zero: counted, or none
    ByteCount acked;
    ByteCount lost;
  };

  Bandwidth Newest() const;
  bool IsUnsure() const;
  void LearnBurst();
  void LearnFromExperiment();
  void Begin();
  bool ConfirmsSurprise();
  void StartClock();
  void Conclude();
  // Of what experiments have lost, what does not follow the sender's rate.
  double Inelastic() const;

  const BbrModel& m_;
  LossFloor confirmed_;         // what experiments have shown
  SmallestLossFloor smallest_;  // the same, where the queue cannot be seen
  LossFloor fresh_;             // the one under way
  LossFloor surprise_;          // the least of those that have shown more than was known
  LossFloor short_queue_;
  LossFloor everything_;
  LossFloor normal_;  // of CRUISE, since the answer was last replaced
  WindowedMax<Bandwidth, uint64_t> delivered_{kDeliveredRounds};
  WindowedMax<Bandwidth, uint64_t> newest_{kNewestRounds};
  uint64_t newest_rounds_ = 0;
  Bandwidth reference_;
  bool experiment_ = false;
  uint64_t experiment_round_ = 0;  // in which it began
  Instant experiment_at_;          // likewise
  bool asked_ = false;
  uint64_t answers_ = 0;
  int surprises_ = 0;            // in a row
  uint64_t answered_round_ = 0;  // when the last one ended
  Instant answered_at_;          // likewise
  Bandwidth sending_rate_;       // the largest at which a packet of the round under way left
  bool sent_in_cruise_ = false;
  bool acked_in_cruise_ = false;
  Bandwidth acked_rate_;  // of the round before, which this round acknowledges
  std::array<PastRound, kDeliveredRounds> past_{};
  size_t past_rounds_ = 0;
  double burst_ = 1;
  int bursty_rounds_ = 0;
  Duration last_rtt_{0};
  Duration known_min_rtt_{0};
  WindowedMax<int64_t, uint64_t> longest_queue_{kQueueMemoryRounds};  // ns above the minimum RTT
};

}  // namespace longhaul::transport
