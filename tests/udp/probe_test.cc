#include "transport/udp/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/udp/socket_test_util.h"

namespace longhaul::udp {
namespace {

using testing::HasSubstr;

TEST(Probe, SaysWhatTheNetworkSays) {
  Address somebody;
  {
    const UdpSocket socket = OpenOrDie();
    somebody = socket.local_address();
    EXPECT_EQ(Probe(somebody, std::chrono::milliseconds(50)), "") << "a socket that does not answer";
  }
  EXPECT_THAT(Probe(somebody, std::chrono::seconds(1)), HasSubstr("no program listens"));
}

}  // namespace
}  // namespace longhaul::udp
