#include "server/job/strangers.h"

#include <map>
#include <string>
#include <utility>

#include "base/reached.h"
#include "server/job/authorization.h"

namespace longhaul::server {
namespace {

// Key under which a connection that has not joined is limited.
std::string SourceOf(const transport::Connection& connection) {
  if (!connection.identity().name.empty()) return IdentityText(connection.identity());
  const Address address = connection.peer();
  const size_t network = address.IsV4() ? address.ip.size() : 8;
  return {address.ip.begin(), address.ip.begin() + static_cast<ptrdiff_t>(network)};
}

}  // namespace

Peer* Strangers::Displaced(const std::vector<std::unique_ptr<Peer>>& peers,
                           const transport::Connection& next) {
  struct Source {
    size_t count = 0;
    Peer* oldest = nullptr;
  };
  std::map<std::string, Source> sources;
  size_t all = 0;
  for (const auto& peer : peers) {
    if (peer->phase != Peer::Phase::kNew) continue;
    Source& source = sources[SourceOf(*peer->connection)];
    if (source.count++ == 0) source.oldest = peer.get();
    ++all;
  }
  if (sources.empty()) return nullptr;
  auto displaced = sources.find(SourceOf(next));
  if (displaced == sources.end() || displaced->second.count < MaxPerSource(world_size_)) {
    if (all < Max(world_size_)) return nullptr;
    const auto fewer = [](const auto& a, const auto& b) {
      return std::pair(a.second.count, b.second.oldest->since) <
             std::pair(b.second.count, a.second.oldest->since);
    };
    displaced = std::max_element(sources.begin(), sources.end(), fewer);
  }
  LH_REACHED("a stranger is displaced");
  ++displaced_;
  return displaced->second.oldest;
}

uint64_t Strangers::Count(const std::vector<std::unique_ptr<Peer>>& peers) {
  return static_cast<uint64_t>(
      std::ranges::count(peers, Peer::Phase::kNew, [](const auto& peer) { return peer->phase; }));
}

}  // namespace longhaul::server
