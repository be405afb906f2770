#include "proto/frames.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/proto/frame_samples.h"

namespace longhaul::wire {
namespace {

constexpr uint64_t kSeed = 20;

using Bytes = std::vector<uint8_t>;

// Fails with kProtocolViolation, mentions `what`, and leaves the reader failed.
void ExpectRefused(const Bytes& bytes, const std::string& what) {
  ByteReader in(bytes);
  const Result<Frame> frame = DecodeFrame(in);
  ASSERT_FALSE(frame.ok()) << what;
  EXPECT_EQ(frame.status().code(), StatusCode::kProtocolViolation) << what;
  EXPECT_NE(frame.status().message().find(what), std::string::npos)
      << "said \"" << frame.status().message() << "\", expected \"" << what << "\"";
  EXPECT_FALSE(in.ok());
}

TEST(Frames, RandomFramesRoundTrip) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  for (int i = 0; i < 3000; ++i) {
    Bytes storage;
    const Frame frame = RandomFrame(random, i % kFrameTypes, &storage);
    const Bytes bytes = Encoded(frame);
    ASSERT_EQ(bytes.size(), EncodedSize(frame)) << FrameName(frame);
    ByteReader in(bytes);
    const Result<Frame> decoded = DecodeFrame(in);
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_TRUE(Same(*decoded, frame)) << FrameName(frame);
    EXPECT_TRUE(in.AtEnd()) << FrameName(frame);
  }
}

TEST(Frames, FramesFollowEachOther) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  Bytes storage[kFrameTypes];
  std::vector<Frame> frames;
  Bytes bytes(64 * 1024);
  ByteWriter out(bytes);
  for (uint64_t type = 0; type < kFrameTypes; ++type) {
    frames.push_back(RandomFrame(random, type, &storage[type]));
    ASSERT_TRUE(Encode(frames.back(), out));
  }
  ByteReader in(out.written());
  for (const Frame& frame : frames) {
    const Result<Frame> decoded = DecodeFrame(in);
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_TRUE(Same(*decoded, frame)) << FrameName(frame);
  }
  EXPECT_TRUE(in.AtEnd());
}

TEST(Frames, TruncatedAtEveryByteFails) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  for (int round = 0; round < 30; ++round) {
    for (uint64_t type = 1; type < kFrameTypes; ++type) {  // padding of n bytes is also padding of n - 1
      Bytes storage;
      const Frame frame = RandomFrame(random, type, &storage);
      const Bytes bytes = Encoded(frame);
      for (size_t n = 0; n < bytes.size(); ++n) {
        const auto decoded = Decoded(ByteSpan(bytes).first(n));
        ASSERT_FALSE(decoded.ok()) << FrameName(frame) << " cut at " << n << " of " << bytes.size();
        ASSERT_EQ(decoded.status().code(), StatusCode::kProtocolViolation);
      }
    }
  }
}

TEST(Frames, MutatedFramesDecodeToWhatReEncodesOrFail) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  int decoded_count = 0, failed_count = 0;
  for (int i = 0; i < 30000; ++i) {
    Bytes storage;
    Bytes bytes = Encoded(RandomFrame(random, random.Below(kFrameTypes), &storage));
    const uint64_t hits = 1 + random.Below(4);
    // Mostly in the front, where the fields are.
    for (uint64_t h = 0; h < hits; ++h) {
      bytes[random.Below(std::min<size_t>(bytes.size(), 24))] = static_cast<uint8_t>(random.Next());
    }
    ByteReader in(bytes);
    const Result<Frame> decoded = DecodeFrame(in);
    if (!decoded.ok()) {
      ASSERT_EQ(decoded.status().code(), StatusCode::kProtocolViolation);
      ++failed_count;
      continue;
    }
    ++decoded_count;
    const Bytes consumed(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(in.position()));
    ASSERT_EQ(Encoded(*decoded), consumed) << FrameName(*decoded);
  }
  EXPECT_GT(decoded_count, 3000);
  EXPECT_GT(failed_count, 3000);
}

TEST(Frames, WhatDoesNotFitWritesNothing) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  for (uint64_t type = 0; type < kFrameTypes; ++type) {
    Bytes storage;
    const Frame frame = RandomFrame(random, type, &storage);
    for (size_t room = 0; room < EncodedSize(frame); ++room) {
      Bytes bytes(room, 0xee);
      ByteWriter out(bytes);
      ASSERT_FALSE(Encode(frame, out)) << FrameName(frame) << " in " << room;
      ASSERT_EQ(out.size(), 0u);
      ASSERT_TRUE(out.ok()) << "a smaller frame may still be tried";
      ASSERT_EQ(bytes, Bytes(room, 0xee));
    }
  }
}

