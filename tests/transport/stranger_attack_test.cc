// What outsiders can do to endpoints that have keys: nothing but be counted.
#include <gtest/gtest.h>

#include <set>

#include "proto/version.h"
#include "tests/transport/bare_pair.h"
#include "tests/transport/fake_security.h"
#include "transport/core/connection/packet_builder.h"
#include "transport/core/security/integrity_tag.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;

using Bytes = std::vector<uint8_t>;

FakeSecurity::Options Certificates() {
  FakeSecurity::Options options;
  options.psk = false;  // any host can make an INIT that opens
  return options;
}

Bytes Init(PacketProtection& protection, uint64_t source, wire::PacketNumber number = 0,
           ByteSpan cookie = {}) {
  Bytes bytes(1200);
  PacketBuilder builder(bytes);
  builder.StartLong(wire::LongType::kInit, wire::kVersion, {}, {source}, number, cookie);
  EXPECT_TRUE(builder.Add(wire::TransportParametersFrame{1452, 10'000, 1 << 20, 16, 1 << 30}));
  const Bytes hello(300, 7);
  EXPECT_TRUE(builder.Add(wire::CryptoFrame{0, 0, hello}));
  builder.PadTo(bytes.size());
  bytes.resize(builder.Seal(protection));
  return bytes;
}

Bytes Refuse(uint64_t destination, StatusCode code = StatusCode::kResourceExhausted) {
  Bytes bytes(1200);
  PacketBuilder builder(bytes);
  builder.StartLong(wire::LongType::kRefuse, wire::kVersion, {destination}, {}, 0);
  EXPECT_TRUE(builder.Add(wire::CloseFrame{code, "no room"}));
  IntegrityTag tag;
  bytes.resize(builder.Seal(tag));
  return bytes;
}

// A REFUSE of an INIT that does not open; an INIT has 1200 at least.
constexpr uint64_t kRefusalBytes = 64;

// A server alone, and everything that it sends.
class LoneServer {
 public:
  explicit LoneServer(Security* security, const AdmissionOptions& admission = {}) {
    EndpointOptions options;
    options.security = security;
    options.accepts = true;
    options.admission = admission;
    endpoint = std::make_unique<PumpedEndpoint>(options, Random(3), [this](Connection&) {
      ++accepted;
      return &observer;
    });
  }
  void Receive(const Address& from, Bytes datagram) {
    received[from] += datagram.size();
    endpoint->HandleDatagram(now, from, datagram, {});
    Poll();
  }
  void Poll() {
    while (const auto t = endpoint->PollTransmit(now, buffer)) {
      sent[t->destination] += t->size;
      latest.assign(buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(t->size));
    }
  }
  void Run(Duration time) {
    for (const Instant end = now + time; endpoint->NextTimeout() <= end;) {
      now = std::max(now, endpoint->NextTimeout());
      endpoint->HandleTimeout(now);
      Poll();
    }
    now += time;
  }

  Instant now = Instant::FromNanoseconds(1'000'000'000);
  BarePair::Application observer;
  int accepted = 0;
  std::unique_ptr<PumpedEndpoint> endpoint;
  std::map<Address, uint64_t> received, sent;
  Bytes latest;
  Bytes buffer = Bytes(65'535);
};

Address Spoofed(uint32_t i) {
  return Address::V4(11, static_cast<uint8_t>(i >> 16), static_cast<uint8_t>(i >> 8), static_cast<uint8_t>(i),
                     9);
}

TEST(StrangerAttack, SpoofedInitsGetThreeTimesTheirBytesAtMostAndLeaveNoState) {
  FakeSecurity security(Certificates());
  LoneServer server(&security);
  for (uint32_t i = 0; i < 20'000; ++i) {
    server.Receive(Spoofed(i), Init(security.long_protection(), 1000 + i));
    server.now += 50us;
    ASSERT_LE(server.endpoint->stats().half_open, 64u);
    ASSERT_LE(server.endpoint->connection_count(), 64u);
  }
  server.Run(20s);
  for (const auto& [address, bytes] : server.sent)
    ASSERT_LE(bytes, 3 * server.received[address]) << address.ToString();
  const EndpointStats stats = server.endpoint->stats();
  EXPECT_EQ(server.accepted, 0) << "the application never hears of them";
  EXPECT_EQ(server.endpoint->connection_count(), 0u);
  EXPECT_EQ(stats.half_open, 0u);
  EXPECT_LE(security.sessions, 100u) << "key exchanges that they could cause";
  EXPECT_GE(stats.retries_sent, 19'000u);
}

TEST(StrangerAttack, WithCookiesAlwaysASpoofedInitCostsNoSessionAtAll) {
  FakeSecurity security(Certificates());
  AdmissionOptions admission;
  admission.always_cookie = true;
  LoneServer server(&security, admission);
  for (uint32_t i = 0; i < 2000; ++i) {
    server.Receive(Spoofed(i), Init(security.long_protection(), 1000 + i));
    ASSERT_LT(server.sent[Spoofed(i)], 1200u) << "a RETRY is shorter than the INIT";
  }
  EXPECT_EQ(security.sessions, 0u);
  EXPECT_EQ(server.endpoint->connection_count(), 0u);
  // The cookie of one address is worth nothing at another, nor with another connection, nor after a minute.
  ByteReader reader(server.latest);
  ASSERT_EQ(wire::DecodeLongHeader(reader)->type, wire::LongType::kRetry);
  const ByteSpan span = *wire::DecodeCookie(reader);
  const Bytes cookie(span.begin(), span.end());
  server.Receive(Spoofed(5), Init(security.long_protection(), 2999, 1, cookie));
  server.Receive(Spoofed(1999), Init(security.long_protection(), 2998, 1, cookie));
  EXPECT_EQ(server.endpoint->stats().cookies_refused, 2u);
  EXPECT_EQ(security.sessions, 0u);
  server.Receive(Spoofed(1999), Init(security.long_protection(), 2999, 1, cookie));
  EXPECT_EQ(security.sessions, 1u) << "the owner of the address";
  server.Run(61s);
  server.Receive(Spoofed(1999), Init(security.long_protection(), 2999, 2, cookie));
  EXPECT_EQ(server.endpoint->stats().cookies_refused, 3u);
}

TEST(StrangerAttack, WithoutTheClustersKeyAnInitIsOnlyRefused) {
  FakeSecurity security({});
  FakeSecurity::Options other;
  other.key = 2;
  FakeSecurity stranger(other);
  LoneServer server(&security);
  for (uint32_t i = 0; i < 100; ++i) server.Receive(Spoofed(i), Init(stranger.long_protection(), 1000 + i));
  for (uint32_t i = 0; i < 100; ++i) EXPECT_LE(server.sent[Spoofed(i)], kRefusalBytes);
  EXPECT_EQ(server.endpoint->stats().refusals_sent, 100u);
  EXPECT_EQ(security.sessions, 0u);
  EXPECT_EQ(server.endpoint->connection_count(), 0u);
  EXPECT_EQ(server.endpoint->stats().not_authentic_dropped, 100u);
}

struct Pair {
  explicit Pair(const FakeSecurity::Options& w = {}, const FakeSecurity::Options& s = {})
      : worker(w, 1), server(s, 2) {
    options.worker_security = &worker;
    options.server_security = &server;
  }
  FakeSecurity worker, server;
  BarePair::Options options;
};

Bytes Garbage(uint64_t source = 5, ByteSpan cookie = {}) {
  IntegrityTag tag;
  return Init(tag, source, 0, cookie);
}

// Afterwards it is only asked for the proof of its address, which costs less than opening, and keeps nothing.
TEST(StrangerAttack, GarbageFromOneAddressIsSoonNotEvenOpened) {
  FakeSecurity security({});
  LoneServer server(&security);
  for (uint32_t i = 0; i < 10'000; ++i) {
    const uint64_t sent = server.sent[Spoofed(1)];
    server.Receive(Spoofed(1), Garbage());
    ASSERT_LE(server.sent[Spoofed(1)] - sent, kCookieBytes + 100) << "shorter than the INIT";
    if (i < 2000) {
      ASSERT_LE(server.sent[Spoofed(1)], 100 * kRefusalBytes);  // a second's
    }
  }
  EXPECT_LE(server.endpoint->stats().not_authentic_dropped, 2001u);
  EXPECT_GE(server.endpoint->stats().failures_limited, 7999u);
  EXPECT_EQ(server.endpoint->stats().retries_sent, server.endpoint->stats().failures_limited);
  EXPECT_EQ(security.sessions, 0u);
  EXPECT_EQ(server.endpoint->connection_count(), 0u);
}

// Who receives at his address is worth no more of the server's time than who does not, and no answer.
TEST(StrangerAttack, GarbageFromAProvedAddressIsBoundedAsWell) {
  FakeSecurity security({});
  LoneServer server(&security);
  const auto cookie = security.MakeCookie(server.now, Spoofed(1), {5});
  for (uint32_t i = 0; i < 10'000; ++i) server.Receive(Spoofed(1), Garbage(5, *cookie));
  EXPECT_LE(server.endpoint->stats().not_authentic_dropped, 2001u);
  EXPECT_GE(server.endpoint->stats().failures_limited, 7999u);
  EXPECT_TRUE(server.sent.empty());
  EXPECT_EQ(security.sessions, 0u);
}

// An attacker that knows the worker's address, but not the key, sends 40,000 INITs a second in its name.
TEST(StrangerAttack, NoiseInAWorkersNameDoesNotKeepItOut) {
  Random random(11);
  for (const bool before : {true, false}) {  // it begins before the worker does, or in its handshake
    Pair sides;
    bool deaf = before;
    sides.options.lost = [&](int, bool, MutableByteSpan) { return deaf; };
    BarePair pair(sides.options);
    // What the bucket gets back comes at no instant at which the worker's packets do.
    pair.Run(before ? 217us : 25'217us);
    uint64_t noise_bytes = 0;
    const auto disturb = [&] {
      Address from = pair.worker_address;
      from.port = random.Chance(0.5) ? from.port : static_cast<uint16_t>(random.Next());
      Bytes garbage = Garbage(random.Next());
      noise_bytes += garbage.size();
      pair.Inject(true, from, std::move(garbage));
    };
    const auto noise = [&](Duration time) {
      for (const Instant end = pair.now + time; pair.now < end && !pair.BothConnected();) {
        disturb();
        pair.Run(Duration(20'000 + static_cast<int64_t>(random.Below(10'000))));
      }
    };
    if (before) {
      noise(1s);
    } else {  // the worker's answer to the ACCEPT is on its way
      for (int i = 0; i < 5000; ++i) disturb();
    }
    deaf = false;
    const Instant start = pair.now;
    noise(8s);
    EXPECT_TRUE(pair.BothConnected());
    EXPECT_LE(pair.now - start, 5s);
    EXPECT_GE(pair.server_endpoint->stats().failures_limited, 2000u);
    EXPECT_EQ(sides.server.sessions, 1u);
    EXPECT_EQ(pair.server_endpoint->connection_count(), 1u);
    EXPECT_LE(pair.sent_bytes[1], noise_bytes / 4) << "it is no way to flood the worker";
  }
}

// The same, with the connection ID of another worker at that address: connected, and noise in short packets;
// or in its handshake, and noise in INITs. The ID does not prove that the attacker is at that address.
TEST(StrangerAttack, NoiseWithAnothersConnectionIdDoesNotKeepAWorkerOut) {
  Random random(13);
  for (const bool half_open : {false, true}) {
    SCOPED_TRACE(half_open ? "INITs" : "short packets");
    Pair sides;
    wire::ConnectionId named;
    bool silent = half_open;  // nothing of the first worker's gets through but its first INIT
    sides.options.lost = [&](int, bool from_worker, MutableByteSpan datagram) {
      ByteReader reader(datagram);
      const auto header = wire::DecodeLongHeader(reader);
      if (from_worker) {
        ByteReader again(datagram);
        const wire::ConnectionId to =
            header ? header->destination : wire::DecodeShortHeader(again)->destination;
        return silent && to.value != 0 && to == named;
      }
      if (header && header->type == wire::LongType::kAccept && named.value == 0) named = header->source;
      return false;
    };
    BarePair pair(sides.options);
    ASSERT_TRUE(pair.RunUntil([&] { return half_open ? named.value != 0 : pair.BothConnected(); }, 1s));
    pair.Run(100ms);
    const auto noise = [&] {
      Address from = pair.worker_address;
      if (random.Chance(0.5)) return pair.Inject(true, from, Garbage(random.Next()));
      if (!half_open) from.port = static_cast<uint16_t>(random.Next());
      Bytes packet(half_open ? 1200 : 100);
      PacketBuilder builder(packet);
      if (half_open) {
        builder.StartLong(wire::LongType::kInit, wire::kVersion, named, {random.Next()}, 0);
      } else {
        builder.StartShort(named, 1000 + random.Below(1'000'000));
      }
      builder.PadTo(packet.size());
      IntegrityTag tag;
      builder.Seal(tag);
      pair.Inject(true, from, std::move(packet));
    };
    for (int i = 0; i < 10'000; ++i) noise();
    // What a bucket gets back comes at no instant at which the newcomer's packets do.
    pair.Run(217us);
    BarePair::Application newcomer;
    pair.worker_endpoint->Connect(pair.now, pair.server_address, &newcomer);
    pair.Poll(true);
    const Instant start = pair.now;
    while (newcomer.connected == 0 && pair.now - start < 8s) {
      noise();
      pair.Run(Duration(20'000 + static_cast<int64_t>(random.Below(10'000))));
    }
    EXPECT_EQ(newcomer.connected, 1);
    EXPECT_LE(pair.now - start, 2s);
    EXPECT_GE(pair.server_endpoint->stats().failures_limited, 2000u);
    silent = false;
    // Nor does it keep out the worker whose connection is named.
    const Instant heard = pair.now;
    while (!pair.BothConnected() && pair.now - heard < 4s) {
      noise();
      pair.Run(Duration(20'000 + static_cast<int64_t>(random.Below(10'000))));
    }
    EXPECT_EQ(pair.worker.connected, 1);
    EXPECT_EQ(pair.worker.closed + newcomer.closed + pair.server.closed, 0);
  }
}

// Packets of the connection's own address are opened, however much comes in its name from elsewhere.
TEST(StrangerAttack, NoiseFromElsewhereIsBoundedAndCostsAConnectionNothing) {
  Pair sides;
  BarePair pair(sides.options);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.BothConnected(); }, 1s));
  pair.Run(1s);
  const wire::ConnectionId id = pair.server.connection->local_id();
  const uint64_t bad_tags = pair.server.connection->stats().bad_tag_dropped;
  for (uint32_t i = 0; i < 50'000; ++i) {
    Bytes packet(100);
    PacketBuilder builder(packet);
    builder.StartShort(id, 1000 + i);
    builder.PadTo(packet.size());
    IntegrityTag tag;
    builder.Seal(tag);
    pair.Inject(true, Spoofed(i), std::move(packet));  // a new address each: none has a bucket of its own
  }
  EXPECT_EQ(pair.server.connection->stats().bad_tag_dropped, bad_tags + 40'000);
  EXPECT_EQ(pair.server_endpoint->stats().failures_limited, 10'000u);
  const Bytes words(50'000, 7);
  EXPECT_TRUE(pair.connection->SendControl(words).ok());
  pair.Poll(true);
  pair.Run(500ms);
  EXPECT_EQ(pair.server.control_bytes, 50'000u);
  EXPECT_EQ(pair.connection->stats().packets_lost, 0u);
  EXPECT_EQ(pair.server.connection->peer(), pair.worker_address);
}

// Cookies, RETRY and the bound at work for those who are meant: they all get in.
TEST(StrangerAttack, UnderLoadHonestClientsComeInByCookie) {
  FakeSecurity server_side(Certificates());
  AdmissionOptions admission;
  admission.always_cookie = true;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    FakeSecurity worker_side(Certificates(), seed);
    Random random(seed);
    BarePair::Options o;
    o.seed = seed;
    o.worker_security = &worker_side;
    o.server_security = &server_side;
    o.admission = admission;
    o.lost = [&](int, bool, MutableByteSpan) { return random.Chance(0.1); };
    BarePair pair(o);
    EXPECT_TRUE(pair.RunUntil([&] { return pair.BothConnected(); }, 10s)) << seed;
    EXPECT_GE(pair.connection->stats().retries, 1u);
  }
}

TEST(StrangerAttack, AForgedRefusalDoesNotEndAHandshakeThatGoesOn) {
  Pair sides;
  BarePair pair(sides.options);
  pair.Inject(false, pair.server_address, Refuse(pair.connection->local_id().value));
  EXPECT_TRUE(pair.RunUntil([&] { return pair.BothConnected(); }, 1s));
  pair.Inject(false, pair.server_address, Refuse(pair.connection->local_id().value));
  pair.Run(5s);
  EXPECT_EQ(pair.worker.closed, 0);
  EXPECT_EQ(pair.connection->stats().refusals_ignored, 1u);
}

TEST(StrangerAttack, ARefusalIsBelievedWhenNothingElseComes) {
  Pair sides;
  sides.options.lost = [](int, bool, MutableByteSpan) { return true; };
  BarePair pair(sides.options);
  pair.Run(100ms);
  pair.Inject(false, pair.server_address, Refuse(pair.connection->local_id().value));
  pair.Run(900ms);
  EXPECT_EQ(pair.worker.closed, 0);
  pair.Run(200ms);
  ASSERT_EQ(pair.worker.closed, 1);
  EXPECT_EQ(pair.worker.close_status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(pair.worker.close_status.message().find("no room"), std::string::npos);
}

// A job that has ended well has another exit code than one that never began.
TEST(StrangerAttack, ARefusalIsNoSuccessWhateverItsCode) {
  for (const bool keys : {true, false}) {
    Pair sides;
    if (!keys) sides.options.worker_security = sides.options.server_security = nullptr;
    sides.options.lost = [](int, bool, MutableByteSpan) { return true; };
    BarePair pair(sides.options);
    pair.Inject(false, pair.server_address, Refuse(pair.connection->local_id().value, StatusCode::kOk));
    pair.Run(1500ms);
    ASSERT_EQ(pair.worker.closed, 1);
    EXPECT_EQ(pair.worker.close_status.code(), StatusCode::kUnavailable);
    EXPECT_NE(pair.worker.close_status.message().find("refuses"), std::string::npos);
  }
}

TEST(StrangerAttack, AnotherKeyIsNamedOrNotAnswered) {
  FakeSecurity::Options other;
  other.key = 9;
  {
    Pair sides(other, {});
    BarePair pair(sides.options);
    ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.closed > 0; }, 11s));
    EXPECT_EQ(pair.worker.close_status.code(), StatusCode::kUnavailable);
    EXPECT_NE(
        pair.worker.close_status.message().find("but that it cannot open what is sent to it (another key?)"),
        std::string::npos)
        << pair.worker.close_status.ToString();
    EXPECT_EQ(sides.server.sessions, 0u);
    EXPECT_GT(pair.sent_bytes[1], 0u);
    EXPECT_LE(pair.sent_bytes[1], 10 * kRefusalBytes);
  }
  other.psk = false;
  Pair sides(other, Certificates());
  BarePair pair(sides.options);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.closed > 0; }, 5s));
  EXPECT_EQ(pair.worker.close_status.code(), StatusCode::kPermissionDenied)
      << pair.worker.close_status.ToString();
  EXPECT_EQ(pair.worker.connected + pair.accepted, 0);
  pair.Run(10s);
  EXPECT_EQ(pair.server_endpoint->connection_count(), 0u);
}

