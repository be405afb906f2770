// The forwarder over socket pairs instead of TUN devices: no root needed.
#include "wan/tun/forwarder.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>

namespace longhaul::wan {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

//  site 0 --- forwarder --- site 1;  outside[k] is what the kernel of site k would hold
struct Bench {
  explicit Bench(const std::string& words, size_t bound = 1000) {
    for (int i = 0; i < 2; ++i) {
      int pair[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
      inside[i].Reset(pair[0]);
      outside[i].Reset(pair[1]);
    }
    std::vector<LinkModel> links;
    for (uint64_t i = 0; i < 4; ++i) links.emplace_back(*ParseLinkOptions(words), Random(i));
    forwarder = std::make_unique<Forwarder>(
        std::vector<int>{inside[0].get(), inside[1].get()}, std::move(links),
        Forwarder::Options{.max_packets_in_flight = bound, .max_packet_size = 1500, .realtime = false});
  }

  // An IPv4 packet (as far as the forwarder looks) to 10.77.<third>.1.
  static std::vector<uint8_t> Packet(uint8_t third, uint8_t mark, size_t size = 100) {
    std::vector<uint8_t> packet(size, mark);
    packet[0] = 0x45;
    const uint8_t to[4] = {10, 77, third, 1};
    std::copy(to, to + 4, packet.begin() + 16);
    return packet;
  }
  void Send(int site, const std::vector<uint8_t>& packet) {
    while (send(outside[site].get(), packet.data(), packet.size(), 0) < 0) {
      ASSERT_EQ(errno, EAGAIN);  // the socket pair is full: the forwarder is about to read it
      std::this_thread::yield();
    }
  }
  // The next packet, or nothing after `patience`.
  std::vector<uint8_t> Receive(int site, Clock::duration patience = 5s) {
    std::vector<uint8_t> packet(2000);
    for (const auto end = Clock::now() + patience; Clock::now() < end; std::this_thread::yield()) {
      const ssize_t size = recv(outside[site].get(), packet.data(), packet.size(), 0);
      if (size < 0) continue;
      packet.resize(static_cast<size_t>(size));
      return packet;
    }
    return {};
  }

  FileDescriptor inside[2], outside[2];
  std::unique_ptr<Forwarder> forwarder;
};

TEST(Forwarder, CarriesPacketsUnchangedAndNotBeforeTheirTime) {
  Bench bench("delay 30ms");
  bench.forwarder->Start();
  const auto packet = Bench::Packet(2, 7, 1400);
  const auto start = Clock::now();
  bench.Send(0, packet);
  EXPECT_EQ(bench.Receive(1), packet);
  EXPECT_GE(Clock::now() - start, 30ms);
  bench.Send(1, Bench::Packet(1, 9));
  EXPECT_EQ(bench.Receive(0), Bench::Packet(1, 9));
  EXPECT_EQ(bench.forwarder->Counters(0, 1).packets_delivered, 1u);
  EXPECT_EQ(bench.forwarder->Counters(1, 0).packets_delivered, 1u);
  EXPECT_EQ(bench.forwarder->Stats().packets_written, 2u);
}

TEST(Forwarder, KeepsTheOrderOfABurst) {
  Bench bench("rate 100mbit delay 2ms jitter 1ms queue 1s");
  bench.forwarder->Start();
  std::thread sender([&] {
    for (int i = 0; i < 250; ++i) bench.Send(0, Bench::Packet(2, static_cast<uint8_t>(i)));
  });
  for (int i = 0; i < 250; ++i) {
    const auto packet = bench.Receive(1);
    ASSERT_FALSE(packet.empty()) << "packet " << i << " is missing";
    EXPECT_EQ(packet.back(), static_cast<uint8_t>(i));
  }
  sender.join();
}

TEST(Forwarder, CountsWhatItCannotRoute) {
  Bench bench("");
  bench.forwarder->Start();
  bench.Send(0, Bench::Packet(1, 0));              // to itself
  bench.Send(0, Bench::Packet(3, 0));              // there is no third site
  bench.Send(0, Bench::Packet(0, 0));              // below the first
  bench.Send(0, std::vector<uint8_t>(100, 0x60));  // IPv6
  bench.Send(0, std::vector<uint8_t>(3, 0x45));    // cut off
  bench.Send(0, Bench::Packet(2, 1));              // the only good one
  EXPECT_FALSE(bench.Receive(1).empty());
  const ForwarderStats stats = bench.forwarder->Stats();
  EXPECT_EQ(stats.no_route, 3u);
  EXPECT_EQ(stats.not_ipv4, 2u);
  EXPECT_EQ(stats.packets_read, 6u);
}

TEST(Forwarder, MemoryIsBoundedAndTheDropsAreNotTheLinks) {
  Bench bench("delay 10s", 8);
  bench.forwarder->Start();
  for (int i = 0; i < 20; ++i) bench.Send(0, Bench::Packet(2, 1));
  ForwarderStats stats;
  do stats = bench.forwarder->Stats();
  while (stats.packets_read < 20);
  EXPECT_EQ(stats.in_flight, 8u);
  EXPECT_EQ(stats.overload, 12u);
  EXPECT_EQ(bench.forwarder->Counters(0, 1).packets_in, 8u);
}

TEST(Forwarder, TheWeatherChangesWhileItRuns) {
  Bench bench("");
  bench.forwarder->Start();
  bench.forwarder->SetLink(0, 1, *ParseLinkOptions("loss 100%"));
  bench.Send(0, Bench::Packet(2, 1));
  while (bench.forwarder->Counters(0, 1).dropped_loss == 0) std::this_thread::yield();
  bench.forwarder->SetLink(0, 1, LinkOptions());
  bench.Send(0, Bench::Packet(2, 2));
  EXPECT_EQ(bench.Receive(1), Bench::Packet(2, 2));
}

TEST(Forwarder, DuplicatesAndCorruptsCopiesIndependently) {
  Bench bench("duplicate 100% corrupt 100%");
  bench.forwarder->Start();
  bench.Send(0, Bench::Packet(2, 0, 1000));
  for (int copy = 0; copy < 2; ++copy) {
    const auto got = bench.Receive(1);
    const auto sent = Bench::Packet(2, 0, 1000);
    ASSERT_EQ(got.size(), sent.size());
    int bits = 0;
    for (size_t i = 0; i < got.size(); ++i) bits += std::popcount(static_cast<uint8_t>(got[i] ^ sent[i]));
    EXPECT_EQ(bits, 1);
  }
}

TEST(Forwarder, CountersCanBeReadAfterStopAndBeforeStart) {
  Bench bench("");
  EXPECT_EQ(bench.forwarder->Stats().packets_read, 0u);
  bench.forwarder->Start();
  bench.Send(0, Bench::Packet(2, 1));
  EXPECT_FALSE(bench.Receive(1).empty());
  bench.forwarder->Stop();
  bench.forwarder->Stop();
  EXPECT_EQ(bench.forwarder->Counters(0, 1).packets_delivered, 1u);
  EXPECT_EQ(bench.forwarder->Stats().packets_written, 1u);
}

}  // namespace
}  // namespace longhaul::wan
