#include "transport/crypto/key_derivation.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <array>
#include <memory>

#include "base/check.h"

namespace longhaul::crypto {
namespace {

constexpr std::string_view kLabelPrefix = "longhaul ";

struct KdfFree {
  void operator()(EVP_KDF* p) const { EVP_KDF_free(p); }
  void operator()(EVP_KDF_CTX* p) const { EVP_KDF_CTX_free(p); }
};

// OpenSSL's parameters are never written through, though their type allows it.
OSSL_PARAM Octets(const char* name, ByteSpan bytes) {
  return OSSL_PARAM_construct_octet_string(name, const_cast<uint8_t*>(bytes.data()), bytes.size());
}

SecretBytes Derive(int mode, Hash hash, ByteSpan key, const char* second_name, ByteSpan second,
                   size_t bytes) {
  const std::unique_ptr<EVP_KDF, KdfFree> kdf(EVP_KDF_fetch(nullptr, OSSL_KDF_NAME_HKDF, nullptr));
  LH_CHECK(kdf != nullptr);
  const std::unique_ptr<EVP_KDF_CTX, KdfFree> context(EVP_KDF_CTX_new(kdf.get()));
  LH_CHECK(context != nullptr);
  std::array<char, 8> digest{'S', 'H', 'A', '2', '5', '6'};
  if (hash == Hash::kSha384) digest = {'S', 'H', 'A', '3', '8', '4'};
  std::array<OSSL_PARAM, 5> params{OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
                                   OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
                                   Octets(OSSL_KDF_PARAM_KEY, key), OSSL_PARAM_construct_end(),
                                   OSSL_PARAM_construct_end()};
  if (!second.empty()) params[3] = Octets(second_name, second);
  SecretBytes out(bytes);
  LH_CHECK(EVP_KDF_derive(context.get(), out.span().data(), out.size(), params.data()) == 1);
  return out;
}

}  // namespace

SecretBytes HkdfExtract(Hash hash, ByteSpan salt, ByteSpan key_material) {
  return Derive(EVP_KDF_HKDF_MODE_EXTRACT_ONLY, hash, key_material, OSSL_KDF_PARAM_SALT, salt,
                HashBytes(hash));
}

SecretBytes HkdfExpand(Hash hash, ByteSpan secret, ByteSpan info, size_t bytes) {
  LH_CHECK_OP(bytes, <=, 255 * HashBytes(hash));
  return Derive(EVP_KDF_HKDF_MODE_EXPAND_ONLY, hash, secret, OSSL_KDF_PARAM_INFO, info, bytes);
}

SecretBytes HkdfExpandLabel(Hash hash, ByteSpan secret, std::string_view label, ByteSpan context,
                            size_t bytes) {
  std::array<uint8_t, 4 + kLabelPrefix.size() + 32 + 255> info{};
  ByteWriter out(info);
  out.U16(static_cast<uint16_t>(bytes));
  out.U8(static_cast<uint8_t>(kLabelPrefix.size() + label.size()));
  for (std::string_view part : {kLabelPrefix, label}) {
    for (char c : part) out.U8(static_cast<uint8_t>(c));
  }
  out.U8(static_cast<uint8_t>(context.size()));
  out.Bytes(context);
  LH_CHECK(out.ok() && label.size() <= 32 && context.size() <= 255);
  return HkdfExpand(hash, secret, out.written(), bytes);
}

namespace {

MacContext NewContext(const char* algorithm) {
  EVP_MAC* mac = EVP_MAC_fetch(nullptr, algorithm, nullptr);
  LH_CHECK(mac != nullptr);
  MacContext context(EVP_MAC_CTX_new(mac));
  EVP_MAC_free(mac);
  LH_CHECK(context != nullptr);
  return context;
}

}  // namespace

MacContext NewHmacSha256(ByteSpan key) {
  MacContext context = NewContext("HMAC");
  std::array<char, 7> digest{'S', 'H', 'A', '2', '5', '6'};
  const std::array<OSSL_PARAM, 2> params{
      OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest.data(), 0), OSSL_PARAM_construct_end()};
  LH_CHECK(EVP_MAC_init(context.get(), key.data(), key.size(), params.data()) == 1);
  return context;
}

SipHash::SipHash() : context_(NewContext("SIPHASH")) {}

std::array<uint8_t, 16> SipHash::operator()(ByteSpan key, ByteSpan message) {
  LH_CHECK_OP(key.size(), ==, 16u);
  std::array<uint8_t, 16> out{};
  size_t size = 0;
  LH_CHECK(EVP_MAC_init(context_.get(), key.data(), key.size(), nullptr) == 1);
  LH_CHECK(EVP_MAC_update(context_.get(), message.data(), message.size()) == 1);
  LH_CHECK(EVP_MAC_final(context_.get(), out.data(), &size, out.size()) == 1);
  return out;
}

}  // namespace longhaul::crypto
