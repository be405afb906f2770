#include "transport/udp/fault_injector.h"

#include <algorithm>
#include <charconv>

namespace longhaul::udp {
namespace {

Status Bad(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

std::string Quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

Status ParseSide(std::string_view text, FaultSide& side) {
  if (text == "both") return side = FaultSide::kBoth, Status::Ok();
  if (text == "in") return side = FaultSide::kIncoming, Status::Ok();
  if (text == "out") return side = FaultSide::kOutgoing, Status::Ok();
  return Bad(Quoted(text) + " is not a side; write in, out or both");
}

Status ParseSeed(std::string_view text, uint64_t& seed) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error == std::errc() && end == text.data() + text.size()) return Status::Ok();
  return Bad(Quoted(text) + " is not a number");
}

}  // namespace

Result<FaultOptions> ParseFaults(std::string_view spec) {
  FaultOptions out;
  std::string link;  // what is not ours: the link's words
  bool side = false, seed = false, queue = false;
  for (size_t at = 0; at <= spec.size();) {
    const size_t end = std::min(spec.find(',', at), spec.size());
    const std::string_view word = spec.substr(at, end - at);
    at = end + 1;
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == word.size()) {
      return Bad("fault " + Quoted(word) + ": write NAME=VALUE, such as drop=0.02,delay=25ms");
    }
    const std::string_view key = word.substr(0, equals), value = word.substr(equals + 1);
    if ((key == "side" && std::exchange(side, true)) || (key == "seed" && std::exchange(seed, true))) {
      return Bad("fault " + Quoted(word) + ": given twice");
    }
    Status status;
    if (key == "side") {
      status = ParseSide(value, out.side);
    } else if (key == "seed") {
      status = ParseSeed(value, out.seed);
    } else {
      link.append(word).push_back(',');
    }
    if (!status.ok()) return Bad("fault " + Quoted(word) + ": " + status.message());
    queue = queue || key == "queue" || key == "limit";
  }
  Result<wan::LinkOptions> parsed = wan::ParseLinkOptions(link, {}, wan::BareShares::kRatio);
  if (!parsed.ok()) return Bad("faults " + Quoted(spec) + ": " + parsed.status().message());
  out.link = *parsed;
  if (queue && out.link.rate.IsZero()) return Bad("fault 'queue': has no effect without a rate");
  return out;
}

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
  datagram.info.received = delivery.time;
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
