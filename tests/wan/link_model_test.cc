#include "wan/link_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace longhaul::wan {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kSeed = 7;
constexpr ByteCount kPacket(1500);

LinkOptions Words(const std::string& words) {
  const auto parsed = ParseLinkOptions(words);
  EXPECT_TRUE(parsed.ok()) << words << ": " << parsed.status().ToString();
  return *parsed;
}

Instant At(Duration t) { return Instant() + t; }

// Offers `count` packets, one every `spacing`; returns the arrivals in the order in which they were sent.
std::vector<Instant> Offer(LinkModel& link, int count, Duration spacing, Duration start = 0ms) {
  std::vector<Instant> arrivals;
  for (int i = 0; i < count; ++i) {
    const Verdict verdict = link.Decide(At(start + i * spacing), kPacket);
    for (const Delivery& d : verdict.deliveries()) arrivals.push_back(d.time);
  }
  return arrivals;
}

void ExpectConserved(const LinkCounters& c) {
  EXPECT_EQ(c.packets_delivered, c.packets_in - c.dropped() + c.duplicated);
  EXPECT_EQ(c.bytes_delivered, c.bytes_in - c.dropped_loss_bytes - c.dropped_queue_bytes -
                                   c.dropped_outage_bytes - c.dropped_mtu_bytes + c.duplicated_bytes);
}

TEST(LinkModel, APacketAloneTakesItsServiceTimeAndTheDelay) {
  LinkModel link(Words("rate 200mbit delay 25ms"), Random(kSeed));
  const Verdict v = link.Decide(At(1s), kPacket);
  ASSERT_EQ(v.count, 1u);
  EXPECT_EQ(v.slots[0].time, At(1s + 60us + 25ms));  // 1500 * 8 bit / 200 Mbit/s = 60 us
}

