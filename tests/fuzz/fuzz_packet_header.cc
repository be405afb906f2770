// Any bytes: a header decodes to what encodes to the same bytes, or not at all; no read passes the end.
#include <algorithm>
#include <array>

#include "proto/packet_header.h"
#include "tests/fuzz/property.h"

using namespace longhaul;        // NOLINT
using namespace longhaul::wire;  // NOLINT

namespace {

template <typename Header>
void Check(const std::optional<Header>& header, ByteSpan input, size_t consumed) {
  if (!header) return;
  std::array<uint8_t, 64> bytes{};
  ByteWriter out(bytes);
  Encode(*header, out);
  FUZZ_REQUIRE(out.ok());
  FUZZ_REQUIRE(out.size() == consumed);
  FUZZ_REQUIRE(std::equal(out.written().begin(), out.written().end(), input.begin()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteSpan input(data, size);
  ByteReader long_reader(input), short_reader(input), data_reader(input), part_reader(input);
  const auto long_header = DecodeLongHeader(long_reader);
  const auto short_header = DecodeShortHeader(short_reader);
  Check(long_header, input, long_reader.position());
  Check(short_header, input, short_reader.position());
  Check(DecodeDataHeader(data_reader), input, data_reader.position());
  const auto part_header = DecodePartHeader(part_reader);
  Check(part_header, input, part_reader.position());
  if (part_header) FUZZ_REQUIRE(part_header->offset + part_reader.remaining() <= part_header->total);
  FUZZ_REQUIRE(!(long_header && short_header));
  if (long_header) FUZZ_REQUIRE(IsLongHeader(input));
  if (long_header && HasCookie(long_header->type)) {
    const size_t start = long_reader.position();
    if (const auto cookie = DecodeCookie(long_reader)) {
      std::array<uint8_t, 1 + kMaxCookieBytes> bytes{};
      ByteWriter out(bytes);
      EncodeCookie(*cookie, out);
      FUZZ_REQUIRE(out.ok() && out.size() == long_reader.position() - start);
      FUZZ_REQUIRE(std::equal(out.written().begin(), out.written().end(), input.begin() + start));
    }
  }
  if (short_header) FUZZ_REQUIRE(!IsLongHeader(input));
  return 0;
}
