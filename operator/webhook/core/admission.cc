#include "operator/webhook/core/admission.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <utility>

#include "operator/resource/requester.h"
#include "operator/resource/stamp.h"
#include "operator/resource/training_job.h"
#include "proto/utf8.h"

namespace longhaul::kube::webhook {
namespace {

constexpr std::string_view kReviewVersion = "admission.k8s.io/v1";
constexpr std::string_view kGroup = "longhaul.dev";
constexpr size_t kMostUidBytes = 253;
constexpr size_t kMostUserBytes = 1024;  // of status.requester in the custom resource definition

enum HttpCode : int {
  kOk = 200,
  kBadRequest = 400,
  kForbidden = 403,
  kConflict = 409,
  kUnprocessable = 422,
  kTooManyRequests = 429,
  kUnavailable = 503,
  kTimedOut = 504,
};

// As the API server itself calls them (metav1.StatusReason).
std::string_view ReasonOf(int code) {
  switch (code) {
    case kForbidden:
      return "Forbidden";
    case kConflict:
      return "AlreadyExists";
    case kUnprocessable:
      return "Invalid";
    case kTooManyRequests:
      return "TooManyRequests";
    case kTimedOut:
      return "Timeout";
    default:
      return "ServiceUnavailable";
  }
}

// Users' names and objects' names in messages: printable and short.
std::string Shown(std::string_view name) { return wire::Printable(name, 253); }

std::string Base64(const std::string& bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(size));
  return text;
}

// A review as Json, or why it is none. Too many values or levels are left out on the way in: neither is the
// memory taken, nor the stack.
Status Parse(std::string_view body, size_t max_values, int max_depth, Json* review) {
  size_t values = 0;
  bool too_deep = false;
  const auto bounded = [&](int depth, Json::parse_event_t event, const Json&) {
    const bool begins =
        event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    if (begins || event == Json::parse_event_t::value) ++values;
    if (begins && depth >= max_depth) too_deep = true;
    return !too_deep && values <= max_values;
  };
  *review = Json::parse(body, bounded, /*allow_exceptions=*/false);
  if (too_deep) {
    return {StatusCode::kInvalidArgument,
            "the review is nested deeper than " + std::to_string(max_depth) + " levels"};
  }
  if (values > max_values) {
    return {StatusCode::kInvalidArgument,
            "the review has more than " + std::to_string(max_values) + " values"};
  }
  if (review->is_object()) return Status::Ok();
  return {StatusCode::kInvalidArgument, "the body is no JSON object: an AdmissionReview is expected"};
}

// What is stamped, and the path of each (RFC 6901: a slash in a name is ~1).
struct Stamp {
  std::string_view annotation;
  const char* path;
};
constexpr std::array<Stamp, 3> kStamps = {
    {{kRequesterAnnotation, "/metadata/annotations/longhaul.dev~1requester"},
     {kIdentityAnnotation, "/metadata/annotations/longhaul.dev~1requester-identity"},
     {kProofAnnotation, "/metadata/annotations/longhaul.dev~1requester-proof"}}};
using Stamped = std::array<Json, kStamps.size()>;  // null: it is not there

Stamped StampedOn(const Json& object) {
  Stamped stamped;
  for (size_t i = 0; i < kStamps.size(); ++i)
    stamped[i] = At(object, {"metadata", "annotations", kStamps[i].annotation});
  return stamped;
}

// RFC 6902.
Json StampPatch(const Json& object, const Stamped& wanted) {
  const Stamped there = StampedOn(object);
  Json patch = Json::array();
  for (size_t i = 0; i < kStamps.size(); ++i) {
    if (there[i] == wanted[i]) continue;
    if (wanted[i].is_null()) {
      patch.push_back({{"op", "remove"}, {"path", kStamps[i].path}});
      continue;
    }
    if (patch.empty() && !At(object, {"metadata", "annotations"}).is_object())
      patch.push_back({{"op", "add"}, {"path", "/metadata/annotations"}, {"value", Json::object()}});
    patch.push_back({{"op", "add"}, {"path", kStamps[i].path}, {"value", wanted[i]}});
  }
  return patch;
}

api::AccessQuestion QuestionOf(const std::string& user, RequesterIdentity identity,
                               const std::string& name_space, const std::string& profile) {
  api::AccessQuestion question;
  question.user = user;
  question.groups = std::move(identity.groups);
  question.uid = std::move(identity.uid);
  question.extra = std::move(identity.extra);
  question.verb = "use";
  question.group = kGroup;
  question.resource = "trainingprofiles";
  question.name_space = name_space;
  question.name = profile;  // none: on all of them, which a role for some names does not give
  return question;
}

std::string WhyNot(const api::AccessQuestion& q) {
  if (q.name.empty()) {
    return Shown(q.user) +
           " may not give a configuration in the job: that takes the verb use on all trainingprofiles of the "
           "namespace " +
           Shown(q.name_space) + "; name a profile in spec.profileRef, or ask for such a role";
  }
  return Shown(q.user) + " may not use the training profile " + Shown(q.name) +
         "; ask for a role with the verb use on trainingprofiles/" + Shown(q.name) + " in the namespace " +
         Shown(q.name_space);
}

}  // namespace

