// INITs with addresses that are not the sender's: for the server's memory, and against the hosts at these
// addresses.
#include <algorithm>

#include "tests/attack/support/attack_test.h"

namespace longhaul::attack {
namespace {

constexpr uint32_t kHosts = 3000;

class Spoof : public AttackTest {
 protected:
  // One INIT from each host, no faster than the server takes them.
  void SendFromEverywhere(SpoofingSocket& socket, const std::vector<Bytes>& inits) {
    for (uint32_t i = 0; i < kHosts; ++i) {
      socket.Send(LoopbackHost(1 + i), inits[i % inits.size()]);
      if (i % 64 == 63)
        for (const auto& answer : socket.Receive(milliseconds(2))) answers_.push_back(answer);
    }
    // Also what a half-open handshake would repeat.
    for (const auto& answer : socket.Receive(milliseconds(700))) answers_.push_back(answer);
  }
  std::vector<SpoofingSocket::Incoming> answers_;
};

// Would gain: three times or more the bytes for a victim, key exchanges, memory per address.
TEST_F(Spoof, InitsOfAMemberGetNoMoreThanThreefoldAndLeaveNothing) {
  StartTarget();
  StartPair();
  Round();
  const nlohmann::json before = AskServer();
  const int64_t memory = Memory();
  Forger forger(key_file());
  std::vector<Bytes> inits;
  for (uint64_t i = 0; i < kHosts; ++i) inits.push_back(forger.Init(0x1000 + i));
  SpoofingSocket socket(port());
  SendFromEverywhere(socket, inits);
  ExpectNoAmplifier(socket);
  const nlohmann::json after = AskServer();
  EXPECT_LE(after["endpoint"].value("half_open", 999), 64);
  EXPECT_GE(Change(before, after, "retries_sent"), kHosts / 2) << "most are only asked for a cookie";
  EXPECT_EQ(Change(before, after, "accepted"), 1) << "only the question itself";
  EXPECT_LE(Memory() - memory, kFlatBytes);
  // And all of it is gone after the half-open time-out.
  EXPECT_TRUE(e2e::Eventually([&] { return AskServer()["endpoint"].value("half_open", 999) <= 1; }));
  Round();
  FinishPair();
}

// Without the job's key there is a word to the first few, that it does not open.
TEST_F(Spoof, InitsOfAStrangerAreRefusedForAFew) {
  StartTarget();
  StartPair();
  Round();
  const nlohmann::json before = AskServer();
  const int64_t memory = Memory();
  std::vector<Bytes> inits;
  for (uint64_t i = 0; i < kHosts; ++i) inits.push_back(NoiseInit(0x1000 + i));
  SpoofingSocket socket(port());
  SendFromEverywhere(socket, inits);
  // 100 at once, and 100 a second.
  EXPECT_LE(answers_.size(), 300u) << "answers to packets that no holder of the key has made";
  ExpectNoAmplifier(socket);
  const nlohmann::json after = AskServer();
  EXPECT_GE(Change(before, after, "not_authentic_dropped"), kHosts * 95 / 100);
  EXPECT_EQ(Change(before, after, "retries_sent"), 0);
  EXPECT_LE(Memory() - memory, kFlatBytes);
  Round();
  FinishPair();
}

// Short packets of connections that are not: would gain an answer that is as long as the question.
TEST_F(Spoof, ShortPacketsGetShorterAnswersAndFewOfThem) {
  StartTarget();
  std::vector<Bytes> packets;
  for (uint64_t i = 0; i < 64; ++i) {
    packets.push_back(NoiseInit(i, 24 + i));  // down to what is too short to be answered
    packets.back()[0] = 0;
  }
  SpoofingSocket socket(port());
  SendFromEverywhere(socket, packets);
  for (const auto& [host, bytes] : socket.received()) EXPECT_LT(bytes, socket.sent().at(host));
  EXPECT_FALSE(answers_.empty());
  EXPECT_LE(answers_.size(), 100u * 60u) << "a hundred a second";
}

// A cookie proves one address for one connection at one server.
TEST_F(Spoof, ForeignStaleAndForgedCookiesProveNothing) {
  StartTarget();
  Forger forger(key_file());
  SpoofingSocket socket(port());
  // Under load from elsewhere every newcomer is asked for one.
  const auto cookie_for = [&](uint32_t host, uint64_t source) -> std::optional<Bytes> {
    std::vector<Bytes> load;
    for (uint64_t i = 0; i < 300; ++i) load.push_back(forger.Init(0x9000 + i));
    for (uint32_t i = 0; i < load.size(); ++i) socket.Send(LoopbackHost(5000 + i), load[i]);
    socket.Send(host, forger.Init(source));
    for (const auto& answer : socket.Receive(milliseconds(300))) {
      if (answer.host == host) return CookieOf(answer.bytes);
    }
    return std::nullopt;
  };
  const auto answered_with_accept = [&](uint32_t host, const Bytes& init) {
    (void)socket.Receive(milliseconds(1));  // what came later than it was waited for
    socket.Send(host, init);
    const auto answers = socket.Receive(milliseconds(300));
    return std::any_of(answers.begin(), answers.end(),
                       [&](const auto& answer) { return answer.host == host && answer.bytes[0] == 0x81; });
  };
  const uint32_t victim = LoopbackHost(20'001), attacker = LoopbackHost(20'002);
  const auto cookie = cookie_for(attacker, 0x77);
  ASSERT_TRUE(cookie && !cookie->empty());
  // Keep the load up, so that an INIT without a good cookie is not admitted anyway.
  const auto expect_refused = [&](uint32_t host, const Bytes& init, const char* what) {
    const nlohmann::json before = AskServer();
    for (uint64_t i = 0; i < 300; ++i)
      socket.Send(LoopbackHost(6000 + static_cast<uint32_t>(i)), forger.Init(0xa000 + i));
    EXPECT_FALSE(answered_with_accept(host, init)) << what;
    EXPECT_EQ(Change(before, AskServer(), "cookies_refused"), 1) << what;
  };
  expect_refused(victim, forger.Init(0x77, *cookie, 1), "another's address");
  expect_refused(attacker, forger.Init(0x78, *cookie, 1), "another connection");
  Bytes forged = *cookie;
  forged.back() ^= 1;
  expect_refused(attacker, forger.Init(0x77, forged, 1), "a forged one");
  EXPECT_TRUE(answered_with_accept(attacker, forger.Init(0x77, *cookie, 2))) << "the true one is good";
  // A restarted server has other cookies. (That they are stale after a minute: tests/crypto, in virtual
  // time.)
  server().Signal(SIGTERM);
  ExpectEnd(server(), 0);
  StartTarget({{"--listen", "127.0.0.1:" + std::to_string(port())}});
  expect_refused(attacker, forger.Init(0x77, *cookie, 3), "of a server's earlier life");
}

}  // namespace
}  // namespace longhaul::attack
