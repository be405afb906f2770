#include "transport/crypto/aead_protection.h"

#include <openssl/err.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"

namespace longhaul::crypto {

AeadProtection::AeadProtection(AeadSuite suite, SecretBytes send_secret, SecretBytes receive_secret)
    : AeadProtection(suite, std::move(send_secret), std::move(receive_secret), LimitsOf(suite)) {}

AeadProtection::AeadProtection(AeadSuite suite, SecretBytes send_secret, SecretBytes receive_secret,
                               AeadLimits limits)
    : suite_(suite),
      limits_(limits),
      send_secret_(std::move(send_secret)),
      receive_secret_(std::move(receive_secret)) {
  LH_CHECK_OP(send_secret_.size(), ==, HashBytes(AeadHash(suite)));
  LH_CHECK_OP(receive_secret_.size(), ==, HashBytes(AeadHash(suite)));
  sending_ = MakeKeys(send_secret_, Aead::Use::kSeal);
  present_ = MakeKeys(receive_secret_, Aead::Use::kOpen);
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

namespace {

transport::KeyShare PublicOf(const PrivateKey& key) {
  transport::KeyShare share{};
  size_t size = share.size();
  LH_CHECK(EVP_PKEY_get_raw_public_key(key.get(), share.data(), &size) == 1 && size == share.size());
  return share;
}

// X25519 (RFC 7748 §6.1); nothing when the result is zero, which a peer can force by a share of low order.
SecretBytes SharedSecret(const PrivateKey& ours, const transport::KeyShare& theirs) {
  const PrivateKey peer(EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, theirs.data(), theirs.size()));
  const OpenSslPtr<EVP_PKEY_CTX> context(EVP_PKEY_CTX_new(ours.get(), nullptr));
  LH_CHECK(context != nullptr);
  SecretBytes secret(theirs.size());
  size_t size = secret.size();
  const bool ok = peer != nullptr && EVP_PKEY_derive_init(context.get()) == 1 &&
                  EVP_PKEY_derive_set_peer(context.get(), peer.get()) == 1 &&
                  EVP_PKEY_derive(context.get(), secret.span().data(), &size) == 1;
  ERR_clear_error();
  return ok ? std::move(secret) : SecretBytes();
}

PrivateKey NewShareKey() {
  PrivateKey key(EVP_PKEY_Q_keygen(nullptr, nullptr, "X25519"));
  LH_CHECK(key != nullptr);
  return key;
}

}  // namespace

transport::KeyShare AeadProtection::Offer() {
  own_key_ = NewShareKey();
  return own_share_ = PublicOf(own_key_);
}

std::optional<transport::KeyShare> AeadProtection::Answer(const transport::KeyShare& offer) {
  LH_CHECK(send_phase_ == receive_phase_ && next_.aead == nullptr);
  const PrivateKey key = NewShareKey();
  const transport::KeyShare answer = PublicOf(key);
  own_key_.reset();
  if (!MakeNext(key, offer, offer, answer)) return std::nullopt;
  return answer;
}

bool AeadProtection::Conclude(const transport::KeyShare& answer) {
  LH_CHECK(own_key_ != nullptr && send_phase_ == receive_phase_ && next_.aead == nullptr);
  const PrivateKey key = std::move(own_key_);
  return MakeNext(key, answer, own_share_, answer);
}

bool AeadProtection::MakeNext(const PrivateKey& ours, const transport::KeyShare& theirs,
                              const transport::KeyShare& offer, const transport::KeyShare& answer) {
  const SecretBytes shared = SharedSecret(ours, theirs);
  if (shared.empty()) return false;
  std::array<uint8_t, 8 + 2 * sizeof(transport::KeyShare)> context{};
  ByteWriter out(context);
  out.U64(send_phase_ + 1);
  out.Bytes(offer);
  out.Bytes(answer);
  const Hash hash = AeadHash(suite_);
  const auto next = [&](const SecretBytes& secret) {
    const SecretBytes mixed = HkdfExtract(hash, secret.span(), shared.span());
    return HkdfExpandLabel(hash, mixed.span(), "update", context, HashBytes(hash));
  };
  next_send_secret_ = next(send_secret_);
  next_receive_secret_ = next(receive_secret_);
  next_sending_ = MakeKeys(next_send_secret_, Aead::Use::kSeal);
  next_ = MakeKeys(next_receive_secret_, Aead::Use::kOpen);
  return true;
}

void AeadProtection::UpdateKeys() {
  if (next_sending_.aead == nullptr) return;
  sending_ = std::move(next_sending_);
  next_sending_ = {};
  send_secret_ = std::move(next_send_secret_);
  sealed_blocks_ = 0;
  ++send_phase_;
}

// The caller holds a pointer to next_, which stays an address though its keys move on.
void AeadProtection::AdvanceReceiving() {
  previous_ = std::move(present_);
  present_ = std::move(next_);
  next_ = {};
  receive_secret_ = std::move(next_receive_secret_);
  largest_.reset();
  ++receive_phase_;
  UpdateKeys();
}

const AeadProtection::Keys* AeadProtection::KeysFor(bool same_phase, wire::PacketNumber number) const {
  if (same_phase) return &present_;
  if (!largest_ || number > *largest_) return next_.aead == nullptr ? nullptr : &next_;
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