TEST(StrangerAttack, OneSideInsecureIsNoConnection) {
  for (const bool worker_secure : {true, false}) {
    Pair sides(Certificates(), Certificates());
    (worker_secure ? sides.options.server_security : sides.options.worker_security) = nullptr;
    BarePair pair(sides.options);
    ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.closed > 0; }, 11s));
    EXPECT_EQ(pair.worker.close_status.code(), StatusCode::kUnavailable);
    EXPECT_EQ(pair.worker.connected + pair.accepted, 0);
    EXPECT_LE(pair.sent_bytes[1], 10 * kRefusalBytes);
    EXPECT_EQ(pair.server_endpoint->connection_count(), 0u);
  }
}

TEST(StrangerAttack, AServerThatDoesNotTrustTheWorkerSaysWhy) {
  FakeSecurity::Options strict;
  strict.refuse_clients = "w7 is not on the list";
  for (int lost = -1; lost < 6; ++lost) {  // whichever datagram is lost
    Pair sides({}, strict);
    sides.options.lost = [lost](int number, bool, MutableByteSpan) { return number == lost; };
    BarePair pair(sides.options);
    ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.closed > 0; }, 5s)) << lost;
    EXPECT_EQ(pair.worker.close_status.code(), StatusCode::kPermissionDenied)
        << pair.worker.close_status.ToString();
    EXPECT_NE(pair.worker.close_status.message().find("w7 is not on the list"), std::string::npos);
    EXPECT_EQ(pair.worker.connected + pair.accepted, 0);
    pair.Run(5s);
    EXPECT_EQ(pair.server_endpoint->connection_count(), 0u);
  }
}

