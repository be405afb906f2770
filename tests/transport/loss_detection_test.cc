// Which packets are lost, when, and that nothing is counted twice: by example, and at random against a plain
// model.
#include "transport/core/recovery/loss_detection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/random.h"
#include "transport/core/recovery/ack_tracker.h"

namespace longhaul::transport {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr ByteCount kBytes{1200};

wire::AckFrame Ack(std::vector<wire::AckRange> ranges) {
  wire::AckFrame ack;
  ack.ranges = std::move(ranges);
  return ack;
}

std::vector<wire::PacketNumber> Numbers(const std::vector<SentPacket>& packets) {
  std::vector<wire::PacketNumber> numbers;
  for (const SentPacket& p : packets) numbers.push_back(p.number);
  return numbers;
}

class LossDetectionTest : public testing::Test {
 protected:
  using List = std::vector<wire::PacketNumber>;

  void Send(int count, bool in_flight = true) {
    for (int i = 0; i < count; ++i) {
      SentPacket p;
      p.number = next_++;
      p.sent_time = now_;
      p.bytes = kBytes;
      p.ack_eliciting = p.in_flight = in_flight;
      loss_.OnPacketSent(std::move(p));
    }
  }
  LossDetection::Outcome Receive(std::vector<wire::AckRange> ranges) {
    auto outcome = loss_.OnAckReceived(Ack(std::move(ranges)), now_);
    EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
    return std::move(outcome).value();
  }
  void Skip() { loss_.SkipNumber(next_++); }
  bool Refuses(std::vector<wire::AckRange> ranges) {
    const auto outcome = loss_.OnAckReceived(Ack(std::move(ranges)), now_);
    return !outcome.ok() && outcome.status().code() == StatusCode::kProtocolViolation;
  }
  void Pass(Duration d) { now_ += d; }

