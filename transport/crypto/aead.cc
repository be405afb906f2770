#include "transport/crypto/aead.h"

#include <openssl/evp.h>

#include "base/check.h"
#include "transport/crypto/openssl_ptr.h"
#ifdef LONGHAUL_IPSEC_MB
#include "transport/crypto/ipsec_mb/ipsec_mb_aead.h"
#endif

namespace longhaul::crypto {
namespace {

// Looked up once: it takes longer than to set up a key.
const EVP_CIPHER* Fetched(AeadSuite suite) {
  using Cipher = OpenSslPtr<EVP_CIPHER>;
  static const std::array<Cipher, 3> ciphers = {
      Cipher(EVP_CIPHER_fetch(nullptr, "AES-128-GCM", nullptr)),
      Cipher(EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr)),
      Cipher(EVP_CIPHER_fetch(nullptr, "ChaCha20-Poly1305", nullptr))};
  static_assert(static_cast<int>(AeadSuite::kAes128Gcm) == 0 &&
                static_cast<int>(AeadSuite::kAes256Gcm) == 1 &&
                static_cast<int>(AeadSuite::kChaCha20Poly1305) == 2);
  const EVP_CIPHER* cipher = ciphers[static_cast<size_t>(suite)].get();
  LH_CHECK(cipher != nullptr);
  return cipher;
}

// Setting up a key costs more than sealing a packet, so the context keeps it and only the nonce changes.
class EvpAead : public Aead {
 public:
  EvpAead(AeadSuite suite, Use use, ByteSpan key) : context_(EVP_CIPHER_CTX_new()) {
    LH_CHECK_OP(key.size(), ==, AeadKeyBytes(suite));
    LH_CHECK(context_ != nullptr);
    const int sealing = use == Use::kSeal ? 1 : 0;
    LH_CHECK(EVP_CipherInit_ex(context_.get(), Fetched(suite), nullptr, key.data(), nullptr, sealing) == 1);
  }

  void Seal(const AeadNonce& nonce, ByteSpan header, MutableByteSpan body, MutableByteSpan tag) override {
    LH_CHECK_OP(tag.size(), ==, kAeadTagBytes);
    int written = 0;
    LH_CHECK(EVP_EncryptInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data()) == 1);
    LH_CHECK(Update(header, body));
    LH_CHECK(EVP_EncryptFinal_ex(context_.get(), tag.data(), &written) == 1);
    LH_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, kAeadTagBytes, tag.data()) == 1);
  }

  bool Open(const AeadNonce& nonce, ByteSpan header, MutableByteSpan body, ByteSpan tag) override {
    if (tag.size() != kAeadTagBytes) return false;
    int written = 0;
    std::array<uint8_t, kAeadTagBytes> unused{};
    LH_CHECK(EVP_DecryptInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data()) == 1);
    // OpenSSL takes the tag through a pointer to non-const and only reads it.
    LH_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, kAeadTagBytes,
                                 const_cast<uint8_t*>(tag.data())) == 1);
    LH_CHECK(Update(header, body));
    return EVP_DecryptFinal_ex(context_.get(), unused.data(), &written) == 1;
  }

 private:
  // A null output means associated data, so nothing empty is passed on.
  bool Update(ByteSpan header, MutableByteSpan body) {
    int written = 0;
    if (!header.empty() && EVP_CipherUpdate(context_.get(), nullptr, &written, header.data(),
                                            static_cast<int>(header.size())) != 1) {
      return false;
    }
    return body.empty() || EVP_CipherUpdate(context_.get(), body.data(), &written, body.data(),
                                            static_cast<int>(body.size())) == 1;
  }

  CipherContext context_;
};

}  // namespace

std::string_view AeadName(AeadSuite suite) {
  switch (suite) {
    case AeadSuite::kAes128Gcm:
      return "AES-128-GCM";
    case AeadSuite::kAes256Gcm:
      return "AES-256-GCM";
    case AeadSuite::kChaCha20Poly1305:
      return "ChaCha20-Poly1305";
  }
  return "unknown";
}

std::unique_ptr<Aead> MakeEvpAead(AeadSuite suite, Aead::Use use, ByteSpan key) {
  return std::make_unique<EvpAead>(suite, use, key);
}

std::unique_ptr<Aead> MakeAead(AeadSuite suite, Aead::Use use, ByteSpan key) {
#ifdef LONGHAUL_IPSEC_MB
  if (IpsecMbSuitsProcessor()) return MakeIpsecMbAead(suite, use, key);
#endif
  return MakeEvpAead(suite, use, key);
}

}  // namespace longhaul::crypto
