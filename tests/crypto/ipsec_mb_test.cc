// libipsec-mb against OpenSSL, in builds that have it (LONGHAUL_IPSEC_MB).
#ifdef LONGHAUL_IPSEC_MB
#include "transport/crypto/ipsec_mb/ipsec_mb_aead.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace longhaul::crypto {
namespace {

std::vector<uint8_t> RandomBytes(Random* random, size_t size) {
  std::vector<uint8_t> bytes(size);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random->Next());
  return bytes;
}

TEST(IpsecMbTest, SealsAndOpensAsEvpDoes) {
  if (!IpsecMbSuitsProcessor()) {
    GTEST_SKIP() << "no AES or AVX2 here: every AEAD of this machine is OpenSSL's";
  }
  constexpr uint64_t kSeed = 77;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  for (AeadSuite suite : {AeadSuite::kAes128Gcm, AeadSuite::kAes256Gcm, AeadSuite::kChaCha20Poly1305}) {
    SCOPED_TRACE(AeadName(suite));
    for (int key_round = 0; key_round < 20; ++key_round) {
      const std::vector<uint8_t> key = RandomBytes(&random, AeadKeyBytes(suite));
      const auto seal = MakeIpsecMbAead(suite, Aead::Use::kSeal, key);
      const auto open = MakeIpsecMbAead(suite, Aead::Use::kOpen, key);
      const auto evp_seal = MakeEvpAead(suite, Aead::Use::kSeal, key);
      const auto evp_open = MakeEvpAead(suite, Aead::Use::kOpen, key);
      for (int round = 0; round < 200; ++round) {
        AeadNonce nonce{};
        for (uint8_t& b : nonce) b = static_cast<uint8_t>(random.Next());
        const std::vector<uint8_t> header = RandomBytes(&random, random.Below(80));
        const std::vector<uint8_t> plain = RandomBytes(&random, random.Below(round % 10 == 0 ? 9000 : 200));
        std::vector<uint8_t> ours = plain, theirs = plain, our_tag(kAeadTagBytes), their_tag(kAeadTagBytes);
        seal->Seal(nonce, header, ours, our_tag);
        evp_seal->Seal(nonce, header, theirs, their_tag);
        ASSERT_EQ(ours, theirs) << header.size() << " " << plain.size();
        ASSERT_EQ(our_tag, their_tag) << header.size() << " " << plain.size();
        const bool damaged = random.Chance(0.3);
        if (damaged) our_tag[random.Below(kAeadTagBytes)] ^= static_cast<uint8_t>(1 + random.Below(255));
        ASSERT_EQ(open->Open(nonce, header, ours, our_tag), !damaged);
        ASSERT_EQ(evp_open->Open(nonce, header, theirs, our_tag), !damaged);
        ASSERT_TRUE(damaged || ours == plain);
      }
    }
  }
}

}  // namespace
}  // namespace longhaul::crypto
#endif
