#include "operator/controller/permission_desk.h"

#include <utility>

#include "operator/resource/requester.h"

namespace longhaul::kube {
namespace {

constexpr size_t kMostFailed = 4096;  // as the cache of answers

}  // namespace

api::AccessQuestion QuestionOf(const TrainingJob& job) {
  api::AccessQuestion question;
  question.user = job.requester;
  RequesterIdentity identity = ParseIdentity(job.requester_identity);
  question.groups = std::move(identity.groups);
  question.uid = std::move(identity.uid);
  question.extra = std::move(identity.extra);
  question.verb = "use";
  question.group = "longhaul.dev";
  question.resource = "trainingprofiles";
  question.name_space = job.name_space;
  question.name = job.spec.profile;  // "": all of them, as a configuration in the job asks for
  return question;
}

PermissionDesk::~PermissionDesk() {
  for (const auto& [call, open] : open_) client_->Cancel(call);
}

PermissionDesk::Answer PermissionDesk::Ask(const TrainingJob& job, const std::string& key, bool stamped,
                                           Instant now) {
  if (!stamped || job.requester.empty()) {
    return {Permission::kDenied, false,
            "the job lacks the stamp of the operator's webhook, the annotations " +
                std::string(kRequesterAnnotation) + " and " + std::string(kProofAnnotation) +
                ", or was stamped as another one: apply deploy/kubernetes/admission-webhook and create it "
                "again, or start the operator with --permission admission where an admission policy asks"};
  }
  const api::AccessQuestion question = QuestionOf(job);
  if (const auto known = cache_.Find(question, now))
    return {*known ? Permission::kAllowed : Permission::kDenied, false, ""};
  const std::string text = api::KeyOf(question);
  if (const auto asked = asked_.find(text); asked != asked_.end()) {
    open_[asked->second].jobs.insert(key);
    return {Permission::kUnknown, true, ""};
  }
  if (const auto failed = failed_.extract(text)) return {Permission::kUnknown, false, failed.mapped()};
  api::ApiRequest review = api::SubjectAccessReview(question);
  review.time_limit = kWriteLimit;
  const Result<api::CallId> started = client_->Start(review);
  if (!started.ok()) return {Permission::kUnknown, true, ""};  // the job comes again in a second
  ++reviews_;
  asked_[text] = *started;
  open_[*started] = {question, text, {key}};
  return {Permission::kUnknown, true, ""};
}

std::optional<std::set<std::string>> PermissionDesk::Take(const api::RestEvent& event, Instant now) {
  const auto found = open_.find(event.call);
  if (found == open_.end()) return std::nullopt;
  const Open open = std::move(found->second);
  open_.erase(found);
  asked_.erase(open.text);
  const Result<bool> allowed = api::IsAllowed(event.result);
  // A failure is no answer.
  if (!allowed.ok()) {
    if (failed_.size() >= kMostFailed) failed_.clear();
    failed_[open.text] = allowed.status().message();
    return open.jobs;
  }
  cache_.Put(open.question, *allowed, now);
  return open.jobs;
}

}  // namespace longhaul::kube
