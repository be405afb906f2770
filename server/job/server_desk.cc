#include "server/job/server_desk.h"

#include <algorithm>
#include <utility>

#include "server/job/authorization.h"
#include "server/job/messages.h"

namespace longhaul::server {
namespace {

std::string NumberOf(uint32_t server, uint32_t servers) {
  return "server " + std::to_string(server + 1) + " of " + std::to_string(servers);
}

// Where workers reach a server: as it says, or, when it says only a port, where it comes from.
std::string AddressOf(const Peer& peer, const std::string& said) {
  if (said.front() != ':') return said;
  Address from = peer.connection->peer();
  from.port = 0;
  const std::string text = from.ToString();  // "10.0.0.2:0", "[fe80::1]:0"
  return text.substr(0, text.rfind(':')) + said;
}

}  // namespace

ServerDesk::ServerDesk(const ServerSettings& settings, RoundEngineHost* host, ServerEvents* events)
    : settings_(settings), host_(host), events_(events), places_(first() ? settings.place.servers : 0) {}

bool ServerDesk::complete() const {
  if (!first()) return true;
  return std::all_of(places_.begin() + 1, places_.end(), [](const Place& p) { return p.peer != nullptr; });
}

bool ServerDesk::Knows(const Peer& peer) const {
  return peer.phase == Peer::Phase::kServer ||
         std::ranges::any_of(held_, [&peer](const Held& held) { return held.peer == &peer; });
}

std::string ServerDesk::Describe(uint32_t server) const {
  const std::string number = NumberOf(server, settings_.place.servers);
  if (server >= places_.size() || places_[server].address.empty()) return number;
  return number + " (" + places_[server].address + ")";
}

std::string ServerDesk::Missing() const {
  std::string names;
  for (uint32_t server = 1; server < places_.size(); ++server) {
    if (places_[server].peer == nullptr) names += (names.empty() ? "" : ", ") + Describe(server);
  }
  return "the job waits for " + names;
}

// --- Workers ---

Status ServerDesk::Judge(const control::Join& join) const {
  const ServerPlace& own = settings_.place;
  if (own.servers > 1 && !join.knows_shards()) {
    return {StatusCode::kVersionMismatch,
            "this job has several servers, of which the worker's version knows nothing"};
  }
  const bool knows_map = join.map_epoch() != 0;
  if (!knows_map && first()) return {};
  const std::string here = "this is " + NumberOf(own.server, own.servers);
  if (!knows_map)
    return {StatusCode::kUnavailable, here + "; the first one, " + own.first_server + ", lets workers in"};
  const std::string epoch = " of the shard map of epoch ";
  if (join.map_epoch() == own.map_epoch && join.server() == own.server) return {};
  return {StatusCode::kFailedPrecondition,
          here + epoch + std::to_string(own.map_epoch) + ", and the worker takes it for server " +
              std::to_string(join.server() + 1) + epoch + std::to_string(join.map_epoch())};
}

bool ServerDesk::Hold(Peer& peer, const control::Join& join, bool job_running) {
  if (job_running || complete()) return false;
  held_.push_back({&peer, join});
  host_->Send(peer, WaitingMessage(Missing()));
  return true;
}

std::vector<ServerDesk::Held> ServerDesk::TakeReleased() {
  if (!complete()) return {};
  std::vector<Held> released = std::exchange(held_, {});
  std::erase_if(released, [](const Held& held) { return held.peer->phase != Peer::Phase::kNew; });
  return released;
}

control::ShardMap ServerDesk::Map() const {
  control::ShardMap map;
  map.set_epoch(settings_.place.map_epoch);
  map.add_servers(settings_.place.address);
  for (size_t server = 1; server < places_.size(); ++server) map.add_servers(places_[server].address);
  return map;
}

control::ControlMessage ServerDesk::WithMap(control::ControlMessage welcome) const {
  if (first() && settings_.place.map_epoch != 0) *welcome.mutable_welcome()->mutable_shard_map() = Map();
  return welcome;
}

// --- Servers ---

Result<uint32_t> ServerDesk::PlaceFor(const control::ServerJoin& join, const std::string& address,
                                      bool job_running) const {
  if (join.map_epoch() != 0) {
    const ServerPlace& own = settings_.place;
    if (join.map_epoch() == own.map_epoch && join.servers() == own.servers) return join.server();
    return Status(StatusCode::kFailedPrecondition,
                  "its disk is of " + NumberOf(join.server(), join.servers()) + " of a shard map of epoch " +
                      std::to_string(join.map_epoch()) + ", and the map here has " +
                      std::to_string(own.servers) + " servers and epoch " + std::to_string(own.map_epoch));
  }
  // Two servers cannot have one address: this one has taken the other's port.
  for (uint32_t server = 1; server < places_.size(); ++server) {
    if (places_[server].address == address) return server;
  }
  for (uint32_t server = 1; server < places_.size(); ++server) {
    const bool never = places_[server].address.empty();
    if (places_[server].peer == nullptr && (never || !job_running)) return server;
  }
  return Status(StatusCode::kUnavailable, "all " + std::to_string(settings_.place.servers) +
                                              " servers of the job are known" +
                                              (job_running ? ", and it runs" : ""));
}

control::ServerWelcome ServerDesk::WelcomeTo(uint32_t server) const {
  control::ServerWelcome welcome;
  wire::EncodeJobSpec(settings_, welcome.mutable_job_spec());
  welcome.set_workers(settings_.world_size);
  welcome.set_min_workers(settings_.min_workers);
  welcome.set_start_workers(settings_.start_workers);
  welcome.set_map_epoch(settings_.place.map_epoch);
  welcome.set_servers(settings_.place.servers);
  welcome.set_server(server);
  if (settings_.aggregation_rule != nullptr) welcome.set_plugin_aggregation(settings_.aggregation_rule->name);
  return welcome;
}

Status ServerDesk::Admit(Peer& peer, const control::ServerJoin& join, bool job_running) {
  const transport::PeerIdentity& identity = peer.connection->identity();
  if (Status may = Authorize(identity, Request::kServe); !may.ok()) return may;
  if (!first())
    return {StatusCode::kFailedPrecondition,
            "this is no first server: that is " + settings_.place.first_server};
  if (places_.size() < 2) {
    return {StatusCode::kFailedPrecondition,
            "this server is the only one of its job (--servers says how many there are)"};
  }
  if (join.job() != settings_.job) {
    return {StatusCode::kSettingsMismatch,
            "this server is of job \"" + settings_.job + "\", and that one of job \"" + join.job() + "\""};
  }
  const std::string address = AddressOf(peer, join.address());
  if (address.size() > wire::kMaxNameBytes)
    return {StatusCode::kInvalidArgument, "its address is longer than 256 bytes"};
  const auto number = PlaceFor(join, address, job_running);
  if (!number.ok()) return number.status();
  Place& place = places_[*number];
  if (place.peer != nullptr && join.start() < place.start) {
    return {StatusCode::kAlreadyExists, Describe(*number) + " is here, from a later start"};
  }
  const Place before =
      std::exchange(place, {.address = address, .start = join.start(), .logs = join.logs(), .peer = &peer});
  peer.phase = Peer::Phase::kServer;
  peer.connection->Admit(true);
  if (events_) events_->OnServer(Describe(*number), IdentityText(identity), Status());
  control::ControlMessage message;
  *message.mutable_server_welcome() = WelcomeTo(*number);
  host_->Send(peer, message);
  if (before.peer != nullptr) {
    before.peer->phase = Peer::Phase::kLeaving;
    host_->Disconnect(*before.peer, {StatusCode::kAborted, "a later start is here"});
  }
  if (before.address.empty() || before.address == address) return {};
  *message.mutable_shard_map() = Map();
  for (uint32_t rank = 0; rank < settings_.world_size; ++rank) {
    if (Peer* member = host_->PeerOfRank(rank)) host_->Send(*member, message);
  }
  return {};
}

void ServerDesk::Forget(Peer& peer, const Status& why) {
  std::erase_if(held_, [&peer](const Held& held) { return held.peer == &peer; });
  for (uint32_t server = 1; server < places_.size(); ++server) {
    if (places_[server].peer != &peer) continue;
    places_[server].peer = nullptr;
    const Status lost = why.ok() ? Status(StatusCode::kAborted, "closed its connection") : why;
    if (events_) events_->OnServer(Describe(server), IdentityText(peer.connection->identity()), lost);
  }
}

// --- All of them end ---

Status ServerDesk::MayEnd() const {
  for (uint32_t server = 1; server < places_.size(); ++server) {
    const Place& place = places_[server];
    const char* const why = place.peer == nullptr ? " is not here" : " has no round log (--round-log)";
    if (place.peer == nullptr || !place.logs)
      return {StatusCode::kFailedPrecondition, Describe(server) + why};
  }
  return {};
}

bool ServerDesk::AnyOther() const {
  return std::ranges::any_of(places_, [](const Place& place) { return place.peer != nullptr; });
}

void ServerDesk::TellOthers(const control::ControlMessage& message) {
  for (const Place& place : places_) {
    if (place.peer != nullptr) host_->Send(*place.peer, message);
  }
}

void ServerDesk::AddStats(ServerStats* stats) const {
  stats->servers = settings_.place.servers;
  stats->map_epoch = settings_.place.map_epoch;
  stats->server = settings_.place.server;
  stats->servers_lost = static_cast<uint64_t>(std::ranges::count_if(
      places_, [this](const Place& p) { return &p != &places_[0] && p.peer == nullptr; }));
}

}  // namespace longhaul::server
