// How calls end that wait for workers that do not come.
#include "worker/client/deadlines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/session_harness.h"

namespace longhaul::worker {
namespace {

using control::ControlMessage;
using testing::HasSubstr;

struct Waiting : testing::Test {
  static WorkerCoreOptions Options(std::vector<std::string>* said) {
    WorkerCoreOptions options;
    options.wait_timeout = std::chrono::seconds(20);
    options.say = [said](const std::string& text) { said->push_back(text); };
    return options;
  }
  void Declare(Outcome& outcome) {
    h.session.Declare({.name = "w", .count = 10, .initial = {}}, outcome.DeclareCallback());
    h.FinishEvent();
  }
  void ServerSaysWhatWaits(const std::string& text) {
    ControlMessage m;
    m.mutable_waiting()->set_message(text);
    h.Send(m);
  }
  // Requests of the GiveUp messages since the last call.
  std::vector<uint32_t> GivenUp() {
    std::vector<uint32_t> requests;
    for (const ControlMessage& m : h.connection.TakeControl()) {
      if (m.has_give_up()) requests.push_back(m.give_up().request());
    }
    return requests;
  }
  void ExpectTooLong(const Outcome& outcome, const std::string& who) {
    ASSERT_TRUE(outcome.done());
    EXPECT_EQ(outcome.status.code(), StatusCode::kDeadlineExceeded) << outcome.status.ToString();
    EXPECT_THAT(outcome.status.message(), HasSubstr(who));
  }

