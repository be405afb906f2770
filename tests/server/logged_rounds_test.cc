// Rounds with a round log: no worker has a whole result before its round is on the disk, and a job goes on
// from what is there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "server/member/fences.h"
#include "tests/server/two_worker_job.h"

namespace longhaul::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Heard = control::ControlMessage;

// A disk that is as slow as the test.
struct LogKeeper final : RestoringKeeper {
  bool Ready() const override { return true; }
  void Keep(std::shared_ptr<const JobImage>) override {}
  void OnSkipped() override {}
  KeeperStats stats() const override { return {.log_records = written, .log_failed = 2}; }
  void OnJobOver() override { ++over; }
  bool Logs() const override { return logs; }
  std::optional<ResumedJob> resumed() const override { return run; }
  uint64_t OnJobStart(const ResumedJob& job) override {
    begun.push_back(job.number);
    return holds_start ? 1 : 0;
  }
  uint64_t Log(std::shared_ptr<const TensorImage> image) override {
    records.push_back(std::move(image));
    return records.size();
  }
  uint64_t logged() const override { return written; }

  bool logs = true;
  bool holds_start = false;
  std::optional<ResumedJob> run;
  std::vector<uint64_t> begun;
  std::vector<std::shared_ptr<const TensorImage>> records;
  uint64_t written = 0;
  int over = 0;
};

struct LoggedJob : TwoWorkerJob {
  explicit LoggedJob(LogKeeper* k, LossPolicy policy = LossPolicy::kResidual)
      : TwoWorkerJob(Settings(policy), k), keeper(*k) {
    a.session = 1000;
    b.session = 2000;
    for (FakeWorker* worker : {&a, &b}) worker->Join(2);
  }
  static ServerSettings Settings(LossPolicy policy) {
    ServerSettings settings;
    settings.world_size = settings.min_workers = 2;
    settings.policy = policy;
    settings.first_job = 5;
    return settings;
  }
  void Declare() {
    for (FakeWorker* worker : {&a, &b}) worker->Declare("w", count, "sgd:lr=1,momentum=0.5");
    Write();
  }
  // Both declare it, and the first sends initial values of 9, all of them.
  transport::WindowKey Offer() {
    for (FakeWorker* worker : {&a, &b}) worker->Declare("w", count, "sgd:lr=1", /*has_initial=*/worker == &a);
    const transport::WindowKey window{40};
    EXPECT_TRUE(
        a.Open({.key = window, .high = kChunks}, 0, 0, count, elements, false, codec::WindowKind::kInitial)
            .ok());
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk)
      a.Send(window, wire::ReliabilityClass::kHigh, chunk, std::vector<float>(elements, 9));
    return window;
  }
  void Open(FakeWorker& worker, uint64_t round, bool wants_result) {
    ASSERT_TRUE(
        worker.Open({.key = Key(round), .high = kChunks}, 0, round, count, elements, wants_result).ok());
  }
  void Send(FakeWorker& worker, uint64_t round, uint32_t chunks = kChunks) {
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      worker.Send(Key(round), wire::ReliabilityClass::kHigh, chunk, std::vector<float>(elements, 1));
    }
  }
  void Push(uint64_t round, bool wants_result) {
    for (FakeWorker* worker : {&a, &b}) Open(*worker, round, wants_result);
    for (FakeWorker* worker : {&a, &b}) Send(*worker, round);
  }
  // All that was given to the disk is on it.
  void Write() {
    keeper.written = keeper.records.size();
    coordinator.OnLogged();
    coordinator.AfterEvent();
  }
  static transport::WindowKey Key(uint64_t round) { return {static_cast<uint32_t>(round + 1)}; }

  // Rank 0 joins again, from another port, while its push of the round is whole: it is late, so that the
  // answer to its declaration waits for the round's end. Then that comes.
  control::Declared ComeBackLate(FakeWorker& again, uint64_t session, bool wants_result = true) {
    Open(a, 0, wants_result);
    Send(a, 0);
    again.session = session;
    again.connection.max_chunk_bytes = kSymbol;
    again.Join(2, 7);
    again.Declare("w", count, "sgd:lr=1,momentum=0.5");
    EXPECT_THAT(again.Heard(Heard::kDeclared), IsEmpty());
    Open(b, 0, true);
    Send(b, 0);
    Write();
    const auto heard = again.connection.TakeControl();
    const auto answer = std::ranges::find_if(heard, &Heard::has_declared);
    EXPECT_TRUE(std::ranges::none_of(heard, &Heard::has_push_taken)) << "of a tensor that it does not know";
    return answer == heard.end() ? control::Declared() : answer->declared();
  }

  LogKeeper& keeper;
};

