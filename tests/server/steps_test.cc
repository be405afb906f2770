// Where staleness is not 0: every push is a step, and its worker may make the next one or has to wait.
//
//   worker 0 --push--> step 0                step 2 --held: two ahead-->
//   worker 1            --push--> step 1
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/server/fake_worker.h"

namespace longhaul::server {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Heard = control::ControlMessage;
using Values = std::map<uint32_t, float>;

// A disk that has written what the test says, or none.
struct Disk final : ImageKeeper {
  bool Ready() const override { return true; }
  void Keep(std::shared_ptr<const JobImage>) override {}
  void OnSkipped() override {}
  KeeperStats stats() const override { return {}; }
  const TensorImage* Find(const std::string& tensor) const override {
    const auto found = restored.find(tensor);
    return found == restored.end() ? nullptr : &found->second;
  }
  TensorImage Take(const std::string& tensor) override {
    return std::move(restored.extract(tensor).mapped());
  }
  void OnJobOver() override {}
  bool Logs() const override { return true; }
  uint64_t Log(std::shared_ptr<const TensorImage> image) override {
    records.push_back(std::move(image));
    return records.size();
  }
  uint64_t logged() const override { return written; }

  std::map<std::string, TensorImage> restored;
  std::vector<std::shared_ptr<const TensorImage>> records;
  uint64_t written = 0;
};

// Workers that step along their gradients, by a mean over all: SGD with a rate of 1.
struct Job {
  explicit Job(
      int32_t staleness, uint32_t ranks = 2, Disk* disk = nullptr,
      void (*change)(ServerSettings&) = [](ServerSettings&) {})
      : coordinator(Settings(staleness, ranks, change), &events, nullptr, ByteCount(1 << 20), nullptr, disk),
        world(ranks),
        keeper(disk) {
    coordinator.SetNow(At(0));
    for (uint32_t rank = 0; rank < ranks; ++rank) Come(rank);
  }
  static ServerSettings Settings(int32_t staleness, uint32_t ranks, void (*change)(ServerSettings&)) {
    ServerSettings settings;
    settings.world_size = ranks;
    settings.min_workers = 1;
    settings.policy = LossPolicy::kZero;
    settings.staleness = staleness;
    settings.max_weight_share = 1;
    change(settings);
    return settings;
  }
  void Come(uint32_t rank, uint64_t session = 0, uint64_t incarnation = 0) {
    if (workers.contains(rank)) gone.push_back(std::move(workers.at(rank)));
    workers[rank] = std::make_unique<FakeWorker>(coordinator, rank);
    workers[rank]->session = session != 0 ? session : rank + 1000;
    workers[rank]->connection.max_chunk_bytes = kSymbol;
    workers[rank]->Join(world, incarnation);
  }
  void Declare() {
    for (auto& [rank, worker] : workers) worker->Declare("w", count, "sgd:lr=1");
    Write();
    for (auto& [rank, worker] : workers) worker->connection.TakeControl();
  }
  FakeWorker& operator[](uint32_t rank) { return *workers.at(rank); }
  Status Open(uint32_t rank, uint32_t id, uint32_t low = 0, float weight = 1) {
    return workers.at(rank)->Open({.key = {id}, .high = kChunks - low, .low = low}, 0, 0, count, elements,
                                  false, codec::WindowKind::kGradient, weight);
  }
  transport::ChunkVerdict Send(uint32_t rank, uint32_t id, uint32_t chunk, float value) {
    return workers.at(rank)->Send({id}, wire::ReliabilityClass::kHigh, chunk,
                                  std::vector<float>(elements, value));
  }
  void Push(uint32_t rank, uint32_t id, float value) {
    ASSERT_TRUE(Open(rank, id).ok());
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) Send(rank, id, chunk, value);
  }
  // Which steps have counted, of those that the worker has heard of since the last look.
  std::vector<uint64_t> Taken(uint32_t rank) {
    std::vector<uint64_t> rounds;
    for (const auto& message : workers.at(rank)->Heard(Heard::kPushTaken))
      rounds.push_back(message.push_taken().round());
    return rounds;
  }
  // By chunk, as the server has them; empty: the pull waits.
  Values Now(uint32_t rank, uint32_t own_pushes = 0) {
    control::PullRequest pull;
    pull.set_own_pushes(own_pushes);
    pull.set_request(++request);
    const size_t before = workers.at(rank)->connection.outgoing.size();
    workers.at(rank)->Ask(pull);
    Values values;
    if (workers.at(rank)->connection.outgoing.size() == before) return values;
    for (const auto& [chunk, of] : FakeWorker::ChunksOf(workers.at(rank)->Result())) values[chunk] = of.at(0);
    workers.at(rank)->CloseResult(workers.at(rank)->connection.outgoing.rbegin()->first);
    return values;
  }
  void Write() {
    if (keeper == nullptr) return;
    keeper->written = keeper->records.size();
    coordinator.OnLogged();
    coordinator.AfterEvent();
  }
  void Tick(int64_t ms) {
    coordinator.SetNow(At(ms));
    coordinator.HandleTimeout();
    coordinator.AfterEvent();
  }

