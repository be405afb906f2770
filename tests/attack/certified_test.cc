// A server of certificates answers INITs that any host can make: a TLS key exchange and a chain of
// certificates for each. What strangers gain from that.
#include <algorithm>
#include <iostream>
#include <map>

#include "proto/packet_header.h"
#include "tests/attack/support/certified_test.h"
#include "tests/attack/support/flood.h"

namespace longhaul::attack {
namespace {

constexpr int kRoom = 64;                      // AdmissionOptions::max_half_open
constexpr int kWithoutCookie = 200;            // AdmissionOptions::inits_without_cookie
constexpr Duration kLast = milliseconds(150);  // for the last answers
constexpr uint8_t kAccept = 0x81;

class Certified : public CertifiedTest {
 protected:
  virtual e2e::Flags Room() const { return {}; }  // for handshakes
  void SetUp() override {
    CertifiedTest::SetUp();
    StartTarget(Room());
    StartPair();
    Round();
    stranger_.emplace(KeyOf("stranger"));
    socket_.emplace(port());
    before_ = AskServer();
    memory_ = Memory();
  }
  // No stranger has become a member, nothing has grown, no host got more than thrice what came in its name.
  void ExpectNothingGained(int questions) {
    ExpectNoAmplifier(*socket_);
    EXPECT_LE(Memory() - memory_, kFlatBytes);
    const nlohmann::json after = AskServer();
    EXPECT_LE(after["endpoint"].value("half_open", 999), kRoom);
    EXPECT_EQ(Change(before_, after, "accepted"), questions + 1) << "only who asked for the status";
    EXPECT_EQ(after.value("joined", -1), 2);
    Round();
    FinishPair();
  }
  // No faster than the server takes them: INITs of a stranger with these connection IDs, each with the cookie
  // that is known for it.
  void Send(uint32_t host, uint64_t first, uint64_t count, uint64_t number) {
    for (uint64_t id = first; id < first + count; ++id) {
      const auto cookie = cookies_.find(id);
      socket_->Send(host,
                    stranger_->Init(id, cookie == cookies_.end() ? ByteSpan() : cookie->second, number));
      if (++sent_ % 32 == 0) Take(milliseconds(1));
    }
  }
  // Counts ACCEPTs by connection, and keeps the cookies.
  void Take(Duration limit) {
    for (const auto& answer : socket_->Receive(limit)) {
      ByteReader reader(answer.bytes);
      const auto header = wire::DecodeLongHeader(reader);
      ASSERT_TRUE(header) << "no short packet is for who has not finished a handshake";
      if (answer.bytes[0] == kAccept) ++accepts_[header->destination.value];
      if (const auto cookie = CookieOf(answer.bytes)) cookies_[header->destination.value] = *cookie;
    }
  }

