#include "proto/packet_header.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace longhaul::wire {
namespace {

template <typename Header>
std::vector<uint8_t> Encoded(const Header& header) {
  std::vector<uint8_t> bytes(64);
  ByteWriter out(bytes);
  Encode(header, out);
  EXPECT_TRUE(out.ok());
  bytes.resize(out.size());
  return bytes;
}

std::optional<LongHeader> Long(ByteSpan bytes) {
  ByteReader in(bytes);
  return DecodeLongHeader(in);
}
std::optional<ShortHeader> Short(ByteSpan bytes) {
  ByteReader in(bytes);
  return DecodeShortHeader(in);
}
std::optional<DataHeader> Data(ByteSpan bytes) {
  ByteReader in(bytes);
  return DecodeDataHeader(in);
}

const LongHeader kLong{.type = LongType::kAccept,
                       .version = 1,
                       .destination = {0x0102030405060708},
                       .source = {0x1112131415161718},
                       .packet_number = 0x212223242526};
const ShortHeader kShort{.has_data = true,
                         .key_phase = true,
                         .path = 3,
                         .destination = {0x0102030405060708},
                         .packet_number = 0xa1a2a3a4a5a6};
const DataHeader kData{.window_id = 0x01020304,
                       .index = 0x05060708,
                       .reliability = ReliabilityClass::kHigh,
                       .repair = true,
                       .last_of_window = true,
                       .retransmission = false,
                       .generation = 9,
                       .frames_length = 0x0a0b,
                       .timestamp_us = 0x0c0d0e0f};

TEST(PacketHeader, LayoutsHaveTheirDocumentedSizes) {
  EXPECT_EQ(Encoded(kLong).size(), kLongHeaderBytes);
  EXPECT_EQ(Encoded(kShort).size(), kShortHeaderBytes);
  EXPECT_EQ(Encoded(kData).size(), kDataHeaderBytes);
}

TEST(PacketHeader, ByteOrderIsTheNetworks) {
  EXPECT_EQ(Encoded(kShort),
            (std::vector<uint8_t>{0x41, 3, 1, 2, 3, 4, 5, 6, 7, 8, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6}));
  EXPECT_EQ(Encoded(kData),
            (std::vector<uint8_t>{1, 2, 3, 4, 5, 6, 7, 8, 0x06, 9, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f}));
}

TEST(PacketHeader, WhatIsEncodedIsDecoded) {
  EXPECT_EQ(Long(Encoded(kLong)), kLong);
  EXPECT_EQ(Short(Encoded(kShort)), kShort);
  EXPECT_EQ(Data(Encoded(kData)), kData);
  EXPECT_TRUE(IsLongHeader(Encoded(kLong)));
  EXPECT_FALSE(IsLongHeader(Encoded(kShort)));
  EXPECT_FALSE(IsLongHeader({}));
}

TEST(PacketHeader, RandomHeadersRoundTrip) {
  constexpr uint64_t kSeed = 1;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  for (int i = 0; i < 2000; ++i) {
    const LongHeader l{static_cast<LongType>(random.Below(3)),
                       static_cast<uint16_t>(random.Next()),
                       {random.Next()},
                       {random.Next()},
                       random.Next() & kMaxPacketNumber};
    EXPECT_EQ(Long(Encoded(l)), l);
    const ShortHeader s{random.Chance(0.5),
                        random.Chance(0.5),
                        static_cast<uint8_t>(random.Next()),
                        {random.Next()},
                        random.Next() & kMaxPacketNumber};
    EXPECT_EQ(Short(Encoded(s)), s);
    DataHeader d{.window_id = static_cast<uint32_t>(random.Next()),
                 .index = static_cast<uint32_t>(random.Next())};
    d.reliability = random.Chance(0.5) ? ReliabilityClass::kLow : ReliabilityClass::kHigh;
    d.repair = d.reliability == ReliabilityClass::kHigh && random.Chance(0.5);
    d.last_of_window = random.Chance(0.5);
    d.retransmission = random.Chance(0.5);
    d.generation = static_cast<uint8_t>(random.Next());
    d.frames_length = static_cast<uint16_t>(random.Next());
    d.timestamp_us = static_cast<uint32_t>(random.Next());
    EXPECT_EQ(Data(Encoded(d)), d);
  }
}

TEST(PacketHeader, TruncatedAtEveryByteFails) {
  for (size_t n = 0; n < kLongHeaderBytes; ++n) EXPECT_FALSE(Long(ByteSpan(Encoded(kLong)).first(n))) << n;
  for (size_t n = 0; n < kShortHeaderBytes; ++n) EXPECT_FALSE(Short(ByteSpan(Encoded(kShort)).first(n))) << n;
  for (size_t n = 0; n < kDataHeaderBytes; ++n) EXPECT_FALSE(Data(ByteSpan(Encoded(kData)).first(n))) << n;
}

TEST(PacketHeader, EveryReservedBitFails) {
  for (int bit = 2; bit < 7; ++bit) {
    auto bytes = Encoded(kLong);
    bytes[0] = static_cast<uint8_t>(bytes[0] | 1 << bit);
    EXPECT_FALSE(Long(bytes)) << "flags bit " << bit;
  }
  for (int bit = 0; bit < 8; ++bit) {
    auto bytes = Encoded(kLong);
    bytes[1] = static_cast<uint8_t>(1 << bit);
    EXPECT_FALSE(Long(bytes)) << "reserved byte, bit " << bit;
  }
  for (int bit = 1; bit < 6; ++bit) {
    auto bytes = Encoded(kShort);
    bytes[0] = static_cast<uint8_t>(bytes[0] | 1 << bit);
    EXPECT_FALSE(Short(bytes)) << "flags bit " << bit;
  }
  for (int bit = 5; bit < 8; ++bit) {
    auto bytes = Encoded(kData);
    bytes[8] = static_cast<uint8_t>(bytes[8] | 1 << bit);
    EXPECT_FALSE(Data(bytes)) << "flags bit " << bit;
  }
}

TEST(PacketHeader, EveryLongTypeIsKnownAndTwoOfThemCarryACookie) {
  for (uint8_t type = 0; type < 4; ++type) {
    auto bytes = Encoded(kLong);
    bytes[0] = 0x80 | type;
    ASSERT_TRUE(Long(bytes));
    EXPECT_EQ(static_cast<uint8_t>(Long(bytes)->type), type);
  }
  EXPECT_TRUE(HasCookie(LongType::kInit) && HasCookie(LongType::kRetry));
  EXPECT_FALSE(HasCookie(LongType::kAccept) || HasCookie(LongType::kRefuse));
}

TEST(PacketHeader, CookiesOfEveryLengthSurviveAndLongerOnesFail) {
  for (size_t bytes = 0; bytes <= kMaxCookieBytes + 1; ++bytes) {
    std::vector<uint8_t> encoded(1 + bytes, 0x5a);
    encoded[0] = static_cast<uint8_t>(bytes);
    ByteReader in(encoded);
    const auto cookie = DecodeCookie(in);
    ASSERT_EQ(cookie.has_value(), bytes <= kMaxCookieBytes) << bytes;
    if (!cookie) continue;
    EXPECT_EQ(cookie->size(), bytes);
    std::vector<uint8_t> again(1 + bytes);
    ByteWriter out(again);
    EncodeCookie(*cookie, out);
    EXPECT_TRUE(out.ok());
    EXPECT_EQ(again, encoded);
    if (bytes == 0) continue;
    ByteReader cut(ByteSpan(encoded).first(bytes));
    EXPECT_FALSE(DecodeCookie(cut)) << bytes;
  }
}

TEST(PacketHeader, TheOtherFormFails) {
  auto as_long = Encoded(kLong);
  as_long[0] &= 0x7f;
  EXPECT_FALSE(Long(as_long));
  auto as_short = Encoded(kShort);
  as_short[0] |= 0x80;
  EXPECT_FALSE(Short(as_short));
}

TEST(PacketHeader, OtherVersionDecodesSoThatItCanBeRefusedByName) {
  LongHeader other = kLong;
  other.version = 0x7fff;
  const auto decoded = Long(Encoded(other));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->version, 0x7fff);
  EXPECT_EQ(decoded->source, other.source);
}

