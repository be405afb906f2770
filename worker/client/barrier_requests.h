// A session's barriers that are not complete: kept until the server has answered, and asked for again by
// another connection. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "longhaul/status.h"
#include "worker/client/deadlines.h"
#include "worker/client/server_link.h"

namespace longhaul::worker {

class BarrierRequests {
 public:
  BarrierRequests(ServerLink* link, Deadlines* deadlines) : link_(*link), deadlines_(*deadlines) {}

  // refusal: not Ok: the barrier ends with it. started: the job has, so that the server is asked at once.
  void Begin(const std::string& name, Operations::Callback callback, Status refusal, bool started);
  // The job has started (again).
  void OnStart();
  void OnDone(const control::BarrierDone& done) {
    Finish(done.request(), Status(static_cast<StatusCode>(done.code()), done.message()));
  }
  void End() { pending_.clear(); }

 private:
  struct Pending {
    OperationId operation = 0;
    control::ControlMessage message;
  };
  void Finish(uint32_t request, const Status& outcome);

  ServerLink& link_;
  Deadlines& deadlines_;
  std::map<uint32_t, Pending> pending_;  // by request
};

}  // namespace longhaul::worker
