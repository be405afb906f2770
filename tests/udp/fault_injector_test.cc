#include "transport/udp/fault_injector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace longhaul::udp {
namespace {

using std::chrono::milliseconds;

const Address kPeer = Address::V4(127, 0, 0, 1, 9);
constexpr size_t kSize = 200;

Instant At(Duration t) { return Instant::FromNanoseconds(t.count()); }

FaultOptions Faults(const char* spec) {
  Result<FaultOptions> faults = ParseFaults(spec);
  if (!faults.ok()) ADD_FAILURE() << faults.status().ToString();
  return std::move(faults).value();
}

// One datagram that came out.
struct Out {
  uint32_t number;
  Instant time;
  bool intact;
  bool operator==(const Out&) const = default;
};

std::vector<uint8_t> Numbered(uint32_t number) {
  std::vector<uint8_t> bytes(kSize, 0x55);
  for (size_t i = 0; i < 4; ++i) bytes[i] = static_cast<uint8_t>(number >> (8 * i));
  return bytes;
}

size_t DifferentBits(ByteSpan a, ByteSpan b) {
  size_t bits = 0;
  for (size_t i = 0; i < a.size(); ++i) bits += static_cast<size_t>(std::popcount(unsigned(a[i] ^ b[i])));
  return bits;
}

// Sends `count` numbered datagrams, one per millisecond, and collects what comes out when it is due.
std::vector<Out> Carry(FaultyDirection& direction, uint32_t count) {
  std::vector<Out> out;
  const auto drain = [&](Instant now) {
    while (FaultyDirection::Datagram* datagram = direction.Due(now)) {
      EXPECT_EQ(datagram->peer, kPeer);
      EXPECT_EQ(datagram->bytes.size(), kSize);
      // The count of different bits distinguishes the number from a flipped bit.
      uint32_t number = 0;
      for (size_t i = 0; i < 4; ++i) number |= uint32_t{datagram->bytes[i]} << (8 * i);
      const bool intact = DifferentBits(Numbered(number), datagram->bytes) == 0 && number < count;
      out.push_back({number, datagram->due, intact});
      direction.Pop();
    }
  };
  for (uint32_t i = 0; i < count; ++i) {
    const Instant now = At(milliseconds(i));
    drain(now);
    direction.Submit(now, kPeer, Numbered(i));
  }
  drain(At(std::chrono::hours(1)));
  EXPECT_TRUE(direction.NextDue().IsInfinite());
  EXPECT_EQ(direction.queued_bytes(), 0u);
  return out;
}

TEST(FaultInjector, WithoutFaultsEverythingComesOutAtOnceAndIntact) {
  FaultInjector injector(Faults("seed=1"));
  const auto out = Carry(*injector.outgoing(), 100);
  ASSERT_EQ(out.size(), 100u);
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(out[i], (Out{i, At(milliseconds(i)), true}));
}

TEST(FaultInjector, SameSeedDoesTheSameAnotherSeedDoesNot) {
  const char* kSpec = "drop=0.1,dup=0.1,corrupt=0.1,delay=20ms,jitter=5ms,reorder=0.1,seed=%d";
  char first[128];
  char second[128];
  std::snprintf(first, sizeof first, kSpec, 11);
  std::snprintf(second, sizeof second, kSpec, 12);
  FaultInjector a(Faults(first)), b(Faults(first)), c(Faults(second));
  const auto out = Carry(*a.outgoing(), 2000);
  EXPECT_EQ(out, Carry(*b.outgoing(), 2000));
  EXPECT_EQ(a.outgoing()->counters(), b.outgoing()->counters());
  EXPECT_NE(out, Carry(*c.outgoing(), 2000));
}

TEST(FaultInjector, DirectionsAreIndependentOfEachOther) {
  FaultInjector both(Faults("drop=0.3,seed=5")), out_only(Faults("drop=0.3,side=out,seed=5"));
  EXPECT_EQ(out_only.incoming(), nullptr);
  Carry(*both.incoming(), 500);
  const auto out = Carry(*both.outgoing(), 500);
  EXPECT_EQ(out, Carry(*out_only.outgoing(), 500));
  FaultInjector again(Faults("drop=0.3,seed=5"));
  EXPECT_NE(out, Carry(*again.incoming(), 500));
}

TEST(FaultInjector, RatesAreWithinFourSigmaOfWhatWasAsked) {
  constexpr uint32_t kCount = 20000;
  FaultInjector injector(Faults("drop=0.05,dup=0.02,corrupt=0.01,delay=10ms,reorder=0.03,seed=42"));
  FaultyDirection& direction = *injector.outgoing();
  const auto out = Carry(direction, kCount);
  const wan::LinkCounters& counters = direction.counters();
  const auto near = [](uint64_t got, double p, uint64_t n) {
    const double mean = p * static_cast<double>(n);
    return std::abs(static_cast<double>(got) - mean) <= 4 * std::sqrt(mean * (1 - p));
  };
  EXPECT_TRUE(near(counters.dropped_loss, 0.05, kCount)) << counters.dropped_loss;
  const uint64_t kept = kCount - counters.dropped_loss;
  EXPECT_TRUE(near(counters.duplicated, 0.02, kept)) << counters.duplicated;
  EXPECT_TRUE(near(counters.corrupted, 0.01, kept + counters.duplicated)) << counters.corrupted;
  // The counters tell the truth about what came out.
  EXPECT_EQ(out.size(), counters.packets_delivered);
  EXPECT_EQ(out.size(), kept + counters.duplicated);
  size_t damaged = 0;
  size_t backwards = 0;
  uint32_t newest = 0;
  for (const Out& datagram : out) {
    if (!datagram.intact) {
      ++damaged;
      continue;
    }
    if (datagram.number < newest) ++backwards;
    newest = std::max(newest, datagram.number);
  }
  // A flip within the number itself changes it into another number that looks intact: 4 of 200 bytes.
  EXPECT_LE(damaged, counters.corrupted);
  EXPECT_GE(damaged, counters.corrupted * 9 / 10);
  EXPECT_GT(counters.reordered, 0u);
  EXPECT_GT(backwards, 0u);
}

TEST(FaultInjector, CorruptionFlipsExactlyOneBitOfThePayload) {
  FaultInjector injector(Faults("corrupt=1,seed=3"));
  FaultyDirection& direction = *injector.incoming();
  const std::vector<uint8_t> sent(kSize, 0x55);
  for (int i = 0; i < 1000; ++i) {
    direction.Submit(At(milliseconds(i)), kPeer, sent);
    FaultyDirection::Datagram* datagram = direction.Due(At(milliseconds(i)));
    ASSERT_NE(datagram, nullptr);
    EXPECT_EQ(DifferentBits(sent, datagram->bytes), 1u);
    direction.Pop();
  }
}

TEST(FaultInjector, RateAndQueueMakeASmallLinkThatDropsItsTail) {
  // 8 Mbit/s carry 1000 bytes (972 + headers) per millisecond; the queue holds 10 ms.
  FaultInjector injector(Faults("rate=8mbit,queue=10ms,delay=5ms,seed=1"));
  FaultyDirection& direction = *injector.outgoing();
  const std::vector<uint8_t> bytes(972);
  for (int i = 0; i < 100; ++i) direction.Submit(At(milliseconds(0)), kPeer, bytes);
  EXPECT_EQ(direction.NextDue(), At(milliseconds(6)));
  const wan::LinkCounters& counters = direction.counters();
  EXPECT_EQ(counters.dropped_queue + counters.packets_delivered, 100u);
  EXPECT_GE(counters.packets_delivered, 10u);
  EXPECT_LE(counters.packets_delivered, 12u);
}

TEST(FaultInjector, MemoryIsBoundedAndTheExcessCounted) {
  wan::LinkOptions link;
  link.delay = std::chrono::seconds(1);
  constexpr size_t kBound = 100'000;
  FaultyDirection direction(link, Random(1), kBound);
  for (int i = 0; i < 1000; ++i) direction.Submit(At(milliseconds(0)), kPeer, std::vector<uint8_t>(1000));
  EXPECT_LE(direction.queued_bytes(), kBound);
  EXPECT_GT(direction.overflows(), 900u);
  size_t out = 0;
  for (; direction.Due(At(std::chrono::seconds(2))) != nullptr; direction.Pop()) ++out;
  EXPECT_EQ(out + direction.overflows(), 1000u);
}

TEST(FaultInjector, KeepsWhatTheSocketKnewAboutADatagram) {
  FaultInjector injector(Faults("delay=1ms,seed=1"));
  injector.incoming()->Submit(At(milliseconds(0)), kPeer, std::vector<uint8_t>(10), {true, 77});
  EXPECT_EQ(injector.NextDue(), At(milliseconds(1)));
  const FaultyDirection::Datagram* datagram = injector.incoming()->Due(At(milliseconds(1)));
  ASSERT_NE(datagram, nullptr);
  EXPECT_TRUE(datagram->info.ecn_ce);
  EXPECT_EQ(datagram->info.host_drops, 77u);
  EXPECT_EQ(datagram->info.received, At(milliseconds(1)));  // for the core, which may be late, too
}

}  // namespace
}  // namespace longhaul::udp
