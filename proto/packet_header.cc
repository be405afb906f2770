#include "proto/packet_header.h"

#include <array>

#include "base/check.h"

namespace longhaul::wire {
namespace {

constexpr uint8_t kLongForm = 0x80;
constexpr uint8_t kLongTypeMask = 0x03;

constexpr uint8_t kHasData = 0x40;
constexpr uint8_t kKeyPhase = 0x01;

constexpr uint8_t kLowClass = 0x01;
constexpr uint8_t kRepair = 0x02;
constexpr uint8_t kLastOfWindow = 0x04;
constexpr uint8_t kRetransmission = 0x08;
constexpr uint8_t kPart = 0x10;

// Headers are packed here and copied in one piece, so that one that does not fit leaves nothing behind.
template <size_t kBytes>
class Packed {
 public:
  ByteWriter& writer() { return writer_; }
  void CopyTo(ByteWriter& out) {
    LH_CHECK(writer_.ok());
    LH_CHECK_OP(writer_.size(), ==, kBytes);
    out.Bytes(bytes_);
  }

 private:
  std::array<uint8_t, kBytes> bytes_{};
  ByteWriter writer_{bytes_};
};

}  // namespace

bool IsLongHeader(ByteSpan datagram) { return !datagram.empty() && (datagram[0] & kLongForm) != 0; }

void Encode(const LongHeader& header, ByteWriter& out) {
  LH_CHECK_OP(header.packet_number, <=, kMaxPacketNumber);
  Packed<kLongHeaderBytes> packed;
  ByteWriter& w = packed.writer();
  w.U8(static_cast<uint8_t>(kLongForm | static_cast<uint8_t>(header.type)));
  w.U8(0);
  w.U16(header.version);
  w.U64(header.destination.value);
  w.U64(header.source.value);
  w.U48(header.packet_number);
  packed.CopyTo(out);
}

void Encode(const ShortHeader& header, ByteWriter& out) {
  LH_CHECK_OP(header.packet_number, <=, kMaxPacketNumber);
  Packed<kShortHeaderBytes> packed;
  ByteWriter& w = packed.writer();
  w.U8(static_cast<uint8_t>((header.has_data ? kHasData : 0) | (header.key_phase ? kKeyPhase : 0)));
  w.U8(header.path);
  w.U64(header.destination.value);
  w.U48(header.packet_number);
  packed.CopyTo(out);
}

void Encode(const DataHeader& header, ByteWriter& out) {
  const bool low = header.reliability == ReliabilityClass::kLow;
  LH_CHECK(!(low && header.repair));
  Packed<kDataHeaderBytes> packed;
  ByteWriter& w = packed.writer();
  w.U32(header.window_id);
  w.U32(header.index);
  w.U8(static_cast<uint8_t>((low ? kLowClass : 0) | (header.repair ? kRepair : 0) |
                            (header.last_of_window ? kLastOfWindow : 0) |
                            (header.retransmission ? kRetransmission : 0) | (header.part ? kPart : 0)));
  w.U8(header.generation);
  w.U16(header.frames_length);
  w.U32(header.timestamp_us);
  packed.CopyTo(out);
}

bool PartHeader::Fits(size_t bytes) const {
  const size_t end = offset + bytes;
  const bool is_end = end == total;
  return bytes > 0 && bytes < total && end <= total && offset % kPartUnit == 0 &&
         (is_end || bytes % kPartUnit == 0);
}

void Encode(const PartHeader& header, ByteWriter& out) {
  Packed<kPartHeaderBytes> packed;
  packed.writer().U16(header.offset);
  packed.writer().U16(header.total);
  packed.CopyTo(out);
}

void EncodeCookie(ByteSpan cookie, ByteWriter& out) {
  LH_CHECK_OP(cookie.size(), <=, kMaxCookieBytes);
  out.U8(static_cast<uint8_t>(cookie.size()));
  out.Bytes(cookie);
}

std::optional<ByteSpan> DecodeCookie(ByteReader& in) {
  const size_t bytes = in.U8();
  if (bytes > kMaxCookieBytes) return std::nullopt;
  const ByteSpan cookie = in.Bytes(bytes);
  return in.ok() ? std::optional(cookie) : std::nullopt;
}

std::optional<LongHeader> DecodeLongHeader(ByteReader& in) {
  const uint8_t flags = in.U8();
  const uint8_t reserved = in.U8();
  LongHeader header;
  header.version = in.U16();
  header.destination.value = in.U64();
  header.source.value = in.U64();
  header.packet_number = in.U48();
  if (!in.ok() || (flags & ~kLongTypeMask) != kLongForm || reserved != 0) return std::nullopt;
  header.type = static_cast<LongType>(flags & kLongTypeMask);
  return header;
}

std::optional<ShortHeader> DecodeShortHeader(ByteReader& in) {
  const uint8_t flags = in.U8();
  ShortHeader header;
  header.path = in.U8();
  header.destination.value = in.U64();
  header.packet_number = in.U48();
  if (!in.ok() || (flags & ~(kHasData | kKeyPhase)) != 0) return std::nullopt;
  header.has_data = (flags & kHasData) != 0;
  header.key_phase = (flags & kKeyPhase) != 0;
  return header;
}

std::optional<DataHeader> DecodeDataHeader(ByteReader& in) {
  DataHeader header;
  header.window_id = in.U32();
  header.index = in.U32();
  const uint8_t flags = in.U8();
  header.generation = in.U8();
  header.frames_length = in.U16();
  header.timestamp_us = in.U32();
  if (!in.ok() || (flags & ~(kLowClass | kRepair | kLastOfWindow | kRetransmission | kPart)) != 0)
    return std::nullopt;
  header.reliability = (flags & kLowClass) != 0 ? ReliabilityClass::kLow : ReliabilityClass::kHigh;
  header.repair = (flags & kRepair) != 0;
  header.last_of_window = (flags & kLastOfWindow) != 0;
  header.retransmission = (flags & kRetransmission) != 0;
  header.part = (flags & kPart) != 0;
  // Only the high class has repair symbols.
  if (header.repair && header.reliability == ReliabilityClass::kLow) return std::nullopt;
  return header;
}

std::optional<PartHeader> DecodePartHeader(ByteReader& in) {
  PartHeader header;
  header.offset = in.U16();
  header.total = in.U16();
  if (!in.ok() || !header.Fits(in.remaining())) return std::nullopt;
  return header;
}

}  // namespace longhaul::wire
