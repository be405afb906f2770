#include "transport/core/admission.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;

const Instant kStart = Instant() + 100s;

TEST(TokenBucket, GivesItsRateAndNoMore) {
  TokenBucket bucket(10, 5);
  int taken = 0;
  for (int i = 0; i < 100; ++i) taken += bucket.Take(kStart) ? 1 : 0;
  EXPECT_EQ(taken, 5);
  for (int ms = 0; ms < 10'000; ++ms) taken += bucket.Take(kStart + Duration(1ms) * ms) ? 1 : 0;
  EXPECT_NEAR(taken, 105, 1);
  EXPECT_FALSE(bucket.Take(kStart));  // time that goes backwards gives nothing
}

TEST(Admission, AsksForCookiesUnderLoadOnly) {
  AdmissionOptions options;
  options.max_half_open = 64;
  options.inits_without_cookie = 50;
  Admission admission(options, 1);
  EXPECT_FALSE(admission.NeedsCookie(kStart, 0));
  EXPECT_FALSE(admission.NeedsCookie(kStart, 16));
  EXPECT_TRUE(admission.NeedsCookie(kStart, 17));
  int asked = 0;
  for (int i = 0; i < 1000; ++i) asked += admission.NeedsCookie(kStart + 1s, 0) ? 1 : 0;
  EXPECT_EQ(asked, 950);
  EXPECT_FALSE(admission.NeedsCookie(kStart + 3s, 0));
  options.always_cookie = true;
  EXPECT_TRUE(Admission(options, 1).NeedsCookie(kStart, 0));
}

TEST(Admission, OneAddressCannotUseUpAnothers) {
  AdmissionOptions options;
  options.handshakes_per_address = options.failures_per_address = 10;
  Admission admission(options, 7);
  const Address loud = Address::V4(10, 0, 0, 1, 1), quiet = Address::V4(10, 0, 0, 2, 1);
  int begun = 0;
  for (uint16_t port = 1; port < 1000; ++port) {
    Address from = loud;
    from.port = port;  // ports are free: the host counts
    begun += admission.MayBegin(kStart, from) ? 1 : 0;
    admission.OnDidNotOpen(kStart, from);
  }
  EXPECT_EQ(begun, 20);
  EXPECT_FALSE(admission.MayOpen(kStart, loud));
  EXPECT_TRUE(admission.MayOpen(kStart, quiet));
  EXPECT_TRUE(admission.MayBegin(kStart, quiet));
  EXPECT_TRUE(admission.MayOpen(kStart + 1s, loud));
}

// 10,000 failures a second from addresses that do not exist leave room in every bucket.
TEST(Admission, ScatteredFailuresDisturbNobody) {
  Admission admission({}, 3);
  Random random(5);
  for (int i = 0; i < 100'000; ++i) {
    const auto byte = [&] { return static_cast<uint8_t>(random.Next()); };
    admission.OnDidNotOpen(kStart + Duration(100us) * i, Address::V4(byte(), byte(), byte(), byte(), 1));
  }
  for (uint8_t i = 0; i < 200; ++i)
    EXPECT_TRUE(admission.MayOpen(kStart + 10s, Address::V4(192, 168, 1, i, 1)));
}

}  // namespace
}  // namespace longhaul::transport
