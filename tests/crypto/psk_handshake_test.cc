// Handshakes with a pre-shared key.
//
//   client ── ClientHello (job, binder) ──> server
//   client <── ServerHello, Finished ── server          complete at the client
//   client ── Finished ──> server                       complete at the server
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "base/random.h"
#include "tests/crypto/heap_watch.h"
#include "tests/crypto/tls_pair.h"
#include "transport/crypto/aead_protection.h"

namespace longhaul::crypto {
namespace {

using testing::Test;
using transport::PeerIdentity;

constexpr std::array<uint8_t, 4> kContext = {1, 2, 3, 4};

const std::string& JobA() {
  static const std::string file = Text(NewPsk("job-a"));
  return file;
}
Side Client(const std::string& file = JobA()) { return Side(file, Role::kWorker); }
Side Server(const std::string& file = JobA()) { return Side(file, Role::kServer); }

TEST(PskHandshakeTest, TheSameKeyConnectsInThreeFlights) {
  TlsPair pair(Client(), Server());
  const Outcome outcome = Exchange(*pair.client, *pair.server);
  ASSERT_TRUE(outcome.client.ok()) << outcome.client.ToString();
  ASSERT_TRUE(outcome.server.ok()) << outcome.server.ToString();
  ASSERT_TRUE(pair.client->complete() && pair.server->complete());
  EXPECT_EQ(outcome.flights, 3);
  EXPECT_LT(outcome.client_bytes, 1000u) << "the first flight fits an INIT";
  for (transport::HandshakeCrypto* side : {pair.client.get(), pair.server.get()}) {
    EXPECT_EQ(side->peer(),
              (PeerIdentity{.kind = PeerIdentity::Kind::kPsk, .job = "job-a", .role = "", .name = ""}));
    EXPECT_EQ(side->peer().trust.size(), 16u);
    EXPECT_EQ(side->peer().trust, pair.client->peer().trust);
  }
  auto client_keys = pair.client->MakeProtection(kContext),
       server_keys = pair.server->MakeProtection(kContext);
  EXPECT_TRUE(Understand(*client_keys, *server_keys));
  EXPECT_TRUE(client_keys->IsSecure());
}

TEST(PskHandshakeTest, TheServerHasNothingToSayFirst) {
  auto server = Server().Make()->NewSession(false);
  EXPECT_TRUE(server->TakeData().empty());
  EXPECT_TRUE(server->HandleData({}).ok());
  EXPECT_FALSE(server->complete());
}

TEST(PskHandshakeTest, ADifferentContextGivesDifferentKeys) {
  TlsPair pair(Client(), Server());
  Exchange(*pair.client, *pair.server);
  constexpr std::array<uint8_t, 4> kTampered = {1, 2, 3, 5};
  auto client_keys = pair.client->MakeProtection(kContext),
       server_keys = pair.server->MakeProtection(kTampered);
  EXPECT_FALSE(Understand(*client_keys, *server_keys));
}

TEST(PskHandshakeTest, TwoHandshakesHaveDifferentKeys) {
  TlsPair one(Client(), Server()), two(Client(), Server());
  Exchange(*one.client, *one.server);
  Exchange(*two.client, *two.server);
  auto client_keys = one.client->MakeProtection(kContext), server_keys = two.server->MakeProtection(kContext);
  EXPECT_FALSE(Understand(*client_keys, *server_keys));
}

TEST(PskHandshakeTest, AnotherKeyOfTheSameJobIsRefusedByName) {
  TlsPair pair(Client(Text(NewPsk("job-a"))), Server());
  const Outcome outcome = Exchange(*pair.client, *pair.server);
  EXPECT_FALSE(pair.client->complete());
  EXPECT_FALSE(pair.server->complete());
  EXPECT_EQ(outcome.server, Status(StatusCode::kPermissionDenied, "the client has another pre-shared key"));
  EXPECT_EQ(outcome.client.code(), StatusCode::kPermissionDenied) << outcome.client.ToString();
  EXPECT_NE(outcome.client.message().find("refuses our key"), std::string::npos) << outcome.client.ToString();
  EXPECT_EQ(pair.server->HandleData(kContext), outcome.server) << "a failed session stays failed";
}

TEST(PskHandshakeTest, AKeyOfAnotherJobIsRefusedByName) {
  TlsPair pair(Client(Text(NewPsk("job-b"))), Server());
  const Outcome outcome = Exchange(*pair.client, *pair.server);
  EXPECT_FALSE(pair.server->complete());
  EXPECT_EQ(outcome.server,
            Status(StatusCode::kPermissionDenied, "the client's key is of another job than job-a"));
  EXPECT_EQ(outcome.client.code(), StatusCode::kPermissionDenied) << outcome.client.ToString();
}

TEST(PskHandshakeTest, OptionsOfAnotherJobAreRefusedAtOnce) {
  Side side = Client();
  side.options.job = "job-b";
  EXPECT_EQ(side.Try().status().code(), StatusCode::kPermissionDenied);
  side.options.job = "job-a";
  EXPECT_TRUE(side.Try().ok());
  side.options.suites = {};
  EXPECT_EQ(side.Try().status().code(), StatusCode::kInvalidArgument);
}

TEST(PskHandshakeTest, PskAgainstCertificatesIsRefusedByName) {
  const std::string ca = Text(NewCa("ca", kThisDay));
  const Side certified_server(Text(IssueCertificate(ca, "job-a", Role::kServer, "s", kThisDay)),
                              Role::kServer);
  const Side certified_client(Text(IssueCertificate(ca, "job-a", Role::kWorker, "w", kThisDay)),
                              Role::kWorker);
  TlsPair one(Client(), certified_server);
  const Outcome first = Exchange(*one.client, *one.server);
  EXPECT_EQ(first.client.code(), StatusCode::kPermissionDenied) << first.client.ToString();
  EXPECT_NE(first.client.message().find("server uses certificates"), std::string::npos)
      << first.client.ToString();
  EXPECT_EQ(first.server.code(), StatusCode::kPermissionDenied) << first.server.ToString();
  TlsPair two(certified_client, Server());
  const Outcome second = Exchange(*two.client, *two.server);
  EXPECT_EQ(second.server, Status(StatusCode::kPermissionDenied, "the client has no pre-shared key"));
  EXPECT_EQ(second.client.code(), StatusCode::kPermissionDenied) << second.client.ToString();
}

TEST(PskHandshakeTest, TheClientsFirstSuiteIsThePacketsAead) {
  for (AeadSuite suite : {AeadSuite::kAes128Gcm, AeadSuite::kAes256Gcm, AeadSuite::kChaCha20Poly1305}) {
    Side client = Client();
    client.options.suites = {suite, AeadSuite::kAes128Gcm};
    TlsPair pair(client, Server());
    const Outcome outcome = Exchange(*pair.client, *pair.server);
    ASSERT_TRUE(pair.server->complete()) << outcome.server.ToString();
    auto client_keys = pair.client->MakeProtection(kContext),
         server_keys = pair.server->MakeProtection(kContext);
    EXPECT_EQ(dynamic_cast<AeadProtection&>(*client_keys).suite(), suite);
    EXPECT_TRUE(Understand(*client_keys, *server_keys));
  }
}

TEST(PskHandshakeTest, NoSuiteInCommonIsASettingsMismatch) {
  Side client = Client(), server = Server();
  client.options.suites = {AeadSuite::kAes128Gcm};
  server.options.suites = {AeadSuite::kChaCha20Poly1305};
  TlsPair pair(client, server);
  const Outcome outcome = Exchange(*pair.client, *pair.server);
  EXPECT_EQ(outcome.server.code(), StatusCode::kSettingsMismatch) << outcome.server.ToString();
  EXPECT_FALSE(outcome.client.ok());
}

TEST(PskHandshakeTest, StreamsInPiecesOfAnySize) {
  for (size_t piece : {1, 2, 3, 5, 7, 16, 64, 100, 333}) {
    TlsPair pair(Client(), Server());
    const Outcome outcome = Exchange(*pair.client, *pair.server, piece);
    ASSERT_TRUE(pair.client->complete() && pair.server->complete())
        << piece << " " << outcome.server.ToString();
  }
}

TEST(PskHandshakeTest, ADatagramOfAnEarlierSessionIsWorthNothing) {
  TlsPair recorded(Client(), Server());
  const std::vector<uint8_t> hello = recorded.client->TakeData();
  ASSERT_TRUE(recorded.server->HandleData(hello).ok());
  ASSERT_TRUE(recorded.client->HandleData(recorded.server->TakeData()).ok());
  const std::vector<uint8_t> finished = recorded.client->TakeData();
  auto replayed = recorded.server_security->NewSession(false);
  ASSERT_TRUE(replayed->HandleData(hello).ok());
  EXPECT_FALSE(replayed->HandleData(finished).ok());
  EXPECT_FALSE(replayed->complete());
}

TEST(PskHandshakeTest, EveryFlippedByteFailsOrChangesNothing) {
  TlsPair sample(Client(), Server());
  const size_t hello_bytes = sample.client->TakeData().size();
  for (size_t i = 0; i < hello_bytes; ++i) {
    TlsPair pair(Client(), Server());
    std::vector<uint8_t> hello = pair.client->TakeData();
    hello[i] ^= 0x11;
    (void)pair.server->HandleData(hello);
    Exchange(*pair.client, *pair.server);
    if (!pair.client->complete() || !pair.server->complete()) continue;
    // TLS leaves the version in a record's header out of the transcript (RFC 8446 §5.1).
    EXPECT_TRUE(i == 1 || i == 2) << "byte " << i;
    auto client_keys = pair.client->MakeProtection(kContext),
         server_keys = pair.server->MakeProtection(kContext);
    EXPECT_TRUE(Understand(*client_keys, *server_keys));
  }
}

TEST(PskHandshakeTest, EveryFlippedByteOfTheServersFlightIsRefused) {
  TlsPair sample(Client(), Server());
  ASSERT_TRUE(sample.server->HandleData(sample.client->TakeData()).ok());
  const size_t flight_bytes = sample.server->TakeData().size();
  for (size_t i = 0; i < flight_bytes; ++i) {
    TlsPair pair(Client(), Server());
    ASSERT_TRUE(pair.server->HandleData(pair.client->TakeData()).ok());
    std::vector<uint8_t> flight = pair.server->TakeData();
    ASSERT_EQ(flight.size(), flight_bytes);
    flight[i] ^= 0x80;
    (void)pair.client->HandleData(flight);
    Exchange(*pair.client, *pair.server);
    // As above: the record's version, here of the one record that is not encrypted.
    EXPECT_TRUE(i == 1 || i == 2 || !pair.server->complete()) << "byte " << i;
  }
}

TEST(PskHandshakeTest, GarbageEndsInAStatus) {
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  const auto client_security = Client().Make();
  const auto server_security = Server().Make();
  for (int round = 0; round < 500; ++round) {
    const bool is_client = random.Chance(0.5);
    auto session = (is_client ? *client_security : *server_security).NewSession(is_client);
    for (int i = 0; i < 4; ++i) {
      std::vector<uint8_t> bytes(random.Below(600));
      for (uint8_t& b : bytes) b = static_cast<uint8_t>(random.Next());
      // Half of them look like a handshake record of their size.
      if (bytes.size() > 9 && random.Chance(0.5)) {
        const size_t length = bytes.size() - 5;
        bytes[0] = 22;
        bytes[1] = bytes[2] = 3;
        bytes[3] = static_cast<uint8_t>(length >> 8);
        bytes[4] = static_cast<uint8_t>(length);
        bytes[5] = is_client ? 2 : 1;
      }
      (void)session->HandleData(bytes);
      (void)session->TakeData();
    }
    ASSERT_FALSE(session->complete());
  }
}

TEST(PskHandshakeTest, TruncatedFlightsWaitAndThenComplete) {
  TlsPair sample(Client(), Server());
  const size_t size = sample.client->TakeData().size();
  const auto server_security = Server().Make();
  const auto client_security = Client().Make();
  for (size_t cut = 0; cut < size; cut += 3) {
    auto client = client_security->NewSession(true), server = server_security->NewSession(false);
    const std::vector<uint8_t> hello = client->TakeData();
    ASSERT_TRUE(server->HandleData(ByteSpan(hello).first(cut)).ok()) << cut;
    ASSERT_TRUE(server->TakeData().empty());
    ASSERT_TRUE(server->HandleData(ByteSpan(hello).subspan(cut)).ok());
    Exchange(*client, *server);
    ASSERT_TRUE(server->complete());
  }
}

TEST(PskHandshakeTest, AHandshakeWithoutEndIsRefused) {
  auto server = Server().Make()->NewSession(false);
  // Handshake records of 16,384 bytes that begin a ClientHello of 16 MB.
  std::vector<uint8_t> record(5 + 16384);
  record[0] = 22;
  record[1] = record[2] = 3;
  record[3] = 0x40;
  record[5] = 1;
  record[6] = record[7] = record[8] = 0xff;
  Status status;
  int records = 0;
  for (; status.ok() && records < 10; ++records) status = server->HandleData(record);
  EXPECT_FALSE(status.ok());
  EXPECT_LE(records, 5);
  // A record that never ends: bytes only.
  auto client = Client().Make()->NewSession(true);
  status = {};
  size_t bytes = 0;
  for (std::vector<uint8_t> dribble = {22, 3, 3, 0x40, 0}; status.ok() && bytes < 200'000;
       bytes += dribble.size()) {
    status = client->HandleData(dribble);
  }
  EXPECT_FALSE(status.ok());
  EXPECT_LE(bytes, kMaxHandshakeBytes + 100);
}

TEST(PskHandshakeTest, OneByteAtATimeCannotExceedTheBound) {
  auto server = Server().Make()->NewSession(false);
  Status status = server->HandleData(std::vector<uint8_t>(kMaxHandshakeBytes + 1));
  EXPECT_EQ(status.code(), StatusCode::kProtocolViolation);
  EXPECT_NE(status.message().find("64 KiB"), std::string::npos);
}

TEST(PskHandshakeTest, LittleMayFollowTheHandshake) {
  TlsPair pair(Client(), Server());
  Exchange(*pair.client, *pair.server);
  Status status;
  size_t bytes = 0;
  // A record that begins and never ends.
  for (std::vector<uint8_t> next = {23, 3, 3, 0x40, 0}; status.ok() && bytes < 10'000; bytes += next.size()) {
    status = pair.client->HandleData(next);
    next.assign(100, 0);
  }
  EXPECT_EQ(status.code(), StatusCode::kProtocolViolation);
  EXPECT_LT(bytes, 2000u);
}

// After completion nothing travels in TLS.
TEST(PskHandshakeTest, BytesAfterTheHandshakeEndTheSession) {
  TlsPair pair(Client(), Server());
  Exchange(*pair.client, *pair.server);
  EXPECT_TRUE(pair.client->HandleData({}).ok());
  EXPECT_FALSE(pair.client->HandleData(std::vector<uint8_t>(100, 23)).ok());
  EXPECT_FALSE(pair.client->complete());
}

TEST(PskHandshakeTest, TheKeyIsWipedEverywhere) {
  ASSERT_TRUE(HeapWatch::SeesOpenSsl());
  const Result<Credentials> parsed = ParseKeyFile(JobA());
  ASSERT_TRUE(parsed.ok());
  const HeapWatch watch(std::get<PskKey>(parsed.value()).psk.span());
  {
    TlsPair pair(Client(), Server());
    Exchange(*pair.client, *pair.server);
    ASSERT_TRUE(pair.server->complete());
    auto keys = pair.client->MakeProtection(kContext);
  }
  EXPECT_EQ(watch.leaks(), 0u);
}

TEST(PskHandshakeTest, MessagesNameNoKey) {
  const std::string other = Text(NewPsk("job-a"));
  const std::string hex = other.substr(other.find("psk = ") + 6, 64);
  TlsPair pair(Client(other), Server());
  const Outcome outcome = Exchange(*pair.client, *pair.server);
  for (const Status& status : {outcome.client, outcome.server}) {
    EXPECT_EQ(status.message().find(hex.substr(0, 8)), std::string::npos);
  }
}

}  // namespace
}  // namespace longhaul::crypto
