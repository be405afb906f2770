#include "transport/core/endpoint/connection_set.h"

#include "base/check.h"

namespace longhaul::transport {

ConnectionImpl* ConnectionSet::Add(Instant now, bool is_client, wire::ConnectionId remote,
                                   const Address& peer, const ConnectionOptions& options,
                                   const std::shared_ptr<Security>& security, codec::ErasureCoder* coder,
                                   Random* random) {
  ConnectionImpl::Identity identity;
  identity.is_client = is_client;
  uint64_t seeded = 0;
  do {
    seeded = random->Next();
    identity.local.value = security->Unpredictable(seeded);
  } while (identity.local.value == 0 || all_.contains(identity.local));
  identity.remote = remote;
  identity.peer = peer;
  auto made = std::make_unique<ConnectionImpl>(now, identity, options, security, coder, random->Fork(seeded),
                                               &ready_);
  ConnectionImpl* raw = made.get();
  all_.emplace(identity.local, std::move(made));
  order_.push_back(identity.local);
  if (!is_client) by_initiator_[{peer, remote.value}] = identity.local;
  return raw;
}

ConnectionImpl* ConnectionSet::Find(wire::ConnectionId id) const {
  const auto it = all_.find(id);
  return it == all_.end() ? nullptr : it->second.get();
}

ConnectionImpl* ConnectionSet::FindInitiator(const Address& from, wire::ConnectionId source) const {
  const auto known = by_initiator_.find({from, source.value});
  return known == by_initiator_.end() ? nullptr : Find(known->second);
}

std::unique_ptr<ConnectionImpl> ConnectionSet::Remove(wire::ConnectionId id) {
  const auto it = all_.find(id);
  LH_CHECK(it != all_.end());
  std::unique_ptr<ConnectionImpl> connection = std::move(it->second);
  all_.erase(it);
  std::erase(order_, id);
  if (!connection->is_client())
    by_initiator_.erase({connection->first_peer(), connection->remote_id().value});
  return connection;
}

}  // namespace longhaul::transport
