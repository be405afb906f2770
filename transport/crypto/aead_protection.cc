#include "transport/crypto/aead_protection.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace longhaul::crypto {

AeadProtection::AeadProtection(AeadSuite suite, SecretBytes send_secret, const SecretBytes& receive_secret)
    : AeadProtection(suite, std::move(send_secret), receive_secret, LimitsOf(suite)) {}

AeadProtection::AeadProtection(AeadSuite suite, SecretBytes send_secret, const SecretBytes& receive_secret,
                               AeadLimits limits)
    : suite_(suite), limits_(limits), send_secret_(std::move(send_secret)) {
  LH_CHECK_OP(send_secret_.size(), ==, HashBytes(AeadHash(suite)));
  LH_CHECK_OP(receive_secret.size(), ==, HashBytes(AeadHash(suite)));
  sending_ = MakeKeys(send_secret_, Aead::Use::kSeal);
  present_ = MakeKeys(receive_secret, Aead::Use::kOpen);
  next_receive_secret_ = NextSecret(receive_secret);
  next_ = MakeKeys(next_receive_secret_, Aead::Use::kOpen);
}

void AeadProtection::Seal(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
                          MutableByteSpan tag) {
  LH_CHECK_OP(number, <=, wire::kMaxPacketNumber);
  // Two blocks for what header and body round up to, one for the tag.
  const uint64_t blocks = (header.size() + body.size()) / 16 + 3;
  if (blocks > limits_.sealed_blocks - sealed_blocks_) {
    std::fill(body.begin(), body.end(), uint8_t{0});
    std::fill(tag.begin(), tag.end(), uint8_t{0});
    return;
  }
  sealed_blocks_ += blocks;
  sending_.aead->Seal(MakeNonce(sending_.iv, number, path), header, body, tag);
}

bool AeadProtection::Open(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
                          ByteSpan tag) {
  if (header.empty() || number > wire::kMaxPacketNumber) return false;
  const bool same_phase = (header[0] & 1u) == (receive_phase_ & 1u);
  const Keys* keys = KeysFor(same_phase, number);
  if (keys == nullptr || forged_packets_ >= limits_.forged_packets) return false;
  if (!keys->aead->Open(MakeNonce(keys->iv, number, path), header, body, tag)) {
    ++forged_packets_;
    return false;
  }
  if (keys == &next_) AdvanceReceiving();
  if (keys != &previous_) largest_ = std::max(largest_.value_or(0), number);
  return true;
}

void AeadProtection::UpdateKeys() {
  if (send_phase_ <= receive_phase_) AdvanceSending();
}

std::string_view AeadProtection::limit_reached() const {
  if (forged_packets_ >= limits_.forged_packets) return "too many packets did not open";
  if (limits_.sealed_blocks - sealed_blocks_ < kBlocksForClose) return "too much was sealed with one key";
  return "";
}

AeadProtection::Keys AeadProtection::MakeKeys(const SecretBytes& secret, Aead::Use use) const {
  const Hash hash = AeadHash(suite_);
  const SecretBytes key = HkdfExpandLabel(hash, secret.span(), "key", {}, AeadKeyBytes(suite_));
  return {MakeAead(suite_, use, key.span()), HkdfExpandLabel(hash, secret.span(), "iv", {}, kAeadNonceBytes)};
}

SecretBytes AeadProtection::NextSecret(const SecretBytes& secret) const {
  return HkdfExpandLabel(AeadHash(suite_), secret.span(), "update", {}, secret.size());
}

void AeadProtection::AdvanceSending() {
  send_secret_ = NextSecret(send_secret_);
  sending_ = MakeKeys(send_secret_, Aead::Use::kSeal);
  sealed_blocks_ = 0;
  ++send_phase_;
}

// The caller holds a pointer to next_, which stays an address though its keys move on.
void AeadProtection::AdvanceReceiving() {
  previous_ = std::move(present_);
  present_ = std::move(next_);
  next_receive_secret_ = NextSecret(next_receive_secret_);
  next_ = MakeKeys(next_receive_secret_, Aead::Use::kOpen);
  largest_.reset();
  ++receive_phase_;
  if (send_phase_ < receive_phase_) AdvanceSending();
}

const AeadProtection::Keys* AeadProtection::KeysFor(bool same_phase, wire::PacketNumber number) const {
  if (same_phase) return &present_;
  if (!largest_ || number > *largest_) return &next_;
  return previous_.aead == nullptr ? nullptr : &previous_;
}

AeadNonce AeadProtection::MakeNonce(const SecretBytes& iv, wire::PacketNumber number, uint8_t path) {
  AeadNonce nonce{};
  ByteWriter out(MutableByteSpan(nonce).subspan(5));
  out.U8(path);
  out.U48(number);
  std::transform(nonce.begin(), nonce.end(), iv.span().begin(), nonce.begin(), std::bit_xor<uint8_t>());
  return nonce;
}

}  // namespace longhaul::crypto
