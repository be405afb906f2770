#include "server/tensor/stragglers.h"

#include <gtest/gtest.h>

#include <chrono>

namespace longhaul::server {
namespace {

using std::chrono::milliseconds;

TEST(CloseTimes, SayNothingBeforeThereAreEnough) {
  CloseTimes times;
  for (size_t i = 0; i + 1 < CloseTimes::kEnough; ++i) times.Add(milliseconds(100));
  EXPECT_FALSE(times.Soft());
  times.Add(milliseconds(100));
  EXPECT_TRUE(times.Soft());
}

TEST(CloseTimes, AreTheMedianAndThreeMedianDeviations) {
  CloseTimes times;
  // Median 100, deviations 0, 0, 0, 20, 20, 20, 20, 40, 40: median 20.
  for (const int ms : {100, 100, 100, 80, 120, 80, 120, 60, 140}) times.Add(milliseconds(ms));
  EXPECT_EQ(*times.Soft(), milliseconds(160));
}

TEST(CloseTimes, OutliersDoNotMoveTheDeadline) {
  CloseTimes times;
  for (int i = 0; i < 20; ++i) times.Add(milliseconds(i % 2 == 0 ? 90 : 110));
  const Duration before = *times.Soft();
  for (int i = 0; i < 4; ++i) times.Add(std::chrono::seconds(60));
  EXPECT_EQ(*times.Soft(), before);
}

TEST(CloseTimes, EqualTimesLeaveRoomForJitter) {
  CloseTimes times;
  for (int i = 0; i < 10; ++i) times.Add(milliseconds(160));
  EXPECT_EQ(*times.Soft(), milliseconds(190));
  CloseTimes fast;
  for (int i = 0; i < 10; ++i) fast.Add(Duration(0));
  EXPECT_EQ(*fast.Soft(), milliseconds(3));
}

TEST(CloseTimes, ForgetWhatIsOld) {
  CloseTimes times;
  for (size_t i = 0; i < CloseTimes::kMemory; ++i) times.Add(std::chrono::seconds(9));
  for (size_t i = 0; i < CloseTimes::kMemory; ++i) times.Add(milliseconds(16));
  EXPECT_EQ(*times.Soft(), milliseconds(19));
}

}  // namespace
}  // namespace longhaul::server