  static constexpr size_t kSymbol = 64;
  static constexpr uint32_t kChunks = 2;
  const uint32_t elements = codec::ChunkElementsFor(kSymbol);
  const uint64_t count = uint64_t{kChunks} * elements;
  Recorder events;
  Coordinator coordinator;
  uint32_t world;
  Disk* keeper;
  uint32_t request = 0;
  std::map<uint32_t, std::unique_ptr<FakeWorker>> workers;
  std::vector<std::unique_ptr<FakeWorker>> gone;  // the coordinator may still hold their connections
};

Values Both(float value) { return {{0, value}, {1, value}}; }

TEST(Steps, EveryPushIsAStepOfItsOwnWithItsShareOfTheWeight) {
  Job job(-1);
  job.Declare();
  job.Push(0, 1, 4);
  EXPECT_THAT(job.Taken(0), ElementsAre(0));
  EXPECT_EQ(job.Now(1), Both(-2)) << "of two workers";
  job.Push(1, 1, 8);
  EXPECT_THAT(job.Taken(1), ElementsAre(1));
  job.Push(1, 2, 2);
  EXPECT_THAT(job.Taken(1), ElementsAre(2)) << "the other one is not waited for";
  EXPECT_EQ(job.Now(0), Both(-7));
  EXPECT_EQ(job.events.rounds.size(), 3u);
  EXPECT_EQ(job.events.rounds[0].contributors, 1u);
  EXPECT_FALSE(job.coordinator.Stats().members.at(0).lags) << "it has no window, that is all";
}

TEST(Steps, AWindowThatStepsAreMadeDuringIsInThemAsItComes) {
  Job job(-1);
  job.Declare();
  ASSERT_TRUE(job.Open(1, 1).ok());
  job.Send(1, 1, 0, 8);
  EXPECT_EQ(job.Now(0), Both(0)) << "no window is over";
  job.Push(0, 1, 4);
  EXPECT_EQ(job.Now(0), (Values{{0, -6}, {1, -2}}));
  EXPECT_THAT(job.Taken(1), IsEmpty());
  EXPECT_EQ(job[1].SendWithoutState({1}, wire::ReliabilityClass::kHigh,
                                    FakeWorker::EncodeChunk(0, std::vector<float>(job.elements, 8))),
            transport::ChunkVerdict::kRefused)
      << "it counts already";
  job.Send(1, 1, 1, 8);
  EXPECT_THAT(job.Taken(1), ElementsAre(1));
  EXPECT_EQ(job.Now(0), Both(-6));
}

TEST(Steps, APushThatEarlierStepsHaveAllOfMakesNoStep) {
  Job job(-1);
  job.Declare();
  ASSERT_TRUE(job.Open(1, 1, /*low=*/1).ok());
  job.Send(1, 1, 0, 8);
  job.Push(0, 1, 4);
  job[1].Finish({1});  // its other chunk is lost
  job.Tick(5000);
  EXPECT_THAT(job.Taken(1), ElementsAre(0));
  EXPECT_EQ(job.events.rounds.size(), 1u);
  EXPECT_EQ(job.Now(0), (Values{{0, -6}, {1, -2}}));
}

TEST(Steps, TheResultOfAPushIsAPullThatWaitsForIt) {
  Job job(-1);
  job.Declare();
  ASSERT_TRUE(job.Open(0, 1).ok());
  EXPECT_EQ(job.Now(0, 1), Values()) << "it has not counted";
  job.Send(0, 1, 0, 4);
  EXPECT_TRUE(job[0].connection.outgoing.empty());
  job.Send(0, 1, 1, 4);
  ASSERT_EQ(job[0].connection.outgoing.size(), 1u);
  EXPECT_EQ(FakeWorker::ChunksOf(job[0].Result()).at(1).second.at(0), -2);
}