TEST(StrangerAttack, ChangedTransportParametersGiveKeysThatDoNotFit) {
  // The long packets' key is public, so an attacker on the path can change them, in either direction.
  for (const bool in_init : {true, false}) {
    FakeSecurity attacker(Certificates());
    Pair sides(Certificates(), Certificates());
    int changed = 0;
    sides.options.lost = [&](int, bool from_worker, MutableByteSpan datagram) {
      if (from_worker != in_init || !wire::IsLongHeader(datagram)) return false;
      ByteReader reader(datagram);
      const auto header = *wire::DecodeLongHeader(reader);
      if (wire::HasCookie(header.type)) {
        EXPECT_TRUE(wire::DecodeCookie(reader));
      }
      const size_t at = reader.position();
      const MutableByteSpan body = datagram.subspan(at, datagram.size() - at - wire::kTagBytes);
      PacketProtection& p = attacker.long_protection();
      EXPECT_TRUE(p.Open(header.packet_number, 0, datagram.first(at), body, datagram.last(wire::kTagBytes)));
      if (body[0] == static_cast<uint8_t>(wire::FrameType::kTransportParameters)) {
        body[6] ^= 1;  // a byte of the idle time-out or a window
        ++changed;
      }
      p.Seal(header.packet_number, 0, datagram.first(at), body, datagram.last(wire::kTagBytes));
      return false;
    };
    BarePair pair(sides.options);
    ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.closed > 0; }, 30s));
    EXPECT_GT(changed, 0);
    EXPECT_EQ(pair.worker.connected, 0) << in_init;
    EXPECT_FALSE(pair.worker.close_status.ok());
    EXPECT_EQ(pair.server.control_bytes + pair.server.chunk_bytes, 0u);
    pair.Run(30s);
    EXPECT_EQ(pair.server_endpoint->connection_count(), 0u);
  }
}

