// The way to the peer: which sizes it is given credit for, from whom packets are taken, what a move forgets.
#include "transport/core/connection/path.h"

#include <gtest/gtest.h>

#include "transport/core/connection/connection.h"
#include "transport/core/security/integrity_tag.h"

namespace longhaul::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Address kPeer = Address::V4(10, 0, 0, 1, 4000);
const Address kOtherPort = Address::V4(10, 0, 0, 1, 4001);
const Address kOtherHost = Address::V4(10, 0, 0, 2, 4000);

class PathTest : public testing::Test {
 protected:
  Path Make(Path::Options options = {}) { return Path(options, kPeer, &security_, Random(1)); }
  SentPacket Packet(wire::PacketNumber number, int64_t bytes, bool probe = false) {
    SentPacket p;
    p.number = number;
    p.bytes = ByteCount(bytes);
    p.sent_time = now_;
    p.ect0 = true;
    p.mtu_probe = probe;
    return p;
  }
  // The search from `proven` up to `max` on a path that carries `carries`.
  void Search(Path* path, int64_t max, int64_t carries) {
    path->StartSearch(now_, max);
    for (int i = 0; i < 100 && path->NextProbe(); ++i) {
      const SentPacket probe = Packet(number_, *path->NextProbe(), true);
      path->OnProbeSent(number_++);
      if (probe.bytes.value() <= carries) {
        Acked(path, probe);
      } else {
        EXPECT_FALSE(Lost(path, probe)) << "a probe is no data";
      }
    }
    path->Update();
  }
  void Acked(Path* path, const SentPacket& packet) {
    LossDetection::Outcome outcome;
    outcome.acked.push_back(packet);
    path->TakeFates(&outcome, now_, milliseconds(50), number_);
  }
  // Whether its size explains the loss.
  bool Lost(Path* path, const SentPacket& packet) {
    LossDetection::Outcome outcome;
    outcome.lost.push_back(packet);
    path->TakeFates(&outcome, now_, milliseconds(50), number_);
    return outcome.lost.front().outsized;
  }

  NullSecurity security_;
  Instant now_ = Instant() + seconds(1);
  wire::PacketNumber number_ = 0;
};

TEST_F(PathTest, TheHandshakeProvesASize) {
  Path path = Make({.max_datagram = 8952});
  EXPECT_EQ(path.datagram_bytes(), Path::kLargestInit);
  EXPECT_TRUE(path.OnInitRefused(1452));  // by the kernel: a VPN
  EXPECT_EQ(path.datagram_bytes(), Path::kBaseDatagram);
  EXPECT_FALSE(path.OnInitRefused(1200));  // nothing shorter is left to try
  path.OnEcho(1344);
  EXPECT_EQ(path.datagram_bytes(), 1344);
  path.OnEcho(1200);  // the last ACCEPT of a flight may be short
  EXPECT_EQ(path.datagram_bytes(), 1344);
  path.LimitTo(1300);
  EXPECT_EQ(path.datagram_bytes(), 1300);
  EXPECT_EQ(path.MaxChunkBytes() % 16, 0u);
}

TEST_F(PathTest, TheSearchFindsWhatThePathCarries) {
  Path path = Make({.max_datagram = 8952});
  Search(&path, 8952, 4000);
  EXPECT_TRUE(path.search_settled());
  EXPECT_LE(path.datagram_bytes(), 4000);
  EXPECT_GT(path.datagram_bytes(), 4000 - 2 * Dplpmtud::kResolution);
  ConnectionStats stats;
  path.AddTo(&stats);
  EXPECT_GT(stats.mtu_probes_sent, stats.mtu_probes_lost);
  EXPECT_GT(stats.mtu_probes_lost, 0u);
}

TEST_F(PathTest, APathThatCarriesNothingUsefulIsNamed) {
  Path path = Make({.max_datagram = 8952});
  Search(&path, 8952, 9000);
  ASSERT_EQ(path.datagram_bytes(), 8952);
  path.OnSendRefused(2000, now_);
  path.Update();
  EXPECT_EQ(path.datagram_bytes(), Path::kBaseDatagram);
  EXPECT_TRUE(path.Check().ok());
  path.OnSendRefused(1000, now_);
  path.Update();
  EXPECT_EQ(path.datagram_bytes(), Path::kSmallestDatagram);
  EXPECT_TRUE(path.Check().ok());
  path.OnSendRefused(500, now_);
  const Status status = path.Check();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("10.0.0.1"), std::string::npos) << status.message();
}

TEST_F(PathTest, APathThatSwallowsLargeDatagramsIsSearchedAgain) {
  Path path = Make();
  Search(&path, 1452, 1452);
  ASSERT_EQ(path.datagram_bytes(), 1452);
  for (int i = 0; i < 10; ++i) {
    now_ += milliseconds(10);
    Lost(&path, Packet(number_++, 1452));
    Acked(&path, Packet(number_++, 1200));
  }
  EXPECT_EQ(path.datagram_bytes(), Path::kBaseDatagram);
  ConnectionStats stats;
  path.AddTo(&stats);
  EXPECT_EQ(stats.black_holes, 1u);
}

