// A PacketProtection that only detects damage: no secrecy, and whoever can change a packet can also make its
// tag. For simulation, tests and networks trusted by other means; daemons are loud about it.
//
// The 16 bytes of the tag, big-endian:
//
//   CRC-32C over packet number, path, header and body | CRC-32C over packet number, path and header |
//   length of the body 32 | "LHIT"
#pragma once

#include "transport/core/packet_protection.h"

namespace longhaul::transport {

class IntegrityTag : public PacketProtection {
 public:
  // The body stays as it is. REQUIRES: tag.size() == wire::kTagBytes.
  void Seal(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
            MutableByteSpan tag) override;
  // False also for a tag of the wrong size.
  bool Open(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
            ByteSpan tag) override;
  bool IsSecure() const override { return false; }
};

}  // namespace longhaul::transport