TEST(StrangerAttack, AFlippedBitAtAnyOffsetOfAnyHandshakePacketIsALostPacket) {
  for (int number = 0; number < 4; ++number) {
    for (size_t at = 0; at < 1452; ++at) {
      Pair sides;
      sides.options.lost = [&](int n, bool, MutableByteSpan datagram) {
        if (n == number) datagram[at % datagram.size()] ^= static_cast<uint8_t>(1 << at % 8);
        return false;
      };
      BarePair pair(sides.options);
      ASSERT_TRUE(pair.RunUntil([&] { return pair.BothConnected(); }, 5s)) << number << " " << at;
      ASSERT_EQ(pair.worker.closed + pair.server.closed, 0);
    }
  }
}

// Once both have heard each other's short packets, whatever says that it belongs to the handshake is not even
// opened.
TEST(StrangerAttack, LateAndForgedHandshakePacketsCostNothingAndChangeNothing) {
  FakeSecurity attacker(Certificates());
  Pair sides(Certificates(), Certificates());
  std::array<std::vector<Bytes>, 2> tape;  // long packets to the worker, to the server
  sides.options.lost = [&](int, bool from_worker, MutableByteSpan datagram) {
    if (wire::IsLongHeader(datagram))
      tape[from_worker ? 1 : 0].emplace_back(datagram.begin(), datagram.end());
    return false;
  };
  BarePair pair(sides.options);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.BothConnected(); }, 1s));
  pair.Run(1s);
  const wire::ConnectionId worker_id = pair.connection->local_id(),
                           server_id = pair.server.connection->local_id();
  // The key of long packets is public here: these open, and bring bytes that the handshake never had.
  const Bytes more(100, 7);
  for (const size_t to_server : {0, 1}) {
    for (const uint64_t offset : {uint64_t{0}, uint64_t{100}, uint64_t{400}, uint64_t{800}}) {
      Bytes bytes(1200);
      PacketBuilder builder(bytes);
      builder.StartLong(to_server != 0 ? wire::LongType::kInit : wire::LongType::kAccept, wire::kVersion,
                        to_server != 0 ? server_id : worker_id, to_server != 0 ? worker_id : server_id, 9);
      ASSERT_TRUE(builder.Add(wire::CryptoFrame{offset, 0, more}));
      bytes.resize(builder.Seal(attacker.long_protection()));
      tape[to_server].push_back(bytes);
    }
  }
  tape[0].push_back(Refuse(worker_id.value));
  const uint64_t opened = sides.worker.long_opens() + sides.server.long_opens();
  const uint64_t bytes = sides.worker.handshake_bytes + sides.server.handshake_bytes;
  const int sent = pair.sent;
  for (const size_t to_server : {0, 1}) {
    const Address from = to_server != 0 ? pair.worker_address : pair.server_address;
    const Endpoint& endpoint = to_server != 0 ? *pair.server_endpoint : *pair.worker_endpoint;
    const Connection& connection = to_server != 0 ? *pair.server.connection : *pair.connection;
    const ConnectionStats before = connection.stats();
    const auto late = tape[to_server];
    ASSERT_GE(late.size(), 5u);
    for (const Bytes& datagram : late) pair.Inject(to_server != 0, from, datagram);
    EXPECT_EQ(endpoint.stats().late_long_dropped, late.size());
    EXPECT_EQ(connection.stats().packets_received, before.packets_received);
    EXPECT_EQ(connection.state(), Connection::State::kConnected);
  }
  EXPECT_EQ(sides.worker.long_opens() + sides.server.long_opens(), opened);
  EXPECT_EQ(sides.worker.handshake_bytes + sides.server.handshake_bytes, bytes);
  EXPECT_EQ(pair.sent, sent) << "nobody was answered";
}

