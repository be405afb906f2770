#include "transport/udp/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace longhaul::udp {
namespace {

using testing::HasSubstr;

TEST(ParseHostPort, TakesNamesAndAddressesApart) {
  EXPECT_EQ(*ParseHostPort("node7.example:7700"), (HostPort{"node7.example", 7700}));
  EXPECT_EQ(*ParseHostPort("10.0.0.1:1"), (HostPort{"10.0.0.1", 1}));
  EXPECT_EQ(*ParseHostPort("[::1]:65535"), (HostPort{"::1", 65535}));
  EXPECT_EQ(*ParseHostPort("0.0.0.0:0"), (HostPort{"0.0.0.0", 0}));
}

TEST(ParseHostPort, SaysWhatIsWrongWithTheText) {
  const std::pair<const char*, const char*> kCases[] = {
      {"", "port is missing"},
      {"localhost", "port is missing"},
      {"localhost:", "port is missing"},
      {"[::1]", "port is missing"},
      {"[::1]7700", "port is missing"},
      {":7700", "host is missing"},
      {"[]:7700", "only IPv6"},
      {"[10.0.0.1]:7700", "only IPv6"},
      {"[::1:7700", "']' is missing"},
      {"::1:7700", "brackets"},
      {"localhost:http", "not a number"},
      {"localhost:77x", "not a number"},
      {"localhost:-1", "not a number"},
      {"localhost: 7", "not a number"},
      {"localhost:65536", "0..65535"},
      {"localhost:99999999999999999999", "0..65535"},
      {"[fe80::1%eth0]:7700", "zone"},
  };
  for (const auto& [text, why] : kCases) {
    const Result<HostPort> result = ParseHostPort(text);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(result.status().message(), HasSubstr(why)) << text;
    EXPECT_THAT(result.status().message(), HasSubstr("'" + std::string(text) + "'"));
  }
}

TEST(Resolve, KnowsNumericAddressesOfBothFamilies) {
  EXPECT_EQ(*ResolvePeer("127.0.0.1:7700"), Address::V4(127, 0, 0, 1, 7700));
  Address loopback6;
  loopback6.ip[15] = 1;
  loopback6.port = 7700;
  EXPECT_EQ(*ResolvePeer("[::1]:7700"), loopback6);
  EXPECT_EQ(*ResolvePeer("[::ffff:10.1.2.3]:5"), Address::V4(10, 1, 2, 3, 5));
  EXPECT_TRUE(ResolveListen("[::]:0").ok());
  EXPECT_TRUE(ResolveListen("0.0.0.0:0").ok());
}

TEST(Resolve, LooksNamesUp) {
  const Result<Address> address = ResolvePeer("localhost:7700");
  ASSERT_TRUE(address.ok()) << address.status().ToString();
  EXPECT_EQ(address->port, 7700);
}

TEST(Resolve, NamesTheHostThatDoesNotExist) {
  // The top-level domain .invalid never exists (RFC 6761); without any name service it is "unavailable".
  const Result<Address> address = ResolvePeer("no-such-host.invalid:7700");
  ASSERT_FALSE(address.ok());
  EXPECT_TRUE(address.status().code() == StatusCode::kNotFound ||
              address.status().code() == StatusCode::kUnavailable)
      << address.status().ToString();
  EXPECT_THAT(address.status().message(), HasSubstr("no-such-host.invalid"));
}

TEST(Resolve, PortZeroIsForListeningOnly) {
  EXPECT_TRUE(ResolveListen("127.0.0.1:0").ok());
  EXPECT_EQ(ResolvePeer("127.0.0.1:0").status().code(), StatusCode::kInvalidArgument);
}

TEST(SocketAddress, SurvivesTheRoundTripInEitherFamily) {
  const Address v4 = Address::V4(192, 168, 1, 200, 40000);
  EXPECT_EQ(FromSocketAddress(ToSocketAddress(v4, AF_INET)), v4);
  EXPECT_EQ(FromSocketAddress(ToSocketAddress(v4, AF_INET6)), v4);
  Address v6;
  for (uint8_t i = 0; i < 16; ++i) v6.ip[i] = static_cast<uint8_t>(0x20 + i);
  v6.port = 1;
  EXPECT_EQ(FromSocketAddress(ToSocketAddress(v6, AF_INET6)), v6);
  EXPECT_EQ(ToSocketAddress(v6, AF_INET).size, 0u);
}

}  // namespace
}  // namespace longhaul::udp
