#include "transport/core/endpoint/endpoint.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "transport/core/endpoint/endpoint_impl.h"

namespace longhaul::transport {

namespace {

// Not ours to delete.
std::shared_ptr<Security> Borrowed(Security* security) { return {std::shared_ptr<Security>(), security}; }

}  // namespace

Endpoint::Impl::Impl(EndpointOptions o, Random r)
    : options(std::move(o)),
      random(r),
      keys{Borrowed(options.security != nullptr ? options.security : &no_security)},
      admission(options.admission, keys.front()->Unpredictable(r.Fork(0).Next())),
      answers(&keys, &admission, &random, &stats) {}

ConnectionImpl* Endpoint::Impl::Add(Instant now, bool is_client, wire::ConnectionId remote,
                                    const Address& peer, const std::shared_ptr<Security>& key) {
  ConnectionOptions connection = options.connection;
  if (!is_client) connection.handshake_timeout = options.admission.half_open_timeout;
  ConnectionImpl* added = set.Add(now, is_client, remote, peer, connection, key, options.coder, &random);
  if (!is_client) half_open.insert(added->local_id());
  return added;
}

std::unique_ptr<ConnectionImpl> Endpoint::Impl::Remove(wire::ConnectionId id) {
  half_open.erase(id);
  return set.Remove(id);
}

void Endpoint::Impl::BeginEvent() {
  for (size_t i = next_ready; i < set.ready().size(); ++i) {
    LH_CHECK(set.ready()[i]->state() == Connection::State::kClosed);
  }
  gone.clear();
}

std::optional<EndpointEvent> Endpoint::Impl::PollConnections() {
  std::vector<ConnectionImpl*>& ready = set.ready();
  while (next_ready < ready.size()) {
    ConnectionImpl& connection = *ready[next_ready];
    std::optional<Event> happened = connection.PollEvent();
    if (!happened) {
      ++next_ready;
      continue;
    }
    if (std::holds_alternative<event::Accepted>(*happened)) ++stats.accepted;
    if (std::holds_alternative<event::Closed>(*happened)) {
      ++next_ready;
      Forget(connection);
      if (!connection.known_to_owner()) continue;
    }
    return EndpointEvent{&connection, *std::move(happened)};
  }
  ready.clear();
  next_ready = 0;
  return std::nullopt;
}

void Endpoint::Impl::Forget(ConnectionImpl& connection) {
  std::vector<uint8_t> last = connection.TakeFinalDatagram();
  if (!last.empty()) answers.Send(connection.peer(), std::move(last));
  NoteProgress(connection);
  gone.push_back(Remove(connection.local_id()));
}

void Endpoint::Impl::HandshakeFailed(const Address& peer, const Status& why) {
  ++stats.handshakes_failed;
  if (failures.size() < kMaxFailures) failures.push_back({peer, why});
}

void Endpoint::Impl::NoteProgress(ConnectionImpl& connection) {
  if (const auto why = connection.TakeHandshakeFailure()) HandshakeFailed(connection.peer(), *why);
  if (connection.state() == Connection::State::kConnected) half_open.erase(connection.local_id());
}

Endpoint::Endpoint(EndpointOptions options, Random random)
    : impl_(std::make_unique<Impl>(std::move(options), random)) {}

Endpoint::~Endpoint() = default;

Connection* Endpoint::Connect(Instant now, const Address& server) {
  return impl_->Add(now, true, {}, server, impl_->keys.front());
}

void Endpoint::SetKeys(std::vector<std::shared_ptr<Security>> keys) {
  LH_CHECK(!keys.empty() && keys.front()->IsSecure() && impl_->keys.front()->IsSecure());
  impl_->keys = std::move(keys);
}

std::optional<EndpointEvent> Endpoint::PollEvent() {
  if (auto happened = impl_->PollConnections()) return happened;
  if (impl_->failures.empty()) return std::nullopt;
  EndpointEvent failed{nullptr, std::move(impl_->failures.front())};
  impl_->failures.pop_front();
  return failed;
}

void Endpoint::CloseAll(const Status& why) {
  for (const wire::ConnectionId id : impl_->set.ids()) impl_->set.Find(id)->Close(why);
}

size_t Endpoint::connection_count() const { return impl_->set.size(); }

EndpointStats Endpoint::stats() const {
  EndpointStats stats = impl_->stats;
  stats.half_open = impl_->half_open.size();
  return stats;
}

void Endpoint::HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                              const ReceiveInfo& info) {
  impl_->BeginEvent();
  ++impl_->stats.datagrams_received;
  impl_->Handle(now, from, datagram, info);
}

void Endpoint::HandleTimeout(Instant now) {
  impl_->BeginEvent();
  for (ConnectionImpl* connection : impl_->set.Due(now)) connection->HandleTimeout(now);
}

void Endpoint::HandleSendRefused(Instant, const Address& destination, size_t datagram_bytes) {
  impl_->BeginEvent();
  impl_->set.ForEach([&](ConnectionImpl& connection) {
    if (connection.peer() == destination) connection.HandleSendRefused(datagram_bytes);
  });
}

std::optional<Transmit> Endpoint::PollTransmit(Instant now, MutableByteSpan buffer) {
  std::optional<Transmit> answer = impl_->answers.Poll(buffer);
  return answer ? answer : impl_->set.PollTransmit(now, buffer);
}

Instant Endpoint::NextTimeout() const { return impl_->set.NextTimeout(); }

}  // namespace longhaul::transport