  std::optional<Forger> stranger_;
  std::optional<SpoofingSocket> socket_;
  nlohmann::json before_;
  int64_t memory_ = 0;
  uint64_t sent_ = 0;
  std::map<uint64_t, Bytes> cookies_;
  std::map<uint64_t, int> accepts_;
};

// Would gain: the server's processor, with a key exchange and a signature per datagram; room for handshakes.
TEST_F(Certified, AFloodOfInitsThatOpenCostsCookiesOnly) {
  std::vector<Bytes> inits;
  for (uint64_t i = 0; i < 512; ++i) inits.push_back(stranger_->Init(0x1000 + i));
  constexpr Duration kFlood = seconds(1);
  Flood flood(port(), {.per_second = 100'000.0 / kSlowness, .hosts = 50'000, .datagrams = inits}, kFlood);
  int rounds = 0;
  for (const auto end = e2e::Clock::now() + kFlood; e2e::Clock::now() < end; ++rounds) Round();
  flood.Stop();
  const nlohmann::json after = AskServer();
  std::cout << static_cast<int64_t>(flood.per_second()) << " INITs per second, " << rounds << " rounds, "
            << Change(before_, after, "datagrams_received") << " of " << flood.sent() << " taken in, "
            << Change(before_, after, "retries_sent") << " retries\n";
  EXPECT_GT(flood.per_second(), 1000);
  EXPECT_GE(rounds, kSlowness > 1 ? 1 : 3) << "in a second";
  EXPECT_GT(Change(before_, after, "retries_sent"), 500) << "the packets did open";
  (void)flood.socket().Receive(milliseconds(10));
  ExpectNoAmplifier(flood.socket());
  ExpectNothingGained(1);
}

// Would gain: certificates, which are long, for a third party; a half-open connection per address.
TEST_F(Certified, SpoofedInitsBringTheirVictimsNoMoreThanThreefold) {
  constexpr uint32_t kHosts = 600;
  for (uint32_t i = 0; i < kHosts; ++i) Send(LoopbackHost(1 + i), 0x1000 + i, 1, 0);
  Take(kLast);
  EXPECT_GT(accepts_.size(), 0u) << "the first ones are served without a cookie: else nothing is tried here";
  EXPECT_LE(accepts_.size(), static_cast<size_t>(kRoom));
  EXPECT_GE(cookies_.size(), kHosts / 2);
  ExpectNothingGained(0);
}

// Would gain: that a stranger's handshakes are taken for those of an address that has proved itself.
TEST_F(Certified, ACookieIsWorthNothingElsewhere) {
  const uint32_t attacker = LoopbackHost(20'001), victim = LoopbackHost(20'002);
  const auto load = [&] {
    for (uint32_t i = 0; i < 2 * kWithoutCookie; ++i)
      socket_->Send(LoopbackHost(5000 + i), stranger_->Init(0x9000 + i));
  };
  load();
  Send(attacker, 0x77, 2, 0);
  Take(kLast);
  ASSERT_TRUE(cookies_.contains(0x77) && cookies_.contains(0x78));
  const Bytes mine = cookies_[0x77];
  const auto refused = [&](uint32_t host, uint64_t id, const Bytes& cookie, const char* what) {
    load();
    cookies_[id] = cookie;
    accepts_.clear();
    Send(host, id, 1, 1);
    Take(kLast);
    EXPECT_FALSE(accepts_.contains(id)) << what;
  };
  refused(victim, 0x77, mine, "another's address");
  refused(attacker, 0x78, mine, "another connection");
  Bytes forged = mine;
  forged.back() ^= 1;
  refused(attacker, 0x77, forged, "a forged one");
  cookies_[0x77] = mine;
  Send(attacker, 0x77, 1, 2);
  Take(kLast);
  EXPECT_TRUE(accepts_.contains(0x77)) << "the true one is good";
  // And again: the connection is there already.
  Send(attacker, 0x77, 1, 3);
  EXPECT_EQ(Change(before_, AskServer(), "cookies_refused"), 3);
  ExpectNothingGained(1);
}

// Would gain: all the room for handshakes, so that no new peer gets in: the sender's address is true.
TEST_F(Certified, AProvedAddressBeginsNoMoreHandshakesThanThereIsRoomFor) {
  constexpr uint64_t kConnections = 500;
  const uint32_t host = LoopbackHost(30'000);
  Send(host, 0x1000, kConnections, 0);
  Take(kLast);
  ASSERT_GE(cookies_.size(), kConnections / 2);
  Send(host, 0x1000, kConnections, 1);
  Take(kLast);
  EXPECT_GT(accepts_.size(), kRoom / 4u) << "cookies let some of them in";
  EXPECT_LE(accepts_.size(), kRoom / 2u) << "one host's share of the room";
  Round();
  // No handshake finishes, and after the half-open time-out they are gone.
  EXPECT_TRUE(e2e::Eventually([&] { return AskServer()["endpoint"].value("half_open", 999) <= 1; }));
  const nlohmann::json after = AskServer();
  EXPECT_GE(Change(before_, after, "half_open_refused") + Change(before_, after, "inits_limited"), 100);
  ExpectNoAmplifier(*socket_);
  EXPECT_LE(Memory() - memory_, kFlatBytes);
  EXPECT_EQ(after.value("joined", -1), 2);
  Round();
  FinishPair();
}

class CertifiedNarrow : public Certified {
 protected:
  e2e::Flags Room() const override { return {{"--max-half-open", "6"}, {"--half-open-timeout", "0.5"}}; }
};

// The operator's bound, not the default one; and places are free again as soon as it says.
TEST_F(CertifiedNarrow, TheRoomForHandshakesIsTheServersOption) {
  const uint32_t host = LoopbackHost(30'001);
  Send(host, 0x1000, 100, 0);
  Take(kLast);
  ASSERT_GE(cookies_.size(), 50u);
  Send(host, 0x1000, 100, 1);
  Take(kLast);
  const size_t first = accepts_.size();
  EXPECT_GE(first, 1u);
  EXPECT_LE(first, 6u) << "three at once, for half a second each";
  EXPECT_TRUE(
      e2e::Eventually([&] { return AskServer()["endpoint"].value("half_open", 999) <= 1; }, seconds(3)));
  Round();
  FinishPair();
}

}  // namespace
}  // namespace longhaul::attack
