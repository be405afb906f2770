// What an attacker must not be able to compute, though he knows the seed of an endpoint's chance: its outputs
// travel in clear, and a few of them give its state away.
#include <gtest/gtest.h>

#include <algorithm>

#include "proto/version.h"
#include "tests/crypto/tls_pair.h"
#include "tests/transport/bare_pair.h"
#include "tests/transport/fake_security.h"
#include "transport/core/connection/packet_builder.h"
#include "transport/core/endpoint/admission.h"
#include "transport/core/path/path_manager.h"
#include "transport/core/security/integrity_tag.h"

namespace longhaul::crypto {
namespace {

using namespace std::chrono_literals;
using transport::Endpoint;
using transport::EndpointOptions;
using transport::NullSecurity;
using transport::PathManager;
using transport::Security;
using Bytes = std::vector<uint8_t>;

constexpr uint64_t kSeed = 7;
const Instant kNow = Instant() + 100s;
const Address kClient = Address::V4(10, 0, 0, 1, 40000), kServer = Address::V4(10, 0, 0, 2, 7700);

uint64_t ConnectionIdOf(Security* security) {
  EndpointOptions options;
  options.security = security;
  Endpoint endpoint(options, Random(kSeed));
  return endpoint.Connect(kNow, kServer)->local_id().value;
}

// What a server of that seed says to one datagram.
Bytes AnswerOf(Security* security, Bytes datagram) {
  EndpointOptions options;
  options.security = security;
  options.accepts = true;
  options.admission.always_cookie = true;
  Endpoint endpoint(options, Random(kSeed));
  endpoint.HandleDatagram(kNow, kClient, datagram, {});
  Bytes buffer(65'535);
  const auto transmit = endpoint.PollTransmit(kNow, buffer);
  buffer.resize(transmit ? transmit->size : 0);
  return buffer;
}

Bytes Init(Security& security) {
  Bytes bytes(1200);
  transport::PacketBuilder builder(bytes);
  builder.StartLong(wire::LongType::kInit, wire::kVersion, {}, {1}, 0);
  builder.PadTo(bytes.size());
  bytes.resize(builder.Seal(security.long_protection()));
  return bytes;
}

uint64_t ChallengeOf(Security* security) {
  PathManager paths(security, Random(kSeed));
  paths.OnCandidate(kNow, kClient, 1200, 100ms);
  return paths.NextChallenge(kNow)->data;
}

// Which of many addresses share the client's bucket at a server of that seed: their INITs are not opened once
// the client's have used it up.
std::vector<uint32_t> SharersOf(Security& security) {
  EndpointOptions options;
  options.security = &security;
  options.accepts = true;
  Endpoint endpoint(options, Random(kSeed));
  NullSecurity none;
  const Bytes garbage = Init(none);
  const auto is_limited = [&](const Address& from) {
    const uint64_t before = endpoint.stats().failures_limited;
    Bytes datagram = garbage;
    endpoint.HandleDatagram(kNow, from, datagram, {});
    return endpoint.stats().failures_limited > before;
  };
  while (!is_limited(kClient)) {
  }
  std::vector<uint32_t> sharers;
  for (uint32_t i = 0; i < 10 * transport::Admission::kAddressBuckets; ++i) {
    const auto byte = [i](int shift) { return static_cast<uint8_t>(i >> shift); };
    if (is_limited(Address::V4(11, byte(16), byte(8), byte(0), 9))) sharers.push_back(i);
  }
  return sharers;
}

// The same key and the same seed, twice.
class UnpredictableTest : public testing::Test {
 protected:
  void SetUp() override {
    const Side side(Text(NewPsk("job-a")), Role::kServer);
    one = side.Make();
    two = side.Make();
  }
  std::unique_ptr<TlsSecurity> one, two;
};

TEST_F(UnpredictableTest, ConnectionIdsDoNotFollowFromTheSeed) {
  EXPECT_NE(ConnectionIdOf(one.get()), ConnectionIdOf(two.get()));
  EXPECT_NE(ConnectionIdOf(one.get()), ConnectionIdOf(one.get()));
  NullSecurity none;
  EXPECT_EQ(ConnectionIdOf(&none), ConnectionIdOf(nullptr)) << "a simulation can be repeated";
}

TEST_F(UnpredictableTest, ChallengesDoNotFollowFromTheSeed) {
  EXPECT_NE(ChallengeOf(one.get()), ChallengeOf(two.get()));
  NullSecurity none;
  EXPECT_EQ(ChallengeOf(&none), ChallengeOf(&none));
}

TEST_F(UnpredictableTest, RetriesDoNotFollowFromTheSeed) {
  const Bytes first = AnswerOf(one.get(), Init(*one)), second = AnswerOf(two.get(), Init(*two));
  ByteReader a(first), b(second);
  const auto header_a = wire::DecodeLongHeader(a), header_b = wire::DecodeLongHeader(b);
  ASSERT_TRUE(header_a && header_b);
  ASSERT_EQ(header_a->type, wire::LongType::kRetry);
  EXPECT_NE(header_a->source, header_b->source);
  EXPECT_NE(header_a->packet_number, header_b->packet_number);
}

TEST_F(UnpredictableTest, TheFillerOfResetsDoesNotFollowFromTheSeed) {
  Bytes stray(100, 5);
  stray[0] = 0;
  const Bytes first = AnswerOf(one.get(), stray), second = AnswerOf(two.get(), stray);
  ASSERT_GE(first.size(), 32u);
  ASSERT_GE(second.size(), 32u);
  const auto filler = [](const Bytes& reset) { return Bytes(reset.begin() + 1, reset.begin() + 16); };
  EXPECT_NE(filler(first), filler(second));
}

TEST_F(UnpredictableTest, BucketsOfAddressesDoNotFollowFromTheSeed) {
  EXPECT_NE(SharersOf(*one), SharersOf(*two));
  transport::FakeSecurity fake({});
  EXPECT_FALSE(SharersOf(fake).empty());
  EXPECT_EQ(SharersOf(fake), SharersOf(fake)) << "a simulation can be repeated";
}

TEST_F(UnpredictableTest, NoTwoOfTenThousandAreTheSame) {
  std::vector<uint64_t> drawn;
  for (int i = 0; i < 10'000; ++i) drawn.push_back(one->Unpredictable(kSeed));
  std::sort(drawn.begin(), drawn.end());
  EXPECT_EQ(std::adjacent_find(drawn.begin(), drawn.end()), drawn.end());
}

}  // namespace
}  // namespace longhaul::crypto
