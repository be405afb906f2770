// When a side goes on with its next keys (RFC 9001 §6): after so many packets or bytes under one key (the
// bound of AES-GCM's confidentiality and integrity is further away, §6.6), or so much time; never before the
// peer has acknowledged a packet of the present phase, for only then has it these keys.
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

  // A packet left, sealed in this phase. A phase that is not the last one's began because of us or of the
  // peer.
  void OnPacketSent(wire::PacketNumber number, bool phase, uint64_t bytes, Instant now);
  void OnPacketAcked(wire::PacketNumber number);
  // The next packet should be the first of a new phase; the caller then updates. `phase`: what it would be
  // sealed in. When that is not the last packet's, a phase has just begun (ours or by the peer's) and nothing
  // is due.
  bool Due(bool phase, Instant now) const;

 private:
  KeyUpdateLimits limits_;
  std::optional<bool> phase_;
  wire::PacketNumber first_number_ = 0;  // of the phase
  uint64_t packets_ = 0;
  uint64_t bytes_ = 0;
  Instant began_;
  bool confirmed_ = false;  // a packet of the phase was acknowledged
};

}  // namespace longhaul::transport