std::optional<Hook> HookOf(std::string_view path, std::string_view secret) {
  const bool mutates = path.starts_with("/mutate");
  if (!mutates && !path.starts_with("/validate")) return std::nullopt;
  path.remove_prefix(std::string_view(mutates ? "/mutate" : "/validate").size());
  const bool known = secret.empty() ? path.empty() || path.starts_with('/')
                                    : path.size() == secret.size() + 1 && path.starts_with('/') &&
                                          CRYPTO_memcmp(path.data() + 1, secret.data(), secret.size()) == 0;
  if (!known) return std::nullopt;
  return mutates ? Hook::kMutate : Hook::kValidate;
}

struct Admission::Request {
  Json review;
  std::string uid, operation, name_space, user;
  RequesterIdentity identity;
  Status too_large;  // why the identity cannot be kept
  bool of_subresource = false;

  Stamped stamps(const std::string& key) const {
    const std::string known = IdentityText(identity);
    return {user, known, RequesterProof(key, name_space, user, known, kube::At(At("object"), {"spec"}))};
  }

  const Json& At(std::string_view key) const { return kube::At(review, {"request", key}); }
};

Status Admission::Read(std::string_view body, Request* request) const {
  const auto wrong = [](const std::string& what) { return Status(StatusCode::kInvalidArgument, what); };
  Json& review = request->review;
  if (Status parsed = Parse(body, options_.max_values, kMaxReviewDepth, &review); !parsed.ok()) return parsed;
  if (TextAt(review, {"kind"}) != "AdmissionReview" || TextAt(review, {"apiVersion"}) != kReviewVersion) {
    return wrong("an AdmissionReview of " + std::string(kReviewVersion) +
                 " is expected: name v1 in admissionReviewVersions");
  }
  if (!At(review, {"request"}).is_object()) return wrong("request: is missing");
  request->uid = TextAt(review, {"request", "uid"});
  if (request->uid.empty() || request->uid.size() > kMostUidBytes)
    return wrong("request.uid: is missing or too long");
  if (TextAt(review, {"request", "resource", "group"}) != kGroup ||
      TextAt(review, {"request", "resource", "resource"}) != "trainingjobs") {
    return wrong(
        "request.resource: is not trainingjobs of longhaul.dev: the rules of the webhook configuration name "
        "something else");
  }
  request->operation = TextAt(review, {"request", "operation"});
  request->of_subresource = !TextAt(review, {"request", "subResource"}).empty();
  if (request->operation == "DELETE" || request->operation == "CONNECT" || request->of_subresource)
    return Status::Ok();
  if (request->operation != "CREATE" && request->operation != "UPDATE")
    return wrong("request.operation: \"" + Shown(request->operation) + "\" is none");
  request->name_space = TextAt(review, {"request", "namespace"});
  if (!kube::IsLabel(request->name_space)) return wrong("request.namespace: is missing, or no name of one");
  request->user = TextAt(review, {"request", "userInfo", "username"});
  if (request->user.empty() || request->user.size() > kMostUserBytes)
    return wrong("request.userInfo.username: is missing or longer than 1024 bytes");
  const auto identity = ReadIdentity(request->At("userInfo"));
  if (identity.ok()) {
    request->identity = *identity;
  } else if (identity.status().code() == StatusCode::kResourceExhausted) {
    request->too_large = identity.status();
  } else {
    return wrong("request.userInfo." + identity.status().message());
  }
  if (!At(review, {"request", "object", "metadata"}).is_object())
    return wrong("request.object: has no metadata");
  if (request->operation == "UPDATE" && !At(review, {"request", "oldObject", "metadata"}).is_object())
    return wrong("request.oldObject: is missing or has no metadata");
  return Status::Ok();
}

