// One side of a connection as its owners, without the connection: what each does can be seen alone.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "tests/sim/reference_coder.h"
#include "tests/transport/fake_security.h"
#include "transport/core/connection/connection.h"
#include "transport/core/connection/packet_reader.h"
#include "transport/core/connection/packet_writer.h"

namespace longhaul::transport {

struct Owners {
  static wire::TransportParametersFrame Parameters() {
    wire::TransportParametersFrame p;
    p.max_datagram_bytes = 1452;
    p.idle_timeout_ms = 10'000;
    p.receive_window_bytes = 1 << 20;
    p.max_open_windows = 8;
    p.max_window_bytes = 1 << 30;
    return p;
  }

  explicit Owners(bool is_client, const FakeSecurity::Options& options = {})
      : security(options, is_client ? 1 : 2),
        path({.follows_peer = !is_client}, Address::V4(10, 0, 0, is_client ? 2 : 1, 4000), &security,
             Random(3)),
        handshaking({is_client, {is_client ? 11u : 22u}, {is_client ? 0u : 11u}, Parameters()}, &security,
                    &path, &stats) {
    flight.SetReceiveWindow(1 << 20);
  }

  using Next = Handshaking::Outcome::Next;
  // The long packets that are due arrive at `to`; what the last of them led to.
  Handshaking::Outcome SendLong(Instant now, Owners* to) {
    Handshaking::Outcome outcome;
    std::vector<uint8_t> out(2000);
    while (const size_t size = handshaking.BuildLong(now, out)) {
      const MutableByteSpan datagram(out.data(), size);
      ByteReader in(datagram);
      const std::optional<wire::LongHeader> header = wire::DecodeLongHeader(in);
      if (header->type == wire::LongType::kInit) cookie_sent = wire::DecodeCookie(in)->size() > 0;
      const size_t begin = in.position();
      const MutableByteSpan body = datagram.subspan(begin, size - begin - wire::kTagBytes);
      EXPECT_TRUE(to->security.long_protection().Open(header->packet_number, 0, datagram.first(begin), body,
                                                      datagram.last(wire::kTagBytes)));
      EXPECT_TRUE(to->handshaking.Accepts(*header));
      outcome = to->handshaking.HandleLong(now, *header, body, size, header->destination.value != 0);
      if (outcome.next == Next::kConnected) to->handshaking.OnConnected();
    }
    return outcome;
  }

  // The short packet that is due arrives at `to`; nullopt: none is.
  std::optional<OpenedPacket> SendShort(Instant now, Owners* to) {
    to->buffer.assign(2000, 0);
    const auto longest = static_cast<size_t>(path.datagram_bytes());
    const size_t size = writer.Build(now, MutableByteSpan(to->buffer).first(longest));
    if (size == 0) return std::nullopt;
    return to->Open(now, size);
  }
  std::optional<OpenedPacket> Open(Instant now, size_t size) {
    const MutableByteSpan datagram(buffer.data(), size);
    ByteReader in(datagram);
    OpenedPacket packet;
    verdict = reader.Read(now, path.peer(), *wire::DecodeShortHeader(in), datagram, true, &packet);
    return verdict == PacketReader::Verdict::kOpened ? std::optional(packet) : std::nullopt;
  }

  // The next event.
  std::optional<Event> Poll() {
    Result<std::optional<Event>> event = events.Poll(&windows, flight.smoothed_rtt());
    EXPECT_TRUE(event.ok());
    return event.ok() ? *std::move(event) : std::nullopt;
  }

  FakeSecurity security;
  codec::ReferenceCoder coder;
  ConnectionStats stats;
  FlightControl flight{Instant(), RateOptions(), Random(1)};
  Path path;
  Handshaking handshaking;
  std::vector<ConnectionImpl*> ready;
  EventQueue events{nullptr, &ready};
  Windows windows{&coder, {8, ByteCount(1 << 30)}, ByteCount(1 << 20), &events, &stats};
  ControlChannel control{{.backlog = 1 << 20}, &events};
  PacketReader reader{{&handshaking, &flight, &path, &windows, &control, &writer, &events, &stats}};
  PacketWriter writer{{&handshaking, &flight, &path, &windows, &control, &stats}, {}};
  std::vector<uint8_t> buffer;  // what Open reads, and opened packets borrow
  PacketReader::Verdict verdict = PacketReader::Verdict::kDropped;
  bool cookie_sent = false;
};

// Two sides whose handshake is complete.
struct OwnersPair {
  explicit OwnersPair(const FakeSecurity::Options& options = {})
      : client(true, options), server(false, options) {
    client.SendLong(now, &server);
    now += std::chrono::milliseconds(10);
    server.SendLong(now, &client);
    now += std::chrono::milliseconds(10);
    EXPECT_EQ(client.SendLong(now, &server).next, Owners::Next::kConnected);
  }

  Instant now = Instant() + std::chrono::seconds(1);
  Owners client, server;
};

// The frames of a packet, by name.
inline std::vector<std::string> FrameNames(ByteSpan frames) {
  std::vector<std::string> names;
  ByteReader reader(frames);
  while (reader.ok() && !reader.AtEnd()) {
    const Result<wire::Frame> frame = wire::DecodeFrame(reader);
    EXPECT_TRUE(frame.ok());
    if (!frame.ok()) break;
    names.emplace_back(wire::FrameName(*frame));
  }
  return names;
}

}  // namespace longhaul::transport
