// Datagrams in the server's name: an attacker that ends a connection stalls the job.
#include <algorithm>
#include <atomic>

#include "base/random.h"
#include "proto/packet_header.h"
#include "tests/attack/support/attack_test.h"

namespace longhaul::attack {
namespace {

// What a worker compares: the end of a short packet that does not open.
Bytes TokenOf(const Bytes& reset) {
  EXPECT_GE(reset.size(), 16u);
  return Bytes(reset.end() - std::min<std::ptrdiff_t>(16, std::ssize(reset)), reset.end());
}

class Forge : public AttackTest {
 protected:
  // The worker gets all of them, drops them, and goes on.
  void ExpectNotBelieved(const std::vector<SpoofingSocket::Incoming>& resets) {
    const uint64_t before = clients()[0]->stats().datagrams_dropped;
    for (const auto& reset : resets) tap().Inject(Direction::kDown, reset.bytes);
    for (int i = 0; i < 3; ++i) Round();
    EXPECT_GE(clients()[0]->stats().datagrams_dropped - before, resets.size());
    EXPECT_TRUE(clients()[0]->status().ok()) << clients()[0]->status().ToString();
  }
};

uint64_t SourceOf(ByteSpan long_packet) {
  ByteReader reader(long_packet);
  const auto header = wire::DecodeLongHeader(reader);
  return header ? header->source.value : 0;
}

// Would gain: a worker that gives up. They come before the server's answer, of every kind.
TEST_F(Forge, RefusalsDuringTheHandshakeAreNotBelieved) {
  StartTarget();
  std::atomic<int> forged{0};
  StartPair([&](Passing& passing) {
    if (passing.direction != Direction::kUp || (passing.bytes[0] & 0x80) == 0) return;
    const uint64_t worker = SourceOf(passing.bytes);
    for (const StatusCode code : {StatusCode::kResourceExhausted, StatusCode::kUnavailable,
                                  StatusCode::kPermissionDenied, StatusCode::kVersionMismatch}) {
      tap().Inject(Direction::kDown, Refuse(worker, code));
      ++forged;
    }
  });
  EXPECT_GE(forged, 8);
  for (int i = 0; i < 5; ++i) Round();
  FinishPair();
}

TEST_F(Forge, RefusalsResetsAndClosesInTheMiddleAreNotBelieved) {
  constexpr uint64_t kSeed = 5;
  StartTarget();
  StartPair();
  Round();
  const uint64_t worker = SourceOf(tap().Recorded(Direction::kUp).front());
  Bytes last = tap().Recorded(Direction::kDown).back();
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Random random(kSeed);
  const uint64_t dropped = clients()[0]->stats().datagrams_dropped;
  for (int round = 0; round < 5; ++round) {
    std::vector<Bytes> forged;
    forged.push_back(Refuse(worker, StatusCode::kUnavailable));
    for (int i = 0; i < 200; ++i) {
      // A short packet for this connection: a CLOSE, had it the keys; a reset, had it the token.
      Bytes packet(random.Below(2) == 0 ? 45 : 33 + random.Below(60));
      for (uint8_t& byte : packet) byte = static_cast<uint8_t>(random.Next());
      packet[0] = 0;
      if (i % 2 == 0) std::copy(last.begin(), last.begin() + 10, packet.begin());
      forged.push_back(std::move(packet));
    }
    // The server's own bytes, cut at the end: would the last 16 be the token somewhere?
    for (const Bytes& packet : Truncated(last)) {
      if (packet.size() >= 32) forged.push_back(packet);
    }
    tap().InjectGently(Direction::kDown, forged);
    Round();
  }
  EXPECT_GE(clients()[0]->stats().datagrams_dropped - dropped, tap().injected() * 95 / 100)
      << "they did come";
  FinishPair();
}

// The reset of another server with the same key, and one for another connection, have other tokens. A true
// one is believed: the tests' own check that resets would work.
TEST_F(Forge, OnlyTheOwnServersResetIsBelieved) {
  StartTarget();
  StartPair();
  Round();
  const std::vector<Bytes> up = tap().Recorded(Direction::kUp);
  // For this very connection, but of another server of the job: its key is the same, and it knows nothing of
  // it.
  Program& other = Start("longhaul-server", {"--listen", "127.0.0.1:0", "--workers", "2", "--key", key_file(),
                                             "--progress", "json"});
  const auto listening = other.WaitForEvent("listening");
  ASSERT_TRUE(listening) << other.Everything();
  SpoofingSocket stray(listening->value("port", uint16_t{0}));
  for (int i = 0; i < 20; ++i) stray.Send(LoopbackHost(3), up.back());
  const auto foreign = stray.Receive(milliseconds(200));
  ASSERT_FALSE(foreign.empty());
  ExpectNotBelieved(foreign);
  // Of this server, for connections that it does not know.
  SpoofingSocket asker(port());
  for (uint64_t i = 0; i < 20; ++i) {
    Bytes question = NoiseInit(i, 200);
    question[0] = 0;
    asker.Send(LoopbackHost(3), question);
  }
  const auto resets = asker.Receive(milliseconds(200));
  ASSERT_FALSE(resets.empty());
  ExpectNotBelieved(resets);
  // An attacker on the path that asks for this very connection learns its token only when the server has
  // forgotten it.
  asker.Send(LoopbackHost(4), up.back());
  EXPECT_TRUE(asker.Receive(milliseconds(100)).empty()) << "a live connection has no reset";
  Round();
  server().Signal(SIGKILL);
  ExpectEnd(server(), 128 + SIGKILL);
  StartTarget({{"--listen", "127.0.0.1:" + std::to_string(port())}});
  asker.Send(LoopbackHost(5), up.back());
  const auto truth = asker.Receive(milliseconds(300));
  ASSERT_FALSE(truth.empty());
  EXPECT_NE(TokenOf(truth.front().bytes), TokenOf(foreign.front().bytes));
  tap().Inject(Direction::kDown, truth.front().bytes);
  EXPECT_TRUE(e2e::Eventually([&] { return !clients()[0]->status().ok(); }, seconds(5)));
  EXPECT_EQ(clients()[0]->status().code(), StatusCode::kUnavailable) << clients()[0]->status().ToString();
}

}  // namespace
}  // namespace longhaul::attack
