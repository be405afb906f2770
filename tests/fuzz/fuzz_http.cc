// Any bytes at the port of probes (health/http_request.h), cut anywhere: one meaning, whatever the cuts; a
// path that is taken is one; nothing is kept beyond the bound.
#include <string>
#include <string_view>

#include "health/http_request.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/property.h"

using namespace longhaul;          // NOLINT
using namespace longhaul::health;  // NOLINT

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput in(data, size);
  const size_t piece = 1 + in.Below(64);
  // A long head out of a short input.
  const size_t repeat = in.Flag() ? 1 + in.Below(200) : 1;
  const ByteSpan bytes = in.Bytes(size);
  std::string text;
  for (size_t i = 0; i < repeat; ++i) text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.empty()) return 0;

  HttpRequest whole;
  const HttpRequest::State state = whole.Take(text);
  HttpRequest cut;
  HttpRequest::State now = HttpRequest::State::kMore;
  size_t taken = 0;
  while (taken < text.size() && now == HttpRequest::State::kMore) {
    now = cut.Take(std::string_view(text).substr(taken, piece));
    taken += piece;
  }
  FUZZ_REQUIRE(now == state);
  FUZZ_REQUIRE(taken <= HttpRequest::kMaxBytes + piece);
  if (state == HttpRequest::State::kMore) FUZZ_REQUIRE(text.size() < HttpRequest::kMaxBytes);
  if (state == HttpRequest::State::kWhole) {
    FUZZ_REQUIRE(whole.path() == cut.path() && whole.is_head() == cut.is_head());
    FUZZ_REQUIRE(whole.path().starts_with('/') && whole.path().find_first_of("? \r\n") == std::string::npos);
    FUZZ_REQUIRE(text.starts_with(whole.is_head() ? "HEAD /" : "GET /"));
  }
  if (state == HttpRequest::State::kRefused) {
    const int code = whole.refusal();
    FUZZ_REQUIRE(code == 400 || code == 405 || code == 431 || code == 505);
  }
  return 0;
}
