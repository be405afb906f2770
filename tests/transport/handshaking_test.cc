// The beginning of a connection, between two Handshakings without a network: flights, keys, refusals, RETRY,
// confirmation and reset.
#include "transport/core/connection/handshaking.h"

#include "proto/version.h"
#include "tests/transport/owners.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;
using Next = Handshaking::Outcome::Next;

const Instant kNow = Instant() + 1s;

ByteSpan Encoded(const wire::Frame& frame, std::vector<uint8_t>* out) {
  out->assign(2000, 0);
  ByteWriter writer(*out);
  EXPECT_TRUE(wire::Encode(frame, writer));
  return writer.written();
}

// A REFUSE as the endpoint hands it over.
Handshaking::Outcome Refuse(Handshaking* client, Instant now, StatusCode code, uint16_t version) {
  wire::LongHeader header;
  header.type = wire::LongType::kRefuse;
  header.version = version;
  std::vector<uint8_t> bytes;
  return client->HandleRefuse(now, header, Encoded(wire::CloseFrame{code, "full"}, &bytes));
}

TEST(Handshaking, BothSidesHaveKeysAfterTheirFlights) {
  OwnersPair pair;
  ASSERT_NE(pair.client.handshaking.protection(), nullptr);
  ASSERT_NE(pair.server.handshaking.protection(), nullptr);
  EXPECT_EQ(pair.client.handshaking.remote_id().value, 22u);
  EXPECT_EQ(pair.server.handshaking.identity().job, "job");
  EXPECT_EQ(pair.client.handshaking.peer_parameters()->max_open_windows, 8u);
  EXPECT_EQ(pair.client.handshaking.TakeRttSample(), Duration(10ms));
  EXPECT_EQ(pair.client.path.datagram_bytes(), 1452);
}

TEST(Handshaking, PacketsOfAnotherConnectionAreCounted) {
  OwnersPair pair;
  wire::LongHeader header;
  header.source = {77};
  EXPECT_FALSE(pair.client.handshaking.Accepts(header));
  EXPECT_FALSE(pair.server.handshaking.Accepts(header));
  EXPECT_EQ(pair.client.stats.wrong_id_dropped, 1u);
}

