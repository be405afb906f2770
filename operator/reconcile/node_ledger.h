// Determines what has become of a job's nodes: retries, disruptions, gangs without machines.
#pragma once

#include <string>

#include "operator/reconcile/draft.h"

namespace longhaul::kube {

class NodeLedger : protected Draft {
 protected:
  using Draft::Draft;

  // True where something was counted, or the job has failed: then the status is written, and nothing else
  // done.
  bool CountNodes();
  size_t CountOf(NodePhase phase) const;
  // As many as elastic.minNodes asks for; false without it.
  bool EnoughFor(size_t nodes) const;
  // Of a node's pod: higher than that of every pod before it.
  int64_t Incarnation(const NodeStatus& node) const;
  // Nodes that are still to finish where others have ended; else 0.
  size_t Left() const;
  // From now on every pod is anew: that number is above those of all pods before.
  void NextAttempt();

  // What its last pod has done is over.
  static void AwaitPod(NodeStatus* node);
  // The job goes on without it, and ends without it.
  void GiveUp(NodeStatus* node, const std::string& why);

  std::string trouble_;  // of the first pod that has any

 private:
  void CountNode(size_t rank, bool* release);
  void Again(size_t rank, bool own_failure, const std::string& why);
  void Lose(size_t rank);
  void ReleaseGang();
};

}  // namespace longhaul::kube
