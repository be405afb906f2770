// What the daemon has beside an embedded server: guests (server/job/guests.h). Not installed.
#pragma once

#include <functional>
#include <memory>

#include "longhaul/server.h"
#include "server/job/guests.h"
#include "server/settings.h"

namespace longhaul::server {

struct Daemon {
  using MakeGuests = std::function<std::unique_ptr<Guests>(const ServerSettings&)>;

  // As Server::Start. make_guests: empty refuses all.
  static Result<Server> Start(const ServerOptions& options, std::function<void(const ServerEvent&)> on_event,
                              const MakeGuests& make_guests);
};

}  // namespace longhaul::server
