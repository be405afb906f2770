// Strangers at the server's port: each gets a clear answer or none, and the job that runs meanwhile finishes.
//
//   worker 0 ─┐
//             ├─ server ── stranger: wrong rank, other version, other model, noise
//   worker 1 ─┘
#include <future>

#include "base/bytes.h"
#include "base/random.h"
#include "longhaul/client.h"
#include "proto/frames.h"
#include "proto/packet_header.h"
#include "proto/version.h"
#include "tests/e2e/support/job.h"
#include "tests/e2e/support/udp_peer.h"
#include "transport/core/connection/packet_builder.h"
#include "transport/core/security/integrity_tag.h"

namespace longhaul::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint16_t kOtherVersion = 0x7a7a;

// An INIT as a client of that version would send it; what follows the header is not ours to understand.
std::vector<uint8_t> Init(uint16_t version, uint64_t source) {
  std::vector<uint8_t> datagram(1452, 0xab);
  ByteWriter writer(datagram);
  wire::Encode(wire::LongHeader{.type = wire::LongType::kInit,
                                .version = version,
                                .destination = {},
                                .source = {source},
                                .packet_number = 0},
               writer);
  return datagram;
}

std::optional<wire::CloseFrame> FirstClose(const std::vector<uint8_t>& refusal, std::string* reason) {
  ByteReader reader(
      ByteSpan(refusal).first(refusal.size() - wire::kTagBytes).subspan(wire::kLongHeaderBytes));
  while (reader.ok() && !reader.AtEnd()) {
    const auto frame = wire::DecodeFrame(reader);
    if (!frame.ok()) return std::nullopt;
    if (const auto* close = std::get_if<wire::CloseFrame>(&*frame)) {
      *reason = close->reason;
      return *close;
    }
  }
  return std::nullopt;
}

class Stranger : public JobTest {
 protected:
  // Without keys, so that what a stranger sends is understood and must be refused for what it says.
  Flags security() const override { return {{"--insecure", ""}}; }
  void SetUp() override {
    JobTest::SetUp();
    if (!HasFatalFailure()) StartRunningJob();
  }

  // Named to the stranger and in the server's log.
  void ExpectRefused(const Flags& flags, const std::vector<std::string>& words) {
    Program& stranger = StartWorker(0, flags);
    ExpectEnd(stranger, 1);
    for (const std::string& word : words) {
      EXPECT_THAT(stranger.Errors(), HasSubstr(word));
      EXPECT_TRUE(server().WaitForError(word)) << server().Errors();
    }
    EXPECT_THAT(stranger.Errors(), AllOf(HasSubstr(address()), HasSubstr("refuses")));
    EXPECT_TRUE(server().WaitForEvent("refused"));
  }
};

TEST_F(Stranger, WithATakenRankIsRefusedAndTheJobFinishes) {
  ExpectRefused({{"--rank", "1"}}, {"AlreadyExists", "rank 1", "taken", "--incarnation"});
  ExpectRunningJobFinishes();
}

TEST_F(Stranger, WithAnotherWorldSizeIsRefusedAndTheJobFinishes) {
  ExpectRefused({{"--world-size", "3"}, {"--rank", "2"}}, {"SettingsMismatch", "world size is 3", "2"});
  ExpectRunningJobFinishes();
}

TEST_F(Stranger, OfAnotherJobIsRefusedAndTheJobFinishes) {
  ExpectRefused({{"--job", "apples"}}, {"SettingsMismatch", "apples", "default"});
  ExpectRunningJobFinishes();
}

// Log lines that any host can cause at will fill no disk (server/report/log_limiter.h): the server logs a
// repeated failure once and counts the rest.
TEST_F(Stranger, WhoRepeatsHimselfIsToldOnceAndThenCounted) {
  UdpPeer peer;
  for (uint64_t id = 1; id <= 60; ++id) peer.Send(port(), Init(kOtherVersion, id));
  const auto suppressed = server().WaitForEvent("suppressed");
  ASSERT_TRUE(suppressed) << server().Everything();
  EXPECT_EQ(suppressed->value("of", ""), "handshake_failed");
  const std::string output = server().Output();
  const std::string event = "\"event\":\"handshake_failed\"";
  EXPECT_EQ(output.find(event), output.rfind(event)) << output;
  EXPECT_GE(suppressed->value("count", 0), 20);
  const auto told = server().FindEvent("handshake_failed");
  ASSERT_TRUE(told);
  EXPECT_EQ(told->value("peer", ""), peer.address());
  EXPECT_EQ(told->value("code", ""), "VersionMismatch");
  ExpectRunningJobFinishes();
}

TEST_F(Stranger, OfAnotherVersionIsRefusedByNameAndTheJobFinishes) {
  UdpPeer peer;
  peer.Send(port(), Init(kOtherVersion, 0x1122334455667788));
  const auto answer = peer.Receive(kPatience);
  ASSERT_TRUE(answer);
  EXPECT_LE(answer->bytes.size(), 1452u) << "more than was asked with: an amplifier";
  ByteReader reader(answer->bytes);
  const auto header = wire::DecodeLongHeader(reader);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->type, wire::LongType::kRefuse);
  EXPECT_EQ(header->version, wire::kVersion) << "so that the other side can say both";
  EXPECT_EQ(header->destination.value, 0x1122334455667788u);
  std::string reason;
  const auto close = FirstClose(answer->bytes, &reason);
  ASSERT_TRUE(close);
  EXPECT_EQ(close->code, StatusCode::kVersionMismatch);
  EXPECT_NE(reason, "");
  ExpectRunningJobFinishes();
}

