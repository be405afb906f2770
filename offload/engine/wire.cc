#include "offload/engine/wire.h"

#include "base/check.h"
#include "base/crc32c.h"

namespace longhaul::offload {
namespace {

constexpr size_t kCrcAt = kHeaderBytes - 4;

constexpr uint32_t Mask(uint32_t bits) { return (uint32_t{1} << bits) - 1; }

uint32_t WordZero(const Header& h) {
  static_assert(kAppBits + kDataBits + kIntraBits + kInterBits == 32);
  uint32_t word = h.jid & Mask(kAppBits);
  word = word << kDataBits | (h.sid & Mask(kDataBits));
  word = word << kIntraBits | (h.intra & Mask(kIntraBits));
  return word << kInterBits | static_cast<uint32_t>(h.contributors & Mask(kInterBits));
}

uint32_t Checksum(ByteSpan datagram) {
  return Crc32c(datagram.subspan(kHeaderBytes), Crc32c(datagram.first(kCrcAt)));
}

bool InRange(uint8_t kind, uint8_t op_and_type, uint8_t opcode, uint8_t status, const Header& h) {
  constexpr uint8_t kFlags = WorkRequest::kAllFlags | Header::kTree | Header::kIncomplete | Header::kReformed;
  return kind < kPacketKinds && op_and_type >> 4 <= static_cast<uint8_t>(ReduceOp::kMax) &&
         (op_and_type & 15) <= static_cast<uint8_t>(DataType::kQ32) &&
         opcode <= static_cast<uint8_t>(Opcode::kCancel) && (h.flags & ~kFlags) == 0 &&
         status <= static_cast<uint8_t>(WorkStatus::kPartial) && h.source < 64 && h.root < 64;
}

std::optional<Packet> Fail(ParseError* out, ParseError error) {
  if (out != nullptr) *out = error;
  return std::nullopt;
}

}  // namespace

size_t Encapsulate(const Header& h, ByteSpan payload, MutableByteSpan out) {
  ByteWriter writer(out);
  writer.U32(WordZero(h));
  writer.U16(kMagic);
  writer.U8(kWireVersion);
  writer.U8(static_cast<uint8_t>(h.kind));
  writer.U16(h.jid);
  writer.U8(h.source);
  writer.U8(h.root);
  writer.U32(h.mid);
  writer.U32(h.sid);
  writer.U32(h.generation);
  writer.U8(static_cast<uint8_t>(static_cast<uint8_t>(h.op) << 4 | static_cast<uint8_t>(h.type)));
  writer.U8(static_cast<uint8_t>(h.opcode));
  writer.U8(h.flags);
  writer.U8(static_cast<uint8_t>(h.status));
  writer.U16(h.seg_bytes);
  LH_CHECK_OP(payload.size(), <=, size_t{UINT16_MAX});
  writer.U16(static_cast<uint16_t>(payload.size()));
  writer.U64(h.length);
  writer.U16(static_cast<uint16_t>(h.nodes));
  writer.U16(static_cast<uint16_t>(h.missing));
  writer.U16(static_cast<uint16_t>(h.late));
  writer.U16(0);
  writer.U64(h.contributors);
  writer.U64(h.ranks);
  writer.U32(h.participants);
  writer.U32(0);
  writer.Bytes(payload);
  if (!writer.ok()) return 0;
  const ByteSpan datagram = writer.written();
  ByteWriter(out.subspan(kCrcAt)).U32(Checksum(datagram));
  return datagram.size();
}

std::optional<uint8_t> SourceOf(ByteSpan datagram) {
  constexpr size_t kMagicAt = 4, kSourceAt = 10;
  if (datagram.size() < kHeaderBytes) return std::nullopt;
  ByteReader reader(datagram.subspan(kMagicAt));
  if (reader.U16() != kMagic || reader.U8() != kWireVersion) return std::nullopt;
  return datagram[kSourceAt];
}

std::optional<Packet> Parse(ByteSpan datagram, ParseError* error) {
  if (error != nullptr) *error = ParseError::kNone;
  if (datagram.size() < kHeaderBytes) return Fail(error, ParseError::kForeign);
  ByteReader reader(datagram);
  Packet packet;
  Header& h = packet.header;
  const uint32_t word = reader.U32();
  if (reader.U16() != kMagic || reader.U8() != kWireVersion) return Fail(error, ParseError::kForeign);
  const uint8_t kind = reader.U8();
  h.jid = reader.U16();
  h.source = reader.U8();
  h.root = reader.U8();
  h.mid = reader.U32();
  h.sid = reader.U32();
  h.generation = reader.U32();
  const uint8_t op_and_type = reader.U8();
  const uint8_t opcode = reader.U8();
  h.flags = reader.U8();
  const uint8_t status = reader.U8();
  h.seg_bytes = reader.U16();
  const uint16_t payload = reader.U16();
  h.length = reader.U64();
  h.nodes = reader.U16();
  h.missing = reader.U16();
  h.late = reader.U16();
  const bool zeros = reader.U16() == 0;
  h.contributors = reader.U64();
  h.ranks = reader.U64();
  h.participants = reader.U32();
  const uint32_t crc = reader.U32();
  if (crc != Checksum(datagram)) return Fail(error, ParseError::kDamaged);
  h.intra = static_cast<uint8_t>(word >> kInterBits & Mask(kIntraBits));
  h.kind = static_cast<PacketKind>(kind);
  h.op = static_cast<ReduceOp>(op_and_type >> 4);
  h.type = static_cast<DataType>(op_and_type & 15);
  h.opcode = static_cast<Opcode>(opcode);
  h.status = static_cast<WorkStatus>(status);
  packet.payload = reader.Rest();
  const bool possible = packet.payload.size() == payload && word == WordZero(h) &&
                        InRange(kind, op_and_type, opcode, status, h) && zeros &&
                        ((h.contributors | h.missing | h.late) & ~h.nodes) == 0;
  if (!possible) return Fail(error, ParseError::kMalformed);
  return packet;
}

void EncodeConfig(const JobConfig& config, MutableByteSpan out) {
  ByteWriter writer(out);
  writer.U64(config.nodes);
  writer.U64(config.ranks);
  writer.U8(static_cast<uint8_t>(config.route));
  writer.U8(config.root_node);
  writer.U8(static_cast<uint8_t>(config.policy));
  writer.U8(0);
  writer.U16(0);
  writer.U64(static_cast<uint64_t>(config.skip_after.count()));
  writer.U64(static_cast<uint64_t>(config.deadline.count()));
  LH_CHECK(writer.ok());
}

std::optional<JobConfig> DecodeConfig(ByteSpan bytes) {
  ByteReader reader(bytes);
  JobConfig config;
  config.nodes = reader.U64();
  config.ranks = reader.U64();
  const uint8_t route = reader.U8();
  config.root_node = reader.U8();
  const uint8_t policy = reader.U8();
  const bool zeros = reader.U8() == 0 && reader.U16() == 0;
  const uint64_t skip_after = reader.U64();
  const uint64_t deadline = reader.U64();
  if (!reader.AtEnd() || !zeros || route > static_cast<uint8_t>(Route::kTree) || config.root_node >= 64 ||
      policy > static_cast<uint8_t>(StragglerPolicy::kLeafDemote) || skip_after > uint64_t{INT64_MAX} ||
      deadline > uint64_t{INT64_MAX}) {
    return std::nullopt;
  }
  config.route = static_cast<Route>(route);
  config.policy = static_cast<StragglerPolicy>(policy);
  config.skip_after = Duration(static_cast<int64_t>(skip_after));
  config.deadline = Duration(static_cast<int64_t>(deadline));
  return config;
}

}  // namespace longhaul::offload
