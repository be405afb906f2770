// A peer that acknowledges what it has not received, to be sent more than its path carries: it is found out.
#include <gtest/gtest.h>

#include <algorithm>

#include "proto/frames.h"
#include "proto/packet_header.h"
#include "tests/transport/bare_pair.h"
#include "transport/core/security/integrity_tag.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;

// The server's ACKs as a liar would send them.
class Liar {
 public:
  // beyond: the ACKs name so many numbers above the largest that was sent.
  explicit Liar(wire::PacketNumber beyond, uint64_t seed = 1) : beyond_(beyond), pair_(Options(seed)) {}

  // Sends windows until the worker hangs up, or `windows` of them are done.
  void Run(int windows) {
    ASSERT_TRUE(pair_.RunUntil([&] { return pair_.BothConnected(); }, 5s));
    lying_ = true;
    const std::vector<uint8_t> header(12, 1), body(1188, 7);
    for (int id = 1; id <= windows && pair_.worker.closed == 0; ++id) {
      WindowOptions window;
      window.key = {static_cast<uint32_t>(id), 0};
      window.high_count = 500;
      window.symbol_bytes = 1200;
      window.fec_k = 0;
      const Status opened = pair_.connection->OpenWindow(window);
      ASSERT_TRUE(opened.ok()) << opened.ToString();
      for (int i = 0; i < 500; ++i) {
        ASSERT_TRUE(
            pair_.connection->SubmitChunk(window.key, wire::ReliabilityClass::kHigh, header, body).ok());
      }
      pair_.Poll(true);
      pair_.RunUntil(
          [&] {
            if (pair_.worker.closed > 0) return true;
            refused_ = std::max(refused_, pair_.connection->stats().acks_refused);
            return pair_.worker.windows_done == id;
          },
          20s);
    }
  }
  uint64_t refused() const { return refused_; }
  wire::PacketNumber largest_sent() const { return largest_sent_; }
  const Status& close_status() const { return pair_.worker.close_status; }
  int closed() const { return pair_.worker.closed; }
  int rewritten() const { return rewritten_; }

 private:
  BarePair::Options Options(uint64_t seed) {
    BarePair::Options options;
    options.seed = seed;
    options.lost = [this](int, bool from_worker, MutableByteSpan datagram) {
      ByteReader reader(datagram);
      const std::optional<wire::ShortHeader> header = wire::DecodeShortHeader(reader);
      if (!header) return false;
      if (from_worker) {
        largest_sent_ = std::max(largest_sent_, header->packet_number);
      } else if (lying_ && !header->has_data) {
        Rewrite(header->packet_number, datagram);
      }
      return false;
    };
    return options;
  }

  // The ACK becomes one range from 0 on; what the frames become shorter by is padding.
  void Rewrite(wire::PacketNumber number, MutableByteSpan datagram) {
    const MutableByteSpan head = datagram.first(wire::kShortHeaderBytes);
    const MutableByteSpan body = datagram.subspan(
        wire::kShortHeaderBytes, datagram.size() - wire::kShortHeaderBytes - wire::kTagBytes);
    std::vector<uint8_t> fresh(body.size());
    ByteWriter out(fresh);
    ByteReader frames(body);
    bool changed = false;
    while (frames.ok() && !frames.AtEnd()) {
      Result<wire::Frame> frame = wire::DecodeFrame(frames);
      ASSERT_TRUE(frame.ok());
      if (auto* ack = std::get_if<wire::AckFrame>(&*frame)) {
        ack->ranges = {{0, largest_sent_ + beyond_}};
        changed = true;
      }
      // A larger range may need a byte more than there is.
      if (wire::EncodedSize(*frame) > fresh.size() - out.size()) return;
      ASSERT_TRUE(wire::Encode(*frame, out));
    }
    if (!changed) return;
    std::copy(fresh.begin(), fresh.end(), body.begin());
    IntegrityTag().Seal(number, 0, head, body, datagram.last(wire::kTagBytes));
    ++rewritten_;
  }

  wire::PacketNumber beyond_;
  bool lying_ = false;
  wire::PacketNumber largest_sent_ = 0;
  int rewritten_ = 0;
  uint64_t refused_ = 0;
  BarePair pair_;
};

TEST(OptimisticAck, OfWhatWasNeverSentIsRefusedAtOnce) {
  Liar liar(1000);
  liar.Run(1);
  EXPECT_EQ(liar.closed(), 1);
  EXPECT_EQ(liar.close_status().code(), StatusCode::kProtocolViolation);
  EXPECT_EQ(liar.refused(), 1u);
  EXPECT_LE(liar.largest_sent(), 500u);
}

TEST(OptimisticAck, OfAllThatWasSentIsRefusedSoon) {
  wire::PacketNumber total = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Liar liar(0, seed);
    liar.Run(20);
    EXPECT_GT(liar.rewritten(), 0);
    ASSERT_EQ(liar.closed(), 1);
    EXPECT_EQ(liar.close_status().code(), StatusCode::kProtocolViolation);
    EXPECT_NE(liar.close_status().message().find("left out"), std::string::npos)
        << liar.close_status().message();
    EXPECT_EQ(liar.refused(), 1u);
    EXPECT_LE(liar.largest_sent(), 10'000u);  // a chance of 3 in a billion to come so far
    total += liar.largest_sent();
  }
  EXPECT_LE(total, 15'000u);  // 5120 are expected, and the rest of the flight
}

}  // namespace
}  // namespace longhaul::transport
