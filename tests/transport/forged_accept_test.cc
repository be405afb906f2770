// A man on the side of a handshake with a public key for long packets: it sees what the worker sends, answers
// first, and drops nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "proto/version.h"
#include "tests/transport/bare_pair.h"
#include "tests/transport/fake_security.h"
#include "transport/core/connection/handshaking.h"
#include "transport/core/connection/packet_builder.h"
#include "transport/core/connection/server_answers.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<uint8_t>;

FakeSecurity::Options Certificates(size_t server_flight = 2500, bool impostor = false) {
  FakeSecurity::Options options;
  options.psk = false;
  options.server_flight = server_flight;
  options.impostor = impostor;
  return options;
}

// The server's: under others an answer is another one.
const wire::TransportParametersFrame kParameters = Handshaking::ParametersOf(BarePair::Options().server);

class SideAttack {
 public:
  explicit SideAttack(const FakeSecurity::Options& server = Certificates())
      : worker_(Certificates(server.server_flight), 1), server_(server, 2), attacker_(Certificates(), 3) {}

  // What is injected into the worker when its INIT, or the server's ACCEPT, passes; an attacker between them
  // is faster than the server.
  std::function<void(const wire::LongHeader&)> on_init, on_accept;
  bool server_is_silent = false;
  int lost_accept = 0;  // its number, from 1; 0: none

  void Run(Duration limit) {
    BarePair::Options options;
    options.worker_security = &worker_;
    options.server_security = &server_;
    options.lost = [this](int, bool from_worker, MutableByteSpan datagram) {
      ByteReader reader(datagram);
      const auto header = wire::DecodeLongHeader(reader);
      if (!header) return false;
      if (from_worker && header->type == wire::LongType::kInit && on_init) on_init(*header);
      if (from_worker || header->type != wire::LongType::kAccept) return !from_worker && server_is_silent;
      if (on_accept) on_accept(*header);
      return server_is_silent || ++accepts_ == lost_accept;
    };
    pair_.emplace(options);
    began_ = pair_->now;
    const Instant end = pair_->now + limit;
    while (pair_->now < end && !pair_->BothConnected() && pair_->worker.closed == 0) {
      pair_->Run(1ms);
      for (Bytes& bytes : std::exchange(forged_, {})) {
        pair_->Inject(false, pair_->server_address, std::move(bytes));
        most_alive = std::max(most_alive, worker_.sessions_alive);
        ++injected;
      }
    }
  }
  void Forge(const wire::LongHeader& to, wire::ConnectionId source, const std::vector<wire::Frame>& frames) {
    Bytes bytes(1200);
    PacketBuilder builder(bytes);
    builder.StartLong(wire::LongType::kAccept, wire::kVersion, to.source, source, 0);
    for (const wire::Frame& frame : frames) ASSERT_TRUE(builder.Add(frame));
    builder.PadTo(bytes.size());
    bytes.resize(builder.Seal(attacker_.long_protection()));
    forged_.push_back(std::move(bytes));
  }
  BarePair& pair() { return *pair_; }
  Duration Took() const { return pair_->now - began_; }
  ConnectionStats stats() const { return pair_->connection->stats(); }
  FakeSecurity& worker() { return worker_; }
  int injected = 0;
  int most_alive = 0;  // sessions of the worker, at once

 private:
  FakeSecurity worker_, server_, attacker_;
  std::optional<BarePair> pair_;
  std::vector<Bytes> forged_;
  Instant began_;
  int accepts_ = 0;
};

const Bytes kNoHello(400, 9);
const wire::ConnectionId kForger{0x4242};

