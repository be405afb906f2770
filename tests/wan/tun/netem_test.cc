#include "wan/tun/netem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace longhaul::wan {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

std::string Join(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + word;
  return line;
}

std::string Arguments(const std::string& words) {
  const auto options = ParseLinkOptions(words);
  EXPECT_TRUE(options.ok()) << options.status().ToString();
  const auto arguments = NetemArguments(*options);
  return arguments.ok() ? Join(*arguments) : arguments.status().ToString();
}

TEST(Netem, TranslatesEveryWordItKnows) {
  // 200 Mbit/s hold 833 packets in 50 ms of queue, 417 in 25 ms of delay.
  EXPECT_EQ(Arguments("rate 200mbit delay 25ms loss 2%"),
            "limit 1250 delay 25000us loss random 2% rate 200000000bit");
  EXPECT_EQ(Arguments("delay 20ms 5ms reorder 1% duplicate 0.5% corrupt 0.01%"),
            "limit 1000000 delay 20000us 5000us corrupt 0.01% duplicate 0.5% reorder 1%");
}

TEST(Netem, BurstsBecomeTheTransitionProbabilities) {
  // 5 % in bursts of 10: leave with 1/10, enter with 0.1 * 0.05 / 0.95 = 0.526316 %.
  EXPECT_EQ(Arguments("gemodel 5% burst 10"), "limit 1000000 loss gemodel 0.526316% 10% 100% 0%");
}

TEST(Netem, AQueueInBytesCountsInPackets) {
  EXPECT_EQ(Arguments("rate 100mbit queue 150kb"), "limit 100 rate 100000000bit");
}

TEST(Netem, SaysWhatItCannotDo) {
  EXPECT_THAT(Arguments("outage 1s..2s"), HasSubstr("outages"));
  EXPECT_THAT(Arguments("mtu 1400b"), HasSubstr("black hole"));
}

TEST(Netem, ShapesEveryDirectionAtTheHubsExit) {
  //  A -- B, and only A -> B is lossy
  const LinkOptions good = *ParseLinkOptions("delay 10ms");
  const LinkOptions bad = *ParseLinkOptions("delay 10ms loss 5%");
  const auto commands = NetemSetup({{"10.77.1.1", "/run/netns/a"}, {"10.77.2.1", "/run/netns/b"}},
                                   {good, bad, good, good}, 1500);
  ASSERT_TRUE(commands.ok()) << commands.status().ToString();
  std::vector<std::string> hub, site_a;
  for (const auto& c : *commands) {
    if (c.site == NetemCommand::kHub) hub.push_back(Join(c.argv));
    if (c.site == 0) site_a.push_back(Join(c.argv));
  }
  EXPECT_EQ(NetemDevice(0, 1), "s2p1");
  EXPECT_THAT(hub,
              Contains("ip link add s2p1 mtu 1500 type veth peer name wan1 mtu 1500 netns /run/netns/b"));
  EXPECT_THAT(hub, Contains("tc qdisc add dev s2p1 root netem limit 1000000 delay 10000us loss random 5%"));
  EXPECT_THAT(hub, Contains("tc qdisc add dev s1p2 root netem limit 1000000 delay 10000us"));
  EXPECT_THAT(site_a, Contains("ip address add 10.77.1.1/32 dev lo"));
  EXPECT_THAT(site_a, Contains("ip route add 10.77.2.1/32 dev wan2 src 10.77.1.1"));
}

TEST(Netem, DeviceNamesFitTheKernelsLimit) { EXPECT_LE(NetemDevice(63, 62).size(), 15u); }

TEST(Netem, ReadsTheCountersOfTc) {
  const auto counters = ParseNetemCounters(
      R"([{"kind":"noqueue","handle":"0:"},
          {"kind":"netem","handle":"8001:","root":true,"options":{"limit":1000},
           "bytes":150000,"packets":100,"drops":7,"overlimits":0,"requeues":0,"backlog":0,"qlen":0}])");
  ASSERT_TRUE(counters.ok());
  EXPECT_EQ(counters->packets, 100u);
  EXPECT_EQ(counters->bytes, 150'000u);
  EXPECT_EQ(counters->drops, 7u);
  for (const char* bad : {"", "[]", "{}", "[1]", "[{\"kind\":\"tbf\"}]", "not json"}) {
    EXPECT_FALSE(ParseNetemCounters(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace longhaul::wan
