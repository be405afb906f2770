#include "transport/core/endpoint.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "proto/version.h"
#include "transport/core/connection_impl.h"
#include "transport/core/null_security.h"

namespace longhaul::transport {
namespace {

// Stateless answers (REFUSE, the echo of a CLOSE) that wait to be sent; more are dropped and counted.
constexpr size_t kMaxStateless = 64;
constexpr size_t kMinInitBytes = 1200;
// Long header, CLOSE with the longest reason, tag. Only an INIT that begins something is refused, so a
// refusal is shorter than what asked for it.
constexpr size_t kMaxRefuseBytes = wire::kLongHeaderBytes + 4 + wire::kMaxCloseReasonBytes + wire::kTagBytes;
static_assert(kMaxRefuseBytes < kMinInitBytes);
// A stateless reset is up to this much longer than the shortest.
constexpr uint64_t kResetSpread = 24;
// Packet numbers of long packets stay below (proto/packet_header.h).
constexpr uint64_t kLongNumbers = uint64_t{1} << 30;

}  // namespace

struct Endpoint::State {
  State(EndpointOptions o, Random r)
      : options(std::move(o)), random(r), admission(options.admission, r.Fork(0).Next()) {}

  struct StatelessDatagram {
    Address to;
    std::vector<uint8_t> bytes;
  };

  EndpointOptions options;
  Random random;
  EndpointStats stats;
  Admission admission;
  std::unordered_set<wire::ConnectionId> half_open;  // server: connections whose handshake is not complete
  std::unordered_map<wire::ConnectionId, std::unique_ptr<ConnectionImpl>> connections;
  // Server: which connection an INIT belongs to, by the client's address and connection ID.
  std::map<std::pair<Address, uint64_t>, wire::ConnectionId> by_initiator;
  std::vector<wire::ConnectionId> over;   // closed, and not told to their owners yet; in order of closing
  std::vector<wire::ConnectionId> order;  // for round robin; same set as `connections`
  size_t next = 0;
  std::deque<StatelessDatagram> stateless;

  NullSecurity no_security;

  Security& security() { return options.security != nullptr ? *options.security : no_security; }

  ConnectionImpl* Find(wire::ConnectionId id) {
    const auto it = connections.find(id);
    return it == connections.end() ? nullptr : it->second.get();
  }

  ConnectionImpl* Add(Instant now, bool is_client, wire::ConnectionId remote, const Address& peer) {
    ConnectionImpl::Identity identity;
    identity.is_client = is_client;
    do {
      identity.local.value = random.Next();
    } while (identity.local.value == 0 || connections.contains(identity.local));
    identity.remote = remote;
    identity.peer = peer;
    ConnectionOptions connection = options.connection;
    if (!is_client) connection.handshake_timeout = options.admission.half_open_timeout;
    auto impl = std::make_unique<ConnectionImpl>(now, identity, connection, &security(), options.coder,
                                                 random.Fork(identity.local.value), &over);
    ConnectionImpl* raw = impl.get();
    connections.emplace(identity.local, std::move(impl));
    order.push_back(identity.local);
    if (!is_client) {
      by_initiator[{peer, remote.value}] = identity.local;
      half_open.insert(identity.local);
    }
    return raw;
  }

  std::unique_ptr<ConnectionImpl> Remove(wire::ConnectionId id) {
    const auto it = connections.find(id);
    LH_CHECK(it != connections.end());
    std::unique_ptr<ConnectionImpl> connection = std::move(it->second);
    connections.erase(it);
    std::erase(order, id);
    half_open.erase(id);
    if (!connection->is_client())
      by_initiator.erase({connection->first_peer(), connection->remote_id().value});
    return connection;
  }

  // Tells the owners of connections that are over, and forgets them.
  void Reap() {
    if (over.empty()) return;
    // Whoever is told may close others: these wait for the next time.
    for (const wire::ConnectionId id : std::exchange(over, {})) {
      std::unique_ptr<ConnectionImpl> connection = Remove(id);
      std::vector<uint8_t> last = connection->TakeFinalDatagram();
      if (!last.empty()) SendStateless(connection->peer(), std::move(last));
      if (connection->observer() != nullptr) {
        connection->observer()->OnClosed(*connection, *connection->closed_status());
      }
    }
  }

  void SendStateless(const Address& to, std::vector<uint8_t> bytes) {
    if (stateless.size() >= kMaxStateless) {
      ++stats.stateless_dropped;
      return;
    }
    stateless.push_back({to, std::move(bytes)});
  }