TEST(ForgedAccept, OfAnyKindIsNoise) {
  const std::vector<std::vector<wire::Frame>> kinds = {
      {kParameters, wire::CryptoFrame{0, 0, kNoHello}},
      {kParameters, wire::CryptoFrame{0, 60'000, {}}},
      {kParameters},
      {},
      {kParameters, wire::GrantFrame{1, 1}},
      {wire::CloseFrame{StatusCode::kPermissionDenied, "go away"}},
  };
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    SCOPED_TRACE(kind);
    SideAttack attack;
    attack.on_init = [&](const wire::LongHeader& init) { attack.Forge(init, kForger, kinds[kind]); };
    attack.Run(5s);
    EXPECT_TRUE(attack.pair().BothConnected()) << attack.pair().worker.close_status.ToString();
    EXPECT_GE(attack.injected, 1);
    EXPECT_EQ(attack.stats().answers_failed + attack.stats().refusals > 0, kind != 2) << "it was looked at";
  }
}

// Under the server's own ID: wrong parameters, a spoiled beginning, and what the server has yet to say. The
// flight takes three packets.
TEST(ForgedAccept, UnderTheServersIdSpoilsNothing) {
  SideAttack attack(Certificates(3500));
  wire::TransportParametersFrame other = kParameters;
  other.idle_timeout_ms = 9'999;
  attack.on_accept = [&](const wire::LongHeader& accept) {
    const wire::LongHeader to{wire::LongType::kAccept, wire::kVersion, {}, accept.destination, 0};
    attack.Forge(to, accept.source, {other});
    attack.Forge(to, accept.source, {kParameters, wire::CryptoFrame{0, 0, kNoHello}});
    attack.Forge(to, accept.source, {kParameters, wire::CryptoFrame{2700, 0, kNoHello}});
  };
  attack.Run(5s);
  EXPECT_TRUE(attack.pair().BothConnected()) << attack.pair().worker.close_status.ToString();
  EXPECT_GE(attack.injected, 3);
  EXPECT_LT(attack.Took(), 100ms) << "the server's first flight was enough";
}

// The server repeats what is not acknowledged: an answer that fails later must not have acknowledged its
// beginning.
TEST(ForgedAccept, OfAnAnswerThatFailsNothingWasAcknowledged) {
  SideAttack attack(Certificates(3500));
  attack.lost_accept = 3;  // so that the worker repeats its INIT with two thirds of the flight in hand
  wire::ConnectionId server{};
  attack.on_accept = [&](const wire::LongHeader& accept) { server = accept.source; };
  int inits = 0;
  attack.on_init = [&](const wire::LongHeader& init) {
    if (++inits == 2) attack.Forge(init, server, {kParameters, wire::CryptoFrame{2600, 0, kNoHello}});
  };
  attack.Run(5s);
  EXPECT_EQ(attack.injected, 1);
  EXPECT_EQ(attack.stats().answers_failed, 1u) << "it spoilt the answer";
  EXPECT_TRUE(attack.pair().BothConnected()) << attack.pair().worker.close_status.ToString();
}

// What a flood of answers costs is bounded, and it does not keep the server's out.
TEST(ForgedAccept, ManyCostABoundedNumberOfSessions) {
  SideAttack attack;
  attack.on_init = [&](const wire::LongHeader& init) {
    for (uint64_t i = 0; i < 3000; ++i) {
      // Half of them fail, half would wait for more for ever.
      std::vector<wire::Frame> frames = {kParameters};
      if (i % 2 == 0) frames.push_back(wire::CryptoFrame{0, 0, kNoHello});
      attack.Forge(init, {0x5000 + i}, frames);
    }
  };
  attack.Run(8s);
  EXPECT_TRUE(attack.pair().BothConnected()) << attack.pair().worker.close_status.ToString();
  EXPECT_GE(attack.injected, 3000);
  EXPECT_LE(attack.worker().sessions, 8 * ServerAnswers::kPerSecond + 200);
  EXPECT_LE(attack.most_alive, static_cast<int>(ServerAnswers::kMaxAnswers) + 1) << "and the first flight's";
}

// A server that we do not trust is named soon: nothing contradicts it.
TEST(ForgedAccept, AServerWithAnotherKeyIsNamedAfterTheGrace) {
  SideAttack attack(Certificates(2500, true));
  attack.Run(9s);
  EXPECT_EQ(attack.pair().worker.closed, 1);
  EXPECT_EQ(attack.pair().worker.close_status.code(), StatusCode::kPermissionDenied);
  EXPECT_NE(attack.pair().worker.close_status.message().find("another key"), std::string::npos);
  const Duration took = attack.pair().now - Instant::FromNanoseconds(1'000'000'000);
  EXPECT_GE(took, Handshaking::kDoubtGrace);
  EXPECT_LE(took, Handshaking::kDoubtGrace + 200ms);
}

// Several that fail contradict each other: then only the time-out ends it, with the last reason.
TEST(ForgedAccept, OfSeveralThatFailTheTimeOutNamesTheLast) {
  SideAttack attack(Certificates(2500, true));
  attack.on_init = [&](const wire::LongHeader& init) {
    attack.Forge(init, kForger, {kParameters, wire::CryptoFrame{0, 0, kNoHello}});
  };
  attack.Run(15s);
  EXPECT_EQ(attack.pair().worker.closed, 1);
  EXPECT_EQ(attack.pair().worker.close_status.code(), StatusCode::kPermissionDenied);
  EXPECT_NE(attack.pair().worker.close_status.message().find("several have answered"), std::string::npos)
      << attack.pair().worker.close_status.ToString();
  EXPECT_GE(attack.pair().now - Instant::FromNanoseconds(1'000'000'000), 10s) << "the idle time-out";
}

// Forged RETRYs use up a flight's worth of them, not the server's.
TEST(ForgedAccept, RetrysBringAnotherRoundTripAtMost) {
  FakeSecurity attacker(Certificates(), 3);
  FakeSecurity worker(Certificates(), 1), server(Certificates(), 2);
  BarePair::Options options;
  options.worker_security = &worker;
  options.server_security = &server;
  options.admission.always_cookie = true;
  std::vector<Bytes> forged;
  options.lost = [&](int, bool from_worker, MutableByteSpan datagram) {
    ByteReader reader(datagram);
    const auto header = wire::DecodeLongHeader(reader);
    if (!from_worker || !header || header->type != wire::LongType::kInit || !forged.empty()) return false;
    for (uint8_t i = 0; i < 5; ++i) {
      Bytes bytes(200);
      PacketBuilder builder(bytes);
      builder.StartLong(wire::LongType::kRetry, wire::kVersion, header->source, {9}, 0, Bytes(16, i));
      bytes.resize(builder.Seal(attacker.long_protection()));
      forged.push_back(std::move(bytes));
    }
    return false;
  };
  BarePair pair(options);
  for (const Bytes& bytes : forged) pair.Inject(false, pair.server_address, bytes);
  EXPECT_EQ(forged.size(), 5u);
  EXPECT_TRUE(pair.RunUntil([&] { return pair.BothConnected(); }, 5s)) << pair.worker.close_status.ToString();
  EXPECT_GE(pair.connection->stats().retries, 6u);
  EXPECT_LE(pair.now - Instant::FromNanoseconds(1'000'000'000), 100ms)
      << "three round trips of 20 ms, and one";
}

// The server's key exchange is over, and its last secrets with it, when the worker is known.
TEST(Handshaking, NothingOfTheKeyExchangeIsKept) {
  for (const bool psk : {true, false}) {
    FakeSecurity::Options fake;
    fake.psk = psk;
    FakeSecurity worker(fake, 1), server(fake, 2);
    BarePair::Options options;
    options.worker_security = &worker;
    options.server_security = &server;
    BarePair pair(options);
    ASSERT_TRUE(pair.RunUntil([&] { return pair.BothConnected(); }, 5s));
    EXPECT_EQ(worker.sessions_alive, 0) << psk;
    EXPECT_EQ(server.sessions_alive, 0) << psk;
    EXPECT_EQ(pair.connection->identity().job, "job") << "what it has proved is kept";
    EXPECT_EQ(pair.server.connection->identity().job, "job");
  }
}

}  // namespace
}  // namespace longhaul::transport
