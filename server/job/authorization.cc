#include "server/job/authorization.h"

namespace longhaul::server {
namespace {

using Kind = transport::PeerIdentity::Kind;

constexpr const char* kWorker = "worker";
constexpr const char* kTool = "tool";

Status Denied(const transport::PeerIdentity& identity, const std::string& what) {
  return {StatusCode::kPermissionDenied,
          "the certificate of " + identity.role + " " + identity.name + " is not for " + what};
}

}  // namespace

Status Authorize(const transport::PeerIdentity& identity, Request request) {
  if (identity.kind != Kind::kCertificate) return {};
  const bool worker = identity.role == kWorker;
  const bool tool = identity.role == kTool;
  switch (request) {
    case Request::kJoin:
      return worker ? Status() : Denied(identity, "joining the job: that takes a worker's");
    case Request::kBench:
      return worker || tool ? Status()
                            : Denied(identity, "load generators: that takes a tool's or a worker's");
    case Request::kStatus:
      return tool ? Status()
                  : Denied(identity, "watching the job: that takes a tool's, or a member of the job");
  }
  return Denied(identity, "this");
}

std::string IdentityText(const transport::PeerIdentity& identity) {
  switch (identity.kind) {
    case Kind::kNone:
      break;
    case Kind::kPsk:
      return "shared key";
    case Kind::kCertificate:
      return identity.role + " " + identity.name;
  }
  return "";
}

}  // namespace longhaul::server