TEST(LinkModel, ABurstLeavesExactlyAtTheRate) {
  LinkModel link(Words("rate 200mbit delay 25ms queue 1s"), Random(kSeed));
  const auto arrivals = Offer(link, 1000, 0ns);
  ASSERT_EQ(arrivals.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(arrivals[static_cast<size_t>(i)], At(25ms + (i + 1) * 60us));
  EXPECT_EQ(link.QueueDelay(At(0s)), 60ms);
  EXPECT_EQ(link.QueueDelay(At(59ms)), 1ms);
  EXPECT_EQ(link.QueueDelay(At(61ms)), 0ms);
  EXPECT_EQ(link.counters().max_queue_delay, 999 * 60us);
}

TEST(LinkModel, ARateThatDoesNotDivideANanosecondDoesNotDrift) {
  LinkModel link(Words("rate 700mbit queue 1000s"), Random(kSeed));  // 17142.857.. ns a packet
  const auto arrivals = Offer(link, 700'000, 0ns);
  EXPECT_EQ(arrivals.back(), At(12s)) << "700,000 packets of 12,000 bit at 700 Mbit/s";
}

TEST(LinkModel, TheQueueHoldsItsTimeAndDropsTheRest) {
  LinkModel link(Words("rate 200mbit queue 50ms"), Random(kSeed));
  EXPECT_EQ(Offer(link, 2000, 0ns).size(), 833u);  // 50 ms / 60 us
  EXPECT_EQ(link.counters().dropped_queue, 2000u - 833u);
  EXPECT_LE(link.QueueDelay(At(0s)), 50ms);
  // Twice the rate for a second: half of it is dropped, and nothing waits longer than the bound.
  EXPECT_NEAR(static_cast<double>(Offer(link, 33'333, 30us, 1s).size()), 16'667 + 833, 2);
  EXPECT_LE(link.counters().max_queue_delay, 50ms);
  ExpectConserved(link.counters());
}

TEST(LinkModel, TheQueueInBytesHoldsThoseBytes) {
  LinkModel link(Words("rate 100mbit queue 15kb"), Random(kSeed));
  EXPECT_EQ(Offer(link, 100, 0ns).size(), 10u);
}

TEST(LinkModel, AQueueSmallerThanAPacketStillPassesPacketsOneByOne) {
  LinkModel link(Words("rate 1mbit queue 1ms"), Random(kSeed));  // 12 ms a packet
  EXPECT_EQ(Offer(link, 100, 12ms).size(), 100u);
  EXPECT_EQ(Offer(link, 100, 6ms, 10s).size(), 50u);
}

TEST(LinkModel, UnlimitedRateNeverQueues) {
  LinkModel link(Words("delay 10ms"), Random(kSeed));
  const auto arrivals = Offer(link, 1000, 0ns);
  ASSERT_EQ(arrivals.size(), 1000u);
  EXPECT_EQ(arrivals.back(), At(10ms));
  EXPECT_EQ(link.QueueDelay(At(0s)), 0ms);
}

TEST(LinkModel, LossIsAsConfiguredAndHappensBeforeTheQueue) {
  LinkModel link(Words("rate 200mbit loss 5%"), Random(kSeed));
  // 1.04 times the rate is offered; after 5 % loss it fits.
  Offer(link, 200'000, 57'700ns);
  const LinkCounters& c = link.counters();
  EXPECT_NEAR(static_cast<double>(c.dropped_loss) / 200'000, 0.05, 5 * std::sqrt(0.05 * 0.95 / 200'000));
  EXPECT_EQ(c.dropped_queue, 0u);
  EXPECT_EQ(c.dropped_loss_bytes, c.dropped_loss * 1500);
  ExpectConserved(c);
}

TEST(LinkModel, BurstsAreCounted) {
  LinkModel link(Words("gemodel 5% burst 10"), Random(kSeed));
  Offer(link, 500'000, 1us);
  const LinkCounters& c = link.counters();
  EXPECT_NEAR(static_cast<double>(c.dropped_loss) / 500'000, 0.05, 0.007);
  EXPECT_NEAR(static_cast<double>(c.dropped_loss) / static_cast<double>(c.loss_bursts), 10, 1);
}

TEST(LinkModel, JitterSpreadsTheDelayAndKeepsTheOrder) {
  LinkModel link(Words("delay 20ms jitter 5ms"), Random(kSeed));
  const auto arrivals = Offer(link, 10'000, 100us);
  int early = 0, late = 0;
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const Duration delay = arrivals[i] - At(static_cast<int64_t>(i) * 100us);
    EXPECT_GE(delay, 15ms);
    EXPECT_LE(delay, 25ms);
    early += delay < 22ms;
    late += delay > 24ms;
    if (i > 0) {
      EXPECT_GE(arrivals[i], arrivals[i - 1]) << "packet " << i << " overtook, seed " << kSeed;
    }
  }
  EXPECT_GT(early, 50);
  EXPECT_GT(late, 50);
  EXPECT_EQ(link.counters().reordered, 0u);
}

TEST(LinkModel, SparsePacketsSeeTheWholeUniformJitter) {
  LinkModel link(Words("delay 20ms jitter 5ms"), Random(kSeed));
  double sum = 0, squares = 0;
  const auto arrivals = Offer(link, 20'000, 20ms);
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const double ms =
        static_cast<double>((arrivals[i] - At(static_cast<int64_t>(i) * 20ms)).count()) / 1e6 - 20;
    sum += ms;
    squares += ms * ms;
  }
  EXPECT_NEAR(sum / 20'000, 0, 0.1);
  EXPECT_NEAR(std::sqrt(squares / 20'000), 5 / std::sqrt(3.0), 0.05);
}

TEST(LinkModel, JitterReordersOnRequest) {
  LinkModel link(Words("delay 20ms jitter 5ms jitter-reorders"), Random(kSeed));
  const auto arrivals = Offer(link, 10'000, 100us);
  uint64_t overtaking = 0;
  Instant latest;
  for (const Instant t : arrivals) {
    overtaking += t < latest;
    latest = std::max(latest, t);
  }
  EXPECT_GT(overtaking, 5'000u);
  EXPECT_EQ(link.counters().reordered, overtaking);
}

TEST(LinkModel, ReorderLetsTheConfiguredShareSkipTheDelay) {
  LinkModel link(Words("delay 20ms reorder 2%"), Random(kSeed));
  const auto arrivals = Offer(link, 50'000, 100us);
  int skipped = 0;
  for (size_t i = 0; i < arrivals.size(); ++i) skipped += arrivals[i] == At(static_cast<int64_t>(i) * 100us);
  EXPECT_NEAR(skipped / 50'000.0, 0.02, 0.004);
  // The very first packets have no earlier packet to overtake.
  EXPECT_NEAR(static_cast<double>(link.counters().reordered), skipped, 5);
}

TEST(LinkModel, DuplicatesArriveTwiceAndCorruptedBitsLieInThePacket) {
  LinkModel link(Words("delay 1ms duplicate 3% corrupt 4%"), Random(kSeed));
  int copies = 0, corrupted = 0;
  for (int i = 0; i < 50'000; ++i) {
    const Verdict verdict = link.Decide(At(i * 1us), kPacket);
    for (const Delivery& d : verdict.deliveries()) {
      copies += d.copy;
      corrupted += d.corrupted;
      if (d.corrupted) {
        EXPECT_LT(d.corrupt_bit, 12'000u);
      }
    }
  }
  EXPECT_NEAR(copies / 50'000.0, 0.03, 0.005);
  EXPECT_NEAR(corrupted / 51'500.0, 0.04, 0.005);
  EXPECT_EQ(link.counters().duplicated, static_cast<uint64_t>(copies));
  EXPECT_EQ(link.counters().corrupted, static_cast<uint64_t>(corrupted));
  ExpectConserved(link.counters());
}

TEST(LinkModel, AnOutageDropsWhatEntersInItsWindowOnly) {
  LinkModel link(Words("delay 1ms outage 1s..2s outage 5s..6s"), Random(kSeed));
  for (const auto& [t, passes] : std::vector<std::pair<Duration, bool>>{
           {999'999us, true}, {1s, false}, {1'999'999us, false}, {2s, true}, {5500ms, false}, {6s, true}}) {
    EXPECT_EQ(link.Decide(At(t), kPacket).dropped == DropReason::kNone, passes) << t.count() << " ns";
  }
  EXPECT_EQ(link.counters().dropped_outage, 3u);
  ExpectConserved(link.counters());
}

TEST(LinkModel, PacketsAboveTheMtuVanish) {
  LinkModel link(Words("mtu 1400b"), Random(kSeed));
  EXPECT_EQ(link.Decide(At(0s), ByteCount(1401)).dropped, DropReason::kMtu);
  EXPECT_EQ(link.Decide(At(0s), ByteCount(1400)).dropped, DropReason::kNone);
  ExpectConserved(link.counters());
}

TEST(LinkModel, SameSeedSameFateAndAnotherOptionDoesNotMoveTheLosses) {
  std::vector<DropReason> plain, again, jittered, other_seed;
  const auto run = [](const std::string& words, uint64_t seed, std::vector<DropReason>& fate) {
    LinkModel link(Words(words), Random(seed));
    for (int i = 0; i < 5'000; ++i) fate.push_back(link.Decide(At(i * 1ms), kPacket).dropped);
  };
  run("delay 20ms loss 10%", 1, plain);
  run("delay 20ms loss 10%", 1, again);
  run("delay 20ms loss 10% jitter 5ms duplicate 5% corrupt 5%", 1, jittered);
  run("delay 20ms loss 10%", 2, other_seed);
  EXPECT_EQ(plain, again);
  EXPECT_EQ(plain, jittered);
  EXPECT_NE(plain, other_seed);
}

TEST(LinkModel, ChangingTheOptionsKeepsTheQueueAndTheCounters) {
  LinkModel link(Words("rate 12mbit queue 1s"), Random(kSeed));  // 1 ms a packet
  Offer(link, 10, 0ns);
  link.SetOptions(Words("rate 120mbit queue 1s"));
  const Verdict v = link.Decide(At(0s), kPacket);
  ASSERT_EQ(v.count, 1u);
  EXPECT_EQ(v.slots[0].time, At(10ms + 100us)) << "behind what the old rate promised";
  EXPECT_EQ(link.counters().packets_in, 11u);
  link.SetOptions(Words("loss 100%"));
  EXPECT_EQ(link.Decide(At(0s), kPacket).dropped, DropReason::kLoss);
}

TEST(LinkModel, TimeThatGoesBackCountsAsTheLatestSeen) {
  LinkModel link(Words("rate 12mbit delay 5ms"), Random(kSeed));
  (void)link.Decide(At(100ms), kPacket);
  const Verdict v = link.Decide(At(10ms), kPacket);
  ASSERT_EQ(v.count, 1u);
  EXPECT_EQ(v.slots[0].time, At(107ms));
}

}  // namespace
}  // namespace longhaul::wan
