// What one call of Reconcile says: the job's next status, and the actions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "operator/reconcile/job_view.h"
#include "operator/reconcile/reconcile.h"

namespace longhaul::kube {

inline constexpr Duration kSoon = std::chrono::seconds(1);  // what was just asked for is seen then
// For what others do: profiles, scripts, free GPUs.
inline constexpr Duration kLookAgain = std::chrono::seconds(10);

class Draft : protected JobView {
 protected:
  Draft(const Settings& settings, const Observed& seen, Instant now, TrainingJob job);

  // With an Event where the phase is another one than before.
  void To(Phase phase, std::string_view reason, const std::string& message);
  void Set(std::string_view type, bool value, std::string_view reason, std::string message);
  // A condition of this moment: Assess takes back what is not said again.
  void Degrade(std::string_view reason, std::string message);
  void Event(bool warning, std::string_view reason, const std::string& message);
  void Create(Json object, const std::string& cluster = "");
  void Delete(const Json& object, const std::string& cluster, std::optional<int64_t> grace = std::nullopt);
  // False: not now. Its script is not here as a whole, and the decision says so; or it is long, and this
  // decision has one already.
  bool CreatePlan(const Owner& owner, const std::string& cluster = "");
  // Of ours alone: those of others have other field managers.
  void PatchFinalizers(Json finalizers);
  void RequeueAt(Instant at);
  void RequeueIn(Duration time) { RequeueAt(now_ + time); }
  void Finish(Phase phase, std::string_view reason, const std::string& message);
  void Fail(std::string_view reason, const std::string& message);
  // The status first, if it has changed, and then the rest.
  Decision Publish();
  bool started() const { return next_.IsTrue("Started"); }

  JobStatus next_;
  Decision out_;
  bool degrades_ = false;
  bool created_plan_ = false;

 private:
  Json JobHead() const;
};

}  // namespace longhaul::kube
