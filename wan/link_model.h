// Which packets a link loses: independently, or in bursts.
//
//   Bernoulli         every packet with the same probability
//   Gilbert-Elliott   two states; in the good one nothing is lost, in the bad one everything is
//                     (netem's `loss gemodel p r` with 1-h = 100 % and 1-k = 0 %)
//
// A user thinks in the average loss L and the mean burst length B, so the state machine is derived from them:
//   leave the bad state   r = 1 / B                 (bursts are geometric with mean B)
//   enter the bad state   p = r * L / (1 - L)       (so that the share of the bad state, p / (p + r), is L)
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/instant.h"
#include "base/random.h"
#include "longhaul/units.h"
#include "wan/link_options.h"

namespace longhaul::wan {

// The transition probabilities per packet of a Gilbert-Elliott process.
struct GilbertElliott {
  double enter_bad = 0;
  double leave_bad = 1;

  // REQUIRES: Possible(average_loss, mean_burst).
  static GilbertElliott From(double average_loss, double mean_burst);
  // Not every pair exists: bursts of mean 1 cannot lose more than half, since two bursts need a gap.
  static bool Possible(double average_loss, double mean_burst);
};

class LossProcess {
 public:
  // average_loss in 0..1; mean_burst 0 means Bernoulli, otherwise >= 1 packets.
  // The first state is drawn from the stationary distribution, so a short run is not biased.
  LossProcess(double average_loss, double mean_burst, Random random);

  // Whether the next packet is lost. Time plays no role: a burst is counted in packets.
  bool Next();

 private:
  double average_loss_;
  bool bursty_;
  GilbertElliott chain_;
  Random random_;
  bool bad_ = false;
};

// One direction of a link, as a pure function of time and chance.
//
//   packet -> outage? -> too large? -> lost? -> drop-tail queue served at the rate -> delay -> delivered
//                                               full?                            (jitter, reorder)
//
// The model holds no packet. It computes at the entrance when a packet leaves, which is exact for a
// first-in-first-out queue with a constant rate, and the caller keeps the bytes until then. Its counters are
// the oracle for "what did the network do": no other place decides the fate of a packet.
//
// Not thread-safe. Instants must not go back; an earlier one counts as the latest seen.
enum class DropReason : uint8_t { kNone, kLoss, kQueue, kOutage, kMtu };

// One arrival at the far end.
struct Delivery {
  Instant time;
  bool corrupted = false;
  bool copy = false;         // made by `duplicate`
  uint64_t corrupt_bit = 0;  // which bit to flip when corrupted: 0 .. 8 * bytes - 1
};

// The fate of one packet: dropped for a reason, or delivered once or twice.
struct Verdict {
  DropReason dropped = DropReason::kNone;
  std::array<Delivery, 2> slots{};
  size_t count = 0;

  std::span<const Delivery> deliveries() const { return {slots.data(), count}; }
};

// Since the model was made. packets_delivered == packets_in - all drops + duplicated, and so for bytes.
struct LinkCounters {
  uint64_t packets_in = 0;
  uint64_t bytes_in = 0;
  uint64_t packets_delivered = 0;  // includes copies; counted at the decision, not at the arrival
  uint64_t bytes_delivered = 0;
  uint64_t dropped_loss = 0;
  uint64_t dropped_loss_bytes = 0;
  uint64_t dropped_queue = 0;
  uint64_t dropped_queue_bytes = 0;
  uint64_t dropped_outage = 0;
  uint64_t dropped_outage_bytes = 0;
  uint64_t dropped_mtu = 0;
  uint64_t dropped_mtu_bytes = 0;
  uint64_t duplicated = 0;  // copies delivered in addition
  uint64_t duplicated_bytes = 0;
  uint64_t reordered = 0;  // will arrive before a packet that entered earlier
  uint64_t corrupted = 0;
  uint64_t loss_bursts = 0;     // runs of consecutive packets dropped by loss
  Duration max_queue_delay{0};  // the longest wait of a packet that was let in

  bool operator==(const LinkCounters&) const = default;
  uint64_t dropped() const { return dropped_loss + dropped_queue + dropped_outage + dropped_mtu; }
};

class LinkModel {
 public:
  // REQUIRES: options.Validate().ok().
  LinkModel(const LinkOptions& options, Random random);

  // Decides what happens to a packet of `bytes` (headers included, > 0) that enters at `now`.
  Verdict Decide(Instant now, ByteCount bytes);

  // The weather changes: the queue's content, what is in flight and the counters stay.
  // REQUIRES: options.Validate().ok().
  void SetOptions(const LinkOptions& options);

  const LinkOptions& options() const { return options_; }
  const LinkCounters& counters() const { return counters_; }
  // How long a packet that enters now would wait for its service to begin.
  Duration QueueDelay(Instant now) const;

 private:
  bool InOutage(Instant now) const;
  DropReason Admit(Instant now, ByteCount bytes);
  bool HasRoom(Instant now, ByteCount bytes) const;
  // Serves the packet behind what is queued and returns when its last bit leaves.
  Instant Serve(Instant now, ByteCount bytes);
  Delivery Deliver(Instant departure, ByteCount bytes);
  void CountDrop(DropReason reason, ByteCount bytes);

  LinkOptions options_;
  // Separate streams, so that switching on jitter does not change which packets are lost.
  Random loss_random_;
  Random random_;
  LossProcess loss_;
  Instant latest_now_;
  Instant busy_until_;          // when the queue is empty again
  int64_t busy_remainder_ = 0;  // what is missing to a nanosecond, in 1/rate ns: no drift at any rate
  Instant latest_arrival_;
  bool in_loss_burst_ = false;
  LinkCounters counters_;
};

}  // namespace longhaul::wan
