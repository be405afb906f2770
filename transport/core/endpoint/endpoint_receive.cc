// Endpoint and what it receives: to which connection it belongs, and what need not be opened.

#include "base/reached.h"
#include "proto/version.h"
#include "transport/core/endpoint/endpoint_impl.h"

namespace longhaul::transport {

void Endpoint::Impl::Handle(Instant now, const Address& from, MutableByteSpan datagram,
                            const ReceiveInfo& info) {
  wire::IsLongHeader(datagram) ? HandleLong(now, from, datagram) : HandleShort(now, from, datagram, info);
}

void Endpoint::Impl::HandleLong(Instant now, const Address& from, MutableByteSpan datagram) {
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

void Endpoint::Impl::HandleAnswer(Instant now, const Address& from, const wire::LongHeader& header,
                                  ByteReader reader, MutableByteSpan datagram) {
  ConnectionImpl* c = set.Find(header.destination);
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
  const auto body = OpenLong(header, reader.position(), datagram, keys.front()->long_protection());
  if (!body) return;
  if (cookie) {
    c->HandleRetry(now, *cookie);
  } else {
    c->HandleLong(now, header, *body, datagram.size(), true);
  }
}

std::optional<ByteSpan> Endpoint::Impl::OpenLong(const wire::LongHeader& header, size_t header_bytes,
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
  LH_REACHED("a long packet does not open");
  ++stats.not_authentic_dropped;
  return std::nullopt;
}

void Endpoint::Impl::HandleUnknown(Instant now, const Address& from, wire::ConnectionId id,
                                   ByteSpan datagram) {
  ++stats.unknown_connection_dropped;
  if (options.accepts) return answers.Reset(now, from, id, datagram.size());
  set.ForEach([&](ConnectionImpl& connection) {
    if (connection.peer() == from && connection.HandleReset(datagram)) ++stats.resets_received;
  });
}

void Endpoint::Impl::HandleShort(Instant now, const Address& from, MutableByteSpan datagram,
                                 const ReceiveInfo& info) {
  ByteReader reader(datagram);
  const std::optional<wire::ShortHeader> header = wire::DecodeShortHeader(reader);
  if (!header) return void(++stats.malformed_dropped);
  ConnectionImpl* connection = set.Find(header->destination);
  if (connection == nullptr) return HandleUnknown(now, from, header->destination, datagram);
  switch (connection->HandleShort(now, from, *header, datagram, info)) {
    case ConnectionImpl::ShortFate::kHandled:
      NoteProgress(*connection);
      break;
    case ConnectionImpl::ShortFate::kElsewhere:
      ++stats.unknown_connection_dropped;
      break;
    case ConnectionImpl::ShortFate::kLimited:
      ++stats.failures_limited;
      break;
  }
}

}  // namespace longhaul::transport
