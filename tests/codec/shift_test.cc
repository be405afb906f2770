// Both halves of the policy: a lost chunk counts as what its worker was expected to send, and the server's C
// is the weighted sum of the workers' shifts.
#include "codec/policy/shift.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "base/random.h"

namespace longhaul::codec {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

const ChunkGeometry kGeometry{.count = 4, .chunk_elements = 2};
using Values = std::vector<float>;

// One worker's part of a round: sends `gradient`, of which the chunks in `lost` are lost; what arrives is
// added to `sum` with the weight.
void Push(SenderMemory& worker, const Values& gradient, const std::vector<bool>& lost, float weight,
          Values* sum) {
  const std::span<const float> prepared = worker.Prepare(gradient);
  for (uint32_t chunk = 0; chunk < lost.size(); ++chunk) {
    const std::span<const float> sent = kGeometry.Elements(prepared, chunk);
    worker.SettleChunk(chunk, !lost[chunk], sent);
    if (lost[chunk]) continue;
    for (size_t i = 0; i < sent.size(); ++i) (*sum)[kGeometry.First(chunk) + i] += weight * sent[i];
  }
  worker.Finish();
}

Values MeanOf(Filler& filler, const Values& sum) {
  Values mean(sum.size());
  for (uint32_t chunk = 0; chunk < kGeometry.chunks(); ++chunk) {
    filler.Mean(chunk, {}, kGeometry.Elements(std::span<const float>(sum), chunk),
                kGeometry.Elements(std::span<float>(mean), chunk));
  }
  return mean;
}

TEST(Shift, ALostChunkCountsAsWhatItsWorkerWasExpectedToSend) {
  ShiftMemory a(kGeometry, 1);
  ShiftMemory b(kGeometry, 1);
  ShiftFiller server(kGeometry, 1);
  server.BeginEpoch(2);
  Values sum(4, 0);
  Push(a, {1, 1, 1, 1}, {false, false}, 1, &sum);
  Push(b, {5, 5, 5, 5}, {false, false}, 1, &sum);
  EXPECT_THAT(MeanOf(server, sum), Each(3));
  EXPECT_THAT(a.shift(), Each(1));
  EXPECT_THAT(b.shift(), Each(5));
  EXPECT_THAT(server.shift_sum(), Each(6));

  // b's first chunk is lost: it is taken to be 5 again, not 0 and not a's.
  sum = Values(4, 0);
  Push(a, {3, 3, 3, 3}, {false, false}, 1, &sum);
  Push(b, {7, 7, 7, 7}, {true, false}, 1, &sum);
  EXPECT_THAT(MeanOf(server, sum), ElementsAre(4, 4, 5, 5)) << "(3 + 5) / 2, (3 + 7) / 2";
  EXPECT_THAT(b.shift(), ElementsAre(5, 5, 7, 7));
  EXPECT_THAT(server.shift_sum(), ElementsAre(8, 8, 10, 10));
}

TEST(Shift, AlphaIsTheStepOfTheExpectation) {
  ShiftMemory worker(kGeometry, 0.25f);
  Values sum(4, 0);
  Push(worker, {8, 8, 8, 8}, {false, true}, 1, &sum);
  EXPECT_THAT(worker.shift(), ElementsAre(2, 2, 0, 0));
  EXPECT_THAT(worker.Prepare(Values(4, 8)), ElementsAre(6, 6, 8, 8)) << "what is surprising travels";
}

TEST(Shift, AnAbsentMemberCountsAsExpectedTheDivisorIsTheEpochs) {
  ShiftMemory a(kGeometry, 1);
  ShiftMemory b(kGeometry, 1);
  ShiftFiller server(kGeometry, 1);
  server.BeginEpoch(1 + 3);
  Values sum(4, 0);
  Push(a, Values(4, 4), {false, false}, 1, &sum);
  Push(b, Values(4, 8), {false, false}, 3, &sum);
  EXPECT_THAT(MeanOf(server, sum), Each(7)) << "(1 * 4 + 3 * 8) / 4";
  sum = Values(4, 0);
  Push(a, Values(4, 8), {false, false}, 1, &sum);
  EXPECT_THAT(MeanOf(server, sum), Each(8)) << "(1 * 8 + 3 * 8) / 4: b is not even there";
  EXPECT_THAT(MeanOf(server, Values(4, 0)), Each(8)) << "nor anybody";
}

TEST(Shift, ANewEpochBeginsWithoutExpectationsOnBothSides) {
  ShiftMemory worker(kGeometry, 1);
  ShiftFiller server(kGeometry, 1);
  server.BeginEpoch(1);
  Values sum(4, 0);
  Push(worker, Values(4, 3), {false, false}, 1, &sum);
  MeanOf(server, sum);
  worker.BeginEpoch();
  server.BeginEpoch(2);
  EXPECT_THAT(worker.Prepare(Values(4, 6)), Each(6)) << "nothing is expected yet";
  EXPECT_THAT(worker.shift(), Each(0));
  worker.Finish();
  EXPECT_THAT(server.shift_sum(), Each(0));
  EXPECT_THAT(MeanOf(server, Values(4, 6)), Each(3)) << "the new epoch's weight";
}

TEST(Shift, WhatIsUnderWayWhenAnEpochBeginsMovesNothing) {
  ShiftMemory worker(kGeometry, 1);
  const std::span<const float> prepared = worker.Prepare(Values(4, 3));
  worker.BeginEpoch();
  EXPECT_THAT(prepared, Each(3)) << "what is being sent stays in place";
  worker.SettleChunk(0, true, kGeometry.Elements(prepared, 0));
  worker.Finish();
  EXPECT_THAT(worker.shift(), Each(0)) << "the server has none of it in the new epoch's C";
  Values sum(4, 0);
  Push(worker, Values(4, 2), {false, false}, 1, &sum);
  EXPECT_THAT(worker.shift(), Each(2)) << "the next one counts";
}

TEST(Shift, BeforeTheFirstEpochTheAwaitedWeighWhatTheyWeigh) {
  ShiftFiller server(kGeometry, 1);
  Values mean(2);
  server.Mean(0, {.arrived = 3, .tolerated = 0, .filled = 1}, Values{8, 4}, mean);
  EXPECT_THAT(mean, ElementsAre(2, 1));
  server.Mean(1, {}, Values{0, 0}, mean);
  EXPECT_THAT(mean, Each(0));
}

// Gradients around a mean that differs by worker; the loss is heavy and uneven. The long run of the means is
// that of the gradients: no bias towards zero or towards the worker with the better path.
TEST(Shift, HasNoBiasUnderUnevenLoss) {
  constexpr uint64_t kSeed = 11;
  Random random(kSeed);
  ShiftMemory a(kGeometry, 0.1f);
  ShiftMemory b(kGeometry, 0.1f);
  ShiftFiller server(kGeometry, 0.1f);
  server.BeginEpoch(2);
  double total = 0;
  constexpr int kWarmUp = 200;
  constexpr int kRounds = 4000;
  for (int round = 0; round < kWarmUp + kRounds; ++round) {
    Values sum(4, 0);
    const auto gradient = [&](double mean) {
      Values values(4);
      for (float& value : values) value = static_cast<float>(mean + random.Normal());
      return values;
    };
    Push(a, gradient(-1), {random.Chance(0.05), random.Chance(0.05)}, 1, &sum);
    Push(b, gradient(5), {random.Chance(0.7), random.Chance(0.7)}, 1, &sum);
    for (const float mean : MeanOf(server, sum)) total += round < kWarmUp ? 0 : mean;
  }
  // One mean's deviation is below 1.5, elements of a chunk share their fate: 8,000 of them.
  EXPECT_NEAR(total / (kRounds * 4.0), 2.0, 0.06) << "seed " << kSeed;
}

}  // namespace
}  // namespace longhaul::codec
