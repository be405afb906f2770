#include "operator/resource/requester.h"

#include <utility>

namespace longhaul::kube {
namespace {

bool ReadTexts(const Json& list, std::vector<std::string>* texts) {
  if (list.is_null()) return true;
  if (!list.is_array()) return false;
  for (const Json& text : list) {
    if (!text.is_string()) return false;
    texts->push_back(text.get<std::string>());
  }
  return true;
}

}  // namespace

Result<RequesterIdentity> ReadIdentity(const Json& user) {
  const auto wrong = [](const char* what) { return Status(StatusCode::kInvalidArgument, what); };
  RequesterIdentity identity;
  const Json &uid = At(user, {"uid"}), &extra = At(user, {"extra"});
  if (!ReadTexts(At(user, {"groups"}), &identity.groups)) return wrong("groups: is no list of strings");
  if (!uid.is_null() && !uid.is_string()) return wrong("uid: is no string");
  identity.uid = TextAt(user, {"uid"});
  if (!extra.is_null() && !extra.is_object()) return wrong("extra: is no object");
  for (const auto& [key, values] : extra.items()) {
    if (!ReadTexts(values, &identity.extra[key]))
      return wrong("extra: has an entry that is no list of strings");
  }
  const size_t bytes = IdentityText(identity).size();
  if (identity.groups.size() <= kMostGroups && bytes <= kMostIdentityBytes) return identity;
  return Status(
      StatusCode::kResourceExhausted,
      "is in " + std::to_string(identity.groups.size()) + " groups, of " + std::to_string(bytes) +
          " bytes with all else that is known of the user: a job keeps " + std::to_string(kMostGroups) +
          " groups and " + std::to_string(kMostIdentityBytes) +
          " bytes of its requester; create it as a service account, or ask an administrator for the "
          "admission policy (deploy/kubernetes/admission-policy), which needs none of it");
}

std::string IdentityText(const RequesterIdentity& identity) {
  Json user = {{"groups", identity.groups}};
  if (!identity.uid.empty()) user["uid"] = identity.uid;
  if (!identity.extra.empty()) user["extra"] = identity.extra;
  return Dump(user);
}

RequesterIdentity ParseIdentity(std::string_view text) {
  if (text.size() > kMostIdentityBytes) return {};
  const Json user = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto identity = ReadIdentity(user);
  return identity.ok() ? *identity : RequesterIdentity();
}

}  // namespace longhaul::kube
