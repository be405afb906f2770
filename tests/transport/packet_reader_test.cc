// Short packets in, opened ones out: what is dropped and counted, and what an opened one leaves behind.
#include "transport/core/connection/packet_reader.h"

#include "tests/transport/owners.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;
using Verdict = PacketReader::Verdict;

class PacketReaderTest : public testing::Test {
 protected:
  // A PING of the client's, in the server's buffer.
  size_t Ping() {
    pair_.client.flight.OnPoll();
    pair_.client.writer.RequestPing();
    pair_.server.buffer.assign(100, 0);
    pair_.now += 10ms;
    return pair_.client.writer.Build(pair_.now, pair_.server.buffer);
  }
  const ConnectionStats& stats() const { return pair_.server.stats; }

  OwnersPair pair_;
};

TEST_F(PacketReaderTest, WhatDoesNotOpenIsCountedAndChangesNothing) {
  size_t size = Ping();
  pair_.server.buffer[size - 1] ^= 1;
  EXPECT_FALSE(pair_.server.Open(pair_.now, size));
  EXPECT_EQ(stats().bad_tag_dropped, 1u);
  size = Ping();
  EXPECT_FALSE(pair_.server.Open(pair_.now, wire::kShortHeaderBytes + wire::kTagBytes - 1));
  EXPECT_EQ(pair_.server.verdict, Verdict::kDropped);
  EXPECT_EQ(stats().malformed_dropped, 1u);
  EXPECT_EQ(pair_.server.flight.acks().largest_plus_one(), 0u);
}

TEST_F(PacketReaderTest, APacketIsADuplicateOnceItWasTaken) {
  const size_t size = Ping();
  const std::vector<uint8_t> copy = pair_.server.buffer;
  ASSERT_TRUE(pair_.server.Open(pair_.now, size));
  pair_.server.buffer = copy;
  const auto again = pair_.server.Open(pair_.now, size);  // opened before, but not taken
  ASSERT_TRUE(again);
  pair_.server.reader.Take(pair_.now, *again, false, {});
  pair_.server.buffer = copy;
  EXPECT_FALSE(pair_.server.Open(pair_.now, size));
  EXPECT_EQ(stats().duplicates_dropped, 1u);
}

TEST_F(PacketReaderTest, HostDropsCountFromTheFirstPacketOn) {
  for (const uint64_t drops : {100u, 103u}) {
    const auto packet = pair_.server.Open(pair_.now, Ping());
    ASSERT_TRUE(packet);
    ReceiveInfo info;
    info.host_drops = drops;
    pair_.server.reader.Take(pair_.now, *packet, false, info);
    EXPECT_EQ(pair_.server.flight.acks().BuildAck(pair_.now).host_drops, drops - 100);
  }
}

// A host that is busy for 5 ms whenever a datagram arrives, on a path of 20 ms there and back.
class LateHostTest : public PacketReaderTest {
 protected:
  static constexpr Duration kOneWay = 10ms;

  static void Arrive(Owners& to, Instant arrival, Duration late, const std::optional<OpenedPacket>& packet) {
    ASSERT_TRUE(packet);
    ReceiveInfo info;
    info.received = arrival;
    EXPECT_TRUE(to.reader.Take(arrival + late, *packet, false, info).status.ok());
  }
  void RoundTrip(Duration server_late, Duration client_late) {
    Owners& client = pair_.client;
    Owners& server = pair_.server;
    Instant now = pair_.now += 1s;
    client.flight.OnPoll();
    client.writer.RequestPing();
    const auto ping = client.SendShort(now, &server);
    now += kOneWay;
    Arrive(server, now, server_late, ping);
    now += server_late;
    const auto ack = server.SendShort(now, &client);
    now += kOneWay;
    Arrive(client, now, client_late, ack);
  }
  Duration Latest() const { return pair_.client.flight.rtt().latest_rtt(); }
  Duration Adjusted() const { return pair_.client.flight.rtt().adjusted_rtt(); }
};