  // Shorter than what asked for it, so that nobody gains by making us answer someone else.
  void Refuse(Instant now, const Address& to, const wire::LongHeader& init, StatusCode code,
              std::string_view reason) {
    if (!admission.MayRefuse(now)) return void(++stats.refusals_limited);
    std::vector<uint8_t> bytes(kMaxRefuseBytes);
    PacketBuilder builder(bytes);
    builder.StartLong(wire::LongType::kRefuse, wire::kVersion, init.source, {}, 0);
    builder.Add(wire::CloseFrame{code, reason.substr(0, wire::kMaxCloseReasonBytes)});
    IntegrityTag tag;  // of every version, so that a stranger can be told what he is
    bytes.resize(builder.Seal(tag));
    ++stats.refusals_sent;
    SendStateless(to, std::move(bytes));
  }

  // The body of a long packet; nullopt, and counted, when it is malformed or not authentic.
  std::optional<ByteSpan> OpenLong(const wire::LongHeader& header, size_t header_bytes,
                                   MutableByteSpan datagram, PacketProtection& protection) {
    if (datagram.size() < header_bytes + wire::kTagBytes) {
      ++stats.malformed_dropped;
      return std::nullopt;
    }
    const MutableByteSpan body =
        datagram.subspan(header_bytes, datagram.size() - header_bytes - wire::kTagBytes);
    if (protection.Open(header.packet_number, 0, datagram.first(header_bytes), body,
                        datagram.last(wire::kTagBytes))) {
      return body;
    }
    ++stats.not_authentic_dropped;
    return std::nullopt;
  }

  void HandleLong(Instant now, const Address& from, MutableByteSpan datagram) {
    ByteReader reader(datagram);
    const std::optional<wire::LongHeader> header = wire::DecodeLongHeader(reader);
    if (!header) {
      ++stats.malformed_dropped;
    } else if (header->type == wire::LongType::kInit) {
      HandleInit(now, from, *header, reader, datagram);
    } else {
      HandleAnswer(now, from, *header, reader, datagram);
    }
  }

  // ACCEPT, REFUSE and RETRY.
  void HandleAnswer(Instant now, const Address& from, const wire::LongHeader& header, ByteReader reader,
                    MutableByteSpan datagram) {
    ConnectionImpl* c = Find(header.destination);
    // A REFUSE may carry the server's own version; anything else of another version means nothing.
    const bool understood = header.type == wire::LongType::kRefuse || header.version == wire::kVersion;
    if (c == nullptr || !c->is_client() || c->peer() != from || !understood) {
      ++stats.unknown_connection_dropped;
      return;
    }
    if (!c->TakesLong()) return void(++stats.late_long_dropped);
    if (header.type == wire::LongType::kRefuse) {
      IntegrityTag tag;
      const auto body = OpenLong(header, reader.position(), datagram, tag);
      if (body) c->HandleRefuse(now, header, *body);
      return;
    }
    std::optional<ByteSpan> cookie;
    if (header.type == wire::LongType::kRetry) {
      cookie = wire::DecodeCookie(reader);
      if (!cookie) {
        ++stats.malformed_dropped;
        return;
      }
    }
    const auto body = OpenLong(header, reader.position(), datagram, security().long_protection());
    if (!body) return;
    if (cookie) {
      c->HandleRetry(now, *cookie);
    } else {
      c->HandleLong(now, header, *body, datagram.size(), true);
    }
  }

  void HandleInit(Instant now, const Address& from, const wire::LongHeader& header, ByteReader reader,
                  MutableByteSpan datagram) {
    const bool begins = header.destination.value == 0;
    const bool secure = security().IsSecure();
    if (!options.accepts || (begins && datagram.size() < kMinInitBytes)) {
      ++stats.malformed_dropped;
      return;
    }
    if (header.version != wire::kVersion) {
      if (!begins) return void(++stats.unknown_connection_dropped);
      ++stats.version_refused;
      Refuse(now, from, header, StatusCode::kVersionMismatch, "another protocol version");
      return;
    }
    const std::optional<ByteSpan> cookie = wire::DecodeCookie(reader);
    if (!cookie) {
      ++stats.malformed_dropped;
      return;
    }
    ConnectionImpl* known = begins ? FindInitiator(from, header.source) : Find(header.destination);
    if (!begins && (known == nullptr || known->is_client() || known->peer() != from)) {
      ++stats.unknown_connection_dropped;
      return;
    }
    if (known != nullptr && !known->TakesLong()) return void(++stats.late_long_dropped);
    const bool stranger = secure && (known == nullptr || !known->Trusts(from));
    if (stranger && !admission.MayOpen(now, from)) return void(++stats.failures_limited);
    const auto body = OpenLong(header, reader.position(), datagram, security().long_protection());
    if (!body) {
      if (stranger) admission.OnDidNotOpen(now, from);
      return;
    }
    bool proved = !begins;
    if (known == nullptr) {
      proved = secure && !cookie->empty() && security().CheckCookie(now, from, header.source, *cookie);
      if (!cookie->empty() && !proved) ++stats.cookies_refused;
      if (secure && !Admit(now, from, header, proved)) return;
      known = Accept(now, from, header);
    }
    if (known == nullptr) return;
    known->HandleLong(now, header, *body, datagram.size(), proved);
    NoteProgress(*known);
  }

