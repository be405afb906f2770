#include "transport/crypto/long_protection.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <algorithm>

#include "base/check.h"
#include "transport/crypto/key_derivation.h"

namespace longhaul::crypto {

LongProtection::LongProtection(ByteSpan key, bool secret) : cipher_(EVP_CIPHER_CTX_new()), secret_(secret) {
  const SecretBytes mac_key = HkdfExpandLabel(Hash::kSha256, key, "long mac", {}, 32);
  const SecretBytes cipher_key = HkdfExpandLabel(Hash::kSha256, key, "long key", {}, 16);
  mac_ = NewHmacSha256(mac_key.span());
  LH_CHECK(cipher_ != nullptr);
  // In counter mode encrypting and decrypting are the same.
  LH_CHECK(EVP_EncryptInit_ex(cipher_.get(), EVP_aes_128_ctr(), nullptr, cipher_key.span().data(), nullptr) ==
           1);
}

void LongProtection::Seal(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
                          MutableByteSpan tag) {
  LH_CHECK_OP(tag.size(), ==, wire::kTagBytes);
  const Tag made = Authenticate(number, path, header, body);
  std::copy(made.begin(), made.end(), tag.begin());
  Encrypt(tag, body);
}

bool LongProtection::Open(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
                          ByteSpan tag) {
  if (tag.size() != wire::kTagBytes) return false;
  Encrypt(tag, body);
  return SecretsEqual(Authenticate(number, path, header, body), tag);
}

LongProtection::Tag LongProtection::Authenticate(wire::PacketNumber number, uint8_t path, ByteSpan header,
                                                 ByteSpan body) {
  std::array<uint8_t, 13> prefix{};
  ByteWriter out(prefix);
  out.U64(number);
  out.U8(path);
  out.U32(static_cast<uint32_t>(header.size()));
  std::array<uint8_t, 32> digest{};
  size_t size = 0;
  // Starting without a key keeps the last one.
  LH_CHECK(EVP_MAC_init(mac_.get(), nullptr, 0, nullptr) == 1);
  for (ByteSpan part : {ByteSpan(prefix), header, body}) {
    LH_CHECK(EVP_MAC_update(mac_.get(), part.data(), part.size()) == 1);
  }
  LH_CHECK(EVP_MAC_final(mac_.get(), digest.data(), &size, digest.size()) == 1);
  Tag tag{};
  std::copy_n(digest.begin(), tag.size(), tag.begin());
  return tag;
}

void LongProtection::Encrypt(ByteSpan tag, MutableByteSpan body) {
  int written = 0;
  LH_CHECK(EVP_EncryptInit_ex(cipher_.get(), nullptr, nullptr, nullptr, tag.data()) == 1);
  LH_CHECK(EVP_EncryptUpdate(cipher_.get(), body.data(), &written, body.data(),
                             static_cast<int>(body.size())) == 1);
}

ByteSpan PublicLongKey() {
  // SHA-256 of "longhaul public key of long packets, version 4".
  static constexpr std::array<uint8_t, 32> kKey = {
      0x74, 0x20, 0x33, 0x7b, 0xf6, 0x50, 0x28, 0x6c, 0xb8, 0xed, 0x00, 0x0a, 0xc5, 0xba, 0x86, 0x89,
      0x07, 0x8d, 0x8e, 0x09, 0xe2, 0x43, 0x00, 0xd1, 0x2c, 0x46, 0x11, 0x43, 0xb5, 0x62, 0x26, 0x9d};
  return kKey;
}

}  // namespace longhaul::crypto