// Everything that the worker ever said, to the same server again: while it is connected, and afterwards.
TEST(StrangerAttack, AReplayedSessionChangesNothing) {
  Pair sides;
  std::vector<Bytes> tape;
  sides.options.lost = [&](int, bool from_worker, MutableByteSpan datagram) {
    if (from_worker) tape.emplace_back(datagram.begin(), datagram.end());
    return false;
  };
  BarePair pair(sides.options);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.BothConnected(); }, 1s));
  const Bytes words(5000, 7);
  EXPECT_TRUE(pair.connection->SendControl(words).ok());
  pair.Poll(true);
  pair.Run(1s);
  ASSERT_EQ(pair.server.control_bytes, 5000u);
  const std::vector<Bytes> first = tape;
  for (const Bytes& datagram : first) pair.Inject(true, pair.worker_address, datagram);
  for (const Bytes& datagram : first) pair.Inject(true, Address::V4(9, 9, 9, 9, 9), datagram);
  pair.Run(1s);
  EXPECT_EQ(pair.server.control_bytes, 5000u);
  EXPECT_EQ(pair.accepted, 1);
  EXPECT_GE(pair.server.connection->stats().duplicates_dropped, 5u);
  EXPECT_EQ(pair.server.connection->peer(), pair.worker_address);
  EXPECT_EQ(pair.worker.closed + pair.server.closed, 0);
  pair.connection->Close(Status::Ok());
  pair.Poll(true);
  pair.Run(20s);
  ASSERT_EQ(pair.server_endpoint->connection_count(), 0u);
  const uint64_t sessions = sides.server.sessions;
  for (const Bytes& datagram : first) pair.Inject(true, pair.worker_address, datagram);
  pair.Run(20s);
  EXPECT_EQ(pair.accepted, 1) << "half a handshake, and no more";
  EXPECT_LE(sides.server.sessions, sessions + 1);
  EXPECT_EQ(pair.server.control_bytes, 5000u);
  EXPECT_EQ(pair.server_endpoint->connection_count(), 0u);
}

