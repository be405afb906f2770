// Any bytes as a watch of Kubernetes' API (operator/api/core/watch_decoder), cut anywhere, and its events in
// an informer: one meaning, whatever the cuts; nothing is kept beyond the bound; what is taken is an event;
// the copy is what a plain map would be.
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "operator/api/core/informer.h"
#include "operator/api/core/watch_decoder.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/property.h"

using namespace longhaul;             // NOLINT
using namespace longhaul::kube::api;  // NOLINT

namespace {

constexpr size_t kMaxLine = 512;

struct Decoded {
  std::vector<WatchEvent> events;
  StatusCode end = StatusCode::kOk;
};

void Drain(WatchDecoder* decoder, Decoded* decoded) {
  while (auto event = decoder->Next()) decoded->events.push_back(std::move(*event));
  decoded->end = decoder->status().code();
}

Decoded Decode(std::string_view text, size_t piece) {
  WatchDecoder decoder(kMaxLine);
  Decoded decoded;
  for (size_t at = 0; at < text.size() && decoder.status().ok(); at += piece) {
    const Status taken = decoder.Take(text.substr(at, piece));
    FUZZ_REQUIRE(taken == decoder.status());
    Drain(&decoder, &decoded);
    FUZZ_REQUIRE(decoder.buffered() <= kMaxLine + piece);
  }
  const StatusCode code = decoder.status().code();
  FUZZ_REQUIRE(code == StatusCode::kOk || code == StatusCode::kResourceExhausted ||
               code == StatusCode::kProtocolViolation);
  if (code != StatusCode::kOk) FUZZ_REQUIRE(!decoder.InsideLine() && !decoder.status().message().empty());
  return decoded;
}

ApiResult EmptyList() {
  ApiResult list;
  list.code = ApiCode::kOk;
  list.body = {{"metadata", {{"resourceVersion", "1"}}}, {"items", Json::array()}};
  return list;
}

void Follow(const std::vector<WatchEvent>& events, double chance) {
  InformerOptions options;
  options.max_objects = 3;
  Informer informer(options);
  informer.Poll(Instant(), chance);
  informer.OnList(EmptyList(), Instant(), chance);
  FUZZ_REQUIRE(informer.Poll(Instant(), chance).step == Informer::Step::kWatch);
  std::map<std::string, Json> model;
  for (const WatchEvent& event : events) {
    informer.OnWatchEvent(event, Instant(), chance);
    if (event.type == WatchEvent::Type::kError || event.type == WatchEvent::Type::kBookmark) continue;
    const std::string key = KeyOf(event.object);
    const bool deleted = event.type == WatchEvent::Type::kDeleted;
    if (key.empty() || (!deleted && !model.contains(key) && model.size() == options.max_objects)) {
      FUZZ_REQUIRE(informer.Poll(Instant(), chance).step == Informer::Step::kStop);
      return;
    }
    Json object = event.object;
    object["metadata"].erase("managedFields");
    if (deleted) {
      model.erase(key);
    } else {
      model[key] = object;
    }
    FUZZ_REQUIRE(informer.resource_version() == event.resource_version);
  }
  FUZZ_REQUIRE(informer.objects().size() == model.size());
  for (const auto& [key, object] : model) FUZZ_REQUIRE(*informer.Find(key) == object);
  while (const auto change = informer.Next())
    FUZZ_REQUIRE((change->after != nullptr) == model.contains(change->key));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput in(data, size);
  const size_t piece = 1 + in.Below(64);
  const ByteSpan bytes = in.Bytes(4096);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const Decoded whole = Decode(text, std::max<size_t>(1, text.size()));
  const Decoded cut = Decode(text, piece);
  FUZZ_REQUIRE(whole.end == cut.end && whole.events.size() == cut.events.size());
  for (size_t i = 0; i < whole.events.size(); ++i) {
    const WatchEvent& event = whole.events[i];
    FUZZ_REQUIRE(event.type == cut.events[i].type && event.object == cut.events[i].object &&
                 event.object.is_object());
    FUZZ_REQUIRE(event.resource_version == cut.events[i].resource_version);
    FUZZ_REQUIRE((event.type == WatchEvent::Type::kError) == event.resource_version.empty());
    if (event.type == WatchEvent::Type::kError) FUZZ_REQUIRE(!ClassifyStatus(500, event.object).ok());
  }
  Follow(whole.events, 0.5);
  return 0;
}