TEST(Steps, ASecondPushBeforeTheFirstHasCountedBreaksTheProtocol) {
  Job job(1);
  job.Declare();
  job.Push(0, 1, 4);
  job.Push(0, 2, 4);  // one too far ahead: it is not told
  EXPECT_FALSE(job.Open(0, 3).ok());
  EXPECT_TRUE(job[0].connection.closed.has_value());
}

TEST(Steps, AWorkerThatIsTooFarAheadWaitsForTheSlowestByName) {
  Job job(1, 3);
  job.Declare();
  job.Push(0, 1, 3);
  EXPECT_EQ(job.Taken(0).size(), 1u);
  job.Push(0, 2, 3);
  EXPECT_THAT(job.Taken(0), IsEmpty()) << "two ahead, one is allowed";
  EXPECT_EQ(job.Now(0, 2), Values());
  EXPECT_EQ(job.Now(1), Both(-2)) << "though it counts";
  job.Push(1, 1, 3);
  EXPECT_THAT(job.Taken(0), IsEmpty()) << "one of two that it waits for";
  for (int64_t now = 0; now < 6000; now += 200) job.Tick(now);
  ASSERT_EQ(job.events.waiting.size(), 1u);
  EXPECT_THAT(job.events.waiting[0],
              AllOf(HasSubstr("push 3 of tensor \"w\" by rank 0, 2 ahead"), HasSubstr("worker rank 2")));
  EXPECT_THAT(job.events.waiting[0], testing::Not(HasSubstr("worker rank 1")));
  job.Push(2, 1, 3);
  EXPECT_THAT(job.Taken(0), ElementsAre(1));
  EXPECT_EQ(job[0].connection.outgoing.size(), 1u) << "and its result";
}

TEST(Steps, ADeadMemberHoldsTheOthersNoLonger) {
  Job job(1);
  job.Declare();
  job.Push(0, 1, 4);
  job.Push(0, 2, 4);
  EXPECT_EQ(job.Taken(0).size(), 1u);
  job[1].Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  EXPECT_EQ(job.Taken(0).size(), 1u);
  job.Push(0, 3, 4);
  EXPECT_EQ(job.Taken(0).size(), 1u);
  EXPECT_EQ(job.Now(0), Both(-2 - 2 - 4)) << "alone it is all of the weight";
}

