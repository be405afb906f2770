// What a Kubernetes API server answered, by names that a caller can act on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "longhaul/units.h"

namespace longhaul::kube::api {

using Json = nlohmann::json;

enum class ApiCode : uint8_t {
  kOk,
  kNotFound,       // 404
  kAlreadyExists,  // 409 with the reason AlreadyExists: the answer to a create
  kConflict,       // any other 409: the object has another resourceVersion or uid, or a field another owner
  kGone,           // 410: the resourceVersion or the continue token is too old; list again
  kInvalid,        // any other 4xx, or what Encode refuses: this request can never work
  kUnauthorized,   // 401, also with the token that was read again
  kForbidden,      // 403
  kThrottled,      // 429, or 503 with Retry-After
  kServerError,    // any other 5xx
  kUnreachable,    // no answer, or not all of it: refused, reset, cut, a name that does not resolve
  kUntrusted,      // TLS: the certificate is not by the cluster's CA or is for another name
  kTimedOut,       // no whole answer within the time of an attempt, or of the request
  kTooLarge,       // the answer, or a line of a watch, is above its bound
  kMalformed,      // the answer is not what the API promises
};
// "Conflict".
std::string_view ApiCodeName(ApiCode code);

struct ApiResult {
  ApiCode code = ApiCode::kUnreachable;
  int http = 0;             // 0: there was no answer
  std::string reason;       // of the Status object, "AlreadyExists"; may be empty
  std::string message;      // in words, of the server or of the client; empty when ok
  Duration retry_after{0};  // what the server asked for
  Json body;                // of a 2xx: the object, or the list
  uint32_t attempts = 0;
  bool not_sent = false;  // the request has not reached the server

  bool ok() const { return code == ApiCode::kOk; }
  // "Conflict (409): the object has been modified"
  std::string ToString() const;
};

ApiResult MakeError(ApiCode code, std::string message);

// Objects of the API are some 20 levels deep; printing and copying Json takes stack for each level.
inline constexpr size_t kMaxJsonDepth = 128;
// nullopt: not JSON, not UTF-8, or too deep.
std::optional<Json> ParseJson(std::string_view text);

// Longer ones are cut: a server that is overloaded for longer is asked again to say so.
inline constexpr Duration kMaxRetryAfter = std::chrono::minutes(5);
// Seconds, as API servers write them. A date, or anything else, counts as one second; empty as none.
Duration ParseRetryAfter(std::string_view header);

// An answer by its HTTP status, its body and its header Retry-After.
ApiResult Classify(int http, std::string_view body, std::string_view retry_after);
// The same of a Status object, for example the object of an ERROR event.
ApiResult ClassifyStatus(int http, const Json& status);

// The text at `object[path[0]][path[1]]...`; empty where there is none.
std::string_view TextAt(const Json& object, std::initializer_list<const char*> path);
// The value there; nullptr where there is none.
const Json* ValueAt(const Json& object, std::initializer_list<const char*> path);

}  // namespace longhaul::kube::api
