// Datagrams between two nodes, in memory: what opens, what does not, and what is counted then.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "base/random.h"
#include "offload/udp/datagram_seal.h"

namespace longhaul::offload {
namespace {

using Bytes = std::vector<uint8_t>;

// One node's seal, with what it counts.
struct Node {
  explicit Node(uint8_t node, uint64_t start = 1, SealOptions options = {}) {
    if (options.root.empty()) options.root = crypto::SecretBytes(Bytes(32, 7));
    options.node = node;
    options.nodes = 0b111;
    options.start = start;
    seal.emplace(std::move(options), &counters);
  }
  // Empty: the other one's process is not known.
  Bytes Seal(uint8_t target, const Bytes& packet) {
    Bytes out(packet.size() + DatagramSeal::kSealBytes);
    out.resize(seal->Seal(target, packet, out));
    return out;
  }
  std::optional<Bytes> Open(Bytes datagram, Instant now = Instant::FromNanoseconds(1)) {
    const auto opened = seal->Open(now, datagram);
    if (!opened) return std::nullopt;
    source = opened->source;
    restarted = opened->restarted;
    return Bytes(opened->packet.begin(), opened->packet.end());
  }
  // Hellos that are due, by target.
  std::multimap<uint8_t, Bytes> Hellos(Instant now = Instant::FromNanoseconds(1)) {
    std::multimap<uint8_t, Bytes> all;
    Bytes hello(DatagramSeal::kHelloBytes);
    uint8_t target = 0;
    while (const size_t bytes = seal->NextHello(now, &target, hello)) {
      all.emplace(target, Bytes(hello.begin(), hello.begin() + static_cast<ptrdiff_t>(bytes)));
    }
    return all;
  }
  uint64_t refused() const {
    return counters.foreign + counters.unknown_senders + counters.forged + counters.replayed +
           counters.old_processes + counters.derivations_refused;
  }

