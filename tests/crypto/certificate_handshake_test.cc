// Handshakes with certificates on both sides: which peers get in, and which reason the others get.
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <array>

#include "tests/crypto/heap_watch.h"
#include "tests/crypto/tls_pair.h"
#include "transport/crypto/aead_protection.h"
#include "transport/crypto/certificate.h"

namespace longhaul::crypto {
namespace {

using transport::PeerIdentity;

const std::string& Ca() {
  static const std::string bundle = Text(NewCa("test-ca", kThisDay));
  return bundle;
}
std::string Issue(Role role, std::string_view name, std::string_view job = "job-a",
                  const Validity& validity = kThisDay, const std::string& ca = Ca()) {
  return Text(IssueCertificate(ca, job, role, name, validity));
}
Side Worker(const std::string& file) { return Side(file, Role::kWorker); }
Side Server(const std::string& file) { return Side(file, Role::kServer); }
Side GoodServer() { return Server(Issue(Role::kServer, "server-0")); }
Side GoodWorker() { return Worker(Issue(Role::kWorker, "worker-0")); }

// A P-256 key and its certificate, made with OpenSSL alone: issued by Ca(), without key usage extensions.
std::string ForeignBundle(const std::string& uri) {
  const PrivateKey key(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256")), ca_key = ParsePrivateKey(Ca());
  const Result<std::vector<Certificate>> ca = ParseCertificates(Ca());
  const Certificate certificate(X509_new());
  X509* c = certificate.get();
  X509_set_version(c, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(c), 7);
  X509_set_issuer_name(c, X509_get_subject_name(ca->front().get()));
  ASN1_TIME_set(X509_getm_notBefore(c), kThisDay.not_before);
  ASN1_TIME_set(X509_getm_notAfter(c), kThisDay.not_after);
  X509_set_pubkey(c, key.get());
  X509_EXTENSION* name = X509V3_EXT_nconf_nid(nullptr, nullptr, NID_subject_alt_name, ("URI:" + uri).c_str());
  EXPECT_EQ(X509_add_ext(c, name, -1), 1);
  X509_EXTENSION_free(name);
  EXPECT_NE(X509_sign(c, ca_key.get(), nullptr), 0);
  const Bio bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(bio.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  PEM_write_bio_X509(bio.get(), c);
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);
  return std::string(text, static_cast<size_t>(size)) + Ca().substr(Ca().find("-----BEGIN CERTIFICATE"));
}

// The refusing side's words; the other side must not complete, or learn of it by the alert.
std::string RefusedByServer(const Side& client, const Side& server) {
  TlsPair pair(client, server);
  const Outcome outcome = Exchange(*pair.client, *pair.server);
  EXPECT_FALSE(pair.server->complete());
  EXPECT_FALSE(pair.client->complete()) << "the alert tells a client that was complete already";
  EXPECT_EQ(outcome.server.code(), StatusCode::kPermissionDenied) << outcome.server.ToString();
  EXPECT_EQ(outcome.client.code(), StatusCode::kPermissionDenied) << outcome.client.ToString();
  EXPECT_NE(outcome.client.message().find("refuses our key"), std::string::npos) << outcome.client.ToString();
  return outcome.server.message();
}
std::string RefusedByClient(const Side& client, const Side& server) {
  TlsPair pair(client, server);
  const Outcome outcome = Exchange(*pair.client, *pair.server);
  EXPECT_FALSE(pair.client->complete());
  EXPECT_FALSE(pair.server->complete());
  EXPECT_EQ(outcome.client.code(), StatusCode::kPermissionDenied) << outcome.client.ToString();
  EXPECT_FALSE(outcome.server.ok());
  return outcome.client.message();
}

TEST(CertificateHandshakeTest, ServerAndWorkerKnowEachOther) {
  TlsPair pair(GoodWorker(), GoodServer());
  const Outcome outcome = Exchange(*pair.client, *pair.server);
  ASSERT_TRUE(outcome.client.ok()) << outcome.client.ToString();
  ASSERT_TRUE(outcome.server.ok()) << outcome.server.ToString();
  ASSERT_TRUE(pair.client->complete() && pair.server->complete());
  EXPECT_EQ(outcome.flights, 3);
  EXPECT_EQ(pair.client->peer(),
            (PeerIdentity{PeerIdentity::Kind::kCertificate, "job-a", "server", "server-0"}));
  EXPECT_EQ(pair.server->peer(),
            (PeerIdentity{PeerIdentity::Kind::kCertificate, "job-a", "worker", "worker-0"}));
  auto client_keys = pair.client->MakeProtection({}), server_keys = pair.server->MakeProtection({});
  EXPECT_TRUE(Understand(*client_keys, *server_keys));
  RecordProperty("client_bytes", static_cast<int>(outcome.client_bytes));
  RecordProperty("server_bytes", static_cast<int>(outcome.server_bytes));
  EXPECT_LT(outcome.client_bytes, 3000u);
  EXPECT_LT(outcome.server_bytes, 3000u);
}

TEST(CertificateHandshakeTest, AToolIsAClientToo) {
  TlsPair pair(Side(Issue(Role::kTool, "laptop"), Role::kTool), GoodServer());
  Exchange(*pair.client, *pair.server);
  ASSERT_TRUE(pair.server->complete());
  EXPECT_EQ(pair.server->peer().role, "tool");
}

TEST(CertificateHandshakeTest, AllSuites) {
  for (AeadSuite suite : {AeadSuite::kAes128Gcm, AeadSuite::kAes256Gcm, AeadSuite::kChaCha20Poly1305}) {
    Side server = GoodServer();
    server.options.suites = {suite};
    TlsPair pair(GoodWorker(), server);
    const Outcome outcome = Exchange(*pair.client, *pair.server);
    ASSERT_TRUE(pair.server->complete()) << outcome.server.ToString();
    auto keys = pair.server->MakeProtection({});
    EXPECT_EQ(dynamic_cast<AeadProtection&>(*keys).suite(), suite) << "the server has no other";
  }
}

TEST(CertificateHandshakeTest, StreamsInPiecesOfAnySize) {
  for (size_t piece : {1, 17, 512}) {
    TlsPair pair(GoodWorker(), GoodServer());
    Exchange(*pair.client, *pair.server, piece);
    ASSERT_TRUE(pair.client->complete() && pair.server->complete()) << piece;
  }
}

TEST(CertificateHandshakeTest, ExpiredCertificatesAreRefused) {
  const Validity yesterday = {kToday - 80'000, kToday - 1};
  EXPECT_EQ(RefusedByServer(Worker(Issue(Role::kWorker, "w", "job-a", yesterday)), GoodServer()),
            "the peer's certificate has expired");
  EXPECT_EQ(RefusedByClient(GoodWorker(), Server(Issue(Role::kServer, "s", "job-a", yesterday))),
            "the peer's certificate has expired");
}

TEST(CertificateHandshakeTest, CertificatesOfTomorrowAreRefused) {
  const Validity tomorrow = {kToday + 1, kToday + 40'000};
  EXPECT_EQ(RefusedByServer(Worker(Issue(Role::kWorker, "w", "job-a", tomorrow)), GoodServer()),
            "the peer's certificate is not valid yet");
  EXPECT_EQ(RefusedByClient(GoodWorker(), Server(Issue(Role::kServer, "s", "job-a", tomorrow))),
            "the peer's certificate is not valid yet");
}

TEST(CertificateHandshakeTest, TheClockIsReadForEverySession) {
  int64_t now = kToday;
  Side server = GoodServer();
  server.options.wall_clock = [&now] { return now; };
  const auto security = server.Make();
  const auto client_security = GoodWorker().Make();
  for (int64_t later : {int64_t{0}, int64_t{100'000}}) {
    now = kToday + later;
    auto client = client_security->NewSession(true), session = security->NewSession(false);
    Exchange(*client, *session);
    EXPECT_EQ(session->complete(), later == 0);
  }
}

TEST(CertificateHandshakeTest, AnExpiredCaIsRefused) {
  const std::string old_ca = Text(NewCa("old-ca", {kToday - 80'000, kToday - 1}));
  const Side client = Worker(Issue(Role::kWorker, "w", "job-a", kThisDay, old_ca));
  const Side server = Server(Issue(Role::kServer, "s", "job-a", kThisDay, old_ca));
  EXPECT_EQ(RefusedByClient(client, server), "the CA's certificate has expired");
}

TEST(CertificateHandshakeTest, AnotherCaIsRefused) {
  const std::string other_ca = Text(NewCa("test-ca", kThisDay));  // of the same name
  EXPECT_EQ(RefusedByClient(Worker(Issue(Role::kWorker, "w", "job-a", kThisDay, other_ca)), GoodServer()),
            "the peer's certificate was not issued by our CA");
  // A client that trusts us is refused by us all the same.
  std::string stranger = Issue(Role::kWorker, "w", "job-a", kThisDay, other_ca);
  stranger += Ca().substr(Ca().find("-----BEGIN CERTIFICATE"));
  EXPECT_EQ(RefusedByServer(Worker(stranger), GoodServer()),
            "the peer's certificate was not issued by our CA");
}

TEST(CertificateHandshakeTest, AnotherJobIsRefused) {
  EXPECT_EQ(RefusedByClient(Worker(Issue(Role::kWorker, "w", "job-b")), GoodServer()),
            "the peer's certificate is of job job-a, not of job-b");
  // The server's own refusal, of a client that does not look: it shows the worker's certificate of job-b and
  // expects a server of job-a.
  const Side other_server = Server(Issue(Role::kServer, "s", "job-b"));
  EXPECT_EQ(RefusedByClient(GoodWorker(), other_server),
            "the peer's certificate is of job job-b, not of job-a");
}

TEST(CertificateHandshakeTest, AWorkersCertificateMakesNoServer) {
  Side impostor(Issue(Role::kWorker, "w"), Role::kServer);
  EXPECT_EQ(impostor.Try().status(),
            Status(StatusCode::kPermissionDenied, "the certificate is for a worker, not for a server"));
  // As an attacker would, without our own check at the start.
  impostor.options.role = Role::kWorker;
  EXPECT_EQ(RefusedByClient(GoodWorker(), impostor), "the peer's certificate is not for this role");
}

// A server of a job of several connects to the first one, whose list is of workers and tools. What it may ask
// for is not TLS's to say (server/job/authorization.h).
TEST(CertificateHandshakeTest, AServerConnectsToAnotherOneAsAServer) {
  Side first = GoodServer();
  first.options.allow = AllowList::Parse({"worker-0"}).value();
  TlsPair pair(Side(Issue(Role::kServer, "s"), Role::kServer), first);
  Exchange(*pair.client, *pair.server);
  EXPECT_TRUE(pair.client->complete() && pair.server->complete());
  EXPECT_EQ(pair.server->peer().role, "server");
}

TEST(CertificateHandshakeTest, TheAllowListNamesWhoMayConnect) {
  Side server = GoodServer();
  server.options.allow = AllowList::Parse({"worker-0", "worker/worker-1", "tool/ops"}).value();
  TlsPair pair(GoodWorker(), server);
  Exchange(*pair.client, *pair.server);
  EXPECT_TRUE(pair.server->complete());
  EXPECT_EQ(RefusedByServer(Worker(Issue(Role::kWorker, "worker-2")), server),
            "the peer's certificate is of worker worker-2, which is not on the list of allowed names");
  EXPECT_EQ(RefusedByServer(Side(Issue(Role::kTool, "worker-0"), Role::kTool), server),
            "the peer's certificate is of tool worker-0, which is not on the list of allowed names");
  EXPECT_EQ(RefusedByServer(Worker(Issue(Role::kWorker, "ops")), server),
            "the peer's certificate is of worker ops, which is not on the list of allowed names");
}

TEST(CertificateHandshakeTest, AClientMayAskForOneServer) {
  Side worker = GoodWorker();
  worker.options.expected_server = "server-0";
  TlsPair pair(worker, GoodServer());
  Exchange(*pair.client, *pair.server);
  EXPECT_TRUE(pair.client->complete() && pair.server->complete());
  EXPECT_EQ(RefusedByClient(worker, Server(Issue(Role::kServer, "server-1"))),
            "the peer's certificate is of server server-1, not of server-0");
}

TEST(CertificateHandshakeTest, AnIdentityHasItsRanksItsAuthorityAndItsEnd) {
  const Validity shorter{kThisDay.not_before, kToday + 100};
  const std::string file =
      Text(IssueCertificate(Ca(), "job-a", Role::kWorker, "nyc", shorter, RankRange{1, 3}));
  TlsPair pair(Worker(file), GoodServer());
  Exchange(*pair.client, *pair.server);
  ASSERT_TRUE(pair.server->complete());
  const PeerIdentity& worker = pair.server->peer();
  EXPECT_EQ(worker.ranks, (RankRange{1, 3}));
  EXPECT_EQ(worker.expires, kToday + 100);
  EXPECT_EQ(worker.trust, TrustsOf(ParseKeyFile(file).value()).at(0));
  EXPECT_EQ(pair.client->peer().trust, worker.trust) << "one authority";
  EXPECT_EQ(pair.client->peer().expires, kThisDay.not_after);
  EXPECT_FALSE(pair.client->peer().ranks);
  const std::string other = Text(NewCa("test-ca", kThisDay));
  EXPECT_NE(TrustsOf(ParseKeyFile(Issue(Role::kWorker, "a", "job-a", kThisDay, other)).value()).at(0),
            worker.trust);
  EXPECT_FALSE(IssueCertificate(Ca(), "job-a", Role::kTool, "ops", kThisDay, RankRange{0, 0}).ok());
}

TEST(IdentityUriTest, RanksArePartOfAWorkersUri) {
  EXPECT_EQ(IdentityUri("j", Role::kWorker, "nyc", RankRange{1, 3}), "longhaul://j/worker/nyc?ranks=1-3");
  EXPECT_EQ(ParseIdentityUri("longhaul://j/worker/nyc?ranks=7")->ranks, (RankRange{7, 7}));
  EXPECT_FALSE(ParseIdentityUri("longhaul://j/worker/nyc")->ranks);
  for (const char* uri : {"longhaul://j/worker/nyc?", "longhaul://j/worker/nyc?ranks=",
                          "longhaul://j/worker/nyc?ranks=3-1", "longhaul://j/worker/nyc?rank=1",
                          "longhaul://j/worker/nyc?ranks=1&x=2", "longhaul://j/tool/ops?ranks=1",
                          "longhaul://j/worker?ranks=1/nyc", "longhaul://j/server/s?ranks=0"}) {
    EXPECT_FALSE(ParseIdentityUri(uri)) << uri;
  }
}

TEST(CertificateHandshakeTest, CertificatesNeedAClock) {
  Side side = GoodServer();
  side.options.wall_clock = nullptr;
  EXPECT_EQ(side.Try().status().code(), StatusCode::kInvalidArgument);
}

TEST(CertificateHandshakeTest, EveryFlippedByteOfTheCertificateFlightIsRefused) {
  const auto client_security = GoodWorker().Make(), server_security = GoodServer().Make();
  const auto last_flight = [&](transport::HandshakeCrypto& client, transport::HandshakeCrypto& server) {
    EXPECT_TRUE(server.HandleData(client.TakeData()).ok());
    EXPECT_TRUE(client.HandleData(server.TakeData()).ok());
    return client.TakeData();
  };
  auto sample = client_security->NewSession(true), sample_server = server_security->NewSession(false);
  const size_t size = last_flight(*sample, *sample_server).size();
  for (size_t i = 0; i < size; i += 7) {
    auto client = client_security->NewSession(true), server = server_security->NewSession(false);
    std::vector<uint8_t> flight = last_flight(*client, *server);
    flight[i] ^= 4;
    EXPECT_FALSE(server->HandleData(flight).ok() && server->complete()) << i;
  }
}

// Any host can send a client bytes: only the server's alert, which TLS opens, ends its session.
TEST(CertificateHandshakeTest, BytesOfAnyHostAfterTheHandshakeEndNothing) {
  for (const size_t size : {1, 5, 100}) {
    TlsPair pair(GoodWorker(), GoodServer());
    Exchange(*pair.client, *pair.server);
    ASSERT_TRUE(pair.client->complete());
    EXPECT_TRUE(pair.client->HandleData(std::vector<uint8_t>(size, 23)).ok()) << size;
    // Nothing is heard any more, so these bytes do not count either: 1024 would be too many for TLS.
    for (int i = 0; i < 20; ++i)
      ASSERT_TRUE(pair.client->HandleData(std::vector<uint8_t>(100, 21)).ok()) << i;
    EXPECT_TRUE(pair.client->complete());
    auto client_keys = pair.client->MakeProtection({}), server_keys = pair.server->MakeProtection({});
    EXPECT_TRUE(Understand(*client_keys, *server_keys));
  }
}

// One ClientHello for several answers.
TEST(CertificateHandshakeTest, AClientSaysTheSameAgainAndTakesEachAnswerAlone) {
  const auto client_security = GoodWorker().Make(), server_security = GoodServer().Make();
  const std::string other_ca = Text(NewCa("test-ca", kThisDay));
  const auto impostor_security = Server(Issue(Role::kServer, "server-0", "job-a", kThisDay, other_ca)).Make();
  const auto first = client_security->NewSession(true);
  const std::vector<uint8_t> hello = first->TakeData();
  EXPECT_NE(client_security->NewSession(true)->TakeData(), hello) << "another connection's is another";
  for (const bool genuine : {false, true, false, true}) {
    const auto again = first->Again();
    ASSERT_NE(again, nullptr);
    EXPECT_EQ(again->TakeData(), hello);
    const auto server = (genuine ? server_security : impostor_security)->NewSession(false);
    ASSERT_TRUE(server->HandleData(hello).ok());
    const Status heard = again->HandleData(server->TakeData());
    EXPECT_EQ(heard.ok(), genuine) << heard.ToString();
    EXPECT_EQ(again->complete(), genuine);
    if (!genuine) continue;
    ASSERT_TRUE(server->HandleData(again->TakeData()).ok());
    auto client_keys = again->MakeProtection({}), server_keys = server->MakeProtection({});
    EXPECT_TRUE(Understand(*client_keys, *server_keys));
    EXPECT_EQ(again->Again(), nullptr) << "it has heard something";
  }
}

TEST(CertificateHandshakeTest, ThePrivateKeyIsWipedEverywhere) {
  ASSERT_TRUE(HeapWatch::SeesOpenSsl());
  const std::string worker = Issue(Role::kWorker, "w"), server = Issue(Role::kServer, "s");
  // The last 32 bytes of an Ed25519 key in PKCS #8 are the key; its PEM is one line of 64 characters.
  const std::string marker = "-----BEGIN PRIVATE KEY-----\n";
  const std::string line = worker.substr(worker.find(marker) + marker.size(), 64);
  std::array<uint8_t, 48> der{};
  ASSERT_EQ(EVP_DecodeBlock(der.data(), reinterpret_cast<const uint8_t*>(line.data()), 64), 48);
  for (ByteSpan secret :
       {ByteSpan(der).last(32), ByteSpan(reinterpret_cast<const uint8_t*>(line.data()) + 24, 32)}) {
    const Side client_side = Worker(worker), server_side = Server(server);
    const HeapWatch watch(secret);
    {
      Result<Credentials> client_key = ParseKeyFile(client_side.file),
                          server_key = ParseKeyFile(server_side.file);
      ASSERT_TRUE(client_key.ok() && server_key.ok());
      auto client_security = TlsSecurity::Create(std::move(client_key).value(), client_side.options);
      auto server_security = TlsSecurity::Create(std::move(server_key).value(), server_side.options);
      ASSERT_TRUE(client_security.ok() && server_security.ok());
      auto client = (*client_security)->NewSession(true), session = (*server_security)->NewSession(false);
      Exchange(*client, *session);
      ASSERT_TRUE(session->complete());
    }
    EXPECT_EQ(watch.leaks(), 0u);
  }
}

// Certificates of keys that longhaul does not make, as a site's own authority may issue them.
TEST(CertificateHandshakeTest, AForeignKindOfKeyConnectsToo) {
  const std::string file = ForeignBundle("longhaul://job-a/worker/p-256");
  TlsPair pair(Worker(file), GoodServer());
  const Outcome outcome = Exchange(*pair.client, *pair.server);
  ASSERT_TRUE(pair.server->complete()) << outcome.server.ToString();
  EXPECT_EQ(pair.server->peer().name, "p-256");
  EXPECT_EQ(pair.client_security->ResetToken({5}), Worker(file).Make()->ResetToken({5}));
}

TEST(CertificateHandshakeTest, ACertificateWithoutIdentityIsRefused) {
  for (const char* uri : {"https://example.net/", "longhaul://job-a/boss/w", "longhaul://job-a/worker/w/x"}) {
    EXPECT_NE(Worker(ForeignBundle(uri)).Try().status().message().find("names no identity"),
              std::string::npos);
  }
  const std::string two = ForeignBundle("longhaul://job-a/worker/w,URI:longhaul://job-b/worker/w");
  EXPECT_NE(Worker(two).Try().status().message().find("more than one"), std::string::npos);
}

}  // namespace
}  // namespace longhaul::crypto
