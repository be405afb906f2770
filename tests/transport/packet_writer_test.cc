// What goes into the next packet, and in which order; what arrives is opened by the other side's reader.
#include "transport/core/connection/packet_writer.h"

#include "tests/transport/owners.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;
using Names = std::vector<std::string>;

const std::vector<uint8_t> kBody(1024, 5);

class PacketWriterTest : public testing::Test {
 protected:
  PacketWriterTest() {
    server().SetConfirmDue(false);
    for (Owners* side : {&pair_.client, &pair_.server}) {
      side->flight.OnConnected(1452, pair_.now, 1);
      side->flight.OnPoll();
    }
    pair_.now += 10ms;
  }
  Handshaking& server() { return pair_.server.handshaking; }
  void OpenWindow(uint32_t chunks) {
    const WindowOptions o{
        .key = {1, 0}, .low_count = chunks, .symbol_bytes = 1024, .fec_k = 0, .metadata = {}};
    ASSERT_TRUE(pair_.client.windows.Open(o, Owners::Parameters()).ok());
    for (uint32_t i = 0; i < chunks; ++i) {
      ASSERT_TRUE(pair_.client.windows.Submit(o.key, wire::ReliabilityClass::kLow, {}, kBody).ok());
    }
  }
  std::optional<OpenedPacket> Send() { return pair_.client.SendShort(pair_.now, &pair_.server); }

  OwnersPair pair_;
};

TEST_F(PacketWriterTest, NothingDueIsNoPacket) {
  EXPECT_FALSE(Send());
  EXPECT_EQ(pair_.client.stats.packets_sent, 0u);
}

TEST_F(PacketWriterTest, FramesLeaveBeforeChunksAndAlone) {
  OpenWindow(2);
  ASSERT_TRUE(pair_.client.control.Send(ByteSpan(kBody).first(10)).ok());
  pair_.client.writer.RequestPing();
  const auto frames = Send();
  ASSERT_TRUE(frames);
  EXPECT_FALSE(frames->data);
  EXPECT_EQ(FrameNames(frames->frames()), (Names{"WINDOW_OPEN", "CONTROL"}));  // and no PING beside them
  for (uint32_t i = 0; i < 2; ++i) {
    const auto chunk = Send();
    ASSERT_TRUE(chunk && chunk->data);
    EXPECT_EQ(chunk->chunk().size(), kBody.size());
    EXPECT_EQ(chunk->data->index, i);
  }
  EXPECT_EQ(pair_.client.stats.chunk_bytes_sent, 2 * kBody.size());
}

// A packet that came to nothing would be taken for the last one.
TEST_F(PacketWriterTest, AChunkLeavesWhereTheFramesBeforeItAreOfAWindowThatIsGone) {
  OpenWindow(1);
  ASSERT_TRUE(Send());  // WINDOW_OPEN
  const WindowOptions gone{.key = {2, 0}, .low_count = 1, .symbol_bytes = 1024, .fec_k = 0, .metadata = {}};
  ASSERT_TRUE(pair_.client.windows.Open(gone, Owners::Parameters()).ok());
  pair_.client.windows.Cancel(gone.key);
  ASSERT_TRUE(pair_.client.windows.HasFrames());
  const auto chunk = Send();
  EXPECT_TRUE(chunk && chunk->data);
}

TEST_F(PacketWriterTest, TheConfirmationLeavesOnceAndAgainWhenItWasLost) {
  server().SetConfirmDue(true);
  auto packet = pair_.server.SendShort(pair_.now, &pair_.client);
  ASSERT_TRUE(packet);
  EXPECT_EQ(FrameNames(packet->frames()), Names{"NEW_CID"});
  EXPECT_FALSE(pair_.server.SendShort(pair_.now, &pair_.client));
  EXPECT_EQ(pair_.server.flight.loss().UnackedFrames(8), std::vector<SentFrame>{SentNewCid{}});
}

TEST_F(PacketWriterTest, AnAnswerToAChallengeLeavesThoughTheWindowIsShut) {
  pair_.client.flight.SetReceiveWindow(0);
  pair_.client.writer.RequestPing();
  ASSERT_TRUE(Send());  // one datagram is always allowed
  pair_.client.writer.RequestPing();
  EXPECT_FALSE(Send());
  for (uint64_t n = 0; n < 2 * PacketWriter::kMaxPathResponses; ++n) pair_.client.writer.Answer({n});
  const auto packet = Send();
  ASSERT_TRUE(packet);
  EXPECT_EQ(FrameNames(packet->frames()), Names(PacketWriter::kMaxPathResponses, "PATH_RESPONSE"));
}

TEST_F(PacketWriterTest, ManyAcksInARowCarryAPing) {
  int pings = 0;
  for (int i = 0; i < 64; ++i) {
    pair_.server.writer.RequestPing();
    pair_.server.flight.SetReceiveWindow(1 << 20);
    const auto packet = pair_.server.SendShort(pair_.now, &pair_.client);
    if (packet) pair_.client.reader.Take(pair_.now, *packet, false, {});
    pair_.client.flight.acks().RequestImmediateAck();
    const auto ack = Send();
    ASSERT_TRUE(ack);
    const Names names = FrameNames(ack->frames());
    ASSERT_EQ(names.front(), "ACK");
    pings += names.size() > 1 ? 1 : 0;
  }
  EXPECT_EQ(pings, 2);
}

