// What the daemon has beside an embedded server: guests (server/job/guests.h), and answers to probes and
// scrapes (health/health_port.h). Not installed.
#pragma once

#include <functional>
#include <memory>

#include "longhaul/server.h"
#include "server/job/guests.h"
#include "server/report/server_stats.h"
#include "server/settings.h"

namespace longhaul::server {

struct Daemon {
  using MakeGuests = std::function<std::unique_ptr<Guests>(const ServerSettings&)>;

  // As Server::Start. make_guests: empty refuses all. link: the server's part of `capacity`, where several
  // jobs share it (server/grants/link_share.h); null: all of it. It is dropped with the server.
  static Result<Server> Start(const ServerOptions& options, std::function<void(const ServerEvent&)> on_event,
                              const MakeGuests& make_guests, std::shared_ptr<LinkShare> link = nullptr);
  // As Server::Stop, but waits for nothing. On any thread.
  static void BeginStop(const Server& server);
  // Stops without an end to the job: results that are on their way leave, the state is kept, workers with
  // reconnect_timeout wait for a server of the same checkpoint_dir. Waits for nothing, on any thread. Errors:
  // kFailedPrecondition (without round_log, with a lossy downlink, or while the log cannot be written, no
  // server could go on).
  static Status BeginHandOver(const Server& server);
  static Status MayHandOver(const Server& server);
  // It has begun, by BeginHandOver or an operator's order (longhaul hand-over). Any thread.
  static bool HandsOver(const Server& server);

  // Both ask the server's loop and wait for its answer, on any thread but the loop's; the server was not
  // moved from. Errors: kDeadlineExceeded (the loop does not answer for 2 s), kFailedPrecondition (it has
  // ended; of TakesMembers also: it is shutting down).
  static Result<ServerStats> Stats(const Server& server);
  static Status TakesMembers(const Server& server);
};

}  // namespace longhaul::server
