#include "operator/api/core/api_request.h"

namespace longhaul::kube::api {
namespace {

Status Invalid(std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); }

bool IsOfCollection(Verb verb) {
  return verb == Verb::kList || verb == Verb::kWatch || verb == Verb::kCreate;
}

Status Check(const ApiRequest& r) {
  if (r.type.version.empty() || r.type.plural.empty())
    return Invalid("a request needs the version and plural of its kind");
  if (IsOfCollection(r.verb) != r.name.empty())
    return Invalid(r.name.empty() ? "a request for one object needs its name"
                                  : "a list, watch or create takes no name");
  // A path of "." or ".." would be another path.
  for (const std::string* part :
       {&r.name, &r.name_space, &r.type.group, &r.type.version, &r.type.plural, &r.subresource}) {
    if (*part == "." || *part == "..") return Invalid("a part of a path may not be \"" + *part + "\"");
  }
  const bool all_namespaces = r.verb == Verb::kList || r.verb == Verb::kWatch;
  if (r.type.namespaced && r.name_space.empty() && !all_namespaces)
    return Invalid("an object of " + r.type.plural + " needs its namespace");
  if (!r.type.namespaced && !r.name_space.empty()) return Invalid(r.type.plural + " have no namespace");
  if (r.verb == Verb::kApply && r.field_manager.empty()) return Invalid("an apply needs a field manager");
  const bool patch = r.verb == Verb::kJsonPatch;
  const bool writes = patch || r.verb == Verb::kCreate || r.verb == Verb::kReplace ||
                      r.verb == Verb::kApply || r.verb == Verb::kMergePatch;
  if (writes && !(patch ? r.body.is_array() : r.body.is_object()))
    return Invalid(patch ? "the body of a JSON patch is an array" : "the body of a write is an object");
  if (r.verb == Verb::kLog && r.type.plural != "pods") return Invalid("only pods have logs");
  if (!r.propagation.empty() && r.propagation != "Foreground" && r.propagation != "Background" &&
      r.propagation != "Orphan")
    return Invalid("propagation is Foreground, Background or Orphan, not \"" + r.propagation + "\"");
  return Status::Ok();
}

std::string PathOf(const ApiRequest& r) {
  std::string path = r.type.group.empty() ? "/api/" : "/apis/" + PercentEncode(r.type.group) + "/";
  path += PercentEncode(r.type.version);
  if (!r.name_space.empty()) path += "/namespaces/" + PercentEncode(r.name_space);
  path += "/" + PercentEncode(r.type.plural);
  if (!r.name.empty()) path += "/" + PercentEncode(r.name);
  if (r.verb == Verb::kLog) return path + "/log";
  if (!r.subresource.empty()) path += "/" + PercentEncode(r.subresource);
  return path;
}

class Query {
 public:
  void Add(std::string_view name, std::string_view value) {
    if (value.empty()) return;
    text_ += (text_.empty() ? "?" : "&") + std::string(name) + "=" + PercentEncode(value);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string QueryOf(const ApiRequest& r) {
  Query query;
  if (r.verb == Verb::kList || r.verb == Verb::kWatch) {
    query.Add("labelSelector", r.label_selector);
    query.Add("fieldSelector", r.field_selector);
  }
  if (r.verb == Verb::kList) {
    if (r.page_limit > 0) query.Add("limit", std::to_string(r.page_limit));
    query.Add("continue", r.continue_token);
  }
  if (r.verb == Verb::kWatch) {
    query.Add("watch", "1");
    query.Add("allowWatchBookmarks", "true");
    query.Add("resourceVersion", r.resource_version);
    query.Add("timeoutSeconds",
              std::to_string(std::chrono::duration_cast<std::chrono::seconds>(r.watch_time).count()));
  }
  if (r.verb == Verb::kLog) {
    query.Add("container", r.container);
    query.Add("follow", r.follow ? "true" : "");
  }
  const bool reads =
      r.verb == Verb::kGet || r.verb == Verb::kList || r.verb == Verb::kWatch || r.verb == Verb::kLog;
  if (!reads && r.verb != Verb::kDelete) query.Add("fieldManager", r.field_manager);
  if (r.verb == Verb::kApply && r.force) query.Add("force", "true");
  return query.text();
}

// Text that is no UTF-8 in a body is replaced: the server would refuse all of it without saying where.
std::string Print(const Json& body) { return body.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

Result<EncodedRequest> Encode(const ApiRequest& r) {
  if (const Status checked = Check(r); !checked.ok()) return checked;
  EncodedRequest http;
  http.target = PathOf(r) + QueryOf(r);
  http.content_type = "application/json";
  switch (r.verb) {
    case Verb::kGet:
    case Verb::kList:
    case Verb::kWatch:
    case Verb::kLog:
      http.method = "GET";
      http.content_type.clear();
      return http;
    case Verb::kDelete:
      http.method = "DELETE";
      {
        Json options = {{"apiVersion", "v1"}, {"kind", "DeleteOptions"}};
        if (!r.uid.empty()) options["preconditions"] = {{"uid", r.uid}};
        if (r.grace_seconds) options["gracePeriodSeconds"] = *r.grace_seconds;
        if (!r.propagation.empty()) options["propagationPolicy"] = r.propagation;
        http.body = Print(options);
      }
      return http;
    case Verb::kCreate:
      http.method = "POST";
      break;
    case Verb::kReplace:
      http.method = "PUT";
      break;
    case Verb::kApply:
      http.method = "PATCH";
      http.content_type = "application/apply-patch+yaml";  // JSON is YAML
      break;
    case Verb::kMergePatch:
      http.method = "PATCH";
      http.content_type = "application/merge-patch+json";
      break;
    case Verb::kJsonPatch:
      http.method = "PATCH";
      http.content_type = "application/json-patch+json";
      break;
  }
  http.body = Print(r.body);
  return http;
}

bool IsRepeatable(Verb verb) { return verb != Verb::kCreate && verb != Verb::kJsonPatch; }

std::string PercentEncode(std::string_view text) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~';
    if (plain) {
      out += c;
      continue;
    }
    const auto byte = static_cast<uint8_t>(c);
    out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return out;
}

ApiRequest SubjectAccessReview(const AccessQuestion& q) {
  Json attributes = {{"verb", q.verb}, {"resource", q.resource}};
  if (!q.group.empty()) attributes["group"] = q.group;
  if (!q.name_space.empty()) attributes["namespace"] = q.name_space;
  if (!q.name.empty()) attributes["name"] = q.name;
  ApiRequest request;
  request.verb = Verb::kCreate;
  request.type = {"authorization.k8s.io", "v1", "subjectaccessreviews", false};
  request.body = {{"apiVersion", "authorization.k8s.io/v1"},
                  {"kind", "SubjectAccessReview"},
                  {"spec", {{"user", q.user}, {"groups", q.groups}, {"resourceAttributes", attributes}}}};
  if (!q.uid.empty()) request.body["spec"]["uid"] = q.uid;
  if (!q.extra.empty()) request.body["spec"]["extra"] = q.extra;
  return request;
}

Result<bool> IsAllowed(const ApiResult& answer) {
  if (!answer.ok())
    return Status(StatusCode::kUnavailable, "the review of access failed: " + answer.ToString());
  const Json* allowed = ValueAt(answer.body, {"status", "allowed"});
  if (allowed == nullptr || !allowed->is_boolean())
    return Status(StatusCode::kProtocolViolation, "the review of access does not say whether it is allowed");
  const Json* denied = ValueAt(answer.body, {"status", "denied"});
  return allowed->get<bool>() && !(denied != nullptr && denied->is_boolean() && denied->get<bool>());
}

}  // namespace longhaul::kube::api