TEST(Frames, EmptyInputIsTruncated) { ExpectRefused({}, "truncated"); }

TEST(Frames, UnknownAndReservedTypesFail) {
  const std::set<int> known = {0x00, 0x01, 0x02, 0x06, 0x10, 0x11, 0x12, 0x13,
                               0x14, 0x15, 0x16, 0x17, 0x18, 0x1a, 0x1c, 0x20};
  for (int type = 0; type < 256; ++type) {
    if (known.contains(type)) continue;
    ExpectRefused({static_cast<uint8_t>(type), 0, 0, 0, 0, 0, 0, 0, 0},
                  "unknown type " + std::to_string(type));
  }
}

TEST(Frames, PaddingSwallowsTheRunAndNoMore) {
  const Bytes bytes = {0, 0, 0, 0x01};
  ByteReader in(bytes);
  const auto padding = DecodeFrame(in);
  ASSERT_TRUE(padding.ok());
  EXPECT_EQ(std::get<PaddingFrame>(*padding).length, 3u);
  EXPECT_TRUE(std::holds_alternative<PingFrame>(*DecodeFrame(in)));
}

TEST(Frames, IntegersHaveOnlyTheirShortestForm) {
  ExpectRefused({0x14, 0x40, 0x05, 0x00}, "GRANT");           // 5 in two bytes
  ExpectRefused({0x14, 0x80, 0, 0x3f, 0xff, 0x00}, "GRANT");  // 16383 in four
  EXPECT_TRUE(Decoded(Bytes{0x14, 0x40, 0x40, 0x00}).ok());   // 64 needs two
}

TEST(Frames, AckRangesMustDescendWithGaps) {
  // largest, delay, further ranges, length of the first, (gap, length)..., ect0, ce, drops
  EXPECT_TRUE(Decoded(Bytes{0x02, 10, 0, 0, 10, 0, 0, 0}).ok());
  ExpectRefused({0x02, 10, 0, 0, 11, 0, 0, 0}, "ACK");        // first range below zero
  ExpectRefused({0x02, 10, 0, 1, 10, 0, 0, 0, 0, 0}, "ACK");  // nothing lies below zero
  ExpectRefused({0x02, 10, 0, 1, 5, 4, 0, 0, 0, 0}, "ACK");   // gap reaches below zero
  ExpectRefused({0x02, 10, 0, 1, 5, 3, 1, 0, 0, 0}, "ACK");   // second range below zero
  const auto ack = Decoded(Bytes{0x02, 10, 7, 1, 2, 0, 3, 9, 1, 2});
  ASSERT_TRUE(ack.ok());
  EXPECT_EQ(std::get<AckFrame>(*ack), (AckFrame{{{8, 10}, {3, 6}}, 7, 9, 1, 2}));
}

TEST(Frames, AckHasAtMost64Ranges) {
  Bytes bytes = {0x02, 0x40, 0xff, 0, 0x3f, 0};  // 64 ranges: 255, 253, ...
  for (int i = 0; i < 63; ++i) bytes.insert(bytes.end(), {0, 0});
  bytes.insert(bytes.end(), {0, 0, 0});
  ASSERT_TRUE(Decoded(bytes).ok());
  EXPECT_EQ(std::get<AckFrame>(*Decoded(bytes)).ranges.size(), kMaxAckRanges);
  Bytes more = {0x02, 0x40, 0xff, 0, 0x40, 0x40, 0};
  for (int i = 0; i < 64; ++i) more.insert(more.end(), {0, 0});
  more.insert(more.end(), {0, 0});
  ExpectRefused(more, "ACK");
}

