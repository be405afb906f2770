// The servers of a job that has several (decision 0029): their places in the map, and which workers may come
// in.
//
//   first server, from --servers N      the others, from --first-server HOST:PORT
//     ServerJoin --> a place in the map   -->  ServerWelcome: settings, place
//     Join: held until all places are taken, then Welcome with the shard map
//                                         Join: with the map's epoch and this place; else sent to the first
//
// A server that is lost keeps its place: it comes back to it by what its disk says, or a new one takes it
// while no job runs. Not thread-safe.
#pragma once

#include <string>
#include <vector>

#include "proto/control_codec.h"
#include "server/member/peer.h"
#include "server/report/server_stats.h"
#include "server/round/round_host.h"
#include "server/settings.h"

namespace longhaul::server {

class ServerDesk {
 public:
  struct Held {
    Peer* peer = nullptr;
    control::Join join;
  };

  // `settings`, `host` and `events` (may be null) must outlive this.
  ServerDesk(const ServerSettings& settings, RoundEngineHost* host, ServerEvents* events);

  // --- Workers ---
  // Ok: the worker is where the shard map says.
  Status Judge(const control::Join& join) const;
  // True: not all servers are there, and no job runs: the desk tells the worker, which waits until
  // TakeReleased. REQUIRES: Judge is Ok.
  bool Hold(Peer& peer, const control::Join& join, bool job_running);
  // Those that need not wait any more.
  std::vector<Held> TakeReleased();
  // The Welcome, with the shard map where there is one.
  control::ControlMessage WithMap(control::ControlMessage welcome) const;

  // --- Servers ---
  // Gives the peer its place and the answer; the members learn of an address that has
  // changed. Errors: kPermissionDenied, kSettingsMismatch (another job), kFailedPrecondition (this is not a
  // first server; what its disk says is of another map), kUnavailable (no place is free), kAlreadyExists (a
  // later start of it is here).
  Status Admit(Peer& peer, const control::ServerJoin& join, bool job_running);
  // The peer's connection is over, or about to be: a server is lost, a held worker is gone.
  void Forget(Peer& peer, const Status& why);

  bool complete() const;

  // --- All of them end (server/job/hand_over_desk.h) ---
  // kFailedPrecondition: one is not here, or has no round log.
  Status MayEnd() const;
  bool AnyOther() const;  // is here
  void TellOthers(const control::ControlMessage& message);

  // A server with a place, or a worker that is held.
  bool Knows(const Peer& peer) const;
  // "server 2 of 3 (10.0.0.2:7700)".
  std::string Describe(uint32_t server) const;
  void AddStats(ServerStats* stats) const;

 private:
  struct Place {
    std::string address;   // empty: no server has had it
    uint64_t start = 0;    // of the server that has it
    bool logs = false;     // it has a round log
    Peer* peer = nullptr;  // null: it is not here
  };

  bool first() const { return settings_.place.server == 0; }
  Result<uint32_t> PlaceFor(const control::ServerJoin& join, const std::string& address,
                            bool job_running) const;
  std::string Missing() const;
  control::ShardMap Map() const;
  control::ServerWelcome WelcomeTo(uint32_t server) const;

  const ServerSettings& settings_;
  RoundEngineHost* host_;
  ServerEvents* events_;
  std::vector<Place> places_;  // of the first server: by number; place 0 is its own
  std::vector<Held> held_;
};

}  // namespace longhaul::server
