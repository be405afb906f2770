// The filters of the BBR model: bandwidth, minimum RTT, ACK aggregation, full pipe (draft-ietf-ccwg-bbr
// §5.3.1, §5.5). Each takes samples and holds one estimate; the state machine is elsewhere.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/instant.h"
#include "longhaul/units.h"
#include "transport/core/rate/windowed_max.h"

namespace longhaul::transport {

// BBR.max_bw: the largest sample of this PROBE_BW cycle and the last. It is never more than what was
// delivered accounts for, whatever a sample took for served when it came.
class MaxBwFilter {
 public:
  // served: of the sample, in sent bytes; delivered: the same in delivered ones. A limited sample counts only
  // when it raises the maximum. Zero: no sample.
  void Update(Bandwidth served, Bandwidth delivered, bool limited);
  // So much of what is sent is lost by the path, 0..1, as far as is known now: max_bw() is at most the
  // largest delivery rate over the rest.
  void SetExcused(double share);
  // A cycle ends. A cycle without a sample says nothing about the path and does not end.
  void Advance();
  // The path is known to carry this much now; older samples are void.
  void Replace(Bandwidth served, Bandwidth delivered);
  Bandwidth max_bw() const { return max_bw_; }
  // In delivered bytes.
  Bandwidth max_delivered() const { return std::max(slots_[0].delivered, slots_[1].delivered); }

 private:
  struct Slot {
    Bandwidth served;
    Bandwidth delivered;
  };
  void Bound();

  std::array<Slot, 2> slots_{};  // this cycle and the last
  size_t slot_ = 0;
  double excused_ = 0;
  Bandwidth max_bw_;
};

// BBR.min_rtt over 10 s, from BBR.probe_rtt_min_delay over the interval of PROBE_RTT.
class MinRttFilter {
 public:
  static constexpr Duration kFilterLen = std::chrono::seconds(10);  // the draft's MinRTTFilterLen

  // rtt: zero when the event has no sample. interval: ProbeRTTInterval. met_again: the sample counts as the
  // minimum met once more, so that PROBE_RTT is not needed.
  void Update(Instant now, Duration rtt, Duration interval, bool met_again);
  // The samples before are none: PROBE_RTT comes when it would have come.
  void Void(Instant now, Duration rtt);
  // The samples before are another path's, and this one met no queue: as after a PROBE_RTT.
  void Replace(Instant now, Duration rtt);
  // PROBE_RTT has measured.
  void Refresh(Instant now);

  bool known() const { return min_rtt_ != Duration::max(); }
  Duration min_rtt() const { return min_rtt_; }                          // Duration::max() = none yet
  Duration probe_rtt_min_delay() const { return probe_rtt_min_delay_; }  // likewise
  Instant probe_rtt_min_stamp() const { return probe_rtt_min_stamp_; }
  bool probe_rtt_expired() const { return expired_; }

 private:
  Duration min_rtt_ = Duration::max();
  Instant min_rtt_stamp_;
  Duration probe_rtt_min_delay_ = Duration::max();
  Instant probe_rtt_min_stamp_;
  bool expired_ = false;
};

// BBR.extra_acked: how much more than bandwidth times time an interval's ACKs brought.
class AckAggregation {
 public:
  static constexpr uint64_t kRounds = 10;  // the draft's ExtraAckedFilterLen, round trips
  // The draft bounds extra_acked by cwnd alone, which extra_acked itself raises: a sender that stalls now and
  // then would grow without end. ACKs come together for milliseconds (Wi-Fi, cable), so 100 ms bound nothing
  // real.
  static constexpr Duration kMaxTime = std::chrono::milliseconds(100);

  void Update(Instant now, uint64_t round, Bandwidth bw, ByteCount newly_acked, ByteCount cwnd,
              uint64_t rounds);
  void Restart(Instant now) { interval_start_ = now; }
  ByteCount extra_acked() const { return ByteCount(filter_.Best()); }

 private:
  WindowedMax<int64_t, uint64_t> filter_{kRounds};
  Instant interval_start_;
  ByteCount delivered_;
};

// Whether the delivery rate has stopped to grow.
class FullPipe {
 public:
  static constexpr int kRounds = 3;        // the draft's: round trips without growth
  static constexpr double kGrowth = 1.25;  // the draft's: less than a quarter more is a plateau

  // Looks for a plateau anew, from `bw`.
  void Restart(Bandwidth bw = Bandwidth::Zero());
  // The sample of a round trip that has started.
  void OnRound(Bandwidth sample);
  // The pipe is full for another reason: STARTUP has lost too much.
  void SetReached() { now_ = reached_ = true; }
  // That loss was spurious.
  void ClearReached() { reached_ = false; }

  bool reached() const { return reached_; }  // BBR.full_bw_reached: STARTUP is over
  bool now() const { return now_; }          // BBR.full_bw_now: since the last restart
  int count() const { return count_; }       // BBR.full_bw_count: rounds without growth
  Bandwidth bw() const { return bw_; }       // BBR.full_bw: since then

 private:
  bool reached_ = false;
  bool now_ = false;
  Bandwidth bw_;
  int count_ = 0;
};

}  // namespace longhaul::transport
