#include "operator/controller/secrets.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include "operator/resource/stamp.h"

namespace longhaul::kube {
namespace {

constexpr const char* kEntry = "operator.key";
// After a refusal or a failure: a person has to give a right, or the API server to come back.
constexpr Duration kAgain = std::chrono::seconds(5);

std::string Base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(size));
  return text;
}

}  // namespace

Result<std::string> SecretEntry(const Json& secret, std::string_view entry) {
  const Json& value = At(secret, {"data", entry});
  if (!value.is_string()) return Status(StatusCode::kNotFound, "it has no entry " + std::string(entry));
  const auto& text = value.get_ref<const std::string&>();
  std::string bytes(text.size() / 4 * 3 + 3, '\0');
  const int size =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                      reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (size < 0 || text.empty())
    return Status(StatusCode::kInvalidArgument,
                  "its entry " + std::string(entry) + " is empty, or no base64");
  const size_t padding = text.ends_with("==") ? 2 : (text.ends_with('=') ? 1 : 0);
  bytes.resize(static_cast<size_t>(size) - padding);
  return bytes;
}

std::string JobKey(std::string_view operator_key, std::string_view job_uid) {
  return Hmac(operator_key, job_uid);
}

void OperatorKey::Run(Instant now) {
  if (known() || call_ != 0 || now < next_) return;
  api::ApiRequest request;
  request.type = FindKind("Secret")->type;
  request.name_space = name_space_;
  request.time_limit = kWriteLimit;
  if (!makes_) {
    request.name = name_;
  } else {
    std::string key(kOperatorKeyBytes, '\0');
    if (RAND_bytes(reinterpret_cast<unsigned char*>(key.data()), static_cast<int>(key.size())) != 1) {
      trouble_ = "the system gives no random bytes";
      next_ = now + kAgain;
      return;
    }
    request.verb = api::Verb::kCreate;
    request.body = {{"apiVersion", "v1"},
                    {"kind", "Secret"},
                    {"metadata", {{"name", name_}, {"namespace", name_space_}}},
                    {"type", "Opaque"},
                    {"immutable", true},
                    {"data", {{kEntry, Base64(key)}}}};
  }
  const Result<api::CallId> started = client_->Start(request);
  call_ = started.ok() ? *started : 0;
  next_ = now + kAgain;
}

bool OperatorKey::Take(const api::RestEvent& event, Instant now) {
  if (call_ == 0 || event.call != call_) return false;
  call_ = 0;
  const api::ApiResult& result = event.result;
  const std::string what = "Secret " + name_space_ + "/" + name_;
  if (result.ok()) {
    Adopt(result.body);
  } else if (makes_) {
    // Whatever came of it: what is there counts.
    if (result.code != api::ApiCode::kAlreadyExists) trouble_ = what + " is not made: " + result.ToString();
    if (result.code == api::ApiCode::kAlreadyExists) next_ = now;
  } else if (result.code == api::ApiCode::kNotFound) {
    makes_ = true;
    next_ = now;
    return true;
  } else {
    trouble_ = what + " cannot be read: " + result.ToString();
  }
  makes_ = false;
  return true;
}

void OperatorKey::Adopt(const Json& secret) {
  const auto key = SecretEntry(secret, kEntry);
  if (key.ok() && key->size() == kOperatorKeyBytes) {
    key_ = *key;
    trouble_.clear();
    return;
  }
  trouble_ = "Secret " + name_space_ + "/" + name_ + " is not as the operator made it: " +
             (key.ok() ? "its key has " + std::to_string(key->size()) + " bytes" : key.status().message()) +
             "; restore it, or delete it when no job runs";
}

}  // namespace longhaul::kube