// An attacker off the path guesses resets in vain; then the server dies, and another process takes its port.
void ExpectOnlyTheServersReset(BarePair& pair, const EndpointOptions& again) {
  ASSERT_TRUE(pair.RunUntil([&] { return pair.BothConnected(); }, 1s));
  pair.Run(1s);
  Random random(4);
  for (int i = 0; i < 1000; ++i) {
    Bytes guess(40 + random.Below(40));
    for (uint8_t& byte : guess) byte = static_cast<uint8_t>(random.Next());
    guess[0] = 0;
    if (i == 0) std::fill(guess.end() - 16, guess.end(), uint8_t{0});
    pair.Inject(false, pair.server_address, guess);
  }
  EXPECT_EQ(pair.worker.closed, 0);
  pair.server_endpoint = std::make_unique<PumpedEndpoint>(again, Random(99));
  const Instant start = pair.now;
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.closed > 0; }, 5s));
  EXPECT_LE(pair.now - start, 2100ms) << "with the first packet: a keepalive";
  EXPECT_EQ(pair.worker.close_status.code(), StatusCode::kUnavailable);
  EXPECT_NE(pair.worker.close_status.message().find("restarted"), std::string::npos);
  EXPECT_EQ(pair.server_endpoint->stats().resets_sent, 1u);
  EXPECT_EQ(pair.worker_endpoint->stats().resets_received, 1u);
}