  void NoteProgress(const ConnectionImpl& connection) {
    if (connection.state() == Connection::State::kConnected) half_open.erase(connection.local_id());
  }

  // Whether a key exchange with this client may begin.
  bool Admit(Instant now, const Address& from, const wire::LongHeader& init, bool proved) {
    if (!proved && admission.NeedsCookie(now, half_open.size()) && Retry(now, from, init)) return false;
    if (!admission.MayBegin(now, from)) {
      ++stats.inits_limited;
    } else if (half_open.size() >= options.admission.max_half_open) {
      ++stats.half_open_refused;
    } else {
      return true;
    }
    return false;
  }

  // False: this security has no cookies.
  bool Retry(Instant now, const Address& to, const wire::LongHeader& init) {
    const std::optional<Cookie> cookie = security().MakeCookie(now, to, init.source);
    if (!cookie) return false;
    if (!admission.MayRetry(now)) {
      ++stats.retries_limited;
      return true;
    }
    std::vector<uint8_t> bytes(kMinInitBytes);
    PacketBuilder builder(bytes);
    // Nothing is remembered: source and number are random, so that no nonce comes twice.
    builder.StartLong(wire::LongType::kRetry, wire::kVersion, init.source, {random.Next()},
                      random.Below(kLongNumbers), *cookie);
    bytes.resize(builder.Seal(security().long_protection()));
    ++stats.retries_sent;
    SendStateless(to, std::move(bytes));
    return true;
  }

  // A short packet of a connection that is not (any more).
  void HandleUnknown(Instant now, const Address& from, wire::ConnectionId id, ByteSpan datagram) {
    ++stats.unknown_connection_dropped;
    if (!options.accepts) {
      for (auto& [local, connection] : connections) {
        if (connection->peer() == from && connection->HandleReset(datagram)) ++stats.resets_received;
      }
      return;
    }
    if (!security().IsSecure() || datagram.size() <= ConnectionImpl::kMinResetBytes) return;
    if (!admission.MayReset(now)) return void(++stats.resets_limited);
    // Shorter than what it answers, so that two of us do not talk for ever.
    const size_t longest =
        std::min<size_t>(datagram.size() - 1, ConnectionImpl::kMinResetBytes + kResetSpread);
    std::vector<uint8_t> bytes(ConnectionImpl::kMinResetBytes +
                               random.Below(longest - ConnectionImpl::kMinResetBytes + 1));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next());
    bytes[0] = 0;
    const auto token = security().ResetToken(id);
    std::copy(token.begin(), token.end(), bytes.end() - token.size());
    ++stats.resets_sent;
    SendStateless(from, std::move(bytes));
  }

  void HandleShort(Instant now, const Address& from, MutableByteSpan datagram, const ReceiveInfo& info) {
    ByteReader reader(datagram);
    const std::optional<wire::ShortHeader> header = wire::DecodeShortHeader(reader);
    if (!header) return void(++stats.malformed_dropped);
    ConnectionImpl* connection = Find(header->destination);
    if (connection == nullptr) return HandleUnknown(now, from, header->destination, datagram);
    const bool stranger = security().IsSecure() && !connection->Trusts(from);
    if (stranger && !admission.MayOpen(now, from)) return void(++stats.failures_limited);
    switch (connection->HandleShort(now, from, *header, datagram, info)) {
      case ConnectionImpl::ShortFate::kHandled:
        NoteProgress(*connection);
        break;
      case ConnectionImpl::ShortFate::kElsewhere:
        ++stats.unknown_connection_dropped;
        break;
      case ConnectionImpl::ShortFate::kDidNotOpen:
        if (stranger) admission.OnDidNotOpen(now, from);
        break;
    }
  }

