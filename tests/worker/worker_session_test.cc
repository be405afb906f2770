#include "worker/client/worker_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <numeric>

#include "tests/worker/session_harness.h"

namespace longhaul::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::string_literals;

const uint32_t kChunkElements = codec::ChunkElementsFor(SessionHarness::kSymbolBytes);

std::vector<float> Ramp(uint64_t count, float start = 1) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), start);
  return values;
}

// Sends every chunk of `values` on the result window `id`.
void SendWholeResult(SessionHarness& h, uint32_t id, std::span<const float> values) {
  for (uint32_t chunk = 0; uint64_t{chunk} * kChunkElements < values.size(); ++chunk) {
    const size_t first = size_t{chunk} * kChunkElements;
    h.SendResultChunk(id, chunk,
                      values.subspan(first, std::min<size_t>(kChunkElements, values.size() - first)));
  }
}

// --- Rounds of one step ---

// A newcomer that the round in progress of one tensor does not wait for, and that of another one does.
TEST(WorkerSessionTest, APushThatWouldBeARoundAheadOfItsStepIsPassedOver) {
  SessionHarness h;
  h.JoinAndStart();
  std::vector<float> gradient(10, 1);
  const TensorHandle ahead = h.DeclareTensor("ahead", 10, 0, 8);
  const TensorHandle behind = h.DeclareTensor("behind", 10, 1, 7);
  Outcome passed, in_time;
  h.session.Push(ahead, gradient, passed.Callback());
  h.session.Push(behind, gradient, in_time.Callback());
  h.FinishEvent();
  EXPECT_TRUE(passed.done() && passed.status.ok());
  EXPECT_EQ(passed.stats.lost_chunks, 1u);
  ASSERT_EQ(h.connection.outgoing.size(), 1u);
  EXPECT_EQ(h.Metadata(h.Window(0)).key, 1u);
  h.CloseGradient(0);
  h.SendRoundReport(7, 1);
  ASSERT_TRUE(in_time.done());
  Outcome both;
  h.session.Push(ahead, gradient, both.Callback());
  h.session.Push(behind, gradient, both.Callback());
  h.FinishEvent();
  ASSERT_EQ(h.connection.outgoing.size(), 3u);
  for (const size_t window : {1, 2}) EXPECT_EQ(h.Metadata(h.Window(window)).round, 8u);
  EXPECT_EQ(h.session.stats().pushes_passed_over, 1u);
}

// Its server does not wait for it until it pushes, in whatever round that comes.
TEST(WorkerSessionTest, APushIsSentToAServerThatHasLeftThisWorkerOut) {
  SessionHarness h;
  h.JoinAndStart();
  std::vector<float> gradient(10, 1);
  const TensorHandle left = h.DeclareTensor("left", 10, 0);
  const TensorHandle other = h.DeclareTensor("other", 10, 1);
  h.SendRoundReport(0, 0);
  Outcome first, second;
  h.session.Push(left, gradient, first.Callback());
  h.session.Push(other, gradient, second.Callback());
  h.FinishEvent();
  ASSERT_EQ(h.connection.outgoing.size(), 2u);
  EXPECT_EQ(h.Metadata(h.Window(0)).round, 1u);
  EXPECT_EQ(h.session.stats().pushes_passed_over, 0u);
}

// Its round is over before it has a window.
TEST(WorkerSessionTest, APushThatWaitsWhileItsServerLeavesItOutComesLate) {
  SessionHarness h;
  h.JoinAndStart();
  std::vector<float> gradient(10, 1);
  const TensorHandle w = h.DeclareTensor("w", 10, 0);
  h.connection.max_open_windows = 0;
  Outcome push;
  h.session.Push(w, gradient, push.Callback());
  h.FinishEvent();
  h.SendRoundReport(0, 0);
  h.connection.max_open_windows = 1;
  h.FinishEvent();
  ASSERT_EQ(h.connection.outgoing.size(), 1u);
  EXPECT_EQ(h.Metadata(h.Window(0)).round, 0u);
}

// The mean of an earlier round is not there any more.
TEST(WorkerSessionTest, APushThatIsPassedOverHasTheLastMeanForAResult) {
  SessionHarness h;
  h.JoinAndStart();
  std::vector<float> gradient(10, 1), model(10);
  const TensorHandle ahead = h.DeclareTensor("ahead", 10, 0, 9);
  h.DeclareTensor("behind", 10, 1, 7);
  Outcome passed;
  h.session.PushPull(ahead, gradient, model, passed.Callback());
  h.FinishEvent();
  EXPECT_FALSE(passed.done()) << passed.status.ToString();
  ASSERT_TRUE(h.connection.sent.back().has_pull_request());
  const control::PullRequest pull = h.connection.sent.back().pull_request();
  EXPECT_EQ(pull.min_round(), 9u);
  // Meanwhile another round goes on without this worker: its server waits for it no longer.
  h.SendRoundReport(9, 0);
  auto metadata = h.ResultMetadata(10, 10);
  metadata.kind = codec::WindowKind::kWeights;
  metadata.request = pull.request();
  ASSERT_TRUE(h.OpenResult(7, metadata, 1).ok());
  SendWholeResult(h, 7, Ramp(10));
  ASSERT_TRUE(passed.done() && passed.status.ok()) << passed.status.ToString();
  Outcome sent;
  h.session.Push(ahead, gradient, sent.Callback());
  h.FinishEvent();
  ASSERT_EQ(h.connection.outgoing.size(), 1u);
  EXPECT_EQ(h.Metadata(h.Window(0)).round, 10u);
}

// --- Joining ---

TEST(WorkerSessionTest, SaysWhoItIsOnceConnected) {
  SessionHarness h(
      {.job = "resnet", .site = "fra", .rank = 2, .world_size = 4, .incarnation = 7, .weight = 3.0f});
  EXPECT_TRUE(h.connection.sent.empty());
  h.Connect();
  ASSERT_EQ(h.connection.sent.size(), 1u);
  const control::Join& join = h.connection.sent[0].join();
  EXPECT_EQ(join.job(), "resnet");
  EXPECT_EQ(join.rank(), 2u);
  EXPECT_EQ(join.world_size(), 4u);
  EXPECT_EQ(join.incarnation(), 7u);
  EXPECT_EQ(join.site(), "fra");
  EXPECT_EQ(join.weight(), 3.0f);
  EXPECT_TRUE(join.takes_membership());
}

control::ControlMessage MembersOf(uint64_t epoch, uint32_t workers, const std::string& joined) {
  control::ControlMessage message;
  message.mutable_membership()->set_epoch(epoch);
  message.mutable_membership()->set_workers(workers);
  message.mutable_membership()->set_joined(joined);
  return message;
}