TEST_F(LateHostTest, ItsDelayIsNoneOfThePaths) {
  RoundTrip(0ms, 0ms);
  EXPECT_EQ(Latest(), 20ms);
  RoundTrip(0ms, 5ms);  // who reads the ACK is late
  EXPECT_EQ(Latest(), 20ms);
  EXPECT_EQ(Adjusted(), 20ms);
  EXPECT_EQ(pair_.client.reader.host_delay().largest(), 5ms);
  RoundTrip(5ms, 0ms);  // who acknowledges is late
  EXPECT_EQ(Latest(), 25ms);
  EXPECT_EQ(Adjusted(), 20ms);
  EXPECT_EQ(pair_.server.reader.host_delay().largest(), 5ms);
  RoundTrip(40ms, 40ms);
  EXPECT_EQ(Latest(), 60ms);
  EXPECT_EQ(Adjusted(), 20ms);
  EXPECT_EQ(pair_.client.flight.rtt().min_rtt(), 20ms);
}

TEST_F(LateHostTest, TheDelayOfAnAckCountsFromTheArrival) {
  const auto packet = pair_.server.Open(pair_.now, Ping());
  Arrive(pair_.server, pair_.now, 7ms, packet);
  EXPECT_EQ(pair_.server.flight.acks().BuildAck(pair_.now + 8ms).ack_delay_us, 8000u);
}

TEST_F(LateHostTest, PacketsAreNotLostWhileTheAckOfThemWaits) {
  RoundTrip(0ms, 0ms);
  Owners& client = pair_.client;
  const wire::PacketNumber first = client.flight.next_number();
  const Instant sent = pair_.now += 1s;
  for (int i = 0; i < 2; ++i) {
    client.flight.OnPoll();
    client.writer.RequestPing();
    ASSERT_TRUE(client.SendShort(sent, &pair_.server));
  }
  // The second overtook the first by 1 ms, and both ACKs are read 20 ms late.
  const auto acknowledge = [&](wire::PacketNumber from, Instant arrival) {
    wire::AckFrame ack;
    ack.ranges = {{from, first + 1}};
    EXPECT_TRUE(client.writer.OnAck(ack, sent + 41ms, arrival).ok());
  };
  acknowledge(first + 1, sent + 20ms);
  acknowledge(first, sent + 21ms);
  EXPECT_EQ(client.flight.loss().packets_lost(), 0u);
  EXPECT_EQ(client.flight.bytes_in_flight(), ByteCount(0));
}

TEST_F(PacketReaderTest, EcnMarksAreReported) {
  const auto packet = pair_.server.Open(pair_.now, Ping());
  ASSERT_TRUE(packet);
  pair_.server.reader.Take(pair_.now, *packet, false, {.ecn_ce = true, .host_drops = 0, .ecn_ect0 = true});
  const wire::AckFrame ack = pair_.server.flight.acks().BuildAck(pair_.now);
  EXPECT_EQ(ack.ecn_ce, 1u);
  EXPECT_EQ(ack.ecn_ect0, 1u);
}

TEST_F(PacketReaderTest, AnotherAddressIsTheNewOneOnceItHasAnsweredItsChallenge) {
  const Address elsewhere = Address::V4(10, 0, 0, 2, 4999);
  const auto read = [&](const Address& from, size_t size, bool may_move) {
    OpenedPacket packet;
    const MutableByteSpan datagram(pair_.server.buffer.data(), size);
    ByteReader in(datagram);
    return pair_.server.reader.Read(pair_.now, from, *wire::DecodeShortHeader(in), datagram, may_move,
                                    &packet);
  };
  EXPECT_EQ(read(elsewhere, Ping(), false), Verdict::kElsewhere);
  EXPECT_EQ(read(elsewhere, Ping(), true), Verdict::kDropped);
  EXPECT_EQ(stats().candidate_dropped, 1u);
  const auto challenge = pair_.server.path.NextChallenge(pair_.now);
  ASSERT_TRUE(challenge);
  pair_.client.writer.Answer({challenge->data});
  EXPECT_EQ(read(elsewhere, Ping(), true), Verdict::kMoved);
  EXPECT_EQ(pair_.server.path.peer(), elsewhere);
  EXPECT_EQ(read(elsewhere, Ping(), true), Verdict::kOpened);
}

