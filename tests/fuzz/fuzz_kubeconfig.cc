// Any bytes as a kubeconfig (operator/api/kubeconfig): refused in printable words, or an access of which
// nothing is left out; the same bytes read the same; no refusal has a token in it.
#include <algorithm>
#include <string>
#include <string_view>

#include "operator/api/kubeconfig.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/property.h"

using namespace longhaul;             // NOLINT
using namespace longhaul::kube::api;  // NOLINT

namespace {

bool IsPrintable(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

void CheckTaken(const KubeconfigEntry& entry, std::string_view text) {
  const ClusterAccess& access = entry.access;
  FUZZ_REQUIRE(!access.name_space.empty());
  FUZZ_REQUIRE(access.token.empty() || access.token_file.empty());
  FUZZ_REQUIRE(access.ca.empty() || entry.ca_file.empty());
  FUZZ_REQUIRE(access.client_certificate.empty() || entry.certificate_file.empty());
  FUZZ_REQUIRE(access.client_key.empty() || entry.key_file.empty());
  FUZZ_REQUIRE(access.ca.size() <= text.size() && access.client_key.size() <= text.size());
  const Status checked = CheckAccess(access);
  FUZZ_REQUIRE(checked.ok() ||
               (checked.code() == StatusCode::kInvalidArgument && IsPrintable(checked.message())));
  if (!checked.ok()) return;
  const bool tls = access.server.starts_with("https://");
  FUZZ_REQUIRE(tls || access.server.starts_with("http://127.") ||
               access.server.starts_with("http://localhost") || access.server.starts_with("http://[::1]"));
  FUZZ_REQUIRE(access.token.find_first_of("\r\n") == std::string::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput in(data, size);
  const bool named = in.Flag();
  const ByteSpan bytes = in.Bytes(4096);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string context = named ? "here" : "";
  const auto entry = ParseKubeconfig(text, context);
  const auto again = ParseKubeconfig(text, context);
  FUZZ_REQUIRE(entry.ok() == again.ok());
  if (entry.ok()) {
    FUZZ_REQUIRE(entry->access.server == again->access.server && entry->access.ca == again->access.ca);
    CheckTaken(*entry, text);
    return 0;
  }
  const std::string& why = entry.status().message();
  FUZZ_REQUIRE(entry.status().code() == StatusCode::kInvalidArgument && entry.status() == again.status());
  FUZZ_REQUIRE(why.starts_with("kubeconfig: ") && IsPrintable(why) && why.size() < 1000);
  FUZZ_REQUIRE(why.find("seCret") == std::string::npos ||
               text.find("token: seCret") == std::string_view::npos ||
               text.find("seCret") != text.rfind("seCret"));
  return 0;
}
