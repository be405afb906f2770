// The interface of ps-lite over longhaul's transport: programs of ps-lite build unchanged, and run as those
// do, a process for each scheduler, server and worker of the same program.
//
//   DMLC_ROLE=... DMLC_NUM_WORKER=2 DMLC_NUM_SERVER=2 DMLC_PS_ROOT_URI=10.0.0.1 DMLC_PS_ROOT_PORT=8000
//   LONGHAUL_KEY=job.key ./program
//
// What is different: everything that waits ends, with ps::Error, when a node dies or ends without Finalize;
// all that is sent is encrypted and authenticated by the key; nothing is sent by TCP. The environment's
// variables are in internal/postoffice.h. C++17.
#pragma once

// Programs have always had these from ps-lite's own headers.
#include <cinttypes>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <sstream>
#include <string>
#include <thread>

#include "ps/base.h"
#include "ps/kv_app.h"
#include "ps/simple_app.h"

namespace ps {

inline int NumWorkers() { return Postoffice::Get()->num_workers(); }
inline int NumServers() { return Postoffice::Get()->num_servers(); }
inline bool IsWorker() { return Postoffice::Get()->is_worker(); }
inline bool IsServer() { return Postoffice::Get()->is_server(); }
inline bool IsScheduler() { return Postoffice::Get()->is_scheduler(); }
// Among the workers, or among the servers; after Start.
inline int MyRank() { return Postoffice::Get()->my_rank(); }

// Joins; returns when all nodes have. A process of several workers calls it once for each, with other
// numbers, from 0 on. Errors: Error (what is wrong with the environment; no scheduler; a node that did not
// come within LONGHAUL_WAIT_TIMEOUT).
inline void Start(int customer_id = 0, const char* argv0 = nullptr, bool do_barrier = true) {
  Postoffice::Get()->Start(customer_id, argv0, do_barrier);
}
// The same; nodes may still be on their way to their own Start's end.
inline void StartAsync(int customer_id = 0, const char* argv0 = nullptr) { Start(customer_id, argv0, false); }
// Leaves, with do_barrier when all nodes do. Every process calls it; of customer 0 it ends the node. Errors:
// Error, by name, also when a node dies meanwhile.
inline void Finalize(int customer_id = 0, bool do_barrier = true) {
  Postoffice::Get()->Finalize(customer_id, do_barrier);
}
// Called at the end of Finalize; the last one that was registered.
inline void RegisterExitCallback(const std::function<void()>& callback) {
  Postoffice::Get()->RegisterExitCallback(callback);
}

}  // namespace ps
