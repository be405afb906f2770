#include "tests/sim/rate/bottleneck.h"

#include <algorithm>

namespace longhaul::transport::sim {
namespace {

// A queue of less than a few datagrams exists nowhere.
constexpr ByteCount kMinBuffer = kDatagram * int64_t{4};
// Streams of chance: one part's draws do not shift another's.
constexpr uint64_t kDataLoss = 1;
constexpr uint64_t kAckLoss = 2;

}  // namespace

Bottleneck::Bottleneck(const LinkOptions& options, Random random)
    : options_(options),
      random_(random),
      loss_(options.loss, options.mean_burst, Random(random).Fork(kDataLoss)),
      ack_loss_(options.ack_loss.value_or(options.loss), 0, Random(random).Fork(kAckLoss)),
      policer_(options.policer_rate.bytes_per_second(), static_cast<double>(options.policer_burst.value())) {}

Bottleneck::Verdict Bottleneck::Offer(Instant now, ByteCount bytes) {
  Verdict verdict;
  if (!options_.policer_rate.IsZero() && !policer_.Take(now, static_cast<double>(bytes.value()))) {
    verdict.fate = Fate::kPolicerDrop;
    return verdict;
  }
  const Duration waiting = Waiting(now);
  if (options_.rate * waiting + bytes > Buffer()) {
    verdict.fate = Fate::kQueueDrop;
    return verdict;
  }
  wait_sum_ += waiting;
  wait_min_ = std::min(wait_min_, waiting);
  ++accepted_;
  free_ = std::max(free_, now) + options_.rate.TransferTime(bytes);
  verdict.leaves = free_;
  verdict.marked = waiting > options_.mark_above;
  if (down_ || loss_.Next()) {
    verdict.fate = Fate::kLost;
    return verdict;
  }
  verdict.delay = Delay(verdict.leaves);
  return verdict;
}

ByteCount Bottleneck::Buffer() const {
  const bool in_bytes = options_.buffer.value() > 0;
  return std::max(in_bytes ? options_.buffer : options_.rate * options_.rtt * options_.buffer_bdp,
                  kMinBuffer);
}

Duration Bottleneck::Delay(Instant leaves) {
  Duration delay = options_.rtt / 2 + Jitter(leaves);
  if (options_.jitter_in_order) {
    latest_ = std::max(latest_, leaves + delay);
    delay = latest_ - leaves;
  }
  if (options_.reorder > 0 && random_.Chance(options_.reorder)) delay += options_.reorder_delay;
  return delay;
}

Duration Bottleneck::Jitter(Instant leaves) {
  if (options_.jitter.count() <= 0) return Duration(0);
  if (options_.jitter_in_order && leaves < jitter_until_) return jitter_;
  jitter_ = Duration(static_cast<int64_t>(random_.Below(static_cast<uint64_t>(options_.jitter.count()))));
  jitter_until_ = leaves + options_.jitter;
  return jitter_;
}

Instant Bottleneck::AckArrival(Instant time) const {
  if (options_.ack_batch.count() <= 0) return time;
  const int64_t batch = options_.ack_batch.count();
  return Instant::FromNanoseconds((time.nanoseconds() + batch - 1) / batch * batch);
}

void Bottleneck::SetRate(Bandwidth rate, Instant now) {
  if (free_ > now) free_ = now + (free_ - now) * options_.rate.bits_per_second() / rate.bits_per_second();
  options_.rate = rate;
}

void Bottleneck::SetLoss(double loss, double mean_burst) {
  ++loss_epoch_;
  loss_ = wan::LossProcess(loss, mean_burst, Random(random_).Fork(kDataLoss + 2 * loss_epoch_));
  if (!options_.ack_loss)
    ack_loss_ = wan::LossProcess(loss, 0, Random(random_).Fork(kAckLoss + 2 * loss_epoch_));
  options_.loss = loss;
  options_.mean_burst = mean_burst;
}

void Bottleneck::SetReorder(double share, Duration delay) {
  options_.reorder = share;
  options_.reorder_delay = delay;
}

void Bottleneck::ResetStats() {
  wait_sum_ = Duration(0);
  wait_min_ = Duration::max();
  accepted_ = 0;
}

}  // namespace longhaul::transport::sim
