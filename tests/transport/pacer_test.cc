// The pacer in numbers: rate kept over many small steps, bursts bounded, no credit from idling.
#include "transport/core/rate/pacer.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace longhaul::transport {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr ByteCount kDatagram{1452};

// Sends datagrams whenever there is credit, sleeping until NextSendTime; returns the bytes sent until `end`.
ByteCount SendUntil(Pacer* pacer, Instant* now, Instant end) {
  ByteCount sent;
  while (*now < end) {
    while (pacer->Credit(*now) > ByteCount(0)) {
      pacer->OnSent(kDatagram, *now);
      sent += kDatagram;
    }
    const Instant next = pacer->NextSendTime(*now);
    EXPECT_GT(next, *now);
    *now = next;
  }
  return sent;
}

TEST(Pacer, ALongTransferLeavesAtTheRate) {
  for (double mbps : {0.5, 10.0, 100.0, 1000.0, 10'000.0}) {
    SCOPED_TRACE(mbps);
    Pacer pacer(kDatagram);
    Instant now;
    pacer.SetRate(Bandwidth::Mbps(mbps), now);
    const ByteCount sent = SendUntil(&pacer, &now, Instant() + seconds(1));
    const ByteCount exact = Bandwidth::Mbps(mbps) * (now - Instant());
    EXPECT_NEAR(sent / exact, 1.0, 0.002 + (pacer.Quantum() + kDatagram) / exact);
  }
}

TEST(Pacer, ManyQuestionsAndRateChangesLoseNoCredit) {
  Random random(3);
  Pacer pacer(kDatagram);
  Instant now;
  pacer.SetRate(Bandwidth::Mbps(10), now);
  ByteCount sent;
  while (now < Instant() + seconds(1)) {
    // 1 us at 10 Mbit/s is a byte and a quarter: rounding down at every step would lose a fifth.
    now += microseconds(1);
    pacer.SetRate(Bandwidth::Mbps(random.Chance(0.5) ? 10.0 : 10.001), now);
    if (pacer.Credit(now) > ByteCount(0)) {
      pacer.OnSent(kDatagram, now);
      sent += kDatagram;
    }
  }
  EXPECT_NEAR(sent / (Bandwidth::Mbps(10) * seconds(1)), 1.0, 0.01);
}

TEST(Pacer, TheQuantumIsAMillisecondBetweenTwoDatagramsAndOneSend) {
  Pacer pacer(kDatagram);
  pacer.SetRate(Bandwidth::Mbps(1), Instant());
  EXPECT_EQ(pacer.Quantum(), ByteCount(2904));
  pacer.SetRate(Bandwidth::Mbps(200), Instant());
  EXPECT_EQ(pacer.Quantum(), ByteCount(25'000));
  pacer.SetRate(Bandwidth::Mbps(10'000), Instant());
  EXPECT_EQ(pacer.Quantum(), ByteCount(65'536));
}

TEST(Pacer, ALateTimerFindsTwoMillisecondsOfCreditAtMost) {
  Pacer pacer(kDatagram);
  Instant now;
  pacer.SetRate(Bandwidth::Mbps(200), now);
  pacer.OnSent(ByteCount(25'000), now);
  EXPECT_EQ(pacer.Credit(now), ByteCount(0));
  EXPECT_EQ(pacer.Credit(now + milliseconds(2)), ByteCount(50'000));
  EXPECT_EQ(pacer.Credit(now + milliseconds(3)), ByteCount(50'000));
}

TEST(Pacer, ATimerThatIsMuchTooLateIsAStallAndABlockedSenderIsNone) {
  Pacer pacer(kDatagram);
  Instant now;
  EXPECT_FALSE(pacer.Stalled(now + seconds(1)));  // nothing was ever asked of it
  pacer.SetRate(Bandwidth::Mbps(200), now);
  pacer.OnSent(ByteCount(25'000), now);
  EXPECT_FALSE(pacer.Stalled(now + milliseconds(4)));
  EXPECT_TRUE(pacer.Stalled(now + milliseconds(5)));
  pacer.OnBlockedElsewhere(now);
  EXPECT_FALSE(pacer.Stalled(now + milliseconds(50)));
  pacer.OnSent(ByteCount(1452), now + milliseconds(50));
  EXPECT_FALSE(pacer.Stalled(now + milliseconds(50)));
}

TEST(Pacer, WhatAccruesWhileTheWindowBlocksIsOneQuantum) {
  Pacer pacer(kDatagram);
  Instant now;
  pacer.SetRate(Bandwidth::Mbps(200), now);
  pacer.SetMaxQuantum(ByteCount(3000));
  pacer.OnSent(ByteCount(25'000), now);
  pacer.OnBlockedElsewhere(now);
  EXPECT_EQ(pacer.Credit(now + milliseconds(2)), ByteCount(3000));
  pacer.OnSent(ByteCount(3000), now + milliseconds(2));
  EXPECT_EQ(pacer.Credit(now + milliseconds(3)), ByteCount(25'000));
}

TEST(Pacer, IdlingEarnsOneQuantum) {
  Pacer pacer(kDatagram);
  Instant now;
  pacer.SetRate(Bandwidth::Mbps(200), now);
  pacer.OnSent(ByteCount(25'000), now);
  now += seconds(100);
  EXPECT_EQ(pacer.Credit(now), pacer.Quantum());
  pacer.OnSent(pacer.Quantum(), now);
  EXPECT_EQ(pacer.Credit(now), ByteCount(0));
}

TEST(Pacer, ADebtIsPaidBeforeTheNextQuantum) {
  Pacer pacer(kDatagram);
  Instant now;
  pacer.SetRate(Bandwidth::Mbps(10), now);
  pacer.OnSent(ByteCount(2904 + 1000), now);
  EXPECT_EQ(pacer.Credit(now), ByteCount(-1000));
  const Instant next = pacer.NextSendTime(now);
  EXPECT_GE(pacer.Credit(next), pacer.Quantum());
  EXPECT_LT(pacer.Credit(next - microseconds(1)), pacer.Quantum());
}

TEST(Pacer, NoRateNoSending) {
  Pacer pacer(kDatagram);
  Instant now;
  EXPECT_EQ(pacer.Credit(now), ByteCount(0));
  EXPECT_TRUE(pacer.NextSendTime(now).IsInfinite());
  pacer.SetRate(Bandwidth::Zero(), now);
  pacer.OnSent(pacer.Quantum(), now);
  now += seconds(10);
  EXPECT_EQ(pacer.Credit(now), ByteCount(0));
  EXPECT_TRUE(pacer.NextSendTime(now).IsInfinite());
  pacer.SetRate(Bandwidth::Mbps(10), now);
  EXPECT_EQ(pacer.Credit(now), ByteCount(0));  // nothing was earned while stopped
  EXPECT_GT(pacer.Credit(now + milliseconds(1)), ByteCount(0));
}

TEST(Pacer, AnUnboundedRateDoesNotOverflow) {
  Pacer pacer(kDatagram);
  pacer.SetRate(Bandwidth::Max(), Instant());
  EXPECT_EQ(pacer.Quantum(), ByteCount(65'536));
  EXPECT_EQ(pacer.Credit(Instant() + seconds(3600)), pacer.Quantum());
}

}  // namespace
}  // namespace longhaul::transport