class FramesTest : public PacketReaderTest {
 protected:
  // A packet of these frames.
  PacketReader::Outcome Take(const std::vector<wire::Frame>& frames, bool closing = false) {
    bytes_.assign(1200, 0);
    ByteWriter out(bytes_);
    for (const wire::Frame& frame : frames) EXPECT_TRUE(wire::Encode(frame, out));
    OpenedPacket packet;
    packet.number = number_++;
    packet.body = MutableByteSpan(bytes_).first(out.size());
    return pair_.server.reader.Take(pair_.now, packet, closing, {});
  }
  uint64_t taken() const { return pair_.server.flight.acks().largest_plus_one(); }

  wire::PacketNumber number_ = 0;
  std::vector<uint8_t> bytes_;
};

TEST_F(FramesTest, EachReachesItsOwner) {
  const std::vector<uint8_t> body = {1, 2, 3};
  const wire::WindowOpenFrame open{.window_id = 9, .high_count = 1, .symbol_bytes = 1024};
  wire::GrantFrame grant;
  grant.rate_bytes_per_second = 125'000;
  const auto outcome = Take({wire::PingFrame{}, wire::ControlFrame{0, body}, open, grant});
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_TRUE(pair_.server.flight.acks().ShouldAck(pair_.now));
  EXPECT_NE(pair_.server.windows.Polled({9, 0}), nullptr);
  ConnectionStats stats;
  pair_.server.flight.AddTo(&stats, pair_.now);
  EXPECT_LE(stats.rate.pacing_rate, Bandwidth::Mbps(1));
  std::vector<std::string> events;
  while (const std::optional<Event> event = pair_.server.Poll()) {
    events.push_back(std::holds_alternative<event::Connected>(*event)      ? "Connected"
                     : std::holds_alternative<event::ControlBytes>(*event) ? "ControlBytes"
                     : std::holds_alternative<event::WindowOpened>(*event) ? "WindowOpened"
                                                                           : "?");
  }
  EXPECT_EQ(events, (std::vector<std::string>{"Connected", "ControlBytes", "WindowOpened"}));
  EXPECT_EQ(taken(), 1u);
}

TEST_F(FramesTest, NothingBehindACloseIsRead) {
  const wire::WindowOpenFrame open{.window_id = 9, .high_count = 1, .symbol_bytes = 1024};
  const auto outcome = Take({wire::CloseFrame{StatusCode::kOk, "done"}, open});
  ASSERT_TRUE(outcome.close);
  EXPECT_EQ(outcome.close->reason, "done");
  EXPECT_EQ(pair_.server.windows.Polled({9, 0}), nullptr);
}

TEST_F(FramesTest, WhileClosingOnlyACloseMeansAnything) {
  EXPECT_FALSE(Take({wire::PingFrame{}}, true).close);
  EXPECT_EQ(taken(), 0u);  // not even acknowledged
  EXPECT_TRUE(Take({wire::PingFrame{}, wire::CloseFrame{StatusCode::kOk, ""}}, true).close);
}

TEST_F(FramesTest, FramesOfTheHandshakeAndImpossibleOnesAreViolations) {
  wire::AckFrame ack;
  ack.ranges = {{99, 99}};
  const std::vector<wire::Frame> bad = {Owners::Parameters(), wire::CryptoFrame{}, ack, wire::NewCidFrame{}};
  for (const wire::Frame& frame : bad) {
    EXPECT_EQ(Take({frame}).status.code(), StatusCode::kProtocolViolation) << wire::FrameName(frame);
  }
  EXPECT_EQ(taken(), 0u);
}

TEST_F(PacketReaderTest, AHeaderMayPromiseMoreFramesThanThereAre) {
  OpenedPacket packet;
  std::vector<uint8_t> bytes(10);
  packet.body = bytes;
  EXPECT_TRUE(packet.IsWhole());
  EXPECT_EQ(packet.frames().size(), 10u);
  packet.data.emplace();
  packet.data->frames_length = 10;
  EXPECT_TRUE(packet.IsWhole());
  EXPECT_TRUE(packet.chunk().empty());
  packet.data->frames_length = 11;
  EXPECT_FALSE(packet.IsWhole());
}

}  // namespace
}  // namespace longhaul::transport
