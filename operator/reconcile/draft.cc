#include "operator/reconcile/draft.h"

#include <algorithm>
#include <utility>

#include "operator/resource/stamp.h"

namespace longhaul::kube {

Draft::Draft(const Settings& settings, const Observed& seen, Instant now, TrainingJob job)
    : JobView(settings, seen, now, std::move(job)), next_(job_.status) {
  next_.observed_generation = job_.generation;
  if (seen_.round) next_.round = seen_.round;
}

void Draft::To(Phase phase, std::string_view reason, const std::string& message) {
  const bool moves = next_.phase != phase;
  next_.phase = phase;
  next_.reason = reason;
  next_.message = message;
  if (moves) Event(phase == Phase::kFailed || phase == Phase::kRestarting, reason, message);
}

void Draft::Set(std::string_view type, bool value, std::string_view reason, std::string message) {
  (void)next_.Set(type, value ? ConditionStatus::kTrue : ConditionStatus::kFalse, reason, std::move(message),
                  now_);
}

void Draft::Degrade(std::string_view reason, std::string message) {
  degrades_ = true;
  Set("Degraded", true, reason, std::move(message));
}

void Draft::Event(bool warning, std::string_view reason, const std::string& message) {
  out_.actions.push_back(
      {Verb::kEvent,
       "",
       {{"type", warning ? "Warning" : "Normal"}, {"reason", reason}, {"message", message}},
       std::nullopt});
}

void Draft::Create(Json object, const std::string& cluster) {
  out_.actions.push_back({Verb::kCreate, cluster, std::move(object), std::nullopt});
}

bool Draft::CreatePlan(const Owner& owner, const std::string& cluster) {
  out_.needs_script |= !seen_.whole_script && IsScriptMark(plan_.script);
  const bool large = plan_.script.size() > kKeptScriptBytes;
  if (out_.needs_script || (large && created_plan_)) return false;  // a large one for each cluster by itself
  created_plan_ = true;
  Create(PlanMap(job_, plan_, owner), cluster);
  return true;
}

void Draft::Delete(const Json& object, const std::string& cluster, std::optional<int64_t> grace) {
  Json which = {{"apiVersion", TextAt(object, {"apiVersion"})},
                {"kind", TextAt(object, {"kind"})},
                {"metadata",
                 {{"name", TextAt(object, {"metadata", "name"})},
                  {"namespace", job_.name_space},
                  {"uid", TextAt(object, {"metadata", "uid"})}}}};
  out_.actions.push_back({Verb::kDelete, cluster, std::move(which), grace});
  RequeueIn(kLookAgain);
}

void Draft::RequeueAt(Instant at) {
  const Duration wait = std::max<Duration>(at - now_, kSoon);
  if (!out_.requeue_after || wait < *out_.requeue_after) out_.requeue_after = wait;
}

Json Draft::JobHead() const {
  return {{"apiVersion", kApiVersion},
          {"kind", "TrainingJob"},
          {"metadata",
           {{"name", job_.name},
            {"namespace", job_.name_space},
            {"uid", job_.uid},
            {"resourceVersion", job_.resource_version}}}};
}

void Draft::PatchFinalizers(Json finalizers) {
  Json job = JobHead();
  job["metadata"]["finalizers"] = std::move(finalizers);
  out_.actions.push_back({Verb::kPatchJob, "", std::move(job), std::nullopt});
}

void Draft::Finish(Phase phase, std::string_view reason, const std::string& message) {
  next_.completion_time = now_;
  To(phase, reason, message);
  RequeueIn(kSoon);
}

void Draft::Fail(std::string_view reason, const std::string& message) {
  Set("Failed", true, reason, message);
  Finish(Phase::kFailed, reason, message);
}

Decision Draft::Publish() {
  if (next_ == job_.status) {
    // Whatever else is said was said before.
    std::erase_if(out_.actions, [](const Action& action) { return action.verb == Verb::kEvent; });
    return std::move(out_);
  }
  Json job = JobHead();
  job["status"] = JobStatusJson(next_);
  out_.actions.insert(out_.actions.begin(), {Verb::kPatchStatus, "", std::move(job), std::nullopt});
  return std::move(out_);
}

}  // namespace longhaul::kube
