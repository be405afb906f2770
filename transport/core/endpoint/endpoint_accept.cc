// Endpoint and INITs: which must come again with a cookie, which are refused, which become a connection.

#include <algorithm>
#include <string>

#include "base/reached.h"
#include "proto/version.h"
#include "transport/core/endpoint/endpoint_impl.h"

namespace longhaul::transport {

void Endpoint::Impl::HandleInit(Instant now, const Address& from, const wire::LongHeader& header,
                                ByteReader reader, MutableByteSpan datagram) {
  const bool begins = header.destination.value == 0;
  const bool secure = keys.front()->IsSecure();
  if (!options.accepts || (begins && datagram.size() < kMinInitBytes)) {
    ++stats.malformed_dropped;
    return;
  }
  if (header.version != wire::kVersion) {
    if (!begins) return void(++stats.unknown_connection_dropped);
    ++stats.version_refused;
    answers.Refuse(now, from, header, StatusCode::kVersionMismatch, "another protocol version");
    HandshakeFailed(from, Status(StatusCode::kVersionMismatch,
                                 "its protocol version is " + std::to_string(header.version) + ", ours " +
                                     std::to_string(wire::kVersion)));
    return;
  }
  const std::optional<ByteSpan> cookie = wire::DecodeCookie(reader);
  if (!cookie) {
    ++stats.malformed_dropped;
    return;
  }
  ConnectionImpl* known = begins ? set.FindInitiator(from, header.source) : set.Find(header.destination);
  if (!begins && (known == nullptr || known->is_client() || known->peer() != from)) {
    ++stats.unknown_connection_dropped;
    return;
  }
  if (known != nullptr && !known->TakesLong()) return void(++stats.late_long_dropped);
  // What names a connection and comes from its address is opened, as its short packets are: a connection ID
  // that was seen on the path does not prove its sender's address, so what does not open
  // counts against no address.
  const bool stranger = secure && begins && (known == nullptr || !known->Trusts(from));
  // Connection IDs cannot be guessed: the sender of a packet that names ours and opens has received it here.
  const bool proved =
      !begins || (secure && !cookie->empty() && HasGoodCookie(now, from, header.source, *cookie));
  if (stranger && !admission.MayOpen(now, from, proved)) {
    LH_REACHED("a long packet is not opened for the failures before it");
    ++stats.failures_limited;
    // The source may be spoofed: a client that returns a cookie is served again.
    if (!proved) answers.Retry(now, from, header, nullptr);
    return;
  }
  const auto init = OpenInit(header, reader.position(), datagram);
  if (!init) {
    if (stranger) admission.OnDidNotOpen(now, from, proved);
    if (known == nullptr) {
      HandshakeFailed(from, Status(StatusCode::kPermissionDenied,
                                   "its INIT does not open: it has another key or none, or was damaged"));
      // A hint, which ends no join: the INIT may have been damaged, or repeated by another peer.
      if (cookie->empty())
        answers.Refuse(now, from, header, StatusCode::kPermissionDenied, "it does not open");
    }
    return;
  }
  if (known == nullptr) {
    if (!cookie->empty() && !proved) ++stats.cookies_refused;
    if (secure && !Admit(now, from, header, proved, init->key.get())) return;
    known = Accept(now, from, header, init->key);
  }
  if (known == nullptr) return;
  known->HandleLong(now, header, init->body, datagram.size(), proved);
  NoteProgress(*known);
}

bool Endpoint::Impl::HasGoodCookie(Instant now, const Address& from, wire::ConnectionId client,
                                   ByteSpan cookie) const {
  return std::ranges::any_of(keys,
                             [&](const auto& key) { return key->CheckCookie(now, from, client, cookie); });
}

std::optional<Endpoint::Impl::OpenedInit> Endpoint::Impl::OpenInit(const wire::LongHeader& header,
                                                                   size_t header_bytes,
                                                                   MutableByteSpan datagram) {
  // What does not open is spoilt: but for the last key a copy is tried.
  std::vector<uint8_t> given;
  if (keys.size() > 1) given.assign(datagram.begin(), datagram.end());
  const EndpointStats before = stats;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i > 0) {
      std::ranges::copy(given, datagram.begin());
      stats = before;  // one packet, however many keys
    }
    if (const auto body = OpenLong(header, header_bytes, datagram, keys[i]->long_protection()))
      return OpenedInit{*body, keys[i]};
  }
  return std::nullopt;
}

bool Endpoint::Impl::Admit(Instant now, const Address& from, const wire::LongHeader& init, bool proved,
                           Security* key) {
  if (!proved && admission.NeedsCookie(now, half_open.size()) && answers.Retry(now, from, init, key))
    return false;
  if (!admission.MayBegin(now, from)) {
    LH_REACHED("INITs beyond what their address may begin");
    ++stats.inits_limited;
  } else if (half_open.size() >= options.admission.max_half_open || HalfOpenOf(from) >= HalfOpenPerHost()) {
    ++stats.half_open_refused;
  } else {
    return true;
  }
  return false;
}

uint32_t Endpoint::Impl::HalfOpenPerHost() const { return std::max(1u, options.admission.max_half_open / 2); }

uint32_t Endpoint::Impl::HalfOpenOf(const Address& from) const {
  const uint64_t network = NetworkOf(from);
  return static_cast<uint32_t>(std::ranges::count_if(half_open, [&](wire::ConnectionId id) {
    const ConnectionImpl* connection = set.Find(id);
    return connection != nullptr && NetworkOf(connection->peer()) == network;
  }));
}

ConnectionImpl* Endpoint::Impl::Accept(Instant now, const Address& from, const wire::LongHeader& init,
                                       const std::shared_ptr<Security>& key) {
  if (set.size() >= options.max_connections) {
    LH_REACHED("an INIT beyond the number of connections");
    ++stats.capacity_refused;
    answers.Refuse(now, from, init, StatusCode::kResourceExhausted,
                   "no room: " + std::to_string(options.max_connections) + " connections");
    return nullptr;
  }
  ConnectionImpl* connection = Add(now, false, init.source, from, key);
  // With security the owner hears of it when the peer is authenticated.
  if (!key->IsSecure()) connection->Introduce();
  return connection;
}

}  // namespace longhaul::transport
