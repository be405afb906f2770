#include "transport/core/endpoint.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "transport/core/endpoint_state.h"

namespace longhaul::transport {

Endpoint::State::State(EndpointOptions o, Random r)
    : options(std::move(o)),
      random(r),
      security(options.security != nullptr ? *options.security : no_security),
      admission(options.admission, security.Unpredictable(r.Fork(0).Next())),
      answers(&security, &admission, &random, &stats) {}

ConnectionImpl* Endpoint::State::Add(Instant now, bool is_client, wire::ConnectionId remote,
                                     const Address& peer) {
  ConnectionOptions connection = options.connection;
  if (!is_client) connection.handshake_timeout = options.admission.half_open_timeout;
  ConnectionImpl* added =
      set.Add(now, is_client, remote, peer, connection, &security, options.coder, &random);
  if (!is_client) half_open.insert(added->local_id());
  return added;
}

std::unique_ptr<ConnectionImpl> Endpoint::State::Remove(wire::ConnectionId id) {
  half_open.erase(id);
  return set.Remove(id);
}

void Endpoint::State::Reap() {
  // Whoever is told may close others: these wait for the next time.
  for (const wire::ConnectionId id : set.TakeOver()) {
    std::unique_ptr<ConnectionImpl> connection = Remove(id);
    std::vector<uint8_t> last = connection->TakeFinalDatagram();
    if (!last.empty()) answers.Send(connection->peer(), std::move(last));
    if (const auto why = connection->TakeHandshakeFailure()) HandshakeFailed(connection->peer(), *why);
    if (connection->observer() != nullptr) {
      connection->observer()->OnClosed(*connection, *connection->closed_status());
    }
  }
}

void Endpoint::State::HandshakeFailed(const Address& peer, const Status& why) {
  ++stats.handshakes_failed;
  if (options.on_handshake_failed) options.on_handshake_failed(peer, why);
}

void Endpoint::State::NoteProgress(ConnectionImpl& connection) {
  if (const auto why = connection.TakeHandshakeFailure()) HandshakeFailed(connection.peer(), *why);
  if (connection.state() == Connection::State::kConnected) half_open.erase(connection.local_id());
}

Endpoint::Endpoint(EndpointOptions options, Random random)
    : state_(std::make_unique<State>(std::move(options), random)) {}

Endpoint::~Endpoint() = default;

Connection* Endpoint::Connect(Instant now, const Address& server, ConnectionObserver* observer) {
  ConnectionImpl* connection = state_->Add(now, true, {}, server);
  connection->SetObserver(observer);
  return connection;
}

void Endpoint::CloseAll(const Status& why) {
  for (const wire::ConnectionId id : state_->set.ids()) state_->set.Find(id)->Close(why);
}

size_t Endpoint::connection_count() const { return state_->set.size(); }

EndpointStats Endpoint::stats() const {
  EndpointStats stats = state_->stats;
  stats.half_open = state_->half_open.size();
  return stats;
}

void Endpoint::HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                              const ReceiveInfo& info) {
  ++state_->stats.datagrams_received;
  state_->Handle(now, from, datagram, info);
  state_->Reap();
}

void Endpoint::HandleTimeout(Instant now) {
  // An observer may close connections or open new ones, so walk over a copy.
  const std::vector<wire::ConnectionId> ids = state_->set.ids();
  for (const wire::ConnectionId id : ids) {
    ConnectionImpl* connection = state_->set.Find(id);
    if (connection != nullptr && connection->NextTimeout() <= now) connection->HandleTimeout(now);
  }
  state_->Reap();
}

void Endpoint::HandleSendRefused(Instant, const Address& destination, size_t datagram_bytes) {
  state_->set.ForEach([&](ConnectionImpl& connection) {
    if (connection.peer() == destination) connection.HandleSendRefused(datagram_bytes);
  });
}

std::optional<Transmit> Endpoint::PollTransmit(Instant now, MutableByteSpan buffer) {
  state_->Reap();
  std::optional<Transmit> transmit = state_->answers.Poll(buffer);
  const size_t count = state_->set.size();
  for (size_t i = 0; i < count && !transmit; ++i) transmit = state_->set.Next().PollTransmit(now, buffer);
  return transmit;
}

Instant Endpoint::NextTimeout() const {
  Instant next = Instant::Infinite();
  state_->set.ForEach(
      [&](const ConnectionImpl& connection) { next = std::min(next, connection.NextTimeout()); });
  return next;
}

}  // namespace longhaul::transport
