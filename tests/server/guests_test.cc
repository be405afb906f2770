// Load generators at the server: counted and dropped, bounded, and of no effect on the job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "bench/load/sink.h"
#include "server/job/coordinator.h"
#include "tests/server/fake_worker.h"

namespace longhaul::server {
namespace {

using control::ControlMessage;
using testing::HasSubstr;
using wire::ReliabilityClass;

class BenchTest : public testing::Test {
 protected:
  explicit BenchTest(const load::SinkOptions& options = {}) : sink(options, {}) { coordinator.SetNow(At(0)); }
  static void JoinBench(FakeWorker& who) {
    who.Connect();
    ControlMessage message;
    message.mutable_bench_join()->set_site("B");
    who.Say(message);
  }
  void Tick(int64_t ms) {
    coordinator.SetNow(At(ms));
    coordinator.HandleTimeout();
    coordinator.AfterEvent();
  }
  Status OpenWindow(FakeWorker& who, uint32_t id, uint32_t high, uint32_t low = 0) {
    return who.Open({{id, 0}, high, low}, 0, 0, 1000, 344);
  }

  Recorder events;
  load::Sink sink;
  Coordinator coordinator{{}, &events, {}, ByteCount(1 << 20), &sink};
  FakeWorker bench{coordinator, 0, 41000};
};

TEST_F(BenchTest, WindowsAreClosedWhenEverythingHighIsHereAndBytesAreCounted) {
  JoinBench(bench);
  const auto welcome = bench.Heard(ControlMessage::kBenchWelcome);
  ASSERT_EQ(welcome.size(), 1u);
  EXPECT_EQ(welcome[0].bench_welcome().fec_k(), 20u);
  EXPECT_EQ(welcome[0].bench_welcome().max_open_windows(), 32u);
  EXPECT_EQ(events.came, 1);

  const std::vector<float> values(100, 1.0f);
  const size_t bytes = FakeWorker::EncodeChunk(0, values).size();
  ASSERT_TRUE(OpenWindow(bench, 1, 2).ok());
  bench.Send({1, 0}, ReliabilityClass::kHigh, 0, values);
  EXPECT_TRUE(bench.connection.closed_windows.empty());
  bench.Send({1, 0}, ReliabilityClass::kHigh, 1, values, true);
  ASSERT_EQ(bench.connection.closed_windows.size(), 1u);
  EXPECT_EQ(bench.connection.closed_windows[0].second, wire::CloseReason::kComplete);

  Tick(100);
  const auto reports = bench.Heard(ControlMessage::kBenchReport);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].bench_report().elapsed_us(), 100'000u);
  EXPECT_EQ(reports[0].bench_report().high_bytes(), 2 * bytes);
  EXPECT_EQ(reports[0].bench_report().low_bytes(), 0u);
  EXPECT_EQ(reports[0].bench_report().chunks_repaired(), 1u);
  EXPECT_EQ(reports[0].bench_report().windows_closed(), 1u);
  EXPECT_EQ(coordinator.Stats().bench_bytes, 2 * bytes);
  EXPECT_LE(coordinator.NextTimeout(), At(200)) << "the next report";
}

TEST_F(BenchTest, LowWindowClosesByTheRatioAfterAQuietTime) {
  JoinBench(bench);
  ASSERT_TRUE(OpenWindow(bench, 1, 0, 10).ok());
  for (uint32_t i = 0; i < 9; ++i) bench.Send({1, 0}, ReliabilityClass::kLow, i, {1.0f});
  EXPECT_TRUE(bench.connection.closed_windows.empty());
  EXPECT_LE(coordinator.NextTimeout(), At(5));
  Tick(6);
  ASSERT_EQ(bench.connection.closed_windows.size(), 1u);
  EXPECT_EQ(bench.connection.closed_windows[0].second, wire::CloseReason::kRatio);
}

TEST_F(BenchTest, LeaveIsAnsweredByALastReportAndAGoodbye) {
  JoinBench(bench);
  ASSERT_TRUE(OpenWindow(bench, 1, 2).ok());
  bench.Send({1, 0}, ReliabilityClass::kHigh, 0, {1.0f});
  bench.connection.TakeControl();
  coordinator.SetNow(At(70));
  bench.Leave();
  const auto said = bench.connection.TakeControl();
  ASSERT_EQ(said.size(), 2u);
  EXPECT_EQ(said[0].bench_report().elapsed_us(), 70'000u);
  EXPECT_TRUE(said[1].has_leave());
  EXPECT_EQ(events.gone, 1);
  EXPECT_GT(events.last.high_bytes, 0u);
  EXPECT_EQ(coordinator.Stats().bench_connections, 0u);
}

TEST_F(BenchTest, AJobIsNeitherStartedNorJoinedByOneAndSendsItAway) {
  JoinBench(bench);
  EXPECT_EQ(events.starts, 0);
  EXPECT_EQ(coordinator.Stats().joined, 0u);
  bench.connection.TakeControl();
  FakeWorker worker(coordinator, 0);
  worker.Join(1);
  EXPECT_EQ(events.starts, 1);
  const auto leave = bench.Heard(ControlMessage::kLeave);
  ASSERT_EQ(leave.size(), 1u);
  EXPECT_THAT(leave[0].leave().message(), HasSubstr("a job has started"));
  bench.Die(Status());
  EXPECT_TRUE(events.over.empty()) << "the job goes on without it";

  FakeWorker late(coordinator, 0, 41001);
  JoinBench(late);
  const auto refused = late.Heard(ControlMessage::kRefused);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_THAT(refused[0].refused().message(), HasSubstr("a job is running"));
}

TEST_F(BenchTest, WhoSaysSomethingElseOrPretendsToBeAMemberIsOut) {
  JoinBench(bench);
  bench.Declare("w", 10, "aggregate");
  ASSERT_TRUE(bench.connection.closed);
  EXPECT_EQ(bench.connection.closed->code(), StatusCode::kProtocolViolation);
  EXPECT_EQ(events.gone, 1);
  bench.Die(*bench.connection.closed);
  EXPECT_EQ(coordinator.Stats().bench_connections, 0u);
}

TEST_F(BenchTest, WindowsBeyondTheBoundsAreRefused) {
  JoinBench(bench);
  const auto chunks = static_cast<uint32_t>((64 << 20) / 1392);
  EXPECT_TRUE(OpenWindow(bench, 1, chunks).ok());
  EXPECT_FALSE(OpenWindow(bench, 2, 100).ok()) << "bytes";
  FakeWorker other(coordinator, 0, 41001);
  JoinBench(other);
  for (uint32_t i = 1; i <= load::Sink::kMaxOpenWindows; ++i) EXPECT_TRUE(OpenWindow(other, i, 1).ok());
  EXPECT_FALSE(OpenWindow(other, 100, 1).ok()) << "windows";
}

TEST_F(BenchTest, ConnectionsAreBoundedAndAPlaceBecomesFreeAgain) {
  std::deque<FakeWorker> all;
  for (uint16_t i = 0; i < 16; ++i) JoinBench(all.emplace_back(coordinator, 0, 42000 + i));
  JoinBench(bench);
  EXPECT_THAT(bench.Heard(ControlMessage::kRefused).at(0).refused().message(),
              HasSubstr("16 load generators"));
  all.front().Die(Status(StatusCode::kPeerDead, "silent"));
  FakeWorker next(coordinator, 0, 43000);
  JoinBench(next);
  EXPECT_EQ(next.Heard(ControlMessage::kBenchWelcome).size(), 1u);
}

TEST_F(BenchTest, ShutdownTellsThem) {
  JoinBench(bench);
  bench.connection.TakeControl();
  coordinator.Shutdown(Status(StatusCode::kCancelled, "the server is shutting down"));
  EXPECT_THAT(bench.Heard(ControlMessage::kLeave).at(0).leave().message(), HasSubstr("shutting down"));
  EXPECT_EQ(events.gone, 1);
}

struct DuringJob : BenchTest {
  DuringJob() : BenchTest({.during_job = true}) {}
};

TEST_F(DuringJob, BothGoOnBesideEachOther) {
  JoinBench(bench);
  FakeWorker worker(coordinator, 0);
  worker.Join(1);
  EXPECT_TRUE(bench.Heard(ControlMessage::kLeave).empty());
  FakeWorker second(coordinator, 0, 41001);
  JoinBench(second);
  EXPECT_EQ(second.Heard(ControlMessage::kBenchWelcome).size(), 1u);
  bench.Die(Status(StatusCode::kPeerDead, "silent"));
  EXPECT_TRUE(events.over.empty());
  EXPECT_EQ(coordinator.Stats().joined, 1u);
}

}  // namespace
}  // namespace longhaul::server
