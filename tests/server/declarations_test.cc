// How much of a job's model one member may take before the others have declared the same.
#include "server/round/declarations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "tests/server/fake_worker.h"

namespace longhaul::server {
namespace {

using control::ControlMessage;
using testing::HasSubstr;

constexpr uint64_t kModel = 1 << 20;  // elements

struct FourWorkers : testing::Test {
  FourWorkers() : coordinator(Settings(), &events, nullptr) {
    coordinator.SetNow(At(0));
    for (uint32_t rank = 0; rank < 4; ++rank) workers.emplace_back(coordinator, rank).Join(4);
    for (FakeWorker& worker : workers) worker.connection.TakeControl();
  }
  static ServerSettings Settings() {
    ServerSettings settings;
    settings.world_size = 4;
    settings.min_workers = 1;
    settings.max_model = ByteCount(4 * kModel);
    return settings;
  }
  void Declare(uint32_t rank, const std::string& name, uint64_t count) {
    workers[rank].Declare(name, count, "aggregate", false, ++request);
  }
  // What the worker has been answered since the last look; -1: nothing.
  int Code(uint32_t rank) {
    const auto answers = workers[rank].Heard(ControlMessage::kDeclared);
    message = answers.empty() ? "" : answers.back().declared().message();
    return answers.empty() ? -1 : static_cast<int>(answers.back().declared().code());
  }

  Recorder events;
  Coordinator coordinator;
  std::deque<FakeWorker> workers;
  uint32_t request = 0;
  std::string message;
};

constexpr int kWaits = -1;
constexpr int kOk = 0;
constexpr int kRefused = static_cast<int>(StatusCode::kResourceExhausted);

TEST_F(FourWorkers, AHoarderOfElementsHasItsPartAndTheOthersTheirModel) {
  for (int i = 0; i < 100; ++i) Declare(3, "junk" + std::to_string(i), kModel / 16);
  EXPECT_EQ(coordinator.Stats().elements, kModel / 4) << "one part of four";
  for (const char* name : {"w1", "w2", "w3"}) {
    for (uint32_t rank = 0; rank < 3; ++rank) Declare(rank, name, kModel / 4);
    for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(Code(rank), kOk) << name;
  }
  EXPECT_FALSE(workers[3].connection.closed);
}

TEST_F(FourWorkers, AHoarderOfTensorsHasItsPartAndTheOthersTheirs) {
  for (uint32_t i = 0; i < ParameterStore::kMaxTensors; ++i) Declare(3, "junk" + std::to_string(i), 1);
  EXPECT_EQ(coordinator.Stats().tensors, ParameterStore::kMaxTensors / 4);
  const auto answers = workers[3].Heard(ControlMessage::kDeclared);
  const auto refused = std::ranges::count(answers, static_cast<uint32_t>(StatusCode::kResourceExhausted),
                                          [](const auto& m) { return m.declared().code(); });
  EXPECT_EQ(refused, 3072 - HeldDeclarations::kMaxPerMember) << "what waits is bounded too";
  EXPECT_THAT(answers.back().declared().message(), HasSubstr("worker rank 3 has 256 declarations that wait"));
  for (int i = 0; i < 500; ++i) {
    for (uint32_t rank = 0; rank < 3; ++rank) Declare(rank, "w" + std::to_string(i), 1);
    for (uint32_t rank = 0; rank < 3; ++rank) ASSERT_EQ(Code(rank), kOk) << i;
  }
}

TEST_F(FourWorkers, AWorkerThatIsAheadOfTheOthersWaitsForThem) {
  Declare(0, "w1", kModel / 5);
  EXPECT_EQ(Code(0), kOk) << "fits its part";
  Declare(0, "w2", kModel / 2);
  EXPECT_EQ(Code(0), kWaits);
  Declare(1, "w2", kModel / 2);
  EXPECT_EQ(Code(0), kWaits) << "two are not more than half of four";
  Declare(2, "w2", kModel / 2);
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(Code(rank), kOk);
  Declare(3, "w2", kModel / 2);
  EXPECT_EQ(Code(3), kOk) << "what others have declared is never refused";
  // w1 still counts for worker 0 alone; with w1 declared by three its part is free again.
  Declare(0, "w3", kModel / 5);
  EXPECT_EQ(Code(0), kWaits);
  Declare(1, "w1", kModel / 5);
  Declare(2, "w1", kModel / 5);
  EXPECT_EQ(Code(0), kOk) << "w3";
}

TEST_F(FourWorkers, ADeclarationThatFitsNoLongerNamesWhoHasTaken) {
  Declare(3, "junk", kModel / 4);
  for (uint32_t rank = 0; rank < 3; ++rank) Declare(rank, "w", kModel);
  EXPECT_EQ(Code(0), kRefused);
  EXPECT_THAT(message, HasSubstr("; worker rank 3 (site B, 127.0.0.1:40003) holds 25.0 %"));
}

TEST_F(FourWorkers, AHeldDeclarationCountsOnlyWorkersThatAreThere) {
  Declare(0, "w", kModel / 2);
  workers[1].Leave();
  workers[2].Leave();
  EXPECT_EQ(Code(0), kWaits);
  workers[3].Leave();
  EXPECT_EQ(Code(0), kOk);
}

TEST_F(FourWorkers, OneThatIsGoneHoldsNothingUp) {
  Declare(0, "w", kModel / 2);
  Declare(1, "w", kModel / 2);
  workers[1].Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  EXPECT_EQ(Code(0), kWaits) << "its word does not count any more";
  Declare(2, "w", kModel / 2);
  EXPECT_EQ(Code(0), kOk) << "two of three";
}

TEST_F(FourWorkers, GivingUpNamesWhoHasNotDeclaredIt) {
  Declare(0, "w", kModel / 2);
  Declare(1, "w", kModel / 2);
  workers[0].GiveUp(1);
  EXPECT_EQ(Code(0), static_cast<int>(StatusCode::kDeadlineExceeded));
  EXPECT_THAT(message,
              HasSubstr("beyond its part, waits for worker rank 2 (site B, "
                        "127.0.0.1:40002); worker rank 3 (site B, 127.0.0.1:40003) to declare the same"));
  Declare(2, "w", kModel / 2);
  EXPECT_EQ(Code(1), kWaits) << "who has given up does not count";
}

TEST_F(FourWorkers, AnotherShapeOfWhatIsHeldIsRefused) {
  Declare(0, "w", kModel / 2);
  Declare(1, "w", kModel / 2 + 1);
  EXPECT_EQ(Code(1), static_cast<int>(StatusCode::kSettingsMismatch));
  Declare(0, "w", kModel / 2);
  EXPECT_EQ(Code(0), static_cast<int>(StatusCode::kFailedPrecondition)) << "twice";
}

TEST_F(FourWorkers, TheDeclarationThatWaitsIsSaid) {
  Declare(0, "w", kModel / 2);
  for (int64_t now = 0; now <= 6000; now += 200) {
    coordinator.SetNow(At(now));
    coordinator.HandleTimeout();
  }
  ASSERT_EQ(events.waiting.size(), 1u);
  EXPECT_THAT(events.waiting[0], HasSubstr("the declaration of tensor \"w\" by worker rank 0 (site B, "));
  EXPECT_THAT(events.waiting[0], HasSubstr("beyond its part, waits for worker rank 1"));
  EXPECT_EQ(coordinator.Stats().declarations_held, 1u);
}

}  // namespace
}  // namespace longhaul::server
