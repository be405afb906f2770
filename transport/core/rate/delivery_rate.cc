#include "transport/core/rate/delivery_rate.h"

#include <algorithm>

#include "base/check.h"

namespace longhaul::transport {
namespace {

// A train must be long enough that the receiver's ACK quantum (16 packets, or a few milliseconds) is a small
// part of it: what one late ACK can distort is then below a third, and never beyond the rate it was sent at.
constexpr int64_t kMinTrainBytes = 48 * 1200;                     // three ACK quanta of base datagrams
constexpr Duration kMinTrainTime = std::chrono::milliseconds(2);  // two timers late at once

}  // namespace

void DeliveryRateSampler::OnPacketSent(SentPacket* packet, ByteCount bytes_in_flight, Instant now) {
  if (bytes_in_flight.value() == 0) first_sent_time_ = delivered_time_ = now;
  if (bytes_in_flight.value() == 0 || train_broken_) {
    ++train_;
    train_broken_ = false;
    train_acked_ = false;
  }
  DeliverySnapshot& d = packet->delivery;
  d.delivered = delivered_;
  d.delivered_time = delivered_time_;
  d.first_sent_time = first_sent_time_;
  d.bytes_in_flight = bytes_in_flight + packet->bytes;
  d.lost = lost_;
  d.app_limited = is_app_limited();
  d.train = train_;
}

void DeliveryRateSampler::OnPacketAcked(const SentPacket& packet, Instant now) {
  // Packets that are not in flight (ACKs on their own) were never shown to the sampler.
  if (!packet.in_flight) return;
  LH_CHECK_OP(packet.delivery.delivered.value(), <=, delivered_.value());
  delivered_ += packet.bytes;
  delivered_time_ = now;
  const bool newer = !have_candidate_ || packet.sent_time > candidate_.sent_time ||
                     (packet.sent_time == candidate_.sent_time && packet.number > candidate_.number);
  if (!newer) return;
  have_candidate_ = true;
  candidate_.number = packet.number;
  candidate_.sent_time = packet.sent_time;
  candidate_.bytes = packet.bytes;
  candidate_.delivery = packet.delivery;
}

void DeliveryRateSampler::OnPacketLost(const SentPacket& packet) {
  LH_CHECK_OP(packet.delivery.lost.value(), <=, lost_.value());
  lost_ += packet.bytes;
}

LostPacket DeliveryRateSampler::Describe(const SentPacket& packet) const {
  const DeliverySnapshot& d = packet.delivery;
  return {packet.bytes,     d.bytes_in_flight, lost_ - d.lost, d.delivered,
          packet.sent_time, packet.number,     d.app_limited};
}

RateSample DeliveryRateSampler::TakeSample(Duration min_rtt, Instant now) {
  (void)now;  // the time of the ACK is delivered_time_
  if (is_app_limited() && delivered_ > app_limited_until_) app_limited_until_ = ByteCount();
  RateSample sample;
  if (!have_candidate_) return sample;
  have_candidate_ = false;
  const DeliverySnapshot& d = candidate_.delivery;
  // The next interval of sending starts where this one ends (draft §3.3); a packet that arrives late must not
  // move it back.
  first_sent_time_ = std::max(first_sent_time_, candidate_.sent_time);
  sample.prior_delivered = d.delivered;
  sample.delivered = delivered_ - d.delivered;
  sample.lost = lost_ - d.lost;
  sample.tx_in_flight = d.bytes_in_flight;
  LH_CHECK_OP(sample.delivered.value(), >=, 0);
  LH_CHECK_OP(sample.lost.value(), >=, 0);
  sample.app_limited = d.app_limited;
  sample.train_rate = TrainRate(min_rtt);
  // Whichever took longer: neither a burst of sending nor a burst of ACKs may look like a fast path.
  sample.interval = std::max(candidate_.sent_time - d.first_sent_time, delivered_time_ - d.delivered_time);
  if (sample.interval < min_rtt || sample.interval <= Duration::zero()) return sample;
  sample.valid = true;
  sample.delivery_rate = Bandwidth::FromBytesAndTime(sample.delivered, sample.interval);
  return sample;
}

Bandwidth DeliveryRateSampler::TrainRate(Duration min_rtt) {
  if (candidate_.delivery.train != train_ || train_ == 0) return Bandwidth::Zero();
  if (!train_acked_) {
    train_acked_ = true;
    train_first_ack_ = delivered_time_;
    train_first_sent_ = candidate_.sent_time;
    train_delivered_ = delivered_;
    return Bandwidth::Zero();
  }
  // Only the first flight: what left after its first ACK is measured by the draft's interval.
  if (candidate_.sent_time > train_first_ack_) return Bandwidth::Zero();
  const Duration interval =
      std::max(delivered_time_ - train_first_ack_, candidate_.sent_time - train_first_sent_);
  const ByteCount bytes = delivered_ - train_delivered_;
  LH_CHECK(interval >= Duration::zero() && bytes.value() >= 0);
  if (bytes.value() < kMinTrainBytes || interval < std::max<Duration>(kMinTrainTime, min_rtt / 8)) {
    return Bandwidth::Zero();
  }
  return Bandwidth::FromBytesAndTime(bytes, interval);
}

void DeliveryRateSampler::OnAppLimited(ByteCount bytes_in_flight) {
  LH_CHECK_OP(bytes_in_flight.value(), >=, 0);
  app_limited_until_ = std::max(delivered_ + bytes_in_flight, ByteCount(1));
  train_broken_ = true;
}

}  // namespace longhaul::transport
