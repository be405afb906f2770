// Who may stay: reloads, kicks and the ends of certificates.
#include "server/job/access.h"

#include <gmock/gmock.h>

#include "tests/server/fake_worker.h"

namespace longhaul::server {
namespace {

using control::ControlMessage;
using testing::ElementsAre;
using testing::HasSubstr;
using transport::PeerIdentity;

constexpr int64_t kNow = 1'800'000'000;

PeerIdentity Certificate(const std::string& role, const std::string& name, int64_t expires = 0) {
  return {.kind = PeerIdentity::Kind::kCertificate,
          .job = "default",
          .role = role,
          .name = name,
          .trust = "ca",
          .expires = expires};
}
PeerIdentity Shared(const std::string& trust) {
  return {.kind = PeerIdentity::Kind::kPsk, .job = "default", .role = {}, .name = {}, .trust = trust};
}

TEST(Access, AnIdentityMayStayWhileItsKeyItsNameAndItsTimeAreGood) {
  int64_t now = kNow;
  Membership membership("default", 1, 1);
  Access access([&] { return now; });
  access.Replace({.allow = AllowList::Parse({"fra", "tool/ops"}).value(), .trusts = {"ca"}}, &membership);
  EXPECT_TRUE(access.MayStay(Certificate("worker", "fra", kNow)).ok()) << "to the last second";
  EXPECT_TRUE(access.MayStay(Certificate("tool", "ops")).ok());
  EXPECT_EQ(access.MayStay(Certificate("tool", "fra")).ToString(),
            "PermissionDenied: tool fra was taken off the list of allowed names");
  PeerIdentity other = Certificate("worker", "fra");
  other.trust = "another";
  EXPECT_EQ(access.MayStay(other).message(), "worker fra: its authority is not trusted any more");
  ++now;
  EXPECT_EQ(access.MayStay(Certificate("worker", "fra", kNow)).message(),
            "worker fra: its certificate has expired");
  access.Replace({.trusts = {"old", "new"}}, &membership);
  EXPECT_TRUE(access.MayStay(Shared("old")).ok());
  EXPECT_TRUE(access.MayStay(Shared("new")).ok());
  EXPECT_EQ(access.MayStay(Shared("older")).message(),
            "shared key older is not valid any more: take the new one");
  EXPECT_TRUE(access.MayStay({}).ok()) << "without keys";
}

struct Members : testing::Test {
  Members() : coordinator(Settings(), &events, {}) {
    coordinator.SetNow(At(0));
    coordinator.SetWallClock([this] { return now; });
  }
  static ServerSettings Settings() {
    ServerSettings settings;
    settings.world_size = 2;
    settings.min_workers = 1;
    settings.access = {
        .allow = List({"fra:0+fra2", "nyc:1", "tool/ops"}), .trusts = {"ca"}, .expires = kNow + 90'000};
    return settings;
  }
  static AllowList List(const std::vector<std::string>& texts) { return AllowList::Parse(texts).value(); }
  void Start() {
    a.connection.identity_now = Certificate("worker", "fra", kNow + 1000);
    b.connection.identity_now = Certificate("worker", "nyc");
    a.Join(2);
    b.Join(2);
    ASSERT_EQ(events.starts, 1);
  }
  void Tick(int64_t ms) {
    coordinator.SetNow(At(ms));
    coordinator.HandleTimeout();
    coordinator.AfterEvent();
  }
  // What a tool that asks for this kick is answered.
  std::string Kick(uint32_t rank, const PeerIdentity& by) {
    FakeWorker tool(coordinator, 0, 40200);
    tool.connection.identity_now = by;
    tool.Connect();
    ControlMessage message;
    message.mutable_kick_request()->set_rank(rank);
    tool.Say(message);
    std::string answer = "nothing";
    for (const auto& heard : tool.connection.TakeControl()) {
      if (heard.has_kicked()) answer = "kicked " + heard.kicked().who();
      if (heard.has_refused()) answer = heard.refused().message();
    }
    tool.Die(Status());
    return answer;
  }
  // The connection was closed for this reason; it is over now.
  void ExpectClosed(FakeWorker& worker, const std::string& why) {
    ASSERT_TRUE(worker.connection.closed);
    EXPECT_THAT(worker.connection.closed->ToString(), HasSubstr(why));
    worker.Die(*worker.connection.closed);
  }

  int64_t now = kNow;
  Recorder events;
  Coordinator coordinator;
  FakeWorker a{coordinator, 0}, b{coordinator, 1};
};

TEST_F(Members, WhoIsStruckOutByAReloadIsDisconnectedByNameAndTheJobGoesOn) {
  Start();
  coordinator.Reload({.allow = List({"fra2:0", "nyc:1"}), .trusts = {"ca"}});
  EXPECT_FALSE(b.connection.closed);
  ExpectClosed(a, "worker fra was taken off the list of allowed names");
  EXPECT_THAT(events.left, ElementsAre(HasSubstr("0 PermissionDenied: worker fra was taken off")));
  EXPECT_TRUE(events.over.empty());
  FakeWorker heir(coordinator, 0, 40100);
  heir.connection.identity_now = Certificate("worker", "fra2");
  heir.Join(2);
  EXPECT_EQ(heir.Heard(ControlMessage::kWelcome).size(), 1u) << "the rank is the new list's";
}

TEST_F(Members, ARankThatIsGivenToAnotherEndsItsOldOwnersConnection) {
  Start();
  coordinator.Reload({.allow = List({"fra:1", "nyc:0"}), .trusts = {"ca"}});
  ExpectClosed(a, "worker fra may not have rank 0 any more");
}

TEST_F(Members, AReloadThatChangesNothingDisturbsNoOne) {
  Start();
  coordinator.Reload(Settings().access);
  Tick(1000);
  EXPECT_FALSE(a.connection.closed || b.connection.closed);
}

TEST_F(Members, ADroppedKeyEndsTheConnectionsUnderIt) {
  coordinator.Reload({.trusts = {"old", "new"}});
  a.connection.identity_now = Shared("old");
  b.connection.identity_now = Shared("new");
  a.Join(2);
  b.Join(2);
  coordinator.Reload({.trusts = {"new"}});
  ExpectClosed(a, "shared key old is not valid any more");
  EXPECT_FALSE(b.connection.closed);
}

TEST_F(Members, ACertificateThatExpiresEndsItsConnectionAfterAWarning) {
  Start();
  Tick(200);
  Tick(400);
  EXPECT_THAT(events.expiring, ElementsAre("worker fra 1000")) << "within a day: once";
  now += 1000;
  Tick(600);
  EXPECT_FALSE(a.connection.closed);
  ++now;
  Tick(800);
  ExpectClosed(a, "worker fra: its certificate has expired");
  EXPECT_FALSE(b.connection.closed);
  now = kNow + 90'000 - Access::kNoticeSeconds;
  Tick(1000);
  EXPECT_THAT(events.expiring, ElementsAre("worker fra 1000", "the server 86400"));
}

TEST_F(Members, AnExpiredPeerDoesNotJoinBetweenTwoLooks) {
  a.connection.identity_now = Certificate("worker", "fra", kNow - 1);
  a.Join(2);
  EXPECT_TRUE(a.connection.closed);
  EXPECT_TRUE(a.Heard(ControlMessage::kWelcome).empty());
}

TEST_F(Members, AnOperatorKicksAMemberByItsRank) {
  Start();
  EXPECT_THAT(Kick(0, Certificate("worker", "nyc")),
              HasSubstr("not for kicking members: that takes a tool's"));
  EXPECT_EQ(Kick(2, Certificate("tool", "ops")), "no worker has rank 2");
  EXPECT_FALSE(a.connection.closed);
  EXPECT_EQ(Kick(0, Certificate("tool", "ops")), "kicked worker rank 0 (fra, site B, 127.0.0.1:40000)");
  EXPECT_THAT(events.kicked,
              ElementsAre("0 worker rank 0 (fra, site B, 127.0.0.1:40000) by tool ops at 127.0.0.1:40200"));
  ExpectClosed(a, "PermissionDenied: kicked by the operator");
  FakeWorker again(coordinator, 0, 40101), heir(coordinator, 0, 40102);
  again.connection.identity_now = Certificate("worker", "fra");
  again.Join(2, 9);
  EXPECT_THAT(again.Heard(ControlMessage::kRefused).at(0).refused().message(),
              HasSubstr("\"fra\" was kicked"));
  heir.connection.identity_now = Certificate("worker", "fra2");
  heir.Join(2);
  EXPECT_EQ(heir.Heard(ControlMessage::kWelcome).size(), 1u);
}

TEST_F(Members, AMemberKicksNoOne) {
  coordinator.Reload({.trusts = {"key"}});
  a.connection.identity_now = b.connection.identity_now = Shared("key");
  a.Join(2);
  b.Join(2);
  ControlMessage message;
  message.mutable_kick_request()->set_rank(1);
  a.Say(message);
  ASSERT_TRUE(a.connection.closed);
  EXPECT_EQ(a.connection.closed->code(), StatusCode::kProtocolViolation);
  EXPECT_FALSE(b.connection.closed);
  a.Die(*a.connection.closed);
  EXPECT_THAT(Kick(1, Shared("key")), HasSubstr("kicked worker rank 1")) << "a holder of the key";
}

TEST_F(Members, OnlyAnOperatorEndsTheServers) {
  Start();
  const auto order = [this](const PeerIdentity& by) {
    FakeWorker tool(coordinator, 0, 40200);
    tool.connection.identity_now = by;
    tool.Connect();
    ControlMessage message;
    message.mutable_hand_over_request()->set_timeout(1'000'000'000);
    tool.Say(message);
    const std::string why = tool.connection.closed ? tool.connection.closed->message() : "nothing";
    tool.Die(Status());
    return why;
  };
  EXPECT_THAT(order(Certificate("worker", "nyc")),
              HasSubstr("not for ending the servers: that takes a tool's"));
  EXPECT_THAT(order({}), HasSubstr("has no key"));
  EXPECT_THAT(order(Certificate("tool", "ops")), HasSubstr("no round log")) << "may, but cannot";
  EXPECT_FALSE(a.connection.closed);
  // Nor does a member.
  ControlMessage message;
  message.mutable_hand_over_request()->set_timeout(1'000'000'000);
  a.Say(message);
  ASSERT_TRUE(a.connection.closed);
  EXPECT_EQ(a.connection.closed->code(), StatusCode::kProtocolViolation);
}

TEST(Kick, WithoutKeysNoOneKicks) {
  Coordinator coordinator(ServerSettings(), nullptr, {});
  FakeWorker a(coordinator, 0), anyone(coordinator, 0, 40200);
  a.Join(1);
  anyone.Connect();
  ControlMessage message;
  message.mutable_kick_request()->set_rank(0);
  anyone.Say(message);
  EXPECT_THAT(anyone.Heard(ControlMessage::kRefused).at(0).refused().message(), HasSubstr("has no key"));
  EXPECT_FALSE(a.connection.closed);
}

}  // namespace
}  // namespace longhaul::server