TEST(Frames, AckOfANumberBeyond48BitsFails) {
  ExpectRefused({0x02, 0xc1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "packet number too large");
}

TEST(Frames, ControlDataEndsWithinTheStream) {
  const Bytes data = {1, 2, 3};
  EXPECT_TRUE(Decoded(Encoded(ControlFrame{kMaxVarint - 3, data})).ok());
  ExpectRefused({0x06, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x00}, "offset");
  ExpectRefused({0x06, 0x00, 0x03, 1, 2}, "CONTROL");                                         // length lies
  ExpectRefused({0x06, 0x00, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, "CONTROL");  // by far
}

// type, id, generation, high, low, symbol bytes, k, depth, metadata
TEST(Frames, WindowOpenStaysWithinItsBounds) {
  EXPECT_TRUE(Decoded(Bytes{0x10, 1, 0, 2, 3, 4, 20, 4, 0}).ok());
  ExpectRefused({0x10, 1, 0, 2, 3, 4, 20, 0, 0}, "depth");
  ExpectRefused({0x10, 1, 0, 0x80, 0x10, 0, 0, 1, 4, 20, 4, 0}, "too many chunks");       // 2^20 + 1
  ExpectRefused({0x10, 1, 0, 0x80, 0x10, 0, 0, 0, 4, 8, 4, 0}, "too many blocks");        // 2^20 / 8
  EXPECT_TRUE(Decoded(Bytes{0x10, 1, 0, 0x80, 0x10, 0, 0, 0, 4, 20, 4, 0}).ok());         // 2^20 / 20
  ExpectRefused({0x10, 1, 0, 2, 3, 0x80, 1, 0, 0, 20, 4, 0}, "WINDOW_OPEN");              // 17-bit symbol
  ExpectRefused({0x10, 0xc0, 0, 0, 1, 0, 0, 0, 0, 0, 2, 3, 4, 20, 4, 0}, "WINDOW_OPEN");  // 33-bit id
  Bytes metadata = {0x10, 1, 0, 2, 3, 4, 20, 4, 0x42, 0x00};
  metadata.resize(metadata.size() + 512);
  EXPECT_TRUE(Decoded(metadata).ok());
  metadata[9] = 0x01;
  metadata.push_back(0);
  ExpectRefused(metadata, "metadata too long");
}

// type, id, generation, finished, high, low
TEST(Frames, WindowStatusStaysWithinItsBounds) {
  EXPECT_TRUE(Decoded(Bytes{0x11, 1, 0, 1, 2, 3}).ok());
  ExpectRefused({0x11, 1, 0, 2, 2, 3}, "WINDOW_STATUS");  // a third truth value
  ExpectRefused({0x11, 1, 0, 1, 0x80, 0x10, 0, 0, 1}, "too many chunks");
}

// type, id, generation, reason, high complete, bits, first, bitmap
TEST(Frames, WindowCloseBitmapMatchesItsCount) {
  EXPECT_TRUE(Decoded(Bytes{0x12, 1, 0, 1, 1, 11, 0, 2, 0xff, 0x07}).ok());
  EXPECT_TRUE(Decoded(Bytes{0x12, 1, 0, 1, 1, 11, 8, 1, 0x07}).ok());
  EXPECT_TRUE(Decoded(Bytes{0x12, 1, 0, 0, 1, 11, 0, 0}).ok());
  EXPECT_TRUE(Decoded(Bytes{0x12, 1, 0, 1, 1, 16, 8, 1, 0xff}).ok());
  ExpectRefused({0x12, 1, 0, 6, 1, 11, 0, 0}, "unknown reason");
  ExpectRefused({0x12, 1, 0, 1, 2, 11, 0, 0}, "WINDOW_CLOSE");
  ExpectRefused({0x12, 1, 0, 1, 1, 11, 4, 1, 0xff}, "inside a byte");
  ExpectRefused({0x12, 1, 0, 1, 1, 11, 0, 3, 0xff, 0x07, 0}, "longer than its bits");
  ExpectRefused({0x12, 1, 0, 1, 1, 11, 16, 1, 0}, "longer than its bits");
  ExpectRefused({0x12, 1, 0, 1, 1, 11, 24, 0}, "longer than its bits");
  ExpectRefused({0x12, 1, 0, 1, 1, 11, 0, 2, 0xff, 0x08}, "beyond the last");
  ExpectRefused({0x12, 1, 0, 1, 1, 0x80, 0x10, 0, 1, 0, 0}, "too many chunks");
  Bytes long_segment = {0x12, 1, 0, 1, 1, 0x80, 0x10, 0, 0, 0, 0x44, 0x00};
  long_segment.resize(long_segment.size() + 1024);
  EXPECT_TRUE(Decoded(long_segment).ok());
  long_segment[11] = 0x01;
  long_segment.push_back(0);
  ExpectRefused(long_segment, "segment too long");
}

// type, id, generation, first, bitmap
TEST(Frames, WindowNackNamesAtLeastOneChunk) {
  EXPECT_TRUE(Decoded(Bytes{0x13, 1, 0, 8, 2, 0x00, 0x01}).ok());
  EXPECT_TRUE(Decoded(Bytes{0x13, 1, 0, 0x80, 0x0f, 0xff, 0xf8, 1, 0x80}).ok())
      << "the last chunk that can be";
  ExpectRefused({0x13, 1, 0, 8, 0}, "asks for nothing");
  ExpectRefused({0x13, 1, 0, 8, 2, 0x01, 0x00}, "asks for nothing");
  ExpectRefused({0x13, 1, 0, 4, 1, 0x01}, "inside a byte");
  ExpectRefused({0x13, 1, 0, 0x80, 0x10, 0, 0, 1, 0x01}, "too many chunks");
  ExpectRefused({0x13, 1, 0, 8, 2, 0x01}, "WINDOW_NACK");
  Bytes longest = {0x13, 1, 0, 0, 0x44, 0x00};
  longest.resize(longest.size() + 1024, 0x01);
  EXPECT_TRUE(Decoded(longest).ok());
  longest[5] = 0x01;
  longest.push_back(1);
  ExpectRefused(longest, "too long");
}

TEST(Frames, CloseCarriesAKnownCodeAndText) {
  EXPECT_TRUE(Decoded(Bytes{0x1c, 17, 0}).ok());
  ExpectRefused({0x1c, 18, 0}, "unknown status code");
  EXPECT_TRUE(Decoded(Bytes{0x1c, 1, 2, 0xc3, 0xa4}).ok());
  ExpectRefused({0x1c, 1, 1, 0xc3}, "CLOSE");              // half a character
  ExpectRefused({0x1c, 1, 2, 0xc0, 0x80}, "CLOSE");        // overlong
  ExpectRefused({0x1c, 1, 3, 0xed, 0xa0, 0x80}, "CLOSE");  // surrogate
  Bytes reason = {0x1c, 1, 0x41, 0x00};
  reason.resize(reason.size() + 256, 'x');
  EXPECT_TRUE(Decoded(reason).ok());
  reason[3] = 0x01;
  reason.push_back('x');
  ExpectRefused(reason, "CLOSE");
}

TEST(Frames, CloseCutsAReasonThatIsTooLongOrNotText) {
  const std::string reason = std::string(255, 'x') + "\xc3\xa4 and more";
  const Bytes bytes = Encoded(CloseFrame{StatusCode::kAborted, reason});
  EXPECT_EQ(std::get<CloseFrame>(*Decoded(bytes)).reason, std::string(255, 'x'));
  const Bytes binary = Encoded(CloseFrame{StatusCode::kAborted, "file \xff.npy"});
  EXPECT_EQ(std::get<CloseFrame>(*Decoded(binary)).reason, "file ");
}

TEST(Frames, TransportParametersBoundTheDatagram) {
  EXPECT_TRUE(Decoded(Encoded(TransportParametersFrame{.max_datagram_bytes = 1200})).ok());
  EXPECT_TRUE(Decoded(Encoded(TransportParametersFrame{.max_datagram_bytes = 65507})).ok());
  ExpectRefused({0x20, 0x44, 0xaf, 0, 0, 0, 0}, "max_datagram_bytes");              // 1199
  ExpectRefused({0x20, 0x80, 0x00, 0xff, 0xe4, 0, 0, 0, 0}, "max_datagram_bytes");  // 65508
  ExpectRefused({0x20, 0x44, 0xb0, 0, 0, 0xc0, 0, 0, 1, 0, 0, 0, 0, 0}, "TRANSPORT_PARAMETERS");
}

TEST(Frames, BoundsLargerThanAVarintTravelAsTheLargest) {
  const auto grant = Decoded(Encoded(GrantFrame{~uint64_t{0}, ~uint64_t{0}}));
  ASSERT_TRUE(grant.ok());
  EXPECT_EQ(std::get<GrantFrame>(*grant), (GrantFrame{kMaxVarint, kMaxVarint}));
}

TEST(Frames, PaddingAckAndCloseElicitNoAck) {
  Random random(kSeed);
  std::vector<std::string> silent;
  for (uint64_t type = 0; type < kFrameTypes; ++type) {
    Bytes storage;
    const Frame frame = RandomFrame(random, type, &storage);
    if (!IsAckEliciting(frame)) silent.emplace_back(FrameName(frame));
  }
  EXPECT_EQ(silent, (std::vector<std::string>{"PADDING", "ACK", "CLOSE"}));
}

TEST(FramesDeathTest, OurOwnImpossibleFramesAreBugs) {
  Bytes bytes(64);
  ByteWriter out(bytes);
  EXPECT_DEATH(Encode(AckFrame{}, out), "bug.*no ranges");
  EXPECT_DEATH(Encode(AckFrame{.ranges = {{5, 6}, {3, 4}}}, out), "bug.*overlap or touch");
  EXPECT_DEATH(Encode(WindowOpenFrame{.fec_depth = 0}, out), "bug.*depth");
}

}  // namespace
}  // namespace longhaul::wire
