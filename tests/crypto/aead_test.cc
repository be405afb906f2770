// The AEADs against published vectors, and against damage.
#include "transport/crypto/aead.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/crypto/heap_watch.h"
#include "tests/crypto/hex.h"

namespace longhaul::crypto {
namespace {

struct Vector {
  AeadSuite suite;
  std::vector<uint8_t> key, nonce, header, plain, sealed, tag;
};

constexpr const char* kGcmPlain =
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
    "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39";

// McGrew and Viega, "The Galois/Counter Mode of Operation", test cases 4 and 16; RFC 9001 appendix A.5.
std::vector<Vector> Vectors() {
  return {
      {AeadSuite::kAes128Gcm, Hex("feffe9928665731c6d6a8f9467308308"), Hex("cafebabefacedbaddecaf888"),
       Hex("feedfacedeadbeeffeedfacedeadbeefabaddad2"), Hex(kGcmPlain),
       Hex("42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e"
           "21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091"),
       Hex("5bc94fbc3221a5db94fae95ae7121a47")},
      {AeadSuite::kAes256Gcm, Hex("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308"),
       Hex("cafebabefacedbaddecaf888"), Hex("feedfacedeadbeeffeedfacedeadbeefabaddad2"), Hex(kGcmPlain),
       Hex("522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
           "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"),
       Hex("76fc6ece0f4e1768cddf8853bb2d551b")},
      {AeadSuite::kChaCha20Poly1305, Hex("c6d98ff3441c3fe1b2182094f69caa2ed4b716b65488960a7a984979fb23e1c8"),
       Hex("e0459b3474bdd0e46d417eb0"), Hex("4200bff4"), Hex("01"), Hex("65"),
       Hex("5e5cd55c41f69080575d7999c25a5bfb")},
  };
}

AeadNonce NonceOf(const std::vector<uint8_t>& bytes) {
  AeadNonce nonce{};
  std::copy(bytes.begin(), bytes.end(), nonce.begin());
  return nonce;
}

TEST(AeadTest, PublishedVectors) {
  for (const Vector& v : Vectors()) {
    SCOPED_TRACE(AeadName(v.suite));
    std::vector<uint8_t> body = v.plain, tag(kAeadTagBytes);
    MakeAead(v.suite, Aead::Use::kSeal, v.key)->Seal(NonceOf(v.nonce), v.header, body, tag);
    EXPECT_EQ(body, v.sealed);
    EXPECT_EQ(tag, v.tag);
    EXPECT_TRUE(MakeAead(v.suite, Aead::Use::kOpen, v.key)->Open(NonceOf(v.nonce), v.header, body, tag));
    EXPECT_EQ(body, v.plain);
  }
}

class AeadSuiteTest : public testing::TestWithParam<AeadSuite> {
 protected:
  std::vector<uint8_t> key_ = std::vector<uint8_t>(AeadKeyBytes(GetParam()), 0x42);
  std::unique_ptr<Aead> seal_ = MakeAead(GetParam(), Aead::Use::kSeal, key_);
  std::unique_ptr<Aead> open_ = MakeAead(GetParam(), Aead::Use::kOpen, key_);
};

// A context that is used again must not remember the packet before, a forged one least of all.
TEST_P(AeadSuiteTest, AReusedContextOpensEveryLengthAlsoAfterForgedPackets) {
  for (size_t size = 0; size <= 130; ++size) {
    AeadNonce nonce{};
    nonce[11] = static_cast<uint8_t>(size);
    std::vector<uint8_t> header(size % 40, 7), body(size, 9), tag(kAeadTagBytes);
    const std::vector<uint8_t> plain = body;
    seal_->Seal(nonce, header, body, tag);
    std::vector<uint8_t> forged = body, wrong = tag;
    wrong[size % 16] ^= 1;
    ASSERT_FALSE(open_->Open(nonce, header, forged, wrong)) << size;
    ASSERT_TRUE(open_->Open(nonce, header, body, tag)) << size;
    ASSERT_EQ(body, plain);
  }
}

TEST_P(AeadSuiteTest, ATagOfAnotherSizeDoesNotOpen) {
  std::vector<uint8_t> body(20), tag(kAeadTagBytes);
  seal_->Seal({}, {}, body, tag);
  for (size_t size = 0; size < kAeadTagBytes; ++size) {
    EXPECT_FALSE(open_->Open({}, {}, body, ByteSpan(tag).first(size)));
  }
}

TEST_P(AeadSuiteTest, SealingAndOpeningDoNotAllocate) {
  ASSERT_TRUE(HeapWatch::SeesOpenSsl());
  std::vector<uint8_t> header(32), body(1408), tag(kAeadTagBytes);
  AeadNonce nonce{};
  uint64_t opened = 0;
  const HeapWatch watch;
  for (int i = 0; i < 100; ++i) {
    nonce[0] = static_cast<uint8_t>(i);
    seal_->Seal(nonce, header, body, tag);
    opened += open_->Open(nonce, header, body, tag) ? 1 : 0;
  }
  EXPECT_EQ(watch.allocations(), 0u);
  EXPECT_EQ(opened, 100u);
}

TEST_P(AeadSuiteTest, TheKeyIsWiped) {
  ASSERT_TRUE(HeapWatch::SeesOpenSsl());
  const HeapWatch watch(key_);
  seal_.reset();
  open_.reset();
  EXPECT_EQ(watch.leaks(), 0u);
}

std::string SuiteTestName(const testing::TestParamInfo<AeadSuite>& info) {
  constexpr const char* kNames[] = {"Aes128Gcm", "Aes256Gcm", "ChaCha20Poly1305"};
  return kNames[static_cast<size_t>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Suites, AeadSuiteTest,
                         testing::Values(AeadSuite::kAes128Gcm, AeadSuite::kAes256Gcm,
                                         AeadSuite::kChaCha20Poly1305),
                         SuiteTestName);

// RFC 9001 §6.6 and appendix B, in its own units: packets of 2^11 and of 2^16 bytes.
TEST(AeadTest, LimitsAreRfc9001s) {
  for (AeadSuite suite : {AeadSuite::kAes128Gcm, AeadSuite::kAes256Gcm}) {
    EXPECT_EQ(LimitsOf(suite).sealed_blocks / ((1 << 11) / 16), uint64_t{1} << 28);
    EXPECT_EQ(LimitsOf(suite).sealed_blocks / ((1 << 16) / 16), uint64_t{1} << 23);
    EXPECT_EQ(LimitsOf(suite).forged_packets, uint64_t{1} << 52);
  }
  EXPECT_EQ(LimitsOf(AeadSuite::kChaCha20Poly1305).forged_packets, uint64_t{1} << 36);
}

}  // namespace
}  // namespace longhaul::crypto