  UdpCounters counters;
  std::optional<DatagramSeal> seal;
  uint8_t source = 0;
  bool restarted = false;
};

// Hellos in both directions, until none is due.
void Meet(Node& a, uint8_t number_of_a, Node& b, uint8_t number_of_b) {
  for (int i = 0; i < 3; ++i) {
    for (const auto& [target, hello] : a.Hellos()) {
      if (target == number_of_b) {
        EXPECT_TRUE(b.Open(hello).has_value());
      }
    }
    for (const auto& [target, hello] : b.Hellos()) {
      if (target == number_of_a) {
        EXPECT_TRUE(a.Open(hello).has_value());
      }
    }
  }
}

Bytes PacketOf(size_t bytes, uint64_t seed = 1) {
  Random random(seed);
  Bytes packet(bytes);
  for (uint8_t& byte : packet) byte = static_cast<uint8_t>(random.Below(256));
  return packet;
}

TEST(UdpSeal, WhatIsSealedOpensWithEveryCipher) {
  for (const auto cipher :
       {crypto::AeadSuite::kAes128Gcm, crypto::AeadSuite::kAes256Gcm, crypto::AeadSuite::kChaCha20Poly1305}) {
    Node a(0, 1, {.root = {}, .cipher = cipher}), b(1, 1);  // b seals with another one, and opens a's
    EXPECT_TRUE(a.Seal(1, PacketOf(100)).empty());          // b's process is not known yet
    EXPECT_EQ(a.counters.packets_without_peer, 1u);
    Meet(a, 0, b, 1);
    for (const size_t bytes : {4, 5, 72, 1096, 8264}) {
      const Bytes packet = PacketOf(bytes), datagram = a.Seal(1, packet);
      ASSERT_EQ(datagram.size(), bytes + DatagramSeal::kSealBytes);
      EXPECT_TRUE(std::equal(packet.begin(), packet.begin() + 4, datagram.begin()));  // word 0, for a card
      if (bytes >= 72) {
        EXPECT_EQ(std::search(datagram.begin(), datagram.end(), packet.begin() + 8, packet.begin() + 16),
                  datagram.end());
      }
      EXPECT_EQ(b.Open(datagram), packet);
      EXPECT_EQ(b.source, 0);
      EXPECT_EQ(a.Open(b.Seal(0, packet)), packet);
    }
    EXPECT_EQ(b.refused() + a.refused(), 0u);
    EXPECT_EQ(b.counters.restarts + a.counters.restarts, 0u);
  }
}

TEST(UdpSeal, EveryBitThatIsChangedIsNoticed) {
  Node a(0), b(1);
  Meet(a, 0, b, 1);
  const Bytes datagram = a.Seal(1, PacketOf(76));
  uint64_t changed = 0;
  for (size_t bit = 0; bit < 8 * datagram.size(); ++bit) {
    Bytes copy = datagram;
    copy[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    // A second each, so that keys may be derived for what claims to be new.
    EXPECT_FALSE(
        b.Open(copy, Instant::FromNanoseconds(1'000'000'000 * (int64_t{1} + int64_t(bit)))).has_value())
        << bit;
    EXPECT_EQ(b.refused(), ++changed) << bit;
  }
  EXPECT_TRUE(b.Open(datagram).has_value());  // nothing of it has counted
}

TEST(UdpSeal, TruncatedAndForeignDatagramsAreCounted) {
  Node a(0), b(1);
  Meet(a, 0, b, 1);
  EXPECT_TRUE(b.Open(a.Seal(1, PacketOf(20))).has_value());
  const Bytes datagram = a.Seal(1, PacketOf(76));
  for (size_t bytes = 0; bytes < datagram.size(); ++bytes) {
    EXPECT_FALSE(
        b.Open(Bytes(datagram.begin(), datagram.begin() + static_cast<ptrdiff_t>(bytes))).has_value());
  }
  EXPECT_EQ(b.counters.foreign, 4 + DatagramSeal::kSealBytes);
  EXPECT_EQ(b.counters.forged, 72u);
  for (uint64_t i = 0; i < 1000; ++i) EXPECT_FALSE(b.Open(PacketOf(i % 200, i)).has_value());
  EXPECT_EQ(b.refused(), datagram.size() + 1000);
  EXPECT_TRUE(b.Open(datagram).has_value());
}

TEST(UdpSeal, ADatagramArrivesOnceInWhateverOrder) {
  Node a(0), b(1);
  Meet(a, 0, b, 1);
  std::vector<Bytes> all;
  for (int i = 0; i < 300; ++i) all.push_back(a.Seal(1, PacketOf(20)));
  std::reverse(all.begin(), all.end());
  for (const Bytes& datagram : all) EXPECT_TRUE(b.Open(datagram).has_value());
  for (const Bytes& datagram : all) EXPECT_FALSE(b.Open(datagram).has_value());
  EXPECT_EQ(b.counters.replayed, 300u);
  for (uint64_t i = 0; i < ReplayWindow::kNumbers; ++i) (void)a.Seal(1, PacketOf(20));
  const Bytes late = a.Seal(1, PacketOf(20));
  for (uint64_t i = 0; i < ReplayWindow::kNumbers; ++i) {
    const Bytes datagram = a.Seal(1, PacketOf(20));
    if (i + 1 == ReplayWindow::kNumbers) {
      EXPECT_TRUE(b.Open(datagram).has_value());
    }
  }
  EXPECT_FALSE(b.Open(late).has_value());  // it is too old to tell
  EXPECT_EQ(b.counters.replayed, 301u);
}

TEST(UdpSeal, TheReplayWindowIsThePlainModel) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    ReplayWindow window;
    std::set<uint64_t> seen;
    uint64_t base = seed % 2 == 0 ? 0 : UINT64_MAX / 2;
    for (int i = 0; i < 20'000; ++i) {
      if (random.Chance(0.01)) base += random.Below(3 * ReplayWindow::kNumbers);
      const uint64_t number = base + random.Below(5000);
      const bool old = !seen.empty() && *seen.rbegin() >= ReplayWindow::kNumbers &&
                       number <= *seen.rbegin() - ReplayWindow::kNumbers;
      ASSERT_EQ(window.Seen(number), old || seen.contains(number)) << number;
      if (!old) window.Mark(number), seen.insert(number);
    }
  }
}

TEST(UdpSeal, ANewerProcessIsAcceptedAndTheOldOneNoMore) {
  Node old(0, 100), b(1);
  Meet(old, 0, b, 1);
  const Bytes early = old.Seal(1, PacketOf(20)), late = old.Seal(1, PacketOf(20));
  EXPECT_TRUE(b.Open(early).has_value());
  Node next(0, 101);
  Meet(next, 0, b, 1);
  EXPECT_EQ(b.counters.restarts, 1u);
  EXPECT_FALSE(b.Open(late).has_value());
  for (const auto& [target, hello] : Node(0, 99).Hellos())
    EXPECT_FALSE(target == 1 && b.Open(hello).has_value());
  EXPECT_EQ(b.counters.old_processes, 2u);
  EXPECT_TRUE(b.Open(next.Seal(1, PacketOf(20))).has_value());
  EXPECT_EQ(next.Open(b.Seal(0, PacketOf(20))), PacketOf(20));  // b aims at the new one
}

// It counts when a datagram of it authenticates, and not before.
TEST(UdpSeal, ANewerStartThatIsOnlyClaimedChangesNothing) {
  Node a(0, 100), b(1), forger(0, 200, {.root = crypto::SecretBytes(Bytes(32, 8))});
  Meet(a, 0, b, 1);
  for (const auto& [target, hello] : forger.Hellos()) EXPECT_FALSE(target == 1 && b.Open(hello).has_value());
  EXPECT_EQ(b.counters.forged, 1u);
  EXPECT_EQ(b.counters.restarts, 0u);
  EXPECT_TRUE(b.Open(a.Seal(1, PacketOf(20))).has_value());
}

TEST(UdpSeal, KeysForStartsThatAreOnlyClaimedAreBounded) {
  Node a(0, 100), b(1);
  Meet(a, 0, b, 1);
  Random random(3);
  EXPECT_TRUE(b.Open(a.Seal(1, PacketOf(20))).has_value());
  const Bytes datagram = a.Seal(1, PacketOf(20));
  const auto flood = [&](Instant now) {
    for (int i = 0; i < 10'000; ++i) {
      Bytes claim = datagram;
      for (size_t k = 9; k < 32; ++k)
        claim[k] = static_cast<uint8_t>(random.Below(256));  // start, salt, number
      claim[8] = 1;
      EXPECT_FALSE(b.Open(claim, now).has_value());
    }
  };
  flood(Instant::FromNanoseconds(1));
  EXPECT_LE(b.counters.forged, 10u);
  EXPECT_GE(b.counters.derivations_refused, 9990u);
  flood(Instant::FromNanoseconds(100'000'000));
  EXPECT_LE(b.counters.forged, 20u);
  EXPECT_TRUE(b.Open(datagram, Instant::FromNanoseconds(100'000'000)).has_value());  // its key is there
}

// A recording of what an earlier process of the receiver got: the new one knows no number of it.
TEST(UdpSeal, WhatWasForAnEarlierProcessOfTheReceiverDoesNotOpen) {
  Node a(0), b(1, 1);
  Meet(a, 0, b, 1);
  const Bytes recorded = a.Seal(1, PacketOf(20));
  Node next(1, 2);
  EXPECT_FALSE(next.Open(recorded).has_value());
  EXPECT_EQ(next.counters.forged, 1u);
  Meet(a, 0, next, 1);
  EXPECT_FALSE(next.Open(recorded).has_value());
  EXPECT_TRUE(a.counters.restarts == 1 && next.Open(a.Seal(1, PacketOf(20))).has_value());
}

// A process that lost its first hello learns of it by the data that does not open.
TEST(UdpSeal, AHelloThatWasLostIsSaidAgain) {
  Node a(0), b(1, 1);
  Meet(a, 0, b, 1);
  Node next(1, 2);
  (void)next.Hellos();  // lost
  EXPECT_FALSE(next.Open(a.Seal(1, PacketOf(20))).has_value());
  const auto hellos = next.Hellos();
  ASSERT_EQ(hellos.count(0), 1u);
  EXPECT_TRUE(a.Open(hellos.find(0)->second).has_value());
  EXPECT_TRUE(a.restarted);
  EXPECT_TRUE(next.Open(a.Seal(1, PacketOf(20))).has_value());
}

TEST(UdpSeal, HellosAreBounded) {
  Node a(0), b(1);
  size_t said = b.Hellos().size();
  for (const auto& [target, hello] : a.Hellos()) {
    for (int i = 0; target == 1 && i < 10'000; ++i) {
      (void)b.Open(hello);
      said += b.Hellos().size();
    }
  }
  EXPECT_LE(said, 20u);
  said = 0;
  for (int i = 0; i < 10'000; ++i) {
    EXPECT_TRUE(a.Seal(1, PacketOf(20)).empty());  // each would like to say it
    said += a.Hellos().size();
  }
  EXPECT_LE(said, 20u);
}

TEST(UdpSeal, ADatagramForAnotherNodeDoesNotOpen) {
  Node a(0), b(1), c(2);
  Meet(a, 0, b, 1);
  Meet(a, 0, c, 2);
  EXPECT_FALSE(c.Open(a.Seal(1, PacketOf(20))).has_value());
  EXPECT_EQ(c.counters.forged, 1u);
  Bytes of_stranger = a.Seal(1, PacketOf(20));
  of_stranger[7] = 9;  // node 9
  EXPECT_FALSE(b.Open(of_stranger).has_value());
  of_stranger[7] = 1;  // itself
  EXPECT_FALSE(b.Open(of_stranger).has_value());
  EXPECT_EQ(b.counters.unknown_senders, 2u);
}

TEST(UdpSeal, AnotherKeyOpensNothing) {
  Node a(0, 1, {.root = crypto::SecretBytes(Bytes(32, 9))}), b(1);
  for (const auto& [target, hello] : a.Hellos()) EXPECT_FALSE(target == 1 && b.Open(hello).has_value());
  EXPECT_EQ(b.counters.forged, 1u);
  EXPECT_TRUE(a.Seal(1, PacketOf(20)).empty());
}

// Out of order within a key and the one before, a key is derived once: at one time only so many are.
TEST(UdpSeal, KeysChangeAndWhatIsUnderWayStillOpens) {
  Node a(0, 1, {.root = {}, .epoch_bits = 4}), b(1, 1, {.root = {}, .epoch_bits = 4});
  Meet(a, 0, b, 1);
  std::vector<Bytes> held;
  for (int i = 0; i < 100; ++i) {
    // Every eighth comes later, often under the key before.
    held.push_back(a.Seal(1, PacketOf(20)));
    if (i % 8 != 0) {
      ASSERT_TRUE(b.Open(held.back()).has_value()) << i;
      held.pop_back();
    }
    if (i % 8 == 7 && held.size() > 1) {
      ASSERT_TRUE(b.Open(held.front()).has_value()) << i;
      held.erase(held.begin());
    }
  }
  // After a silence of many keys.
  for (int i = 0; i < 100; ++i) (void)a.Seal(1, PacketOf(20));
  EXPECT_TRUE(b.Open(a.Seal(1, PacketOf(20)), Instant::FromNanoseconds(100'000'000'000)).has_value());
}

TEST(UdpSeal, AKeySealsItsShareAndNoMore) {
  Node a(0, 1, {.root = {}, .epoch_bits = 4}), b(1, 1, {.root = {}, .epoch_bits = 5});
  Meet(a, 0, b, 1);
  for (int i = 0; i < 16; ++i) EXPECT_TRUE(b.Open(a.Seal(1, PacketOf(20))).has_value());
  EXPECT_FALSE(b.Open(a.Seal(1, PacketOf(20))).has_value());  // b looks for it under the first key
}

}  // namespace
}  // namespace longhaul::offload
