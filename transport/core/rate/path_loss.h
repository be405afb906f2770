// What the path loses by itself, l0, as the target-loss policy measures it in two ways. While the queue can
// be seen, the loss in a short queue is the path's. Where it cannot, what DOWN has lost stands in; other
// flows' overload can be in that, so it is excused in part only.
//
// Reads the model of the connection's BBR. Not thread-safe.
#pragma once

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

  explicit PathLoss(const BbrModel* model);

  void OnPacketSent();
  // A round trip has ended.
  void OnRoundEnd();
  // The event has been taken in full. True when the path has become another: what was learned of it is
  // forgotten.
  bool OnEventEnd();

  // l0, 0..kMaxExcused; 0 while it is not known.
  double floor() const;
  bool known() const { return IsOfShortQueue() || low_rate_.known(); }
  // Whether floor() is measured where the queue can be seen.
  bool IsOfShortQueue() const { return !QueueInvisible() && short_queue_.known(); }
  // Whether floor() rests on a whole measurement of either kind.
  bool IsSolid() const { return IsOfShortQueue() || low_rate_.solid(); }
  // Standard deviation of floor() by chance; 0 where many packets stand behind it.
  double deviation() const { return IsOfShortQueue() ? 0 : low_rate_.deviation(); }
  // The path hardly loses more, 0..1. REQUIRES: IsOfShortQueue().
  double upper() const { return short_queue_.upper(); }
  // The share of what was sent that counts as served although it was lost, when bandwidth is measured.
  double Excused() const;
  double mean_burst() const { return mean_burst_; }  // packets lost in a row, >= 1
  // A queue too short to be distinguished from the noise of ACKs.
  bool QueueInvisible() const;
  // Whether all packets of the round met a queue.
  bool QueueSeen(const BbrRounds::Round& round) const;
  // This DOWN has measured enough.
  bool MeasuredInDown() const;

 private:
  // Round trips over which the longest queue is remembered: from 20 ms on two probes, 1 to 1.5 s apart.
  static constexpr uint64_t kQueueMemoryRounds = 128;

  void LearnBurst();
  void LearnLowRateFloor();

  const BbrModel& m_;
  LossFloor short_queue_;
  SmallestLossFloor low_rate_;      // in rounds sent below the bandwidth
  ByteCount low_rate_bytes_;        // measured in this DOWN
  bool round_sent_low_ = false;     // every packet of the round under way left below the bandwidth
  bool previous_sent_low_ = false;  // those of the round before, which this round acknowledges
  double mean_burst_ = 1;
  Duration last_rtt_{0};
  Duration known_min_rtt_{0};
  WindowedMax<int64_t, uint64_t> longest_queue_{kQueueMemoryRounds};  // ns above the minimum RTT
};

}  // namespace longhaul::transport
