#include "transport/crypto/key_derivation.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <algorithm>
#include <array>
#include <initializer_list>

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

MacContext NewHmac(Hash hash, ByteSpan key) {
  MacContext context = NewContext("HMAC");
  std::array<char, 7> digest{'S', 'H', 'A', '2', '5', '6'};
  if (hash == Hash::kSha384) digest = {'S', 'H', 'A', '3', '8', '4'};
  const std::array<OSSL_PARAM, 2> params{
      OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest.data(), 0), OSSL_PARAM_construct_end()};
  LH_CHECK(EVP_MAC_init(context.get(), key.data(), key.size(), params.data()) == 1);
  return context;
}

constexpr std::array<uint8_t, 48> kZeros{};
ByteSpan ZeroKey(Hash hash) { return ByteSpan(kZeros).first(HashBytes(hash)); }

// To look up an algorithm in OpenSSL takes longer than to use it: a thread looks up each hash once. Between
// calls its context holds a key of zeros.
EVP_MAC_CTX* SharedHmac(Hash hash) {
  thread_local const MacContext sha256 = NewHmac(Hash::kSha256, ZeroKey(Hash::kSha256));
  thread_local const MacContext sha384 = NewHmac(Hash::kSha384, ZeroKey(Hash::kSha384));
  return hash == Hash::kSha256 ? sha256.get() : sha384.get();
}

// HMAC of the parts, HashBytes(hash) bytes.
SecretBytes Hmac(Hash hash, ByteSpan key, std::initializer_list<ByteSpan> parts) {
  EVP_MAC_CTX* context = SharedHmac(hash);
  if (key.empty()) key = ZeroKey(hash);
  SecretBytes out(HashBytes(hash));
  size_t size = 0;
  LH_CHECK(EVP_MAC_init(context, key.data(), key.size(), nullptr) == 1);
  for (const ByteSpan part : parts) LH_CHECK(EVP_MAC_update(context, part.data(), part.size()) == 1);
  LH_CHECK(EVP_MAC_final(context, out.span().data(), &size, out.size()) == 1);
  LH_CHECK(EVP_MAC_init(context, kZeros.data(), HashBytes(hash), nullptr) == 1);
  return out;
}

}  // namespace

SecretBytes HkdfExtract(Hash hash, ByteSpan salt, ByteSpan key_material) {
  return Hmac(hash, salt, {key_material});
}

SecretBytes HkdfExpand(Hash hash, ByteSpan secret, ByteSpan info, size_t bytes) {
  LH_CHECK_OP(bytes, <=, 255 * HashBytes(hash));
  SecretBytes out(bytes), block;
  uint8_t count = 0;
  for (size_t done = 0; done < bytes; done += block.size()) {
    ++count;
    block = Hmac(hash, secret, {block.span(), info, ByteSpan(&count, 1)});
    std::copy_n(block.span().begin(), std::min(block.size(), bytes - done),
                out.span().begin() + static_cast<std::ptrdiff_t>(done));
  }
  return out;
}

SecretBytes HkdfExpandLabel(Hash hash, ByteSpan secret, std::string_view label, ByteSpan context,
                            size_t bytes, std::string_view prefix) {
  std::array<uint8_t, 4 + kOwnLabels.size() + 32 + 255> info{};
  ByteWriter out(info);
  out.U16(static_cast<uint16_t>(bytes));
  out.U8(static_cast<uint8_t>(prefix.size() + label.size()));
  for (std::string_view part : {prefix, label}) {
    for (char c : part) out.U8(static_cast<uint8_t>(c));
  }
  out.U8(static_cast<uint8_t>(context.size()));
  out.Bytes(context);
  LH_CHECK(out.ok() && prefix.size() <= kOwnLabels.size() && label.size() <= 32 && context.size() <= 255);
  return HkdfExpand(hash, secret, out.written(), bytes);
}

MacContext NewHmacSha256(ByteSpan key) { return NewHmac(Hash::kSha256, key); }

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
