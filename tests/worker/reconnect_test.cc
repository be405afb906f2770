// A session whose server is lost and comes back: what was pending ends once, by what the server has kept.
#include <gmock/gmock.h>

#include "tests/worker/session_harness.h"

namespace longhaul::worker {
namespace {

using control::ControlMessage;
using testing::Each;
using testing::HasSubstr;

constexpr uint64_t kCount = 1000;  // three chunks

struct LostServer : SessionHarness {
  static WorkerCoreOptions Options() {
    WorkerCoreOptions options;
    options.reconnect_timeout = std::chrono::seconds(30);
    options.session = 99;
    return options;
  }
  explicit LostServer(WorkerCoreOptions options = Options(), LossPolicy policy = LossPolicy::kResidual)
      : SessionHarness(std::move(options)), policy_(policy) {
    JoinAndStart(policy);
    w = DeclareTensor("w", kCount);
  }
  void PushPull() {
    session.PushPull(w, gradient, model, push.Callback());
    FinishEvent();
  }
  void Push() {
    session.Push(w, gradient, push.Callback());
    FinishEvent();
  }
  void Lose(StatusCode code = StatusCode::kPeerDead) {
    Die(Status(code, "it was silent"));
    connection.outgoing.clear();
    connection.sent.clear();
  }
  // The server is there again, and the job has started.
  void ComeBack() {
    Advance(1000);
    ASSERT_TRUE(session.WantsConnection());
    session.Reopen(&connection);
    JoinAndStart(policy_);
  }
  control::Declared Answer(uint64_t next_round, uint32_t key = 0) const {
    control::Declared d;
    d.set_request(connection.sent.back().declare().request());
    d.set_key(key);
    d.set_next_round(next_round);
    d.set_has_values(true);
    return d;
  }
  void SendAnswer(const control::Declared& declared) {
    ControlMessage m;
    *m.mutable_declared() = declared;
    Send(m);
  }
  void SendResult(const codec::WindowMetadata& metadata) {
    const uint32_t elements = codec::ChunkElementsFor(kSymbolBytes);
    ASSERT_TRUE(OpenResult(7, metadata, 3).ok());
    const std::vector<float> values(kCount, 5);
    for (uint32_t c = 0; c < 3; ++c) {
      const uint64_t first = uint64_t{c} * elements;
      SendResultChunk(7, c, std::span(values).subspan(first, std::min<uint64_t>(elements, kCount - first)));
    }
  }

  // The worker asks for this version, or a later one, and has it.
  void AnswerPull(uint64_t version) {
    ASSERT_TRUE(connection.sent.back().has_pull_request());
    const control::PullRequest pull = connection.sent.back().pull_request();
    EXPECT_EQ(pull.min_round(), version);
    auto metadata = ResultMetadata(kCount, version);
    metadata.kind = codec::WindowKind::kWeights;
    metadata.request = pull.request();
    SendResult(metadata);
  }

