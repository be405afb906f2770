// The servers of a job that has several: which gets which place, and which workers may come in.
//
//   server b ──ServerJoin──┐
//   server c ──ServerJoin──┴─ the first server's coordinator ──Join── worker
#include "server/job/server_desk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/job/coordinator.h"
#include "tests/server/fake_worker.h"

namespace longhaul::server {
namespace {

using control::ControlMessage;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ServerSettings First(uint32_t servers) {
  ServerSettings settings;
  settings.place = {.servers = servers, .map_epoch = servers > 1 ? 1u : 0u};
  return settings;
}

struct Recorded : ServerEvents {
  void OnServer(const std::string& server, const std::string&, const Status& why) override {
    said.push_back(server + (why.ok() ? " is in" : " is lost: " + why.message()));
  }
  std::vector<std::string> said;
};

// A connection that says what servers say.
class FakeServer : public FakeWorker {
 public:
  FakeServer(Coordinator& coordinator, uint16_t port) : FakeWorker(coordinator, 0, port) {}
  void Register(const std::string& address, const control::ServerJoin& place = {}) {
    Connect();
    ControlMessage message;
    control::ServerJoin& join = *message.mutable_server_join();
    join = place;
    if (join.job().empty()) join.set_job("default");
    join.set_address(address);
    Say(message);
  }
  // The number of its place; 0: it has none.
  uint32_t place() {
    const auto heard = Heard(ControlMessage::kServerWelcome);
    return heard.empty() ? 0 : heard.front().server_welcome().server();
  }
  std::string refusal() {
    const auto heard = Heard(ControlMessage::kRefused);
    return heard.empty() ? "" : heard.front().refused().message();
  }
};

control::ServerJoin PlaceOf(uint64_t epoch, uint32_t server, uint32_t servers, uint64_t start) {
  control::ServerJoin place;
  place.set_map_epoch(epoch);
  place.set_server(server);
  place.set_servers(servers);
  place.set_start(start);
  return place;
}

std::vector<std::string> ServersOf(const control::ShardMap& map) {
  return {map.servers().begin(), map.servers().end()};
}

class ThreeServers : public ::testing::Test {
 protected:
  ThreeServers() { coordinator.SetNow(At(0)); }
  static Instant At(int64_t ms) { return Instant() + std::chrono::milliseconds(ms); }
  void Tick(int64_t ms) {
    coordinator.SetNow(At(ms));
    coordinator.HandleTimeout();
    coordinator.AfterEvent();
  }

