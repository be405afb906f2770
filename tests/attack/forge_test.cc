// Datagrams in the server's name: an attacker that ends a connection stalls the job.
#include <algorithm>
#include <atomic>

#include "base/random.h"
#include "proto/packet_header.h"
#include "tests/attack/support/attack_test.h"
#include "tests/attack/support/certified_test.h"

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

uint64_t DestinationOf(ByteSpan long_packet) {
  ByteReader reader(long_packet);
  const auto header = wire::DecodeLongHeader(reader);
  return header ? header->destination.value : 0;
}
constexpr uint64_t kNobody = 0xabcd'0000'1234'5678;  // a server that there is not

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

// With certificates the key of long packets is public: a man on the side sees the worker's INITs and answers
// them before the server does.
class ForgeCertified : public CertifiedTest {
 protected:
  void SetUp() override {
    CertifiedTest::SetUp();
    StartTarget();
    forger_.emplace(KeyOf("stranger"));
    auto impostor = keys::LoadSecurity({.key_file = KeyOf("impostor"), .role = crypto::Role::kServer});
    ASSERT_TRUE(impostor.ok()) << impostor.status().ToString();
    impostor_ = *std::move(impostor);
  }
  static wire::TransportParametersFrame Parameters(uint64_t idle_ms = 10'000) {
    return {1452, idle_ms, 1 << 20, 16, 1 << 30};
  }
  // Everything that an INIT can be answered with, by name; `source` is the server that it pretends to be.
  std::vector<std::pair<std::string, std::vector<Bytes>>> Answers(ByteSpan init, uint64_t source) {
    const uint64_t worker = SourceOf(init);
    const Bytes garbage(300, 22), alert = {21, 3, 3, 0, 2, 2, 40};
    const auto answer = [&](const std::vector<wire::Frame>& frames) {
      return forger_->Accept(worker, source, frames);
    };
    std::vector<std::pair<std::string, std::vector<Bytes>>> all;
    all.push_back({"no ServerHello", {answer({Parameters(), wire::CryptoFrame{0, 0, garbage}})}});
    all.push_back({"a TLS alert", {answer({Parameters(), wire::CryptoFrame{0, 0, alert}})}});
    all.push_back({"parameters only", {answer({Parameters()})}});
    all.push_back({"an empty packet", {answer({})}});
    all.push_back({"bytes that were never sent", {answer({Parameters(), wire::CryptoFrame{0, 60'000, {}}})}});
    all.push_back({"frames of short packets", {answer({Parameters(), wire::GrantFrame{1, 1}})}});
    all.push_back({"a CLOSE", {answer({wire::CloseFrame{StatusCode::kPermissionDenied, "go away"}})}});
    std::vector<Bytes> retries;
    for (uint8_t i = 0; i < 8; ++i) retries.push_back(forger_->Retry(worker, Bytes(16, i)));
    all.push_back({"RETRYs", std::move(retries)});
    if (const auto hello = forger_->CryptoOf(init); hello && hello->offset == 0) {
      all.push_back({"a server of another authority", Impostor(worker, source, hello->data)});
    }
    return all;
  }
  std::vector<Bytes> Impostor(uint64_t worker, uint64_t source, const Bytes& hello) {
    auto session = impostor_.security()->NewSession(false);
    EXPECT_TRUE(session->HandleData(hello).ok());
    const Bytes flight = session->TakeData();
    std::vector<Bytes> packets;
    for (size_t at = 0; at < flight.size(); at += 1000) {
      const ByteSpan piece = ByteSpan(flight).subspan(at, std::min<size_t>(1000, flight.size() - at));
      packets.push_back(
          forger_->Accept(worker, source, {Parameters(), wire::CryptoFrame{at, hello.size(), piece}}));
    }
    return packets;
  }
  static bool IsInit(const Passing& p) {
    return p.direction == Direction::kUp && (p.bytes[0] & 0x83) == 0x80;
  }
  static bool IsAccept(const Passing& p) {
    return p.direction == Direction::kDown && (p.bytes[0] & 0x83) == 0x81;
  }

  std::optional<Forger> forger_;
  keys::LoadedSecurity impostor_;
};

// Would gain: a worker that gives up, by one datagram.
TEST_F(ForgeCertified, NoSingleAnswerEndsAJoin) {
  const size_t kinds = 9;
  for (size_t kind = 0; kind < kinds; ++kind) {
    std::atomic<int> forged{0};
    std::string name;
    StartPair([&](Passing& passing) {
      if (!IsInit(passing) || forged > 0) return;
      const auto all = Answers(passing.bytes, kNobody);
      ASSERT_EQ(all.size(), kinds);
      name = all[kind].first;
      for (const Bytes& bytes : all[kind].second) tap().Inject(Direction::kDown, bytes);
      ++forged;
    });
    SCOPED_TRACE(name);
    EXPECT_EQ(forged, 1);
    ASSERT_FALSE(HasFatalFailure());
    Round();
    FinishPair();
    clients().clear();
  }
}

// Would gain: the same, of an attacker that is always faster, knows the server's connection ID as soon as it
// was seen, and spoils what the server has yet to say.
TEST_F(ForgeCertified, NoneOfThemAtEveryInitEndsAJoin) {
  std::atomic<int> forged{0};
  std::atomic<uint64_t> server{0};
  StartPair([&](Passing& passing) {
    if (IsInit(passing) && DestinationOf(passing.bytes) != kNobody) {
      for (const uint64_t source : {kNobody, server.load()}) {
        if (source == 0) continue;
        for (const auto& [name, answers] : Answers(passing.bytes, source)) {
          for (const Bytes& bytes : answers) tap().Inject(Direction::kDown, bytes);
          ++forged;
        }
      }
    }
    if (IsAccept(passing)) {
      const uint64_t source = SourceOf(passing.bytes), worker = DestinationOf(passing.bytes);
      const auto part = forger_->CryptoOf(passing.bytes);
      if (!part) return;
      // Other parameters under the server's own ID, and what it will say next, wrong.
      passing.before.push_back(forger_->Accept(worker, source, {Parameters(9'999)}));
      if (part->offset > 0 || server.exchange(source) != 0) return;
      const Bytes next(200, 23);
      passing.before.push_back(forger_->Accept(
          worker, source, {Parameters(), wire::CryptoFrame{part->offset + part->data.size(), 0, next}}));
    }
  });
  EXPECT_GE(forged, 9);
  EXPECT_NE(server, 0u);
  for (int i = 0; i < 3; ++i) Round();
  FinishPair();
}

// What is no forgery is named, and soon: the only server that answers is of another authority.
TEST_F(ForgeCertified, AServerOfAnotherAuthorityIsNamedInSeconds) {
  Wiretap tap(port());
  tap.SetRule([&](Passing& passing) {
    passing.drop = true;
    if (!IsInit(passing)) return;
    const auto hello = forger_->CryptoOf(passing.bytes);
    if (!hello || hello->offset != 0) return;
    for (const Bytes& bytes : Impostor(SourceOf(passing.bytes), 0x77, hello->data)) {
      tap.Inject(Direction::kDown, bytes);
    }
  });
  ConnectOptions options;
  options.servers = {tap.address()};
  options.key_file = client_key(0);
  options.world_size = 2;
  options.connect_timeout = kPatience;
  const auto begin = e2e::Clock::now();
  const auto client = Client::Connect(options);
  const auto took = e2e::Clock::now() - begin;
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), StatusCode::kPermissionDenied) << client.status().ToString();
  EXPECT_THAT(client.status().message(), ::testing::HasSubstr("was not issued by our CA"));
  EXPECT_LT(took, seconds(5) * kSlowness);
}

}  // namespace
}  // namespace longhaul::attack
