#include "transport/crypto/secret_bytes.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <utility>

namespace longhaul::crypto {

SecretBytes::SecretBytes(size_t size) : bytes_(std::make_unique<uint8_t[]>(size)), size_(size) {}

SecretBytes::SecretBytes(ByteSpan bytes) : SecretBytes(bytes.size()) {
  std::copy(bytes.begin(), bytes.end(), bytes_.get());
}

SecretBytes::SecretBytes(std::string_view text) : SecretBytes(text.size()) {
  std::copy(text.begin(), text.end(), bytes_.get());
}

SecretBytes& SecretBytes::operator=(SecretBytes other) noexcept {
  Swap(other);
  return *this;
}

std::string_view SecretBytes::text() const { return {reinterpret_cast<const char*>(bytes_.get()), size_}; }

void SecretBytes::Wipe() {
  WipeBytes(span());
  bytes_.reset();
  size_ = 0;
}

bool operator==(const SecretBytes& a, const SecretBytes& b) { return SecretsEqual(a.span(), b.span()); }

void SecretBytes::Swap(SecretBytes& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(size_, other.size_);
}

void WipeBytes(MutableByteSpan bytes) { OPENSSL_cleanse(bytes.data(), bytes.size()); }

bool SecretsEqual(ByteSpan a, ByteSpan b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace longhaul::crypto
