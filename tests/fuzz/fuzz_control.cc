// A control stream of any bytes, cut anywhere: the first byte says how finely. Cutting does not change what
// comes out, every message that comes out is valid and survives encoding, and an error is for ever.
#include <algorithm>
#include <string>
#include <vector>

#include "proto/control_codec.h"
#include "tests/fuzz/property.h"

using namespace longhaul;        // NOLINT
using namespace longhaul::wire;  // NOLINT

namespace {

struct Outcome {
  std::vector<std::string> messages;
  bool failed = false;
};

Outcome Feed(ByteSpan stream, size_t step) {
  ControlReader reader;
  Outcome outcome;
  for (size_t at = 0; at < stream.size(); at += step) {
    const auto messages = reader.Append(stream.subspan(at, std::min(step, stream.size() - at)));
    if (!messages.ok()) {
      FUZZ_REQUIRE(messages.status().code() == StatusCode::kProtocolViolation);
      FUZZ_REQUIRE(!reader.Append({}).ok());
      outcome.failed = true;
      return outcome;
    }
    for (const control::ControlMessage& message : *messages) {
      FUZZ_REQUIRE(ValidateControlMessage(message).ok());
      const std::vector<uint8_t> encoded = EncodeControlMessage(message);
      ControlReader again;
      const auto decoded = again.Append(encoded);
      FUZZ_REQUIRE(decoded.ok() && decoded->size() == 1);
      outcome.messages.push_back(message.SerializeAsString());
      FUZZ_REQUIRE(decoded->front().SerializeAsString() == outcome.messages.back());
    }
  }
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const ByteSpan stream(data + 1, size - 1);
  const Outcome pieces = Feed(stream, size_t{data[0]} + 1);
  const Outcome whole = Feed(stream, stream.size());
  // An error in a later message hides the earlier ones of the same Append: only a clean stream must agree.
  FUZZ_REQUIRE(pieces.failed == whole.failed);
  if (!whole.failed) FUZZ_REQUIRE(pieces.messages == whole.messages);
  return 0;
}