  Recorded events;
  Coordinator coordinator{First(3), &events, {}};
  FakeServer b{coordinator, 50001};
  FakeServer c{coordinator, 50002};
  FakeWorker worker{coordinator, 0};
};

TEST_F(ThreeServers, LetAWorkerInWhenAllAreThere) {
  worker.Join(1);
  const auto waiting = worker.Heard(ControlMessage::kWaiting);
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_EQ(waiting[0].waiting().message(), "the job waits for server 2 of 3, server 3 of 3");
  b.Register(":7701");
  Tick(60'000);  // longer than any stranger stays
  EXPECT_FALSE(worker.connection.closed);
  EXPECT_TRUE(worker.Heard(ControlMessage::kWelcome).empty());
  c.Register("ams.example:7702");
  EXPECT_EQ(b.place(), 1u);
  EXPECT_EQ(c.place(), 2u);
  const auto welcome = worker.connection.TakeControl();
  ASSERT_EQ(welcome.size(), 2u) << "Welcome and Start";
  EXPECT_EQ(welcome[0].welcome().shard_map().epoch(), 1u);
  EXPECT_THAT(ServersOf(welcome[0].welcome().shard_map()),
              ElementsAre("", "127.0.0.1:7701", "ams.example:7702"));
  EXPECT_THAT(events.said,
              ElementsAre("server 2 of 3 (127.0.0.1:7701) is in", "server 3 of 3 (ams.example:7702) is in"));
}

TEST_F(ThreeServers, HaveTheFirstOnesSettings) {
  b.Register(":7701");
  const auto heard = b.Heard(ControlMessage::kServerWelcome);
  ASSERT_EQ(heard.size(), 1u);
  const control::ServerWelcome& welcome = heard[0].server_welcome();
  EXPECT_EQ(*wire::DecodeJobSpec(welcome.job_spec()), JobSpec());
  EXPECT_EQ(welcome.workers(), 1u);
  EXPECT_EQ(welcome.servers(), 3u);
  EXPECT_EQ(welcome.map_epoch(), 1u);
}

TEST_F(ThreeServers, OneThatIsLostKeepsItsPlaceWhileAJobRuns) {
  b.Register(":7701");
  c.Register(":7702");
  worker.Join(1);
  (void)worker.connection.TakeControl();
  b.Die(Status(StatusCode::kPeerDead, "silent"));
  EXPECT_EQ(events.said.back(), "server 2 of 3 (127.0.0.1:7701) is lost: silent");
  EXPECT_EQ(coordinator.Stats().servers_lost, 1u);
  FakeServer stranger(coordinator, 50003);
  stranger.Register(":7703");
  EXPECT_THAT(stranger.refusal(), HasSubstr("all 3 servers of the job are known, and it runs"));
  // By what its disk says, wherever it is now: the workers learn it.
  FakeServer again(coordinator, 50004);
  again.Register(":7704", PlaceOf(1, 1, 3, 2));
  EXPECT_EQ(again.place(), 1u);
  const auto news = worker.Heard(ControlMessage::kShardMap);
  ASSERT_EQ(news.size(), 1u);
  EXPECT_THAT(ServersOf(news[0].shard_map()), ElementsAre("", "127.0.0.1:7704", "127.0.0.1:7702"));
  EXPECT_EQ(coordinator.Stats().servers_lost, 0u);
}

TEST_F(ThreeServers, OneThatIsLostBeforeTheJobMakesRoom) {
  b.Register(":7701");
  b.Die(Status(StatusCode::kPeerDead, "silent"));
  c.Register(":7702");
  FakeServer other(coordinator, 50003);
  other.Register(":7703");
  EXPECT_EQ(c.place(), 1u);
  EXPECT_EQ(other.place(), 2u);
}

TEST_F(ThreeServers, ALaterStartReplacesAnEarlierOneAndNotTheOtherWayRound) {
  b.Register(":7701", PlaceOf(1, 1, 3, 5));
  FakeServer older(coordinator, 50003);
  older.Register(":7703", PlaceOf(1, 1, 3, 4));
  EXPECT_THAT(older.refusal(), HasSubstr("server 2 of 3 (127.0.0.1:7701) is here, from a later start"));
  EXPECT_FALSE(b.connection.closed);
  FakeServer newer(coordinator, 50004);
  newer.Register(":7704", PlaceOf(1, 1, 3, 6));
  EXPECT_EQ(newer.place(), 1u);
  EXPECT_TRUE(b.connection.closed);
  b.Die(Status(StatusCode::kAborted, "a later start is here"));
  EXPECT_THAT(coordinator.Stats().servers_lost, 1u) << "the third only";
}

TEST_F(ThreeServers, OneOnThePortOfAnotherIsThatOneStartedAgain) {
  b.Register(":7701");
  FakeServer again(coordinator, 50003);
  again.Register(":7701");
  EXPECT_EQ(again.place(), 1u);
}

TEST_F(ThreeServers, RefuseWhatIsOfAnotherMapOrJob) {
  b.Register(":7701", PlaceOf(2, 1, 3, 1));
  EXPECT_THAT(b.refusal(), HasSubstr("its disk is of server 2 of 3 of a shard map of epoch 2, and the map "
                                     "here has 3 servers and epoch 1"));
  c.Register(":7702", PlaceOf(1, 1, 4, 1));
  EXPECT_THAT(c.refusal(), HasSubstr("its disk is of server 2 of 4"));
  control::ServerJoin join;
  join.set_job("other");
  FakeServer other(coordinator, 50003);
  other.Register(":7703", join);
  EXPECT_THAT(other.refusal(), HasSubstr("of job \"default\", and that one of job \"other\""));
}

TEST_F(ThreeServers, RefuseAnAddressThatNoMapCouldCarry) {
  b.Register(":" + std::string(250, '7'));
  EXPECT_THAT(b.refusal(), HasSubstr("longer than 256 bytes"));
}

TEST_F(ThreeServers, TakeACertificateThatIsAServersOnly) {
  const auto identity = [](FakeServer& peer, const std::string& role) {
    peer.connection.identity_now = {transport::PeerIdentity::Kind::kCertificate, "default", role, "fra"};
  };
  identity(b, "worker");
  b.Register("b:1");
  EXPECT_THAT(b.refusal(), HasSubstr("that takes a server's"));
  // Neither waits for the servers that are missing: it may not join at all.
  FakeServer tool(coordinator, 50005);
  identity(tool, "tool");
  tool.Join(2);
  EXPECT_THAT(tool.refusal(), HasSubstr("is not for joining the job"));
}

TEST_F(ThreeServers, OneThatHasAPlaceDoesNotJoinAsAWorker) {
  b.Register(":7701");
  b.SayJoin(1, 0);
  ASSERT_TRUE(b.connection.closed);
  EXPECT_EQ(b.connection.closed->code(), StatusCode::kProtocolViolation);
}

TEST_F(ThreeServers, RefuseAWorkerThatWouldSendAllToTheFirst) {
  worker.knows_shards = false;
  worker.Join(1);
  const auto refused = worker.Heard(ControlMessage::kRefused);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].refused().code(), static_cast<uint32_t>(StatusCode::kVersionMismatch));
}

TEST(OnlyServer, HasNoPlaceForAnother) {
  Coordinator coordinator(First(1), nullptr, {});
  FakeServer b(coordinator, 50001);
  b.Register(":7701");
  EXPECT_THAT(b.refusal(), HasSubstr("this server is the only one of its job"));
}

// Of workers that come to a server which is not the first.
struct SecondServer : ::testing::Test {
  static ServerSettings Settings() {
    ServerSettings settings;
    settings.place = {.servers = 3, .server = 1, .map_epoch = 4, .first_server = "ams.example:7700"};
    return settings;
  }
  SecondServer() { coordinator.SetNow(Instant()); }
  // What is said to a worker with such a map; "": it is welcome.
  control::Refused Join(uint64_t epoch, uint32_t server) {
    FakeWorker worker(coordinator, 0, static_cast<uint16_t>(41000 + epoch * 100 + server));
    worker.Connect();
    ControlMessage message;
    control::Join& join = *message.mutable_join();
    join.set_job("default");
    join.set_world_size(1);
    join.set_weight(1);
    join.set_map_epoch(epoch);
    join.set_server(server);
    join.set_knows_shards(true);
    worker.Say(message);
    const auto refused = worker.Heard(ControlMessage::kRefused);
    return refused.empty() ? control::Refused() : refused[0].refused();
  }
  Coordinator coordinator{Settings(), nullptr, {}};
};

TEST_F(SecondServer, SendsAWorkerWithoutAMapToTheFirst) {
  const control::Refused refused = Join(0, 0);
  EXPECT_EQ(refused.first_server(), "ams.example:7700");
  EXPECT_EQ(refused.message(), "this is server 2 of 3; the first one, ams.example:7700, lets workers in");
}

TEST_F(SecondServer, RefusesAnotherEpochAndAnotherPlaceByName) {
  EXPECT_EQ(Join(3, 1).message(),
            "this is server 2 of 3 of the shard map of epoch 4, and the worker takes it for server 2 of the "
            "shard map of epoch 3");
  EXPECT_THAT(Join(4, 2).message(), HasSubstr("takes it for server 3 of the shard map of epoch 4"));
  EXPECT_EQ(Join(4, 1).message(), "");
}

}  // namespace
}  // namespace longhaul::server