TEST(Steps, AMemberThatDoesNothingHoldsTheOthersNoLongerThanPatienceHas) {
  Job job(1);
  job.Declare();
  for (uint32_t push = 1; push <= 10; ++push) {
    job.Push(0, push, 1);
    job.Push(1, push, 1);
  }
  job.Push(0, 11, 1);
  job.Push(0, 12, 1);
  job.Taken(0);
  job.Tick(119'000);
  EXPECT_THAT(job.Taken(0), IsEmpty());
  EXPECT_THAT(job.events.left_out, IsEmpty());
  job.Tick(120'000);
  EXPECT_EQ(job.Taken(0).size(), 1u);
  EXPECT_THAT(job.events.left_out, ElementsAre(HasSubstr("worker rank 1")));
  EXPECT_TRUE(job.coordinator.Stats().members.at(1).lags);
  job.Push(0, 13, 1);
  EXPECT_EQ(job.Taken(0).size(), 1u);
  // It counts when it comes, and holds the others again from there on.
  job.Push(1, 11, 1);
  EXPECT_FALSE(job.coordinator.Stats().members.at(1).lags);
  job.Push(0, 14, 1);
  EXPECT_EQ(job.Taken(0).size(), 1u);
  job.Push(0, 15, 1);
  EXPECT_EQ(job.Taken(0).size(), 1u);
  job.Push(0, 16, 1);
  EXPECT_THAT(job.Taken(0), IsEmpty());
}

// The check that another member's end has asked for is over with this one.
TEST(Steps, ACheckThatIsOverIsNotAskedForAgain) {
  Job job(1, 3);
  job.Declare();
  for (uint32_t push = 1; push <= 2; ++push) job.Push(0, push, 1);
  job[2].Die(Status(StatusCode::kPeerDead, "test"));
  Instant due = job.coordinator.NextTimeout();
  for (int checks = 0; !due.IsInfinite() && checks < 20; ++checks) {
    job.coordinator.SetNow(due);
    job.coordinator.HandleTimeout();
    job.coordinator.AfterEvent();
    const Instant next = job.coordinator.NextTimeout();
    ASSERT_GT(next, due);
    due = next;
  }
}

TEST(Steps, ANewcomerContributesAtOnceAndBeginsWhereTheSlowestIs) {
  Job job(1);
  job.Declare();
  for (uint32_t push = 1; push <= 3; ++push) {
    job.Push(0, push, 1);
    job.Push(1, push, 1);
  }
  job[1].Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  job.Push(0, 4, 1);
  job.Come(1, 77, 1);
  job[1].Declare("w", job.count, "sgd:lr=1");
  job[1].AskClock(0);
  const auto reply = job[1].Heard(Heard::kClockReply);
  ASSERT_EQ(reply.size(), 1u);
  EXPECT_EQ(reply[0].clock_reply().own(), 4u);
  EXPECT_EQ(reply[0].clock_reply().slowest(), 4u);
  EXPECT_EQ(reply[0].clock_reply().fastest(), 4u);
  EXPECT_EQ(reply[0].clock_reply().members(), 2u);
  job.Push(1, 1, 6);
  EXPECT_EQ(job.Taken(1).size(), 1u);
  EXPECT_EQ(job.Now(1), Both(-3 - 1 - 3));
}

TEST(Steps, AClockSaysWhoIsWhere) {
  Job job(-1, 3);
  job.Declare();
  job.Push(0, 1, 1);
  job.Push(0, 2, 1);
  job.Push(1, 1, 1);
  job[1].AskClock(0);
  const auto reply = job[1].Heard(Heard::kClockReply);
  ASSERT_EQ(reply.size(), 1u);
  EXPECT_EQ(reply[0].clock_reply().own(), 1u);
  EXPECT_EQ(reply[0].clock_reply().slowest(), 0u);
  EXPECT_EQ(reply[0].clock_reply().fastest(), 2u);
  EXPECT_EQ(reply[0].clock_reply().members(), 3u);
  job[1].AskClock(9);
  EXPECT_TRUE(job[1].connection.closed.has_value());
}

TEST(Steps, AClockCountsSynchronousRoundsAsWell) {
  Job job(0);
  job.Declare();
  for (const uint32_t rank : {0u, 1u}) job.Push(rank, 1, 1);
  job[0].AskClock(0);
  const auto reply = job[0].Heard(Heard::kClockReply);
  ASSERT_EQ(reply.size(), 1u);
  EXPECT_EQ(reply[0].clock_reply().own(), 1u);
  EXPECT_EQ(reply[0].clock_reply().slowest(), 1u);
}

TEST(Steps, APullWaitsUntilAllAreWithinItsStalenessAndEndsByName) {
  Job job(-1);
  job.Declare();
  job.Push(0, 1, 1);
  job.Push(0, 2, 1);
  control::PullRequest pull;
  pull.set_request(7);
  pull.set_max_staleness(2);
  job[0].Ask(pull);
  EXPECT_EQ(job[0].connection.outgoing.size(), 1u) << "two behind are what it takes";
  pull.set_request(8);
  pull.set_max_staleness(1);
  job[0].Ask(pull);
  pull.set_request(9);
  pull.set_max_staleness(0);
  job[0].Ask(pull);
  EXPECT_EQ(job[0].connection.outgoing.size(), 1u);
  job[0].CloseResult(job[0].connection.outgoing.begin()->first);
  job.Push(1, 1, 1);
  EXPECT_EQ(job[0].connection.outgoing.size(), 1u);
  job[0].connection.TakeControl();
  job[0].GiveUp(9);
  const auto refused = job[0].Heard(Heard::kPullRefused);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].pull_refused().code(), static_cast<uint32_t>(StatusCode::kDeadlineExceeded));
  EXPECT_THAT(refused[0].pull_refused().message(),
              AllOf(HasSubstr("push 2 of tensor \"w\" (max_staleness) waits for worker rank 1")));
}

