// What makes a packet trustworthy: seals and opens packets. The seam between the sans-I/O core and the
// cryptography; the integrity tag (transport/core/security/integrity_tag.h) is its first implementation.
#pragma once

#include <string_view>

#include "base/bytes.h"
#include "proto/packet_header.h"

namespace longhaul::transport {

class PacketProtection {
 public:
  virtual ~PacketProtection() = default;

  // Seals a packet in place: authenticates `header`, protects `body`, writes wire::kTagBytes to `tag`.
  virtual void Seal(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
                    MutableByteSpan tag) = 0;
  // Opens a packet in place. False when the tag does not fit: the packet must be dropped, `body` is garbage.
  virtual bool Open(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
                    ByteSpan tag) = 0;
  // Whether an attacker on the path can neither read nor forge. Daemons are loud when not.
  virtual bool IsSecure() const = 0;
  // For people: "AES-128-GCM"; "" when it is no cipher.
  virtual std::string_view name() const { return ""; }
  // Phase of the keys that Seal uses now: bit 0 of a short header; the header is written with it before
  // Seal.
  virtual bool key_phase() const { return false; }
  // Sending goes on with the next keys (RFC 9001 §6.1). REQUIRES: the peer has acknowledged a packet of the
  // present phase.
  virtual void UpdateKeys() {}
  // Which limit of the cipher the present keys have reached (RFC 9001 §6.6), for people; "" while there is
  // none. Asked after the key update that was due: then the connection must end now, and what can still be
  // sealed is enough for CLOSE.
  virtual std::string_view limit_reached() const { return ""; }
  // How many times the peer's keys have changed: a packet of the next phase was authentic. Sending follows by
  // itself (RFC 9001 §6.2).
  virtual uint64_t peer_updates() const { return 0; }
};

}  // namespace longhaul::transport
