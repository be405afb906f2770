// HKDF against published vectors.
#include "transport/crypto/key_derivation.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/crypto/hex.h"

namespace longhaul::crypto {
namespace {

std::vector<uint8_t> Bytes(const SecretBytes& secret) { return {secret.span().begin(), secret.span().end()}; }

// RFC 5869 appendix A.
TEST(HkdfTest, Rfc5869TestCase1) {
  const auto prk = HkdfExtract(Hash::kSha256, Hex("000102030405060708090a0b0c"),
                               Hex("0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b"));
  EXPECT_EQ(Bytes(prk), Hex("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5"));
  EXPECT_EQ(Bytes(HkdfExpand(Hash::kSha256, prk.span(), Hex("f0f1f2f3f4f5f6f7f8f9"), 42)),
            Hex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"));
}

TEST(HkdfTest, Rfc5869TestCase3HasNeitherSaltNorInfo) {
  const auto prk = HkdfExtract(Hash::kSha256, {}, Hex("0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b"));
  EXPECT_EQ(Bytes(prk), Hex("19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04"));
  EXPECT_EQ(Bytes(HkdfExpand(Hash::kSha256, prk.span(), {}, 42)),
            Hex("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"));
}

// RFC 9001 appendix A.1: QUIC's Initial secrets.
TEST(HkdfTest, Rfc9001InitialSecret) {
  const auto initial =
      HkdfExtract(Hash::kSha256, Hex("38762cf7f55934b34d179ae6a4c80cadccbb7f0a"), Hex("8394c8f03e515708"));
  EXPECT_EQ(Bytes(initial), Hex("7db5df06e7a69e432496adedb00851923595221596ae2ae9fb8115c1e9ed0a44"));
  EXPECT_EQ(
      Bytes(HkdfExpand(Hash::kSha256, initial.span(), Hex("00200f746c73313320636c69656e7420696e00"), 32)),
      Hex("c00cf151ca5be075ed0ebfb5c80323c42d6b7db67881289af4008f1f6c357aea"));
}

// As RFC 8446 §7.1, with our prefix.
TEST(HkdfTest, ALabelIsLengthPrefixedNameAndContext) {
  const auto secret = Hex("19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04");
  // 16 bytes, 12 of "longhaul key", 2 of context
  const auto info = Hex("0010 0c 6c6f6e676861756c206b6579 02 abcd");
  EXPECT_EQ(HkdfExpandLabel(Hash::kSha256, secret, "key", Hex("abcd"), 16),
            HkdfExpand(Hash::kSha256, secret, info, 16));
  EXPECT_FALSE(HkdfExpandLabel(Hash::kSha256, secret, "key", {}, 16) ==
               HkdfExpandLabel(Hash::kSha256, secret, "kez", {}, 16));
}

TEST(HkdfTest, Sha384GivesItsOwnLengthAndKeys) {
  const auto secret = Hex("00112233445566778899aabbccddeeff");
  EXPECT_EQ(HkdfExtract(Hash::kSha384, {}, secret).size(), 48u);
  EXPECT_FALSE(HkdfExpand(Hash::kSha384, secret, {}, 32) == HkdfExpand(Hash::kSha256, secret, {}, 32));
}

}  // namespace
}  // namespace longhaul::crypto
