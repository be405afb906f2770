// What an endpoint consists of. Private to endpoint*.cc: endpoint.cc is the endpoint as its owner sees it,
// endpoint_receive.cc finds a datagram's connection, endpoint_accept.cc lets new connections in.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

#include "transport/core/endpoint/admission.h"
#include "transport/core/endpoint/connection_set.h"
#include "transport/core/endpoint/endpoint.h"
#include "transport/core/endpoint/stateless_answers.h"
#include "transport/core/security/integrity_tag.h"

namespace longhaul::transport {

struct Endpoint::Impl {
  Impl(EndpointOptions o, Random r);

  // --- The set (endpoint.cc) ---
  ConnectionImpl* Add(Instant now, bool is_client, wire::ConnectionId remote, const Address& peer,
                      const std::shared_ptr<Security>& key);
  // REQUIRES: there is one.
  std::unique_ptr<ConnectionImpl> Remove(wire::ConnectionId id);
  // What was polled is not looked at any more. REQUIRES: everything was polled.
  void BeginEvent();
  std::optional<EndpointEvent> PollConnections();
  // The connection is over: its last datagram leaves without it.
  void Forget(ConnectionImpl& connection);
  // A handshake is over when its connection is connected, or has failed.
  void NoteProgress(ConnectionImpl& connection);
  void HandshakeFailed(const Address& peer, const Status& why);

  // --- Receiving (endpoint_receive.cc) ---
  void Handle(Instant now, const Address& from, MutableByteSpan datagram, const ReceiveInfo& info);
  void HandleLong(Instant now, const Address& from, MutableByteSpan datagram);
  // ACCEPT, REFUSE and RETRY. `reader` stands behind the header, here and below.
  void HandleAnswer(Instant now, const Address& from, const wire::LongHeader& header, ByteReader reader,
                    MutableByteSpan datagram);
  void HandleShort(Instant now, const Address& from, MutableByteSpan datagram, const ReceiveInfo& info);
  // A short packet of a connection that is not (any more).
  void HandleUnknown(Instant now, const Address& from, wire::ConnectionId id, ByteSpan datagram);
  // The body of a long packet; nullopt, and counted, when it is malformed or not authentic.
  std::optional<ByteSpan> OpenLong(const wire::LongHeader& header, size_t header_bytes,
                                   MutableByteSpan datagram, PacketProtection& protection);

  // --- Accepting (endpoint_accept.cc) ---
  void HandleInit(Instant now, const Address& from, const wire::LongHeader& header, ByteReader reader,
                  MutableByteSpan datagram);
  // Whether a key exchange with this client may begin; else counted, and answered if that helps.
  bool Admit(Instant now, const Address& from, const wire::LongHeader& init, bool proved, Security* key);
  bool HasGoodCookie(Instant now, const Address& from, wire::ConnectionId client, ByteSpan cookie) const;
  // Handshakes under way with this host (NetworkOf), and how many there may be: one cannot have all places.
  uint32_t HalfOpenOf(const Address& from) const;
  uint32_t HalfOpenPerHost() const;
  // The body of an INIT, and which of our keys it is under.
  struct OpenedInit {
    ByteSpan body;
    std::shared_ptr<Security> key;
  };
  std::optional<OpenedInit> OpenInit(const wire::LongHeader& header, size_t header_bytes,
                                     MutableByteSpan datagram);
  // A connection for an INIT that is authentic as far as that can be told; null: refused.
  ConnectionImpl* Accept(Instant now, const Address& from, const wire::LongHeader& init,
                         const std::shared_ptr<Security>& key);

  EndpointOptions options;
  Random random;
  EndpointStats stats;
  NullSecurity no_security;
  std::vector<std::shared_ptr<Security>> keys;  // at least one
  Admission admission;
  StatelessAnswers answers;
  ConnectionSet set;
  size_t next_ready = 0;                              // in set.ready()
  std::vector<std::unique_ptr<ConnectionImpl>> gone;  // their Closed was polled
  std::deque<event::HandshakeFailed> failures;
  std::unordered_set<wire::ConnectionId> half_open;  // server: connections whose handshake is not complete
};

}  // namespace longhaul::transport
