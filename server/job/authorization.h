// What a peer may ask of the server, by the identity that it has proved.
//
// TLS has seen to it that a peer with keys is of this server's job, and that it is a worker or a tool of the
// allow-list (transport/crypto/tls_session.h): that is decided there and not again here. With one shared key,
// and without keys, all peers are equal.
#pragma once

#include <string>

#include "longhaul/status.h"
#include "transport/core/security/security.h"

namespace longhaul::server {

enum class Request : uint8_t {
  kJoin,      // as a worker: workers
  kBench,     // as a load generator: tools and workers
  kStatus,    // as an observer: tools; members ask as members
  kKick,      // of a member, by an operator: tools; without keys none
  kHandOver,  // of the job to other servers, by an operator: as kKick
  kServe,     // as one more server of the job: servers
};

// kPermissionDenied, naming the identity and what it is for.
Status Authorize(const transport::PeerIdentity& identity, Request request);

// For logs: "worker fra" of a certificate, "shared key 5f3a91c2d4e6f708" (the key's trust), "" without keys.
std::string IdentityText(const transport::PeerIdentity& identity);

}  // namespace longhaul::server
