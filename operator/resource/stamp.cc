#include "operator/resource/stamp.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "operator/resource/training_job.h"

namespace longhaul::kube {
namespace {

constexpr std::string_view kMark = "longhaul.dev/script sha256:";

}  // namespace

std::string Sha256(std::string_view text) {
  std::vector<uint8_t> digest(32);
  size_t size = digest.size();
  LH_CHECK(EVP_Q_digest(nullptr, "SHA256", nullptr, text.data(), text.size(), digest.data(), &size) == 1);
  return HexOf(digest);
}

std::string ScriptMark(const std::string& script) {
  if (script.size() <= kKeptScriptBytes) return script;
  return (script.starts_with("#!") ? "#!" : "") + std::string(kMark) + Sha256(script);
}

bool IsScriptMark(std::string_view text) {
  if (text.starts_with("#!")) text.remove_prefix(2);
  return text.starts_with(kMark) && text.size() == kMark.size() + 64;
}

std::string Hmac(std::string_view key, std::string_view text) {
  std::vector<uint8_t> mac(EVP_MAX_MD_SIZE);
  unsigned size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(), &size);
  mac.resize(size);
  return HexOf(mac);
}

std::string RequesterProof(std::string_view operator_key, std::string_view name_space,
                           std::string_view requester, std::string_view identity, const Json& spec) {
  // No text that the key is used for elsewhere, a uid, begins so.
  std::string text = Dump(Json::array({"requester", name_space, requester, identity}));
  for (const auto& [field, value] : spec.items()) {
    if (field == "runPolicy" || field == "elastic") continue;
    const Json& script = At(value, {"inline"});
    text += "\n" + Dump(field) + ":";
    text +=
        field == "script" && script.is_string() ? Dump(ScriptMark(script.get<std::string>())) : Dump(value);
  }
  return Hmac(operator_key, text);
}

bool HasProof(std::string_view operator_key, const Json& job) {
  const auto annotation = [&](std::string_view name) {
    return TextAt(job, {"metadata", "annotations", name});
  };
  const std::string said = annotation(kProofAnnotation);
  const std::string right =
      RequesterProof(operator_key, TextAt(job, {"metadata", "namespace"}), annotation(kRequesterAnnotation),
                     annotation(kIdentityAnnotation), At(job, {"spec"}));
  return said.size() == right.size() && CRYPTO_memcmp(said.data(), right.data(), right.size()) == 0;
}

}  // namespace longhaul::kube