TEST(PacketHeader, RepairSymbolOfTheLowClassFails) {
  auto bytes = Encoded(kData);
  bytes[8] = 0x03;
  EXPECT_FALSE(Data(bytes));
}

TEST(PacketHeader, RepairIndexHoldsBlockAndSymbol) {
  const DataHeader header{.index = DataHeader::RepairIndex(0xabcd, 7), .repair = true};
  EXPECT_EQ(header.block(), 0xabcd);
  EXPECT_EQ(header.symbol(), 7);
}

TEST(PacketHeader, WhatDoesNotFitWritesNothing) {
  const auto refuses = [](const auto& header, size_t needed) {
    for (size_t room = 0; room < needed; ++room) {
      std::vector<uint8_t> bytes(room, 0xee);
      ByteWriter out(bytes);
      Encode(header, out);
      EXPECT_FALSE(out.ok());
      EXPECT_EQ(out.size(), 0u);
      EXPECT_EQ(bytes, std::vector<uint8_t>(room, 0xee)) << "room " << room;
    }
  };
  refuses(kLong, kLongHeaderBytes);
  refuses(kShort, kShortHeaderBytes);
  refuses(kData, kDataHeaderBytes);
}

TEST(PacketHeader, MutatedHeadersDecodeToWhatReEncodesOrFail) {
  constexpr uint64_t kSeed = 2;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  const auto mutate = [&random](std::vector<uint8_t> bytes) {
    const uint64_t hits = 1 + random.Below(3);
    for (uint64_t i = 0; i < hits; ++i)
      bytes[random.Below(bytes.size())] = static_cast<uint8_t>(random.Next());
    return bytes;
  };
  int decoded = 0, failed = 0;
  const auto check = [&](const auto& bytes, const auto& header) {
    if (!header) return void(++failed);
    ++decoded;
    EXPECT_EQ(Encoded(*header), bytes);
  };
  for (int i = 0; i < 5000; ++i) {
    const auto l = mutate(Encoded(kLong));
    check(l, Long(l));
    const auto s = mutate(Encoded(kShort));
    check(s, Short(s));
    const auto d = mutate(Encoded(kData));
    check(d, Data(d));
  }
  EXPECT_GT(decoded, 1000);
  EXPECT_GT(failed, 1000);
}

TEST(PacketHeaderDeathTest, OurOwnImpossibleHeadersAreBugs) {
  std::vector<uint8_t> bytes(64);
  ByteWriter out(bytes);
  EXPECT_DEATH(Encode(ShortHeader{.packet_number = kMaxPacketNumber + 1}, out), "bug.*kMaxPacketNumber");
  EXPECT_DEATH(Encode(LongHeader{.packet_number = kMaxPacketNumber + 1}, out), "bug.*kMaxPacketNumber");
  EXPECT_DEATH(Encode(DataHeader{.reliability = ReliabilityClass::kLow, .repair = true}, out), "bug.*repair");
}

TEST(ConnectionIdHash, SpreadsOverBuckets) {
  // Identifiers that differ only in the routing bits must not share their low hash bits.
  size_t differing = 0;
  for (uint64_t shard = 1; shard < 64; ++shard) {
    const size_t a = std::hash<ConnectionId>()({shard << 48});
    const size_t b = std::hash<ConnectionId>()({(shard - 1) << 48});
    if (a != b) ++differing;
  }
  EXPECT_EQ(differing, 63u);
}

}  // namespace
}  // namespace longhaul::wire
