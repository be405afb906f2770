// What nodes of ps-lite's programs say to each other: any bytes as a message. What is taken comes out of its
// own encoding again, and its arrays lie in the bytes that came.
#include <cstring>
#include <variant>

#include "pslite/message.h"
#include "tests/fuzz/property.h"

using namespace longhaul;          // NOLINT
using namespace longhaul::pslite;  // NOLINT

namespace {

bool Inside(const void* data, size_t size, const Bytes& whole) {
  const auto* const begin = static_cast<const uint8_t*>(data);
  return size == 0 || (begin >= whole.data.get() && begin + size <= whole.data.get() + whole.size);
}

Bytes Again(const ps::Message& message) {
  Result<Bytes> encoded = Encode(message);
  FUZZ_REQUIRE(encoded.ok());
  return *std::move(encoded);
}
template <typename T>
Bytes Again(const T& message) {
  return Encode(message);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes = Bytes::Of(size);
  if (size > 0) std::memcpy(bytes.data.get(), data, size);
  const Result<Decoded> message = Decode(bytes);
  if (!message.ok()) {
    FUZZ_REQUIRE(message.status().code() == StatusCode::kProtocolViolation);
    return 0;
  }
  if (const auto* const request = std::get_if<ps::Message>(&*message)) {
    FUZZ_REQUIRE(Inside(request->keys.data(), request->keys.size() * sizeof(ps::Key), bytes));
    FUZZ_REQUIRE(Inside(request->vals.data(), request->vals.size(), bytes));
    FUZZ_REQUIRE(Inside(request->lens.data(), request->lens.size() * sizeof(int), bytes));
  }
  const Bytes again = std::visit([](const auto& m) { return Again(m); }, *message);
  const Result<Decoded> twice = Decode(again);
  FUZZ_REQUIRE(twice.ok() && twice->index() == message->index());
  return 0;
}