TEST(WorkerSessionTest, PassesOnWhichRanksAreInAndItsOwnPlaceAmongThem) {
  std::vector<longhaul::Membership> heard;
  WorkerCoreOptions options;
  options.rank = 9;
  options.world_size = 12;
  options.on_membership = [&](const longhaul::Membership& m) { heard.push_back(m); };
  SessionHarness h(options);
  h.Connect();
  h.Welcome();
  h.Send(MembersOf(7, 12, "\x05\x0e"));
  h.SendStart();
  h.Send(MembersOf(8, 12, "\x00\x02"s));
  ASSERT_EQ(heard.size(), 2u);
  EXPECT_EQ(heard[0], (longhaul::Membership{
                          .epoch = 7, .ranks = {0, 2, 9, 10, 11}, .shard_index = 2, .shard_count = 5}));
  EXPECT_EQ(heard[1], (longhaul::Membership{.epoch = 8, .ranks = {9}, .shard_index = 0, .shard_count = 1}));
  h.Send(MembersOf(9, 12, "\xff\x0d"));
  EXPECT_EQ(heard.size(), 2u);
  EXPECT_EQ(h.session.failure().code(), StatusCode::kProtocolViolation) << "it is no member of that";
}

TEST(WorkerSessionTest, AMembershipOfAnotherNumberOfWorkersIsAViolation) {
  SessionHarness h;
  h.Connect();
  h.Welcome();
  h.Send(MembersOf(7, 2, "\x01"));
  EXPECT_EQ(h.session.failure().code(), StatusCode::kProtocolViolation);
}

TEST(WorkerSessionTest, AMembershipBeforeWelcomeIsAViolation) {
  SessionHarness h;
  h.Connect();
  h.Send(MembersOf(7, 1, "\x01"));
  EXPECT_EQ(h.session.failure().code(), StatusCode::kProtocolViolation);
}

TEST(WorkerSessionTest, AServerThatAnsweredIsNotCalledSilent) {
  SessionHarness h;
  h.connection.stats_now.refusals = 1;
  h.Die(Status(StatusCode::kUnavailable, "server 127.0.0.1:7700 is full"));
  EXPECT_EQ(h.session.failure().code(), StatusCode::kUnavailable);
  EXPECT_THAT(h.session.failure().message(), Not(HasSubstr("no answer")));
  EXPECT_THAT(h.session.failure().message(), HasSubstr("is full"));
}

TEST(WorkerSessionTest, GivesUpConnectingAndNamesTheAddress) {
  SessionHarness h({.connect_timeout = std::chrono::seconds(3)});
  h.Advance(2999);
  EXPECT_EQ(h.session.state(), WorkerSession::State::kConnecting);
  EXPECT_EQ(h.session.NextTimeout(), h.At(3000));
  h.Advance(1);
  EXPECT_EQ(h.session.failure().code(), StatusCode::kUnavailable);
  EXPECT_THAT(h.session.failure().message(), HasSubstr("no answer from server 127.0.0.1:7700 within 3.0 s"));
}

TEST(WorkerSessionTest, GuessesWhyThereIsNoAnswerAndGoesOnTrying) {
  SessionHarness h({.connect_timeout = std::chrono::seconds(3)});
  EXPECT_THAT(h.session.JoinHint(), HasSubstr("nothing comes back"));
  h.session.NoteProbe("no program listens");
  EXPECT_EQ(h.session.JoinHint(), "no program listens");
  h.connection.stats_now.key_refusals = 1;
  EXPECT_THAT(h.session.JoinHint(), HasSubstr("the same key"));
  EXPECT_EQ(h.session.state(), WorkerSession::State::kConnecting);
  h.connection.stats_now.refusals = 1;  // by CLOSE of a server that does not allow this name, for example
  EXPECT_THAT(h.session.JoinHint(), AllOf(HasSubstr("a refusal has come"), Not(HasSubstr("nothing"))));
  h.connection.stats_now.refusals = 0;
  h.Advance(3000);
  EXPECT_THAT(h.session.failure().message(), HasSubstr("the same key"));
  SessionHarness connected;
  connected.session.NoteProbe("no program listens");
  connected.Connect();
  EXPECT_EQ(connected.session.JoinHint(), "") << "it has answered";
}

