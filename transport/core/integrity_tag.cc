#include "transport/core/integrity_tag.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/crc32c.h"

namespace longhaul::transport {
namespace {

constexpr uint32_t kMark = 0x4c484954;  // "LHIT"

using Tag = std::array<uint8_t, wire::kTagBytes>;

Tag MakeTag(wire::PacketNumber number, uint8_t path, ByteSpan header, ByteSpan body) {
  std::array<uint8_t, 9> prefix{};
  ByteWriter prefix_writer(prefix);
  prefix_writer.U64(number);
  prefix_writer.U8(path);
  const uint32_t head = Crc32c(header, Crc32c(prefix));
  Tag tag{};
  ByteWriter out(tag);
  out.U32(Crc32c(body, head));
  out.U32(head);
  out.U32(static_cast<uint32_t>(body.size()));
  out.U32(kMark);
  return tag;
}

}  // namespace

void IntegrityTag::Seal(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
                        MutableByteSpan tag) {
  LH_CHECK_OP(tag.size(), ==, wire::kTagBytes);
  const Tag made = MakeTag(number, path, header, body);
  std::copy(made.begin(), made.end(), tag.begin());
}

bool IntegrityTag::Open(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
                        ByteSpan tag) {
  const Tag made = MakeTag(number, path, header, body);
  return std::equal(made.begin(), made.end(), tag.begin(), tag.end());
}

}  // namespace longhaul::transport