// The one that has values may not have declared the tensor yet.
TEST(Steps, NoStepIsMadeBeforeAllHaveSaidWhetherTheyHaveValues) {
  Job job(-1);
  job[0].Declare("w", job.count, "sgd:lr=1");
  job.Push(0, 1, 4);
  EXPECT_THAT(job.events.rounds, IsEmpty());
  job[1].Declare("w", job.count, "sgd:lr=1", /*has_initial=*/true);
  ASSERT_TRUE(
      job[1]
          .Open({.key = {1}, .high = 2}, 0, 0, job.count, job.elements, false, codec::WindowKind::kInitial)
          .ok());
  for (const uint32_t chunk : {0u, 1u}) job.Send(1, 1, chunk, 10);
  EXPECT_EQ(job.events.rounds.size(), 1u);
  EXPECT_EQ(job.Now(0), Both(8));
}

TEST(Steps, AnAcknowledgedPushIsOnTheDiskAndWhatComesMeanwhileIsOfTheNextStep) {
  Disk disk;
  Job job(-1, 2, &disk);
  job.Declare();
  const size_t before = disk.records.size();
  ASSERT_TRUE(job.Open(1, 1).ok());
  job.Send(1, 1, 0, 8);
  job.Push(0, 1, 4);
  ASSERT_EQ(disk.records.size(), before + 1);
  EXPECT_THAT(job.Taken(0), IsEmpty()) << "it is not written";
  job.Send(1, 1, 1, 8);  // the step has its value of this chunk
  EXPECT_THAT(job.Taken(1), IsEmpty());
  // What of the second push the step has: half of it.
  const std::vector<Counted>& counted = disk.records.back()->counted;
  ASSERT_EQ(counted.size(), 2u);
  EXPECT_EQ(counted[0], (Counted{.session = 1000, .round = 0, .clock = 1}));
  EXPECT_EQ(counted[1], (Counted{.session = 1001, .round = 0, .clock = 1, .chunks = {1}}));
  job.Write();
  EXPECT_THAT(job.Taken(0), ElementsAre(0));
  EXPECT_THAT(job.Taken(1), IsEmpty());
  ASSERT_EQ(disk.records.size(), before + 2) << "the next step, with all of it";
  EXPECT_EQ(disk.records.back()->counted[1], (Counted{.session = 1001, .round = 1, .clock = 1}));
  job.Write();
  EXPECT_THAT(job.Taken(1), ElementsAre(1));
  EXPECT_EQ(job.Now(0), Both(-6));
}

// Its worker comes back while the record is written. A server that dies then has lost the push, so that it is
// sent again; what is in of it does not count again, and the next push does.
TEST(Steps, APushOfAStepThatIsBeingWrittenIsSentAgain) {
  Disk disk;
  Job job(-1, 2, &disk);
  job.Declare();
  job.Push(0, 1, 4);
  job.Come(0, 1000, 1);
  job[0].connection.TakeControl();
  job[0].Declare("w", job.count, "sgd:lr=1");
  EXPECT_FALSE(job[0].Heard(Heard::kDeclared).at(0).declared().has_counted());
  job.Write();
  job.Push(0, 1, 4);
  job.Write();
  EXPECT_EQ(job.Taken(0).size(), 1u);
  EXPECT_EQ(job.Now(1), Both(-2));
  job.Push(0, 2, 6);
  job.Write();
  EXPECT_EQ(job.Now(1), Both(-5));
}

// The chunk that is in is its predecessor's.
TEST(Steps, APushOfWhichNothingIsInHasNotCounted) {
  Disk disk;
  Job job(-1, 2, &disk);
  job.Declare();
  ASSERT_TRUE(job.Open(1, 1).ok());
  job.Send(1, 1, 0, 8);
  job.Come(1, 5, 1);
  job[1].Declare("w", job.count, "sgd:lr=1");
  ASSERT_TRUE(job.Open(1, 1).ok());
  job.Push(0, 1, 4);
  EXPECT_EQ(disk.records.back()->counted[0].session, 1000u);
  EXPECT_EQ(disk.records.back()->counted[1].session, 0u);
}

