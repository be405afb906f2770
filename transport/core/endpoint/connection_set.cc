#include "transport/core/endpoint/connection_set.h"

#include <utility>

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
                                               &attention_);
  ConnectionImpl* raw = made.get();
  Turn& turn = raw->turn();
  turn.number = added_++;
  timeouts_.emplace(Timeout(turn.timeout, turn.number), raw);
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
  std::erase(attention_.sending, connection.get());
  std::erase(attention_.moved, connection.get());
  Turn& turn = connection->turn();
  timeouts_.erase({turn.timeout, turn.number});
  turn.in_sending = turn.in_moved = true;  // its owner may still ask for something
  if (!connection->is_client())
    by_initiator_.erase({connection->first_peer(), connection->remote_id().value});
  return connection;
}

void ConnectionSet::TakeMoved() {
  for (ConnectionImpl* connection : attention_.moved) {
    Turn& turn = connection->turn();
    turn.in_moved = false;
    const Instant timeout = connection->NextTimeout();
    if (timeout == turn.timeout) continue;
    auto entry = timeouts_.extract({std::exchange(turn.timeout, timeout), turn.number});
    entry.key().first = timeout;
    timeouts_.insert(std::move(entry));
  }
  attention_.moved.clear();
}

std::optional<Transmit> ConnectionSet::PollTransmit(Instant now, MutableByteSpan buffer) {
  TakeMoved();
  // What waits for the pacer may leave when its time has come, whether or not HandleTimeout was called.
  for (const auto& [timeout, connection] : timeouts_) {
    if (timeout.first > now) break;
    if (connection->turn().polled < timeout.first) connection->Stirred();
  }
  while (!attention_.sending.empty()) {
    ConnectionImpl& connection = *attention_.sending.front();
    attention_.sending.pop_front();
    connection.turn().in_sending = false;
    std::optional<Transmit> transmit = connection.PollTransmit(now, buffer);
    if (!transmit) continue;
    connection.Stirred();
    return transmit;
  }
  return std::nullopt;
}

Instant ConnectionSet::NextTimeout() {
  TakeMoved();
  return timeouts_.empty() ? Instant::Infinite() : timeouts_.begin()->first.first;
}

std::vector<ConnectionImpl*> ConnectionSet::Due(Instant now) {
  TakeMoved();
  std::vector<ConnectionImpl*> due;
  for (const auto& [timeout, connection] : timeouts_) {
    if (timeout.first > now) break;
    due.push_back(connection);
  }
  return due;
}

}  // namespace longhaul::transport
