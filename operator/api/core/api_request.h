// Requests to a Kubernetes API server, and their HTTP form. No server is needed to make them.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "longhaul/status.h"
#include "longhaul/units.h"
#include "operator/api/core/api_result.h"

namespace longhaul::kube::api {

// Where objects of a kind are found.
struct ResourceType {
  std::string group;  // empty: the core group, /api/v1
  std::string version;
  std::string plural;  // "pods"
  bool namespaced = true;
};

enum class Verb : uint8_t {
  kGet,
  kList,
  kWatch,
  kCreate,
  kReplace,     // PUT; with metadata.resourceVersion in the body a compare-and-swap
  kApply,       // server-side apply; makes the object where there is none
  kMergePatch,  // RFC 7396
  kJsonPatch,   // RFC 6902
  kDelete,
  kLog,  // of a pod's container, as bytes while they come
};

// As client-go asks (tools/pager: defaultPageSize).
inline constexpr uint32_t kPageLimit = 500;

struct ApiRequest {
  Verb verb = Verb::kGet;
  ResourceType type;
  std::string name_space;   // empty with kList and kWatch: of all namespaces
  std::string name;         // not with kList, kWatch and kCreate
  std::string subresource;  // "status"
  Json body;                // of kCreate, kReplace, kApply and the patches

  std::string field_manager;  // kApply needs it
  bool force = false;         // kApply: takes fields from other managers

  std::string label_selector;  // kList, kWatch
  std::string field_selector;
  uint32_t page_limit = kPageLimit;               // kList
  std::string continue_token;                     // kList: the next page
  std::string resource_version;                   // kWatch: from there on
  Duration watch_time = std::chrono::minutes(5);  // kWatch: the server ends it then

  std::string uid;          // kDelete: only the object with this uid
  std::string propagation;  // kDelete: "Foreground", "Background" or "Orphan"; empty: the kind's own
  std::optional<int64_t>
      grace_seconds;  // kDelete: nullopt is the object's own; 0 does not wait for its machine

  bool ignores_answer = false;  // of a write that succeeds its object is not kept

  std::string container;  // kLog
  bool follow = false;    // kLog: goes on until the container has ended

  // All attempts together; 0: the client's. Of a watch or log: until it has begun.
  Duration time_limit{0};
  uint32_t max_attempts = 0;  // 0: the client's
};

struct EncodedRequest {
  std::string method;
  std::string target;  // path and query
  std::string content_type;
  std::string body;
};

// kInvalidArgument says what is missing or cannot be.
Result<EncodedRequest> Encode(const ApiRequest& request);

// Whether a second arrival of it does no harm: a lost answer may be asked for again. A create may have
// happened, a JSON patch may append twice.
bool IsRepeatable(Verb verb);

// RFC 3986: all but letters, digits and -._~ as %XX.
std::string PercentEncode(std::string_view text);

// What a SubjectAccessReview asks: may this user do this?
struct AccessQuestion {
  std::string user;
  std::vector<std::string> groups;
  std::string verb;  // "use"
  std::string group, resource, name_space, name;
  std::string uid = {};  // the user's; and what an authenticator says besides, which RBAC does not look at
  std::map<std::string, std::vector<std::string>> extra = {};
};
ApiRequest SubjectAccessReview(const AccessQuestion& question);
// Of its answer. kProtocolViolation: it does not say.
Result<bool> IsAllowed(const ApiResult& answer);

}  // namespace longhaul::kube::api
