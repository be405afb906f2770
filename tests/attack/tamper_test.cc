// An attacker on the path changes packets: a bit of every byte, every length, every bit of headers and tags.
#include <atomic>

#include "tests/attack/support/attack_test.h"

namespace longhaul::attack {
namespace {

constexpr size_t kHeaderAndTag = 32;

// Puts changed copies in front of one packet that `wanted` picks, once.
class Tamper {
 public:
  using Change = std::function<std::vector<Bytes>(ByteSpan)>;
  Tamper(std::function<bool(const Passing&)> wanted, Change change)
      : state_(std::make_shared<State>(std::move(wanted), std::move(change))) {}

  // The tap's thread may use it when the test has ended early.
  Wiretap::Rule rule() {
    return [state = state_](Passing& passing) {
      if (state->done != 0 || !state->wanted(passing)) return;
      passing.before = state->change(passing.bytes);
      state->done = passing.before.size();
    };
  }
  size_t done() const { return state_->done; }

 private:
  struct State {
    State(std::function<bool(const Passing&)> w, Change c) : wanted(std::move(w)), change(std::move(c)) {}
    std::function<bool(const Passing&)> wanted;
    Change change;
    std::atomic<size_t> done{0};
  };
  std::shared_ptr<State> state_;
};

auto AllFlips(ByteSpan packet) { return Flipped(packet, kHeaderAndTag); }

bool IsLong(const Passing& p) { return !p.bytes.empty() && (p.bytes[0] & 0x80) != 0; }
bool IsData(const Passing& p) { return p.bytes.size() > 1000 && (p.bytes[0] & 0xc0) == 0x40; }

class TamperTest : public AttackTest {
 protected:
  // The packet that `wanted` picks is preceded by its changed copies; the job goes on and the sums are right.
  void ExpectNothingChanged(std::function<bool(const Passing&)> wanted, Tamper::Change change,
                            bool to_server) {
    StartTarget();
    const nlohmann::json before = AskServer();
    Tamper tamper(std::move(wanted), std::move(change));
    StartPair(tamper.rule());
    for (int i = 0; i < 10; ++i) Round();
    ASSERT_GT(tamper.done(), 500u) << "the packet was not seen";
    const nlohmann::json after = AskServer();
    // Who they were for has them all and has dropped them; a few may have been lost on the way, which is not
    // what is tested here.
    const int64_t dropped = to_server ? Dropped(after) - Dropped(before)
                                      : static_cast<int64_t>(clients()[0]->stats().datagrams_dropped);
    EXPECT_GE(dropped, static_cast<int64_t>(tamper.done() * 95 / 100));
    EXPECT_EQ(tap().injected(), tamper.done());
    EXPECT_EQ(server().FindEvent("abort"), std::nullopt);
    FinishPair();
  }
};

// Each would gain a packet that is believed though it is not what was sent: other parameters, another
// gradient, an end.
TEST_F(TamperTest, FlippedBitsOfTheFirstInit) {
  ExpectNothingChanged([](const Passing& p) { return p.direction == Direction::kUp && IsLong(p); }, AllFlips,
                       true);
}

TEST_F(TamperTest, FlippedBitsOfTheClientsLastFlight) {
  std::atomic<int> accepts{0};
  ExpectNothingChanged(
      [&](const Passing& p) {
        if (p.direction == Direction::kDown) ++accepts;
        return p.direction == Direction::kUp && IsLong(p) && accepts > 0;
      },
      [](ByteSpan packet) { return Flipped(packet, packet.size()); }, true);
}

TEST_F(TamperTest, FlippedBitsOfTheAccept) {
  ExpectNothingChanged([](const Passing& p) { return p.direction == Direction::kDown && IsLong(p); },
                       AllFlips, false);
}

TEST_F(TamperTest, FlippedBitsOfAGradientsPacket) {
  ExpectNothingChanged([](const Passing& p) { return p.direction == Direction::kUp && IsData(p); }, AllFlips,
                       true);
}

TEST_F(TamperTest, FlippedBitsOfAResultsPacket) {
  ExpectNothingChanged([](const Passing& p) { return p.direction == Direction::kDown && IsData(p); },
                       AllFlips, false);
}

TEST_F(TamperTest, EveryLengthOfAnInit) {
  ExpectNothingChanged([](const Passing& p) { return p.direction == Direction::kUp && IsLong(p); }, Truncated,
                       true);
}

TEST_F(TamperTest, EveryLengthOfAGradientsPacket) {
  ExpectNothingChanged([](const Passing& p) { return p.direction == Direction::kUp && IsData(p); }, Truncated,
                       true);
}

TEST_F(TamperTest, EveryLengthOfAResultsPacket) {
  ExpectNothingChanged([](const Passing& p) { return p.direction == Direction::kDown && IsData(p); },
                       Truncated, false);
}

TEST_F(TamperTest, EveryLengthOfTheAccept) {
  ExpectNothingChanged([](const Passing& p) { return p.direction == Direction::kDown && IsLong(p); },
                       Truncated, false);
}

// The packet and more, up to the largest datagram there is.
std::vector<Bytes> Longer(ByteSpan packet) {
  std::vector<Bytes> copies;
  for (size_t size = packet.size() + 1; size < 2600; ++size) {
    copies.emplace_back(packet.begin(), packet.end()).resize(size);
  }
  for (const size_t size : {4096u, 8972u, 9000u, 16384u, 32768u, 65000u, 65506u, 65507u}) {
    copies.emplace_back(packet.begin(), packet.end()).resize(size);
  }
  return copies;
}

TEST_F(TamperTest, InitsThatAreTooLong) {
  ExpectNothingChanged([](const Passing& p) { return p.direction == Direction::kUp && IsLong(p); }, Longer,
                       true);
}

TEST_F(TamperTest, AcceptsThatAreTooLong) {
  ExpectNothingChanged([](const Passing& p) { return p.direction == Direction::kDown && IsLong(p); }, Longer,
                       false);
}

TEST_F(TamperTest, GradientsPacketsThatAreTooLong) {
  ExpectNothingChanged([](const Passing& p) { return p.direction == Direction::kUp && IsData(p); }, Longer,
                       true);
}

TEST_F(TamperTest, ResultsPacketsThatAreTooLong) {
  ExpectNothingChanged([](const Passing& p) { return p.direction == Direction::kDown && IsData(p); }, Longer,
                       false);
}

}  // namespace
}  // namespace longhaul::attack