  std::vector<std::string> said;
  SessionHarness h{Options(&said)};
};

TEST_F(Waiting, DeclareAndBarrierEndWhenAWorkerNeverComes) {
  h.Connect();
  h.Welcome();
  Outcome declared, barrier;
  Declare(declared);
  h.session.Barrier("epoch", barrier.Callback());
  h.Advance(19'999);
  EXPECT_TRUE(GivenUp().empty());
  h.Advance(1);
  EXPECT_EQ(GivenUp(), std::vector<uint32_t>{0}) << "for whom does the start wait?";
  EXPECT_FALSE(declared.done() || barrier.done());
  ServerSaysWhatWaits("the start of the job waits for rank 2, which has not joined (20.1 s)");
  ExpectTooLong(declared, "after 20.0 s (wait_timeout): the start of the job waits for rank 2");
  ExpectTooLong(barrier, "rank 2, which has not joined");
  EXPECT_EQ(h.session.state(), WorkerSession::State::kJoined) << "these calls have failed, not the worker";
  EXPECT_EQ(said.size(), 1u);
  // What has ended is not said to the server when the job starts after all.
  h.SendStart();
  for (const ControlMessage& m : h.connection.TakeControl()) EXPECT_FALSE(m.has_declare() || m.has_barrier());
  Outcome again;
  Declare(again);
  h.SendDeclared(h.connection.sent.back().declare().request(), 0);
  EXPECT_TRUE(again.done() && again.status.ok());
}

TEST_F(Waiting, TheStartMayComeBetweenTheQuestionAndItsAnswer) {
  h.Connect();
  h.Welcome();
  Outcome declared;
  Declare(declared);
  h.Advance(20'000);
  h.SendStart();
  ServerSaysWhatWaits("round 3 of tensor \"x\" waits for worker rank 1 (5.0 s)");
  EXPECT_FALSE(declared.done()) << "that was no answer";
  const uint32_t request = h.connection.sent.back().declare().request();
  h.connection.TakeControl();
  h.Advance(1);
  EXPECT_EQ(GivenUp(), std::vector<uint32_t>{request}) << "it has waited long enough";
  h.SendDeclared(request, 0);
  EXPECT_TRUE(declared.done() && declared.status.ok());
}

TEST_F(Waiting, WhatTheServerAnswersEndsTheCallAloneAndNamesTheMissing) {
  h.JoinAndStart();
  const TensorHandle w = h.DeclareTensor("w", 10);
  std::vector<float> out(10);
  Outcome barrier, pull, declared;
  h.session.Barrier("epoch", barrier.Callback());
  h.session.Pull(w, out, {.min_round = 1000}, pull.Callback());
  h.session.Declare({.name = "v", .count = 10, .initial = {}}, declared.DeclareCallback());
  h.FinishEvent();
  h.connection.TakeControl();
  h.Advance(20'000);
  const std::vector<uint32_t> requests = GivenUp();
  ASSERT_EQ(requests.size(), 3u);
  ControlMessage m;
  m.mutable_barrier_done()->set_request(requests[0]);
  m.mutable_barrier_done()->set_code(static_cast<uint32_t>(StatusCode::kDeadlineExceeded));
  m.mutable_barrier_done()->set_message("barrier \"epoch\" waits for rank 2");
  h.Send(m);
  ExpectTooLong(barrier, "waits for rank 2");
  EXPECT_FALSE(pull.done());
  m.mutable_pull_refused()->set_request(requests[1]);
  m.mutable_pull_refused()->set_code(static_cast<uint32_t>(StatusCode::kDeadlineExceeded));
  m.mutable_pull_refused()->set_message("round 1000 has not come");
  h.Send(m);
  ExpectTooLong(pull, "round 1000");
  m.mutable_declared()->set_request(requests[2]);
  m.mutable_declared()->set_code(static_cast<uint32_t>(StatusCode::kDeadlineExceeded));
  m.mutable_declared()->set_message("waits for worker rank 1 to declare the same");
  h.Send(m);
  ExpectTooLong(declared, "worker rank 1");
  EXPECT_EQ(h.session.state(), WorkerSession::State::kStarted);
  EXPECT_EQ(h.session.pending_operations(), 0u);
}

TEST_F(Waiting, AnswersThatComeInTimeAreNotAskedFor) {
  h.JoinAndStart();
  Outcome barrier;
  h.session.Barrier("epoch", barrier.Callback());
  h.Advance(10'000);
  ControlMessage m;
  m.mutable_barrier_done()->set_request(h.connection.sent.back().barrier().request());
  h.Send(m);
  EXPECT_TRUE(barrier.done() && barrier.status.ok());
  h.connection.TakeControl();
  h.Advance(100'000);
  EXPECT_TRUE(GivenUp().empty());
  EXPECT_EQ(h.session.state(), WorkerSession::State::kStarted);
}

TEST_F(Waiting, APushWithoutAnEndFailsTheClientWhenNothingMoves) {
  h.JoinAndStart();
  const TensorHandle w = h.DeclareTensor("w", 10);
  std::vector<float> gradient(10), out(10);
  Outcome push;
  h.session.PushPull(w, gradient, out, push.Callback());
  h.FinishEvent();
  for (int i = 0; i < 10; ++i) {  // a slow round, but it goes on
    h.connection.stats_now.chunk_bytes_received += 1000;
    h.Advance(19'000);
  }
  EXPECT_FALSE(push.done());
  ServerSaysWhatWaits("round 0 of tensor \"w\" waits for worker rank 1 (180.0 s)");
  h.Advance(39'999);
  EXPECT_FALSE(push.done());
  h.Advance(1);
  ExpectTooLong(push,
                "nothing has moved for 40.0 s, twice wait_timeout; round 0 of tensor \"w\" waits for "
                "worker rank 1");
  EXPECT_EQ(h.session.state(), WorkerSession::State::kFailed);
}

// Every push moves bytes as it begins: they may not be seen only when the time is over, and begin it again.
TEST_F(Waiting, APushWithoutAnEndFailsTheClientAfterTwiceTheLimitWhateverMovedBefore) {
  h.JoinAndStart();
  const TensorHandle w = h.DeclareTensor("w", 10);
  h.connection.stats_now.chunk_bytes_received += 5000;  // of rounds before, long ago
  h.Advance(100'000);
  std::vector<float> gradient(10), out(10);
  Outcome push;
  h.session.PushPull(w, gradient, out, push.Callback());
  h.FinishEvent();
  h.connection.stats_now.chunk_bytes_sent += 40;
  const Instant begun = h.At(h.now);
  while (!push.done() && h.now < 300'000) {  // as the loop does
    const Duration wait = h.session.NextTimeout() - h.At(h.now);
    ASSERT_GT(wait, Duration(0));
    h.Advance(std::chrono::ceil<std::chrono::milliseconds>(wait).count());
  }
  ExpectTooLong(push, "nothing has moved for 40.0 s");
  EXPECT_GE(h.At(h.now), begun + std::chrono::seconds(40));
  EXPECT_LE(h.At(h.now), begun + std::chrono::milliseconds(42'500)) << "within an eighth of the limit";
}

TEST_F(Waiting, OfThePushesBeforeNothingCountsAsMovementOfThisOne) {
  h.JoinAndStart();
  const TensorHandle w = h.DeclareTensor("w", 10);
  h.connection.stats_now.chunk_bytes_received += 5000;
  std::vector<float> gradient(10), out(10);
  Outcome push;
  h.session.PushPull(w, gradient, out, push.Callback());
  h.FinishEvent();
  h.Advance(40'000);  // one look, at the end
  ExpectTooLong(push, "nothing has moved for 40.0 s");
}

TEST_F(Waiting, ANoticeOfTheServerIsSaid) {
  h.Connect();
  ControlMessage m;
  wire::EncodeJobSpec(JobSpec(), m.mutable_welcome()->mutable_job_spec());
  m.mutable_welcome()->set_notice("the last job of this server has finished");
  h.Send(m);
  EXPECT_EQ(said, std::vector<std::string>{"the last job of this server has finished"});
}

TEST(WaitingForEver, IsWhatZeroMeans) {
  SessionHarness h{WorkerCoreOptions{}};
  h.JoinAndStart();
  Outcome barrier;
  h.session.Barrier("epoch", barrier.Callback());
  h.Advance(100'000'000);
  EXPECT_FALSE(barrier.done());
  EXPECT_EQ(h.session.state(), WorkerSession::State::kStarted);
}

}  // namespace
}  // namespace longhaul::worker
