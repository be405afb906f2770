// What an endpoint's security keeps besides its sessions: long packets, cookies, reset tokens.
#include "transport/crypto/tls_security.h"

#include <gtest/gtest.h>

#include "tests/crypto/heap_watch.h"
#include "tests/crypto/tls_pair.h"

namespace longhaul::crypto {
namespace {

constexpr wire::ConnectionId kServerCid{0xabcdef};

const std::string& Ca() {
  static const std::string bundle = Text(NewCa("test-ca", kThisDay));
  return bundle;
}

TEST(TlsSecurityTest, LongPacketsOfThePskAreClosedToOutsiders) {
  const std::string file = Text(NewPsk("job-a"));
  const auto client = Side(file, Role::kWorker).Make(), server = Side(file, Role::kServer).Make();
  const auto stranger = Side(Text(NewPsk("job-a")), Role::kWorker).Make();
  EXPECT_TRUE(client->long_protection().IsSecure());
  EXPECT_TRUE(Understand(client->long_protection(), server->long_protection()));
  EXPECT_FALSE(Understand(stranger->long_protection(), server->long_protection()));
}

TEST(TlsSecurityTest, LongPacketsOfCertificatesAreOpenToEverybody) {
  const auto one =
      Side(Text(IssueCertificate(Ca(), "a", Role::kWorker, "w", kThisDay)), Role::kWorker).Make();
  const std::string other_ca = Text(NewCa("other", kThisDay));
  const auto two =
      Side(Text(IssueCertificate(other_ca, "b", Role::kServer, "s", kThisDay)), Role::kServer).Make();
  EXPECT_FALSE(one->long_protection().IsSecure());
  EXPECT_TRUE(Understand(one->long_protection(), two->long_protection()));
}

TEST(TlsSecurityTest, ResetTokensSurviveARestartAndDifferByConnectionAndKey) {
  const std::string psk = Text(NewPsk("job-a"));
  const std::string bundle = Text(IssueCertificate(Ca(), "job-a", Role::kServer, "s", kThisDay));
  for (const std::string& file : {psk, bundle}) {
    const auto before = Side(file, Role::kServer).Make(), after = Side(file, Role::kServer).Make();
    EXPECT_EQ(before->ResetToken(kServerCid), after->ResetToken(kServerCid));
    EXPECT_NE(before->ResetToken(kServerCid), before->ResetToken({kServerCid.value + 1}));
  }
  const auto other =
      Side(Text(IssueCertificate(Ca(), "job-a", Role::kServer, "s", kThisDay)), Role::kServer).Make();
  EXPECT_NE(other->ResetToken(kServerCid), Side(bundle, Role::kServer).Make()->ResetToken(kServerCid));
}

// Else an attacker could make one server say that another has forgotten its connections.
TEST(TlsSecurityTest, ServersWithOneKeyDoNotMakeEachOthersResetTokens) {
  const std::string psk = Text(NewPsk("job-a"));
  const std::string bundle = Text(IssueCertificate(Ca(), "job-a", Role::kServer, "s", kThisDay));
  for (const std::string& file : {psk, bundle}) {
    const auto token = [&](const std::string& name) {
      Side side(file, Role::kServer);
      side.options.server_name = name;
      return side.Make()->ResetToken(kServerCid);
    };
    const std::string host(300, 'x');
    EXPECT_EQ(token("one:7700"), token("one:7700")) << "after a restart";
    EXPECT_NE(token("one:7700"), token("two:7700"));
    EXPECT_NE(token("one:7700"), token(""));
    EXPECT_EQ(token(host), token(host));
    EXPECT_NE(token(host), token(host + 'x'));
  }
}

TEST(TlsSecurityTest, CookiesAreTheServersOwn) {
  const std::string file = Text(NewPsk("job-a"));
  const auto server = Side(file, Role::kServer).Make(), restarted = Side(file, Role::kServer).Make();
  const Address from = Address::V4(10, 0, 0, 1, 99);
  const Instant now = Instant::FromNanoseconds(5'000'000'000);
  const auto cookie = server->MakeCookie(now, from, {7});
  ASSERT_TRUE(cookie);
  EXPECT_TRUE(server->CheckCookie(now, from, {7}, *cookie));
  EXPECT_FALSE(restarted->CheckCookie(now, from, {7}, *cookie)) << "holders of the key must not make cookies";
}

TEST(TlsSecurityTest, SessionsOutliveTheirSecurity) {
  const std::string file = Text(NewPsk("job-a"));
  auto client = Side(file, Role::kWorker).Make()->NewSession(true);
  auto server = Side(file, Role::kServer).Make()->NewSession(false);
  Exchange(*client, *server);
  EXPECT_TRUE(client->complete() && server->complete());
}

TEST(TlsSecurityTest, ResetKeysAreWiped) {
  ASSERT_TRUE(HeapWatch::SeesOpenSsl());
  const std::string file = Text(NewPsk("job-a"));
  auto security = Side(file, Role::kServer).Make();
  const auto token = security->ResetToken(kServerCid);
  const HeapWatch watch(token);
  (void)security->ResetToken(kServerCid);
  security.reset();
  EXPECT_EQ(watch.leaks(), 0u);
}

}  // namespace
}  // namespace longhaul::crypto
