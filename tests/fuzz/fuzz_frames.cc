// Any bytes: each frame decodes to what encodes to the same bytes, or the packet is refused with a reason.
#include <algorithm>
#include <vector>

#include "proto/frames.h"
#include "tests/fuzz/property.h"

using namespace longhaul;        // NOLINT
using namespace longhaul::wire;  // NOLINT

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteSpan input(data, size);
  ByteReader in(input);
  while (!in.AtEnd()) {
    const size_t start = in.position();
    const Result<Frame> frame = DecodeFrame(in);
    if (!frame.ok()) {
      FUZZ_REQUIRE(frame.status().code() == StatusCode::kProtocolViolation);
      FUZZ_REQUIRE(!frame.status().message().empty());
      FUZZ_REQUIRE(!in.ok());
      return 0;
    }
    const ByteSpan consumed = input.subspan(start, in.position() - start);
    FUZZ_REQUIRE(!consumed.empty());
    FUZZ_REQUIRE(EncodedSize(*frame) == consumed.size());
    std::vector<uint8_t> bytes(consumed.size());
    ByteWriter out(bytes);
    FUZZ_REQUIRE(Encode(*frame, out));
    FUZZ_REQUIRE(std::equal(bytes.begin(), bytes.end(), consumed.begin()));
    ByteWriter small(MutableByteSpan(bytes).first(bytes.size() - 1));
    FUZZ_REQUIRE(!Encode(*frame, small));
    FUZZ_REQUIRE(small.size() == 0);
  }
  return 0;
}
