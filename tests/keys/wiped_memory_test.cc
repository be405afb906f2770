// What OpenSSL frees is wiped, in a program that has asked for it before anything else, as ours do.
#include <gtest/gtest.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "transport/keys/key_file.h"

namespace longhaul::keys {
namespace {

const bool g_wiped = WipeFreedKeys();

TEST(WipedMemory, HoldsForAWholeProgram) {
  EXPECT_TRUE(g_wiped);
  // The next block of the size is the freed one, but with a sanitizer.
  constexpr size_t kBytes = 7608;  // an SSL of OpenSSL 3.0
  void* secret = OPENSSL_malloc(kBytes);
  std::memset(secret, 0xa5, kBytes);
  OPENSSL_free(secret);
  const std::unique_ptr<void, decltype(&std::free)> next(std::malloc(kBytes), std::free);
  const auto* bytes = static_cast<const uint8_t*>(next.get());
  EXPECT_LT(std::count(bytes, bytes + kBytes, 0xa5), 100);
}

}  // namespace
}  // namespace longhaul::keys
