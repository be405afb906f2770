// The admission webhooks of training jobs over HTTPS: POST /mutate and POST /validate
// (core/admission.h), for the API server's service address.
//
// Two threads: one serves connections and decides, and never waits; the other asks the API server
// (api_desk.h). Each answer ends its connection: a handshake is 2 ms of a request that comes with each new
// job, and no answer is lost to a connection that this side closes as idle while the other side sends.
//
// Whatever a peer sends gets an answer in words, or its connection ends: 400 no review, 404 another page, 405
// no POST, 411 without a length, 413 above the bound, 503 no room now.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/address.h"
#include "base/random.h"
#include "longhaul/stats.h"
#include "longhaul/status.h"
#include "operator/api/kubeconfig.h"
#include "operator/api/rest_client.h"
#include "operator/webhook/core/admission.h"

namespace longhaul::kube::webhook {

struct WebhookCounters {
  uint64_t connections = 0;
  uint64_t displaced = 0;
  uint64_t late = 0;
  uint64_t broken = 0;
  uint64_t refused = 0;
  uint64_t open = 0;
  ByteCount body_bytes;
  uint64_t certificates = 0;
  uint64_t certificate_failures = 0;
  uint64_t permission_hits = 0;
  uint64_t permission_misses = 0;
};

inline constexpr std::array<Counter<WebhookCounters>, 11> kWebhookCounters = {{
    {&WebhookCounters::connections, "connections", "connections taken by the port of the webhooks"},
    {&WebhookCounters::displaced, "displaced",
     "connections that were closed for newer ones, the port's places being taken"},
    {&WebhookCounters::late, "late", "connections that were closed since they took too long"},
    {&WebhookCounters::broken, "broken",
     "connections that ended before their answer: no TLS, or the peer does not trust the certificate"},
    {&WebhookCounters::refused, "requests_refused", "requests with an answer other than 200"},
    {&WebhookCounters::open, "open", "connections now", CounterKind::kState},
    {&WebhookCounters::body_bytes, "body_bytes", "bytes of bodies that are held now", CounterKind::kState},
    {&WebhookCounters::certificates, "certificates", "times that a certificate was read"},
    {&WebhookCounters::certificate_failures, "certificate_failures",
     "times that the certificate's files could not be read, or were no pair: the one before stays"},
    {&WebhookCounters::permission_hits, "permission_hits", "permissions that were remembered"},
    {&WebhookCounters::permission_misses, "permission_misses", "permissions that were not, or not any more"},
}};

struct WebhookOptions {
  std::string listen;               // HOST:PORT
  std::string certificates_folder;  // with tls.crt and tls.key
  Duration look_for_certificate = std::chrono::seconds(10);
  size_t connections = 32;  // some 100 KB each with TLS
  // Beyond them the oldest that still sends goes, but none that is younger than this: in a burst newcomers
  // wait in the kernel's queue, and what is under way is not lost to them. A slow sender holds a place for as
  // long.
  Duration patience = std::chrono::seconds(1);
  // The API server's own bound of a request is 3 MiB; a review has the object twice at most, and etcd takes
  // 1.5 MiB of one.
  size_t max_body_bytes = size_t{3} << 20;
  // Of all connections together, so that the operator stays within its 50 MB.
  size_t max_bytes = size_t{9} << 20;
  // A whole connection. The API server gives up after 5 s (timeoutSeconds of the configurations).
  Duration deadline = std::chrono::seconds(6);
  Duration question_limit = std::chrono::seconds(3);
  AdmissionOptions admission;
};

struct WebhookState {
  WebhookCounters port;
  AdmissionCounters admission;
  Status certificate;  // why the latest could not be read
};

class WebhookServer {
 public:
  // access: of the API server that is asked. Errors: those of RestClient::Make, of udp::ResolveListen, of
  // Certificate::Refresh (kNotFound: there is no certificate, so the operator serves no webhooks);
  // kAlreadyExists (the port is in use), kPermissionDenied, kUnavailable, kInternal.
  static Result<std::unique_ptr<WebhookServer>> Open(const WebhookOptions& options,
                                                     const api::ClusterAccess& access,
                                                     const api::RestOptions& rest, Random chance);
  ~WebhookServer();
  WebhookServer(const WebhookServer&) = delete;
  WebhookServer& operator=(const WebhookServer&) = delete;

  const Address& address() const;
  // Admission::SetKey. Any thread.
  void SetKey(std::string key);
  // Any thread; as it was some 100 ms ago at most.
  WebhookState state() const;

 private:
  struct Impl;
  explicit WebhookServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace longhaul::kube::webhook
