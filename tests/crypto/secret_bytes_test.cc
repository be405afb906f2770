// Secrets do not stay in the heap, and the watch that says so can see.
#include "transport/crypto/secret_bytes.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "tests/crypto/heap_watch.h"

namespace longhaul::crypto {
namespace {

constexpr std::array<uint8_t, 16> kSecret = {0x13, 0x37, 0xc0, 0xde, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

TEST(SecretBytesTest, TheWatchFindsASecretThatIsNotWiped) {
  const HeapWatch watch(kSecret);
  std::optional<std::vector<uint8_t>> careless(std::in_place, kSecret.begin(), kSecret.end());
  careless.reset();
  EXPECT_EQ(watch.leaks(), 1u);
}

TEST(SecretBytesTest, DyingReplacedMovedAndCopiedSecretsAreWiped) {
  const HeapWatch watch(kSecret);
  {
    SecretBytes secret{ByteSpan(kSecret)};
    SecretBytes copy = secret;
    SecretBytes moved = std::move(copy);
    EXPECT_EQ(moved, secret);
    moved = SecretBytes(16);
    EXPECT_FALSE(moved == secret);
    secret.Wipe();
    EXPECT_TRUE(secret.empty());
    moved = SecretBytes(ByteSpan(kSecret));
  }
  EXPECT_EQ(watch.leaks(), 0u);
}

TEST(SecretBytesTest, SecretsOfDifferentSizeAreDifferent) {
  EXPECT_FALSE(SecretBytes(15) == SecretBytes(16));
  EXPECT_TRUE(SecretBytes() == SecretBytes());
}

}  // namespace
}  // namespace longhaul::crypto
