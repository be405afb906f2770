// What an API server knows of a user besides the name: the annotation longhaul.dev/requester-identity of a
// job, which the webhook stamps, as a CertificateSigningRequest keeps it. A role may be bound to a group, and
// the operator asks for the permission later than the job was made.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "operator/resource/fields.h"

namespace longhaul::kube {

// Identity providers put 200 groups at most into a token (Entra ID). 16 KiB: an API server takes 256 KiB of
// annotations of an object.
inline constexpr size_t kMostGroups = 256;
inline constexpr size_t kMostIdentityBytes = size_t{16} << 10;

struct RequesterIdentity {
  std::vector<std::string> groups;
  std::string uid;
  std::map<std::string, std::vector<std::string>> extra;
};

// Of `userInfo` of an AdmissionReview, or of the annotation's JSON. Errors: kInvalidArgument, it is none;
// kResourceExhausted, it is beyond the bounds, with the remedy.
Result<RequesterIdentity> ReadIdentity(const Json& user);
// The annotation.
std::string IdentityText(const RequesterIdentity& identity);
// Of the annotation; without groups and all else where it is none.
RequesterIdentity ParseIdentity(std::string_view text);

}  // namespace longhaul::kube
