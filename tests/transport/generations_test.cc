// Windows of consecutive rounds alive at once, over a path that loses, copies and reorders, and closed before
// all of them is here; then what is missing travels once more, as the next generation of the same id. Every
// datagram is attributed to its window, or dropped and counted; a window is over exactly once at each side.
//
//   1.0 ------+  1.1 ----+           closed at random moments, in any order
//      2.0 ----+---
//          3.0 -----+- 3.1 ----+  ...
#include <gtest/gtest.h>

#include <set>

#include "tests/transport/connection_pair.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;
using Class = wire::ReliabilityClass;

constexpr uint32_t kHigh = 30;
constexpr uint32_t kLow = 40;
constexpr uint16_t kSymbol = 304;
constexpr uint32_t kRounds = 50;

// Keeps the books of the server's side by itself: what was delivered to which window, and which are over.
class Books {
 public:
  Books(ConnectionPair* pair, uint64_t seed) : pair_(pair), chance_(seed) {
    pair->server.auto_close = false;
    pair->server.refuse_chunk = [this](WindowKey key, Class reliability, uint32_t sequence) {
      EXPECT_FALSE(over_.contains(key))
          << "a chunk of a window that is over: " << key.id << "." << key.generation;
      const bool fresh = delivered_[key].insert({reliability == Class::kHigh, sequence}).second;
      EXPECT_TRUE(fresh) << "twice";
      return false;
    };
  }

  void Run() {
    for (uint32_t round = 1; round <= kRounds; ++round) {
      Send({round, 0});
      pair_->RunFor(Duration(static_cast<int64_t>(chance_.Uniform() * 12e6)));
      together_ += Alive().size() >= 2 ? 1 : 0;
      while (Alive().size() > 2) CloseOne();
      SendAgain();
    }
    const auto all_over = [this] { return pair_->worker.closes.size() == sent_.size(); };
    for (int i = 0; i < 1000 && !all_over(); ++i) {
      pair_->RunFor(20ms);
      if (!Alive().empty()) CloseOne();
      SendAgain();
    }
    ASSERT_TRUE(all_over());
    pair_->RunFor(3s);  // copies of all that is still on its way
  }

  // What the sender knows about every window is what was delivered of it.
  void Check() {
    for (const WindowKey key : sent_) {
      SCOPED_TRACE("window " + std::to_string(key.id) + "." + std::to_string(key.generation));
      EXPECT_EQ(pair_->worker.closes.at(key), 1) << "CLOSE is idempotent";
      const WindowReceipt& receipt = pair_->worker.outgoing.at(key).receipt;
      const auto& delivered = delivered_[key];
      for (uint32_t i = 0; i < kHigh; ++i)
        EXPECT_EQ(receipt.HighTaken(i), delivered.contains({true, i})) << i;
      for (uint32_t i = 0; i < kLow; ++i) EXPECT_EQ(receipt.LowTaken(i), delivered.contains({false, i})) << i;
      const Recorder::Incoming& in = pair_->server.incoming.at(key);
      for (const auto& [i, bytes] : in.high)
        EXPECT_EQ(bytes, ConnectionPair::ChunkBytes(key, true, i, kSymbol));
      for (const auto& [i, bytes] : in.low)
        EXPECT_EQ(bytes, ConnectionPair::ChunkBytes(key, false, i, kSymbol));
    }
    EXPECT_GT(together_, kRounds / 2);
    EXPECT_GT(sent_.size(), kRounds + kRounds / 4) << "or there are no generations";
  }
  size_t windows() const { return sent_.size(); }

 private:
  void Send(WindowKey key) {
    sent_.insert(key);
    pair_->SendWindow(key, kHigh, kLow, 8, kSymbol);
  }
  void SendAgain() {
    for (const WindowKey key : std::set<WindowKey>(sent_)) {
      const WindowKey next{key.id, static_cast<uint8_t>(key.generation + 1)};
      const auto over = pair_->worker.outgoing.find(key);
      if (over == pair_->worker.outgoing.end() || over->second.receipt.high_complete) continue;
      if (next.generation < 3 && !sent_.contains(next)) Send(next);
    }
  }
  std::vector<WindowKey> Alive() const {
    std::vector<WindowKey> alive;
    for (const auto& [key, in] : pair_->server.incoming) {
      if (!over_.contains(key)) alive.push_back(key);
    }
    return alive;
  }
  void CloseOne() {
    const std::vector<WindowKey> alive = Alive();
    const WindowKey key = alive[chance_.Below(alive.size())];
    over_.insert(key);
    for (int times = 0; times < 2; ++times) {
      pair_->server.connection->CloseWindow(key, wire::CloseReason::kHard);
    }
    pair_->server_host->Pump();
  }