void Admission::OnReview(ReviewId id, Hook hook, std::string_view body, Instant now) {
  ++counters_.reviews;
  Request request;
  if (Status read = Read(body, &request); !read.ok()) {
    ++counters_.malformed;
    answers_.push_back({id, kBadRequest, read.message() + "\n"});
    return;
  }
  const bool changes = request.operation == "CREATE" || request.operation == "UPDATE";
  if (!changes || request.of_subresource) return Allow(id, request.uid);
  if (request.operation == "CREATE" && key_.empty()) {
    return Deny(id, request.uid, kUnavailable,
                "the operator has not read its key yet: try again; its /readyz says what is in the way");
  }
  if (request.operation == "CREATE" && !request.too_large.ok())
    return Deny(id, request.uid, kForbidden, Shown(request.user) + " " + request.too_large.message());
  if (hook == Hook::kMutate) return Mutate(id, request);
  if (request.operation == "UPDATE") return ValidateUpdate(id, request);
  ValidateCreate(id, request, now);
}

void Admission::Mutate(ReviewId id, const Request& request) {
  const bool created = request.operation == "CREATE";
  const Stamped wanted = created ? request.stamps(key_) : StampedOn(request.At("oldObject"));
  const Json patch = StampPatch(request.At("object"), wanted);
  Allow(id, request.uid, patch.empty() ? "" : kube::Dump(patch));
}

void Admission::ValidateUpdate(ReviewId id, const Request& request) {
  const Json &before = request.At("oldObject"), &after = request.At("object");
  const Stamped was = StampedOn(before), is = StampedOn(after);
  for (size_t i = 0; i < kStamps.size(); ++i) {
    if (was[i] == is[i]) continue;
    return Deny(id, request.uid, kForbidden,
                "the annotation " + std::string(kStamps[i].annotation) + " cannot change: leave it as it is");
  }
  if (At(before, {"spec"}) == At(after, {"spec"})) return Allow(id, request.uid);
  if (Status right = kube::CheckUpdate(before, after); !right.ok())
    return Deny(id, request.uid, kUnprocessable, right.message());
  Allow(id, request.uid);
}

void Admission::ValidateCreate(ReviewId id, const Request& request, Instant now) {
  const Json& object = request.At("object");
  Waiting waiting;
  waiting.until = now + options_.limit;
  waiting.uid = request.uid;
  waiting.name = TextAt(object, {"metadata", "name"});
  waiting.name_space = request.name_space;
  waiting.rules = kube::CheckCreate(object);
  waiting.rules_code = kUnprocessable;
  const Stamped is = StampedOn(object), right = request.stamps(key_);
  for (size_t i = 0; waiting.rules.ok() && i < kStamps.size(); ++i) {
    if (is[i].is_null() || is[i] == right[i]) continue;
    waiting.rules_code = kForbidden;
    waiting.rules = {StatusCode::kPermissionDenied,
                     "the annotation " + std::string(kStamps[i].annotation) +
                         (kStamps[i].annotation == kProofAnnotation
                              ? " is of another user or another spec: leave it out"
                              : " names another user, or what this one is not: leave it out")};
  }
  waiting.access = QuestionOf(request.user, request.identity, request.name_space,
                              TextAt(object, {"spec", "profileRef", "name"}));
  // What is no name cannot exist.
  if (!kube::IsSubdomain(waiting.name)) return Deny(id, request.uid, kUnprocessable, waiting.rules.message());
  Ask(id, std::move(waiting));
}

void Admission::Ask(ReviewId id, Waiting waiting) {
  if (waiting_.size() >= options_.max_waiting) {
    ++counters_.refused;
    return Deny(id, waiting.uid, kTooManyRequests,
                std::to_string(waiting_.size()) + " jobs wait for their admission already: try again");
  }
  Question question{.id = id, .kind = waiting.for_what, .name_space = {}, .name = {}, .access = {}};
  if (waiting.for_what == Question::Kind::kName) {
    ++counters_.names_asked;
    question.name_space = waiting.name_space;
    question.name = waiting.name;
  } else {
    ++counters_.permissions_asked;
    question.access = waiting.access;
  }
  waiting_[id] = std::move(waiting);
  questions_.push_back(std::move(question));
}

