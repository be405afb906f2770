// The queue of packets in flight, against a std::deque; and what it costs.
#include "transport/core/recovery/packet_ring.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>

#include "base/random.h"

namespace longhaul::transport {
namespace {

TEST(PacketRing, DoesWhatADequeDoes) {
  constexpr uint64_t kSeed = 11;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  PacketRing<std::unique_ptr<int>> ring;
  std::deque<int> model;
  int next = 0;
  for (int phase = 0; phase < 100; ++phase) {
    const double grows = static_cast<double>(random.Below(100)) / 100;
    for (int i = 0; i < 1000; ++i) {
      if (random.Chance(grows)) {
        ring.PushBack(std::make_unique<int>(next));
        model.push_back(next++);
      } else if (!model.empty()) {
        ring.PopFront();
        model.pop_front();
      }
      ASSERT_EQ(ring.size(), model.size());
      if (model.empty()) continue;
      const size_t at = random.Below(model.size());
      ASSERT_EQ(*ring[at], model[at]);
      ASSERT_EQ(*ring[0], model[0]);
      ASSERT_EQ(ring.PartitionPoint([&](const auto& value) { return *value < model[at]; }), at);
    }
  }
}

// Counts what is made of it.
struct Counted {
  Counted() { ++made; }
  Counted(Counted&&) noexcept { ++moved; }
  Counted& operator=(Counted&&) noexcept {
    ++moved;
    return *this;
  }
  static inline int made = 0, moved = 0;
};

// No event moves all that is in flight.
TEST(PacketRing, ToGrowMovesNoElement) {
  PacketRing<Counted> ring;
  ring.PushBack({});
  const Counted* const first = &ring[0];
  for (int i = 0; i < 100'000; ++i) {
    const int moved = Counted::moved, made = Counted::made;
    ring.PushBack({});
    ASSERT_LE(Counted::moved - moved, 2) << i;
    ASSERT_LE(Counted::made - made, 100) << i;
  }
  EXPECT_EQ(&ring[0], first);
}

TEST(PacketRing, OfASizeThatItHadMakesNothingNew) {
  PacketRing<Counted> ring;
  for (int i = 0; i < 1000; ++i) ring.PushBack({});
  const int made = Counted::made;
  for (int i = 0; i < 100'000; ++i) {
    ring.PopFront();
    ring.PushBack({});
  }
  while (!ring.empty()) ring.PopFront();
  for (int i = 0; i < 900; ++i) ring.PushBack({});
  // One for each push, and one that takes a popped element's place; a segment at the seam.
  EXPECT_LE(Counted::made - made, 2 * 100'000 + 1000 + 900 + 100);
}

}  // namespace
}  // namespace longhaul::transport
