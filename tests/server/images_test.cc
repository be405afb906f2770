// Images of a job's state: of one round, whatever the next one writes, and a job that goes on from one is the
// job that never stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "server/round/image_collector.h"
#include "tests/server/two_worker_job.h"

namespace longhaul::server {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Values = std::vector<float>;

struct Keeper final : RestoringKeeper {
  bool Ready() const override { return ready; }
  void Keep(std::shared_ptr<const JobImage> image) override { kept.push_back(std::move(image)); }
  void OnSkipped() override { ++skipped; }
  KeeperStats stats() const override { return {.written = kept.size(), .failed = 3, .skipped = skipped}; }
  void OnJobOver() override { restored.clear(); }

  bool ready = true;
  std::vector<std::shared_ptr<const JobImage>> kept;
  uint64_t skipped = 0;
};

Values Of(const TensorImage& image) { return {image.values->span().begin(), image.values->span().end()}; }
Values StateOf(const TensorImage& image, size_t i) {
  const auto values = image.state.at(i).values->span();
  return {values.begin(), values.end()};
}

// An image every two rounds.
struct ImageJob : TwoWorkerJob {
  explicit ImageJob(Keeper* k, uint32_t every = 2) : TwoWorkerJob(Settings(every), k), keeper(*k) {
    a.Join(2);
    b.Join(2);
  }
  static ServerSettings Settings(uint32_t every) {
    ServerSettings settings;
    settings.world_size = settings.min_workers = 2;
    settings.policy = LossPolicy::kZero;
    settings.max_model = ByteCount(4 << 20);
    settings.checkpoint_every = every;
    return settings;
  }
  void Declare(const std::string& name, const std::string& optimizer) {
    a.Declare(name, count, optimizer);
    b.Declare(name, count, optimizer);
  }
  void Open(FakeWorker& worker, uint32_t key, uint64_t round) {
    const transport::WindowKey window{static_cast<uint32_t>(100 * round + key + 1)};
    ASSERT_TRUE(worker.Open({.key = window, .high = kChunks}, key, round, count, elements, false).ok());
  }
  void Send(FakeWorker& worker, uint32_t key, uint64_t round, uint32_t chunk, float value) {
    worker.Send({static_cast<uint32_t>(100 * round + key + 1)}, wire::ReliabilityClass::kHigh, chunk,
                Values(elements, value));
  }
  // Both workers push this gradient, so that it is the mean.
  void Round(uint32_t key, uint64_t round, float value) {
    for (FakeWorker* worker : {&a, &b}) {
      Open(*worker, key, round);
      for (uint32_t chunk = 0; chunk < kChunks; ++chunk) Send(*worker, key, round, chunk, value);
    }
  }
  // One chunk of it is final, the others are not.
  void HalfARound(uint32_t key, uint64_t round, float value) {
    for (FakeWorker* worker : {&a, &b}) Open(*worker, key, round);
    for (FakeWorker* worker : {&a, &b}) Send(*worker, key, round, 0, value);
  }
  void TheOtherHalf(uint32_t key, uint64_t round, float value) {
    for (FakeWorker* worker : {&a, &b}) {
      for (uint32_t chunk = 1; chunk < kChunks; ++chunk) Send(*worker, key, round, chunk, value);
    }
  }

