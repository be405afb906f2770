#include "transport/core/endpoint/admission.h"

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
  AdmissionOptions options{.max_half_open = 64, .inits_without_cookie = 50};
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
    admission.OnDidNotOpen(kStart, from, false);
  }
  EXPECT_EQ(begun, 20);
  EXPECT_FALSE(admission.MayOpen(kStart, loud, false));
  EXPECT_TRUE(admission.MayOpen(kStart, quiet, false));
  EXPECT_TRUE(admission.MayBegin(kStart, quiet));
  EXPECT_TRUE(admission.MayOpen(kStart + 1s, loud, false));
}

// Noise without proof uses up only a host's allowance without proof, and noise with proof only the other.
TEST(Admission, NoiseWithoutProofLeavesRoomForWhoHasProof) {
  for (const bool loud_has_proof : {true, false}) {
    AdmissionOptions options;
    options.failures_per_address = 10;
    Admission admission(options, 7);
    const Address host = Address::V4(10, 0, 0, 1, 1);
    for (int i = 0; i < 1000; ++i) admission.OnDidNotOpen(kStart, host, loud_has_proof);
    EXPECT_FALSE(admission.MayOpen(kStart, host, loud_has_proof));
    EXPECT_TRUE(admission.MayOpen(kStart, host, !loud_has_proof));
  }
}

TEST(Admission, RetriesToWhoDidNotOpenLeaveThoseOfTheOthers) {
  AdmissionOptions options;
  options.retries = 10;
  Admission admission(options, 7);
  int retries = 0;
  for (int i = 0; i < 100; ++i) retries += admission.MayRetry(kStart, false) ? 1 : 0;
  EXPECT_EQ(retries, 10);
  EXPECT_TRUE(admission.MayRetry(kStart, true));
}

TEST(Admission, AHostIsAnAddressOfIpv4AndHalfOfIpv6) {
  Address a, b;
  a.ip = {0x20, 0x01, 0x0d, 0xb8, 0, 1, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  b = a;
  b.ip[8] = b.ip[15] = 99;
  b.port = 5;
  EXPECT_EQ(NetworkOf(a), NetworkOf(b));
  b.ip[7] = 99;
  EXPECT_NE(NetworkOf(a), NetworkOf(b));
  EXPECT_EQ(NetworkOf(Address::V4(10, 0, 0, 1, 1)), NetworkOf(Address::V4(10, 0, 0, 1, 2)));
  EXPECT_NE(NetworkOf(Address::V4(10, 0, 0, 1, 1)), NetworkOf(Address::V4(10, 0, 0, 2, 1)));
}

// 10,000 failures a second from addresses that do not exist leave room in every bucket.
TEST(Admission, ScatteredFailuresDisturbNobody) {
  Admission admission({}, 3);
  Random random(5);
  for (int i = 0; i < 100'000; ++i) {
    const auto byte = [&] { return static_cast<uint8_t>(random.Next()); };
    admission.OnDidNotOpen(kStart + Duration(100us) * i, Address::V4(byte(), byte(), byte(), byte(), 1),
                           false);
  }
  for (uint8_t i = 0; i < 200; ++i)
    EXPECT_TRUE(admission.MayOpen(kStart + 10s, Address::V4(192, 168, 1, i, 1), false));
}

}  // namespace
}  // namespace longhaul::transport