TEST(Handshaking, ARefusalIsBelievedAfterAGraceInWhichNothingAuthenticCame) {
  Owners client(true);
  const Handshaking::Outcome outcome =
      Refuse(&client.handshaking, kNow, StatusCode::kResourceExhausted, wire::kVersion);
  EXPECT_EQ(outcome.next, Next::kGoOn);
  EXPECT_LE(client.handshaking.Deadline(), kNow + Handshaking::kRefusalGrace);
  EXPECT_EQ(client.handshaking.OnTimeout(kNow + 999ms).next, Next::kGoOn);
  const Handshaking::Outcome over = client.handshaking.OnTimeout(kNow + Handshaking::kRefusalGrace);
  EXPECT_EQ(over.next, Next::kOver);
  EXPECT_EQ(over.why.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(over.why.message().find("full"), std::string::npos);
}

TEST(Handshaking, AnAcceptRefutesARefusal) {
  Owners client(true), server(false);
  client.SendLong(kNow, &server);
  Refuse(&client.handshaking, kNow, StatusCode::kResourceExhausted, wire::kVersion);
  server.SendLong(kNow, &client);
  EXPECT_EQ(client.stats.refusals_ignored, 1u);
  EXPECT_EQ(client.handshaking.OnTimeout(kNow + Handshaking::kRefusalGrace).next, Next::kGoOn);
}

TEST(Handshaking, ARefusalOfOurOwnVersionMeansADamagedInit) {
  Owners client(true);
  Refuse(&client.handshaking, kNow, StatusCode::kVersionMismatch, wire::kVersion);
  EXPECT_EQ(client.stats.refusals, 0u);
  Refuse(&client.handshaking, kNow, StatusCode::kVersionMismatch, wire::kVersion + 1);
  EXPECT_EQ(client.stats.refusals, 1u);
}

TEST(Handshaking, ARefusalOfTheKeyIsAHintThatEndsNothing) {
  Owners client(true);
  for (int i = 0; i < 3; ++i) {
    Refuse(&client.handshaking, kNow, StatusCode::kPermissionDenied, wire::kVersion);
  }
  EXPECT_EQ(client.stats.key_refusals, 3u);
  EXPECT_EQ(client.stats.refusals, 0u);
  EXPECT_EQ(client.handshaking.OnTimeout(kNow + 2 * Handshaking::kRefusalGrace).next, Next::kGoOn);
}

TEST(Handshaking, ARetryBringsTheFirstFlightAgainWithItsCookie) {
  Owners client(true), server(false);
  client.SendLong(kNow, &server);
  EXPECT_FALSE(client.cookie_sent);
  const std::vector<uint8_t> cookie(kCookieBytes, 7);
  for (int i = 0; i < 2 * Handshaking::kMaxRetries; ++i) client.handshaking.HandleRetry(cookie);
  EXPECT_EQ(client.stats.retries, static_cast<uint64_t>(Handshaking::kMaxRetries));
  Owners other(false);
  client.SendLong(kNow, &other);
  EXPECT_TRUE(client.cookie_sent);
  server.SendLong(kNow, &client);
  client.handshaking.HandleRetry(cookie);  // the server is known by now
  EXPECT_EQ(client.stats.retries, static_cast<uint64_t>(Handshaking::kMaxRetries));
}

TEST(Handshaking, UnansweredInitsShrinkToWhatEveryPathCarries) {
  Owners client(true);
  std::vector<uint8_t> buffer(2000);
  Instant now = kNow;
  std::vector<size_t> sizes;
  for (int i = 0; i <= Handshaking::kInitsBeforeFallback; ++i) {
    sizes.push_back(client.handshaking.BuildLong(now, buffer));
    now = client.handshaking.Deadline();
    client.handshaking.OnTimeout(now);
  }
  EXPECT_EQ(sizes.front(), 1452u);
  EXPECT_EQ(sizes[Handshaking::kInitsBeforeFallback - 1], 1452u);
  EXPECT_EQ(sizes.back(), 1200u);
}

TEST(Handshaking, FramesThatBelongToShortPacketsFailIt) {
  Owners client(true), server(false);
  wire::LongHeader header;
  header.source = {11};
  std::vector<uint8_t> bytes;
  const Handshaking::Outcome outcome =
      server.handshaking.HandleLong(kNow, header, Encoded(wire::GrantFrame{}, &bytes), 1200, false);
  EXPECT_EQ(outcome.next, Next::kFailed);
  EXPECT_EQ(outcome.why.code(), StatusCode::kProtocolViolation);
  EXPECT_EQ(server.stats.malformed_dropped, 1u);
}

TEST(Handshaking, OnlyAProvedAddressMayEndItByClose) {
  for (const bool proved : {false, true}) {
    Owners server(false);
    wire::LongHeader header;
    header.source = {11};
    std::vector<uint8_t> bytes;
    const Handshaking::Outcome outcome = server.handshaking.HandleLong(
        kNow, header, Encoded(wire::CloseFrame{StatusCode::kInternal, "bye"}, &bytes), 1200, proved);
    EXPECT_EQ(outcome.next, proved ? Next::kOver : Next::kGoOn);
  }
}

TEST(Handshaking, TheConfirmationBringsTheTokenThatAResetEndsWith) {
  OwnersPair pair;
  EXPECT_TRUE(pair.server.handshaking.confirm_due());
  EXPECT_FALSE(pair.client.handshaking.confirm_due());
  std::vector<uint8_t> reset(60, 1);
  const wire::NewCidFrame frame = pair.server.handshaking.Confirmation();
  std::copy(frame.reset_token.begin(), frame.reset_token.end(), reset.end() - 16);
  EXPECT_FALSE(pair.client.handshaking.IsReset(reset));  // no token is known yet
  EXPECT_TRUE(pair.client.handshaking.OnConfirmation(frame).ok());
  EXPECT_TRUE(pair.client.handshaking.IsReset(reset));
  EXPECT_FALSE(pair.client.handshaking.IsReset(ByteSpan(reset).last(Handshaking::kMinResetBytes - 1)));
  reset.back() ^= 1;
  EXPECT_FALSE(pair.client.handshaking.IsReset(reset));
  EXPECT_EQ(pair.server.handshaking.OnConfirmation(frame).code(), StatusCode::kProtocolViolation);
}

}  // namespace
}  // namespace longhaul::transport
