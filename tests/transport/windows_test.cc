// The windows of a connection as its packets see them: which frames wait, what a loss brings back, grants.
#include "transport/core/connection/windows.h"

#include "tests/transport/owners.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;
using Names = std::vector<std::string>;

constexpr WindowKey kKey{1, 0};
const std::vector<uint8_t> kBody(1024, 5);

class WindowsTest : public testing::Test {
 protected:
  Windows& windows() { return owners_.windows; }
  const ConnectionStats& stats() const { return owners_.stats; }

  void Open(uint32_t high, uint32_t low) {
    const WindowOptions o{
        .key = kKey, .high_count = high, .low_count = low, .symbol_bytes = 1024, .fec_k = 0, .metadata = {}};
    ASSERT_TRUE(windows().Open(o, Owners::Parameters()).ok());
    for (uint32_t i = 0; i < high + low; ++i) {
      const auto reliability = i < high ? wire::ReliabilityClass::kHigh : wire::ReliabilityClass::kLow;
      ASSERT_TRUE(windows().Submit(kKey, reliability, {}, kBody).ok());
    }
  }
  // An incoming window of one high chunk.
  void Receive() {
    const wire::WindowOpenFrame open{.window_id = 9, .high_count = 1, .symbol_bytes = 1024};
    ASSERT_TRUE(windows().incoming().OnOpen(open).ok());
  }
  // One packet of the frames that wait.
  SentPacket Frames(Names expected) {
    std::vector<uint8_t> buffer(1452);
    PacketBuilder builder(buffer);
    builder.StartShort({1}, 0);
    windows().AddFrames(now_, &builder);
    const size_t size = builder.Seal(owners_.security.long_protection());
    (void)size;
    SentPacket sent = builder.TakeSent();
    EXPECT_EQ(sent.frames.size(), expected.size());
    Names names;
    for (const SentFrame& f : sent.frames) {
      names.push_back(std::holds_alternative<SentGrant>(f)          ? "GRANT"
                      : std::holds_alternative<SentWindowOpen>(f)   ? "OPEN"
                      : std::holds_alternative<SentWindowStatus>(f) ? "STATUS"
                      : std::holds_alternative<SentWindowClose>(f)  ? "CLOSE"
                                                                    : "?");
    }
    EXPECT_EQ(names, expected);
    return sent;
  }
  std::optional<SentPacket> Packet() {
    std::vector<uint8_t> buffer(1452);
    PacketBuilder builder(buffer);
    builder.StartShort({1}, 0);
    if (!windows().AddChunk({}, 0, &builder)) return std::nullopt;
    return builder.TakeSent();
  }
  std::optional<SentChunk> Chunk() {
    const std::optional<SentPacket> packet = Packet();
    return packet ? packet->chunk : std::nullopt;
  }

  Instant now_ = Instant() + 1s;
  Owners owners_{true};
};

TEST_F(WindowsTest, AnOpenLeavesOnceAndAgainWhenItWasLost) {
  Open(1, 0);
  EXPECT_TRUE(windows().HasFrames());
  const SentPacket sent = Frames({"OPEN"});
  EXPECT_FALSE(windows().HasFrames());
  windows().SendAgain(sent.frames[0]);
  windows().SendAgain(sent.frames[0]);  // waits already
  Frames({"OPEN"});
  EXPECT_EQ(stats().windows_opened, 1u);
}

TEST_F(WindowsTest, TheNewestGrantReplacesAndRepeatsTheOlder) {
  windows().Grant(Bandwidth::Mbps(5), ByteCount(1000));
  const SentPacket first = Frames({"GRANT"});
  windows().Grant(Bandwidth::Mbps(5), ByteCount(1000));  // the peer has it
  EXPECT_FALSE(windows().HasFrames());
  windows().Grant(Bandwidth::Mbps(7), ByteCount(1000));
  windows().SendAgain(first.frames[0]);
  Frames({"GRANT"});
  EXPECT_FALSE(windows().HasFrames());
}

TEST_F(WindowsTest, ALostHighChunkLeavesAgainAndALostLowOneDoesNot) {
  Open(1, 1);
  Frames({"OPEN"});
  const auto high = Packet();
  const auto low = Packet();
  ASSERT_TRUE(high && low);
  EXPECT_FALSE(Chunk());
  PathView path;
  path.now = now_;
  windows().OnPacketLost(*low, path);
  EXPECT_FALSE(Chunk());
  windows().OnPacketLost(*high, path);
  EXPECT_EQ(Chunk(), high->chunk);
  EXPECT_EQ(stats().retransmissions, 1u);
  EXPECT_EQ(stats().chunk_bytes_sent, 2 * kBody.size());
}

