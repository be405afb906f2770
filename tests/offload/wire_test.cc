#include "offload/engine/wire.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/crc32c.h"
#include "base/random.h"

namespace longhaul::offload {
namespace {

Header Some() {
  Header h;
  h.intra = 3;
  h.kind = PacketKind::kResult;
  h.jid = 0x1234;
  h.source = 7;
  h.root = 9;
  h.mid = 0x01020304;
  h.sid = 0x05060708;
  h.generation = 0x090a0b0c;
  h.op = ReduceOp::kMax;
  h.type = DataType::kInt32;
  h.opcode = Opcode::kBroadcast;
  h.flags = WorkRequest::kDeterministic | Header::kTree;
  h.status = WorkStatus::kPartial;
  h.seg_bytes = 1024;
  h.length = 0x1112131415161718;
  h.nodes = 0xffff;
  h.missing = 0x8142;
  h.late = 0x2418;
  h.contributors = 0x00f1;
  h.ranks = 0x2122232425262728;
  h.participants = 0x31323334;
  return h;
}

std::vector<uint8_t> Packed(const Header& h, size_t payload = 3) {
  std::vector<uint8_t> out(kHeaderBytes + payload), data(payload, 0xaa);
  EXPECT_EQ(Encapsulate(h, data, out), out.size());
  return out;
}

// Byte by byte: what another implementation has to write.
TEST(OffloadWire, TheBytesOfAPacket) {
  const std::vector<uint8_t> packet = Packed(Some());
  const uint8_t golden[] = {
      0x4c, 0x23, 0x00, 0xf1, 0x4c, 0x48, 0x03, 0x01, 0x12, 0x34, 0x07, 0x09, 0x01, 0x02, 0x03, 0x04, 0x05,
      0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x53, 0x03, 0x05, 0x0c, 0x04, 0x00, 0x00, 0x03, 0x11, 0x12,
      0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0xff, 0xff, 0x81, 0x42, 0x24, 0x18, 0x00, 0x00, 0x00, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0xf1, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34};
  ASSERT_EQ(sizeof golden + 4, kHeaderBytes);
  EXPECT_EQ(std::vector<uint8_t>(std::begin(golden), std::end(golden)),
            std::vector<uint8_t>(packet.begin(), packet.begin() + sizeof golden));
}

TEST(OffloadWire, WhatIsPackedIsWhatIsParsed) {
  const std::vector<uint8_t> packet = Packed(Some(), 100);
  const auto parsed = Parse(packet);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->header, Some());
  EXPECT_EQ(parsed->payload.size(), 100u);
  EXPECT_EQ(parsed->payload.data(), packet.data() + kHeaderBytes);
}

TEST(OffloadWire, EveryDamagedBitIsFound) {
  const std::vector<uint8_t> packet = Packed(Some());
  for (size_t bit = 0; bit < packet.size() * 8; ++bit) {
    std::vector<uint8_t> damaged = packet;
    damaged[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_FALSE(Parse(damaged)) << bit;
  }
}

TEST(OffloadWire, ForeignDatagramsAreToldFromDamagedOnes) {
  ParseError error;
  std::vector<uint8_t> packet = Packed(Some());
  EXPECT_FALSE(Parse(ByteSpan(packet).first(kHeaderBytes - 1), &error));
  EXPECT_EQ(error, ParseError::kForeign);
  packet[kHeaderBytes] ^= 1;
  EXPECT_FALSE(Parse(packet, &error));
  EXPECT_EQ(error, ParseError::kDamaged);
  packet[6] = 1;  // another version
  EXPECT_FALSE(Parse(packet, &error));
  EXPECT_EQ(error, ParseError::kForeign);
}

// With a right checksum, and impossible all the same.
TEST(OffloadWire, ImpossibleValuesAreRefused) {
  const auto refused = [](size_t at, uint8_t value) {
    std::vector<uint8_t> packet = Packed(Some());
    packet[at] = value;
    const uint32_t crc = Crc32c(ByteSpan(packet).subspan(kHeaderBytes), Crc32c(ByteSpan(packet).first(68)));
    ByteWriter(MutableByteSpan(packet).subspan(68)).U32(crc);
    ParseError error;
    return !Parse(packet, &error) && error == ParseError::kMalformed;
  };
  EXPECT_TRUE(refused(0, 0x57));    // application: not the low bits of jid
  EXPECT_TRUE(refused(3, 0xf3));    // inter-node state: not the contributors
  EXPECT_TRUE(refused(7, 14));      // kind
  EXPECT_TRUE(refused(10, 64));     // source
  EXPECT_TRUE(refused(11, 64));     // root
  EXPECT_TRUE(refused(24, 0x63));   // operation
  EXPECT_TRUE(refused(24, 0x55));   // type
  EXPECT_TRUE(refused(25, 9));      // opcode
  EXPECT_TRUE(refused(26, 0x80));   // flags
  EXPECT_TRUE(refused(27, 13));     // status
  EXPECT_TRUE(refused(31, 4));      // payload's length
  EXPECT_TRUE(refused(41, 0x0f));   // contributors that are no nodes
  EXPECT_TRUE(refused(40, 0x7f));   // missing that are no nodes
  EXPECT_TRUE(refused(47, 0x01));   // not zero
  EXPECT_FALSE(refused(16, 0x05));  // unchanged
}

TEST(OffloadWire, AConfigurationSurvives) {
  const JobConfig config{.nodes = 0b1011,
                         .ranks = 5,
                         .route = Route::kTree,
                         .root_node = 3,
                         .policy = StragglerPolicy::kSeedSkip,
                         .skip_after = Duration(77),
                         .deadline = Duration(99)};
  std::vector<uint8_t> bytes(kConfigBytes);
  EncodeConfig(config, bytes);
  const auto read = DecodeConfig(bytes);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->nodes, config.nodes);
  EXPECT_EQ(read->ranks, config.ranks);
  EXPECT_EQ(read->route, config.route);
  EXPECT_EQ(read->root_node, config.root_node);
  EXPECT_EQ(read->policy, config.policy);
  EXPECT_EQ(read->skip_after, config.skip_after);
  EXPECT_EQ(read->deadline, config.deadline);
  bytes[16] = 2;
  EXPECT_FALSE(DecodeConfig(bytes));
  bytes[16] = 1;
  bytes.push_back(0);
  EXPECT_FALSE(DecodeConfig(bytes));
}

}  // namespace
}  // namespace longhaul::offload