  RttEstimator rtt_;
  LossDetection loss_{&rtt_};
  wire::PacketNumber next_ = 0;
  Instant now_ = Instant::FromNanoseconds(1'000'000'000);
};

TEST_F(LossDetectionTest, AcknowledgedPacketsLeaveTheFlight) {
  Send(10);
  EXPECT_EQ(loss_.bytes_in_flight(), kBytes * int64_t{10});
  Pass(milliseconds(20));
  const auto outcome = Receive({{8, 9}, {0, 6}});
  EXPECT_EQ(Numbers(outcome.acked), (List{0, 1, 2, 3, 4, 5, 6, 8, 9}));
  EXPECT_TRUE(outcome.lost.empty());  // 7 is two behind: within the threshold of three
  EXPECT_TRUE(outcome.rtt_updated);
  EXPECT_EQ(rtt_.latest_rtt(), milliseconds(20));
  EXPECT_EQ(loss_.bytes_in_flight(), kBytes);
}

TEST_F(LossDetectionTest, ThreePacketsLaterAPacketIsLost) {
  Send(5);
  Pass(milliseconds(20));
  EXPECT_TRUE(Receive({{1, 2}}).lost.empty());
  const auto outcome = Receive({{1, 3}});
  EXPECT_EQ(Numbers(outcome.lost), (List{0}));
  EXPECT_EQ(loss_.packets_lost(), 1u);
  EXPECT_EQ(loss_.bytes_in_flight(), kBytes);
}

TEST_F(LossDetectionTest, AFiveQuarterRoundTripLaterAPacketIsLost) {
  Send(1);
  Pass(milliseconds(1));
  Send(1);
  Pass(milliseconds(40));
  EXPECT_TRUE(Receive({{1, 1}}).lost.empty());
  // Packet 0 left 41 ms ago; due at 5/4 of 40 ms after it was sent.
  EXPECT_EQ(loss_.Deadline(), now_ + milliseconds(9));
  Pass(milliseconds(8));
  EXPECT_TRUE(loss_.OnTimeout(now_).lost.empty());
  Pass(milliseconds(1));
  const auto outcome = loss_.OnTimeout(now_);
  EXPECT_EQ(Numbers(outcome.lost), (List{0}));
  EXPECT_FALSE(outcome.send_probes);
  EXPECT_TRUE(loss_.Deadline().IsInfinite());
}

TEST_F(LossDetectionTest, NothingAfterItAcknowledgedNothingLost) {
  Send(4);
  Pass(milliseconds(20));
  Receive({{0, 1}});
  Pass(std::chrono::seconds(5));
  const auto outcome = loss_.OnTimeout(now_);
  EXPECT_TRUE(outcome.lost.empty());
  EXPECT_TRUE(outcome.send_probes);
  EXPECT_EQ(loss_.bytes_in_flight(), kBytes * int64_t{2});
}

TEST_F(LossDetectionTest, ProbeTimeoutsDoubleUpToABoundAndAnAckEndsThem) {
  Send(1);
  const Instant sent = now_;
  const Duration base = rtt_.PtoBase(AckTracker::kMaxAckDelay);
  for (int i = 0; i < 9; ++i) {
    const Duration pto = base * (1 << std::min(i, LossDetection::kMaxPtoBackoff));
    // Beyond the bound, with no probe allowed to leave, the next one is still a whole time-out away.
    EXPECT_EQ(loss_.Deadline(), (i > LossDetection::kMaxPtoBackoff ? now_ : sent) + pto);
    now_ = loss_.Deadline();
    EXPECT_FALSE(loss_.OnTimeout(now_ - Duration(1)).send_probes);
    EXPECT_TRUE(loss_.OnTimeout(now_).send_probes);
    EXPECT_EQ(loss_.pto_count(), i + 1);
  }
  Receive({{0, 0}});
  EXPECT_EQ(loss_.pto_count(), 0);
  EXPECT_TRUE(loss_.Deadline().IsInfinite());
}

TEST_F(LossDetectionTest, ALateAckIsSpuriousAndWidensTheThreshold) {
  Send(20);
  Pass(milliseconds(20));
  EXPECT_EQ(Numbers(Receive({{5, 9}}).lost), (List{0, 1, 2, 3, 4}));
  const auto outcome = Receive({{0, 9}});
  EXPECT_EQ(Numbers(outcome.spurious), (List{0, 1, 2, 3, 4}));
  EXPECT_TRUE(outcome.acked.empty());
  EXPECT_EQ(loss_.packets_spurious(), 5u);
  EXPECT_EQ(loss_.packets_lost(), 5u);  // raw: not undone
  EXPECT_EQ(loss_.packet_threshold(), 10u);
  EXPECT_TRUE(Receive({{0, 9}}).spurious.empty());  // once
  // The same reordering again is no loss now.
  EXPECT_TRUE(Receive({{15, 19}, {0, 9}}).lost.empty());
}

TEST_F(LossDetectionTest, TheThresholdIsBoundedAndShrinksWhenOrderReturns) {
  Send(2000);
  Pass(milliseconds(20));
  Receive({{1500, 1999}});
  Receive({{0, 1999}});
  EXPECT_EQ(loss_.packet_threshold(), LossDetection::kMaxPacketThreshold);
  for (int i = 0; i < 200; ++i) {
    Send(1);
    Pass(milliseconds(20));
    Receive({{next_ - 1, next_ - 1}});
  }
  EXPECT_EQ(loss_.packet_threshold(), LossDetection::kInitialPacketThreshold);
}

TEST_F(LossDetectionTest, ReorderingThatGoesOnKeepsTheThreshold) {
  Send(100);
  Pass(milliseconds(20));
  Receive({{40, 60}});
  Receive({{10, 60}});
  ASSERT_EQ(loss_.packet_threshold(), 51u);
  for (int i = 0; i < 300; ++i) {
    const wire::PacketNumber first = next_;
    Send(45);
    Pass(milliseconds(20));
    EXPECT_TRUE(Receive({{first + 40, first + 44}}).lost.size() <= 40);
    const auto outcome = Receive({{first, first + 44}});
    EXPECT_TRUE(outcome.spurious.empty());
  }
  EXPECT_GE(loss_.packet_threshold(), 41u);
}

TEST_F(LossDetectionTest, APathThatBecameSlowerStillGivesRoundTripSamples) {
  Send(2);
  Pass(milliseconds(10));
  Receive({{0, 1}});
  Send(2);
  Pass(milliseconds(1));
  Send(1);
  Pass(milliseconds(50));  // all of it is late now, by far more than 5/4 of 10 ms
  Receive({{4, 4}});
  EXPECT_EQ(rtt_.latest_rtt(), milliseconds(50));
  Receive({{2, 4}});
  EXPECT_EQ(loss_.bytes_in_flight(), ByteCount(0));
}

TEST_F(LossDetectionTest, AcksOfPacketsNeverSentChangeNothing) {
  EXPECT_EQ(loss_.OnAckReceived(Ack({{0, 0}}), now_).status().code(), StatusCode::kProtocolViolation);
  Send(5);
  Pass(milliseconds(10));
  const std::vector<std::vector<wire::AckRange>> bad = {
      {{3, 5}},          // 5 was never sent
      {{0, 1000}},       //
      {},                // no range at all
      {{3, 2}},          // upside down
      {{1, 2}, {3, 4}},  // not newest first
      {{2, 4}, {1, 2}},  // overlapping
  };
  for (const auto& ranges : bad) {
    EXPECT_EQ(loss_.OnAckReceived(Ack(ranges), now_).status().code(), StatusCode::kProtocolViolation);
  }
  EXPECT_EQ(loss_.bytes_in_flight(), kBytes * int64_t{5});
  EXPECT_FALSE(rtt_.has_sample());
}

TEST_F(LossDetectionTest, AHugeAckDelayIsHarmless) {
  Send(2);
  Pass(milliseconds(10));
  wire::AckFrame ack = Ack({{0, 1}});
  ack.ack_delay_us = wire::kMaxPacketNumber * 16;
  EXPECT_TRUE(loss_.OnAckReceived(ack, now_).ok());
  EXPECT_EQ(rtt_.smoothed_rtt(), milliseconds(10));
}

TEST_F(LossDetectionTest, AcksOnTheirOwnAreNeitherInFlightNorLost) {
  Send(3, false);
  EXPECT_EQ(loss_.bytes_in_flight(), ByteCount(0));
  EXPECT_TRUE(loss_.Deadline().IsInfinite());
  Send(10);
  Pass(milliseconds(10));
  const auto outcome = Receive({{12, 12}});
  EXPECT_EQ(Numbers(outcome.lost), (List{3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(loss_.packets_lost(), 7u);
}

TEST_F(LossDetectionTest, ASilentPeerCostsNoMemoryForAcks) {
  for (int i = 0; i < 300'000; ++i) Send(1, false);
  Send(1);
  Pass(milliseconds(10));
  const auto outcome = Receive({{0, next_ - 1}});
  EXPECT_LE(outcome.acked.size(), 2048u);
}

TEST_F(LossDetectionTest, TheFlightIsBounded) {
  while (loss_.CanSend()) Send(1000 < LossDetection::kMaxInFlightPackets - next_ ? 1000 : 1);
  EXPECT_EQ(next_, LossDetection::kMaxInFlightPackets);
  Pass(milliseconds(10));
  EXPECT_EQ(Receive({{0, next_ - 1}}).acked.size(), LossDetection::kMaxInFlightPackets);
  EXPECT_TRUE(loss_.CanSend());
}

TEST_F(LossDetectionTest, ANumberLeftOutIsNoPacket) {
  Send(2);
  Skip();
  Send(4);  // 3 to 6
  Pass(milliseconds(20));
  EXPECT_TRUE(Receive({{3, 3}}).lost.empty());  // two packets after the first
  EXPECT_EQ(Numbers(Receive({{3, 4}}).lost), (List{0}));
  EXPECT_EQ(Numbers(Receive({{3, 5}}).lost), (List{1}));
  Pass(milliseconds(100));
  loss_.OnTimeout(now_);
  Receive({{3, 6}});
  EXPECT_EQ(loss_.packets_lost(), 2u);
  EXPECT_EQ(loss_.bytes_in_flight(), ByteCount(0));
  EXPECT_TRUE(loss_.Deadline().IsInfinite());
}

TEST_F(LossDetectionTest, ANumberLeftOutIsNoReordering) {
  Send(1);
  for (int i = 0; i < 5; ++i) Skip();
  Send(2);  // 6 and 7
  Pass(milliseconds(20));
  Receive({{6, 7}});
  Pass(milliseconds(1));
  Receive({{6, 7}, {0, 0}});  // two packets late
  Pass(milliseconds(1000));
  Send(1);
  Receive({{8, 8}});
  EXPECT_EQ(loss_.packet_threshold(), LossDetection::kInitialPacketThreshold);
}

TEST_F(LossDetectionTest, AnAckOfANumberLeftOutIsRefusedAndChangesNothing) {
  Send(3);
  Skip();  // 3
  EXPECT_TRUE(Refuses({{0, 3}}));
  Send(3);
  Pass(milliseconds(20));
  EXPECT_TRUE(Refuses({{0, 6}}));
  EXPECT_TRUE(Refuses({{3, 3}}));
  EXPECT_TRUE(Refuses({{5, 6}, {0, 3}}));
  EXPECT_TRUE(Refuses({{3, 4}}));
  EXPECT_EQ(loss_.bytes_in_flight(), kBytes * int64_t{6});
  EXPECT_FALSE(rtt_.has_sample());
  EXPECT_EQ(Receive({{4, 6}, {0, 2}}).acked.size(), 6u);
}

TEST_F(LossDetectionTest, TheNewestNumbersLeftOutAreRemembered) {
  for (size_t i = 0; i < 2 * LossDetection::kMaxSkipped; ++i) {
    Send(1);
    Skip();
    Send(1);
    Receive({{next_ - 1, next_ - 1}, {next_ - 3, next_ - 3}});
  }
  EXPECT_TRUE(Refuses({{next_ - 2, next_ - 2}}));
  EXPECT_TRUE(Refuses({{next_ + 1 - 3 * LossDetection::kMaxSkipped, next_ - 3}}));
  EXPECT_TRUE(Receive({{0, 100}}).acked.empty());
}

TEST_F(LossDetectionTest, KnowsTheChunksInFlightOldestFirstAndEachOnce) {
  const auto send_chunk = [this](uint32_t index) {
    SentPacket p;
    p.number = next_++;
    p.sent_time = now_;
    p.bytes = kBytes;
    p.ack_eliciting = p.in_flight = true;
    p.chunk = SentChunk{.window_id = 1, .index = index};
    loss_.OnPacketSent(std::move(p));
  };
  const auto indices = [this](size_t limit) {
    std::vector<uint32_t> list;
    for (const SentChunk& chunk : loss_.UnackedChunks(limit)) list.push_back(chunk.index);
    return list;
  };
  EXPECT_TRUE(indices(9).empty());
  Send(1);
  for (const uint32_t index : {5u, 4u, 5u, 6u}) send_chunk(index);
  EXPECT_EQ(indices(9), (std::vector<uint32_t>{5, 4, 6}));
  EXPECT_EQ(indices(2), (std::vector<uint32_t>{5, 4}));
  Pass(milliseconds(1));
  Receive({{2, 2}});
  EXPECT_EQ(indices(9), (std::vector<uint32_t>{5, 6}));
}

// Model: a map from packet number to its fate; the network drops, delays and reorders, ACKs get lost.
TEST_F(LossDetectionTest, RandomNetworksNeverLoseCount) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    RttEstimator rtt;
    LossDetection loss(&rtt);
    AckTracker acks;
    enum class Fate { kInFlight, kAcked, kLost, kSpurious };
    std::map<wire::PacketNumber, Fate> model;
    std::multimap<Instant, wire::PacketNumber> arrivals;
    const double drop = 0.3 * random.Uniform();
    const int64_t jitter_us = static_cast<int64_t>(random.Below(8000));
    Instant now = Instant::FromNanoseconds(1);
    wire::PacketNumber next = 0;
    size_t arrived_count = 0;
    size_t acked_count = 0;
    const auto apply = [&](const LossDetection::Outcome& outcome) {
      for (const SentPacket& p : outcome.acked) {
        ASSERT_EQ(model[p.number], Fate::kInFlight);
        model[p.number] = Fate::kAcked;
        ++acked_count;
      }
      for (const SentPacket& p : outcome.lost) {
        ASSERT_EQ(model[p.number], Fate::kInFlight);
        model[p.number] = Fate::kLost;
      }
      for (const SentPacket& p : outcome.spurious) {
        ASSERT_EQ(model[p.number], Fate::kLost);
        model[p.number] = Fate::kSpurious;
        ++acked_count;
      }
      ASSERT_TRUE(std::is_sorted(outcome.acked.begin(), outcome.acked.end(),
                                 [](const auto& a, const auto& b) { return a.number < b.number; }));
    };
    for (int step = 0; step < 3000; ++step) {
      now += microseconds(random.Below(300));
      const bool sending = step < 2000;
      for (uint64_t n = sending ? random.Below(4) : 0; n > 0; --n) {
        SentPacket p;
        p.number = next++;
        p.sent_time = now;
        p.bytes = kBytes;
        p.ack_eliciting = p.in_flight = true;
        model[p.number] = Fate::kInFlight;
        if (!random.Chance(drop)) {
          const int64_t delay =
              5000 + static_cast<int64_t>(random.Below(static_cast<uint64_t>(jitter_us) + 1));
          arrivals.emplace(now + microseconds(delay), p.number);
        }
        loss.OnPacketSent(std::move(p));
        if (random.Chance(0.05)) loss.SkipNumber(next++);
      }
      while (!arrivals.empty() && arrivals.begin()->first <= now) {
        ASSERT_FALSE(acks.IsDuplicate(arrivals.begin()->second));
        acks.OnPacketReceived(arrivals.begin()->second, true, false, now);
        arrivals.erase(arrivals.begin());
        ++arrived_count;
      }
      if (acks.ShouldAck(now)) {
        const wire::AckFrame ack = acks.BuildAck(now);
        if (!random.Chance(drop)) {
          auto outcome = loss.OnAckReceived(ack, now);
          ASSERT_TRUE(outcome.ok());
          apply(*outcome);
        }
      }
      if (loss.Deadline() <= now) apply(loss.OnTimeout(now));
      if (step % 50 == 0) {
        const auto in_flight = std::count_if(model.begin(), model.end(),
                                             [](const auto& e) { return e.second == Fate::kInFlight; });
        ASSERT_EQ(loss.bytes_in_flight(), kBytes * int64_t{in_flight});
      }
    }
    ASSERT_LE(acked_count, arrived_count);
    ASSERT_GE(acked_count, arrived_count * 8 / 10);
  }
}

}  // namespace
}  // namespace longhaul::transport
