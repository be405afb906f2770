// This process as a node: its role and rank, the numbers of the other nodes, barriers.
//
// The environment says it: DMLC_ROLE (scheduler, server, worker), DMLC_NUM_WORKER, DMLC_NUM_SERVER,
// DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT (where the scheduler is); DMLC_NODE_HOST (how workers reach this
// server, where that is not how the scheduler sees it). LONGHAUL_KEY is the key file that all share;
// without one LONGHAUL_INSECURE must be the scheduler's HOST:PORT. LONGHAUL_IDLE_TIMEOUT,
// LONGHAUL_CONNECT_TIMEOUT, LONGHAUL_WAIT_TIMEOUT, LONGHAUL_FAULT and the other settings of a connection are
// those of longhaul-worker.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ps/base.h"

namespace ps {

class Customer;

class Postoffice {
 public:
  using Callback = std::function<void()>;

  static Postoffice* Get();
  ~Postoffice();

  // See ps.h.
  void Start(int customer_id, const char* argv0, bool do_barrier);
  void Finalize(int customer_id, bool do_barrier = true);
  void RegisterExitCallback(const Callback& callback);
  // Waits until all nodes of the group are here. Errors: Error (this node is not in the group; one of them
  // has died or left).
  void Barrier(int customer_id, int node_group);

  int num_workers() const;
  int num_servers() const;
  bool is_worker() const;
  bool is_server() const;
  bool is_scheduler() const;
  int my_rank() const;
  bool is_recovery() const { return false; }
  int verbose() const { return 0; }
  // Keys [0, kMaxKey] in as many even parts as there are servers.
  const std::vector<Range>& GetServerKeyRanges();
  // Nodes of a group; of a node, itself. Errors: Error (there is no such node).
  const std::vector<int>& GetNodeIDs(int node_or_group) const;
  // A dead node ends the job, so while there is one there is none.
  std::vector<int> GetDeadNodes(int /*seconds*/ = 60) { return {}; }

  static int WorkerRankToID(int rank) { return rank * 2 + 9; }
  static int ServerRankToID(int rank) { return rank * 2 + 8; }
  static int IDtoRank(int id) { return id < 8 ? 0 : (id - 8) / 2; }

 private:
  friend class Customer;
  Postoffice();
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ps
