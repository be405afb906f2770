// The control message by which a worker asks to be let in, and those by which a server lets a peer in, keeps
// it waiting, or sends it away.
#pragma once

#include <cstdint>
#include <string>

#include "base/instant.h"
#include "longhaul/job.h"
#include "longhaul/status.h"
#include "proto/control_codec.h"
#include "server/member/membership.h"
#include "server/member/peer.h"
#include "server/settings.h"

namespace longhaul::server {

JoinRequest RequestOf(const Peer& peer, const control::Join& join);

// first_server: where workers are let in instead; "" where it is here.
control::ControlMessage RefusedMessage(const Status& why, const std::string& first_server);
control::ControlMessage LeaveMessage(const Status& why);
control::ControlMessage KickedMessage(const std::string& who);
control::ControlMessage HandedOverMessage(const std::string& what);
// A job that is over.
struct LastJob {
  Status outcome;
  uint64_t rounds = 0;
  Instant ended;
};
// For a worker that comes after it: what became of that job, and which one this worker is of.
std::string Notice(const LastJob& last, Instant now, const ServerSettings& settings);
// notice: "" for none.
control::ControlMessage WelcomeMessage(const JobSpec& spec, uint64_t job, const std::string& notice);
control::ControlMessage MembershipMessage(const Membership& membership, uint64_t epoch);
// What every member's path carries of a chunk. by_rank: null where there is none.
uint16_t LongestChunk(const std::vector<Peer*>& by_rank);
control::ControlMessage StartMessage(uint16_t symbol_bytes, uint32_t members);
// Of a member: how its call ends, and what it waits for.
control::ControlMessage BarrierDoneMessage(uint32_t request, const Status& outcome);
control::ControlMessage WaitingMessage(const std::string& text);

}  // namespace longhaul::server
