// Requests to one API server over libcurl: many at once, watches included, by one thread and without
// blocking.
//
//   client->Start(request) ... client->Poll(limit) ... while (auto event = client->Next()) ...
//
// Of each request comes exactly one event that is done, unless it was cancelled; of a watch or log events
// before it. Nothing throws. Failures are named (ApiCode) and, where the API allows, tried again first
// (core/retry_policy.h). A 401 has the token read again, once a request.
//
// HTTP/1.1, so that each watch has a connection of its own: one that hangs does not hold up others. Redirects
// and proxies of the environment are not followed.
//
// One thread at a time, but for Wake. REQUIRES: SIGPIPE is ignored, as the daemons' SignalWatcher has it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/random.h"
#include "longhaul/status.h"
#include "longhaul/units.h"
#include "operator/api/core/api_request.h"
#include "operator/api/core/api_result.h"
#include "operator/api/core/retry_policy.h"
#include "operator/api/core/watch_decoder.h"
#include "operator/api/kubeconfig.h"

namespace longhaul::kube::api {

// Of a list of one object.
inline constexpr size_t kMostOfOne = size_t{16} << 20;

struct RestOptions {
  std::string user_agent = "longhaul-operator";
  Duration connect_limit =
      std::chrono::seconds(5);  // TCP and TLS; two retransmissions of a SYN (1 + 2 s) fit
  Duration attempt_limit = std::chrono::seconds(15);
  Duration request_limit =
      std::chrono::seconds(60);  // all attempts; the API server's own limit (--request-timeout)
  // Of a watch without a byte. Bookmarks come about each minute; a connection that a firewall has forgotten
  // says nothing for ever.
  Duration watch_silence = std::chrono::minutes(3);
  Duration token_age =
      std::chrono::minutes(1);  // kubelet renews tokens in place; they are good for 10 minutes at least
  size_t max_response_bytes = size_t{16}
                              << 20;  // a page of 500 objects of 32 KiB; see Informer for larger ones
  size_t max_line_bytes = WatchDecoder::kMaxLineBytes;
  size_t max_events = 1024;  // of watches, not fetched; beyond them the connections are not read
  size_t max_calls = 256;    // at once
  RetryBounds retry;
};

struct RestCounters {
  uint64_t requests = 0;
  uint64_t attempts = 0;
  uint64_t retries = 0;
  uint64_t throttled = 0;  // answers 429, or 503 with Retry-After
  uint64_t timed_out = 0;  // requests
  uint64_t too_large = 0;
  uint64_t malformed = 0;
  uint64_t tokens_read = 0;
  uint64_t watch_events = 0;
  uint64_t pauses = 0;   // times that a watch was not read since events were not fetched
  uint64_t refused = 0;  // Start beyond max_calls
};

using CallId = uint64_t;

struct RestEvent {
  CallId call = 0;
  bool done = false;
  ApiResult result;  // done. Of a watch: ok() when the server ended it after whole events
  WatchEvent watch;  // else, of a watch; never kError, which ends the watch with its code
  std::string log;   // else, of a log
};

class RestClient {
 public:
  // chance: of the waits between attempts. Errors: those of CheckAccess, kInternal.
  static Result<std::unique_ptr<RestClient>> Make(const ClusterAccess& access, const RestOptions& options,
                                                  Random chance);
  ~RestClient();
  RestClient(const RestClient&) = delete;
  RestClient& operator=(const RestClient&) = delete;

  // Errors: those of Encode, kResourceExhausted.
  Result<CallId> Start(const ApiRequest& request);
  // No event of it comes any more.
  void Cancel(CallId call);
  // Works for at most `limit`; returns earlier when there is an event, or after Wake.
  void Poll(Duration limit);
  std::optional<RestEvent> Next();
  // Ends a Poll that runs, or the next one. Any thread.
  void Wake();

  // Start, and Poll until it is done. Events of other requests wait. Not of watches and logs.
  ApiResult Call(const ApiRequest& request);

  size_t calls() const;  // that are not done
  const RestCounters& counters() const;
  const ClusterAccess& access() const;

 private:
  class Impl;
  explicit RestClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace longhaul::kube::api