struct LoggedRounds : testing::Test {
  LogKeeper keeper;
};

TEST_F(LoggedRounds, TheLastChunkLeavesWhenTheRoundIsOnTheDisk) {
  LoggedJob job(&keeper);
  job.Declare();
  ASSERT_EQ(keeper.records.size(), 1u) << "version 0";
  job.Push(0, true);
  ASSERT_EQ(keeper.records.size(), 2u);
  for (FakeWorker* worker : {&job.a, &job.b}) {
    EXPECT_EQ(worker->Result().chunks.size(), LoggedJob::kChunks - 1);
    EXPECT_THAT(worker->Heard(Heard::kRoundReport), IsEmpty());
  }
  EXPECT_THAT(job.events.rounds, IsEmpty());
  job.coordinator.OnLogged();  // of something else
  EXPECT_EQ(job.a.Result().chunks.size(), LoggedJob::kChunks - 1);
  job.Write();
  for (FakeWorker* worker : {&job.a, &job.b}) {
    EXPECT_EQ(worker->Result().chunks.size(), LoggedJob::kChunks);
    EXPECT_EQ(worker->Heard(Heard::kRoundReport).size(), 1u);
  }
  EXPECT_EQ(job.events.rounds.size(), 1u);
  const TensorImage& record = *keeper.records[1];
  EXPECT_EQ(record.round, 1u);
  EXPECT_EQ(record.rounds, 1u);
  EXPECT_EQ(record.values->span()[0], -1);
  EXPECT_EQ(record.state.at(0).values->span()[0], 1);
  EXPECT_THAT(record.counted, ElementsAre(Counted{.session = 1000, .round = 0, .clock = 1},
                                          Counted{.session = 2000, .round = 0, .clock = 1}));
}

// Its worker lets go of them when they are taken.
TEST_F(LoggedRounds, InitialValuesAreTakenWhenTheyAreOnTheDisk) {
  LoggedJob job(&keeper);
  const transport::WindowKey window = job.Offer();
  job.b.Pull(0, 0, 3);
  ASSERT_EQ(keeper.records.size(), 1u);
  EXPECT_EQ(keeper.records[0]->values->span()[0], 9);
  EXPECT_THAT(job.a.connection.closed_windows, IsEmpty());
  EXPECT_TRUE(job.b.connection.outgoing.empty()) << "values that may be lost yet";
  job.Push(0, true);
  EXPECT_EQ(keeper.records.size(), 1u) << "a step from nowhere";
  job.Write();
  EXPECT_THAT(job.a.connection.closed_windows,
              testing::Contains(std::pair(window, wire::CloseReason::kComplete)));
  EXPECT_FALSE(job.b.connection.outgoing.empty());
  EXPECT_EQ(keeper.records.size(), 2u) << "version 0 once, and the round";
}

// They are complete: their worker is not needed any more.
TEST_F(LoggedRounds, InitialValuesOnTheirWayToTheDiskOutliveTheirWorker) {
  LoggedJob job(&keeper);
  job.Offer();
  FakeWorker again(job.coordinator, 0);
  again.connection.max_chunk_bytes = LoggedJob::kSymbol;
  again.session = 1000;
  again.Join(2, 7);
  again.Declare("w", job.count, "sgd:lr=1", /*has_initial=*/true);
  const auto answers = again.Heard(Heard::kDeclared);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_FALSE(answers[0].declared().send_initial()) << "the record borrows what would be written";
  job.Write();
  again.Pull(0, 0, 3);
  EXPECT_FALSE(again.connection.outgoing.empty());
}

// Else a server that is started again would have another job than its workers.
TEST_F(LoggedRounds, WorkersBeginWhenTheirJobIsOnTheDisk) {
  keeper.holds_start = true;
  LoggedJob job(&keeper);
  EXPECT_THAT(job.a.Heard(Heard::kStart), IsEmpty());
  FakeWorker again(job.coordinator, 1);  // meanwhile
  again.connection.max_chunk_bytes = LoggedJob::kSymbol;
  again.session = 2000;
  again.Join(2, 7);
  EXPECT_THAT(again.Heard(Heard::kStart), IsEmpty());
  job.coordinator.OnLogged();  // of something else
  EXPECT_THAT(job.a.Heard(Heard::kStart), IsEmpty());
  keeper.written = 1;
  job.coordinator.OnLogged();
  EXPECT_EQ(job.a.Heard(Heard::kStart).size(), 1u);
  EXPECT_EQ(again.Heard(Heard::kStart).size(), 1u);
}

