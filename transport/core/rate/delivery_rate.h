// Delivery-rate samples (draft-cheng-iccrg-delivery-rate-estimation): how fast the path delivered what was
// between two moments, taken per ACK from the newest packet it acknowledges.
//
// That rate cannot exceed one round's bytes per round trip, so a round shorter than the bandwidth-delay
// product would never learn its path. Hence a second measure: of a train (packets sent without a break by the
// application), the bytes acknowledged after its first ACK over the time since then, or over the time that
// sending them took if that is longer. It covers the train's first flight only.
#pragma once

#include <cstdint>

#include "base/instant.h"
#include "longhaul/units.h"
#include "transport/core/recovery/sent_packets.h"

namespace longhaul::transport {

struct RateSample {
  Bandwidth delivery_rate;    // zero when the sample is not usable
  ByteCount delivered;        // delivered between the packet's sending and its ACK
  ByteCount prior_delivered;  // C.delivered when the packet was sent: names the round trip
  ByteCount lost;             // lost over the same interval
  ByteCount tx_in_flight;     // in flight when the packet was sent
  Duration interval{0};
  Bandwidth train_rate;  // zero when there is none; never above the rate that the train was sent at
  bool app_limited = false;
  bool valid = false;  // speaks of delivery_rate alone
};

// A packet that was just declared lost, with what was true when it left (draft-ietf-ccwg-bbr, per-packet
// state).
struct LostPacket {
  ByteCount bytes;
  ByteCount tx_in_flight;  // in flight when it left, itself included
  ByteCount lost;          // lost between its sending and now, itself included (RS.lost)
  ByteCount delivered;     // C.delivered when it left
  Instant sent_time;
  uint64_t number = 0;  // packet number
  bool app_limited = false;
};

class DeliveryRateSampler {
 public:
  // Fills packet->delivery. `bytes_in_flight` is the total before this packet.
  void OnPacketSent(SentPacket* packet, ByteCount bytes_in_flight, Instant now);
  // To be called for every packet that an ACK newly acknowledges, then TakeSample once per ACK.
  void OnPacketAcked(const SentPacket& packet, Instant now);
  void OnPacketLost(const SentPacket& packet);
  // For the controller, after OnPacketLost.
  LostPacket Describe(const SentPacket& packet) const;
  // The sample of the ACK just processed. Not valid when the interval is shorter than min_rtt (draft §3.3)
  // or when nothing was newly acknowledged.
  RateSample TakeSample(Duration min_rtt, Instant now);
  // There was nothing to send although the window allowed it: samples until everything now in flight is
  // acknowledged are marked app_limited, and the next packet starts a new train.
  void OnAppLimited(ByteCount bytes_in_flight);

  ByteCount delivered() const { return delivered_; }
  ByteCount lost() const { return lost_; }
  bool is_app_limited() const { return app_limited_until_.value() != 0; }

 private:
  Bandwidth TrainRate(Duration min_rtt);

  ByteCount delivered_;          // C.delivered
  ByteCount lost_;               // C.lost
  Instant delivered_time_;       // C.delivered_time
  Instant first_sent_time_;      // C.first_send_time
  ByteCount app_limited_until_;  // C.app_limited; zero = not limited
  uint32_t train_ = 0;           // of the packets sent now; 0 = nothing was sent
  bool train_broken_ = false;    // the next packet starts another
  bool train_acked_ = false;     // its first ACK came; the three below are as of that ACK
  Instant train_first_ack_;
  Instant train_first_sent_;   // when the newest packet of the first ACK left
  ByteCount train_delivered_;  // C.delivered
  // The newest packet of the ACK being processed (by send time, then number).
  bool have_candidate_ = false;
  SentPacket candidate_;  // without its content
};

}  // namespace longhaul::transport
