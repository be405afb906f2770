// Keys that wait: once each, never with two workers, again after a failure and later each time.
#include "operator/api/core/work_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "base/random.h"
#include "tests/operator/api/answers.h"

namespace longhaul::kube::api {
namespace {

TEST(WorkQueue, AKeyIsInItOnceAndComesInOrder) {
  WorkQueue queue;
  EXPECT_TRUE(queue.Add("a", At(0)));
  EXPECT_TRUE(queue.Add("b", At(0)));
  EXPECT_TRUE(queue.Add("a", At(1)));
  EXPECT_EQ(queue.waiting(), 2u);
  EXPECT_EQ(queue.counters().merged, 1u);
  EXPECT_EQ(queue.NextDue(), At(0));
  EXPECT_EQ(queue.Take(At(3)), "a");
  EXPECT_EQ(queue.Take(At(3)), "b");
  EXPECT_EQ(queue.Take(At(3)), std::nullopt);
  EXPECT_EQ(queue.NextDue(), Instant::Infinite());
  EXPECT_EQ(queue.counters().longest_wait, std::chrono::seconds(3));
}

TEST(WorkQueue, AKeyThatIsTakenWaitsForDone) {
  WorkQueue queue;
  queue.Add("a", At(0));
  ASSERT_EQ(queue.Take(At(0)), "a");
  EXPECT_TRUE(queue.Add("a", At(1)));
  EXPECT_TRUE(queue.Add("a", At(1)));
  EXPECT_EQ(queue.Take(At(1)), std::nullopt) << "two workers would have it";
  queue.Done("a", At(2));
  EXPECT_EQ(queue.Take(At(2)), "a");
  EXPECT_EQ(queue.counters().requeued, 1u);
  queue.Done("a", At(3));
  EXPECT_EQ(queue.Take(At(3)), std::nullopt);
  queue.Done("never taken", At(3));
  EXPECT_EQ(queue.taken(), 0u);
}

TEST(WorkQueue, ADelayedKeyComesAtItsTimeTheEarliestOne) {
  WorkQueue queue;
  queue.AddAfter("a", std::chrono::seconds(10), At(0));
  queue.AddAfter("a", std::chrono::seconds(5), At(1));
  queue.AddAfter("a", std::chrono::seconds(30), At(2));
  EXPECT_EQ(queue.NextDue(), At(6));
  EXPECT_EQ(queue.Take(At(5.9)), std::nullopt);
  EXPECT_EQ(queue.Take(At(6)), "a");
  queue.Done("a", At(6));
  EXPECT_EQ(queue.Take(At(100)), std::nullopt) << "of the later times nothing is left";
}

TEST(WorkQueue, AnEventOvertakesADelay) {
  WorkQueue queue;
  queue.AddAfter("a", std::chrono::seconds(60), At(0));
  queue.Add("a", At(1));
  EXPECT_EQ(queue.Take(At(1)), "a");
  EXPECT_EQ(queue.delayed(), 0u);
}

TEST(WorkQueue, ADelayThatEndsWhileTheKeyIsTakenCountsAfterDone) {
  WorkQueue queue;
  queue.Add("a", At(0));
  queue.Take(At(0));
  queue.AddAfter("a", std::chrono::seconds(1), At(0));
  EXPECT_EQ(queue.Take(At(2)), std::nullopt);
  queue.Done("a", At(3));
  EXPECT_EQ(queue.Take(At(3)), "a");
}

TEST(WorkQueue, RetriesDoubleUntilForgetAndEndAtAMinute) {
  WorkQueue queue;
  Instant now;
  double gap = 0;
  for (int i = 0; i < 20; ++i) {
    queue.AddRateLimited("a", now, 1);
    gap = SecondsOf(queue.NextDue() - now);
    if (i < 5) {
      EXPECT_NEAR(gap, 0.005 * (1 << i), 1e-6);
    }
    now = queue.NextDue();
    EXPECT_EQ(queue.Take(now - std::chrono::microseconds(1)), std::nullopt);
    ASSERT_EQ(queue.Take(now), "a");
    queue.Done("a", now);
  }
  EXPECT_NEAR(gap, 60, 1e-6);
  EXPECT_EQ(queue.failures("a"), 20u);
  queue.Forget("a");
  queue.AddRateLimited("a", now, 1);
  EXPECT_NEAR(SecondsOf(queue.NextDue() - now), 0.005, 1e-6);
}

TEST(WorkQueue, ChanceSpreadsRetriesOverHalfTheirTime) {
  WorkQueue queue;
  queue.AddRateLimited("a", At(0), 0);
  EXPECT_NEAR(SecondsOf(queue.NextDue() - At(0)), 0.0025, 1e-6);
}

TEST(WorkQueue, RetriesOfAllKeysAreTenASecondAfterAHundred) {
  WorkQueue queue;
  for (int i = 0; i < 200; ++i) queue.AddRateLimited("k" + std::to_string(i), At(1000), 1);
  int soon = 0;
  while (queue.Take(At(1000.05))) ++soon;
  EXPECT_EQ(soon, 100);
  int second = 0;
  while (queue.Take(At(1001.01))) ++second;
  EXPECT_EQ(second, 10);
}

TEST(WorkQueue, BeyondTheBoundKeysAreRefusedAndCounted) {
  WorkQueueOptions options;
  options.max_keys = 2;
  WorkQueue queue(options);
  EXPECT_TRUE(queue.Add("a", At(0)));
  EXPECT_TRUE(queue.AddAfter("b", std::chrono::seconds(1), At(0)));
  EXPECT_FALSE(queue.Add("c", At(0)));
  EXPECT_FALSE(queue.AddAfter("c", std::chrono::seconds(1), At(0)));
  EXPECT_TRUE(queue.Add("b", At(0))) << "it is in it";
  EXPECT_EQ(queue.counters().refused, 2u);
  for (int i = 0; i < 10; ++i) queue.AddRateLimited("r" + std::to_string(i), At(0), 0);
  int remembered = 0;
  for (int i = 0; i < 10; ++i) remembered += queue.failures("r" + std::to_string(i)) > 0 ? 1 : 0;
  EXPECT_LE(remembered, 2);
}

// Against a plain model: what was added is taken after it was added, no key is with two, none is lost.
TEST(WorkQueue, RandomOperationsAgreeWithAModel) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    WorkQueue queue;
    std::map<std::string, double> wanted;  // key -> when it must come at the latest
    std::set<std::string> taken;
    double now = 0;
    for (int i = 0; i < 500; ++i) {
      now += random.Uniform() * 0.5;
      const std::string key = "k" + std::to_string(random.Below(8));
      const auto want = [&](double at) {
        const auto [found, added] = wanted.try_emplace(key, at);
        if (!added) found->second = std::min(found->second, at);
      };
      switch (random.Below(5)) {
        case 0:
          queue.Add(key, At(now));
          want(now);
          break;
        case 1: {
          const double delay = random.Uniform() * 3;
          queue.AddAfter(key, At(delay) - At(0), At(now));
          want(now + delay);
          break;
        }
        case 2:
          if (!taken.empty()) {
            queue.Done(*taken.begin(), At(now));
            taken.erase(taken.begin());
          }
          break;
        default:
          while (const auto got = queue.Take(At(now))) {
            EXPECT_FALSE(taken.contains(*got));
            ASSERT_TRUE(wanted.contains(*got));
            EXPECT_LE(wanted[*got], now + 1e-6);
            wanted.erase(*got);
            taken.insert(*got);
          }
          for (const auto& [late, at] : wanted) EXPECT_TRUE(at > now - 1e-6 || taken.contains(late)) << late;
      }
    }
  }
}

}  // namespace
}  // namespace longhaul::kube::api
