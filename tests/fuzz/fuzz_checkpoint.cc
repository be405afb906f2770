// What a checkpoint's reader decodes before any hash is known: a safetensors file's head, or a manifest. The
// first byte says which.
//
// Holds: a header that is taken names every byte of the file once, and comes back when it is written; a
// manifest that is taken is the text that it is written as; with a hash that fits, as anyone can compute it,
// it is still judged by its content.
#include <string>
#include <string_view>

#include "server/store/manifest.h"
#include "server/store/safetensors.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/property.h"

using namespace longhaul;                 // NOLINT
using namespace longhaul::server::store;  // NOLINT

namespace {

void TryFile(std::string_view file) {
  if (file.size() < SafetensorsHeader::kLengthBytes) return;
  const auto length = DecodeHeaderLength(file.substr(0, SafetensorsHeader::kLengthBytes), file.size());
  if (!length.ok()) return;
  FUZZ_REQUIRE(*length <= file.size() - SafetensorsHeader::kLengthBytes);
  const std::string_view json = file.substr(SafetensorsHeader::kLengthBytes, *length);
  const uint64_t data = file.size() - SafetensorsHeader::kLengthBytes - *length;
  const auto header = DecodeHeader(json, data);
  if (!header.ok()) {
    FUZZ_REQUIRE(header.status().code() == StatusCode::kDataLoss && !header.status().message().empty());
    return;
  }
  FUZZ_REQUIRE(header->data_bytes() == data);
  const auto text = EncodeHeader(*header);
  FUZZ_REQUIRE(text.ok());
  const auto again = DecodeHeader(std::string_view(*text).substr(SafetensorsHeader::kLengthBytes), data);
  FUZZ_REQUIRE(again.ok() && again->metadata == header->metadata);
  FUZZ_REQUIRE(again->data_bytes() == data && again->tensors.size() == header->tensors.size());
}

void TryManifest(std::string_view text) {
  const auto manifest = DecodeManifest(text);
  FUZZ_REQUIRE(manifest.ok() || !manifest.status().message().empty());
  if (manifest.ok()) FUZZ_REQUIRE(*EncodeManifest(*manifest) == text);
}

// Its hash made to fit.
std::string Rehashed(std::string_view text) {
  constexpr std::string_view kKey = "\"sha256\": \"";
  std::string out(text);
  const auto wanted = ManifestHash(text);
  const size_t at = out.rfind("\n " + std::string(kKey));
  if (wanted.empty() || at == std::string::npos || at + kKey.size() + 2 + wanted.size() > out.size())
    return out;
  return out.replace(at + 2 + kKey.size(), wanted.size(), wanted);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput in(data, size);
  const uint8_t kind = in.U8();
  const ByteSpan rest = in.Bytes(size);
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), rest.size());
  if (kind % 2 == 0) return TryFile(text), 0;
  TryManifest(text);
  TryManifest(Rehashed(text));
  return 0;
}
