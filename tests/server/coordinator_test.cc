// Who is in the job, when it starts and how it ends.
#include "server/job/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "tests/server/fake_worker.h"

namespace longhaul::server {
namespace {

using control::ControlMessage;
using testing::HasSubstr;

struct TwoWorkers : testing::Test {
  explicit TwoWorkers(uint32_t min_workers = 2)
      : coordinator(Settings(min_workers), &events, [](const ServerStats& stats) {
          return "{\"joined\":" + std::to_string(stats.joined) + "}";
        }) {
    coordinator.SetNow(At(0));
  }
  static ServerSettings Settings(uint32_t min_workers) {
    ServerSettings settings;
    settings.world_size = 2;
    settings.min_workers = min_workers;
    return settings;
  }
  void Start() {
    a.Join(2);
    b.Join(2);
    a.connection.TakeControl();
    b.connection.TakeControl();
  }
  void Tick(int64_t ms) {
    coordinator.SetNow(At(ms));
    coordinator.HandleTimeout();
    coordinator.AfterEvent();
  }

  Recorder events;
  Coordinator coordinator;
  FakeWorker a{coordinator, 0};
  FakeWorker b{coordinator, 1};
};

// The time begins when the search for the path's MTU is over, which has ten seconds of its own.
TEST_F(TwoWorkers, AConnectionWithoutAJoinIsClosedInTime) {
  a.Happens(transport::event::Accepted{});
  b.Happens(transport::event::Accepted{});
  Tick(6000);
  a.Happens(transport::event::Connected{});
  Tick(9999);
  EXPECT_FALSE(a.connection.closed || b.connection.closed);
  Tick(10'500);
  ASSERT_TRUE(b.connection.closed);
  EXPECT_EQ(b.connection.closed->ToString(), "DeadlineExceeded: no Join within 10 s");
  EXPECT_FALSE(a.connection.closed);
  Tick(11'500);
  ASSERT_TRUE(a.connection.closed);
  EXPECT_EQ(a.connection.closed->ToString(), "DeadlineExceeded: no Join within 5 s");
}

TEST_F(TwoWorkers, EveryoneIsWelcomedAtOnceAndStartedWhenAllAreIn) {
  a.connection.max_chunk_bytes = 1392;
  b.connection.max_chunk_bytes = 1136;
  a.Join(2);
  const auto first = a.connection.TakeControl();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(*wire::DecodeJobSpec(first[0].welcome().job_spec()), JobSpec());
  b.Join(2);
  const auto start = a.Heard(ControlMessage::kStart);
  ASSERT_EQ(start.size(), 1u);
  EXPECT_EQ(start[0].start().symbol_bytes(), 1136u) << "what every path carries";
  EXPECT_EQ(b.Heard(ControlMessage::kStart).size(), 1u);
  EXPECT_EQ(events.starts, 1);
}

TEST_F(TwoWorkers, ASecondWorkerOfARankIsRefusedByNameWhenTheFirstAnswers) {
  a.Join(2);
  Tick(100);
  FakeWorker twin(coordinator, 0, 40100);
  coordinator.SetNow(At(1000));
  twin.Join(2, std::nullopt);
  EXPECT_TRUE(twin.connection.sent.empty()) << "the first is asked";
  ++a.connection.stats_now.packets_received;
  Tick(1100);  // that had been on its way
  EXPECT_EQ(a.connection.probes, 1);
  EXPECT_TRUE(twin.connection.sent.empty());
  ++a.connection.stats_now.packets_received;
  Tick(1200);
  const auto refused = twin.Heard(ControlMessage::kRefused);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_THAT(
      refused[0].refused().message(),
      HasSubstr("rank 0 is taken by 127.0.0.1:40000 (incarnation 0), which lives: it answered within 0.2 s"));
  EXPECT_EQ(refused[0].refused().code(), static_cast<uint32_t>(StatusCode::kAlreadyExists));
  EXPECT_FALSE(twin.connection.closed) << "it gets a moment to read why";
  Tick(1900);
  ASSERT_TRUE(twin.connection.closed);
  EXPECT_EQ(twin.connection.closed->code(), StatusCode::kAlreadyExists);
  EXPECT_FALSE(a.connection.closed);
  twin.Die(*twin.connection.closed);
  b.Join(2);
  EXPECT_EQ(events.starts, 1) << "the others are served on";
}

// The first question is decided when the second has hardly been asked: what comes from the second's holder
// then had been on its way.
TEST_F(TwoWorkers, EachOfTwoQuestionsHasItsOwnTimeInWhichNothingCounts) {
  Start();
  FakeWorker first(coordinator, 0, 40100), second(coordinator, 1, 40101);
  coordinator.SetNow(At(1000));
  first.Join(2, std::nullopt);
  coordinator.SetNow(At(1090));
  second.Join(2, std::nullopt);
  Tick(1100);  // the first is listened for, the second not yet
  ++b.connection.stats_now.packets_received;
  for (int64_t now = 1110; now < 3000; now += 10) Tick(now);
  EXPECT_TRUE(b.connection.closed) << "it is silent but for that";
  const auto messages = second.connection.TakeControl();
  ASSERT_FALSE(messages.empty());
  EXPECT_TRUE(messages[0].has_welcome());
}

TEST_F(TwoWorkers, ARestartedWorkerReplacesASilentOneWithinTwoSeconds) {
  Start();
  FakeWorker again(coordinator, 0, 40100);
  coordinator.SetNow(At(1000));
  again.Join(2, std::nullopt);
  Tick(1000);
  EXPECT_EQ(coordinator.NextTimeout(), At(1100));
  int64_t now = 1000;
  while (!a.connection.closed && now < 10'000) Tick(now += 50);
  EXPECT_LE(now, 1000 + 100 + 1000 + 4 * 30 + 100);
  EXPECT_GE(now, 2000) << "a live one has a second to answer";
  EXPECT_GE(a.connection.probes, 9) << "and is asked more than once";
  EXPECT_EQ(a.connection.closed->ToString(), "Aborted: replaced by incarnation 1");
  const auto messages = again.connection.TakeControl();
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_TRUE(messages[0].has_welcome());
  EXPECT_TRUE(messages[1].has_start()) << "the job is running";
  a.Die(*a.connection.closed);
  EXPECT_TRUE(events.over.empty());
  EXPECT_TRUE(events.refused.empty());
}

// Its answer takes a round trip, and a packet that is lost more: a second alone would take it for silent.
TEST_F(TwoWorkers, AHolderThatIsFarAwayHasFourRoundTripsMoreToAnswer) {
  Start();
  a.connection.stats_now.smoothed_rtt = std::chrono::milliseconds(200);
  FakeWorker again(coordinator, 0, 40100);
  coordinator.SetNow(At(1000));
  again.Join(2, std::nullopt);
  int64_t now = 1000;
  while (now < 1000 + 200 + 1000 + 700) Tick(now += 50);
  EXPECT_FALSE(a.connection.closed);
  EXPECT_TRUE(again.connection.sent.empty()) << "no verdict yet";
  ++a.connection.stats_now.packets_received;
  Tick(now += 100);
  EXPECT_FALSE(a.connection.closed) << "it lives";
  EXPECT_EQ(again.Heard(ControlMessage::kRefused).size(), 1u);
}

// Else the job, which needs both, would be aborted while the successor is at the door.
TEST_F(TwoWorkers, ANewcomerTakesOverAtOnceFromOneThatIsLostMeanwhile) {
  Start();
  FakeWorker again(coordinator, 0, 40100);
  again.Join(2, std::nullopt);
  a.Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  EXPECT_TRUE(again.connection.TakeControl().at(0).has_welcome());
  EXPECT_TRUE(events.over.empty());
  for (int64_t now = 0; now < 3000; now += 50) Tick(now);
  EXPECT_FALSE(again.connection.closed);
}

// Two are started for one rank, its holder is dead: one of them is in, the other meets a worker that lives.
TEST_F(TwoWorkers, OfTwoNewcomersOneIsIn) {
  Start();
  FakeWorker first(coordinator, 0, 40100), second(coordinator, 0, 40101);
  first.Join(2, std::nullopt);
  second.Join(2, std::nullopt);
  for (int64_t now = 0; now < 1400; now += 50) Tick(now);
  EXPECT_TRUE(first.connection.TakeControl().at(0).has_welcome());
  EXPECT_TRUE(second.connection.sent.empty());
  ++first.connection.stats_now.packets_received;
  for (int64_t now = 1400; now < 1600; now += 50) Tick(now);
  ++first.connection.stats_now.packets_received;
  for (int64_t now = 1600; now < 1800; now += 50) Tick(now);
  EXPECT_EQ(second.Heard(ControlMessage::kRefused).size(), 1u);
}

TEST_F(TwoWorkers, ANewcomerThatGoesAwayIsForgotten) {
  Start();
  {
    FakeWorker again(coordinator, 0, 40100);
    again.Join(2, std::nullopt);
    again.Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  }
  for (int64_t now = 0; now < 3000; now += 50) Tick(now);
  EXPECT_FALSE(a.connection.closed);
}

TEST_F(TwoWorkers, WhoWaitsForARankMayNotAskAgain) {
  Start();
  FakeWorker again(coordinator, 0, 40100);
  again.Join(2, std::nullopt);
  again.SayJoin(2, std::nullopt);
  ASSERT_TRUE(again.connection.closed);
  EXPECT_EQ(again.connection.closed->message(), "a second Join");
}

TEST_F(TwoWorkers, AnotherJobOrWorldSizeIsRefusedWithBothValuesPrinted) {
  a.Join(2, 0, "resnet");
  b.Join(8);
  EXPECT_THAT(a.Heard(ControlMessage::kRefused).at(0).refused().message(),
              HasSubstr("job is \"resnet\", the server's is \"default\""));
  EXPECT_THAT(b.Heard(ControlMessage::kRefused).at(0).refused().message(),
              HasSubstr("world size is 8, the server's is 2"));
  EXPECT_EQ(events.refused.size(), 2u);
}

// A name is shown in logs, progress and statuses: one that commands a terminal or forges a line has no place
// there.
TEST_F(TwoWorkers, AJoinWhoseNameHasControlCharactersIsRefusedWithTheReason) {
  a.Connect();
  ControlMessage join;
  join.mutable_join()->set_job("default");
  join.mutable_join()->set_world_size(2);
  join.mutable_join()->set_weight(1);
  join.mutable_join()->set_site("fra\nworker rank 1 left");
  std::string text = join.SerializeAsString();
  text.insert(text.begin(), static_cast<char>(text.size()));
  a.Happens(
      transport::event::ControlBytes{ByteSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size())});
  ASSERT_TRUE(a.connection.closed);
  EXPECT_EQ(a.connection.closed->ToString(), "ProtocolViolation: join.site has control characters");
  EXPECT_EQ(events.refused, std::vector<std::string>{a.connection.closed->ToString()});
}

TEST_F(TwoWorkers, AHigherIncarnationTakesTheRankOver) {
  Start();
  FakeWorker again(coordinator, 0, 40100);
  again.Join(2, 1);
  ASSERT_TRUE(a.connection.closed);
  EXPECT_EQ(a.connection.closed->ToString(), "Aborted: replaced by incarnation 1");
  const auto messages = again.connection.TakeControl();
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_TRUE(messages[0].has_welcome());
  EXPECT_TRUE(messages[1].has_start()) << "the job is running";
  a.Die(*a.connection.closed);
  EXPECT_TRUE(events.over.empty()) << "the end of the old connection is nobody's loss";
}

TEST_F(TwoWorkers, ARejoiningWorkerWhosePathCarriesLessIsTaken) {
  Start();
  FakeWorker again(coordinator, 0, 40100);
  again.connection.max_chunk_bytes = 1136;
  again.Join(2, 1);
  EXPECT_EQ(again.Heard(ControlMessage::kStart).at(0).start().symbol_bytes(), 1392u);
}

TEST_F(TwoWorkers, AStrangerThatSaysNothingIsClosed) {
  a.Connect();
  Tick(4900);
  EXPECT_FALSE(a.connection.closed);
  Tick(5200);
  ASSERT_TRUE(a.connection.closed);
  EXPECT_EQ(a.connection.closed->code(), StatusCode::kDeadlineExceeded);
}

// Connections that do nothing, from an address each or from one.
struct Crowd : TwoWorkers {
  void Add(Address address, const std::string& name = "") {
    crowd.emplace_back(address);
    if (!name.empty()) {
      crowd.back().identity_now = {transport::PeerIdentity::Kind::kCertificate, "default", "worker", name};
    }
    coordinator.SetNow(At(static_cast<int64_t>(crowd.size())));
    coordinator.Handle(&crowd.back(), transport::event::Accepted{});
    coordinator.Handle(&crowd.back(), transport::event::Connected{});
  }
  size_t Closed() const {
    return static_cast<size_t>(
        std::ranges::count_if(crowd, [](const auto& c) { return c.closed.has_value(); }));
  }

  std::deque<transport::FakeConnection> crowd;
};

TEST_F(Crowd, OneSourceHasAShareAndItsOldestMakesRoom) {
  for (uint16_t port = 0; port < 1024; ++port) Add(Address::V4(10, 0, 0, 1, port));
  EXPECT_EQ(coordinator.Stats().strangers, Strangers::kMaxPerSource);
  EXPECT_EQ(coordinator.Stats().strangers_displaced, 1024 - Strangers::kMaxPerSource);
  EXPECT_EQ(Closed(), 1024 - Strangers::kMaxPerSource);
  EXPECT_TRUE(crowd.front().closed);
  EXPECT_FALSE(crowd.back().closed);
  EXPECT_EQ(crowd.front().closed->ToString(),
            "ResourceExhausted: there are too many connections that have not joined");
  a.Join(2);
  b.Join(2);
  EXPECT_EQ(events.starts, 1) << "nobody is kept out";
}

TEST_F(Crowd, ManySourcesAreBoundedTogetherAndTheLargestMakesRoom) {
  for (uint16_t port = 0; port < 50; ++port) Add(Address::V4(10, 0, 0, 1, port));
  for (int i = 0; i < 1000; ++i) {
    Add(Address::V4(10, 1, static_cast<uint8_t>(i / 250), static_cast<uint8_t>(i % 250), 7));
  }
  EXPECT_EQ(coordinator.Stats().strangers, Strangers::kMax);
  for (size_t i = 0; i < 49; ++i) EXPECT_TRUE(crowd[i].closed) << i;
  a.Join(2);
  EXPECT_FALSE(a.connection.closed);
}

TEST_F(Crowd, WhoHasANameIsCountedByItWhereverHeComesFrom) {
  for (int i = 0; i < 100; ++i) Add(Address::V4(10, 1, 0, static_cast<uint8_t>(i), 7), "fra");
  EXPECT_EQ(coordinator.Stats().strangers, Strangers::kMaxPerSource);
  Add(Address::V4(10, 1, 0, 0, 8), "ams");
  EXPECT_EQ(coordinator.Stats().strangers, Strangers::kMaxPerSource + 1);
}

TEST_F(TwoWorkers, OnlyMembersMayOpenWindows) {
  a.Connect();
  EXPECT_FALSE(a.connection.admitted_now);
  FakeWorker c(coordinator, 0, 40100), d(coordinator, 1, 40101);
  c.Join(2);
  EXPECT_TRUE(c.connection.admitted_now);
  d.Join(2);
  d.Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  EXPECT_FALSE(c.connection.admitted_now) << "the job is over";
}

TEST_F(TwoWorkers, RanksAndRequestsAreBoundToWhoTheCertificateNames) {
  const auto certificate = [](FakeWorker& worker, const std::string& role, const std::string& name) {
    worker.connection.identity_now = {transport::PeerIdentity::Kind::kCertificate, "default", role, name};
  };
  certificate(a, "worker", "fra");
  certificate(b, "tool", "bench");
  a.Join(2);
  b.Join(2);
  EXPECT_EQ(b.Heard(ControlMessage::kRefused).at(0).refused().message(),
            "the certificate of tool bench is not for joining the job: that takes a worker's");
  FakeWorker server(coordinator, 1, 40102);
  certificate(server, "server", "ams");
  server.Join(2);
  EXPECT_EQ(server.Heard(ControlMessage::kRefused).at(0).refused().message(),
            "the certificate of server ams is not for joining the job: that takes a worker's");
  FakeWorker thief(coordinator, 0, 40100);
  certificate(thief, "worker", "ams");
  thief.Join(2, 7);
  const auto refused = thief.Heard(ControlMessage::kRefused);
  EXPECT_EQ(refused.at(0).refused().code(), static_cast<uint32_t>(StatusCode::kPermissionDenied));
  EXPECT_THAT(refused.at(0).refused().message(), HasSubstr("rank 0 belongs to \"fra\""));
  EXPECT_FALSE(a.connection.closed);

  ControlMessage status;
  status.mutable_status_request()->set_request(9);
  FakeWorker watcher(coordinator, 0, 40101), tool(coordinator, 0, 40102);
  certificate(watcher, "worker", "ams");
  certificate(tool, "tool", "bench");
  watcher.Connect();
  watcher.Say(status);
  EXPECT_THAT(watcher.Heard(ControlMessage::kRefused).at(0).refused().message(),
              HasSubstr("worker ams is not for watching the job"));
  tool.Connect();
  tool.Say(status);
  EXPECT_EQ(tool.Heard(ControlMessage::kStatusReply).size(), 1u);
  a.Say(status);
  EXPECT_EQ(a.Heard(ControlMessage::kStatusReply).size(), 1u) << "a member";
  EXPECT_EQ(coordinator.Stats().members.at(0).identity, "worker fra");
}

TEST_F(TwoWorkers, AStatusIsMadeOnceForAllWhoAskAtTheSameTime) {
  a.Join(2);
  ControlMessage message;
  message.mutable_status_request()->set_request(9);
  a.Say(message);
  b.Join(2);
  a.Say(message);
  Tick(200);
  a.Say(message);
  const auto replies = a.Heard(ControlMessage::kStatusReply);
  ASSERT_EQ(replies.size(), 3u);
  EXPECT_EQ(replies[0].status_reply().json(), "{\"joined\":1}");
  EXPECT_EQ(replies[1].status_reply().json(), "{\"joined\":1}");
  EXPECT_EQ(replies[2].status_reply().json(), "{\"joined\":2}");
}

TEST_F(TwoWorkers, GarbageOnTheControlStreamEndsThatConnectionOnly) {
  a.Join(2);
  const std::vector<uint8_t> garbage = {5, 0xff, 0xff, 0xff, 0xff, 0xff};
  a.Happens(transport::event::ControlBytes{garbage});
  ASSERT_TRUE(a.connection.closed);
  EXPECT_EQ(a.connection.closed->code(), StatusCode::kProtocolViolation);
  EXPECT_FALSE(b.connection.closed);
}

TEST_F(TwoWorkers, TheDeathOfAWorkerAbortsTheJobNamingRankAndSite) {
  Start();
  b.Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  const auto leave = a.Heard(ControlMessage::kLeave);
  ASSERT_EQ(leave.size(), 1u);
  EXPECT_EQ(leave[0].leave().code(), static_cast<uint32_t>(StatusCode::kAborted));
  EXPECT_EQ(leave[0].leave().message(),
            "worker rank 1 (site B, 127.0.0.1:40001): PeerDead: silent for 10.0 s");
  ASSERT_EQ(events.over.size(), 1u);
  EXPECT_EQ(events.over[0].code(), StatusCode::kAborted);
  Tick(600);
  ASSERT_TRUE(a.connection.closed);
  EXPECT_EQ(a.connection.closed->message(), leave[0].leave().message());
}

TEST_F(TwoWorkers, AfterAnAbortTheServerIsReadyForANewJob) {
  Start();
  b.Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  FakeWorker c(coordinator, 0, 40100), d(coordinator, 1, 40101);
  c.Join(2);
  d.Join(2);
  EXPECT_EQ(events.starts, 2);
  c.Declare("w", 10, "aggregate");
  EXPECT_EQ(c.Heard(ControlMessage::kDeclared).at(0).declared().code(), 0u);
  a.Die(Status(StatusCode::kAborted, ""));
  EXPECT_EQ(events.over.size(), 1u);
}

TEST_F(TwoWorkers, TheJobIsFinishedWhenEveryoneHasLeft) {
  Start();
  a.Leave();
  ASSERT_TRUE(a.connection.closed);
  EXPECT_TRUE(a.connection.closed->ok()) << "goodbye";
  EXPECT_TRUE(events.over.empty());
  b.Leave();
  ASSERT_EQ(events.over.size(), 1u);
  EXPECT_TRUE(events.over[0].ok());
  EXPECT_TRUE(coordinator.last_outcome().ok());
  EXPECT_EQ(coordinator.jobs_over(), 1u);
}

TEST_F(TwoWorkers, AWorkerThatGoesBeforeTheStartLeavesItsPlaceEmpty) {
  a.Join(2);
  a.Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  EXPECT_TRUE(events.over.empty());
  FakeWorker again(coordinator, 0, 40100);
  again.Join(2);
  b.Join(2);
  EXPECT_EQ(events.starts, 1);
}

TEST_F(TwoWorkers, ABarrierOpensWhenEveryoneIsThere) {
  Start();
  a.Barrier("epoch", 7);
  EXPECT_TRUE(a.Heard(ControlMessage::kBarrierDone).empty());
  b.Barrier("epoch", 8);
  EXPECT_EQ(a.Heard(ControlMessage::kBarrierDone).at(0).barrier_done().request(), 7u);
  EXPECT_EQ(b.Heard(ControlMessage::kBarrierDone).at(0).barrier_done().request(), 8u);
}

TEST_F(TwoWorkers, ABarrierOpensWhenTheMissingWorkerLeaves) {
  Start();
  a.Barrier("epoch", 7);
  b.Leave();
  EXPECT_EQ(a.Heard(ControlMessage::kBarrierDone).size(), 1u);
}

TEST_F(TwoWorkers, ABarrierDoesNotOpenForALossThatEndsTheJob) {
  Start();
  a.Barrier("epoch", 7);
  b.Die(Status(StatusCode::kCancelled, "gave up"));
  EXPECT_TRUE(a.Heard(ControlMessage::kBarrierDone).empty());
  EXPECT_EQ(events.over.size(), 1u);
}

TEST_F(TwoWorkers, AnObserverAsksForTheStatusWithoutJoining) {
  a.Connect();
  ControlMessage message;
  message.mutable_status_request()->set_request(9);
  a.Say(message);
  const auto reply = a.Heard(ControlMessage::kStatusReply);
  ASSERT_EQ(reply.size(), 1u);
  EXPECT_EQ(reply[0].status_reply().request(), 9u);
  EXPECT_EQ(reply[0].status_reply().json(), "{\"joined\":0}");
  Tick(4000);
  a.Say(message);  // it stays as long as it asks
  Tick(8000);
  EXPECT_FALSE(a.connection.closed);
  Tick(10'000);
  EXPECT_TRUE(a.connection.closed);
}

TEST_F(TwoWorkers, AWindowBeforeJoinEndsTheConnection) {
  a.Connect();
  const wire::WindowOpenFrame open{.window_id = 1, .low_count = 1u << 20, .symbol_bytes = 16};
  a.Happens(transport::event::WindowOpened{{1, 0}, open});
  ASSERT_TRUE(a.connection.closed);
  EXPECT_EQ(a.connection.closed->code(), StatusCode::kProtocolViolation);
}

TEST_F(TwoWorkers, AShutdownTellsTheWorkersAndTakesNoOneAnyMore) {
  Start();
  coordinator.Shutdown(Status());
  EXPECT_EQ(a.Heard(ControlMessage::kLeave).at(0).leave().message(), "the server is shutting down");
  transport::FakeConnection late(Address::V4(127, 0, 0, 1, 9));
  coordinator.Handle(&late, transport::event::Accepted{});
  EXPECT_TRUE(late.closed);
  Tick(600);
  a.Die(*a.connection.closed);
  b.Die(*b.connection.closed);
  EXPECT_TRUE(coordinator.Idle());
}

TEST_F(TwoWorkers, MessagesOfTheWrongKindOrTimeAreProtocolErrors) {
  a.Connect();
  ControlMessage message;
  message.mutable_barrier()->set_name("x");
  a.Say(message);
  EXPECT_EQ(a.connection.closed->message(), "the first message must be Join");
  b.Join(2);
  b.Declare("w", 1, "aggregate");
  EXPECT_EQ(b.connection.closed->message(), "message before the start");
}

struct OneOfTwoIsEnough : TwoWorkers {
  OneOfTwoIsEnough() : TwoWorkers(1) {}
};

// Before, the honest worker that came next was disconnected, and blamed.
TEST_F(TwoWorkers, OneThatHoardsBarriersIsRefusedByAnAnswer) {
  Start();
  for (uint32_t i = 0; i < Barriers::kMaxPerMember; ++i) a.Barrier("junk" + std::to_string(i), i);
  EXPECT_TRUE(a.connection.sent.empty());
  a.Barrier("one more", 99);
  const auto refused = a.Heard(ControlMessage::kBarrierDone);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].barrier_done().request(), 99u);
  EXPECT_EQ(refused[0].barrier_done().code(), static_cast<uint32_t>(StatusCode::kResourceExhausted));
  EXPECT_THAT(refused[0].barrier_done().message(), HasSubstr("worker rank 0 holds 64 of 64 barriers"));
  EXPECT_EQ(coordinator.Stats().barriers_refused, 1u);
  b.Barrier("epoch", 7);
  a.Barrier("epoch", 100);
  const auto done = b.Heard(ControlMessage::kBarrierDone);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].barrier_done().code(), 0u);
  EXPECT_FALSE(a.connection.closed || b.connection.closed);
}

// --- Waits ---

TEST_F(TwoWorkers, WhatWaitsIsSaidEveryFiveSecondsWithTheNamesOfThoseWhoAreMissing) {
  a.Join(2);
  a.connection.TakeControl();
  for (int64_t now = 0; now <= 16'000; now += 200) Tick(now);
  EXPECT_THAT(events.waiting,
              testing::ElementsAre("the start of the job waits for rank 1, which has not joined (5.0 s)",
                                   "the start of the job waits for rank 1, which has not joined (10.0 s)",
                                   "the start of the job waits for rank 1, which has not joined (15.0 s)"));
  const auto said = a.Heard(ControlMessage::kWaiting);
  ASSERT_EQ(said.size(), 3u);
  EXPECT_EQ(said[0].waiting().message(), events.waiting[0]);
  EXPECT_EQ(coordinator.Stats().waits.size(), 1u);
  b.Join(2);
  a.connection.TakeControl();
  EXPECT_TRUE(coordinator.Stats().waits.empty());
  a.Barrier("epoch", 1);
  for (int64_t now = 16'000; now <= 22'000; now += 200) Tick(now);
  ASSERT_EQ(events.waiting.size(), 4u);
  EXPECT_THAT(events.waiting[3],
              HasSubstr("barrier \"epoch\" waits for worker rank 1 (site B, 127.0.0.1:40001) ("));
  EXPECT_EQ(b.Heard(ControlMessage::kWaiting).size(), 1u) << "also the one that is waited for";
}

TEST_F(TwoWorkers, AHoarderOfBarriersDoesNotFloodTheOthersWithWhatItWaitsFor) {
  Start();
  for (uint32_t i = 0; i < Barriers::kMaxPerMember; ++i) a.Barrier("junk" + std::to_string(i), i);
  for (int64_t now = 0; now <= 50'000; now += 200) Tick(now);
  EXPECT_LE(b.Heard(ControlMessage::kWaiting).size(), 10u);
  EXPECT_LE(events.waiting.size(), 10u);
}

TEST_F(TwoWorkers, AWorkerThatGivesUpHearsForWhomItHasWaited) {
  a.Join(2);
  a.connection.TakeControl();
  coordinator.SetNow(At(2000));
  a.GiveUp(0);
  EXPECT_EQ(a.Heard(ControlMessage::kWaiting).at(0).waiting().message(),
            "the start of the job waits for rank 1, which has not joined (2.0 s)");
  b.Join(2);
  a.connection.TakeControl();
  a.Barrier("epoch", 7);
  coordinator.SetNow(At(3000));
  a.GiveUp(7);
  const auto ended = a.Heard(ControlMessage::kBarrierDone);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].barrier_done().code(), static_cast<uint32_t>(StatusCode::kDeadlineExceeded));
  EXPECT_EQ(ended[0].barrier_done().message(),
            "barrier \"epoch\" waits for worker rank 1 (site B, 127.0.0.1:40001) (1.0 s)");
  a.GiveUp(7);
  EXPECT_TRUE(a.connection.sent.empty()) << "its answer was on its way";
  b.Barrier("epoch", 8);
  EXPECT_TRUE(b.Heard(ControlMessage::kBarrierDone).empty()) << "the other one is there no longer";
}

TEST_F(TwoWorkers, WhoComesAfterAJobIsToldWhatBecameOfIt) {
  Start();
  a.Leave();
  b.Leave();
  coordinator.SetNow(At(12'300));
  FakeWorker late(coordinator, 1, 40100);
  late.Join(2, std::nullopt);
  const auto welcome = late.connection.TakeControl();
  EXPECT_EQ(welcome.at(0).welcome().notice(),
            "the last job of this server has finished after 0 rounds, 12.3 s ago; this worker is of the next "
            "one, which begins when all 2 workers are in");
  FakeWorker other(coordinator, 0, 40101);
  other.Join(2, std::nullopt);
  late.Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  other.Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  FakeWorker third(coordinator, 0, 40102);
  third.Join(2, std::nullopt);
  EXPECT_THAT(third.connection.TakeControl().at(0).welcome().notice(),
              HasSubstr("was aborted (Aborted: worker rank 1"));
}

TEST_F(OneOfTwoIsEnough, BarriersOfAWorkerThatIsGoneLeaveNothingBehind) {
  Start();
  for (uint32_t i = 0; i < Barriers::kMaxPerMember; ++i) b.Barrier("b" + std::to_string(i), i);
  b.Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  FakeWorker again(coordinator, 1, 40100);
  again.Join(2, 1);
  again.connection.TakeControl();
  for (uint32_t i = 0; i < Barriers::kMaxPerMember; ++i) again.Barrier("c" + std::to_string(i), i);
  EXPECT_TRUE(again.connection.sent.empty()) << "it waits everywhere";
}

TEST_F(OneOfTwoIsEnough, TheJobGoesOnWithTheWorkersThatAreLeft) {
  Start();
  b.Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  EXPECT_TRUE(events.over.empty());
  EXPECT_TRUE(a.Heard(ControlMessage::kLeave).empty());
  a.Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  ASSERT_EQ(events.over.size(), 1u);
  EXPECT_THAT(events.over[0].message(), HasSubstr("worker rank 0"));
}

struct TwoOfFourBegin : testing::Test {
  static ServerSettings Settings() {
    ServerSettings settings;
    settings.world_size = 4;
    settings.min_workers = 1;
    settings.start_workers = 2;
    return settings;
  }
  TwoOfFourBegin() : coordinator(Settings(), &events, {}) {
    coordinator.SetWallClock([] { return int64_t{1'000'000}; });
    for (FakeWorker* worker : {&a, &b, &c}) worker->takes_membership = true;
    coordinator.SetNow(At(0));
  }
  void Tick(int64_t ms) {
    coordinator.SetNow(At(ms));
    coordinator.HandleTimeout();
    coordinator.AfterEvent();
  }
  // The ranks of each Membership that the worker has heard, "0 2" for two of them.
  static std::vector<std::string> Heard(FakeWorker& worker, std::vector<uint64_t>* epochs = nullptr) {
    std::vector<std::string> all;
    for (const ControlMessage& message : worker.Heard(ControlMessage::kMembership)) {
      EXPECT_TRUE(wire::ValidateControlMessage(message).ok());
      EXPECT_EQ(message.membership().workers(), 4u);
      std::string ranks;
      for (uint32_t rank = 0; rank < 4; ++rank) {
        if (message.membership().joined()[0] >> rank & 1)
          ranks += (ranks.empty() ? "" : " ") + std::to_string(rank);
      }
      all.push_back(ranks);
      if (epochs != nullptr) epochs->push_back(message.membership().epoch());
    }
    return all;
  }

  Recorder events;
  Coordinator coordinator;
  FakeWorker a{coordinator, 0};
  FakeWorker b{coordinator, 2};
  FakeWorker c{coordinator, 1};
};

TEST_F(TwoOfFourBegin, TheJobStartsASecondAfterTheLastThatCame) {
  a.Join(4);
  Tick(5000);
  EXPECT_EQ(events.starts, 0) << "one is too few";
  b.Join(4);
  EXPECT_EQ(events.starts, 0) << "others may be on their way";
  Tick(5900);
  EXPECT_EQ(events.starts, 0);
  c.Join(4);
  Tick(6800);
  EXPECT_EQ(events.starts, 0) << "the last call begins again";
  Tick(7000);
  EXPECT_EQ(events.started_with, 3u);
  EXPECT_EQ(events.starts, 1);
  EXPECT_EQ(a.Heard(ControlMessage::kStart).size(), 1u);
  EXPECT_EQ(c.Heard(ControlMessage::kStart).size(), 1u);
}

TEST_F(TwoOfFourBegin, OneThatComesLaterIsStartedAndTheOthersHearOfIt) {
  a.Join(4);
  b.Join(4);
  Tick(1100);
  EXPECT_THAT(Heard(a), testing::ElementsAre("0 2"));
  coordinator.SetNow(At(1500));
  c.Join(4);
  const auto heard = c.connection.TakeControl();
  ASSERT_EQ(heard.size(), 4u);
  EXPECT_TRUE(heard[0].has_welcome());
  EXPECT_TRUE(heard[1].has_membership()) << "before Start: it knows its part of the data when it begins";
  EXPECT_TRUE(heard[2].has_start());
  EXPECT_THAT(Heard(a), testing::ElementsAre("0 1 2"));
}

TEST_F(TwoOfFourBegin, ChangesThatFollowEachOtherAreSaidTogether) {
  std::vector<uint64_t> epochs;
  a.Join(4);
  b.Join(4);
  Tick(1100);
  coordinator.SetNow(At(1250));
  c.Join(4);
  c.Die(Status(StatusCode::kPeerDead, "silent"));
  for (int again = 0; again < 5; ++again) {
    FakeWorker other(coordinator, 1, static_cast<uint16_t>(41000 + again));
    other.Join(4, again + 1);
    other.Die(Status(StatusCode::kPeerDead, "silent"));
  }
  FakeWorker last(coordinator, 3, 42000);
  last.Join(4);
  Tick(1260);
  EXPECT_THAT(Heard(a, &epochs), testing::ElementsAre("0 2", "0 1 2"));
  Tick(1360);
  EXPECT_THAT(Heard(a, &epochs), testing::ElementsAre("0 2 3"));
  Tick(1500);
  EXPECT_TRUE(Heard(a).empty()) << "nothing has changed";
  ASSERT_EQ(epochs.size(), 3u);
  EXPECT_GE(epochs[0], 1'000'000ull << 20)
      << "not below the time: they go on growing when the server is started again";
  EXPECT_LT(epochs[0], epochs[1]);
  EXPECT_EQ(epochs[2], epochs[1] + 12) << "each change counts";
}

TEST_F(TwoOfFourBegin, AReplacedWorkerChangesNothing) {
  a.Join(4);
  b.Join(4);
  Tick(1100);
  Heard(a);
  FakeWorker again(coordinator, 2, 41000);
  again.takes_membership = true;
  again.Join(4, 1);
  Tick(1300);
  EXPECT_TRUE(Heard(a).empty());
  EXPECT_THAT(Heard(again), testing::ElementsAre("0 2")) << "it knows nothing yet";
}

TEST_F(TwoOfFourBegin, AnOlderWorkerHearsNothingThatItDoesNotKnow) {
  b.takes_membership = false;
  a.Join(4);
  b.Join(4);
  Tick(1100);
  EXPECT_TRUE(Heard(b).empty());
}

}  // namespace
}  // namespace longhaul::server
