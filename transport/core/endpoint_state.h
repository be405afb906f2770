// What an endpoint consists of. Private to endpoint*.cc: endpoint.cc is the endpoint as its owner sees it,
// endpoint_receive.cc finds whom a datagram is for, endpoint_accept.cc lets new connections in.
#pragma once

#include <memory>
#include <optional>
#include <unordered_set>

#include "transport/core/admission.h"
#include "transport/core/connection_set.h"
#include "transport/core/endpoint.h"
#include "transport/core/null_security.h"
#include "transport/core/stateless_answers.h"

namespace longhaul::transport {

struct Endpoint::State {
  State(EndpointOptions o, Random r);

  // --- The set (endpoint.cc) ---
  ConnectionImpl* Add(Instant now, bool is_client, wire::ConnectionId remote, const Address& peer);
  // REQUIRES: there is one.
  std::unique_ptr<ConnectionImpl> Remove(wire::ConnectionId id);
  // Tells the owners of connections that are over, and forgets them.
  void Reap();
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
  bool Admit(Instant now, const Address& from, const wire::LongHeader& init, bool proved);
  // Handshakes under way with this host (NetworkOf), and how many there may be: one cannot have all places.
  uint32_t HalfOpenOf(const Address& from) const;
  uint32_t HalfOpenPerHost() const;
  // A connection for an INIT that is authentic as far as that can be told; null: refused.
  ConnectionImpl* Accept(Instant now, const Address& from, const wire::LongHeader& init);
  // Asks the owner; null: refused.
  ConnectionObserver* Introduce(Connection& connection);

  EndpointOptions options;
  Random random;
  EndpointStats stats;
  NullSecurity no_security;
  Security& security;
  Admission admission;
  StatelessAnswers answers;
  ConnectionSet set;
  std::unordered_set<wire::ConnectionId> half_open;  // server: connections whose handshake is not complete
};

}  // namespace longhaul::transport