// It is fed what is final when a window is free.
TEST_F(LoggedRounds, AlsoForAResultThatHasWaitedForAWindow) {
  LoggedJob job(&keeper);
  job.Declare();
  for (FakeWorker* worker : {&job.a, &job.b}) {
    worker->connection.max_open_windows = 0;
    job.Open(*worker, 0, true);
  }
  job.Send(job.a, 0);
  job.Send(job.b, 0);
  EXPECT_TRUE(job.a.connection.outgoing.empty());
  job.a.connection.max_open_windows = 8;
  job.a.CloseResult({77});  // any: it looks for one that waits
  ASSERT_FALSE(job.a.connection.outgoing.empty());
  EXPECT_EQ(job.a.Result().chunks.size(), LoggedJob::kChunks - 1);
  job.a.Pull(0, 1, 9);
  EXPECT_EQ(job.a.connection.outgoing.size(), 1u) << "no worker has the values of the round yet";
  job.Write();
  EXPECT_EQ(job.a.connection.outgoing.begin()->second.chunks.size(), LoggedJob::kChunks);
  EXPECT_EQ(job.a.connection.outgoing.size(), 2u);
}

TEST_F(LoggedRounds, APushWithoutAResultIsToldItsRoundThen) {
  LoggedJob job(&keeper);
  job.Declare();
  job.Push(0, false);
  EXPECT_THAT(job.a.Heard(Heard::kPushTaken), IsEmpty());
  job.Write();
  const auto taken = job.a.Heard(Heard::kPushTaken);
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].push_taken().round(), 0u);
  EXPECT_EQ(taken[0].push_taken().window(), LoggedJob::Key(0).id);
  job.Push(1, false);
  job.Write();
  EXPECT_EQ(job.a.Heard(Heard::kPushTaken).size(), 1u) << "each once";
}

TEST_F(LoggedRounds, AJobGoesOnWhereItsLogEnds) {
  {
    LoggedJob job(&keeper);
    job.Declare();
    job.Push(0, true);
    job.Write();
    job.Open(job.a, 1, true);
    job.Open(job.b, 1, true);
    job.Send(job.b, 1, 2);
    job.b.Die(Status(StatusCode::kPeerDead, "test"));
  }
  LogKeeper next;
  TensorImage image = *keeper.records.back();
  image.counted[1].chunks = {5};
  next.restored["w"] = image;
  next.run = ResumedJob{.number = 5, .symbol_bytes = 48};
  LoggedJob job(&next);
  EXPECT_THAT(next.begun, ElementsAre(5));
  const auto start = job.a.Heard(Heard::kStart);
  ASSERT_EQ(start.size(), 1u);
  EXPECT_EQ(start[0].start().symbol_bytes(), 48u) << "chunks are as they were";
}

// Workers have memories of the epochs before, which this server has not.
TEST_F(LoggedRounds, ShiftsBeginANewEpoch) {
  {
    LoggedJob job(&keeper);
    job.Declare();
    job.Push(0, true);
    job.Write();
  }
  LogKeeper next;
  next.restored["w"] = *keeper.records.back();
  next.restored["w"].shift_epoch = 6;
  next.run = ResumedJob{.number = 5, .symbol_bytes = 48};
  LoggedJob job(&next, LossPolicy::kShift);
  job.Declare();
  EXPECT_EQ(job.a.Heard(Heard::kDeclared).back().declared().shift_epoch(), 7u);
}

