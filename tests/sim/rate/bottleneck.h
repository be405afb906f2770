// The one queue that all flows share, with what the path beyond it does to a packet.
//
//   policer --> [ queue | rate ] --> random loss
//
// A packet's fate and the time it leaves the queue are known when it comes: the queue is first in, first out.
#pragma once

#include <optional>

#include "base/random.h"
#include "base/token_bucket.h"
#include "tests/sim/rate/rate_options.h"
#include "wan/link_model.h"

namespace longhaul::transport::sim {

class Bottleneck {
 public:
  enum class Fate : uint8_t { kArrives, kPolicerDrop, kQueueDrop, kLost };
  struct Verdict {
    Fate fate = Fate::kArrives;
    Instant leaves;     // the queue
    Duration delay{0};  // from there to the receiver, without the flow's own share
    bool marked = false;
  };

  Bottleneck(const LinkOptions& options, Random random);

  // A datagram comes.
  Verdict Offer(Instant now, ByteCount bytes = kDatagram);
  // Whether the next ACK is lost.
  bool LosesAck() { return down_ || ack_loss_.Next(); }
  // When an ACK that would come at `time` comes, since ACKs may be batched.
  Instant AckArrival(Instant time) const;
  bool HostDrops() { return options_.host_drop > 0 && random_.Chance(options_.host_drop); }

  void SetRate(Bandwidth rate, Instant now);
  void SetRtt(Duration rtt) { options_.rtt = rtt; }
  void SetLoss(double loss, double mean_burst);
  void SetAckBatch(Duration batch) { options_.ack_batch = batch; }
  void SetReorder(double share, Duration delay);
  // Nothing passes, in neither direction.
  void SetDown(bool down) { down_ = down; }

  const LinkOptions& options() const { return options_; }
  Duration Waiting(Instant now) const { return free_ > now ? free_ - now : Duration(0); }

  // Of the time that accepted packets waited in the queue.
  void ResetStats();
  Duration MeanQueue() const { return accepted_ == 0 ? Duration(0) : wait_sum_ / accepted_; }
  Duration MinQueue() const { return accepted_ == 0 ? Duration(0) : wait_min_; }

 private:
  ByteCount Buffer() const;
  Duration Delay(Instant leaves);
  Duration Jitter(Instant leaves);

  LinkOptions options_;
  Random random_;
  uint64_t loss_epoch_ = 0;  // of SetLoss
  wan::LossProcess loss_;
  wan::LossProcess ack_loss_;
  bool down_ = false;
  Instant free_;  // when the last accepted packet has left the queue
  // In order: the present extra delay, until when it holds, and the latest arrival.
  Duration jitter_{0};
  Instant jitter_until_;
  Instant latest_;
  TokenBucket policer_;  // of bytes
  Duration wait_sum_{0};
  Duration wait_min_ = Duration::max();
  int64_t accepted_ = 0;
};

}  // namespace longhaul::transport::sim
