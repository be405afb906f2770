#include "transport/core/recovery/ack_tracker.h"

#include <algorithm>

#include "base/check.h"
#include "transport/core/recovery/loss_detection.h"

namespace longhaul::transport {
namespace {

// 2048 ranges remember 12,800 packets at 20 % random loss; 32 KB per connection.
constexpr size_t kMaxTrackedRanges = 2048;
// Packets this far below an acknowledged ACK are still reported: those that came late after that ACK was
// built would else be forgotten when the ACK that names them is lost. As LossDetection::kMaxPacketThreshold.
constexpr uint64_t kRepeatedBelowAcknowledged = 256;
// An ACK per eighth of the peer's flight keeps at least eight samples in a round trip.
constexpr int kAcksPerFlight = 8;
static_assert(kRepeatedBelowAcknowledged == LossDetection::kMaxPacketThreshold);
static_assert(kMaxTrackedRanges > 4 * wire::kMaxAckRanges, "what ACKs name is a subset of what is known");

}  // namespace

bool AckTracker::IsDuplicate(wire::PacketNumber number) const {
  return number < forgotten_below_ || received_.Contains(number);
}

void AckTracker::OnPacketReceived(wire::PacketNumber number, bool ack_eliciting, bool ecn_ce,
                                  Instant received) {
  const bool first = received_.empty();
  const wire::PacketNumber largest = first ? 0 : received_.ranges().back().last;
  // A connection's first number is 0; anything else as the first packet is a gap as well.
  const bool out_of_order = first ? number != 0 : number != largest + 1;
  received_.Add(number);
  reported_.Add(number);
  if (first || number > largest) {
    largest_time_ = received;
    ForgetOld(number);
  }
  if (ecn_ce) ++ecn_ce_;
  if (!ack_eliciting) return;
  MeasureFlight(received);
  if (!ack_pending_) oldest_unacked_ = received;
  ack_pending_ = true;
  ++eliciting_since_ack_;
  if (out_of_order) immediate_ = true;
}

void AckTracker::ForgetOld(wire::PacketNumber largest) {
  if (largest > kReplayWindow) forgotten_below_ = std::max(forgotten_below_, largest - kReplayWindow);
  if (!received_.empty() && received_.ranges().front().last < forgotten_below_) {
    received_.RemoveBelow(forgotten_below_);
  }
  // Half at a time, so that the cost of moving the rest is paid once per kMaxTrackedRanges / 2 gaps.
  if (received_.ranges().size() > kMaxTrackedRanges) {
    received_.KeepNewest(kMaxTrackedRanges / 2);
    forgotten_below_ = std::max(forgotten_below_, received_.ranges().front().first);
  }
  LH_CHECK_OP(received_.ranges().size(), <=, kMaxTrackedRanges);
  // Only the newest fit a frame; twice as many are kept because gaps that fill merge ranges.
  if (reported_.ranges().size() > 4 * wire::kMaxAckRanges) reported_.KeepNewest(2 * wire::kMaxAckRanges);
}

void AckTracker::MeasureFlight(Instant received) {
  // What arrives within one round trip is what the peer had in flight.
  if (received - flight_start_ >= smoothed_rtt_) {
    peer_flight_ = flight_count_;
    flight_count_ = 0;
    flight_start_ = received;
  }
  ++flight_count_;
}

bool AckTracker::ShouldAck(Instant now) const {
  // An ACK that was requested before anything arrived would be empty.
  return ack_pending_ && !reported_.empty() && (immediate_ || now >= Deadline());
}

Instant AckTracker::Deadline() const {
  if (!ack_pending_ || reported_.empty()) return Instant::Infinite();
  const int packets = std::max(kMinPacketsPerAck, peer_flight_ / kAcksPerFlight);
  if (immediate_ || eliciting_since_ack_ >= packets) return oldest_unacked_;
  if (smoothed_rtt_ <= Duration::zero()) return oldest_unacked_ + kMaxAckDelay;
  return oldest_unacked_ + std::min<Duration>(smoothed_rtt_ / 4, kMaxAckDelay);
}

wire::AckFrame AckTracker::BuildAck(Instant now) {
  wire::AckFrame ack;
  const auto& ranges = reported_.ranges();
  const size_t count = std::min(ranges.size(), wire::kMaxAckRanges);
  ack.ranges.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const IntervalSet::Range& range = ranges[ranges.size() - 1 - i];
    ack.ranges.push_back({range.first, range.last});
  }
  if (now > largest_time_) {
    ack.ack_delay_us = static_cast<uint64_t>((now - largest_time_).count() / 1000);
  }
  ack.ecn_ect0 = ecn_ect0_;
  ack.ecn_ce = ecn_ce_;
  ack.host_drops = host_drops_;
  ack_pending_ = immediate_ = false;
  eliciting_since_ack_ = 0;
  return ack;
}

void AckTracker::OnAckAcknowledged(wire::PacketNumber largest) {
  if (largest > kRepeatedBelowAcknowledged) reported_.RemoveBelow(largest - kRepeatedBelowAcknowledged);
}

}  // namespace longhaul::transport