TEST_F(LoggedRounds, AWorkerThatComesBackLearnsWhatCounted) {
  const uint32_t elements = codec::ChunkElementsFor(LoggedJob::kSymbol);
  const uint64_t count = uint64_t{LoggedJob::kChunks} * elements;
  const auto array = [count](float value) {
    auto values = std::make_shared<ZeroedArray<float>>(count);
    for (float& each : values->span()) each = value;
    return values;
  };
  keeper.restored["w"] = {
      .name = "w",
      .count = count,
      .optimizer = "sgd:lr=1,momentum=0.5",
      .rounds = 12,
      .round = 7,
      .counted = {{.session = 1000, .round = 6, .chunks = {5}}, {.session = 1, .round = 6}},
      .values = array(3),
      .state = {{"momentum_buffer", array(2)}}};
  LoggedJob job(&keeper);
  job.a.connection.TakeControl();
  job.a.Declare("w", count, "sgd:lr=1,momentum=0.5");
  job.b.Declare("w", count, "sgd:lr=1,momentum=0.5");
  const auto a = job.a.Heard(Heard::kDeclared).at(0).declared();
  EXPECT_EQ(a.next_round(), 7u) << "of the job, not of the values";
  EXPECT_TRUE(a.has_values());
  EXPECT_TRUE(a.has_counted());
  EXPECT_EQ(a.counted_round(), 6u);
  EXPECT_EQ(a.counted_chunks(), std::string(1, 5));
  const auto b = job.b.Heard(Heard::kDeclared).at(0).declared();
  EXPECT_FALSE(b.has_counted()) << "another process has the rank now";
  job.Push(7, true);
  ASSERT_FALSE(keeper.records.empty());
  const TensorImage& record = *keeper.records.back();
  EXPECT_EQ(record.round, 8u);
  EXPECT_EQ(record.rounds, 13u);
  EXPECT_EQ(record.values->span()[0], 1) << "3 - (0.5 * 2 + 1)";
}

TEST_F(LoggedRounds, AnAnswerThatHasWaitedSaysWhatHasCountedMeanwhile) {
  LoggedJob job(&keeper);
  job.Declare();
  FakeWorker again{job.coordinator, 0, 50000};
  const control::Declared answer = job.ComeBackLate(again, 1000);
  EXPECT_EQ(keeper.records.back()->counted[0].session, 1000u);
  EXPECT_TRUE(answer.has_counted());
  EXPECT_EQ(answer.next_round(), 1u);
}

// A worker that comes back to a server that lives needs no log.
TEST_F(LoggedRounds, AWorkerThatComesBackIsToldOfItsPushByTheAnswerOnly) {
  LoggedJob job(&keeper);
  job.Declare();
  FakeWorker again(job.coordinator, 0, 40100);
  const control::Declared answer = job.ComeBackLate(again, 1000, false);
  EXPECT_TRUE(answer.has_counted());
}

TEST_F(LoggedRounds, WhatHasCountedIsKnownWithoutALogToo) {
  keeper.logs = false;
  LoggedJob job(&keeper);
  job.Declare();
  FakeWorker again{job.coordinator, 0, 50000};
  EXPECT_TRUE(job.ComeBackLate(again, 1000).has_counted());
  EXPECT_TRUE(keeper.records.empty());
}

// What its predecessor pushed is not the successor's: a push of its own that waits has not counted.
TEST_F(LoggedRounds, WhatCountedIsOfTheSessionThatPushed) {
  LoggedJob job(&keeper);
  job.Declare();
  FakeWorker successor{job.coordinator, 0, 50000};
  EXPECT_FALSE(job.ComeBackLate(successor, 1001).has_counted());
  EXPECT_EQ(keeper.records.back()->counted[0].session, 1000u);
}

// Its push may have counted, and what counted is known of its successor only.
TEST_F(LoggedRounds, AWorkerThatWasReplacedIsRefusedByTheNextServerToo) {
  {
    LoggedJob job(&keeper);
    job.Declare();
    FakeWorker successor{job.coordinator, 0, 50000};
    job.ComeBackLate(successor, 1001);
    EXPECT_THAT(keeper.records.back()->counted[0].replaced, ElementsAre(1000));
  }
  LogKeeper next;
  next.run = ResumedJob{.number = 5, .symbol_bytes = 48, .sessions = SessionsOf({*keeper.records.back()}, 2)};
  next.restored["w"] = *keeper.records.back();
  LoggedJob job(&next);  // session 1000 has rank 0
  EXPECT_THAT(job.events.refused, ElementsAre(testing::HasSubstr("another process has followed this one")));
  EXPECT_THAT(next.begun, IsEmpty());
  FakeWorker successor{job.coordinator, 0, 50000};
  successor.session = 1001;
  successor.connection.max_chunk_bytes = LoggedJob::kSymbol;
  successor.Join(2);
  EXPECT_THAT(next.begun, ElementsAre(5));
}

}  // namespace
}  // namespace longhaul::server
