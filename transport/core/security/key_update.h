// When a side wants the next keys (RFC 9001 §6): after a number of packets or bytes under one key (AES-GCM's
// bounds on confidentiality and integrity are further away, §6.6) or a time; never before the peer has
// acknowledged a packet of the present phase, which shows that it has these keys, and some time has passed
// since.
#pragma once

#include <cstdint>
#include <optional>

#include "base/instant.h"
#include "proto/packet_header.h"

namespace longhaul::transport {

struct KeyUpdateLimits {
  uint64_t packets = uint64_t{1} << 26;
  uint64_t bytes = 64'000'000'000;
  // WireGuard's: what is stolen from memory opens two minutes of what was recorded. An exchange costs each
  // side 0.1 ms, so 64 workers cost a server 5e-5 of a core.
  Duration age = std::chrono::seconds(120);
  // Between the peer's acknowledgement of a phase and our offer of the next. Half of it is what a side
  // demands of its peer, so that exchanges, 0.1 ms each, are no way to keep it busy.
  Duration spacing = std::chrono::seconds(1);
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
      confirmed_at_ = std::nullopt;
    }
    ++packets_;
    bytes_ += bytes;
  }
  void OnPacketAcked(wire::PacketNumber number, Instant now) {
    if (!confirmed_at_ && phase_ && number >= first_number_) confirmed_at_ = now;
  }
  // Whether the next keys are due; `phase` is that of the next packet. False when it is not the last
  // packet's: a phase that has just begun is not over.
  bool Due(bool phase, Instant now) const {
    if (phase_ != phase || !confirmed_at_ || now - *confirmed_at_ < limits_.spacing) return false;
    return packets_ >= limits_.packets || bytes_ >= limits_.bytes || now - began_ >= limits_.age;
  }

 private:
  KeyUpdateLimits limits_;
  std::optional<bool> phase_;
  wire::PacketNumber first_number_ = 0;  // of the phase
  uint64_t packets_ = 0;                 // sent in the phase
  uint64_t bytes_ = 0;                   // likewise
  Instant began_;
  std::optional<Instant> confirmed_at_;  // a packet of the phase was acknowledged
};

}  // namespace longhaul::transport