  ConnectionImpl* FindInitiator(const Address& from, wire::ConnectionId source) {
    const auto known = by_initiator.find({from, source.value});
    return known == by_initiator.end() ? nullptr : Find(known->second);
  }

  // A connection for an INIT that is authentic as far as that can be told; null: refused.
  ConnectionImpl* Accept(Instant now, const Address& from, const wire::LongHeader& init) {
    if (connections.size() >= options.max_connections) {
      ++stats.capacity_refused;
      Refuse(now, from, init, StatusCode::kResourceExhausted,
             "no room: " + std::to_string(options.max_connections) + " connections");
      return nullptr;
    }
    ConnectionImpl* connection = Add(now, false, init.source, from);
    // Whoever must prove who he is has no observer before he has.
    if (security().IsSecure()) {
      connection->SetAcceptor([this](Connection& c) { return Introduce(c); });
      return connection;
    }
    ConnectionObserver* observer = Introduce(*connection);
    if (observer == nullptr) {
      Remove(connection->local_id());
      Refuse(now, from, init, StatusCode::kUnavailable, "the server takes no connections now");
      return nullptr;
    }
    connection->SetObserver(observer);
    return connection;
  }

  ConnectionObserver* Introduce(Connection& connection) {
    ConnectionObserver* observer = options.on_accept ? options.on_accept(connection) : nullptr;
    ++(observer != nullptr ? stats.accepted : stats.capacity_refused);
    return observer;
  }

  void Dispatch(Instant now, const Address& from, MutableByteSpan datagram, const ReceiveInfo& info) {
    wire::IsLongHeader(datagram) ? HandleLong(now, from, datagram) : HandleShort(now, from, datagram, info);
  }
};

Endpoint::Endpoint(EndpointOptions options, Random random)
    : state_(std::make_unique<State>(std::move(options), random)) {}

Endpoint::~Endpoint() = default;

Connection* Endpoint::Connect(Instant now, const Address& server, ConnectionObserver* observer) {
  ConnectionImpl* connection = state_->Add(now, true, {}, server);
  connection->SetObserver(observer);
  return connection;
}

void Endpoint::CloseAll(const Status& why) {
  for (const wire::ConnectionId id : state_->order) state_->connections.at(id)->Close(why);
}

size_t Endpoint::connection_count() const { return state_->connections.size(); }

EndpointStats Endpoint::stats() const {
  EndpointStats stats = state_->stats;
  stats.half_open = state_->half_open.size();
  return stats;
}

void Endpoint::HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                              const ReceiveInfo& info) {
  ++state_->stats.datagrams_received;
  state_->Dispatch(now, from, datagram, info);
  state_->Reap();
}

void Endpoint::HandleTimeout(Instant now) {
  // An observer may close connections or open new ones, so walk over a copy.
  const std::vector<wire::ConnectionId> order = state_->order;
  for (const wire::ConnectionId id : order) {
    ConnectionImpl* connection = state_->Find(id);
    if (connection != nullptr && connection->NextTimeout() <= now) connection->HandleTimeout(now);
  }
  state_->Reap();
}

void Endpoint::HandleSendRefused(Instant, const Address& destination, size_t datagram_bytes) {
  for (auto& [id, connection] : state_->connections) {
    if (connection->peer() == destination) connection->HandleSendRefused(datagram_bytes);
  }
}

std::optional<Transmit> Endpoint::PollTransmit(Instant now, MutableByteSpan buffer) {
  state_->Reap();
  if (!state_->stateless.empty() && state_->stateless.front().bytes.size() <= buffer.size()) {
    const State::StatelessDatagram& d = state_->stateless.front();
    std::memcpy(buffer.data(), d.bytes.data(), d.bytes.size());
    const Transmit transmit{d.to, d.bytes.size(), d.bytes.size()};
    state_->stateless.pop_front();
    return transmit;
  }
  const size_t count = state_->order.size();
  for (size_t i = 0; i < count; ++i) {
    const size_t turn = state_->next++ % count;
    std::optional<Transmit> transmit = state_->connections.at(state_->order[turn])->PollTransmit(now, buffer);
    if (transmit) return transmit;
  }
  return std::nullopt;
}

Instant Endpoint::NextTimeout() const {
  Instant next = Instant::Infinite();
  for (const auto& [id, connection] : state_->connections) next = std::min(next, connection->NextTimeout());
  return next;
}

}  // namespace longhaul::transport
