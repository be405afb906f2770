// Lets guests (server/job/guests.h) in and out, and tells the owner's events of it. Not thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "server/job/guests.h"

namespace longhaul::server {

class GuestDesk {
 public:
  // Both may be null: without guests all are refused.
  GuestDesk(Guests* guests, ServerEvents* events) : guests_(guests), events_(events) {}

  // The answer to a load generator's first message. Errors, in words for the user: kPermissionDenied,
  // kUnavailable, kResourceExhausted.
  Result<control::ControlMessage> Admit(Peer& peer, const control::BenchJoin& join, bool job_running);
  // The connection is over, or about to be. No-op unless the peer is a guest.
  void Remove(Peer& peer);
  // A job starts: those that may not go on beside it are guests no more.
  std::vector<Peer*> TakeThoseInTheWay(const std::vector<std::unique_ptr<Peer>>& peers);
  void AddStats(ServerStats* stats) const;

 private:
  Guests* guests_;
  ServerEvents* events_;
};

}  // namespace longhaul::server