TEST(WorkerSessionTest, PassesOnTheServersRefusal) {
  SessionHarness h;
  h.Connect();
  control::ControlMessage m;
  m.mutable_refused()->set_code(static_cast<uint32_t>(StatusCode::kAlreadyExists));
  m.mutable_refused()->set_message("rank 0 is taken by 127.0.0.1:40000");
  h.Send(m);
  EXPECT_EQ(h.session.failure().code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(h.session.failure().message(), HasSubstr("rank 0 is taken by 127.0.0.1:40000"));
}

TEST(WorkerSessionTest, TheRateControllerHalvesWhereTheJobSays) {
  SessionHarness h;
  h.Connect();
  h.spec.halve_threshold = 0.45;
  h.Welcome();
  EXPECT_EQ(h.connection.loss_limits.halve_threshold, 0.45);
}

TEST(WorkerSessionTest, TheConnectionsOfSeveralServersShareTheWorkersRate) {
  WorkerCoreOptions options;
  options.connection.rate.floor = Bandwidth::Mbps(8);
  options.connection.rate.cap = Bandwidth::Mbps(100);
  SessionHarness h(options);
  h.Connect();
  control::ControlMessage m;
  wire::EncodeJobSpec(h.spec, m.mutable_welcome()->mutable_job_spec());
  m.mutable_welcome()->mutable_shard_map()->set_epoch(1);
  for (const char* address : {"", "b:1", "c:1", "d:1"})
    m.mutable_welcome()->mutable_shard_map()->add_servers(address);
  h.Send(m);
  EXPECT_EQ(h.connection.rate_floor, Bandwidth::Mbps(2));
  EXPECT_EQ(h.connection.rate_cap, Bandwidth::Mbps(25));
}

TEST(WorkerSessionTest, DeclaresOnlyWhenAllWorkersAreIn) {
  SessionHarness h;
  Outcome declared;
  h.session.Declare({.name = "w", .count = 10, .initial = {}}, declared.DeclareCallback());
  h.Connect();
  h.Welcome();
  EXPECT_EQ(h.connection.sent.size(), 1u) << "only Join so far";
  h.SendStart();
  ASSERT_EQ(h.connection.sent.size(), 2u);
  EXPECT_EQ(h.connection.sent[1].declare().name(), "w");
  EXPECT_FALSE(declared.done());
  h.SendDeclared(h.connection.sent[1].declare().request(), 0);
  EXPECT_TRUE(declared.done() && declared.status.ok());
}

TEST(WorkerSessionTest, RefusesADeclarationThatDisagreesWithAnEarlierOne) {
  SessionHarness h;
  h.JoinAndStart();
  const TensorHandle first = h.DeclareTensor("w", 10);
  Outcome same, other;
  h.session.Declare({.name = "w", .count = 10, .initial = {}}, same.DeclareCallback());
  h.session.Declare({.name = "w", .count = 11, .initial = {}}, other.DeclareCallback());
  h.FinishEvent();
  EXPECT_TRUE(same.status.ok());
  EXPECT_EQ(same.handle, first);
  EXPECT_EQ(other.status.code(), StatusCode::kSettingsMismatch);
  EXPECT_THAT(other.status.message(), HasSubstr("10 elements"));
  EXPECT_THAT(other.status.message(), HasSubstr("with 11"));
}

// A window that no peer opens would be waited for without an end.
TEST(WorkerSessionTest, ATensorThatNoWindowHoldsIsRefused) {
  struct Case {
    uint64_t chunks;
    ByteCount max_window;
  };
  // As many chunks as a window may have, and as many as one of smaller datagrams has bytes for.
  const ByteCount any = transport::LargestWindow(ByteCount(1452)),
                  less = transport::LargestWindow(ByteCount(1200));
  const auto fit = static_cast<uint64_t>(less.value()) / SessionHarness::kSymbolBytes;
  for (const auto& [chunks, max_window] : {Case{wire::kMaxWindowChunks, any}, Case{fit, less}}) {
    for (const bool fits : {true, false}) {
      WorkerCoreOptions options;
      options.connection.max_window_bytes = max_window;
      SessionHarness h(options);
      h.JoinAndStart();
      Outcome declared;
      const uint64_t count = chunks * kChunkElements + (fits ? 0 : 1);
      h.session.Declare({.name = "w", .count = count, .initial = {}}, declared.DeclareCallback());
      h.SendDeclared(h.connection.sent.back().declare().request(), 0);
      EXPECT_EQ(declared.status.ok(), fits) << count << " " << declared.status.ToString();
      if (fits) continue;
      EXPECT_EQ(declared.status.code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(declared.status.message(), HasSubstr("is too large for one window: split it"));
    }
  }
}

TEST(WorkerSessionTest, APushThatNoWindowOfTheServerHoldsEndsByName) {
  SessionHarness h;
  h.JoinAndStart();
  const TensorHandle tensor = h.DeclareTensor("w", 10 * kChunkElements);
  h.connection.max_window_bytes = 9 * SessionHarness::kSymbolBytes;
  const std::vector<float> gradient = Ramp(10 * kChunkElements);
  Outcome pushed;
  h.session.Push(tensor, gradient, pushed.Callback());
  h.FinishEvent();
  ASSERT_TRUE(pushed.done());
  EXPECT_EQ(pushed.status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(pushed.status.message(), HasSubstr(", tensor w: window is larger than the peer accepts"));
}

TEST(WorkerSessionTest, SendsInitialValuesReliablyWhenTheServerWantsThem) {
  SessionHarness h;
  h.JoinAndStart();
  const std::vector<float> initial = Ramp(10 * kChunkElements);
  Outcome declared;
  h.session.Declare({.name = "w", .count = initial.size(), .initial = initial}, declared.DeclareCallback());
  h.FinishEvent();
  EXPECT_TRUE(h.connection.sent.back().declare().has_initial());
  h.SendDeclared(h.connection.sent.back().declare().request(), 0, 0, /*send_initial=*/true);
  EXPECT_FALSE(declared.done()) << "the initial values are still borrowed";
  ASSERT_EQ(h.connection.outgoing.size(), 1u);
  EXPECT_EQ(h.Metadata(h.Window(0)).kind, codec::WindowKind::kInitial);
  EXPECT_EQ(h.Window(0).options.high_count, 10u);
  EXPECT_EQ(h.Window(0).options.low_count, 0u);
  h.CloseGradient(0, {}, true, wire::CloseReason::kComplete);
  EXPECT_TRUE(declared.done() && declared.status.ok());
}

TEST(WorkerSessionTest, KeepsInitialValuesToItselfWhenAnotherWorkerSentThem) {
  SessionHarness h;
  h.JoinAndStart();
  const std::vector<float> initial = Ramp(100);
  Outcome declared;
  h.session.Declare({.name = "w", .count = 100, .initial = initial}, declared.DeclareCallback());
  h.FinishEvent();
  h.SendDeclared(h.connection.sent.back().declare().request(), 0, 0, /*send_initial=*/false);
  EXPECT_TRUE(declared.done() && declared.status.ok());
  EXPECT_TRUE(h.connection.outgoing.empty());
}

// --- Rounds ---

// A8: what the server sends is in the caller's memory when the operation is done; so it goes, round after
// round.
TEST(WorkerSessionTest, UpdatesTheModelFromTheAggregateUntilDone) {
  TensorHarness h(1000);
  for (uint32_t round = 0; round < 5; ++round) {
    Outcome step;
    h.PushPull(step);
    EXPECT_EQ(h.Metadata(h.Window(round)).round, round);
    EXPECT_TRUE(h.Metadata(h.Window(round)).wants_result);

    const std::vector<float> update = Ramp(1000, static_cast<float>(round) * 1000);
    ASSERT_TRUE(h.OpenResult(round + 1, h.ResultMetadata(1000, round), 3).ok());
    SendWholeResult(h, round + 1, update);
    EXPECT_EQ(h.connection.closed_windows.back(),
              std::pair(transport::WindowKey{round + 1}, wire::CloseReason::kComplete));
    EXPECT_FALSE(step.done()) << "its own gradient is still on its way";
    h.CloseGradient(round);
    ASSERT_EQ(step.calls, 1);
    EXPECT_TRUE(step.status.ok()) << step.status.ToString();
    EXPECT_EQ(h.model, update);
    EXPECT_EQ(step.stats.round, round);
    EXPECT_EQ(step.stats.bytes, ByteCount(8000));
    EXPECT_EQ(step.stats.chunks_received, 3u);
  }
}

TEST(WorkerSessionTest, IsDoneOnlyWhenAllOfTheResultIsHere) {
  const uint64_t count = 2 * kChunkElements;
  TensorHarness h(count);
  const std::vector<float> update = Ramp(count);
  Outcome step;
  h.PushPull(step);
  h.CloseGradient(0);
  EXPECT_FALSE(step.done());
  ASSERT_TRUE(h.OpenResult(1, h.ResultMetadata(count, 0), 2).ok());
  h.SendResultChunk(1, 1, std::span(update).subspan(kChunkElements));
  EXPECT_FALSE(step.done());
  h.SendResultChunk(1, 0, std::span(update).first(kChunkElements), /*repaired=*/true);
  EXPECT_EQ(step.calls, 1);
  EXPECT_EQ(h.model, update) << "also the chunk that FEC rebuilt, padding and all";
  EXPECT_EQ(step.stats.repaired_chunks, 1u);
}

TEST(WorkerSessionTest, ARepeatedChunkWritesNothing) {
  const uint64_t count = 2 * kChunkElements;
  TensorHarness h(count);
  Outcome step;
  h.PushPull(step);
  ASSERT_TRUE(h.OpenResult(1, h.ResultMetadata(count, 0), 2).ok());
  h.SendResultChunk(1, 0, std::vector<float>(kChunkElements, 5.0f));
  h.SendResultChunk(1, 0, std::vector<float>(kChunkElements, 9.0f));
  EXPECT_EQ(h.model[0], 5.0f);
}

TEST(WorkerSessionTest, PushesOfOneTensorGoOneRoundAfterTheOther) {
  TensorHarness h(100);
  Outcome first, second;
  h.Push(first);
  h.Push(second);
  EXPECT_EQ(h.connection.outgoing.size(), 1u);
  h.CloseGradient(0);
  EXPECT_TRUE(first.done());
  EXPECT_EQ(h.connection.outgoing.size(), 1u) << "the server has not finished round 0";
  h.SendRoundReport(0);
  ASSERT_EQ(h.connection.outgoing.size(), 2u);
  EXPECT_EQ(h.Metadata(h.Window(1)).round, 1u);
}

TEST(WorkerSessionTest, TensorsDoNotHoldUpEachOther) {
  SessionHarness h;
  h.JoinAndStart();
  const std::vector<float> gradient(100, 1.0f);
  std::vector<Outcome> steps(4);
  for (uint32_t i = 0; i < 4; ++i) {
    const TensorHandle tensor = h.DeclareTensor("t" + std::to_string(i), 100, i);
    h.session.Push(tensor, gradient, steps[i].Callback());
  }
  h.FinishEvent();
  EXPECT_EQ(h.connection.outgoing.size(), 4u);
}

// A core that encodes a whole tensor hears no ACKs meanwhile.
TEST(WorkerSessionTest, ALargeTensorIsSubmittedInSlicesAndNeverInsideARequest) {
  constexpr uint64_t kChunksOfASlice = WorkBudget::kSliceElements / WorkBudget::kPerChunk;
  TensorHarness h(2 * kChunksOfASlice * codec::ChunkElementsFor(SessionHarness::kSymbolBytes));
  Outcome step;
  h.session.Push(h.w, h.gradient, step.Callback());
  h.session.FinishEvent();
  const auto submitted = [&h] {
    uint64_t chunks = 0;
    for (const auto& [key, window] : h.connection.outgoing) chunks += window.chunks.size();
    return chunks;
  };
  EXPECT_EQ(submitted(), 0u);
  uint64_t calls = 0;
  for (uint64_t before = 0; h.session.HasWork(); ++calls) {
    h.session.Work();
    EXPECT_LE(submitted() - before, kChunksOfASlice);
    before = submitted();
  }
  EXPECT_EQ(submitted(), 2 * kChunksOfASlice);
  // Each element is looked at once at least.
  EXPECT_GE(calls, h.gradient.size() / WorkBudget::kSliceElements);
}

TEST(WorkerSessionTest, WaitsForAFreeWindow) {
  SessionHarness h;
  h.JoinAndStart();
  h.connection.max_open_windows = 1;
  const std::vector<float> gradient(100, 1.0f);
  const TensorHandle a = h.DeclareTensor("a", 100, 0);
  const TensorHandle b = h.DeclareTensor("b", 100, 1);
  Outcome first, second;
  h.session.Push(a, gradient, first.Callback());
  h.session.Push(b, gradient, second.Callback());
  h.FinishEvent();
  EXPECT_EQ(h.connection.outgoing.size(), 1u);
  h.CloseGradient(0);
  ASSERT_EQ(h.connection.outgoing.size(), 2u);
  h.CloseGradient(1);
  EXPECT_TRUE(second.status.ok() && second.done());
}

TEST(WorkerSessionTest, ARoundThatWentOnWithoutUsIsNamedAndTheNextOneWorks) {
  TensorHarness h(100);
  Outcome late, next;
  h.PushPull(late);
  h.CloseGradient(0, {}, /*high_complete=*/false, wire::CloseReason::kExcluded);
  EXPECT_EQ(late.status.code(), StatusCode::kAborted);
  EXPECT_THAT(late.status.message(), HasSubstr("round 0 of tensor w went on without this worker"));
  h.SendRoundReport(4);
  h.PushPull(next);
  EXPECT_EQ(h.Metadata(h.Window(1)).round, 5u);
}

TEST(WorkerSessionTest, APushWithoutAResultEndsWhenItsRoundIsKnown) {
  for (const bool told_first : {true, false}) {
    SCOPED_TRACE(told_first);
    TensorHarness h(100);
    Outcome push;
    h.Push(push);
    told_first ? h.SendPushTaken(3) : h.CloseWindow(0);
    EXPECT_FALSE(push.done());
    told_first ? h.CloseWindow(0) : h.SendPushTaken(3);
    EXPECT_TRUE(push.done() && push.status.ok());
    EXPECT_EQ(push.stats.round, 3u);
  }
}

TEST(WorkerSessionTest, APushThatTheServerTookLateIsNotFollowedByOneOfTheSameRound) {
  TensorHarness h(100);
  Outcome first, second;
  h.Push(first);
  h.Push(second);
  h.SendRoundReport(0);  // the round was over before the push came
  h.SendPushTaken(1);
  h.CloseWindow(0);
  EXPECT_EQ(first.stats.round, 1u);
  EXPECT_EQ(h.connection.outgoing.size(), 1u) << "the second would be another of round 1";
  h.SendRoundReport(1);
  ASSERT_EQ(h.connection.outgoing.size(), 2u);
  EXPECT_EQ(h.Metadata(h.Window(1)).round, 2u);
}

TEST(WorkerSessionTest, APushTakenThatContradictsIsTheServersProtocolError) {
  for (const int what : {1, 2, 3}) {
    SCOPED_TRACE(what);
    TensorHarness h(100);
    h.SendRoundReport(4);
    Outcome push;
    what == 1 ? h.PushPull(push) : h.Push(push);
    if (what == 2) h.SendPushTaken(5);
    EXPECT_FALSE(h.session.ended());
    h.SendPushTaken(what == 3 ? 4 : 5);  // one with a result, twice, a round that was over
    EXPECT_TRUE(h.session.ended());
    EXPECT_EQ(push.status.code(), StatusCode::kProtocolViolation);
  }
}

// The CLOSE of a round that went on without the worker, after the server had begun to count it.
TEST(WorkerSessionTest, APushThatWasGivenUpBeforeItsRoundWasKnownCountsThere) {
  TensorHarness h(100);
  Outcome first, second;
  h.Push(first);
  h.CloseWindow(0, {}, false, wire::CloseReason::kExcluded);
  EXPECT_EQ(first.status.code(), StatusCode::kAborted);
  h.SendPushTaken(2);
  EXPECT_FALSE(h.session.ended());
  h.SendRoundReport(2);
  h.Push(second);
  ASSERT_EQ(h.connection.outgoing.size(), 2u);
  EXPECT_EQ(h.Metadata(h.Window(1)).round, 3u);
  EXPECT_FALSE(second.done());
}

TEST(WorkerSessionTest, PullsWhatTheServerHas) {
  TensorHarness h(500);
  Outcome pull;
  h.session.Pull(h.w, h.model, {.min_round = 3}, pull.Callback());
  h.FinishEvent();
  const control::PullRequest& request = h.connection.sent.back().pull_request();
  EXPECT_EQ(request.min_round(), 3u);
  codec::WindowMetadata metadata = h.ResultMetadata(500, 9);
  metadata.kind = codec::WindowKind::kWeights;
  metadata.request = request.request();
  ASSERT_TRUE(h.OpenResult(1, metadata, 2).ok());
  const std::vector<float> values = Ramp(500);
  SendWholeResult(h, 1, values);
  EXPECT_TRUE(pull.done() && pull.status.ok());
  EXPECT_EQ(pull.stats.round, 9u);
  EXPECT_EQ(h.model, values);
}

TEST(WorkerSessionTest, APullRefusedInTheMiddleOfItsResultTakesNoMoreChunks) {
  TensorHarness h(500);
  Outcome pull;
  h.session.Pull(h.w, h.model, {.min_round = 3}, pull.Callback());
  h.FinishEvent();
  codec::WindowMetadata metadata = h.ResultMetadata(500, 9);
  metadata.kind = codec::WindowKind::kWeights;
  metadata.request = h.connection.sent.back().pull_request().request();
  ASSERT_TRUE(h.OpenResult(1, metadata, 2).ok());
  control::ControlMessage refused;
  refused.mutable_pull_refused()->set_request(metadata.request);
  refused.mutable_pull_refused()->set_code(static_cast<uint32_t>(StatusCode::kUnavailable));
  h.Send(refused);
  EXPECT_EQ(pull.status.code(), StatusCode::kUnavailable);
  h.SendResultChunk(1, 0, Ramp(metadata.chunk_elements));
  EXPECT_EQ(h.connection.refused_chunks, 1);
  EXPECT_EQ(h.model, std::vector<float>(500, 0.0f));
  EXPECT_FALSE(h.session.ended());
}

TEST(WorkerSessionTest, RefusesAResultThatNobodyWaitsFor) {
  SessionHarness h;
  h.JoinAndStart();
  h.DeclareTensor("w", 500);
  EXPECT_EQ(h.OpenResult(1, h.ResultMetadata(500, 0), 2).code(), StatusCode::kNotFound);
  EXPECT_FALSE(h.session.ended());
}

TEST(WorkerSessionTest, AResultOfAnotherShapeIsAnErrorAndWritesNothing) {
  TensorHarness h(500);
  Outcome step;
  h.PushPull(step);
  EXPECT_FALSE(h.OpenResult(1, h.ResultMetadata(501, 0), 2).ok());
  EXPECT_EQ(step.status.code(), StatusCode::kSettingsMismatch);
  EXPECT_THAT(step.status.message(), HasSubstr("elements 501, expected 500"));
}

TEST(WorkerSessionTest, AChunkOutOfPlaceIsTheServersProtocolError) {
  TensorHarness h(500);
  Outcome step;
  h.PushPull(step);
  ASSERT_TRUE(h.OpenResult(1, h.ResultMetadata(500, 0), 2).ok());
  h.SendResultChunk(1, 7, std::vector<float>(10, 3.0f));
  EXPECT_EQ(step.status.code(), StatusCode::kProtocolViolation);
  EXPECT_EQ(h.model, std::vector<float>(500, 0.0f));
}

TEST(WorkerSessionTest, RefusesSpansOfAnotherLength) {
  TensorHarness h(500);
  const std::vector<float> gradient(499, 1.0f);
  Outcome push, undeclared;
  h.session.Push(h.w, gradient, push.Callback());
  h.session.Push(77, gradient, undeclared.Callback());
  h.FinishEvent();
  EXPECT_EQ(push.status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(push.status.message(), HasSubstr("500 elements, but the span has 499"));
  EXPECT_EQ(undeclared.status.code(), StatusCode::kFailedPrecondition);
}

TEST(WorkerSessionTest, AGradientThatIsNotFiniteIsRefusedByTensorAndChunkAndTheNextOneWorks) {
  SessionHarness h;
  h.JoinAndStart();
  const uint64_t count = 8 * kChunkElements;
  const TensorHandle w = h.DeclareTensor("layer.3", count);
  std::vector<float> gradient(count, 1.0f), broken = gradient;
  broken[2 * kChunkElements + 1] = std::nanf("");
  Outcome refused, next;
  h.session.Push(w, broken, refused.Callback());
  h.session.Push(w, gradient, next.Callback());
  h.FinishEvent();
  ASSERT_EQ(refused.calls, 1);
  EXPECT_EQ(refused.status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status.message().find("layer.3"), std::string::npos) << refused.status.message();
  EXPECT_NE(refused.status.message().find("chunk 2"), std::string::npos) << refused.status.message();
  ASSERT_EQ(h.connection.outgoing.size(), 1u) << "of the next one";
  EXPECT_EQ(h.Metadata(h.Window(0)).round, 0u) << "the refused one used up no round";
  h.SendRoundReport(0);
  h.CloseGradient(0);
  EXPECT_TRUE(next.done());
  EXPECT_TRUE(next.status.ok());
}

TEST(WorkerSessionTest, AShorterWireTypeIsWhatTravels) {
  SessionHarness h;
  h.JoinAndStart();
  const uint64_t count = 8 * kChunkElements;
  Outcome declared;
  h.session.Declare({.name = "w", .wire_dtype = DType::kInt8, .count = count, .initial = {}},
                    declared.DeclareCallback());
  h.FinishEvent();
  h.SendDeclared(h.connection.sent.back().declare().request(), 0);
  ASSERT_TRUE(declared.status.ok());
  const std::vector<float> gradient(count, 1.0f);
  Outcome pushed;
  h.session.Push(declared.handle, gradient, pushed.Callback());
  h.FinishEvent();
  EXPECT_EQ(h.Metadata(h.Window(0)).dtype, DType::kInt8);
  EXPECT_EQ(h.Metadata(h.Window(0)).chunk_elements, 4 * kChunkElements);
  EXPECT_EQ(h.Window(0).options.high_count + h.Window(0).options.low_count, 2u);
}

// The share that is declared, not the job's; and a server that takes one where nothing is remembered is
// wrong.
TEST(WorkerSessionTest, AShareOfTheElementsIsDeclaredAndTravels) {
  for (const LossPolicy policy : {LossPolicy::kResidual, LossPolicy::kZero}) {
    SessionHarness h;
    h.JoinAndStart(policy);
    const uint64_t count = 1000 * kChunkElements;
    Outcome declared;
    h.session.Declare(
        {.name = "w", .wire_dtype = DType::kInt2, .topk_share = 1.0 / 64, .count = count, .initial = {}},
        declared.DeclareCallback());
    h.FinishEvent();
    EXPECT_EQ(h.connection.sent.back().declare().topk_share(), 1.0 / 64);
    h.SendDeclared(h.connection.sent.back().declare().request(), 0);
    if (policy == LossPolicy::kZero) {
      EXPECT_EQ(declared.status.code(), StatusCode::kInvalidArgument) << declared.status.ToString();
      continue;
    }
    ASSERT_TRUE(declared.status.ok()) << declared.status.ToString();
    const std::vector<float> gradient(count, 1.0f);
    Outcome pushed;
    h.session.Push(declared.handle, gradient, pushed.Callback());
    h.FinishEvent();
    const codec::ChunkGeometry geometry =
        codec::GradientGeometry({count, kChunkElements}, {DType::kInt2, DType::kFloat32, 1.0 / 64});
    EXPECT_GT(geometry.chunk_elements, 50 * kChunkElements);
    EXPECT_EQ(h.Metadata(h.Window(0)).chunk_elements, geometry.chunk_elements);
  }
}

TEST(WorkerSessionTest, AResultTypeIsDeclaredAndAnImpossibleOneRefusedInWords) {
  std::deque<Outcome> outcomes;
  SessionHarness h;
  h.JoinAndStart();
  const auto declare = [&](DType dtype) {
    Outcome& declared = outcomes.emplace_back();
    h.session.Declare({.name = "w", .result_dtype = dtype, .count = 8, .initial = {}},
                      declared.DeclareCallback());
    h.FinishEvent();
    return declared.status;
  };
  const size_t said = h.connection.sent.size();
  const Status refused = declare(DType::kInt8);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("not as int8"), std::string::npos) << refused.message();
  EXPECT_NE(declare(DType::kInt4).message().find("not as int4"), std::string::npos);
  EXPECT_EQ(h.connection.sent.size(), said);
  EXPECT_TRUE(declare(DType::kFloat16).ok()) << "it waits for its answer";
  EXPECT_EQ(h.connection.sent.back().declare().result_dtype(), static_cast<uint32_t>(DType::kFloat16));
  EXPECT_EQ(declare(DType::kBFloat16).code(), StatusCode::kSettingsMismatch);
}

TEST(WorkerSessionTest, NamesWithControlCharactersAreRefusedHere) {
  SessionHarness h;
  h.JoinAndStart();
  const auto declared = [&](const Declaration& declaration) {
    Outcome outcome;
    h.session.Declare(declaration, outcome.DeclareCallback());
    h.FinishEvent();
    return outcome.status.ToString();
  };
  EXPECT_EQ(declared({.name = "w\n", .count = 1, .initial = {}}),
            "InvalidArgument: tensor w\\x0a: a name has no control characters");
  EXPECT_EQ(declared({.name = "w", .count = 1, .optimizer = "sgd\x1b", .initial = {}}),
            "InvalidArgument: tensor w: an optimizer is 1..256 bytes without control characters");
  EXPECT_EQ(declared({.name = "w", .count = 1, .optimizer = std::string(257, 'x'), .initial = {}}),
            "InvalidArgument: tensor w: an optimizer is 1..256 bytes without control characters");
  Outcome barrier;
  h.session.Barrier("epoch\t1", barrier.Callback());
  h.FinishEvent();
  EXPECT_EQ(barrier.status.ToString(), "InvalidArgument: a barrier's name has no control characters");
}

TEST(WorkerSessionTest, BarriersEndWhenTheServerSaysSo) {
  SessionHarness h;
  Outcome barrier;
  h.session.Barrier("epoch", barrier.Callback());
  h.JoinAndStart();
  ASSERT_EQ(h.connection.sent.back().barrier().name(), "epoch");
  EXPECT_FALSE(barrier.done());
  control::ControlMessage m;
  m.mutable_barrier_done()->set_request(h.connection.sent.back().barrier().request());
  h.Send(m);
  EXPECT_TRUE(barrier.done() && barrier.status.ok());
}

TEST(WorkerSessionTest, ReportsWhatHappenedInTheRound) {
  TensorHarness h(100);
  Outcome push;
  h.Push(push);
  control::ControlMessage m;
  m.mutable_round_report()->set_key(0);
  m.mutable_round_report()->set_round(0);
  m.mutable_round_report()->set_last_rank(3);
  m.mutable_round_report()->set_contributors(4);
  m.mutable_round_report()->set_filled_chunks(11);
  h.Send(m);
  h.CloseGradient(0);
  ASSERT_TRUE(push.stats.round_info.has_value());
  EXPECT_EQ(push.stats.round_info->last_rank, 3u);
  EXPECT_EQ(push.stats.round_info->filled_chunks, 11u);
  EXPECT_EQ(h.session.stats().round_filled_chunks, 11u);
}

// --- Ends ---

struct PendingOperations {
  explicit PendingOperations(SessionHarness& h) : gradient(100, 1.0f), out(4, std::vector<float>(100)) {
    h.JoinAndStart();
    const TensorHandle a = h.DeclareTensor("a", 100, 0);
    const TensorHandle b = h.DeclareTensor("b", 100, 1);
    h.session.Push(a, gradient, push.Callback());
    h.session.Push(a, gradient, queued.Callback());  // behind the first one
    h.session.PushPull(b, gradient, out[0], push_pull.Callback());
    h.session.Pull(b, out[1], {}, pull.Callback());
    h.session.Barrier("x", barrier.Callback());
    h.session.Declare({.name = "c", .count = 5, .initial = {}}, declare.DeclareCallback());
    h.FinishEvent();
  }
  std::vector<Outcome*> all() { return {&push, &queued, &push_pull, &pull, &barrier, &declare}; }

  std::vector<float> gradient;
  std::vector<std::vector<float>> out;
  Outcome push, queued, push_pull, pull, barrier, declare;
};

TEST(WorkerSessionTest, EveryPendingOperationEndsWhenTheServerDies) {
  SessionHarness h;
  PendingOperations pending(h);
  for (Outcome* outcome : pending.all()) EXPECT_EQ(outcome->calls, 0);
  h.Die(Status(StatusCode::kPeerDead, "silent"));
  for (Outcome* outcome : pending.all()) {
    EXPECT_EQ(outcome->calls, 1);
    EXPECT_EQ(outcome->status.ToString(), "PeerDead: server 127.0.0.1:7700 was silent for 10.0 s");
  }
  // Whatever is asked afterwards ends at once, with the same reason.
  Outcome after;
  h.session.Push(0, pending.gradient, after.Callback());
  h.FinishEvent();
  EXPECT_EQ(after.status.code(), StatusCode::kPeerDead);
}

// A server that says why it hangs up was not silent.
TEST(WorkerSessionTest, AServersOwnReasonForHangingUpIsReported) {
  SessionHarness h;
  PendingOperations pending(h);
  h.Die(Status(StatusCode::kDeadlineExceeded, "no Join within 5.0 s"));
  EXPECT_EQ(pending.push.status.ToString(), "DeadlineExceeded: no Join within 5.0 s");
}

TEST(WorkerSessionTest, EveryPendingOperationEndsWhenTheServerEndsTheJob) {
  SessionHarness h;
  PendingOperations pending(h);
  h.SendLeave(StatusCode::kAborted, "worker rank 2 (site B, 127.0.0.1:4000): PeerDead: silent for 10.0 s");
  for (Outcome* outcome : pending.all()) {
    EXPECT_EQ(outcome->calls, 1);
    EXPECT_EQ(outcome->status.code(), StatusCode::kAborted);
    EXPECT_THAT(outcome->status.message(), HasSubstr("worker rank 2 (site B, 127.0.0.1:4000)"));
  }
  EXPECT_TRUE(h.connection.closed.has_value()) << "the connection must not read borrowed memory any more";
  h.Die(Status(StatusCode::kAborted, "closed"));
  for (Outcome* outcome : pending.all()) EXPECT_EQ(outcome->calls, 1);
}

TEST(WorkerSessionTest, EveryPendingOperationEndsWhenThePeerTalksNonsense) {
  SessionHarness h;
  PendingOperations pending(h);
  const std::vector<uint8_t> nonsense(70'000, 0xff);
  h.Happens(transport::event::ControlBytes{nonsense});
  for (Outcome* outcome : pending.all()) EXPECT_EQ(outcome->status.code(), StatusCode::kProtocolViolation);
}

TEST(WorkerSessionTest, LateEventsOfAFailedSessionChangeNothing) {
  SessionHarness h;
  PendingOperations pending(h);
  ASSERT_TRUE(h.OpenResult(1, h.ResultMetadata(100, 0, 1), 1).ok());
  h.session.Fail(Status(StatusCode::kCancelled, "enough"));
  h.FinishEvent();
  h.SendResultChunk(1, 0, std::vector<float>(100, 8.0f));
  EXPECT_EQ(pending.out[0], std::vector<float>(100, 0.0f)) << "the caller has his memory back";
  h.CloseGradient(0);
  h.SendRoundReport(0);
  EXPECT_EQ(pending.push.calls, 1);
}

TEST(WorkerSessionTest, AnOrderlyLeaveWaitsForTheServersGoodbyeButNotForEver) {
  for (const bool answered : {true, false}) {
    SessionHarness h({.leave_timeout = std::chrono::seconds(2)});
    h.JoinAndStart();
    h.session.Leave(Status::Ok());
    ASSERT_TRUE(h.connection.sent.back().has_leave());
    EXPECT_EQ(h.connection.sent.back().leave().code(), 0u);
    EXPECT_EQ(h.session.state(), WorkerSession::State::kLeaving);
    if (answered) {
      h.Die(Status::Ok());
    } else {
      h.Advance(2000);
      EXPECT_TRUE(h.connection.closed && h.connection.closed->ok());
    }
    EXPECT_EQ(h.session.state(), WorkerSession::State::kLeft);
    EXPECT_TRUE(h.session.failure().ok());
  }
}

TEST(WorkerSessionTest, ControlMessagesWaitWhenTheStreamIsFull) {
  SessionHarness h;
  h.JoinAndStart();
  h.connection.refuse_control = true;
  Outcome barrier;
  h.session.Barrier("x", barrier.Callback());
  const size_t before = h.connection.sent.size();
  h.connection.refuse_control = false;
  h.Happens(transport::event::ControlWritable{});
  EXPECT_EQ(h.connection.sent.size(), before + 1);
}

TEST(WorkerSessionTest, RefusesMoreOperationsThanItsBound) {
  SessionHarness h({.max_operations = 3});
  h.JoinAndStart();
  const TensorHandle w = h.DeclareTensor("w", 100);
  const std::vector<float> gradient(100, 1.0f);
  std::vector<Outcome> pushes(4);
  for (Outcome& push : pushes) h.session.Push(w, gradient, push.Callback());
  h.FinishEvent();
  EXPECT_EQ(pushes[3].status.code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(pushes[2].done());
}

// --- What is repaid ---

TEST(WorkerSessionTest, ResidualKeepsLostChunksOnlyAndTheNextRoundRepaysThem) {
  const uint64_t count = 20 * kChunkElements;
  TensorHarness h(count, LossPolicy::kResidual);
  const std::vector<float> gradient = h.gradient = Ramp(count);
  Outcome first, second;
  h.Push(first);
  FakeConnection::Window& window = h.Window(0);
  ASSERT_GE(window.low.size(), 3u);
  const uint32_t lost = codec::ParseChunk(window.low[2].Bytes())->index;
  h.CloseGradient(0, {2});
  EXPECT_EQ(first.stats.lost_chunks, 1u);
  const std::span<const float> residual = h.session.residual(h.w);
  ASSERT_EQ(residual.size(), count);
  for (uint64_t i = 0; i < count; ++i) {
    EXPECT_EQ(residual[i], i / kChunkElements == lost ? gradient[i] : 0.0f) << "element " << i;
  }
  // The next push carries gradient + residual.
  h.SendRoundReport(0);
  h.gradient.assign(count, 1.0f);
  h.Push(second);
  std::vector<float> sent(count);
  for (const FakeConnection::Chunk& c : h.Window(1).chunks) {
    const std::vector<uint8_t> bytes = c.Bytes();
    const auto parsed = codec::ParseChunk(bytes);
    ASSERT_TRUE(parsed.ok());
    codec::DecodeChunk(*parsed,
                       std::span(sent).subspan(size_t{parsed->index} * kChunkElements, parsed->count));
  }
  for (uint64_t i = 0; i < count; ++i) {
    EXPECT_EQ(sent[i], 1.0f + (i / kChunkElements == lost ? gradient[i] : 0.0f)) << "element " << i;
  }
  h.CloseGradient(1);
  for (float r : h.session.residual(h.w)) EXPECT_EQ(r, 0.0f);
}

TEST(WorkerSessionTest, WithoutTheHighClassEverythingNotKnownDeliveredIsKept) {
  const uint64_t count = 20 * kChunkElements;
  TensorHarness h(count, LossPolicy::kResidual);
  h.gradient = Ramp(count);
  Outcome push;
  h.Push(push);
  const size_t high = h.Window(0).high.size();
  h.CloseGradient(0, {}, /*high_complete=*/false, wire::CloseReason::kHard);
  EXPECT_EQ(push.stats.lost_chunks, high);
  size_t kept = 0;
  for (float r : h.session.residual(h.w)) kept += r != 0.0f ? 1 : 0;
  EXPECT_EQ(kept, high * kChunkElements);
}

TEST(WorkerSessionTest, OtherPoliciesKeepNoResidual) {
  for (const LossPolicy policy : {LossPolicy::kZero, LossPolicy::kCount, LossPolicy::kStale}) {
    const uint64_t count = 20 * kChunkElements;
    TensorHarness h(count, policy);
    h.gradient = Ramp(count);
    Outcome push;
    h.Push(push);
    h.CloseGradient(0, {0, 1});
    EXPECT_TRUE(h.session.residual(h.w).empty());
    EXPECT_EQ(push.stats.lost_chunks, 2u);
  }
}

// --- Where staleness is not 0 ---

struct StepHarness : SessionHarness {
  StepHarness() {
    spec.staleness = 3;
    JoinAndStart();
    w = DeclareTensor("w", 100);
  }
  const control::PullRequest& LastPull() { return connection.sent.back().pull_request(); }
  TensorHandle w;
  std::vector<float> gradient = std::vector<float>(100, 1.0f);
  std::vector<float> model = std::vector<float>(100, 0.0f);
};

TEST(StepsOfAWorker, APushIsDoneWhenItHasCountedAndTheNextOneFollowsAtOnce) {
  StepHarness h;
  Outcome first, second;
  h.session.Push(h.w, h.gradient, first.Callback());
  h.session.Push(h.w, h.gradient, second.Callback());
  h.FinishEvent();
  EXPECT_EQ(h.connection.outgoing.size(), 1u);
  h.CloseWindow(0);
  EXPECT_FALSE(first.done()) << "the server has not said that it counts";
  h.SendPushTaken(4);
  ASSERT_TRUE(first.done() && first.status.ok());
  EXPECT_EQ(first.stats.round, 4u);
  ASSERT_EQ(h.connection.outgoing.size(), 2u) << "no round of others is waited for";
  EXPECT_EQ(h.Metadata(h.Window(1)).round, 5u);
}

TEST(StepsOfAWorker, AResultIsPulledAndIsAllOfThePush) {
  StepHarness h;
  Outcome step;
  h.session.PushPull(h.w, h.gradient, h.model, step.Callback());
  h.FinishEvent();
  EXPECT_FALSE(h.Metadata(h.Window(0)).wants_result);
  EXPECT_EQ(h.LastPull().own_pushes(), 1u);
  const uint32_t request = h.LastPull().request();
  codec::WindowMetadata values = h.ResultMetadata(100, 7);
  values.kind = codec::WindowKind::kWeights;
  values.request = request;
  ASSERT_TRUE(h.OpenResult(1, values, 1).ok());
  h.SendResultChunk(1, 0, std::vector<float>(100, 5.0f));
  h.CloseWindow(0);
  EXPECT_FALSE(step.done()) << "which round it counts in is not known";
  h.SendPushTaken(6);
  ASSERT_TRUE(step.done());
  EXPECT_TRUE(step.status.ok()) << step.status.ToString();
  EXPECT_EQ(h.model[0], 5.0f);
}

TEST(StepsOfAWorker, AClockIsTheServersAnswer) {
  StepHarness h;
  std::optional<Result<TensorClock>> clock;
  h.session.Clock(h.w, [&](const Result<TensorClock>& result) { clock.emplace(result); });
  h.FinishEvent();
  control::ControlMessage m;
  m.mutable_clock_reply()->set_request(h.connection.sent.back().clock_request().request());
  m.mutable_clock_reply()->set_own(3);
  m.mutable_clock_reply()->set_slowest(2);
  m.mutable_clock_reply()->set_fastest(9);
  m.mutable_clock_reply()->set_members(4);
  h.Send(m);
  ASSERT_TRUE(clock && clock->ok());
  EXPECT_EQ((*clock)->own, 3u);
  EXPECT_EQ((*clock)->slowest, 2u);
  EXPECT_EQ((*clock)->fastest, 9u);
  EXPECT_EQ((*clock)->members, 4u);
}

TEST(StepsOfAWorker, APullSaysHowStaleItMayBe) {
  StepHarness h;
  Outcome pull;
  h.session.Pull(h.w, h.model, {.max_staleness = 2}, pull.Callback());
  h.FinishEvent();
  EXPECT_TRUE(h.LastPull().has_max_staleness());
  EXPECT_EQ(h.LastPull().max_staleness(), 2u);
}

TEST(StepsOfAWorker, ATensorSaysItsOwnConsistency) {
  SessionHarness h;
  h.JoinAndStart();
  Outcome declared, refused;
  h.session.Declare({.name = "w", .staleness = -1, .quorum = 0, .count = 100}, declared.DeclareCallback());
  h.FinishEvent();
  EXPECT_EQ(h.connection.sent.back().declare().staleness(), -1);
  EXPECT_TRUE(h.connection.sent.back().declare().has_quorum());
  h.session.Declare({.name = "v", .staleness = -2, .count = 100}, refused.DeclareCallback());
  h.FinishEvent();
  EXPECT_EQ(refused.status.code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace longhaul::worker
