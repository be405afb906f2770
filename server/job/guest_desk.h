// Lets guests (server/job/guests.h) in and out, and tells the owner's events of it. Not thread-safe.
#pragma once

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
  void AddStats(ServerStats* stats) const;

 private:
  Guests* guests_;
  ServerEvents* events_;
};

}  // namespace longhaul::server
