// What makes a packet trustworthy: seals and opens packets. The seam between the sans-I/O core and the
// cryptography; the integrity tag (transport/core/security/integrity_tag.h) is its first implementation.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/bytes.h"
#include "proto/packet_header.h"

namespace longhaul::transport {

// One side's part of an exchange of keys: a public key of X25519 (RFC 7748).
using KeyShare = std::array<uint8_t, 32>;

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
  // --- The next keys: from an exchange of fresh shares (Diffie-Hellman), mixed with the present ones ---
  // The side that begins: its share for the phase after the present one, a new one at each call.
  virtual KeyShare Offer() { return {}; }
  // The other: takes an offer and gives the share that answers it; from now on packets of the next phase
  // open. An offer of ours is void. nullopt: no honest peer sends such a share. REQUIRES: both directions are
  // in one phase, and the next keys are not known.
  virtual std::optional<KeyShare> Answer(const KeyShare& offer) { return offer; }
  // The side that began takes the answer. False as above. REQUIRES: as above, and Offer.
  virtual bool Conclude(const KeyShare& answer) { return (void)answer, true; }
  // Sending goes on with the next keys, once they are known.
  virtual void UpdateKeys() {}
  // Packets of the phase before the present one no longer open.
  virtual void DropPrevious() {}
  // Which limit of the cipher the present keys have reached (RFC 9001 §6.6), for people; "" while there is
  // none. Asked after the key update that was due: then the connection must end now, and what can still be
  // sealed is enough for CLOSE.
  virtual std::string_view limit_reached() const { return ""; }
  // How many times the peer's keys have changed: a packet of the next phase was authentic. Sending follows by
  // itself.
  virtual uint64_t peer_updates() const { return 0; }
};

}  // namespace longhaul::transport
