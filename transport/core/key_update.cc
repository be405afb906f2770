#include "transport/core/key_update.h"

namespace longhaul::transport {

void KeyUpdatePolicy::OnPacketSent(wire::PacketNumber number, bool phase, uint64_t bytes, Instant now) {
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

void KeyUpdatePolicy::OnPacketAcked(wire::PacketNumber number) {
  confirmed_ = confirmed_ || (phase_ && number >= first_number_);
}

bool KeyUpdatePolicy::Due(bool phase, Instant now) const {
  if (phase_ != phase || !confirmed_) return false;
  return packets_ >= limits_.packets || bytes_ >= limits_.bytes || now - began_ >= limits_.age;
}

}  // namespace longhaul::transport
