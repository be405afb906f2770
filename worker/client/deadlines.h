// How long the calls of a worker wait for others (ConnectOptions::wait_timeout), and how they end.
//
//   Declare, Pull, Barrier   after `limit` the server is asked to end them (GiveUp); its answer names who is
//                            missing. Before the start it is asked for whom that waits.
//   pushes                   end with their round. When nothing has moved for twice `limit`, the session fails.
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "base/instant.h"
#include "longhaul/status.h"
#include "worker/client/server_link.h"

namespace longhaul::worker {

class Deadlines {
 public:
  // One call. request: of its control message, 0 when none was sent. end: ends it.
  struct Wait {
    OperationId operation = 0;
    std::function<uint32_t()> request;
    std::function<void(const Status&)> end;
  };

  explicit Deadlines(ServerLink* link) : link_(*link) {}

  void Begin(Wait wait);
  void OnStart();
  // The server says what waits for whom.
  void OnWaiting(const std::string& text);
  const std::string& waiting() const { return waiting_; }  // as the server has said last
  // REQUIRES: the session takes requests.
  void HandleTimeout();
  Instant NextTimeout() const;
  // The time without a connection is no wait for others: what is pending begins anew.
  void OnResumed();
  void End() { waits_.clear(), asked_.clear(); }

 private:
  struct Timed {
    Wait wait;
    Instant since;
  };
  Duration limit() const { return link_.options.wait_timeout; }
  // Movement is looked for this often, so that its end is known to an eighth.
  Instant FailAt() const { return moved_at_ + 2 * limit(); }
  Duration look_every() const { return std::max(limit() / 8, Duration(std::chrono::milliseconds(1))); }
  void GiveUp(uint32_t request);
  // Takes note of what has moved since the last look.
  void LookForMovement();
  void FailWhenNothingMoves();
  Status TooLong(const std::string& why) const;

  ServerLink& link_;
  bool started_ = false;
  std::deque<Timed> waits_;   // oldest first
  std::vector<Timed> asked_;  // before the start: the answer ends them
  std::string waiting_;       // the latest text
  uint64_t moved_ = 0;        // bytes and operations, as of looked_at_
  Instant looked_at_;
  Instant moved_at_;  // the look that has seen the latest movement
};

}  // namespace longhaul::worker
