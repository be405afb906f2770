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
constexpr size_t kEd25519Bytes = 32;
// What stands before the key in its PKCS #8 encoding (RFC 8410 §7 and §10.3).
constexpr std::array<uint8_t, 16> kPrefix = {0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06,
                                             0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20};
constexpr size_t kDerBytes = kPrefix.size() + kEd25519Bytes;
constexpr size_t kBase64Bytes = kDerBytes / 3 * 4;  // 48 bytes: one line without padding
static_assert(kDerBytes % 3 == 0);

// Without a callback OpenSSL would ask for a password at the terminal.
int NoPassword(char*, int, int, void*) { return -1; }

// nullptr when the text holds anything but an Ed25519 key in exactly the form of PrintPrivateKey.
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
  const ByteSpan raw = ByteSpan(der.span()).last(kEd25519Bytes);
  return PrivateKey(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, raw.data(), raw.size()));
}

bool IsEd25519(const PrivateKey& key) { return EVP_PKEY_is_a(key.get(), "ED25519") == 1; }

SecretBytes RawBytes(const PrivateKey& key) {
  SecretBytes raw(kEd25519Bytes);
  size_t size = raw.size();
  LH_CHECK(EVP_PKEY_get_raw_private_key(key.get(), raw.span().data(), &size) == 1 && size == kEd25519Bytes);
  return raw;
}

}  // namespace

PrivateKey NewPrivateKey() { return PrivateKey(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519")); }

PrivateKey ParsePrivateKey(std::string_view pem) {
  if (PrivateKey key = ParseOwnForm(pem)) return key;
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  LH_CHECK(bio != nullptr);
  PrivateKey key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  return key;
}

SecretBytes PrintPrivateKey(const PrivateKey& key) {
  LH_CHECK(IsEd25519(key));
  SecretBytes der(kDerBytes);
  const SecretBytes raw = RawBytes(key);
  std::copy(kPrefix.begin(), kPrefix.end(), der.span().begin());
  std::copy(raw.span().begin(), raw.span().end(), der.span().begin() + kPrefix.size());
  SecretBytes base64(kBase64Bytes + 1);  // EVP_EncodeBlock ends with a zero
  EVP_EncodeBlock(base64.span().data(), der.span().data(), static_cast<int>(kDerBytes));
  SecretBytes text(kBegin.size() + kBase64Bytes + kEnd.size());
  auto out = std::copy(kBegin.begin(), kBegin.end(), text.span().begin());
  out = std::copy_n(base64.span().begin(), kBase64Bytes, out);
  std::copy(kEnd.begin(), kEnd.end(), out);
  return text;
}

SecretBytes PrivateKeyBytes(const PrivateKey& key) {
  if (IsEd25519(key)) return RawBytes(key);
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