  Keeper& keeper;
};

struct Images : testing::Test {
  Keeper keeper;
};

TEST_F(Images, AreOfEveryNthRoundAndStayWhateverIsWrittenNext) {
  ImageJob job(&keeper);
  job.Declare("w", "sgd:lr=1,momentum=0.5");
  float velocity = 0, value = 0;
  std::vector<std::pair<float, float>> after;
  for (uint64_t round = 0; round < 6; ++round) {
    const auto gradient = static_cast<float>(1 << round);
    job.Round(0, round, gradient);
    velocity = 0.5f * velocity + gradient;
    value -= velocity;
    after.emplace_back(value, velocity);
  }
  ASSERT_EQ(keeper.kept.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const JobImage& image = *keeper.kept[i];
    EXPECT_EQ(image.rounds, 2 * i + 2);
    ASSERT_EQ(image.tensors.size(), 1u);
    const TensorImage& tensor = image.tensors[0];
    EXPECT_EQ(tensor.rounds, 2 * i + 2);
    EXPECT_EQ(tensor.name, "w");
    EXPECT_EQ(tensor.count, job.count);
    EXPECT_EQ(tensor.optimizer, "sgd:lr=1,momentum=0.5");
    EXPECT_EQ(Of(tensor), Values(job.count, after[2 * i + 1].first));
    ASSERT_EQ(tensor.state.size(), 1u);
    EXPECT_EQ(tensor.state[0].name, "momentum_buffer");
    EXPECT_EQ(StateOf(tensor, 0), Values(job.count, after[2 * i + 1].second));
  }
  const ServerStats stats = job.coordinator.Stats();
  EXPECT_EQ(stats.checkpoints_written, 3u);
  EXPECT_EQ(stats.checkpoints_failed, 3u);
  EXPECT_EQ(stats.checkpoints_skipped, 0u);
}

// Once no one holds an image, rounds write where they wrote before.
TEST_F(Images, CostNoMemoryWhenTheyAreGivenBack) {
  ImageJob job(&keeper);
  job.Declare("w", "sgd:lr=1,momentum=0.5");
  std::set<const float*> values, state;
  for (uint64_t round = 0; round < 20; round += 2) {
    job.Round(0, round, 1);
    job.Round(0, round + 1, 1);
    values.insert(keeper.kept.back()->tensors[0].values->data());
    state.insert(keeper.kept.back()->tensors[0].state[0].values->data());
    keeper.kept.clear();
  }
  EXPECT_LE(values.size(), 2u);
  EXPECT_EQ(state.size(), 1u);
}

TEST_F(Images, AJobThatGoesOnFromOneIsTheJobThatNeverStopped) {
  for (const std::string optimizer : {"adam:lr=0.1", "sgd:lr=0.1,momentum=0.9,nesterov", "sgd:lr=0.1"}) {
    Keeper whole, before, after;
    {
      ImageJob job(&whole);
      job.Declare("w", optimizer);
      for (uint64_t round = 0; round < 4; ++round) job.Round(0, round, 1 + static_cast<float>(round));
    }
    {
      ImageJob job(&before);
      job.Declare("w", optimizer);
      for (uint64_t round = 0; round < 2; ++round) job.Round(0, round, 1 + static_cast<float>(round));
    }
    after.restored["w"] = before.kept.at(0)->tensors[0];
    before.kept.clear();
    {
      ImageJob job(&after);
      job.Declare("w", optimizer);
      for (uint64_t round = 0; round < 2; ++round) job.Round(0, round, 3 + static_cast<float>(round));
    }
    ASSERT_EQ(whole.kept.size(), 2u);
    ASSERT_EQ(after.kept.size(), 1u);
    const TensorImage &wanted = whole.kept[1]->tensors[0], &got = after.kept[0]->tensors[0];
    EXPECT_EQ(got.rounds, 4u);
    EXPECT_EQ(Of(got), Of(wanted)) << optimizer;
    for (size_t i = 0; i < wanted.state.size(); ++i)
      EXPECT_EQ(StateOf(got, i), StateOf(wanted, i)) << optimizer;
  }
}

TensorImage Kept(uint64_t count, const std::string& optimizer) {
  auto values = std::make_shared<ZeroedArray<float>>(count);
  values->span()[0] = 42;
  TensorImage image{.name = "w", .count = count, .optimizer = optimizer, .rounds = 5, .values = values};
  for (const std::string& name : codec::StateNames(*codec::ParseOptimizer(image.optimizer)))
    image.state.push_back({name, std::make_shared<ZeroedArray<float>>(count)});
  return image;
}

using Answer = control::ControlMessage;

TEST_F(Images, WhatAnEarlierServerHasKeptIsTakenInsteadOfTheWorkersValues) {
  ImageJob job(&keeper);
  keeper.restored["w"] = Kept(job.count, "sgd:lr=1");
  job.a.Declare("w", job.count, "sgd:lr=0.5", /*has_initial=*/true);
  const auto answers = job.a.Heard(Answer::kDeclared);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].declared().code(), 0u) << answers[0].declared().message();
  EXPECT_FALSE(answers[0].declared().send_initial());
  job.a.Pull(0, 0, 2);
  ASSERT_FALSE(job.a.connection.outgoing.empty()) << "they are there";
  EXPECT_EQ(FakeWorker::ChunksOf(job.a.Result()).at(0).second.at(0), 42);
}

TEST_F(Images, OfAnotherShapeAreRefusedWithBothNamed) {
  ImageJob job(&keeper);
  keeper.restored["w"] = Kept(job.count, "sgd:lr=1,momentum=0.5");
  job.a.Declare("w", job.count + 1, "sgd:lr=1,momentum=0.5");
  job.a.Declare("w", job.count, "adam:lr=1");
  job.a.Declare("w", job.count, "sgd:lr=1");
  const auto answers = job.a.Heard(Answer::kDeclared);
  ASSERT_EQ(answers.size(), 3u);
  for (const Answer& answer : answers) {
    EXPECT_EQ(answer.declared().code(), static_cast<uint32_t>(StatusCode::kSettingsMismatch));
    EXPECT_THAT(
        answer.declared().message(),
        AllOf(HasSubstr("tensor \"w\""), HasSubstr("checkpoint has it as float32[" +
                                                   std::to_string(job.count) + "], sgd:lr=1,momentum=0.5")));
  }
  EXPECT_THAT(answers[0].declared().message(), HasSubstr("float32[" + std::to_string(job.count + 1) + "]"));
  EXPECT_THAT(answers[1].declared().message(), HasSubstr("adam:lr=1"));
  job.a.Declare("w", job.count, "sgd:lr=0.1,momentum=0.9");
  EXPECT_EQ(job.a.Heard(Answer::kDeclared).at(0).declared().code(), 0u) << "another rate is the same shape";
}

