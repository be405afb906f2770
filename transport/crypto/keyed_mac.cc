#include "transport/crypto/keyed_mac.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include "base/check.h"

namespace longhaul::crypto {
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
