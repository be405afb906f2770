// A tensor's round under a loss policy: what is tolerated, what is filled, and why.
//
// Four workers of weight 1; chunks of two elements.
#include "server/tensor/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace longhaul::server {
namespace {

using codec::FillReason;
using testing::Each;

constexpr uint32_t kRanks = 4;
constexpr uint32_t kChunks = 10;

struct Cell {
  explicit Cell(const JobSpec& policy) : tensor(parameters, kRanks, policy) {
    parameters->SetReady();
    for (uint32_t rank = 0; rank < kRanks; ++rank) tensor.rounds().OnMemberJoined(rank);
  }
  void Open() {
    for (uint32_t rank = 0; rank < kRanks; ++rank) tensor.rounds().OnWindowOpened(rank, Instant());
  }
  // The rank's window: `value` in every chunk but the lost ones, all of the low class. Then it is over.
  void Push(uint32_t rank, float value, const std::vector<uint32_t>& lost, uint32_t high_missing = 0) {
    std::vector<uint32_t> ready;
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      if (std::ranges::count(lost, chunk) > 0) continue;
      ASSERT_TRUE(tensor.Add(rank, false, chunk, std::vector<float>(2, value), 1));
      if (tensor.OnContribution(rank, chunk)) ready.push_back(chunk);
    }
    const auto low_lost = static_cast<uint32_t>(lost.size());
    tensor.OnWindowOver(
        rank, {.low_count = kChunks, .low_received = kChunks - low_lost, .high_missing = high_missing});
    tensor.rounds().OnWindowClosed(rank, tensor.aggregator().contributed(rank));
    for (const uint32_t chunk : std::exchange(ready, {})) filled += tensor.Finalise(chunk);
    while (tensor.rounds().HasSweep()) tensor.Sweep(kChunks, &ready);
    for (const uint32_t chunk : ready) filled += tensor.Finalise(chunk);
  }
  void Finish() {
    tally = tensor.rounds().tally();
    tensor.NextRound();
  }
  // Three workers push 4 without loss, the last one pushes 8 with this loss.
  void Round(const std::vector<uint32_t>& lost) {
    Open();
    for (uint32_t rank = 0; rank + 1 < kRanks; ++rank) Push(rank, 4, {});
    Push(kRanks - 1, 8, lost);
    Finish();
  }
  std::span<const float> values(uint32_t chunk) const {
    return parameters->geometry().Elements(parameters->current(), chunk);
  }

  ParameterStore store{ByteCount(4000), 2};
  Parameters* parameters = *store.Declare({.name = "w", .dtype = 0, .count = 2 * kChunks, .optimizer = {}});
  Tensor tensor;
  uint32_t filled = 0;
  RoundTally tally;
};

TEST(Tensor, AChunkOfAPushIsInOneStep) {
  ParameterStore store(ByteCount(4000), 2);
  Parameters* parameters = *store.Declare(
      {.name = "w", .staleness = -1, .count = 4, .optimizer = *codec::ParseOptimizer("sgd:lr=1")});
  parameters->SetReady();
  Tensor tensor(parameters, 1, {.policy = LossPolicy::kZero});
  tensor.rounds().OnMemberJoined(0);
  tensor.BeginPush(0);
  tensor.rounds().OnWindowOpened(0, Instant());
  const std::vector<float> values(2, 1);
  EXPECT_TRUE(tensor.Add(0, false, 1, values, 1));
  EXPECT_FALSE(tensor.Add(0, false, 1, values, 1));
  EXPECT_EQ(tensor.StepOfPush(0), 0u) << "not the next one as well";
}

TEST(Tensor, LossUpToTheThresholdIsToleratedAndCounted) {
  for (const LossPolicy policy :
       {LossPolicy::kZero, LossPolicy::kCount, LossPolicy::kStale, LossPolicy::kIpw}) {
    Cell cell({.policy = policy, .bubble_threshold = 0.2});
    cell.Round({0, 5});
    EXPECT_THAT(cell.values(0), Each(3)) << "(4 + 4 + 4 + 0) / 4 with " << NameOf(policy);
    EXPECT_THAT(cell.values(1), Each(5));
    EXPECT_EQ(cell.tally.tolerated_chunks, 2u);
    EXPECT_EQ(cell.tally.filled_chunks, 0u);
    EXPECT_EQ(cell.filled, 0u);
    EXPECT_EQ(cell.tally.fill_reason, FillReason::kBelowThreshold);
  }
}

TEST(Tensor, LossAboveTheThresholdIsFilledAndCounted) {
  Cell zero({.policy = LossPolicy::kZero, .bubble_threshold = 0.2});
  zero.Round({0, 5, 6});
  EXPECT_THAT(zero.values(0), Each(3));
  Cell count({.policy = LossPolicy::kCount, .bubble_threshold = 0.2});
  count.Round({0, 5, 6});
  EXPECT_THAT(count.values(0), Each(4)) << "(4 + 4 + 4) / 3";
  EXPECT_EQ(count.tally.tolerated_chunks, 0u);
  EXPECT_EQ(count.tally.filled_chunks, 3u);
  EXPECT_EQ(count.filled, 3u);
  EXPECT_EQ(count.tally.fill_reason, FillReason::kAboveThreshold);
  Cell stale({.policy = LossPolicy::kStale, .bubble_threshold = 0.2});
  stale.Round({});
  EXPECT_EQ(stale.tally.fill_reason, FillReason::kNoneLost);
  stale.Round({0, 5, 6});
  EXPECT_THAT(stale.values(0), Each(testing::FloatEq((12 + 0.9f * 5) / 4)));
}

