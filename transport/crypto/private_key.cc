#include "transport/crypto/private_key.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/check.h"

namespace longhaul::crypto {
namespace {

constexpr std::string_view kBegin = "-----BEGIN PRIVATE KEY-----\n";
constexpr std::string_view kEnd = "\n-----END PRIVATE KEY-----\n";
// What stands before the key in its PKCS #8 encoding (RFC 8410 §7 and §10.3).
constexpr std::array<uint8_t, 16> kPrefix = {0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06,
                                             0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20};
constexpr size_t kDerBytes = kPrefix.size() + kEd25519Bytes;
constexpr size_t kBase64Bytes = kDerBytes / 3 * 4;  // 48 bytes: one line without padding
static_assert(kDerBytes % 3 == 0);

// Without a callback OpenSSL would ask for a password at the terminal.
int NoPassword(char*, int, int, void*) { return -1; }

// nullptr when the text holds anything but an Ed25519 key in exactly the form of PrintEd25519.
PrivateKey ParseOwnForm(std::string_view pem) {
  const size_t begin = pem.find(kBegin);
  if (begin == std::string_view::npos) return nullptr;
  pem.remove_prefix(begin + kBegin.size());
  if (pem.size() < kBase64Bytes || !pem.substr(kBase64Bytes).starts_with(kEnd.substr(0, kEnd.size() - 1))) {
    return nullptr;
  }
  SecretBytes der(kDerBytes);
  const auto* base64 = reinterpret_cast<const uint8_t*>(pem.data());
  if (EVP_DecodeBlock(der.span().data(), base64, kBase64Bytes) != static_cast<int>(kDerBytes) ||
      !std::equal(kPrefix.begin(), kPrefix.end(), der.span().begin())) {
    return nullptr;
  }
  return MakeEd25519(ByteSpan(der.span()).last(kEd25519Bytes));
}

// A signature of what is never signed elsewhere (TLS's own begin with 64 spaces), since OpenSSL hands out the
// key itself only through a buffer that it does not wipe. Ed25519 signs without chance (RFC 8032 §5.1.6).
SecretBytes SignatureOfLabel(const PrivateKey& key) {
  constexpr std::string_view kLabel = "longhaul v1 lasting secret";
  const OpenSslPtr<evp_md_ctx_st> context(EVP_MD_CTX_new());
  LH_CHECK(context != nullptr);
  LH_CHECK(EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1);
  SecretBytes signature(2 * kEd25519Bytes);
  size_t size = signature.size();
  LH_CHECK(EVP_DigestSign(context.get(), signature.span().data(), &size,
                          reinterpret_cast<const uint8_t*>(kLabel.data()), kLabel.size()) == 1);
  return signature;
}

}  // namespace

PrivateKey MakeEd25519(ByteSpan raw) {
  return PrivateKey(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, raw.data(), raw.size()));
}

PrivateKey ParsePrivateKey(std::string_view pem) {
  if (PrivateKey key = ParseOwnForm(pem)) return key;
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  LH_CHECK(bio != nullptr);
  PrivateKey key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  return key;
}

SecretBytes PrintEd25519(ByteSpan raw) {
  LH_CHECK_OP(raw.size(), ==, kEd25519Bytes);
  SecretBytes der(kDerBytes);
  std::copy(raw.begin(), raw.end(), std::copy(kPrefix.begin(), kPrefix.end(), der.span().begin()));
  SecretBytes base64(kBase64Bytes + 1);  // EVP_EncodeBlock ends with a zero
  EVP_EncodeBlock(base64.span().data(), der.span().data(), static_cast<int>(kDerBytes));
  SecretBytes text(kBegin.size() + kBase64Bytes + kEnd.size());
  auto out = std::copy(kBegin.begin(), kBegin.end(), text.span().begin());
  out = std::copy_n(base64.span().begin(), kBase64Bytes, out);
  std::copy(kEnd.begin(), kEnd.end(), out);
  return text;
}

SecretBytes LastingSecret(const PrivateKey& key) {
  if (EVP_PKEY_is_a(key.get(), "ED25519") == 1) return SignatureOfLabel(key);
  unsigned char* der = nullptr;
  const int size = i2d_PrivateKey(key.get(), &der);
  LH_CHECK_OP(size, >, 0);
  const MutableByteSpan encoded(der, static_cast<size_t>(size));
  SecretBytes bytes{ByteSpan(encoded)};
  WipeBytes(encoded);
  OPENSSL_free(der);
  return bytes;
}

}  // namespace longhaul::crypto
