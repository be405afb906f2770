// The job goes to other servers, as many as there will be then, between two rounds and without an end
// (decision 0029): the first server brings all workers to one point of their program, and then all servers to
// their end.
//
//   HandOverRequest --> kAsks    every worker says the highest round of its pushes
//                   --> kHolds   each stops before its first push above the highest of all, and says so when
//                                nothing of it is on its way: every tensor is in one round at all servers
//                   --> kEnds    each knows that the servers end, and looks for the next ones
//                   --> the other servers end --> so does this one
//
// A worker that comes or goes meanwhile, or the limit, ends that: all go on. Not thread-safe.
#pragma once

#include <string>
#include <vector>

#include "proto/control_codec.h"
#include "server/job/server_desk.h"
#include "server/member/membership.h"
#include "server/member/peer.h"
#include "server/report/server_stats.h"
#include "server/round/round_host.h"
#include "server/settings.h"
#include "server/tensor/job_image.h"

namespace longhaul::server {

class HandOverDesk {
 public:
  // How long the other servers have for their last writes, and the operator's tool to read the answer.
  static constexpr Duration kServersEnd = std::chrono::seconds(10);
  static constexpr Duration kAnswer = std::chrono::milliseconds(500);

  // All but `events`, which may be null, must outlive this.
  HandOverDesk(const ServerSettings& settings, const Membership& membership, ServerDesk& servers,
               RoundEngineHost* host, ServerEvents* events)
      : settings_(settings), membership_(membership), servers_(servers), host_(host), events_(events) {}

  // Begins, or sends the operator's tool away: it may not (kPermissionDenied), it happens already
  // (kAlreadyExists), or something would be lost (kFailedPrecondition: this is not the first server, or the
  // job has not started; a server is not here or has no round log; SSP, or a lossy downlink; a worker that
  // does not go along). images: of this server, null: it keeps none.
  void OnRequest(Peer& by, const control::HandOverRequest& request, const ImageKeeper* images, bool running,
                 Instant now);
  void OnAnswer(const Peer& peer, const control::HandOver& answer);
  // A worker has come or is gone, as `what` says.
  void OnChange(const std::string& what);
  // The peer's connection is over.
  void Forget(const Peer& peer) {
    if (by_ == &peer) by_ = nullptr;
  }
  // The next steps. In the last one this server's end is asked for: ServerEvents::OnHandOver.
  void Run(Instant now);
  bool active() const { return phase_ != Phase::kIdle; }

 private:
  enum class Phase : uint8_t { kIdle, kAsks, kHolds, kEnds, kServersEnd, kOver };

  Status MayBegin(const Peer& by, bool logs, bool running) const;
  void Tell(control::HandOver::Phase phase);
  // Workers that have not answered.
  std::string Missing() const;
  void GiveUp(const std::string& why);
  void EndServers(Instant now);

  const ServerSettings& settings_;
  const Membership& membership_;
  ServerDesk& servers_;
  RoundEngineHost* host_;
  ServerEvents* events_;
  Phase phase_ = Phase::kIdle;
  Peer* by_ = nullptr;          // the operator's
  uint64_t round_ = 0;          // the highest of any push
  std::vector<bool> answered_;  // by rank, in this phase
  Instant deadline_;            // of this phase, from kAsks to kEnds of all
};

}  // namespace longhaul::server