TEST_F(Images, AreForTheFirstJobAlone) {
  ImageJob job(&keeper);
  keeper.restored["w"] = Kept(job.count, "sgd:lr=1");
  job.a.Leave();
  job.b.Leave();
  EXPECT_TRUE(keeper.restored.empty());
}

TEST_F(Images, OfTwoTensorsAreOfTheSameRound) {
  ImageJob job(&keeper);
  job.Declare("v", "sgd:lr=1");
  job.Declare("w", "sgd:lr=1,momentum=0.5");
  for (uint64_t round = 0; round < 2; ++round) {
    job.HalfARound(1, round, 1);
    job.Round(0, round, 1);
    EXPECT_TRUE(keeper.kept.empty()) << "w is in the middle of a round";
    job.TheOtherHalf(1, round, 1);
  }
  ASSERT_EQ(keeper.kept.size(), 1u);
  ASSERT_EQ(keeper.kept[0]->tensors.size(), 2u);
  for (const TensorImage& tensor : keeper.kept[0]->tensors) {
    EXPECT_EQ(tensor.rounds, 2u);
    EXPECT_EQ(Of(tensor)[0], tensor.name == "v" ? -2 : -2.5f);
  }
}

TEST_F(Images, DoNotWaitForTensorsThatAreNotPushed) {
  ImageJob job(&keeper);
  job.Declare("v", "sgd:lr=1");
  job.Declare("w", "sgd:lr=1,momentum=0.5");
  for (uint64_t round = 0; round < 4; ++round) job.Round(0, round, 1);
  ASSERT_EQ(keeper.kept.size(), 1u) << "the first, when the second is due";
  ASSERT_EQ(keeper.kept[0]->tensors.size(), 2u);
  EXPECT_EQ(Of(keeper.kept[0]->tensors[0]), Values(job.count, -2)) << "v as it was when it was due";
  EXPECT_EQ(Of(keeper.kept[0]->tensors[1]), Values(job.count, 0));
}

TEST_F(Images, ThatAreDueWhileTheLastOneIsWrittenAreSkippedAndCountedOnce) {
  ImageJob job(&keeper);
  job.Declare("v", "sgd:lr=1");
  job.Declare("w", "sgd:lr=1");
  keeper.ready = false;
  for (uint64_t round = 0; round < 2; ++round) {
    job.Round(0, round, 1);
    job.Round(1, round, 1);
  }
  EXPECT_TRUE(keeper.kept.empty());
  EXPECT_EQ(keeper.skipped, 1u);
  keeper.ready = true;
  for (uint64_t round = 2; round < 4; ++round) {
    job.Round(0, round, 1);
    job.Round(1, round, 1);
  }
  EXPECT_EQ(keeper.kept.size(), 1u);
  EXPECT_EQ(keeper.skipped, 1u);
}

TEST_F(Images, ThatAreAskedForWaitForTheRoundInProgress) {
  ImageJob job(&keeper, 1000);
  job.Declare("w", "sgd:lr=1,momentum=0.5");
  job.Round(0, 0, 1);
  job.HalfARound(0, 1, 1);
  job.coordinator.KeepState();
  EXPECT_TRUE(job.coordinator.KeepsState());
  EXPECT_TRUE(keeper.kept.empty());
  job.TheOtherHalf(0, 1, 1);
  EXPECT_FALSE(job.coordinator.KeepsState());
  ASSERT_EQ(keeper.kept.size(), 1u);
  EXPECT_EQ(Of(keeper.kept[0]->tensors[0]), Values(job.count, -2.5f));
  job.coordinator.Shutdown(Status());
  EXPECT_EQ(keeper.kept.size(), 1u) << "nothing has changed since";
}

TEST_F(Images, OfTheEndAreThereUnlessATensorIsInTheMiddleOfARound) {
  for (const bool middle : {false, true}) {
    Keeper mine;
    ImageJob job(&mine, 1000);
    job.Declare("w", "sgd:lr=1,momentum=0.5");
    job.Round(0, 0, 1);
    if (middle) job.HalfARound(0, 1, 1);
    job.coordinator.Shutdown(Status());
    EXPECT_EQ(mine.kept.size(), middle ? 0u : 1u);
    EXPECT_EQ(mine.skipped, middle ? 1u : 0u);
    if (middle) continue;
    EXPECT_EQ(Of(mine.kept[0]->tensors[0]), Values(job.count, -1));
  }
}

}  // namespace
}  // namespace longhaul::server
