// Delivery-rate samples (draft-cheng-iccrg-delivery-rate-estimation): how fast the path delivered what was
// between two moments, taken per ACK from the newest packet it acknowledges.
#pragma once

#include <cstdint>

#include "base/instant.h"
#include "longhaul/units.h"
#include "transport/core/recovery/sent_packets.h"

namespace longhaul::transport {

struct RateSample {
  Bandwidth delivery_rate;          // zero when the sample is not usable
  ByteCount delivered;              // delivered between the packet's sending and its ACK
  ByteCount prior_delivered;        // C.delivered when the packet was sent: tells the round trip
  ByteCount lost;                   // lost over the same interval
  ByteCount tx_in_flight;           // in flight when the packet was sent
  Duration interval{0};
  bool app_limited = false;
  bool valid = false;
};

class DeliveryRateSampler {
 public:
  // Fills packet->delivery. `bytes_in_flight` is the total before this packet.
  void OnPacketSent(SentPacket* packet, ByteCount bytes_in_flight, Instant now);
  // To be called for every packet that an ACK newly acknowledges, then TakeSample once per ACK.
  void OnPacketAcked(const SentPacket& packet, Instant now);
  void OnPacketLost(const SentPacket& packet);
  // The sample of the ACK just processed. Not valid when the interval is shorter than min_rtt (draft §3.3)
  // or when nothing was newly acknowledged.
  RateSample TakeSample(Duration min_rtt, Instant now);
  // There was nothing to send although the window allowed it: samples until everything now in flight is
  // acknowledged are marked app_limited.
  void OnAppLimited(ByteCount bytes_in_flight);

  ByteCount delivered() const { return delivered_; }
  ByteCount lost() const { return lost_; }
  bool is_app_limited() const { return app_limited_until_.value() != 0; }

 private:
  ByteCount delivered_;             // C.delivered
  ByteCount lost_;                  // C.lost
  Instant delivered_time_;          // C.delivered_time
  Instant first_sent_time_;         // C.first_send_time
  ByteCount app_limited_until_;     // C.app_limited; zero = not limited
  // The newest packet of the ACK being processed (by send time, then number).
  bool have_candidate_ = false;
  SentPacket candidate_;            // without its content
};

}  // namespace longhaul::transport