// Rank 1 was away for four pushes: at the next server it comes back where the slowest is, and holds no other
// member.
TEST(Steps, AClockThatStoodStillHoldsTheOthersAtNoServer) {
  Disk disk;
  {
    Job job(1, 2, &disk);
    job.Declare();
    for (const uint32_t rank : {1u, 0u}) {
      job.Push(rank, 1, 4);
      job.Write();
    }
    job[1].Die(Status(StatusCode::kPeerDead, "test"));
    for (uint32_t push = 2; push <= 5; ++push) {
      job.Push(0, push, 4);
      job.Write();
    }
  }
  Disk after;
  after.restored.emplace("w", *disk.records.back());
  Job job(1, 2, &after);
  job.Declare();
  job.Push(0, 6, 4);
  job.Write();
  EXPECT_EQ(job.Taken(0).size(), 1u);
}

TEST(Steps, AClockOutlivesTheServer) {
  Disk disk;
  {
    Job job(1, 2, &disk);
    job.Declare();
    job.Push(0, 1, 4);
    job.Write();
    job.Push(0, 2, 4);
    job.Write();
  }
  TensorImage image = *disk.records.back();
  Disk after;
  after.restored.emplace("w", std::move(image));
  Job job(1, 2, &after);
  job.Declare();
  job[0].AskClock(0);
  EXPECT_EQ(job[0].Heard(Heard::kClockReply).at(0).clock_reply().own(), 2u);
  job.Push(1, 1, 4);
  job.Write();
  EXPECT_EQ(job[0].Heard(Heard::kDeclared).size(), 1u) << "two ahead until now";
  job.Push(0, 3, 4);
  job.Write();
  EXPECT_THAT(job.Taken(0), IsEmpty()) << "two ahead again";
  job[0].AskClock(0);
  EXPECT_EQ(job[0].Heard(Heard::kClockReply).at(0).clock_reply().own(), 3u);
}

// A worker that has reconnected has its acknowledgement in the answer to its Declare.
TEST(Steps, AWorkerThatIsTooFarAheadIsHeldWhenItComesBackAsWell) {
  Job job(1);
  job.Declare();
  job.Push(0, 1, 4);
  EXPECT_THAT(job.Taken(0), ElementsAre(0));
  job.Push(0, 2, 4);
  EXPECT_THAT(job.Taken(0), IsEmpty());
  job.Come(0, 1000, 1);
  job[0].Declare("w", job.count, "sgd:lr=1");
  EXPECT_THAT(job[0].Heard(Heard::kDeclared), IsEmpty());
  job.Push(1, 1, 2);
  const auto answers = job[0].Heard(Heard::kDeclared);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].declared().counted_round(), 1u);
  EXPECT_THAT(job.Now(0, 1), IsEmpty()) << "of this connection no push has counted";
}

// A connection was lost in mid-push, and the server lives.
TEST(Steps, APushThatIsSentAgainCountsOnce) {
  Job job(-1);
  job.Declare();
  ASSERT_TRUE(job.Open(1, 1).ok());
  job.Send(1, 1, 0, 8);
  job.Push(0, 1, 4);  // the step has half of it
  job.Come(1, 1001, 1);
  job[1].connection.TakeControl();
  job[1].Declare("w", job.count, "sgd:lr=1");
  EXPECT_FALSE(job[1].Heard(Heard::kDeclared).at(0).declared().has_counted())
      << "the worker would not send it again";
  job.Push(1, 1, 8);
  EXPECT_THAT(job.Taken(1), ElementsAre(1));
  EXPECT_EQ(job.Now(0), Both(-6));
  job.Push(1, 2, 2);
  EXPECT_EQ(job.Now(0), Both(-7)) << "the next one is another push";
  job.Push(1, 3, -2);
  // Of another process it is another push.
  ASSERT_TRUE(job.Open(1, 2).ok());
  job.Send(1, 2, 0, 2);
  job.Push(0, 2, 0);
  job.Come(1, 5, 2);
  job[1].Declare("w", job.count, "sgd:lr=1");
  job.Push(1, 1, 2);
  EXPECT_EQ(job.Now(0), (Values{{0, -8}, {1, -7}}));
}

// Chunk 0 of both is in: of two processes they are two pushes, and the step that has the first has no other
// window.
TEST(Steps, ASuccessorsPushCountsBesideWhatItsPredecessorHasDelivered) {
  Job job(1);
  job.Declare();
  ASSERT_TRUE(job.Open(1, 1).ok());
  job.Send(1, 1, 0, 8);
  job.Come(1, 5, 1);
  job[1].Declare("w", job.count, "sgd:lr=1");
  job[1].connection.TakeControl();
  job.Push(1, 1, 2);
  EXPECT_EQ(job.Taken(1).size(), 1u);
  EXPECT_EQ(job.Now(0), (Values{{0, -5}, {1, -1}}));
  job.Push(0, 1, 0);
  EXPECT_EQ(job.Now(0), (Values{{0, -5}, {1, -1}}));
}

