#include "transport/udp/fault_injector.h"

#include <algorithm>

namespace longhaul::udp {
namespace {

// Enough for the datagrams of 75 ms at 200 Mbit/s; more are returned to the allocator.
constexpr size_t kMaxSpareBuffers = 2048;

bool Later(const FaultyDirection::Datagram& a, const FaultyDirection::Datagram& b) {
  return a.due != b.due ? a.due > b.due : a.order > b.order;
}

// So that a flood of tiny datagrams is bounded too.
size_t Footprint(size_t bytes) { return bytes + sizeof(FaultyDirection::Datagram); }

}  // namespace

FaultyDirection::FaultyDirection(const wan::LinkOptions& link, Random random, size_t max_queued_bytes)
    : model_(link, random), max_queued_bytes_(max_queued_bytes) {}

void FaultyDirection::Submit(Instant now, const Address& peer, ByteSpan bytes,
                             const transport::ReceiveInfo& info) {
  const auto size = ByteCount(static_cast<int64_t>(bytes.size()) + kHeaderBytes);
  const wan::Verdict verdict = model_.Decide(now, size);
  for (const wan::Delivery& delivery : verdict.deliveries()) Enqueue(delivery, peer, bytes, info);
}

void FaultyDirection::Enqueue(const wan::Delivery& delivery, const Address& peer, ByteSpan bytes,
                              const transport::ReceiveInfo& info) {
  if (queued_bytes_ + Footprint(bytes.size()) > max_queued_bytes_) {
    ++overflows_;
    return;
  }
  Datagram datagram{delivery.time, next_order_++, peer, info, {}};
  if (!spare_.empty()) {
    datagram.bytes = std::move(spare_.back());
    spare_.pop_back();
  }
  datagram.bytes.assign(bytes.begin(), bytes.end());
  if (delivery.corrupted && !bytes.empty()) {
    // The model knows the size with headers; a bit there would be caught by their checksum, so hit the
    // payload.
    const uint64_t bit = delivery.corrupt_bit % (bytes.size() * 8);
    datagram.bytes[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
  }
  queued_bytes_ += Footprint(bytes.size());
  queue_.push_back(std::move(datagram));
  std::push_heap(queue_.begin(), queue_.end(), Later);
}

FaultyDirection::Datagram* FaultyDirection::Due(Instant now) {
  return queue_.empty() || queue_.front().due > now ? nullptr : &queue_.front();
}

void FaultyDirection::Pop() {
  std::pop_heap(queue_.begin(), queue_.end(), Later);
  queued_bytes_ -= Footprint(queue_.back().bytes.size());
  if (spare_.size() < kMaxSpareBuffers) spare_.push_back(std::move(queue_.back().bytes));
  queue_.pop_back();
}

FaultInjector::FaultInjector(const FaultOptions& options) : options_(options) {
  Random random(options.seed);
  // Both are drawn in any case, so that a direction does the same whether or not the other is concerned.
  Random incoming = random.Fork(1);
  Random outgoing = random.Fork(2);
  if (options.Concerns(FaultSide::kIncoming)) incoming_.emplace(options.link, incoming);
  if (options.Concerns(FaultSide::kOutgoing)) outgoing_.emplace(options.link, outgoing);
}

Instant FaultInjector::NextDue() const {
  return std::min(incoming_ ? incoming_->NextDue() : Instant::Infinite(),
                  outgoing_ ? outgoing_->NextDue() : Instant::Infinite());
}

}  // namespace longhaul::udp
