// The server core with real TLS and certificates: who is let in, and as whom. Virtual time; a datagram takes
// 10 ms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "server/report/server_json.h"
#include "tests/server/core_net.h"
#include "transport/crypto/keygen.h"
#include "transport/crypto/tls_security.h"

namespace longhaul::server {
namespace {

using control::ControlMessage;
using crypto::Role;
using testing::HasSubstr;

constexpr int64_t kToday = 1'800'000'000;
constexpr crypto::Validity kThisYear{kToday - 86'400, kToday + 365 * 86'400};

std::unique_ptr<crypto::TlsSecurity> Security(const std::string& job, Role role, const std::string& name,
                                              const crypto::Validity& validity = kThisYear) {
  static const crypto::SecretBytes ca = crypto::NewCa("ca", kThisYear).value();
  const crypto::SecretBytes file = crypto::IssueCertificate(ca.text(), job, role, name, validity).value();
  crypto::TlsOptions options;
  options.role = role;
  options.wall_clock = [] { return kToday; };
  return crypto::TlsSecurity::Create(crypto::ParseKeyFile(file.text()).value(), options).value();
}

struct KeptOut final : ServerEvents {
  void OnHandshakeFailed(const Address& peer, const Status& why) override {
    failed.push_back(peer.ToString() + " " + why.ToString());
  }
  void OnRefused(const Address& peer, const std::string&, const Status& why) override {
    refused.push_back(peer.ToString() + " " + why.ToString());
  }
  std::vector<std::string> failed;
  std::vector<std::string> refused;
};

struct ServerSide {
  std::unique_ptr<crypto::TlsSecurity> security = Security("pears", Role::kServer, "ams");
  KeptOut kept_out;
};

struct SecureNet : ServerSide, CoreNet {
  SecureNet() : CoreNet(Options(*this)) {}
  static ServerCoreOptions Options(ServerSide& side) {
    ServerCoreOptions options;
    options.settings.job = "pears";
    options.settings.world_size = 2;
    options.settings.min_workers = 1;
    options.security = side.security.get();
    options.events = &side.kept_out;
    return options;
  }
  CoreClient& Connect(const std::string& job, Role role, const std::string& name) {
    return ConnectWith(Security(job, role, name));
  }
  CoreClient& ConnectWith(std::unique_ptr<crypto::TlsSecurity> key) {
    CoreClient& client = Add(std::move(key));
    RunFor(std::chrono::milliseconds(300));
    return client;
  }
};

// A refused peer is far more often a misconfigured worker than an attacker: its operator then asks the
// server's operator for the reason.
TEST_F(SecureNet, AFailedHandshakeIsToldWithItsAddressAndReasonAndCounted) {
  ConnectWith(Security("pears", Role::kWorker, "fra", {kToday - 2 * 86'400, kToday - 86'400}));
  EXPECT_THAT(kept_out.failed,
              testing::ElementsAre("10.0.0.2:1001 PermissionDenied: the peer's certificate has expired"));
  RunFor(std::chrono::seconds(6));
  EXPECT_EQ(kept_out.failed.size(), 1u) << "told once, whatever was sent again";
  EXPECT_TRUE(clients[0]->closed) << "and its owner hears it as well";
  EXPECT_EQ(core.endpoint_stats().handshakes_failed, 1u);
  EXPECT_EQ(ToJson(core.stats())["endpoint"]["handshakes_failed"], 1);
  EXPECT_TRUE(kept_out.refused.empty());
}

TEST_F(SecureNet, AnInitOfAnotherKindOfKeyIsToldAsAFailedHandshake) {
  crypto::TlsOptions options;
  options.role = Role::kWorker;
  auto key = crypto::TlsSecurity::Create(crypto::ParseKeyFile(crypto::NewPsk("pears").value().text()).value(),
                                         options);
  ConnectWith(std::move(key).value());
  EXPECT_THAT(kept_out.failed,
              testing::ElementsAre("10.0.0.2:1001 PermissionDenied: its INIT does not open: it has "
                                   "another key or none, or was damaged"));
  EXPECT_EQ(core.endpoint_stats().handshakes_failed, 1u);
}

TEST_F(SecureNet, AClientThatDoesNotTrustTheServerNamesItsAddress) {
  const crypto::SecretBytes ca = crypto::NewCa("another", kThisYear).value();
  const crypto::SecretBytes file =
      crypto::IssueCertificate(ca.text(), "pears", Role::kWorker, "fra", kThisYear).value();
  crypto::TlsOptions options;
  options.role = Role::kWorker;
  options.wall_clock = [] { return kToday; };
  auto key = crypto::TlsSecurity::Create(crypto::ParseKeyFile(file.text()).value(), options).value();
  CoreClient& fra = ConnectWith(std::move(key));
  RunFor(std::chrono::seconds(2));  // in which another server might have answered
  ASSERT_TRUE(fra.closed);
  EXPECT_EQ(fra.closed->ToString(),
            "PermissionDenied: server 10.0.0.1:7700: the peer's certificate was not issued by our CA");
  ASSERT_EQ(kept_out.failed.size(), 1u) << "the server hears it without the address that it has";
  EXPECT_THAT(kept_out.failed[0],
              HasSubstr("client 10.0.0.2:1001 refuses: the peer's certificate was not issued"));
}

TEST_F(SecureNet, WhoBeginsAHandshakeAndVanishesIsToldWhenItsTimeIsOver) {
  Add(Security("pears", Role::kWorker, "fra"));
  RunFor(std::chrono::milliseconds(15));
  clients.clear();
  RunFor(std::chrono::seconds(6));
  ASSERT_EQ(kept_out.failed.size(), 1u);
  EXPECT_THAT(kept_out.failed[0],
              HasSubstr("10.0.0.2:1001 Unavailable: no answer from 10.0.0.2:1001 within"));
}

TEST_F(SecureNet, AHandshakeThatSucceedsIsNoFailureHoweverItEnds) {
  CoreClient& fra = Connect("pears", Role::kWorker, "fra");
  ASSERT_TRUE(fra.connected);
  fra.connection->Close(Status(StatusCode::kAborted, "enough"));
  fra.host.Pump();
  RunFor(std::chrono::seconds(1));
  EXPECT_EQ(core.endpoint_stats().handshakes_failed, 0u);
}

TEST_F(SecureNet, MembersAreWhoTheirCertificatesName) {
  CoreClient& fra = Connect("pears", Role::kWorker, "fra");
  ASSERT_TRUE(fra.connected);
  fra.Join(0, 0, "pears");
  RunFor(std::chrono::milliseconds(200));
  const nlohmann::json status = ToJson(core.stats());
  ASSERT_EQ(status["members"].size(), 1u);
  EXPECT_EQ(status["members"][0]["identity"], "worker fra");
  EXPECT_THAT(status["members"][0]["traffic"]["cipher"].get<std::string>(), HasSubstr("AES"));
  EXPECT_EQ(status["endpoint"]["accepted"], 1u);
  EXPECT_EQ(status["endpoint"]["half_open"], 0u);

  CoreClient& lon = Connect("pears", Role::kWorker, "lon");
  lon.Join(0, 99, "pears");
  RunFor(std::chrono::seconds(1));
  ASSERT_TRUE(lon.closed);
  EXPECT_EQ(lon.closed->ToString(),
            "PermissionDenied: rank 0 belongs to \"fra\" until the job is over, and this is \"lon\"");
  EXPECT_FALSE(fra.closed);

  CoreClient& again = Connect("pears", Role::kWorker, "fra");
  again.Join(0, 1, "pears");
  RunFor(std::chrono::milliseconds(200));
  ASSERT_FALSE(again.heard.empty());
  EXPECT_TRUE(again.heard[0].has_welcome());
}

// The finding: three members with the same certificate took three ranks.
TEST_F(SecureNet, OneCertificateDoesNotTakeTwoRanks) {
  CoreClient& fra = Connect("pears", Role::kWorker, "fra");
  fra.Join(0, 0, "pears");
  RunFor(std::chrono::milliseconds(200));
  CoreClient& again = Connect("pears", Role::kWorker, "fra");
  again.Join(1, 0, "pears");
  RunFor(std::chrono::seconds(1));
  ASSERT_TRUE(again.closed);
  EXPECT_THAT(again.closed->ToString(), HasSubstr("\"fra\" has rank 0 and may not take rank 1 as well"));
  EXPECT_FALSE(fra.closed);
}

std::string NewKey() { return std::string(crypto::NewPsk("pears").value().text()); }

std::unique_ptr<crypto::TlsSecurity> Shared(const std::string& key, Role role = Role::kWorker) {
  crypto::TlsOptions options;
  options.role = role;
  return crypto::TlsSecurity::Create(crypto::ParseKeyFile(key).value(), options).value();
}

struct SharedSide {
  std::string old_key = NewKey(), new_key = NewKey();
  std::unique_ptr<crypto::TlsSecurity> security = Shared(old_key, Role::kServer);
  KeptOut kept_out;
};

struct SharedNet : SharedSide, CoreNet {
  SharedNet() : CoreNet(Options(*this)) {}
  static ServerCoreOptions Options(SharedSide& side) {
    ServerCoreOptions options;
    options.settings.job = "pears";
    options.settings.world_size = 2;
    options.settings.min_workers = 1;
    options.security = side.security.get();
    options.events = &side.kept_out;
    return options;
  }
  void Reload(const std::vector<std::string>& files) {
    std::vector<std::shared_ptr<transport::Security>> keys;
    AccessRules rules;
    for (const std::string& file : files) {
      keys.push_back(Shared(file, Role::kServer));
      rules.trusts.push_back(crypto::TrustsOf(crypto::ParseKeyFile(file).value()).at(0));
    }
    core.Reload(network.now(), std::move(keys), rules);
    host.Pump();
    RunFor(std::chrono::milliseconds(300));
  }
  CoreClient& Worker(const std::string& key, uint32_t rank, uint64_t incarnation = 0) {
    CoreClient& client = Add(Shared(key));
    RunFor(std::chrono::milliseconds(300));
    if (!client.connected) return client;
    client.Join(rank, incarnation, "pears");
    RunFor(std::chrono::milliseconds(300));
    return client;
  }
};

// Both keys, then the members move, then the old one is dropped.
TEST_F(SharedNet, ASharedKeyIsRotatedInMidJob) {
  CoreClient &a = Worker(old_key, 0), &b = Worker(old_key, 1);
  EXPECT_EQ(core.stats().joined, 2u);
  EXPECT_FALSE(Worker(new_key, 0, 1).connected) << "not yet";
  Reload({old_key, new_key});
  EXPECT_FALSE(a.closed || b.closed);
  CoreClient& a2 = Worker(new_key, 0, 1);
  ASSERT_TRUE(a2.connected);
  EXPECT_TRUE(a2.heard.at(0).has_welcome());
  EXPECT_THAT(a.closed->ToString(), HasSubstr("replaced by incarnation 1"));
  EXPECT_FALSE(b.closed) << "the old key is good as well";
  Reload({new_key});
  ASSERT_TRUE(b.closed);
  EXPECT_THAT(b.closed->ToString(), HasSubstr("is not valid any more: take the new one"));
  EXPECT_FALSE(a2.closed);
  EXPECT_FALSE(Worker(old_key, 1, 1).connected);
  CoreClient& b2 = Worker(new_key, 1, 1);
  ASSERT_TRUE(b2.connected);
  EXPECT_TRUE(b2.heard.at(0).has_welcome());
  EXPECT_EQ(core.stats().joined, 2u);
  EXPECT_EQ(core.jobs_over(), 0u);
}

// The one place of truth about jobs is the handshake: what comes out of it is of this job.
TEST_F(SecureNet, AnotherJobsIdentityIsRefusedByTheHandshakeBeforeTheServerHearsOfIt) {
  CoreClient& stranger = Connect("apples", Role::kWorker, "fra");
  RunFor(std::chrono::seconds(2));
  EXPECT_FALSE(stranger.connected);
  EXPECT_EQ(core.endpoint_stats().accepted, 0u);
  EXPECT_EQ(core.stats().strangers, 0u);
  ASSERT_TRUE(stranger.closed);
  EXPECT_EQ(stranger.closed->code(), StatusCode::kPermissionDenied);
}

TEST_F(SecureNet, AToolMayAskAndMeasureButNotJoin) {
  CoreClient& tool = Connect("pears", Role::kTool, "bench");
  ASSERT_TRUE(tool.connected);
  ControlMessage message;
  message.mutable_status_request()->set_request(3);
  tool.Say(message);
  RunFor(std::chrono::milliseconds(100));
  ASSERT_EQ(tool.heard.size(), 1u);
  EXPECT_TRUE(tool.heard[0].has_status_reply());
  tool.Join(0, 0, "pears");
  RunFor(std::chrono::seconds(1));
  ASSERT_TRUE(tool.closed);
  EXPECT_EQ(
      tool.closed->ToString(),
      "PermissionDenied: the certificate of tool bench is not for joining the job: that takes a worker's");
}

}  // namespace
}  // namespace longhaul::server