// Chunk 0 of its second push is in: the successor goes on with the clock of its rank, not with the slowest
// one.
TEST(Steps, ASuccessorKeepsTheClockOfItsRank) {
  Job job(1);
  job.Declare();
  job.Push(1, 1, 2);
  ASSERT_TRUE(job.Open(1, 2).ok());
  job.Send(1, 2, 0, 2);
  job.Come(1, 5, 1);
  job[1].AskClock(0);
  const auto reply = job[1].Heard(Heard::kClockReply);
  ASSERT_EQ(reply.size(), 1u);
  EXPECT_EQ(reply[0].clock_reply().own(), 1u);
  EXPECT_EQ(reply[0].clock_reply().slowest(), 0u);
}

TEST(Steps, APushThatHasCountedAndWasNotToldIsKnownToItsSession) {
  Job job(1);
  job.Declare();
  job.Push(0, 1, 4);
  job.Push(0, 2, 4);  // held
  job.Come(0, 1000, 1);
  job[0].connection.TakeControl();
  job[0].Declare("w", job.count, "sgd:lr=1");
  job.Push(1, 1, 4);
  const auto declared = job[0].Heard(Heard::kDeclared);
  ASSERT_EQ(declared.size(), 1u);
  EXPECT_TRUE(declared[0].declared().has_counted());
  EXPECT_EQ(declared[0].declared().counted_round(), 1u);
  EXPECT_EQ(declared[0].declared().next_round(), 2u);
}

TEST(Steps, WhatALossPolicyForgetsCountsAsZeroInItsOwnStepOnly) {
  Job job(-1);
  job.Declare();
  ASSERT_TRUE(job.Open(0, 1, /*low=*/1).ok());
  job.Send(0, 1, 0, 4);
  job[0].Finish({1});
  job.Tick(5000);
  EXPECT_EQ(job.Taken(0).size(), 1u);
  EXPECT_EQ(job.Now(0), (Values{{0, -2}, {1, 0}}));
  job.Push(1, 1, 4);
  EXPECT_EQ(job.Now(0), (Values{{0, -4}, {1, -2}}));
}

TEST(Steps, AWeightIsOfThePush) {
  Job job(-1);
  job.Declare();
  ASSERT_TRUE(job.Open(0, 1, 0, /*weight=*/3).ok());
  for (const uint32_t chunk : {0u, 1u}) job.Send(0, 1, chunk, 4);
  EXPECT_EQ(job.Now(0), Both(-4)) << "all of the two that the members usually weigh";
}

TEST(Steps, ATensorMayHaveAConsistencyOfItsOwn) {
  Job job(0);
  control::ControlMessage message;
  control::Declare& declare = *message.mutable_declare();
  declare.set_request(1);
  declare.set_name("w");
  declare.set_count(job.count);
  declare.set_optimizer("sgd:lr=1");
  declare.set_staleness(-1);
  for (auto& [rank, worker] : job.workers) worker->Say(message);
  job.Push(0, 1, 4);
  EXPECT_EQ(job.Now(1), Both(-2));
  const auto why = [&](auto change) {
    declare.set_request(declare.request() + 1);
    declare.set_name("v");
    declare.set_staleness(-1);
    declare.set_optimizer("sgd:lr=1");
    declare.clear_quorum();
    change();
    job[1].connection.TakeControl();
    job[1].Say(message);
    const auto answers = job[1].Heard(Heard::kDeclared);
    return answers.empty() ? std::string("no answer") : answers[0].declared().message();
  };
  EXPECT_THAT(why([&] { declare.set_optimizer("aggregate"); }), HasSubstr("needs an optimizer"));
  EXPECT_THAT(why([&] { declare.set_quorum(1); }), HasSubstr("needs staleness 0"));
  EXPECT_THAT(why([&] { declare.set_staleness(0), declare.set_quorum(3); }), HasSubstr("no quorum of 3"));
  EXPECT_THAT(why([&] { declare.set_name("w"), declare.set_staleness(2); }), HasSubstr("staleness 2"));
}

}  // namespace
}  // namespace longhaul::server