// What is declared lost at the moment at which the path is found out, and later, is no congestion.
TEST_F(PathTest, LossesThatOnlyTheirSizeExplainsAreMarked) {
  Path path = Make();
  Search(&path, 1452, 1452);
  EXPECT_FALSE(Lost(&path, Packet(number_++, 1452)));
  LossDetection::Outcome outcome;
  for (int i = 0; i < 20; ++i) {
    now_ += milliseconds(10);
    outcome.lost.push_back(Packet(number_++, i % 2 == 0 ? 1452 : 900));
  }
  path.TakeFates(&outcome, now_, milliseconds(50), number_);
  EXPECT_EQ(path.datagram_bytes(), Path::kBaseDatagram);
  for (const SentPacket& packet : outcome.lost) EXPECT_EQ(packet.outsized, packet.bytes.value() == 1452);
  EXPECT_TRUE(Lost(&path, Packet(number_++, 1300)));
  EXPECT_FALSE(Lost(&path, Packet(number_++, 1200)));
}

TEST_F(PathTest, ThePeersPacketsComeFromItsAddressAndLateOnesFromThePreviousOne) {
  Path path = Make();
  EXPECT_TRUE(path.IsFromPeer(kPeer, 7, 5));
  EXPECT_FALSE(path.IsFromPeer(kOtherPort, 7, 5));
  path.MoveTo(kOtherPort, 10);
  EXPECT_EQ(path.peer(), kOtherPort);
  EXPECT_EQ(path.first_peer(), kPeer);
  EXPECT_TRUE(path.IsFromPeer(kPeer, 4, 5));   // under way when it moved
  EXPECT_FALSE(path.IsFromPeer(kPeer, 5, 5));  // sent since
}

TEST_F(PathTest, AnotherPortIsTheSamePathAndAnotherHostIsNot) {
  Path path = Make();
  Search(&path, 1452, 1452);
  EXPECT_FALSE(path.MoveTo(kOtherPort, number_));
  path.Update();
  EXPECT_EQ(path.datagram_bytes(), 1452);
  EXPECT_TRUE(path.MoveTo(kOtherHost, number_));
  path.Update();
  EXPECT_EQ(path.datagram_bytes(), Path::kBaseDatagram);  // nothing is known of it
  EXPECT_EQ(path.moves(), 2u);
}

TEST_F(PathTest, StraysThatDoNotOpenAreBoundedButACandidateIsHeard) {
  Path path = Make();
  for (int i = 0; i < 2 * Path::kStraysPerSecond; ++i) path.OnDidNotOpen(now_, kOtherHost);
  EXPECT_FALSE(path.MayOpen(now_, kOtherHost));
  EXPECT_TRUE(path.MayOpen(now_ + seconds(1), kOtherHost));
  EXPECT_TRUE(path.OnCandidate(now_, kOtherPort, 100, {}, milliseconds(50)));
  EXPECT_TRUE(path.MayOpen(now_, kOtherPort));
}

TEST_F(PathTest, ACandidateIsValidatedByTheAnswerToItsChallenge) {
  Path path = Make();
  EXPECT_TRUE(path.OnCandidate(now_, kOtherHost, 1200, {}, milliseconds(50)));
  const auto challenge = path.NextChallenge(now_);
  ASSERT_TRUE(challenge);
  EXPECT_EQ(challenge->to, kOtherHost);
  for (const uint64_t data : {challenge->data + 1, challenge->data}) {
    EXPECT_FALSE(path.IsValidated(kOtherHost));
    std::vector<uint8_t> bytes(64);
    ByteWriter out(bytes);
    ASSERT_TRUE(wire::Encode(wire::PathResponseFrame{data}, out));
    EXPECT_TRUE(path.OnCandidate(now_, kOtherHost, 64, out.written(), milliseconds(50)));
  }
  EXPECT_TRUE(path.IsValidated(kOtherHost));
  const std::vector<uint8_t> garbage(10, 0xff);
  EXPECT_FALSE(path.OnCandidate(now_, kOtherHost, 64, garbage, milliseconds(50)));
}

TEST_F(PathTest, EcnMarksThatAreLostEveryTimeAreGivenUp) {
  Path path = Make();
  EXPECT_TRUE(path.marks_ecn());
  for (wire::PacketNumber n = 0; n < EcnValidator::kTestingPackets; ++n) {
    path.OnPacketSent(Packet(n, 1200));
    Lost(&path, Packet(n, 1200));
  }
  EXPECT_FALSE(path.marks_ecn());
  ConnectionStats stats;
  path.AddTo(&stats);
  EXPECT_EQ(stats.ecn_state, "failed");
  EXPECT_FALSE(Make({.ecn = false}).marks_ecn());
}

}  // namespace
}  // namespace longhaul::transport