TEST(StrangerAttack, ARestartedServerSaysSoAndNobodyElseCan) {
  Pair sides;
  BarePair pair(sides.options);
  EndpointOptions again;
  FakeSecurity restarted({}, 77);  // with the same key
  again.security = &restarted;
  again.accepts = true;
  ExpectOnlyTheServersReset(pair, again);
}

TEST(StrangerAttack, ARestartedServerWithoutKeysSaysSoAsWell) {
  BarePair pair{{}};
  EndpointOptions again;
  again.accepts = true;
  ExpectOnlyTheServersReset(pair, again);
}

TEST(StrangerAttack, ResetsAreShorterThanWhatTheyAnswerAndBounded) {
  FakeSecurity security({});
  LoneServer server(&security);
  for (uint32_t i = 0; i < 1000; ++i) {
    Bytes packet(32 + i % 60, 5);
    packet[0] = 0;
    server.Receive(Spoofed(i), packet);
    ASSERT_LT(server.sent[Spoofed(i)], packet.size());
  }
  EXPECT_EQ(server.endpoint->stats().resets_sent, 100u);
  EXPECT_GT(server.endpoint->stats().resets_limited, 800u);
}

// A server that refuses every stranger is no tool against a third party either, with keys and without.
TEST(StrangerAttack, RefusalsAreShorterThanWhatTheyAnswerAndBounded) {
  FakeSecurity with_keys(Certificates());
  NullSecurity without;
  for (const bool keys : {true, false}) {
    Security& security = keys ? static_cast<Security&>(with_keys) : without;
    LoneServer server(&security);
    for (uint32_t i = 0; i < 1000; ++i) {
      Bytes init = Init(security.long_protection(), 1000 + i);
      ASSERT_EQ(init[0] & 3, static_cast<int>(wire::LongType::kInit));
      init[3] ^= 1;  // the version
      server.Receive(Spoofed(i), init);
      ASSERT_LT(server.sent[Spoofed(i)], init.size());
    }
    EndpointStats stats = server.endpoint->stats();
    EXPECT_EQ(stats.version_refused, 1000u);
    EXPECT_EQ(stats.refusals_sent, 100u);
    EXPECT_EQ(stats.refusals_limited, 900u);
    EXPECT_EQ(server.endpoint->connection_count(), 0u);
    // A second later there are some again.
    server.now += 1s;
    Bytes init = Init(security.long_protection(), 7);
    init[3] ^= 1;
    server.Receive(Spoofed(5000), init);
    EXPECT_EQ(server.endpoint->stats().refusals_sent, 101u);
    ByteReader reader(server.latest);
    EXPECT_EQ(wire::DecodeLongHeader(reader)->type, wire::LongType::kRefuse);
  }
}

