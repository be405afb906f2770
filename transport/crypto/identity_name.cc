#include "transport/crypto/identity_name.h"

#include <algorithm>
#include <array>

namespace longhaul::crypto {
namespace {

constexpr std::string_view kScheme = "longhaul://";
constexpr size_t kMaxKeyNameBytes =
    64;  // a certificate's common name holds no more (RFC 5280, ub-common-name)

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-';
}

}  // namespace

std::string_view RoleName(Role role) {
  switch (role) {
    case Role::kServer:
      return "server";
    case Role::kWorker:
      return "worker";
    case Role::kTool:
      return "tool";
  }
  return "unknown";
}

std::optional<Role> ParseRole(std::string_view name) {
  for (Role role : {Role::kServer, Role::kWorker, Role::kTool}) {
    if (name == RoleName(role)) return role;
  }
  return std::nullopt;
}

Status CheckKeyName(std::string_view what, std::string_view value) {
  if (!value.empty() && value.size() <= kMaxKeyNameBytes &&
      std::all_of(value.begin(), value.end(), IsNameCharacter)) {
    return {};
  }
  return Status(StatusCode::kInvalidArgument,
                std::string(what) + " of a key must be 1 to 64 of the characters A-Z a-z 0-9 . _ -");
}

std::string IdentityUri(std::string_view job, Role role, std::string_view name) {
  std::string uri(kScheme);
  return uri.append(job).append("/").append(RoleName(role)).append("/").append(name);
}

std::optional<transport::PeerIdentity> ParseIdentityUri(std::string_view uri) {
  if (!uri.starts_with(kScheme)) return std::nullopt;
  std::string_view rest = uri.substr(kScheme.size());
  std::array<std::string_view, 3> parts;
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t end = i + 1 < parts.size() ? rest.find('/') : rest.size();
    if (end == std::string_view::npos) return std::nullopt;
    parts[i] = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  const bool valid =
      CheckKeyName("job", parts[0]).ok() && ParseRole(parts[1]) && CheckKeyName("name", parts[2]).ok();
  if (!valid) return std::nullopt;
  return transport::PeerIdentity{.kind = transport::PeerIdentity::Kind::kCertificate,
                                 .job = std::string(parts[0]),
                                 .role = std::string(parts[1]),
                                 .name = std::string(parts[2])};
}

}  // namespace longhaul::crypto
