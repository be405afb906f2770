// The packets in flight: what each carried and what the delivery-rate sampler must remember about it
// (RFC 9002 §A.1, draft-cheng-iccrg-delivery-rate-estimation §3).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/instant.h"
#include "longhaul/units.h"
#include "proto/frames.h"
#include "proto/packet_header.h"

namespace longhaul::transport {

// The chunk or repair symbol that a packet carried.
struct SentChunk {
  uint32_t window_id = 0;
  uint32_t index = 0;  // as in wire::DataHeader
  uint8_t generation = 0;
  wire::ReliabilityClass reliability = wire::ReliabilityClass::kHigh;
  bool repair = false;
  bool operator==(const SentChunk&) const = default;
};

// A chunk or repair symbol that left in several packets, which share this: it has arrived when all of them
// were acknowledged, and is lost with the first of them that is. What is acknowledged later is no longer
// lost.
class CutChunk {
 public:
  void OnPartSent(bool last) {
    ++unacked_;
    all_sent_ = last;
  }
  // True for the last one: the chunk has arrived.
  bool OnPartAcked() { return --unacked_ == 0 && all_sent_; }
  // True for the first one: the chunk is lost.
  bool OnPartLost() { return !std::exchange(lost_, true); }

 private:
  uint16_t unacked_ = 0;
  bool all_sent_ = false;
  bool lost_ = false;
};

// What a packet carried besides a chunk, by coordinates from which its owner can write it again.
struct SentControl {  // a piece of the control stream
  uint64_t offset = 0;
  uint64_t length = 0;
  bool operator==(const SentControl&) const = default;
};
struct SentWindowOpen {
  uint32_t window_id = 0;
  uint8_t generation = 0;
  bool operator==(const SentWindowOpen&) const = default;
};
struct SentWindowStatus {
  uint32_t window_id = 0;
  uint8_t generation = 0;
  bool operator==(const SentWindowStatus&) const = default;
};
struct SentWindowClose {
  uint32_t window_id = 0;
  uint8_t generation = 0;
  uint32_t first = 0;  // of the segment, as in wire::WindowCloseFrame
  bool operator==(const SentWindowClose&) const = default;
};
struct SentAck {
  wire::PacketNumber largest = 0;
  bool operator==(const SentAck&) const = default;
};
struct SentGrant {
  bool operator==(const SentGrant&) const = default;
};
struct SentNewCid {
  bool operator==(const SentNewCid&) const = default;
};
struct SentKeyUpdate {
  uint64_t phase = 0;
  bool operator==(const SentKeyUpdate&) const = default;
};
// An ACK is never sent again; each of the others must arrive.
using SentFrame = std::variant<SentControl, SentWindowOpen, SentWindowStatus, SentWindowClose, SentAck,
                               SentGrant, SentNewCid, SentKeyUpdate>;

// State of the connection when a packet left, for the rate sample that its ACK gives.
struct DeliverySnapshot {
  ByteCount delivered;        // C.delivered
  Instant delivered_time;     // C.delivered_time
  Instant first_sent_time;    // C.first_send_time
  ByteCount bytes_in_flight;  // just after sending it, itself included ("tx_in_flight")
  ByteCount lost;             // C.lost
  bool app_limited = false;
  uint32_t train = 0;  // packets sent without a break by the application share a number
};

struct SentPacket {
  wire::PacketNumber number = 0;
  Instant sent_time;
  ByteCount bytes;  // UDP payload, headers and tag included
  bool ack_eliciting = false;
  bool in_flight = false;     // counts towards bytes_in_flight
  bool ect0 = false;          // left marked as ECN-capable
  bool mtu_probe = false;     // its loss says how large datagrams may be, not that the path is congested
  bool outsized = false;      // lost on a path that has shrunk below its size: no congestion either
  uint64_t flight_place = 0;  // among those in flight but probes, in order of sending (LossEstimator::OnSent)
  std::optional<SentChunk> chunk;
  std::shared_ptr<CutChunk> cut;  // when it carried only a part of `chunk`
  std::vector<SentFrame> frames;
  DeliverySnapshot delivery;
};

}  // namespace longhaul::transport