TEST(Tensor, AWindowWithoutAllOfItsHighClassIsNeverTolerated) {
  Cell cell({.policy = LossPolicy::kCount, .bubble_threshold = 1});
  cell.Open();
  for (uint32_t rank = 0; rank + 1 < kRanks; ++rank) cell.Push(rank, 4, {});
  cell.Push(3, 8, {0}, /*high_missing=*/1);
  EXPECT_THAT(cell.tensor.geometry().Elements(cell.tensor.parameters().next(), 0), Each(4));
  EXPECT_EQ(cell.filled, 1u);
}

TEST(Tensor, ResidualAndShiftAccountForEveryLossTheThresholdOnlyNamesIt) {
  for (const double threshold : {0.0, 0.5}) {
    Cell residual({.policy = LossPolicy::kResidual, .bubble_threshold = threshold});
    residual.Round({0});
    EXPECT_THAT(residual.values(0), Each(3));
    EXPECT_EQ(residual.tally.fill_reason, FillReason::kRepaid);
    EXPECT_EQ(residual.tally.filled_chunks, threshold == 0 ? 1u : 0u);
    EXPECT_EQ(residual.tally.tolerated_chunks, threshold == 0 ? 0u : 1u);

    Cell shift({.policy = LossPolicy::kShift, .shift_alpha = 1, .bubble_threshold = threshold});
    shift.tensor.BeginEpoch(kRanks);
    shift.Round({});
    EXPECT_THAT(shift.values(0), Each(5));
    // The workers' shifts are now 4, 4, 4 and 8: what they send is their gradient less that.
    shift.Open();
    for (uint32_t rank = 0; rank + 1 < kRanks; ++rank) shift.Push(rank, 0, {});
    shift.Push(3, 4, {0});
    shift.Finish();
    EXPECT_THAT(shift.values(0), Each(5)) << "lost: it counts as 8 once more";
    EXPECT_THAT(shift.values(1), Each(6)) << "(4 + 4 + 4 + 8 + 4) / 4";
    EXPECT_EQ(shift.tally.fill_reason, FillReason::kShifted);
  }
}

TEST(Tensor, AnotherEpochThanTheImagesIsInForceAfterIt) {
  Cell before({.policy = LossPolicy::kShift});
  before.tensor.BeginEpoch(kRanks);
  TensorImage image = before.tensor.Image();
  image.shift_epoch = 6;
  Cell cell({.policy = LossPolicy::kShift});
  cell.tensor.BeginEpoch(kRanks);
  cell.tensor.Restore(std::move(image));
  EXPECT_EQ(cell.tensor.shift_epoch(), 7u);
}

TEST(Tensor, AnEpochBeginsWithoutExpectationsAndCounts) {
  Cell cell({.policy = LossPolicy::kShift, .shift_alpha = 1});
  cell.tensor.BeginEpoch(kRanks);
  EXPECT_EQ(cell.tensor.shift_epoch(), 0u);
  cell.Round({});
  EXPECT_THAT(cell.tensor.shift_sum(), Each(20));
  cell.tensor.BeginEpoch(2 * kRanks);
  EXPECT_EQ(cell.tensor.shift_epoch(), 1u);
  EXPECT_THAT(cell.tensor.shift_sum(), Each(0));
  cell.Round({});
  EXPECT_THAT(cell.values(0), Each(2.5f)) << "20 by the weight of all members, pushing or not";
}

TEST(Tensor, IpwCountsByTheShareOfEarlierRounds) {
  Cell cell({.policy = LossPolicy::kIpw, .bubble_threshold = 0.1});
  cell.Round({0, 1, 2, 3, 4});
  EXPECT_THAT(cell.values(5), Each(5)) << "nothing was known in the first round";
  cell.Round({0, 1, 2, 3, 4});
  EXPECT_THAT(cell.values(5), Each(7)) << "(4 + 4 + 4 + 2 * 8) / 4";
  EXPECT_THAT(cell.values(0), Each(3));
  EXPECT_EQ(cell.tensor.aggregator().weight(5), 0) << "a new round";
}

TEST(Tensor, AWorkerThatIsGoneIsNoLossOfTheOthers) {
  Cell cell({.policy = LossPolicy::kZero});
  cell.Open();
  for (uint32_t rank = 0; rank + 1 < kRanks; ++rank) cell.Push(rank, 4, {});
  std::vector<uint32_t> ready;
  cell.tensor.rounds().OnMemberGone(3, cell.tensor.aggregator().contributed(3));
  while (cell.tensor.rounds().HasSweep()) cell.tensor.Sweep(kChunks, &ready);
  for (const uint32_t chunk : ready) cell.tensor.Finalise(chunk);
  cell.Finish();
  EXPECT_THAT(cell.values(0), Each(4)) << "12 / 3";
  EXPECT_EQ(cell.tally.fill_reason, FillReason::kNoneLost);
}

}  // namespace
}  // namespace longhaul::server
