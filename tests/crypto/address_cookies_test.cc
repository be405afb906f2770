// Cookies prove an address for 30 to 60 seconds.
#include "transport/crypto/address_cookies.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/crypto/heap_watch.h"
#include "tests/crypto/hex.h"

namespace longhaul::crypto {
namespace {

constexpr Instant At(int64_t seconds) { return Instant::FromNanoseconds(seconds * 1'000'000'000); }

class AddressCookiesTest : public testing::Test {
 protected:
  AddressCookies cookies_{SecretBytes(32)};
  const Address here_ = Address::V4(192, 0, 2, 1, 7700);
  const wire::ConnectionId client_{0x1122334455667788};
};

// The authors' vectors_sip128: key 00..0f, messages of no byte and of the byte 00.
TEST(SipHashTest, PublishedVectors) {
  SipHash hash;
  const auto key = Hex("000102030405060708090a0b0c0d0e0f");
  const auto none = hash(key, {}), one = hash(key, Hex("00"));
  EXPECT_EQ(std::vector<uint8_t>(none.begin(), none.end()), Hex("a3817f04ba25a8e66df67214c7550293"));
  EXPECT_EQ(std::vector<uint8_t>(one.begin(), one.end()), Hex("da87c1d86b99af44347659119b22fc45"));
}

TEST_F(AddressCookiesTest, ACookieIsGoodUntilTheEndOfTheNextPeriod) {
  for (int64_t made :
       {0, 29, 30, 7'679, 7'680, 1'000'000'000}) {  // 7,680 s: the low 8 bits of the period wrap
    const transport::Cookie cookie = cookies_.Make(At(made), here_, client_);
    const int64_t end = (made / 30 + 2) * 30;
    for (int64_t t : {made, end - 1})
      EXPECT_TRUE(cookies_.Check(At(t), here_, client_, cookie)) << made << " " << t;
    for (int64_t t : {end, end + 30, end + 30 * 254, end + 30 * 255}) {
      EXPECT_FALSE(cookies_.Check(At(t), here_, client_, cookie)) << made << " " << t;
    }
  }
}

TEST_F(AddressCookiesTest, ACookieOfTheFutureIsRefused) {
  const transport::Cookie cookie = cookies_.Make(At(1000), here_, client_);
  EXPECT_FALSE(cookies_.Check(At(900), here_, client_, cookie));
  EXPECT_FALSE(cookies_.Check(At(0), here_, client_, cookie));
}

TEST_F(AddressCookiesTest, AnotherAddressPortOrClientIsRefused) {
  const transport::Cookie cookie = cookies_.Make(At(100), here_, client_);
  EXPECT_FALSE(cookies_.Check(At(100), Address::V4(192, 0, 2, 2, 7700), client_, cookie));
  EXPECT_FALSE(cookies_.Check(At(100), Address::V4(192, 0, 2, 1, 7701), client_, cookie));
  EXPECT_FALSE(cookies_.Check(At(100), here_, {client_.value ^ 1}, cookie));
  EXPECT_TRUE(cookies_.Check(At(100), here_, client_, cookie));
}

TEST_F(AddressCookiesTest, EveryFlippedBitAndOtherSizesAreRefused) {
  transport::Cookie cookie = cookies_.Make(At(100), here_, client_);
  for (size_t bit = 0; bit < cookie.size() * 8; ++bit) {
    const auto mask = static_cast<uint8_t>(1u << (bit % 8));
    cookie[bit / 8] ^= mask;
    ASSERT_FALSE(cookies_.Check(At(100), here_, client_, cookie)) << bit;
    cookie[bit / 8] ^= mask;
  }
  for (size_t size = 0; size < cookie.size(); ++size) {
    EXPECT_FALSE(cookies_.Check(At(100), here_, client_, ByteSpan(cookie).first(size)));
  }
}

TEST_F(AddressCookiesTest, AnotherServersCookieIsRefused) {
  AddressCookies other{SecretBytes(ByteSpan(std::vector<uint8_t>(32, 1)))};
  EXPECT_FALSE(cookies_.Check(At(100), here_, client_, other.Make(At(100), here_, client_)));
}

TEST_F(AddressCookiesTest, WithinAPeriodNothingIsAllocated) {
  ASSERT_TRUE(HeapWatch::SeesOpenSsl());
  (void)cookies_.Make(At(100), here_, client_);
  (void)cookies_.Make(At(130), here_, client_);
  const HeapWatch watch;
  for (int i = 0; i < 100; ++i) {
    const transport::Cookie cookie = cookies_.Make(At(130), here_, {static_cast<uint64_t>(i)});
    EXPECT_TRUE(cookies_.Check(At(135), here_, {static_cast<uint64_t>(i)}, cookie));
  }
  EXPECT_EQ(watch.allocations(), 0u);
}

}  // namespace
}  // namespace longhaul::crypto
