// When a side moves to its next keys (RFC 9001 §6): after a number of packets or bytes under one key
// (AES-GCM's bounds on confidentiality and integrity are further away, §6.6) or a time; never before the peer
// has acknowledged a packet of the present phase, which shows that it has these keys.
#pragma once

#include <cstdint>
#include <optional>

#include "base/instant.h"
#include "proto/packet_header.h"

namespace longhaul::transport {

struct KeyUpdateLimits {
  uint64_t packets = uint64_t{1} << 26;
  uint64_t bytes = 64'000'000'000;
  Duration age = std::chrono::hours(1);
};

class KeyUpdatePolicy {
 public:
  explicit KeyUpdatePolicy(const KeyUpdateLimits& limits) : limits_(limits) {}

  // A packet left, sealed in `phase`. A phase unlike the last packet's has just begun, by either side.
  void OnPacketSent(wire::PacketNumber number, bool phase, uint64_t bytes, Instant now) {
    if (phase_ != phase) {
      phase_ = phase;
      first_number_ = number;
      packets_ = bytes_ = 0;
      began_ = now;
      confirmed_ = false;
    }
    ++packets_;
    bytes_ += bytes;
  }
  void OnPacketAcked(wire::PacketNumber number) {
    confirmed_ = confirmed_ || (phase_ && number >= first_number_);
  }
  // Whether the caller must update its keys before it seals the next packet, which would otherwise be sealed
  // in `phase`. False when `phase` is not the last packet's: a phase that has just begun is not over.
  bool Due(bool phase, Instant now) const {
    if (phase_ != phase || !confirmed_) return false;
    return packets_ >= limits_.packets || bytes_ >= limits_.bytes || now - began_ >= limits_.age;
  }

 private:
  KeyUpdateLimits limits_;
  std::optional<bool> phase_;
  wire::PacketNumber first_number_ = 0;  // of the phase
  uint64_t packets_ = 0;                 // sent in the phase
  uint64_t bytes_ = 0;                   // likewise
  Instant began_;
  bool confirmed_ = false;  // a packet of the phase was acknowledged
};

}  // namespace longhaul::transport
