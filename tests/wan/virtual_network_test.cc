#include "tests/sim/virtual_network.h"

#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <set>
#include <string>

namespace longhaul::wan {
namespace {

using namespace std::chrono_literals;

LinkOptions Words(const std::string& words) {
  const auto parsed = ParseLinkOptions(words);
  EXPECT_TRUE(parsed.ok()) << words << ": " << parsed.status().ToString();
  return *parsed;
}

Instant At(Duration t) { return Instant() + t; }

Address Node(int n) { return Address::V4(10, 0, 0, static_cast<uint8_t>(n), 7700); }

struct Recorder : VirtualNetwork::Host {
  struct Arrival {
    Instant time;
    Address from;
    std::vector<uint8_t> bytes;
  };
  void OnDatagram(Instant now, const Address& from, MutableByteSpan datagram) override {
    arrivals.push_back({now, from, {datagram.begin(), datagram.end()}});
  }
  std::vector<Arrival> arrivals;
};

// Sends everything back.
struct Echo : VirtualNetwork::Host {
  Echo(VirtualNetwork& n, Address me) : network(n), address(me) {}
  void OnDatagram(Instant, const Address& from, MutableByteSpan datagram) override {
    network.Send(address, from, datagram);
  }
  VirtualNetwork& network;
  Address address;
};

// A (site 0) ---- 25 ms, 12 Mbit/s ---- B (site 1)
struct Pair {
  explicit Pair(const std::string& words, uint64_t seed = 1, size_t bound = 1000)
      : network({.seed = seed, .link = Words(words), .max_pending_events = bound}) {
    site_a = network.AddSite("a");
    site_b = network.AddSite("b");
    network.Attach(Node(1), site_a, &a);
    network.Attach(Node(2), site_b, &b);
  }
  VirtualNetwork network;
  VirtualNetwork::SiteId site_a = 0, site_b = 0;
  Recorder a, b;
};

TEST(VirtualNetwork, ADatagramArrivesAfterServiceAndDelayWithItsHeadersCounted) {
  Pair pair("rate 12mbit delay 25ms");
  const std::vector<uint8_t> data(1472, 42);  // + 28 = 1500 bytes = 1 ms
  pair.network.RunUntil(At(1s));
  pair.network.Send(Node(1), Node(2), data);
  pair.network.RunUntil(At(2s));
  ASSERT_EQ(pair.b.arrivals.size(), 1u);
  EXPECT_EQ(pair.b.arrivals[0].time, At(1026ms));
  EXPECT_EQ(pair.b.arrivals[0].from, Node(1));
  EXPECT_EQ(pair.b.arrivals[0].bytes, data);
  EXPECT_EQ(pair.network.now(), At(2s));
  EXPECT_EQ(pair.network.Link(pair.site_a, pair.site_b).counters().bytes_delivered, 1500u);
}

TEST(VirtualNetwork, EachDirectionHasItsOwnLink) {
  Pair pair("delay 10ms");
  pair.network.SetLink(pair.site_b, pair.site_a, Words("delay 70ms"));
  Echo echo(pair.network, Node(2));
  pair.network.Attach(Node(2), pair.site_b, &echo);
  pair.network.Send(Node(1), Node(2), std::vector<uint8_t>(10));
  pair.network.RunUntil(At(1s));
  ASSERT_EQ(pair.a.arrivals.size(), 1u);
  EXPECT_EQ(pair.a.arrivals[0].time, At(80ms));
}

TEST(VirtualNetwork, InsideASiteNothingIsLostOrLate) {
  Pair pair("delay 10ms loss 100%");
  Recorder neighbour;
  pair.network.Attach(Node(3), pair.site_a, &neighbour);
  pair.network.Send(Node(1), Node(3), std::vector<uint8_t>(10));
  pair.network.RunUntil(At(0s));
  EXPECT_EQ(neighbour.arrivals.size(), 1u);
}

TEST(VirtualNetwork, EqualTimesRunInTheOrderOfTheCalls) {
  Pair pair("delay 5ms");
  std::string order;
  pair.network.Schedule(At(5ms), [&] { order += 'a'; });
  pair.network.Schedule(At(3ms), [&] {
    order += 'b';
    pair.network.Schedule(At(1ms), [&] { order += 'c'; });  // the past is now
    pair.network.Schedule(At(5ms), [&] { order += 'e'; });
  });
  pair.network.Schedule(At(5ms), [&] { order += 'd'; });
  EXPECT_EQ(pair.network.NextEventTime(), At(3ms));
  pair.network.RunUntil(At(5ms));
  EXPECT_EQ(order, "bcade");
  EXPECT_EQ(pair.network.NextEventTime(), Instant::Infinite());
}

TEST(VirtualNetwork, NobodyAtTheAddressIsCounted) {
  Pair pair("delay 5ms");
  pair.network.Send(Node(1), Node(9), std::vector<uint8_t>(10));
  EXPECT_EQ(pair.network.counters().unreachable, 1u);
  pair.network.Send(Node(1), Node(2), std::vector<uint8_t>(10));
  pair.network.Detach(Node(2));  // dies while the datagram is in flight
  pair.network.RunUntil(At(1s));
  EXPECT_EQ(pair.network.counters().unreachable, 2u);
  EXPECT_TRUE(pair.b.arrivals.empty());
}

TEST(VirtualNetwork, AMovedAddressReceivesWhatIsInFlight) {
  Pair pair("delay 5ms");
  Recorder restarted;
  pair.network.Send(Node(1), Node(2), std::vector<uint8_t>(10));
  pair.network.Attach(Node(2), pair.site_b, &restarted);
  pair.network.RunUntil(At(1s));
  EXPECT_EQ(restarted.arrivals.size(), 1u);
}

TEST(VirtualNetwork, CorruptionFlipsExactlyOneBit) {
  Pair pair("corrupt 100%");
  pair.network.Send(Node(1), Node(2), std::vector<uint8_t>(100, 0));
  pair.network.RunUntil(At(1s));
  ASSERT_EQ(pair.b.arrivals.size(), 1u);
  int bits = 0;
  for (const uint8_t byte : pair.b.arrivals[0].bytes) bits += std::popcount(byte);
  EXPECT_EQ(bits, 1);
}

TEST(VirtualNetwork, TheEventQueueIsBoundedAndSaysSo) {
  Pair pair("delay 5ms", 1, 10);
  for (int i = 0; i < 15; ++i) pair.network.Send(Node(1), Node(2), std::vector<uint8_t>(10));
  EXPECT_EQ(pair.network.pending_events(), 10u);
  EXPECT_EQ(pair.network.counters().dropped_event_bound, 5u);
  EXPECT_FALSE(pair.network.Schedule(At(1s), [] {}));
  EXPECT_EQ(pair.network.counters().refused_timers, 1u);
  pair.network.RunUntil(At(1s));
  EXPECT_EQ(pair.b.arrivals.size(), 10u);
  EXPECT_TRUE(pair.network.Schedule(At(2s), [] {}));
}

// A ping storm between five hosts at three sites over a bad WAN.
uint64_t StormHash(uint64_t seed, bool extra_note = false) {
  VirtualNetwork network(
      {.seed = seed,
       .link = Words("rate 50mbit delay 20ms jitter 5ms loss 5% duplicate 1% reorder 1% corrupt 1%")});
  for (const char* name : {"a", "b", "c"}) network.AddSite(name);
  std::vector<std::unique_ptr<Echo>> hosts;
  for (int n = 0; n < 5; ++n) {
    hosts.push_back(std::make_unique<Echo>(network, Node(n)));
    network.Attach(Node(n), static_cast<uint32_t>(n % 3), hosts.back().get());
  }
  for (int n = 0; n < 5; ++n) {
    network.Schedule(At(n * 1ms), [&network, n] {
      for (uint8_t k = 0; k < 20; ++k)
        network.Send(Node(n), Node((n + 1) % 5), std::vector<uint8_t>(100 + k, k));
    });
  }
  if (extra_note) network.Note(1);
  network.RunUntil(At(2s));
  EXPECT_GT(network.counters().datagrams_delivered, 100u);
  return network.event_log_hash();
}

TEST(VirtualNetwork, TheSameSeedGivesTheSameEventLogAndAnotherSeedAnother) {
  std::set<uint64_t> hashes;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const uint64_t hash = StormHash(seed);
    EXPECT_EQ(hash, StormHash(seed)) << "seed " << seed;
    hashes.insert(hash);
  }
  EXPECT_EQ(hashes.size(), 20u);
  EXPECT_NE(StormHash(1), StormHash(1, true)) << "the caller's notes are part of the log";
}

TEST(VirtualNetwork, TheRandomnessOfALinkDoesNotDependOnWhichLinkWasUsedFirst) {
  const auto losses = [](bool other_first) {
    Pair pair("loss 50%", 3);
    if (other_first) pair.network.Link(pair.site_b, pair.site_a);
    for (int i = 0; i < 100; ++i)
      pair.network.Send(Node(1), Node(2), std::vector<uint8_t>(1, static_cast<uint8_t>(i)));
    pair.network.RunUntil(At(1s));
    std::vector<uint8_t> got;
    for (const auto& arrival : pair.b.arrivals) got.push_back(arrival.bytes[0]);
    return got;
  };
  EXPECT_EQ(losses(false), losses(true));
  EXPECT_NE(losses(false).size(), 100u);
}

}  // namespace
}  // namespace longhaul::wan
