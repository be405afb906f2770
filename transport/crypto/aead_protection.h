// Packet protection of a connection: an AEAD whose keys change in phases while packets are under way.
//
//   secret of a direction, phase n ── "key", "iv" ──> what its packets are sealed with (RFC 9001 §5.1)
//      │ salt
//      └─ HKDF-Extract(X25519 of both shares) ── "update", n+1 | offer | answer ──> secret of phase n+1
//
// The shares travel in packets of phase n, which authenticate them. An attacker that reads the memory
// in phase n+1 cannot go back: the private parts of the shares are gone. One that read it in phase n and only
// listens cannot go on.
//
// Nonce: IV xor (path 8 | packet number 48, right-aligned), so one key serves all paths, whose numbers may
// overlap.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "transport/core/security/packet_protection.h"
#include "transport/crypto/aead.h"
#include "transport/crypto/openssl_ptr.h"
#include "transport/crypto/secret_bytes.h"

namespace longhaul::crypto {

// Which keys open a packet is a rule, never a try, so the time that Open takes reveals nothing (RFC 9001
// §6.3, §6.5): phase as the present one -> present keys; other phase and a number above all authentic ones of
// the present phase -> next keys, if they are known; other phase and below -> previous keys, as long as they
// are kept.
//
// Neither Seal nor Open allocates.
// Not thread-safe; lives inside one connection.
class AeadProtection : public transport::PacketProtection {
 public:
  // Blocks that limit_reached() leaves: one of the largest datagrams, which may be under way, and a few with
  // CLOSE.
  static constexpr uint64_t kBlocksForClose = 2 * 65536 / 16;

  // REQUIRES: secrets of HashBytes(AeadHash(suite)).
  AeadProtection(AeadSuite suite, SecretBytes send_secret, SecretBytes receive_secret, AeadLimits limits);
  AeadProtection(AeadSuite suite, SecretBytes send_secret, SecretBytes receive_secret);

  // REQUIRES: bit 0 of the header is key_phase(). Past the limit of a key, which key updates keep far away,
  // body and tag become zeros and nothing leaks; limit_reached() comes first.
  void Seal(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
            MutableByteSpan tag) override;
  // Always false once limits.forged_packets did not open.
  bool Open(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
            ByteSpan tag) override;
  bool IsSecure() const override { return true; }
  std::string_view name() const override { return AeadName(suite_); }
  bool key_phase() const override { return (send_phase_ & 1) != 0; }
  transport::KeyShare Offer() override;
  std::optional<transport::KeyShare> Answer(const transport::KeyShare& offer) override;
  bool Conclude(const transport::KeyShare& answer) override;
  // Nothing happens while the next keys are not known.
  void UpdateKeys() override;
  void DropPrevious() override { previous_ = {}; }
  uint64_t peer_updates() const override { return receive_phase_; }
  // Of the present sending key as well, though UpdateKeys may still mend it: asked after the update that was
  // due. KeyUpdateLimits are far below, so a caller that reaches this could not update.
  std::string_view limit_reached() const override;

  AeadSuite suite() const { return suite_; }
  uint64_t own_updates() const { return send_phase_; }
  // Packets that had keys and did not open, under all keys.
  uint64_t forged_packets() const { return forged_packets_; }
  // Of the present sending key, in blocks of 16 bytes, header included.
  uint64_t sealed_blocks() const { return sealed_blocks_; }

 private:
  struct Keys {
    std::unique_ptr<Aead> aead;
    SecretBytes iv;
  };

  Keys MakeKeys(const SecretBytes& secret, Aead::Use use) const;
  // Of both directions, for the next phase; false when `theirs` is no share of an honest peer.
  bool MakeNext(const PrivateKey& ours, const transport::KeyShare& theirs, const transport::KeyShare& offer,
                const transport::KeyShare& answer);
  void AdvanceReceiving();
  // nullptr when this packet has none.
  const Keys* KeysFor(bool same_phase, wire::PacketNumber number) const;
  static AeadNonce MakeNonce(const SecretBytes& iv, wire::PacketNumber number, uint8_t path);

  AeadSuite suite_;
  AeadLimits limits_;

  SecretBytes send_secret_;  // of the present phase, as is the other
  SecretBytes receive_secret_;
  Keys sending_;
  uint64_t send_phase_ = 0;
  uint64_t sealed_blocks_ = 0;

  // The exchange under way: ours, and what comes of it.
  PrivateKey own_key_;
  transport::KeyShare own_share_{};
  SecretBytes next_send_secret_, next_receive_secret_;
  Keys next_sending_;
  Keys previous_, present_, next_;
  uint64_t receive_phase_ = 0;
  // Largest authentic number of the present phase.
  std::optional<wire::PacketNumber> largest_;
  uint64_t forged_packets_ = 0;
};

}  // namespace longhaul::crypto
