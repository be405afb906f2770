#include "server/job/guest_desk.h"

#include "server/job/authorization.h"

namespace longhaul::server {

Result<control::ControlMessage> GuestDesk::Admit(Peer& peer, const control::BenchJoin& join,
                                                 bool job_running) {
  const transport::PeerIdentity& identity = peer.connection->identity();
  if (Status may = Authorize(identity, Request::kBench); !may.ok()) return may;
  if (guests_ == nullptr) {
    return Status(StatusCode::kUnavailable, "this server takes no load generators (--max-load-generators 0)");
  }
  auto welcome = guests_->Admit(peer, join, job_running);
  if (!welcome.ok()) return welcome;
  peer.phase = Peer::Phase::kGuest;
  peer.connection->Admit(true);
  if (events_) events_->OnBench(peer.connection->peer(), IdentityText(identity), join.site(), nullptr);
  return welcome;
}

void GuestDesk::Remove(Peer& peer) {
  if (peer.phase != Peer::Phase::kGuest) return;
  const GuestTotals totals = guests_->Remove(peer);
  peer.phase = Peer::Phase::kLeaving;
  if (!events_) return;
  events_->OnBench(peer.connection->peer(), IdentityText(peer.connection->identity()), totals.site, &totals);
}

std::vector<Peer*> GuestDesk::TakeThoseInTheWay(const std::vector<std::unique_ptr<Peer>>& peers) {
  std::vector<Peer*> taken;
  if (guests_ == nullptr || guests_->during_job()) return taken;
  for (const auto& peer : peers) {
    if (peer->phase != Peer::Phase::kGuest) continue;
    Remove(*peer);
    taken.push_back(peer.get());
  }
  return taken;
}

void GuestDesk::AddStats(ServerStats* stats) const {
  if (guests_ == nullptr) return;
  const GuestStats guests = guests_->stats();
  stats->bench_connections = guests.connections;
  stats->bench_served = guests.served;
  stats->bench_bytes = guests.bytes;
}

}  // namespace longhaul::server
