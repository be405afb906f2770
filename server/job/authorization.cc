#include "server/job/authorization.h"

namespace longhaul::server {
namespace {

using Kind = transport::PeerIdentity::Kind;

constexpr const char* kWorker = "worker";
constexpr const char* kTool = "tool";
constexpr const char* kServer = "server";

Status Denied(const transport::PeerIdentity& identity, const std::string& what) {
  return {StatusCode::kPermissionDenied,
          "the certificate of " + identity.role + " " + identity.name + " is not for " + what};
}

}  // namespace

Status Authorize(const transport::PeerIdentity& identity, Request request) {
  if (identity.kind == Kind::kNone && (request == Request::kKick || request == Request::kHandOver)) {
    return {StatusCode::kPermissionDenied,
            "this server has no key, so anyone could give any order: it takes none"};
  }
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
    case Request::kServe:
      return identity.role == kServer
                 ? Status()
                 : Denied(identity, "being one more server of the job: that takes a server's");
    case Request::kKick:
      return tool ? Status() : Denied(identity, "kicking members: that takes a tool's");
    case Request::kHandOver:
      return tool ? Status() : Denied(identity, "ending the servers: that takes a tool's");
  }
  return Denied(identity, "this");
}

std::string IdentityText(const transport::PeerIdentity& identity) {
  switch (identity.kind) {
    case Kind::kNone:
      break;
    case Kind::kPsk:
      return identity.trust.empty() ? "shared key" : "shared key " + identity.trust;
    case Kind::kCertificate:
      return identity.role + " " + identity.name;
  }
  return "";
}

}  // namespace longhaul::server
