// One call of Reconcile: the states and their arrows.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "operator/reconcile/provisioner.h"

namespace longhaul::kube {

class Pass : private Provisioner {
 public:
  Pass(const Settings& settings, const Observed& seen, Instant now, TrainingJob job)
      : Provisioner(settings, seen, now, std::move(job)) {}
  Decision Run();

 private:
  // create: from the request to a plan. True where the next step may follow.
  bool TakeConfiguration();
  bool DoWithoutProfile(const std::string& why);
  bool Authorize();
  bool EnsurePlan();
  bool MakeNewPlan(const std::string& script);
  bool Adopt(const JobPlan& plan);
  std::optional<std::string> ScriptText();
  bool WantsAnotherPlan() const;
  bool StatusHasPlan() const;

  // control: phases.
  void Assess();
  void EndDegraded();
  void GiveSitesUp();  // of an elastic job
  void Complete();
  void Suspend();
  void Resume();
  bool Overdue();

  // The end.
  void CleanUp();
  void LetGo();  // the job is being deleted
  bool HoldFinalizer();
};

}  // namespace longhaul::kube
