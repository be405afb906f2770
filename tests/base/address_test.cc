#include "base/address.h"

#include <gtest/gtest.h>

#include <map>
#include <unordered_set>

namespace longhaul {
namespace {

TEST(Address, PrintsAsPeopleReadIt) {
  EXPECT_EQ(Address::V4(127, 0, 0, 1, 7700).ToString(), "127.0.0.1:7700");
  EXPECT_EQ(Address::V4(255, 255, 255, 255, 65535).ToString(), "255.255.255.255:65535");
  Address loopback;
  loopback.ip[15] = 1;
  loopback.port = 7700;
  EXPECT_EQ(loopback.ToString(), "[::1]:7700");
  Address six;
  six.ip = {0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x2a};
  six.port = 1;
  EXPECT_EQ(six.ToString(), "[2001:db8:0:0:0:0:0:2a]:1");
}

TEST(Address, V4IsTheMappedV6Address) {
  const Address address = Address::V4(10, 0, 0, 7, 1);
  EXPECT_TRUE(address.IsV4());
  EXPECT_EQ(address.ip[10], 0xff);
  EXPECT_EQ(address.ip[11], 0xff);
  EXPECT_EQ(address.ip[15], 7);
  EXPECT_FALSE(Address{}.IsV4());
  Address not_mapped = address;
  not_mapped.ip[0] = 1;
  EXPECT_FALSE(not_mapped.IsV4());
}

TEST(Address, EveryByteAndThePortDistinguish) {
  const Address base = Address::V4(10, 0, 0, 1, 1000);
  std::unordered_set<Address> hashed = {base};
  std::map<Address, int> ordered = {{base, 0}};
  for (size_t i = 0; i < 16; ++i) {
    Address other = base;
    other.ip[i] = static_cast<uint8_t>(other.ip[i] ^ 0x40);
    EXPECT_NE(other, base);
    EXPECT_TRUE(hashed.insert(other).second);
    EXPECT_TRUE(ordered.emplace(other, 0).second);
  }
  Address port = base;
  port.port = 1001;
  EXPECT_TRUE(hashed.insert(port).second);
  EXPECT_FALSE(hashed.insert(base).second);
}

TEST(Address, HashSpreadsPortsOfOneHost) {
  // Many workers behind one NAT differ only in the port.
  std::unordered_set<size_t> hashes;
  for (uint16_t port = 1024; port < 5120; ++port) {
    hashes.insert(std::hash<Address>()(Address::V4(10, 0, 0, 1, port)));
  }
  EXPECT_EQ(hashes.size(), 4096u);
}

TEST(AddressTest, LoopbackIsThisMachineAndNothingElse) {
  EXPECT_TRUE(Address::V4(127, 0, 0, 1, 1).IsLoopback());
  EXPECT_TRUE(Address::V4(127, 255, 255, 255, 1).IsLoopback());
  EXPECT_FALSE(Address::V4(128, 0, 0, 1, 1).IsLoopback());
  EXPECT_FALSE(Address::V4(0, 0, 0, 0, 1).IsLoopback());
  EXPECT_FALSE(Address::V4(10, 127, 0, 1, 1).IsLoopback());
  Address six;
  EXPECT_FALSE(six.IsLoopback());  // "::", every address
  six.ip[15] = 1;
  EXPECT_TRUE(six.IsLoopback());
  six.ip[0] = 0xfe;
  EXPECT_FALSE(six.IsLoopback());
}

}  // namespace
}  // namespace longhaul
