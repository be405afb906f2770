// Admission (operator/webhook/core) from any bytes: as a body, and as an AdmissionReview in which one value
// was replaced. Of each review comes one answer, whatever the API server says; what is no review is answered
// in words; nothing is allowed that was not answered; after a patch the requester is the user, in its groups.
#include <openssl/evp.h>

#include <string>
#include <string_view>
#include <vector>

#include "operator/resource/requester.h"
#include "operator/resource/stamp.h"
#include "operator/resource/training_job.h"
#include "operator/webhook/core/admission.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/property.h"

using namespace longhaul;                 // NOLINT
using namespace longhaul::kube::webhook;  // NOLINT

namespace {

using kube::Json;

const Json& Sample() {
  static const Json review = Json::parse(R"({
    "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
    "request": {"uid": "u", "resource": {"group": "longhaul.dev", "version": "v1alpha1", "resource": "trainingjobs"},
      "namespace": "n", "operation": "CREATE", "userInfo": {"username": "alice", "groups": ["g"]},
      "object": {"metadata": {"name": "a", "annotations": {"longhaul.dev/requester": "bob", "longhaul.dev/requester-identity": "{}"}},
        "spec": {"profileRef": {"name": "p"}, "totalGPUs": 15, "image": "i", "script": {"inline": "x"},
          "runPolicy": {"suspend": false}}},
      "oldObject": {"metadata": {"name": "a"}, "spec": {"profileRef": {"name": "p"}, "totalGPUs": 15, "image": "i",
        "script": {"inline": "x"}}}}})");
  return review;
}

// All values, from above to below.
std::vector<Json*> Values(Json* root) {
  std::vector<Json*> all = {root};
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i]->is_structured()) continue;
    for (Json& child : *all[i]) all.push_back(&child);
  }
  return all;
}

std::string Body(FuzzInput* in) {
  if (in->Flag()) {
    const ByteSpan bytes = in->Bytes(4096);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  Json review = Sample();
  for (size_t changes = in->Below(4); changes > 0; --changes) {
    const std::vector<Json*> values = Values(&review);
    Json& value = *values[in->Below(static_cast<uint32_t>(values.size()))];
    const ByteSpan bytes = in->Bytes(in->Below(32));
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    Json parsed = Json::parse(text, nullptr, false);
    value = parsed.is_discarded() ? Json(std::string(text)) : std::move(parsed);
  }
  static constexpr const char* kOperations[] = {"CREATE", "UPDATE", "DELETE"};
  const char* operation = kOperations[in->Below(3)];
  if (review.is_object() && review["request"].is_object() && in->Flag())
    review["request"]["operation"] = operation;
  return kube::Dump(review);
}

constexpr const char* kKey = "the operator's key of 32 bytes..";

Json Patched(const Json& object, const Json& response) {
  const std::string text = response["patch"];
  std::string bytes(text.size() + 1, '\0');
  FUZZ_REQUIRE(EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                               reinterpret_cast<const unsigned char*>(text.data()),
                               static_cast<int>(text.size())) > 0);
  Json patch = Json::parse(bytes.c_str(), nullptr, false);
  FUZZ_REQUIRE(patch.is_array() && !patch.empty());
  return object.patch(patch);  // throws where a path is not there
}

void CheckStamp(const std::string& body, const Json& response) {
  const Json review = Json::parse(body, nullptr, false);
  const Json& object = kube::At(review, {"request", "object"});
  const std::string operation = kube::TextAt(review, {"request", "operation"});
  const bool changes = operation == "CREATE" || operation == "UPDATE";
  if (!changes || !kube::TextAt(review, {"request", "subResource"}).empty()) return;
  const Json after = response.contains("patch") ? Patched(object, response) : object;
  const auto stamp = [](const Json& of, std::string_view annotation) {
    return kube::At(of, {"metadata", "annotations", annotation});
  };
  if (operation == "CREATE") {
    const Json& user = kube::At(review, {"request", "userInfo"});
    FUZZ_REQUIRE(stamp(after, kube::kRequesterAnnotation) == kube::At(user, {"username"}));
    const std::string identity = stamp(after, kube::kIdentityAnnotation).get<std::string>();
    FUZZ_REQUIRE(identity.size() <= kube::kMostIdentityBytes);
    FUZZ_REQUIRE(kube::IdentityText(kube::ParseIdentity(identity)) == identity);
    FUZZ_REQUIRE(kube::ParseIdentity(identity).groups == kube::ReadIdentity(user)->groups);
    FUZZ_REQUIRE(stamp(after, kube::kProofAnnotation) ==
                 kube::RequesterProof(kKey, kube::TextAt(review, {"request", "namespace"}),
                                      kube::TextAt(user, {"username"}), identity,
                                      kube::At(object, {"spec"})));
  } else {
    const Json& before = kube::At(review, {"request", "oldObject"});
    for (const std::string_view annotation :
         {kube::kRequesterAnnotation, kube::kIdentityAnnotation, kube::kProofAnnotation})
      FUZZ_REQUIRE(stamp(after, annotation) == stamp(before, annotation));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput in(data, size);
  const Hook hook = in.Flag() ? Hook::kMutate : Hook::kValidate;
  const size_t name = in.Below(3), permission = in.Below(3);
  const std::string body = Body(&in);
  const auto said = [](size_t which) {
    return which == 2 ? Result<bool>(Status(StatusCode::kUnavailable, "away")) : Result<bool>(which == 1);
  };
  Admission admission;
  admission.SetKey(kKey);
  admission.OnReview(1, hook, body, Instant());
  bool asked_name = false, asked_permission = false;
  while (const auto question = admission.NextQuestion()) {
    FUZZ_REQUIRE(hook == Hook::kValidate && !admission.NextAnswer());
    if (question->kind == Question::Kind::kName) {
      FUZZ_REQUIRE(!asked_name && !asked_permission && kube::IsSubdomain(question->name));
      asked_name = true;
      admission.OnName(1, said(name), Instant());
    } else {
      FUZZ_REQUIRE(asked_name && !asked_permission && name == 0 && !question->access.user.empty());
      asked_permission = true;
      admission.OnPermission(1, said(permission), Instant());
    }
  }
  const auto answer = admission.NextAnswer();
  FUZZ_REQUIRE(answer && answer->id == 1 && !admission.NextAnswer() && admission.waiting() == 0);
  FUZZ_REQUIRE(answer->http == 200 || (answer->http == 400 && !answer->body.empty() && !asked_name));
  if (answer->http != 200) return 0;
  const Json review = Json::parse(answer->body, nullptr, false);
  const Json& response = review["response"];
  const bool allowed = response["allowed"];
  if (asked_name && allowed) FUZZ_REQUIRE(name == 0 && asked_permission && permission == 1);
  if (!allowed)
    FUZZ_REQUIRE(!kube::TextAt(response, {"status", "message"}).empty() && response["status"]["code"] >= 400);
  if (hook == Hook::kMutate) {
    FUZZ_REQUIRE(allowed || response["status"]["code"] == 403);  // a user of too many groups
    if (allowed) CheckStamp(body, response);
  }
  return 0;
}