TEST_F(Stranger, ThatSendsRandomDatagramsChangesNothing) {
  constexpr uint64_t kSeed = 20'000;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Random random(kSeed);
  UdpPeer peer;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<uint8_t> datagram(random.Below(1500));
    for (uint8_t& byte : datagram) byte = static_cast<uint8_t>(random.Next());
    // Half of them look like ours at first sight: an INIT of this version, or a short packet.
    if (i % 4 == 0) {
      const std::vector<uint8_t> init = Init(wire::kVersion, random.Next());
      datagram.insert(datagram.begin(), init.begin(), init.begin() + wire::kLongHeaderBytes);
    } else if (i % 4 == 1 && !datagram.empty()) {
      datagram[0] &= 0x41;
    }
    peer.Send(port(), datagram);
    // Not faster than the server can throw them away, so that it sees them all.
    if (i % 50 == 0) Pause(milliseconds(1));
  }
  ExpectRunningJobFinishes();
}

TEST_F(Stranger, ThatGoesSilentInTheMiddleOfTheHandshakeIsForgotten) {
  // A good INIT, made by our own client, whose owner dies at once: kill -9 before it joins.
  for (int i = 0; i < 3; ++i) {
    Program& early = StartWorker(0);
    Pause(milliseconds(20) * i);
    early.Signal(SIGKILL);
    ExpectEnd(early, 128 + SIGKILL);
  }
  ExpectRunningJobFinishes();
}

// The other way round: a server that we cannot talk to.
class StrangeServer : public JobTest {};

TEST_F(StrangeServer, OfAnotherVersionIsReportedWithBothVersions) {
  UdpPeer fake;
  Program& worker = StartWorker(0, {{"--join", fake.address()}});
  const auto init = fake.Receive(kPatience);
  ASSERT_TRUE(init);
  ByteReader reader(init->bytes);
  const auto header = wire::DecodeLongHeader(reader);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->type, wire::LongType::kInit);
  EXPECT_EQ(header->version, wire::kVersion);

  std::vector<uint8_t> refusal(1200);
  transport::PacketBuilder builder(refusal);
  transport::IntegrityTag tag;
  builder.StartLong(wire::LongType::kRefuse, 9, header->source, {}, 0);
  builder.Add(wire::CloseFrame{StatusCode::kVersionMismatch, "we speak a newer one"});
  refusal.resize(builder.Seal(tag));
  fake.Send(init->from_port, refusal);

  ExpectEnd(worker, 1, seconds(2) * kSlowness);
  EXPECT_THAT(worker.Errors(),
              AllOf(HasSubstr("VersionMismatch"), HasSubstr(fake.address()),
                    HasSubstr("here " + std::to_string(wire::kVersion)), HasSubstr("there 9")));
}

TEST_F(StrangeServer, ThatAnswersNoiseIsReportedAsAbsent) {
  UdpPeer fake;
  Program& worker = StartWorker(0, {{"--join", fake.address()}, {"--connect-timeout", "2"}});
  Random random(5);
  for (int i = 0; i < 20; ++i) {
    const auto got = fake.Receive(milliseconds(100) * kSlowness);
    if (!got) continue;
    std::vector<uint8_t> noise = got->bytes;  // its own INIT back, and damaged
    if (i % 2 == 1) noise[random.Below(noise.size())] ^= 0x40;
    fake.Send(got->from_port, noise);
  }
  ExpectEnd(worker, 1);
  EXPECT_THAT(worker.Errors(), AllOf(HasSubstr("Unavailable"), HasSubstr(fake.address())));
}

// Two programs of one job that disagree about the model.
class OtherModel : public JobTest {};

TEST_F(OtherModel, IsRefusedByNameAndTheWorkerMayDeclareAgain) {
  StartServer();
  const auto connect = [this](uint32_t rank) {
    ConnectOptions options;
    options.servers = {address()};
    options.rank = rank;
    options.world_size = 2;
    options.key_file = key_file();
    return Client::Connect(options);
  };
  auto first = connect(0);
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  auto second = connect(1);
  ASSERT_TRUE(second.ok()) << second.status().ToString();

  const auto mine = first->Declare("w", {.count = 1000, .optimizer = "aggregate"});
  ASSERT_TRUE(mine.ok()) << mine.status().ToString();
  const auto other_count = second->Declare("w", {.count = 2000, .optimizer = "aggregate"});
  ASSERT_FALSE(other_count.ok());
  EXPECT_EQ(other_count.status().code(), StatusCode::kSettingsMismatch);
  EXPECT_THAT(other_count.status().message(), AllOf(HasSubstr("w"), HasSubstr("1000"), HasSubstr("2000")));
  const auto other_optimizer = second->Declare("w", {.count = 1000, .optimizer = "sgd:lr=0.1"});
  ASSERT_FALSE(other_optimizer.ok());
  EXPECT_EQ(other_optimizer.status().code(), StatusCode::kSettingsMismatch);

  const auto theirs = second->Declare("w", {.count = 1000, .optimizer = "aggregate"});
  ASSERT_TRUE(theirs.ok()) << theirs.status().ToString();
  const std::vector<float> ones(1000, 1.0f), threes(1000, 3.0f);
  std::vector<float> first_out(1000), second_out(1000);
  const Operation a = first->PushPull(*mine, ones, first_out);
  const Operation b = second->PushPull(*theirs, threes, second_out);
  EXPECT_TRUE(a.WaitFor(kPatience).ok()) << a.WaitFor(Duration(0)).ToString();
  EXPECT_TRUE(b.WaitFor(kPatience).ok()) << b.WaitFor(Duration(0)).ToString();
  EXPECT_FLOAT_EQ(first_out.front(), 2.0f);
  EXPECT_FLOAT_EQ(second_out.back(), 2.0f);
  EXPECT_TRUE(first->Leave().ok());
  EXPECT_TRUE(second->Leave().ok());
}

}  // namespace
}  // namespace longhaul::e2e