  LossPolicy policy_;
  TensorHandle w = 0;
  Outcome push;
  std::vector<float> gradient = std::vector<float>(kCount, 1), model = std::vector<float>(kCount, 0);
};

TEST(Reconnect, APushThatDidNotCountIsSentAgainAsItWas) {
  LostServer h;
  h.PushPull();
  const auto before = h.Window(0).options;
  h.Lose();
  EXPECT_FALSE(h.push.done());
  EXPECT_EQ(h.session.state(), WorkerSession::State::kReconnecting);
  h.ComeBack();
  EXPECT_TRUE(h.connection.outgoing.empty()) << "not before the server knows the tensor";
  ASSERT_TRUE(h.connection.sent.back().has_declare());
  h.SendAnswer(h.Answer(0, 4));
  ASSERT_EQ(h.connection.outgoing.size(), 1u);
  EXPECT_EQ(h.Window(0).options.high_count, before.high_count);
  EXPECT_EQ(h.Window(0).chunks.size(), 3u);
  EXPECT_EQ(h.Metadata(h.Window(0)).key, 4u) << "by the server's new name for it";
  EXPECT_EQ(h.Metadata(h.Window(0)).round, 0u);
  h.CloseGradient(0);
  h.SendResult(h.ResultMetadata(kCount, 0, 4));
  EXPECT_EQ(h.push.calls, 1);
  EXPECT_TRUE(h.push.status.ok()) << h.push.status.ToString();
  EXPECT_THAT(h.model, Each(5));
  EXPECT_THAT(h.session.residual(h.w), Each(0));
  EXPECT_EQ(h.session.stats().reconnections, 1u);
}

// The receipt is here, the result is not: the server that gave the receipt may have kept nothing.
TEST(Reconnect, SoIsOneWhoseWindowWasClosed) {
  LostServer h;
  h.PushPull();
  h.CloseGradient(0);
  h.Lose();
  h.ComeBack();
  h.SendAnswer(h.Answer(0));
  ASSERT_EQ(h.connection.outgoing.size(), 1u);
  EXPECT_EQ(h.Window(0).chunks.size(), 3u);
  h.CloseGradient(0);
  h.SendResult(h.ResultMetadata(kCount, 0));
  EXPECT_TRUE(h.push.status.ok());
  EXPECT_EQ(h.push.calls, 1);
  EXPECT_THAT(h.session.residual(h.w), Each(0));
}

TEST(Reconnect, APushThatCountedIsNotSentAgainAndItsResultIsPulled) {
  LostServer h;
  h.session.Declare({.name = "p", .count = kCount, .optimizer = "sgd:lr=1", .initial = {}},
                    [](const auto&) {});
  h.FinishEvent();
  h.SendDeclared(h.connection.sent.back().declare().request(), 1);
  h.PushPull();
  h.Lose(StatusCode::kUnavailable);
  h.ComeBack();
  auto first = h.connection.sent[h.connection.sent.size() - 2].declare();
  control::Declared answer = h.Answer(1);
  answer.set_request(first.request());
  answer.set_has_counted(true);
  answer.set_counted_round(0);
  answer.set_counted_chunks(std::string(1, 5));  // not the second
  h.SendAnswer(answer);
  EXPECT_TRUE(h.connection.outgoing.empty());
  EXPECT_FALSE(h.push.done());
  h.AnswerPull(1);
  EXPECT_EQ(h.push.calls, 1);
  EXPECT_TRUE(h.push.status.ok()) << h.push.status.ToString();
  EXPECT_EQ(h.push.stats.chunks_sent, 2u) << "which its dead server had not closed";
  EXPECT_THAT(h.model, Each(5));
  const uint32_t elements = codec::ChunkElementsFor(h.kSymbolBytes);
  EXPECT_EQ(h.session.residual(h.w)[0], 0);
  EXPECT_EQ(h.session.residual(h.w)[elements], 1) << "what did not count is owed";
  EXPECT_EQ(h.session.residual(h.w)[2 * elements], 0);
}

// The others have gone on meanwhile: the values are of a later round than the one in which it counted.
TEST(Reconnect, WhereAPushCountedIsToldApartFromItsResult) {
  LostServer h;
  h.PushPull();
  h.Lose();
  h.ComeBack();
  control::Declared answer = h.Answer(3);
  answer.set_has_counted(true);
  answer.set_counted_round(2);
  h.SendAnswer(answer);
  ASSERT_TRUE(h.connection.sent.back().has_pull_request());
  auto metadata = h.ResultMetadata(kCount, 5);
  metadata.kind = codec::WindowKind::kWeights;
  metadata.request = h.connection.sent.back().pull_request().request();
  h.SendResult(metadata);
  EXPECT_TRUE(h.push.status.ok()) << h.push.status.ToString();
  EXPECT_EQ(h.push.stats.pushed_round, 2u);
  EXPECT_EQ(h.push.stats.round, 4u);
}

// It would count a round later here than elsewhere (worker/client/round_alignment.h).
TEST(Reconnect, APushWhoseRoundIsOverIsPassedOverAndOwed) {
  LostServer h;
  h.PushPull();
  h.Lose();
  h.ComeBack();
  h.SendAnswer(h.Answer(1));
  EXPECT_TRUE(h.connection.outgoing.empty());
  h.AnswerPull(1);
  EXPECT_EQ(h.push.calls, 1);
  EXPECT_TRUE(h.push.status.ok()) << h.push.status.ToString();
  EXPECT_EQ(h.push.stats.lost_chunks, 3u);
  EXPECT_EQ(h.push.stats.round, 0u) << "of the values";
  EXPECT_THAT(h.model, Each(5));
  EXPECT_THAT(h.session.residual(h.w), Each(1));
  EXPECT_EQ(h.session.stats().pushes_passed_over, 1u);
  Outcome next;
  h.session.Push(h.w, h.gradient, next.Callback());
  h.FinishEvent();
  EXPECT_EQ(h.Metadata(h.Window(0)).round, 1u);
}

// The dead server had closed the window, and kept nothing of it.
TEST(Reconnect, NothingIsSentOfAPushThatIsPassedOver) {
  LostServer h;
  h.PushPull();
  h.CloseGradient(0);
  h.Lose();
  h.ComeBack();
  h.SendAnswer(h.Answer(1));
  EXPECT_TRUE(h.connection.outgoing.empty());
  h.AnswerPull(1);
  EXPECT_TRUE(h.push.status.ok()) << h.push.status.ToString();
  EXPECT_EQ(h.push.stats.chunks_sent, 0u);
  EXPECT_EQ(h.push.stats.lost_chunks, 3u);
  EXPECT_THAT(h.session.residual(h.w), Each(1));
}

TEST(Reconnect, APushThatIsPassedOverEndsByNameWhereItsResultIsGone) {
  LostServer h;
  h.PushPull();
  h.Lose();
  h.ComeBack();
  h.SendAnswer(h.Answer(2));
  EXPECT_TRUE(h.connection.outgoing.empty());
  EXPECT_EQ(h.push.status.code(), StatusCode::kAborted);
  EXPECT_THAT(h.push.status.message(), HasSubstr("round 0 of tensor w is over"));
  EXPECT_THAT(h.session.residual(h.w), Each(1));
}

// The answer to a declaration may wait for the end of a round.
TEST(Reconnect, ATensorThatTheServerDoesNotKnowYetHoldsUpNoOther) {
  LostServer h;
  h.session.Declare({.name = "p", .count = kCount, .initial = {}}, [](const auto&) {});
  h.FinishEvent();
  h.SendDeclared(h.connection.sent.back().declare().request(), 1);
  Outcome other;
  h.Push();
  h.session.Push(h.w + 1, h.gradient, other.Callback());
  h.FinishEvent();
  h.Lose();
  h.ComeBack();
  h.SendAnswer(h.Answer(0, 1));  // of p
  ASSERT_EQ(h.connection.outgoing.size(), 1u);
  EXPECT_EQ(h.Metadata(h.Window(0)).key, 1u);
}

// The one before has counted in a later round than its own: the round that this one would be for.
TEST(Reconnect, APushThatIsToBePassedOverIsNotTakenForTheOneBefore) {
  LostServer h;
  h.session.Declare({.name = "p", .count = kCount, .initial = {}}, [](const auto&) {});
  h.FinishEvent();
  h.SendDeclared(h.connection.sent.back().declare().request(), 1);
  h.Push();
  h.SendPushTaken(1);
  h.CloseWindow(0);
  h.SendRoundReport(1);
  ASSERT_TRUE(h.push.done());
  h.connection.max_open_windows = 0;
  Outcome waits, passed;
  h.session.Push(h.w + 1, h.gradient, waits.Callback());
  h.session.Push(h.w, h.gradient, passed.Callback());
  h.FinishEvent();
  h.Lose();
  h.ComeBack();
  h.connection.max_open_windows = 16;
  const auto first = h.connection.sent[h.connection.sent.size() - 2].declare();
  control::Declared other = h.Answer(0, 1);
  control::Declared answer = h.Answer(2);
  answer.set_request(first.request());
  answer.set_has_counted(true);
  answer.set_counted_round(1);
  h.SendAnswer(answer);
  h.SendAnswer(other);
  EXPECT_EQ(passed.calls, 1);
  EXPECT_EQ(passed.stats.lost_chunks, 3u);
  EXPECT_THAT(h.session.residual(h.w), Each(1));
}

// Rounds that close without all have a place for it.
TEST(Reconnect, APushOfARoundWithAQuorumComesLate) {
  LostServer h;
  h.session.Declare({.name = "q", .quorum = 1, .count = kCount, .initial = {}}, [](const auto&) {});
  h.FinishEvent();
  h.SendDeclared(h.connection.sent.back().declare().request(), 1);
  h.session.Push(h.w + 1, h.gradient, h.push.Callback());
  h.FinishEvent();
  h.Lose();
  h.ComeBack();
  h.SendAnswer(h.Answer(4, 1));
  ASSERT_EQ(h.connection.outgoing.size(), 1u);
  EXPECT_EQ(h.Metadata(h.Window(0)).round, 0u);
}

TEST(Reconnect, APushWithoutAResultThatCountedIsOver) {
  LostServer h;
  h.Push();
  h.CloseWindow(0);
  EXPECT_FALSE(h.push.done());
  h.Lose();
  h.ComeBack();
  control::Declared answer = h.Answer(1);
  answer.set_has_counted(true);
  h.SendAnswer(answer);
  EXPECT_TRUE(h.push.status.ok());
  EXPECT_EQ(h.push.calls, 1);
  EXPECT_TRUE(h.connection.outgoing.empty());
  EXPECT_THAT(h.session.residual(h.w), Each(0));
  Outcome next;
  h.session.Push(h.w, h.gradient, next.Callback());
  h.FinishEvent();
  EXPECT_EQ(h.Metadata(h.Window(0)).round, 1u);
}

TEST(Reconnect, AServerThatHasLostRoundsIsRefusedByName) {
  LostServer h;
  h.SendRoundReport(0);
  h.SendRoundReport(1);
  h.Lose();
  h.ComeBack();
  h.SendAnswer(h.Answer(1));
  EXPECT_EQ(h.session.failure().code(), StatusCode::kDataLoss);
  EXPECT_THAT(h.session.failure().message(), HasSubstr("in round 1 of tensor w"));
}

// This worker has let go of them.
TEST(Reconnect, AServerThatHasLostTheInitialValuesIsRefusedByName) {
  LostServer h;
  Outcome declared;
  const std::vector<float> values(kCount, 3);
  h.session.Declare({.name = "p", .count = kCount, .optimizer = "sgd:lr=1", .initial = values},
                    [&](const auto& handle) { declared.Callback()(handle.status(), {}); });
  h.FinishEvent();
  h.SendDeclared(h.connection.sent.back().declare().request(), 1, 0, /*send_initial=*/true);
  h.CloseGradient(0);
  ASSERT_EQ(declared.calls, 1);
  ASSERT_TRUE(declared.status.ok());
  h.Lose();
  h.ComeBack();
  control::Declared answer = h.Answer(0, 1);
  answer.set_has_values(false);
  h.SendAnswer(answer);
  EXPECT_EQ(h.session.failure().code(), StatusCode::kDataLoss);
  EXPECT_THAT(h.session.failure().message(), HasSubstr("has lost the initial values of tensor p"));
}

// What has answered looks for the path's MTU, for three seconds at most; what has not is tried anew.
TEST(Reconnect, AnAttemptThatWasAnsweredIsNotGivenUp) {
  for (const bool answered : {false, true}) {
    LostServer h;
    h.Lose();
    h.Advance(1000);
    h.connection.closed.reset();
    h.connection.state_now =
        answered ? transport::Connection::State::kConnected : transport::Connection::State::kConnecting;
    h.session.Reopen(&h.connection);
    h.Advance(4000);
    EXPECT_EQ(h.connection.closed.has_value(), !answered);
  }
}

// Which server of them welcomes it does not matter to a worker that none has welcomed yet.
TEST(Reconnect, AServerThatIsLostBeforeItLetsTheWorkerInIsTriedAgain) {
  for (const bool welcomed : {false, true}) {
    SessionHarness h(LostServer::Options());
    h.Connect();
    if (welcomed) h.Welcome();
    h.Die(Status(StatusCode::kUnavailable, "it was restarted"));
    EXPECT_EQ(h.session.state(), WorkerSession::State::kReconnecting);
    h.Advance(1000);
    ASSERT_TRUE(h.session.WantsConnection());
    h.session.Reopen(&h.connection);
    h.JoinAndStart();
    EXPECT_EQ(h.session.state(), WorkerSession::State::kStarted);
    EXPECT_EQ(h.session.stats().reconnections, 1u);
  }
}

TEST(Reconnect, AnsweredOnceAWorkerIsInInTimeOrFailsByName) {
  SessionHarness h(LostServer::Options());
  h.Connect();
  h.Die(Status(StatusCode::kUnavailable, "it was restarted"));
  h.Advance(10'000);
  EXPECT_EQ(h.session.state(), WorkerSession::State::kFailed);
  EXPECT_EQ(h.session.failure().code(), StatusCode::kUnavailable);
}

TEST(Reconnect, AServerOfAnotherJobIsRefusedByName) {
  LostServer h;
  h.PushPull();
  h.Lose();
  h.Advance(1000);
  h.session.Reopen(&h.connection);
  h.Connect();
  ControlMessage m;
  wire::EncodeJobSpec(h.spec, m.mutable_welcome()->mutable_job_spec());
  m.mutable_welcome()->set_job_number(8);
  h.Send(m);
  EXPECT_EQ(h.session.state(), WorkerSession::State::kFailed);
  EXPECT_THAT(h.push.status.message(), HasSubstr("has another job now"));
}

// What has been started again says so, and is there.
TEST(Reconnect, TheFirstAttemptIsMadeAtOnceAndOthersALittleLater) {
  LostServer h;
  h.PushPull();
  h.Lose(StatusCode::kUnavailable);
  ASSERT_TRUE(h.session.WantsConnection());
  h.session.Reopen(&h.connection);
  EXPECT_FALSE(h.session.WantsConnection());
  h.Lose(StatusCode::kUnavailable);
  EXPECT_FALSE(h.session.WantsConnection());
  h.Advance(249);
  EXPECT_FALSE(h.session.WantsConnection());
  h.Advance(1);
  EXPECT_TRUE(h.session.WantsConnection());
}

TEST(Reconnect, AnAttemptAtAnAddressThatIsNotTheServersAnyMoreEnds) {
  LostServer h;
  h.session.OnServerMoved();
  h.Advance(0);
  EXPECT_FALSE(h.connection.closed) << "it is connected";
  h.Lose();
  h.session.OnServerMoved();
  h.connection.state_now = transport::Connection::State::kConnecting;
  h.session.Reopen(&h.connection);
  h.Advance(2'999);
  EXPECT_FALSE(h.connection.closed);
  h.session.OnServerMoved();
  h.Advance(0);
  ASSERT_TRUE(h.connection.closed);
  EXPECT_EQ(h.connection.closed->code(), StatusCode::kUnavailable);
}

// Else a server that died after a push had arrived, and is back, would be found by the next keepalive.
TEST(Reconnect, WhileTheCallerWaitsTheServerIsAskedForASignOfLifeFourTimesASecond) {
  LostServer h;
  EXPECT_EQ(h.connection.keepalive, std::chrono::seconds(2));
  h.PushPull();
  EXPECT_EQ(h.connection.keepalive, std::chrono::milliseconds(250));
  h.CloseGradient(0);
  EXPECT_EQ(h.connection.keepalive, std::chrono::milliseconds(250)) << "the result is not here";
  h.SendResult(h.ResultMetadata(kCount, 0));
  EXPECT_EQ(h.connection.keepalive, std::chrono::seconds(2));
}

TEST(Reconnect, TheWaitEndsByName) {
  LostServer h;
  h.PushPull();
  h.Lose();
  h.Advance(29'000);
  EXPECT_FALSE(h.push.done());
  h.Advance(1'000);
  EXPECT_EQ(h.push.status.code(), StatusCode::kPeerDead);
  EXPECT_THAT(h.push.status.message(), HasSubstr("has not come back within 30.0 s"));
  EXPECT_EQ(h.push.calls, 1);
}

TEST(Reconnect, WithoutTheOptionALostServerIsTheEnd) {
  WorkerCoreOptions options;
  LostServer h(options);
  h.PushPull();
  h.Lose();
  EXPECT_EQ(h.push.status.code(), StatusCode::kPeerDead);
}

TEST(Reconnect, RequestsAreTakenMeanwhileAndBarriersAndPullsAreSentAgain) {
  LostServer h;
  Outcome barrier, pull;
  h.session.Barrier("b", barrier.Callback());
  h.session.Pull(h.w, h.model, {.min_round = 3}, pull.Callback());
  h.FinishEvent();
  h.Lose();
  h.PushPull();
  EXPECT_FALSE(h.push.done()) << h.push.status.ToString();
  h.ComeBack();
  h.SendAnswer([&] {
    auto answer = h.Answer(2);
    for (const auto& message : h.connection.sent) {
      if (message.has_declare()) answer.set_request(message.declare().request());
    }
    return answer;
  }());
  int barriers = 0, pulls = 0;
  for (const auto& message : h.connection.sent) {
    barriers += message.has_barrier() && message.barrier().name() == "b" ? 1 : 0;
    pulls += message.has_pull_request() && message.pull_request().min_round() == 3 ? 1 : 0;
  }
  EXPECT_EQ(barriers, 1);
  EXPECT_EQ(pulls, 1);
  ASSERT_EQ(h.connection.outgoing.size(), 1u);
  EXPECT_EQ(h.Metadata(h.Window(0)).round, 2u);
}

// Both begin from zero: what was encoded with the old shift is encoded again.
TEST(Reconnect, ShiftsBeginAnewWithTheServers) {
  LostServer h(LostServer::Options(), LossPolicy::kShift);
  h.PushPull();
  const auto first = h.Window(0).chunks.at(0).Bytes();
  h.CloseGradient(0);
  h.SendResult(h.ResultMetadata(kCount, 0));
  ASSERT_TRUE(h.push.done());
  h.push = {};
  h.PushPull();
  ASSERT_EQ(h.connection.outgoing.size(), 2u);
  EXPECT_NE(h.Window(1).chunks.at(0).Bytes(), first) << "less the shift";
  h.Lose();
  h.ComeBack();
  h.SendAnswer(h.Answer(1));
  ASSERT_EQ(h.connection.outgoing.size(), 1u);
  EXPECT_EQ(h.Window(0).chunks.at(0).Bytes(), first);
  EXPECT_EQ(h.Metadata(h.Window(0)).shift_epoch, 0u);
}

// The server, which was started again, has no memory of this worker's, and says so by another epoch.
TEST(Reconnect, ShiftsBeginAnewAlsoWhenThePushHadCounted) {
  LostServer h(LostServer::Options(), LossPolicy::kShift);
  h.Push();
  const auto first = h.Window(0).chunks.at(0).Bytes();
  h.CloseWindow(0);
  h.Lose();
  h.ComeBack();
  control::Declared answer = h.Answer(1);
  answer.set_has_counted(true);
  answer.set_shift_epoch(1);
  h.SendAnswer(answer);
  ASSERT_TRUE(h.push.status.ok());
  Outcome next;
  h.session.Push(h.w, h.gradient, next.Callback());
  h.FinishEvent();
  ASSERT_EQ(h.connection.outgoing.size(), 1u);
  EXPECT_EQ(h.Metadata(h.Window(0)).shift_epoch, 1u);
  EXPECT_EQ(h.Window(0).chunks.at(0).Bytes(), first);
}

}  // namespace
}  // namespace longhaul::worker
