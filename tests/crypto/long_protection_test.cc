// Long packets before a connection has keys.
#include "transport/crypto/long_protection.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <vector>

#include "tests/crypto/heap_watch.h"
#include "tests/crypto/hex.h"
#include "transport/crypto/key_derivation.h"

namespace longhaul::crypto {
namespace {

class LongProtectionTest : public testing::Test {
 protected:
  bool Opens(LongProtection& by, uint64_t number = 3, uint8_t path = 0) {
    std::vector<uint8_t> body = body_;
    return by.Open(number, path, header_, body, tag_) && body == plain_;
  }

  std::vector<uint8_t> key_ = std::vector<uint8_t>(32, 0x5a);
  LongProtection one_{key_, true}, other_{key_, true};
  std::vector<uint8_t> header_ = std::vector<uint8_t>(26, 0x80), plain_ = std::vector<uint8_t>(1200, 7);
  std::vector<uint8_t> body_ = plain_, tag_ = std::vector<uint8_t>(16);
};

TEST_F(LongProtectionTest, APacketIsUnreadableUntilOpened) {
  one_.Seal(3, 0, header_, body_, tag_);
  EXPECT_NE(body_, plain_);
  EXPECT_TRUE(Opens(other_));
  EXPECT_TRUE(one_.IsSecure());
}

TEST_F(LongProtectionTest, EveryFlippedBitOtherNumbersAndKeysAreRefused) {
  body_.resize(64);
  plain_.resize(64);
  one_.Seal(3, 0, header_, body_, tag_);
  for (std::vector<uint8_t>* part : {&header_, &body_, &tag_}) {
    for (size_t bit = 0; bit < part->size() * 8; ++bit) {
      const auto mask = static_cast<uint8_t>(1u << (bit % 8));
      (*part)[bit / 8] ^= mask;
      ASSERT_FALSE(Opens(other_)) << bit;
      (*part)[bit / 8] ^= mask;
    }
  }
  EXPECT_FALSE(Opens(other_, 4));
  EXPECT_FALSE(Opens(other_, 3, 1));
  LongProtection stranger(PublicLongKey(), false);
  EXPECT_FALSE(Opens(stranger));
  EXPECT_FALSE(stranger.IsSecure());
  tag_.pop_back();
  EXPECT_FALSE(Opens(other_));
}

// Header and body are kept apart by the header's length.
TEST_F(LongProtectionTest, AByteMovedFromBodyToHeaderIsRefused) {
  body_ = plain_ = {};
  one_.Seal(3, 0, header_, body_, tag_);
  body_.assign(1, header_.back());
  header_.pop_back();
  EXPECT_FALSE(other_.Open(3, 0, header_, body_, tag_));
}

// Stateless servers repeat numbers; only what is equal in everything may look equal.
TEST_F(LongProtectionTest, ARepeatedNumberGivesAnotherKeyStream) {
  std::vector<uint8_t> second = plain_, tag(16);
  second.back() ^= 1;
  one_.Seal(3, 0, header_, body_, tag_);
  other_.Seal(3, 0, header_, second, tag);
  EXPECT_NE(tag, tag_);
  size_t equal = 0;
  for (size_t i = 0; i + 1 < second.size(); ++i) equal += second[i] == body_[i] ? 1 : 0;
  EXPECT_LT(equal, 30u) << "1199 bytes of one plaintext; chance makes 5 equal";
}

// Computed here with OpenSSL's one-shot calls from what the header promises.
TEST_F(LongProtectionTest, TagAndBodyAreTheDocumentedOnes) {
  const SecretBytes k1 = HkdfExpandLabel(Hash::kSha256, key_, "long mac", {}, 32);
  const SecretBytes k2 = HkdfExpandLabel(Hash::kSha256, key_, "long key", {}, 16);
  one_.Seal(3, 0, header_, body_, tag_);
  std::vector<uint8_t> message = Hex("0000000000000003 00 0000001a");
  message.insert(message.end(), header_.begin(), header_.end());
  message.insert(message.end(), plain_.begin(), plain_.end());
  std::vector<uint8_t> mac(32);
  unsigned size = 0;
  ASSERT_NE(HMAC(EVP_sha256(), k1.span().data(), 32, message.data(), message.size(), mac.data(), &size),
            nullptr);
  mac.resize(16);
  EXPECT_EQ(mac, tag_);
  std::vector<uint8_t> sealed(plain_.size());
  int written = 0;
  const CipherContext context(EVP_CIPHER_CTX_new());
  ASSERT_EQ(EVP_EncryptInit_ex(context.get(), EVP_aes_128_ctr(), nullptr, k2.span().data(), mac.data()), 1);
  ASSERT_EQ(EVP_EncryptUpdate(context.get(), sealed.data(), &written, plain_.data(), 1200), 1);
  EXPECT_EQ(sealed, body_);
}

TEST_F(LongProtectionTest, TheKeysAreWiped) {
  ASSERT_TRUE(HeapWatch::SeesOpenSsl());
  for (const char* label : {"long mac", "long key"}) {
    const SecretBytes derived = HkdfExpandLabel(Hash::kSha256, key_, label, {}, 16);
    const HeapWatch watch(derived.span());
    {
      LongProtection protection(key_, true);
      protection.Seal(3, 0, header_, body_, tag_);
    }
    EXPECT_EQ(watch.leaks(), 0u);
  }
}

}  // namespace
}  // namespace longhaul::crypto
