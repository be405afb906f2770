// Bytes that must not outlive their use: keys, secrets, texts of key files. Wiped when they die or are
// replaced.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "base/bytes.h"

namespace longhaul::crypto {

// Of fixed size: growing would leave copies behind. Has no way to be printed.
class SecretBytes {
 public:
  SecretBytes() = default;
  // Zeros.
  explicit SecretBytes(size_t size);
  explicit SecretBytes(ByteSpan bytes);
  explicit SecretBytes(std::string_view text);
  SecretBytes(const SecretBytes& other) : SecretBytes(other.span()) {}
  SecretBytes(SecretBytes&& other) noexcept { Swap(other); }
  SecretBytes& operator=(SecretBytes other) noexcept;
  ~SecretBytes() { Wipe(); }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  ByteSpan span() const { return {bytes_.get(), size_}; }
  MutableByteSpan span() { return {bytes_.get(), size_}; }
  // The same bytes as text, not copied.
  std::string_view text() const;
  // Zeros in place of the bytes, and nothing left.
  void Wipe();

  // In constant time for secrets of one size.
  friend bool operator==(const SecretBytes& a, const SecretBytes& b);

 private:
  void Swap(SecretBytes& other) noexcept;

  std::unique_ptr<uint8_t[]> bytes_;
  size_t size_ = 0;
};

// Zeros that no compiler leaves out.
void WipeBytes(MutableByteSpan bytes);

// In constant time for spans of one size.
bool SecretsEqual(ByteSpan a, ByteSpan b);

}  // namespace longhaul::crypto
