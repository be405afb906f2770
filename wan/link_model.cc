#include "wan/link_model.h"

#include <algorithm>

#include "base/check.h"

namespace longhaul::wan {

bool GilbertElliott::Possible(double average_loss, double mean_burst) {
  if (!(average_loss >= 0 && average_loss < 1) || !(mean_burst >= 1)) return false;
  return average_loss / (1 - average_loss) <= mean_burst;  // enter_bad <= 1
}

GilbertElliott GilbertElliott::From(double average_loss, double mean_burst) {
  LH_CHECK(Possible(average_loss, mean_burst));
  const double leave = 1 / mean_burst;
  return {.enter_bad = leave * average_loss / (1 - average_loss), .leave_bad = leave};
}

LossProcess::LossProcess(double average_loss, double mean_burst, Random random)
    : average_loss_(average_loss), bursty_(mean_burst > 0), random_(random) {
  if (!bursty_) return;
  chain_ = GilbertElliott::From(average_loss, mean_burst);
  bad_ = random_.Chance(average_loss);
}

bool LossProcess::Next() {
  if (!bursty_) return average_loss_ > 0 && random_.Chance(average_loss_);
  const bool lost = bad_;
  bad_ = bad_ ? !random_.Chance(chain_.leave_bad) : random_.Chance(chain_.enter_bad);
  return lost;
}

LinkModel::LinkModel(const LinkOptions& options, Random random)
    : options_(options),
      loss_random_(random.Fork(1)),
      random_(random.Fork(2)),
      loss_(options.loss, options.loss_burst, loss_random_.Fork(1)) {
  LH_CHECK(options.Validate().ok());
}

void LinkModel::SetOptions(const LinkOptions& options) {
  LH_CHECK(options.Validate().ok());
  if (options.loss != options_.loss || options.loss_burst != options_.loss_burst) {
    loss_ = LossProcess(options.loss, options.loss_burst, loss_random_.Fork(1));
  }
  // What is queued was promised at the old rate; only the sub-nanosecond rest has the old unit.
  busy_remainder_ = 0;
  options_ = options;
}

Duration LinkModel::QueueDelay(Instant now) const { return std::max(busy_until_ - now, Duration::zero()); }

bool LinkModel::InOutage(Instant now) const {
  const Duration t = now - Instant();
  return std::ranges::any_of(options_.outages, [t](const Outage& o) { return o.from <= t && t < o.to; });
}

bool LinkModel::HasRoom(Instant now, ByteCount bytes) const {
  const Duration wait = QueueDelay(now);
  // An idle link takes any packet, or a bound below one packet would cut the link.
  if (options_.rate.IsZero() || wait == Duration::zero()) return true;
  const Duration bound = options_.queue_bytes.value() > 0 ? options_.rate.TransferTime(options_.queue_bytes)
                                                          : options_.queue_time;
  return wait + options_.rate.TransferTime(bytes) <= bound;
}

DropReason LinkModel::Admit(Instant now, ByteCount bytes) {
  if (InOutage(now)) return DropReason::kOutage;
  if (options_.mtu.value() > 0 && bytes > options_.mtu) return DropReason::kMtu;
  const bool lost = loss_.Next();
  counters_.loss_bursts += lost && !in_loss_burst_;
  in_loss_burst_ = lost;
  if (lost) return DropReason::kLoss;
  return HasRoom(now, bytes) ? DropReason::kNone : DropReason::kQueue;
}

Instant LinkModel::Serve(Instant now, ByteCount bytes) {
  if (options_.rate.IsZero())
    return std::max(now, busy_until_);  // never before what an earlier rate promised
  if (busy_until_ <= now) {
    busy_until_ = now;
    busy_remainder_ = 0;
  }
  counters_.max_queue_delay = std::max(counters_.max_queue_delay, QueueDelay(now));
  const int64_t rate = options_.rate.bits_per_second();
  const int64_t work = bytes.value() * 8'000'000'000 + busy_remainder_;
  busy_remainder_ = work % rate;
  return busy_until_ += Duration(work / rate);
}

Delivery LinkModel::Deliver(Instant departure, ByteCount bytes) {
  const bool skips_delay = options_.reorder > 0 && random_.Chance(options_.reorder);
  Duration delay = skips_delay ? Duration::zero() : options_.delay;
  if (options_.jitter.count() > 0 && !skips_delay) {
    const uint64_t width = 2 * static_cast<uint64_t>(options_.jitter.count()) + 1;
    delay += Duration(static_cast<int64_t>(random_.Below(width))) - options_.jitter;
  }
  Delivery delivery{.time = departure + delay};
  const bool may_overtake = skips_delay || options_.jitter_reorders;
  if (!may_overtake) delivery.time = std::max(delivery.time, latest_arrival_);
  counters_.reordered += delivery.time < latest_arrival_;
  latest_arrival_ = std::max(latest_arrival_, delivery.time);

  delivery.corrupted = options_.corrupt > 0 && random_.Chance(options_.corrupt);
  if (delivery.corrupted) {
    delivery.corrupt_bit = random_.Below(8 * static_cast<uint64_t>(bytes.value()));
    ++counters_.corrupted;
  }
  ++counters_.packets_delivered;
  counters_.bytes_delivered += static_cast<uint64_t>(bytes.value());
  return delivery;
}

void LinkModel::CountDrop(DropReason reason, ByteCount bytes) {
  const auto size = static_cast<uint64_t>(bytes.value());
  switch (reason) {
    case DropReason::kNone:
      return;
    case DropReason::kLoss:
      ++counters_.dropped_loss, counters_.dropped_loss_bytes += size;
      return;
    case DropReason::kQueue:
      ++counters_.dropped_queue, counters_.dropped_queue_bytes += size;
      return;
    case DropReason::kOutage:
      ++counters_.dropped_outage, counters_.dropped_outage_bytes += size;
      return;
    case DropReason::kMtu:
      ++counters_.dropped_mtu, counters_.dropped_mtu_bytes += size;
      return;
  }
}

Verdict LinkModel::Decide(Instant now, ByteCount bytes) {
  LH_CHECK_OP(bytes.value(), >, 0);
  LH_CHECK_OP(bytes.value(), <, 1'000'000'000);  // so that the service time fits 64 bits
  now = latest_now_ = std::max(now, latest_now_);
  ++counters_.packets_in;
  counters_.bytes_in += static_cast<uint64_t>(bytes.value());

  Verdict verdict;
  verdict.dropped = Admit(now, bytes);
  if (verdict.dropped != DropReason::kNone) {
    CountDrop(verdict.dropped, bytes);
    return verdict;
  }
  verdict.slots[verdict.count++] = Deliver(Serve(now, bytes), bytes);
  if (options_.duplicate > 0 && random_.Chance(options_.duplicate) && HasRoom(now, bytes)) {
    verdict.slots[verdict.count] = Deliver(Serve(now, bytes), bytes);
    verdict.slots[verdict.count++].copy = true;
    ++counters_.duplicated;
    counters_.duplicated_bytes += static_cast<uint64_t>(bytes.value());
  }
  return verdict;
}

}  // namespace longhaul::wan