TEST_F(PacketWriterTest, ABatchIsOfEquallyLongDatagramsOfWhichTheLastIsShorter) {
  const auto batch = [&](std::vector<size_t> sizes) {
    std::vector<uint8_t> buffer(20'000);
    size_t i = 0;
    const auto transmit = pair_.client.writer.Batch(
        buffer, [&](MutableByteSpan out) { return i < sizes.size() ? std::min(sizes[i++], out.size()) : 0; });
    return std::pair(transmit ? transmit->size : 0, transmit ? transmit->segment_bytes : 0);
  };
  EXPECT_EQ(batch({}), std::pair(size_t{0}, size_t{0}));
  EXPECT_EQ(batch({1452, 1452, 100, 1452}), std::pair(size_t{3004}, size_t{1452}));
  EXPECT_FALSE(pair_.client.writer.HasPostponed());
  EXPECT_EQ(batch({100, 1452}), std::pair(size_t{100}, size_t{100}));
  ASSERT_TRUE(pair_.client.writer.HasPostponed());  // it leaves by itself
  std::vector<uint8_t> small(100), buffer(1452);
  EXPECT_FALSE(pair_.client.writer.TakePostponed(small));
  EXPECT_EQ(pair_.client.writer.TakePostponed(buffer)->size, 1452u);
  EXPECT_FALSE(pair_.client.writer.HasPostponed());
}

TEST_F(PacketWriterTest, AnMtuProbeIsPaddedToItsSizeAndFollowedByAPing) {
  pair_.client.path.LimitTo(1200);
  pair_.client.path.StartSearch(pair_.now, 1452);
  ASSERT_TRUE(pair_.client.path.NextProbe());
  pair_.server.buffer.assign(2000, 0);
  const auto probe = pair_.client.writer.PollMtuProbe(pair_.now, pair_.server.buffer);
  ASSERT_TRUE(probe);
  EXPECT_EQ(probe->size, 1452u);
  ASSERT_TRUE(pair_.server.Open(pair_.now, probe->size));
  EXPECT_FALSE(pair_.client.writer.PollMtuProbe(pair_.now, pair_.server.buffer));  // one at a time
  EXPECT_TRUE(pair_.client.writer.ping_due());
}

TEST_F(PacketWriterTest, AChallengeHasANumberButIsNotInFlight) {
  const Address elsewhere = Address::V4(10, 0, 0, 9, 9);
  ASSERT_TRUE(pair_.server.path.OnCandidate(pair_.now, elsewhere, 1200, {}, 50ms));
  const wire::PacketNumber number = pair_.server.flight.next_number();
  pair_.client.buffer.assign(2000, 0);
  const auto challenge = pair_.server.writer.PollChallenge(pair_.now, pair_.client.buffer);
  ASSERT_TRUE(challenge);
  EXPECT_EQ(challenge->destination, elsewhere);
  EXPECT_EQ(pair_.server.flight.next_number(), number + 1);
  EXPECT_EQ(pair_.server.flight.bytes_in_flight(), ByteCount(0));
  const auto packet = pair_.client.Open(pair_.now, challenge->size);
  ASSERT_TRUE(packet);
  EXPECT_EQ(FrameNames(packet->frames()).front(), "PATH_CHALLENGE");
}

TEST_F(PacketWriterTest, WhatALostPacketCarriedGoesBackToItsOwners) {
  OpenWindow(1);
  ASSERT_TRUE(pair_.client.control.Send(ByteSpan(kBody).first(10)).ok());
  server().SetConfirmDue(true);
  ASSERT_TRUE(Send());
  const wire::PacketNumber last = pair_.client.flight.next_number() + 4;
  while (pair_.client.flight.next_number() <= last) {
    pair_.now += 10ms;
    pair_.client.flight.OnPoll();
    pair_.client.writer.RequestPing();
    ASSERT_TRUE(Send());
  }
  wire::AckFrame ack;
  ack.ranges = {{last, last}};
  const Result<bool> news = pair_.client.writer.OnAck(ack, pair_.now, pair_.now);
  ASSERT_TRUE(news.ok() && *news);
  EXPECT_TRUE(pair_.client.control.send().HasData());
  EXPECT_TRUE(pair_.client.windows.HasFrames());
  pair_.now += 10ms;
  pair_.client.flight.OnPoll();
  const auto again = Send();
  ASSERT_TRUE(again);
  EXPECT_EQ(FrameNames(again->frames()), (Names{"WINDOW_OPEN", "CONTROL"}));
  ack.ranges = {{last + 100, last + 100}};
  EXPECT_EQ(pair_.client.writer.OnAck(ack, pair_.now, pair_.now).status().code(),
            StatusCode::kProtocolViolation);
}

TEST_F(PacketWriterTest, AcknowledgedControlDataMakesRoomAndSaysSo) {
  ASSERT_FALSE(pair_.client.control.Send(std::vector<uint8_t>((1 << 20) + 1)).ok());
  ASSERT_TRUE(pair_.client.control.Send(ByteSpan(kBody).first(10)).ok());
  ASSERT_TRUE(Send());
  EXPECT_FALSE(pair_.client.Poll());
  wire::AckFrame ack;
  ack.ranges = {{0, 0}};
  ASSERT_TRUE(pair_.client.writer.OnAck(ack, pair_.now + 10ms, pair_.now + 10ms).ok());
  const std::optional<Event> event = pair_.client.Poll();
  ASSERT_TRUE(event);
  EXPECT_TRUE(std::holds_alternative<event::ControlWritable>(*event));
}

TEST_F(PacketWriterTest, ACloseNamesItsReasonAndTakesANumber) {
  const wire::PacketNumber number = pair_.client.flight.next_number();
  pair_.server.buffer.assign(1200, 0);
  const size_t size = pair_.client.writer.BuildClose({StatusCode::kInternal, "reason"}, pair_.server.buffer);
  EXPECT_EQ(FrameNames(pair_.server.Open(pair_.now, size)->frames()), Names{"CLOSE"});
  EXPECT_EQ(pair_.client.flight.next_number(), number + 1);
}

}  // namespace
}  // namespace longhaul::transport