// ... nor one that says of an INIT that it does not open.
TEST(StrangerAttack, RefusalsOfWhatDoesNotOpenAreShorterAndBounded) {
  FakeSecurity security(Certificates());
  LoneServer server(&security);
  for (uint32_t i = 0; i < 1000; ++i) {
    Bytes init = Init(security.long_protection(), 1000 + i);
    init.back() ^= 1;  // of the tag
    server.Receive(Spoofed(i), init);
    ASSERT_LT(server.sent[Spoofed(i)], init.size());
  }
  EXPECT_EQ(server.endpoint->stats().refusals_sent, 100u);
  EXPECT_EQ(server.endpoint->stats().refusals_limited, 900u);
  // Refusals of other kinds have a rate of their own.
  Bytes init = Init(security.long_protection(), 7);
  init[3] ^= 1;
  server.Receive(Spoofed(5000), init);
  EXPECT_EQ(server.endpoint->stats().refusals_sent, 101u);
}

TEST(StrangerAttack, AFullServerRefusesNoFasterThanThat) {
  NullSecurity security;
  LoneServer server(&security);  // takes 1024
  for (uint32_t i = 0; i < 2024; ++i) server.Receive(Spoofed(i), Init(security.long_protection(), 1000 + i));
  EXPECT_EQ(server.endpoint->connection_count(), 1024u);
  EXPECT_EQ(server.endpoint->stats().capacity_refused, 1000u);
  EXPECT_EQ(server.endpoint->stats().refusals_sent, 100u);
  EXPECT_EQ(server.endpoint->stats().refusals_limited, 900u);
}

// The half-open bound holds, and who waits gets in.
TEST(StrangerAttack, AsManyHandshakesAsTheBoundAllowsAtATime) {
  FakeSecurity server_side({});
  AdmissionOptions admission;
  admission.max_half_open = 8;
  LoneServer server(&server_side, admission);
  FakeSecurity worker_side({}, 9);
  EndpointOptions w;
  w.security = &worker_side;
  PumpedEndpoint workers(w, Random(8));
  std::array<BarePair::Application, 30> applications;
  const Address server_address = Address::V4(10, 0, 0, 2, 7700), from = Address::V4(10, 0, 0, 1, 40000);
  for (auto& a : applications) workers.Connect(server.now, server_address, &a);
  for (int ms = 0; ms < 8000; ++ms) {
    workers.HandleTimeout(server.now);
    for (Bytes& d : TakeDatagrams(workers, server.now)) {
      server.endpoint->HandleDatagram(server.now, from, d, {});
      ASSERT_LE(server.endpoint->stats().half_open, 4u) << "half of them with one host";
    }
    server.endpoint->HandleTimeout(server.now);
    for (Bytes& d : TakeDatagrams(*server.endpoint, server.now)) {
      workers.HandleDatagram(server.now, server_address, d, {});
    }
    server.now += 1ms;
  }
  int connected = 0;
  for (const auto& a : applications) connected += a.connected;
  EXPECT_EQ(connected, 30);
  EXPECT_GT(server.endpoint->stats().half_open_refused, 0u);
}

// A host that begins handshakes and never goes on, at an address that is its own, leaves room for others.
TEST(StrangerAttack, OneHostCannotHaveAllHalfOpenPlaces) {
  FakeSecurity security(Certificates());
  const AdmissionOptions admission{.max_half_open = 8, .inits_without_cookie = 1'000'000};
  LoneServer server(&security, admission);
  const auto begin = [&](const Address& from, uint64_t source) {
    const auto cookie = security.MakeCookie(server.now, from, {source});
    server.Receive(from, Init(security.long_protection(), source, 0, *cookie));
  };
  for (uint16_t i = 0; i < 100; ++i)
    begin(Address::V4(198, 51, 100, 7, static_cast<uint16_t>(1000 + i)), 100 + i);
  EXPECT_EQ(server.endpoint->stats().half_open, 4u);
  begin(Address::V4(192, 0, 2, 1, 40000), 7);
  EXPECT_EQ(server.endpoint->stats().half_open, 5u) << "another host comes in";
}

// A host with one address of IPv6 has 2^64 of them.
TEST(StrangerAttack, ANetworkOfIpv6IsOneHost) {
  FakeSecurity security(Certificates());
  AdmissionOptions admission;
  admission.max_half_open = 8;
  LoneServer server(&security, admission);
  const auto begin = [&](uint8_t network, uint64_t i) {
    Address from;
    from.ip = {0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, network};
    for (size_t byte = 0; byte < 8; ++byte) from.ip[15 - byte] = static_cast<uint8_t>(i >> 8 * byte);
    from.port = 9;
    const auto cookie = security.MakeCookie(server.now, from, {i + 1});
    server.Receive(from, Init(security.long_protection(), i + 1, 0, *cookie));
  };
  for (uint64_t i = 0; i < 100; ++i) begin(1, i * 0x123456789);
  EXPECT_EQ(server.endpoint->stats().half_open, 4u);
  begin(2, 7);
  EXPECT_EQ(server.endpoint->stats().half_open, 5u) << "another network comes in";
}

}  // namespace
}  // namespace longhaul::transport