  ConnectionPair* pair_;
  Random chance_;
  std::map<WindowKey, std::set<std::pair<bool, uint32_t>>> delivered_;
  std::set<WindowKey> sent_;
  std::set<WindowKey> over_;
  uint32_t together_ = 0;
};

// Datagrams in one direction, by the network and by who received them.
struct Heard {
  uint64_t arrived = 0;
  uint64_t copies = 0;
  uint64_t taken = 0;
  uint64_t dropped = 0;
};

Heard HeardOf(ConnectionPair& pair, bool up) {
  const auto from = up ? pair.worker_site() : pair.server_site();
  const auto to = up ? pair.server_site() : pair.worker_site();
  const wan::LinkCounters& link = pair.network().Link(from, to).counters();
  const ConnectionStats stats = (up ? pair.server : pair.worker).connection->stats();
  return {link.packets_delivered, link.duplicated, stats.packets_received, stats.duplicates_dropped};
}

TEST(Generations, EveryDatagramOfWindowsAliveAtOnceIsAttributedOrDroppedAndCounted) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ConnectionPair::Options options;
    options.seed = seed;
    options.link = "rate 50mbit delay 20ms jitter 15ms jitter-reorders queue 50ms duplicate 15% loss 5%";
    ConnectionPair pair(options);
    ASSERT_TRUE(pair.Establish(30s));
    pair.RunFor(1s);  // copies of the handshake are the endpoint's to count
    const Heard before[2] = {HeardOf(pair, false), HeardOf(pair, true)};
    Books books(&pair, seed);
    books.Run();
    books.Check();
    for (const bool up : {true, false}) {
      const Heard heard = HeardOf(pair, up);
      const Heard& until = before[up ? 1 : 0];
      EXPECT_EQ(heard.taken + heard.dropped - until.taken - until.dropped, heard.arrived - until.arrived);
      EXPECT_EQ(heard.dropped - until.dropped, heard.copies - until.copies)
          << "only the network's copies are";
    }
    const ConnectionStats stats = pair.server.connection->stats();
    EXPECT_GT(stats.late_dropped, 50u);
    EXPECT_EQ(stats.windows_closed, books.windows());
    EXPECT_EQ(stats.malformed_dropped + stats.bad_tag_dropped + stats.unknown_window_dropped, 0u);
    pair.ExpectNoTimeViolation();
  }
}

// Without loss the books are exact to the chunk: what left and was not delivered came too late.
TEST(Generations, WhatIsNotDeliveredIsCountedAsLate) {
  ConnectionPair::Options options;
  options.link = "rate 50mbit delay 20ms jitter 15ms jitter-reorders queue 50ms duplicate 15%";
  ConnectionPair pair(options);
  ASSERT_TRUE(pair.Establish());
  pair.server.auto_close = false;
  uint64_t delivered = 0;
  pair.server.refuse_chunk = [&](WindowKey, Class, uint32_t) {
    ++delivered;
    return false;
  };
  pair.SendWindow((WindowKey{1, 0}), 0, kLow, 0, kSymbol);
  pair.SendWindow((WindowKey{2, 0}), 0, kLow, 0, kSymbol);
  ASSERT_TRUE(pair.RunUntil([&] { return delivered > kLow; }, 1s));
  pair.server.connection->CloseWindow((WindowKey{2, 0}), wire::CloseReason::kSoft);
  const uint64_t of_the_other = pair.server.incoming[(WindowKey{1, 0})].low.size();
  pair.server_host->Pump();
  pair.RunFor(2s);
  const auto here = [&](WindowKey key) { return pair.server.incoming.at(key).low.size(); };
  EXPECT_EQ(here((WindowKey{1, 0})), kLow) << "the other one goes on";
  EXPECT_LT(of_the_other, kLow);
  const uint64_t sent = pair.worker.outgoing.at((WindowKey{2, 0})).stats.low_sent;
  EXPECT_EQ(here((WindowKey{2, 0})) + pair.server.connection->stats().late_dropped, sent);
  EXPECT_GT(pair.server.connection->stats().late_dropped, 0u);
}

}  // namespace
}  // namespace longhaul::transport
