// Controls the objects of a job that runs: makes what is missing, and deletes pods of earlier attempts.
#pragma once

#include "operator/reconcile/node_ledger.h"

namespace longhaul::kube {

class Provisioner : protected NodeLedger {
 protected:
  using NodeLedger::NodeLedger;

  // REQUIRES: a plan.
  void Provision();
  // It takes leave of its members and writes its last checkpoint; the claim stays.
  void StopServer();
  // A gang that no machines took waits for another plan.
  bool ReleasedBeforeStart() const;
  // Other nodes are lost, or have finished and the server with them: its barrier would wait for them.
  bool ServerWaitsForEnded() const;

  bool waits_for_objects_ = false;
  bool stops_server_ = false;

 private:
  void ProvisionServer();
  void ProvisionRemote();
  void ProvisionPods();
};

}  // namespace longhaul::kube