TEST_F(WindowsTest, AProbeBringsAChunkThatIsInFlight) {
  Open(2, 0);
  Frames({"OPEN"});
  const std::vector<SentChunk> sent = {*Chunk(), *Chunk()};
  EXPECT_FALSE(Chunk());
  windows().ProbeWith(sent, 1);
  EXPECT_TRUE(Chunk());
  EXPECT_FALSE(Chunk());
}

TEST_F(WindowsTest, ACloseIsRepeatedUntilItIsAcknowledged) {
  Receive();
  EXPECT_FALSE(windows().Close(kKey, wire::CloseReason::kComplete));  // another window
  EXPECT_TRUE(windows().Close({9, 0}, wire::CloseReason::kComplete));
  EXPECT_FALSE(windows().Close({9, 0}, wire::CloseReason::kComplete));
  EXPECT_EQ(stats().windows_closed, 1u);
  const SentPacket sent = Frames({"CLOSE"});
  windows().SendAgain(sent.frames[0]);
  Frames({"CLOSE"});
  windows().OnPacketAcked(sent);
  windows().SendAgain(sent.frames[0]);
  EXPECT_FALSE(windows().HasFrames());
}

TEST_F(WindowsTest, ANackBringsTheChunkThatItNames) {
  Open(1, 0);
  Frames({"OPEN"});
  ASSERT_TRUE(Chunk());
  const std::vector<uint8_t> bitmap = {1};
  windows().OnNack({kKey.id, kKey.generation, 0, bitmap}, now_, 20ms);
  EXPECT_EQ(stats().nacks_received, 1u);
  EXPECT_TRUE(Chunk());
  windows().OnNack({kKey.id, kKey.generation, 0, bitmap}, now_ + 1ms, 20ms);
  EXPECT_EQ(stats().nacks_ignored, 1u);  // within a round trip
}

TEST_F(WindowsTest, OfAPeerThatIsNotAdmittedOnlyTheOpenIsSeen) {
  const wire::WindowOpenFrame open{.window_id = 9, .high_count = 1, .symbol_bytes = 1024};
  wire::DataHeader header;
  header.window_id = 9;
  windows().Admit(false);
  ASSERT_TRUE(windows().OnOpen(open).ok());
  EXPECT_EQ(windows().OnChunk(header, kBody), Windows::ChunkFate::kTaken);
  EXPECT_EQ(stats().not_admitted_dropped, 2u);
  EXPECT_EQ(windows().incoming().Find({9, 0}), nullptr);
  EXPECT_TRUE(std::holds_alternative<event::Connected>(*owners_.Poll()));
  EXPECT_TRUE(std::holds_alternative<event::WindowOpened>(*owners_.Poll()));
  windows().Admit(true);
  ASSERT_TRUE(windows().OnOpen(open).ok());
  EXPECT_NE(windows().Polled({9, 0}), nullptr);
}

TEST_F(WindowsTest, AChunkIsPolledOnceWhetherItCameBeforeOrAfterItsOpen) {
  for (const bool early : {true, false}) {
    const wire::WindowOpenFrame open{.window_id = early ? 9u : 10u, .high_count = 1, .symbol_bytes = 1024};
    wire::DataHeader header;
    header.window_id = open.window_id;
    const WindowKey key{open.window_id, 0};
    if (early) {
      EXPECT_EQ(windows().OnChunk(header, kBody), Windows::ChunkFate::kTaken);
    }
    ASSERT_TRUE(windows().OnOpen(open).ok());
    if (!early) {
      EXPECT_EQ(windows().OnChunk(header, kBody), Windows::ChunkFate::kTaken);
    }
    const auto chunk = windows().PollChunk(key);
    ASSERT_TRUE(chunk.ok() && chunk->has_value());
    EXPECT_EQ((*chunk)->bytes.size(), kBody.size());
    EXPECT_FALSE(windows().PollChunk(key)->has_value());
    windows().EndLoans();
  }
  const wire::DataHeader outside{.window_id = 10, .index = 1};
  EXPECT_EQ(windows().OnChunk(outside, kBody), Windows::ChunkFate::kInvalid);
  EXPECT_EQ(windows().OnChunk(outside, {}), Windows::ChunkFate::kInvalid);
}

TEST_F(WindowsTest, SubmittingToAnUnknownWindowSaysSo) {
  EXPECT_EQ(windows().Submit(kKey, wire::ReliabilityClass::kHigh, {}, kBody).code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace longhaul::transport
