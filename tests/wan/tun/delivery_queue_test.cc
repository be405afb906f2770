#include "wan/tun/delivery_queue.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace longhaul::wan {
namespace {

Instant At(int64_t ns) { return Instant::FromNanoseconds(ns); }

TEST(DeliveryQueue, PopsByDueTimeAndEqualTimesInOrder) {
  DeliveryQueue queue(10, 100);
  EXPECT_TRUE(queue.NextDue().IsInfinite());
  for (const int64_t due : {30, 10, 20, 10, 10}) {
    const auto slot = queue.Acquire();
    ASSERT_TRUE(slot.has_value());
    queue.Push(At(due), *slot, static_cast<uint32_t>(due), 1);
  }
  EXPECT_EQ(queue.NextDue(), At(10));
  std::vector<uint64_t> order;
  while (!queue.empty()) order.push_back(queue.Pop().sequence);
  EXPECT_EQ(order, (std::vector<uint64_t>{1, 3, 4, 2, 0}));
}

TEST(DeliveryQueue, IsBoundedAndReusesWhatIsReleased) {
  DeliveryQueue queue(300, 100);  // more than a block, less than two
  std::set<uint32_t> slots;
  while (const auto slot = queue.Acquire()) slots.insert(*slot);
  EXPECT_EQ(slots.size(), 300u);
  queue.Release(*slots.begin());
  EXPECT_EQ(queue.Acquire(), *slots.begin());
  EXPECT_FALSE(queue.Acquire().has_value());
}

TEST(DeliveryQueue, BuffersDoNotOverlap) {
  DeliveryQueue queue(600, 64);
  std::vector<uint32_t> slots;
  while (const auto slot = queue.Acquire()) slots.push_back(*slot);
  for (const uint32_t slot : slots) std::ranges::fill(queue.Buffer(slot), static_cast<uint8_t>(slot % 251));
  for (const uint32_t slot : slots) {
    EXPECT_EQ(queue.Buffer(slot).front(), slot % 251);
    EXPECT_EQ(queue.Buffer(slot).back(), slot % 251);
    EXPECT_EQ(queue.Buffer(slot).size(), 64u);
  }
}

}  // namespace
}  // namespace longhaul::wan