std::optional<Admission::Waiting> Admission::Take(ReviewId id, Question::Kind kind) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end() || found->second.for_what != kind) return std::nullopt;
  Waiting taken = std::move(found->second);
  waiting_.erase(found);
  return taken;
}

void Admission::OnName(ReviewId id, const Result<bool>& exists, Instant now) {
  std::optional<Waiting> waiting = Take(id, Question::Kind::kName);
  if (!waiting) return;
  if (!exists.ok()) {
    ++counters_.unanswered;
    return Deny(
        id, waiting->uid, kUnavailable,
        "whether the task name exists could not be found out: " + exists.status().message() + ": try again");
  }
  if (*exists) {
    return Deny(id, waiting->uid, kConflict,
                "task name already exists: there is a trainingjob " + Shown(waiting->name) +
                    " in the namespace " + waiting->name_space + "; choose another name, or delete it first");
  }
  if (!waiting->rules.ok()) return Deny(id, waiting->uid, waiting->rules_code, waiting->rules.message());
  AskPermission(id, std::move(*waiting), now);
}

void Admission::AskPermission(ReviewId id, Waiting waiting, Instant now) {
  if (const std::optional<bool> known = permissions_.Find(waiting.access, now))
    return Decide(id, waiting, *known);
  waiting.for_what = Question::Kind::kPermission;
  Ask(id, std::move(waiting));
}

void Admission::OnPermission(ReviewId id, const Result<bool>& allowed, Instant now) {
  const std::optional<Waiting> waiting = Take(id, Question::Kind::kPermission);
  if (!waiting) return;
  if (!allowed.ok()) {
    ++counters_.unanswered;
    return Deny(id, waiting->uid, kUnavailable,
                "the permission could not be found out: " + allowed.status().message() + ": try again");
  }
  permissions_.Put(waiting->access, *allowed, now);
  Decide(id, *waiting, *allowed);
}

void Admission::Decide(ReviewId id, const Waiting& waiting, bool allowed) {
  if (allowed) return Allow(id, waiting.uid);
  Deny(id, waiting.uid, kForbidden, WhyNot(waiting.access));
}

void Admission::OnTime(Instant now) {
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    if (now < at->second.until) {
      ++at;
      continue;
    }
    ++counters_.unanswered;
    Deny(at->first, at->second.uid, kTimedOut,
         "the API server did not answer the operator in time: try again");
    at = waiting_.erase(at);
  }
}

void Admission::Forget(ReviewId id) {
  waiting_.erase(id);
  std::erase_if(questions_, [id](const Question& question) { return question.id == id; });
  std::erase_if(answers_, [id](const Answer& answer) { return answer.id == id; });
}

Instant Admission::NextTimeout() const {
  Instant next = Instant::Infinite();
  for (const auto& [id, waiting] : waiting_) next = std::min(next, waiting.until);
  return next;
}

std::optional<Question> Admission::NextQuestion() {
  if (questions_.empty()) return std::nullopt;
  Question question = std::move(questions_.front());
  questions_.pop_front();
  return question;
}

std::optional<Answer> Admission::NextAnswer() {
  if (answers_.empty()) return std::nullopt;
  Answer answer = std::move(answers_.front());
  answers_.pop_front();
  return answer;
}

namespace {

std::string ReviewText(Json response) {
  return kube::Dump(
      {{"apiVersion", kReviewVersion}, {"kind", "AdmissionReview"}, {"response", std::move(response)}});
}

}  // namespace

void Admission::Allow(ReviewId id, const std::string& uid, const std::string& patch) {
  ++counters_.allowed;
  Json response = {{"uid", uid}, {"allowed", true}};
  if (!patch.empty()) {
    ++counters_.stamped;
    response["patchType"] = "JSONPatch";
    response["patch"] = Base64(patch);
  }
  answers_.push_back({id, kOk, ReviewText(std::move(response))});
}

void Admission::Deny(ReviewId id, const std::string& uid, int code, const std::string& message) {
  ++counters_.denied;
  answers_.push_back(
      {id, kOk,
       ReviewText({{"uid", uid},
                   {"allowed", false},
                   {"status", {{"code", code}, {"reason", ReasonOf(code)}, {"message", message}}}})});
}

}  // namespace longhaul::kube::webhook
