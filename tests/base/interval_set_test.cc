// Ranges against a plain std::set: whatever the order of operations, the two agree.
#include "base/interval_set.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <vector>

#include "base/random.h"

namespace longhaul {
namespace {

using Range = IntervalSet::Range;

TEST(IntervalSet, NumbersInOrderMakeOneRange) {
  IntervalSet set;
  for (uint64_t n = 5; n < 1000; ++n) EXPECT_EQ(set.Add(n), 1u);
  EXPECT_EQ(set.ranges(), (std::vector<Range>{{5, 999}}));
  EXPECT_EQ(set.Size(), 995u);
}

TEST(IntervalSet, AddCountsOnlyWhatIsNew) {
  IntervalSet set;
  EXPECT_EQ(set.Add(10, 19), 10u);
  EXPECT_EQ(set.Add(30, 39), 10u);
  EXPECT_EQ(set.Add(10, 19), 0u);
  EXPECT_EQ(set.Add(15, 34), 10u);
  EXPECT_EQ(set.ranges(), (std::vector<Range>{{10, 39}}));
}

TEST(IntervalSet, FillingAGapMergesItsNeighbours) {
  IntervalSet set;
  set.Add(1, 3);
  set.Add(5, 7);
  EXPECT_EQ(set.ranges().size(), 2u);
  EXPECT_EQ(set.Add(4), 1u);
  EXPECT_EQ(set.ranges(), (std::vector<Range>{{1, 7}}));
}

TEST(IntervalSet, TheEndsOfTheNumberLineDoNotWrap) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  IntervalSet set;
  EXPECT_EQ(set.Add(kMax), 1u);
  EXPECT_EQ(set.Add(0), 1u);
  EXPECT_EQ(set.ranges().size(), 2u);
  EXPECT_EQ(set.Add(kMax - 1), 1u);
  EXPECT_EQ(set.Add(kMax), 0u);
  EXPECT_EQ(set.ranges(), (std::vector<Range>{{0, 0}, {kMax - 1, kMax}}));
  set.RemoveBelow(kMax);
  EXPECT_EQ(set.ranges(), (std::vector<Range>{{kMax, kMax}}));
}

TEST(IntervalSet, RemoveBelowCutsThroughARange) {
  IntervalSet set;
  set.Add(1, 3);
  set.Add(10, 20);
  set.RemoveBelow(15);
  EXPECT_EQ(set.ranges(), (std::vector<Range>{{15, 20}}));
  EXPECT_FALSE(set.Contains(14));
  EXPECT_TRUE(set.Contains(15));
  set.RemoveBelow(21);
  EXPECT_TRUE(set.empty());
}

TEST(IntervalSet, KeepNewestDropsTheLowestRanges) {
  IntervalSet set;
  for (uint64_t n = 0; n < 10; ++n) set.Add(2 * n);
  EXPECT_EQ(set.KeepNewest(20), 0u);
  EXPECT_EQ(set.KeepNewest(3), 7u);
  EXPECT_EQ(set.ranges(), (std::vector<Range>{{14, 14}, {16, 16}, {18, 18}}));
}

std::vector<Range> RangesOf(const std::set<uint64_t>& model) {
  std::vector<Range> ranges;
  for (uint64_t n : model) {
    if (!ranges.empty() && ranges.back().last + 1 == n) {
      ranges.back().last = n;
    } else {
      ranges.push_back({n, n});
    }
  }
  return ranges;
}

TEST(IntervalSet, RandomOperationsAgreeWithAStdSet) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    IntervalSet set;
    std::set<uint64_t> model;
    const uint64_t span = seed % 3 == 0 ? 40 : 400;
    for (int step = 0; step < 600; ++step) {
      const uint64_t first = random.Below(span);
      if (random.Chance(0.9)) {
        const uint64_t last = first + (random.Chance(0.5) ? 0 : random.Below(span / 8));
        uint64_t fresh = 0;
        for (uint64_t n = first; n <= last; ++n) fresh += model.insert(n).second ? 1 : 0;
        ASSERT_EQ(set.Add(first, last), fresh);
      } else if (random.Chance(0.5)) {
        const uint64_t bound = first / 2;
        model.erase(model.begin(), model.lower_bound(bound));
        set.RemoveBelow(bound);
      } else {
        const size_t keep = 1 + random.Below(20);
        const std::vector<Range> before = RangesOf(model);
        const size_t dropped = before.size() > keep ? before.size() - keep : 0;
        if (dropped > 0) model.erase(model.begin(), model.lower_bound(before[dropped].first));
        ASSERT_EQ(set.KeepNewest(keep), dropped);
      }
      ASSERT_EQ(set.ranges(), RangesOf(model));
      ASSERT_EQ(set.Size(), model.size());
      const uint64_t probe = random.Below(span + 10);
      ASSERT_EQ(set.Contains(probe), model.contains(probe));
    }
  }
}

}  // namespace
}  // namespace longhaul
