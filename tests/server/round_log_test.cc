#include "server/report/round_log.h"

#include <gtest/gtest.h>

namespace longhaul::server {
namespace {

using std::chrono::milliseconds;

Instant At(int64_t ms) { return Instant::FromNanoseconds(ms * 1000000); }

struct TwoTensors : testing::Test {
  TensorRound Of(uint32_t tensor, int64_t begun_ms) {
    TensorRound round;
    round.tensor = &tensors[tensor];
    round.begun = At(begun_ms);
    round.tally.low_chunks = 10;
    round.tally.low_lost = 1;
    round.tally.repaired_chunks = 3;
    round.tally.closed = {2, 1, 0, 0, 0, 0};
    return round;
  }
  ParameterStore store{ByteCount(4000), 4};
  Parameters* parameters = *store.Declare({.name = "w", .dtype = 0, .count = 1, .optimizer = {}});
  Tensor tensors[2] = {Tensor(parameters, 1, {}), Tensor(parameters, 1, {})};
  RoundLog log{At(0)};
};

TEST_F(TwoTensors, ARoundOfTheJobIsOverWhenEveryTensorHasFinishedOne) {
  EXPECT_TRUE(log.Add(Of(0, 100), 2, At(150)).empty());
  const auto over = log.Add(Of(1, 90), 2, At(190));
  ASSERT_EQ(over.size(), 1u);
  EXPECT_EQ(over[0].round, 0u);
  EXPECT_EQ(over[0].tensors, 2u);
  EXPECT_EQ(over[0].duration, milliseconds(100)) << "from the first window to the last chunk";
  EXPECT_EQ(over[0].interval, milliseconds(190));
  EXPECT_EQ(over[0].repaired_chunks, 6u);
  EXPECT_DOUBLE_EQ(over[0].loss, 0.1);
  EXPECT_EQ(over[0].low_chunks, 20u);
  EXPECT_EQ(over[0].low_lost, 2u);
  EXPECT_EQ(over[0].closed, (std::array<uint32_t, 6>{4, 2, 0, 0, 0, 0}));
}

TEST_F(TwoTensors, ATensorThatIsNotPushedHoldsNothingUp) {
  EXPECT_TRUE(log.Add(Of(0, 0), 2, At(10)).empty());
  EXPECT_EQ(log.Add(Of(0, 10), 2, At(30)).size(), 1u);
  const auto last = log.Flush();
  ASSERT_TRUE(last);
  EXPECT_EQ(last->duration, milliseconds(20));
  EXPECT_FALSE(log.Flush());
  EXPECT_EQ(log.rounds(), 2u);
}

TEST_F(TwoTensors, PercentilesAreOfTheLastRounds) {
  for (int i = 1; i <= 100; ++i) log.Add(Of(0, 0), 1, At(i));
  EXPECT_EQ(log.Percentile(0.5), milliseconds(50));
  EXPECT_EQ(log.Percentile(0.99), milliseconds(99));
  for (size_t i = 0; i < RoundLog::kMaxHistory; ++i) log.Add(Of(0, 0), 1, At(7));
  EXPECT_EQ(log.Percentile(0.99), milliseconds(7));
}

}  // namespace
}  // namespace longhaul::server
