// What the admission webhooks of training jobs decide: an AdmissionReview in, an AdmissionReview out.
//
//   /mutate     stamps the requester: the annotations longhaul.dev/requester and longhaul.dev/requester-identity
//               are the user that creates the job, whatever they were, and later stay what they were; so does
//               longhaul.dev/requester-proof, by which the operator knows its own stamp.
//   /validate   of a new job, in this order:
//                 1. its name: a name that exists is refused before anything else is asked (requirement S5);
//                 2. every rule of operator/resource (CheckCreate), and the requester;
//                 3. the permission (S6): the verb `use` on its profile, or on all profiles for a configuration
//                    in the job. Remembered answers first (PermissionCache), else a SubjectAccessReview.
//               Of a change: what may change (CheckUpdate), and the requester.
//
// Changes that leave the spec as it is pass: a job that is older than a rule must not keep its finalizer.
//
// Sans-I/O: time is an argument, questions for the API server and answers are polled. Nothing throws,
// whatever the bytes are. Of a request that waits no JSON is kept. Not thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/instant.h"
#include "longhaul/stats.h"
#include "longhaul/status.h"
#include "operator/api/core/permission_cache.h"

namespace longhaul::kube::webhook {

enum class Hook : uint8_t { kMutate, kValidate };
// By the path of the webhook configurations, /mutate/SECRET and /validate/SECRET; nullopt: there is no such
// page. Without a secret whatever follows is taken.
std::optional<Hook> HookOf(std::string_view path, std::string_view secret);

using ReviewId = uint64_t;

// For the API server. The answer comes as OnName or OnPermission, with the same id.
struct Question {
  enum class Kind : uint8_t {
    kName,        // is there a TrainingJob `name` in `name_space`?
    kPermission,  // `access`
  };
  ReviewId id = 0;
  Kind kind = Kind::kName;
  std::string name_space, name;
  api::AccessQuestion access;
};

struct Answer {
  ReviewId id = 0;
  int http = 200;
  std::string body;  // 200: an AdmissionReview; else words
};

struct AdmissionOptions {
  // Of a review from its arrival. The webhook configurations let the API server wait for 5 s; an answer in
  // words is to arrive before that.
  Duration limit = std::chrono::seconds(4);
  size_t max_waiting = 64;  // reviews that wait for the API server; some 2 KB each
  // Values of a review: with a job that has 1,000 of them, its old version and both versions' managed fields
  // some 6,000. As Json each is 16 bytes and up to 100 more.
  size_t max_values = 60'000;
  api::PermissionCacheOptions permissions;
};

struct AdmissionCounters {
  uint64_t reviews = 0;
  uint64_t allowed = 0;
  uint64_t denied = 0;
  uint64_t malformed = 0;
  uint64_t stamped = 0;
  uint64_t names_asked = 0;
  uint64_t permissions_asked = 0;
  uint64_t unanswered = 0;
  uint64_t refused = 0;
};

inline constexpr std::array<Counter<AdmissionCounters>, 9> kAdmissionCounters = {{
    {&AdmissionCounters::reviews, "reviews", "requests that came to the webhooks"},
    {&AdmissionCounters::allowed, "allowed", "of them, those that may go on"},
    {&AdmissionCounters::denied, "denied", "of them, those that were refused in an AdmissionReview"},
    {&AdmissionCounters::malformed, "malformed", "of them, those that were none: answered with 400"},
    {&AdmissionCounters::stamped, "stamped", "of those allowed, those whose requester was put right"},
    {&AdmissionCounters::names_asked, "names_asked", "questions whether a name exists"},
    {&AdmissionCounters::permissions_asked, "permissions_asked",
     "SubjectAccessReviews: permissions that were not remembered"},
    {&AdmissionCounters::unanswered, "unanswered",
     "reviews that were denied since the API server gave no answer, or none in time"},
    {&AdmissionCounters::refused, "refused", "reviews that were denied since too many were waiting"},
}};

class Admission {
 public:
  // The deepest review: a job of 32 levels in the review, and its managed fields.
  static constexpr int kMaxReviewDepth = 64;

  explicit Admission(const AdmissionOptions& options = {})
      : options_(options), permissions_(options.permissions) {}

  // The operator's key, of which proofs are made. No job is created before it is there.
  void SetKey(std::string key) { key_ = std::move(key); }

  // A request came. REQUIRES: no review with this id waits. Exactly one answer comes for it, unless it is
  // forgotten.
  void OnReview(ReviewId id, Hook hook, std::string_view body, Instant now);
  // Answers to questions. Those of an id that does not wait are dropped.
  void OnName(ReviewId id, const Result<bool>& exists, Instant now);
  void OnPermission(ReviewId id, const Result<bool>& allowed, Instant now);
  // To be called at NextTimeout.
  void OnTime(Instant now);
  // No answer is wanted any more.
  void Forget(ReviewId id);

  std::optional<Question> NextQuestion();
  std::optional<Answer> NextAnswer();
  Instant NextTimeout() const;

  size_t waiting() const { return waiting_.size(); }
  const AdmissionCounters& counters() const { return counters_; }
  const api::PermissionCacheCounters& permission_counters() const { return permissions_.counters(); }

 private:
  // What is known of a new job, and is still to be said.
  struct Waiting {
    Question::Kind for_what = Question::Kind::kName;
    Instant until;
    std::string uid;
    std::string name_space, name;
    Status rules;
    int rules_code = 0;
    api::AccessQuestion access;
  };
  struct Request;

  Status Read(std::string_view body, Request* request) const;
  void Mutate(ReviewId id, const Request& request);
  void ValidateUpdate(ReviewId id, const Request& request);
  void ValidateCreate(ReviewId id, const Request& request, Instant now);
  void Ask(ReviewId id, Waiting waiting);
  void AskPermission(ReviewId id, Waiting waiting, Instant now);
  void Decide(ReviewId id, const Waiting& waiting, bool allowed);
  std::optional<Waiting> Take(ReviewId id, Question::Kind kind);

  void Allow(ReviewId id, const std::string& uid, const std::string& patch = "");
  void Deny(ReviewId id, const std::string& uid, int code, const std::string& message);

  const AdmissionOptions options_;
  std::string key_;
  api::PermissionCache permissions_;
  std::map<ReviewId, Waiting> waiting_;
  std::deque<Question> questions_;
  std::deque<Answer> answers_;
  AdmissionCounters counters_;
};

}  // namespace longhaul::kube::webhook
