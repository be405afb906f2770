// A sending and a receiving window over a channel that delays, reorders, duplicates and loses, in virtual
// time:
//
//   WindowTx --packets--> [loss, delay, jitter, duplication] --> WindowRx
//      ^------------------- fates [loss, delay] ------------------'
//
// A packet whose fate is not heard of in time is declared lost; when it is heard of later, that was spurious.
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/random.h"
#include "tests/sim/reference_coder.h"
#include "transport/core/window/window_rx.h"
#include "transport/core/window/window_tx.h"

namespace longhaul::transport {
namespace {

using wire::ReliabilityClass;

struct Scenario {
  WindowOptions options;
  double loss = 0;
  double ack_loss = 0;
  double duplication = 0;
  int burst = 1;   // packets lost together
  int delay = 20;  // ticks one way
  int jitter = 0;
  int packets_per_tick = 4;
  int submit_per_tick = 1 << 20;
  double estimate = 0;  // the loss that the sender believes in
  int close_at = -1;    // tick at which the receiver gives up (hard); -1 never
  double refuse = 0;    // share of the chunks that the receiver's owner does not take
};

class Pair final {
 public:
  Pair(Scenario scenario, uint64_t seed) : scenario_(std::move(scenario)), random_(seed) {
    const WindowOptions& o = scenario_.options;
    for (uint32_t i = 0; i < o.high_count + o.low_count; ++i) {
      std::vector<uint8_t>& chunk = chunks_.emplace_back(random_.Below(o.symbol_bytes + 1u));
      for (uint8_t& byte : chunk) byte = static_cast<uint8_t>(random_.Next());
    }
    high_seen_.resize(o.high_count);
    low_seen_.resize(o.low_count);
    low_sent_.resize(o.low_count);
    tx_ = std::make_unique<WindowTx>(o, &coder_);
    EXPECT_TRUE(WindowRx::ValidateOpen(tx_->OpenFrame(), ByteCount(1 << 24), &coder_).ok());
    rx_ = std::make_unique<WindowRx>(tx_->OpenFrame(), &coder_);
  }

  // Runs until the receiver has all of the high class and the channel is empty. False when it takes too long.
  bool Run(int max_ticks) {
    for (tick_ = 0; tick_ < max_ticks; ++tick_) {
      SubmitSome();
      SendSome();
      Arrivals();
      Fates();
      CheckBounds();
      if (tick_ == scenario_.close_at) rx_->Close(wire::CloseReason::kHard);
      if (high_done_at_ < 0 && rx_->HighComplete()) high_done_at_ = tick_;
      const bool over = rx_->closed() || rx_->HighComplete();
      if (over && arrivals_.empty() && in_flight_.empty() && tx_->AllSubmitted() && tx_->Idle()) return true;
      if (rx_->closed() && arrivals_.empty()) return true;
      if (testing::Test::HasFatalFailure()) return false;
    }
    return false;
  }

  void OnChunk(const WindowRx::Chunk& arrived) {
    const auto& [reliability, sequence, chunk, repaired] = arrived;
    const bool high = reliability == ReliabilityClass::kHigh;
    std::vector<uint8_t> expected = chunks_[high ? sequence : scenario_.options.high_count + sequence];
    if (repaired) expected.resize(scenario_.options.symbol_bytes);
    EXPECT_TRUE(std::ranges::equal(chunk, expected)) << "chunk " << sequence << " is not bit-exact";
    int& seen = (high ? high_seen_ : low_seen_)[sequence];
    EXPECT_EQ(++seen, 1) << "chunk " << sequence << " was delivered again";
    if (!high) {
      EXPECT_TRUE(low_sent_[sequence] != 0) << "delivered what was never sent";
    }
    EXPECT_FALSE(rx_->closed());
    const bool refused = scenario_.refuse > 0 && random_.Chance(scenario_.refuse);
    if (!refused) (high ? high_taken_ : low_taken_).insert(sequence);
    if (refused) {
      EXPECT_TRUE(rx_->Refuse(reliability, sequence));
    }
  }

  // The receiver's close, its frames shuffled and repeated, as the sender sees it.
  void CloseBothEnds(wire::CloseReason reason) {
    rx_->Close(reason);
    std::vector<wire::WindowCloseFrame> frames = rx_->CloseFrames();
    const size_t distinct = frames.size();
    for (size_t i = 0; i < distinct; ++i) frames.push_back(frames[random_.Below(distinct)]);
    for (size_t i = frames.size(); i > 1; --i) std::swap(frames[i - 1], frames[random_.Below(i)]);
    int closes = 0;
    for (const auto& frame : frames) closes += tx_->OnClose(frame) ? 1 : 0;
    EXPECT_EQ(closes, 1);
    chunks_.clear();  // the borrowed memory is gone
    EXPECT_FALSE(tx_->Next({}).has_value());
    for (uint32_t i = 0; i < scenario_.options.low_count; ++i) {
      EXPECT_EQ(tx_->receipt().LowTaken(i), low_taken_.contains(i)) << "low chunk " << i;
    }
    for (uint32_t i = 0; i < scenario_.options.high_count; ++i) {
      EXPECT_EQ(tx_->receipt().HighTaken(i), high_taken_.contains(i)) << "high chunk " << i;
    }
    EXPECT_EQ(tx_->receipt().high_complete, high_taken_.size() == scenario_.options.high_count);
    EXPECT_EQ(rx_->buffered(), ByteCount(0));
  }

  void CheckConservation() const {
    const WindowTxStats sent = tx_->stats();
    const WindowRxStats got = rx_->stats();
    EXPECT_EQ(got.high_received + got.high_repaired, rx_->high_done());
    EXPECT_LE(got.low_received, sent.low_sent);
    EXPECT_LE(got.repair_unused, got.repairs_received);
    if (in_flight_.empty()) {
      EXPECT_EQ(sent.lost, declared_lost_ - spurious_) << "losses and spurious ones do not add up";
    }
    EXPECT_LE(sent.settled, sent.lost);
  }

  const WindowTx& tx() const { return *tx_; }
  const WindowRx& rx() const { return *rx_; }
  int tick() const { return tick_; }
  // Tick at which the receiver had all of the high class.
  int high_done_at() const { return high_done_at_; }

 private:
  struct Flying {
    wire::DataHeader header;
    std::vector<uint8_t> bytes;
    uint64_t id = 0;
  };
  struct InFlight {
    SentChunk chunk;
    int deadline = 0;
    bool declared_lost = false;
  };

  PathView Path() const {
    const double recovery_ticks = 1.25 * (2 * scenario_.delay + scenario_.jitter);
    return {.loss = scenario_.estimate,
            .packets_per_recovery_time = recovery_ticks * scenario_.packets_per_tick};
  }

  void SubmitSome() {
    const WindowOptions& o = scenario_.options;
    for (int i = 0; i < scenario_.submit_per_tick && submitted_ < o.high_count + o.low_count;
         ++i, ++submitted_) {
      const ByteSpan chunk = chunks_[submitted_];
      const size_t header = std::min<size_t>(chunk.size(), random_.Below(WindowTx::kMaxChunkHeaderBytes + 1));
      const auto reliability = submitted_ < o.high_count ? ReliabilityClass::kHigh : ReliabilityClass::kLow;
      ASSERT_TRUE(tx_->Submit(reliability, chunk.first(header), chunk.subspan(header)).ok());
    }
  }

  void SendSome() {
    for (int i = 0; i < scenario_.packets_per_tick; ++i) {
      const WindowTx::Tier tier = tx_->NextTier();
      std::optional<WindowTx::Item> item = tx_->Next(Path());
      ASSERT_EQ(item.has_value(), tier != WindowTx::Tier::kNothing);
      if (!item) return;
      if (item->header.reliability == ReliabilityClass::kLow) {
        ASSERT_EQ(++low_sent_[item->header.index], 1) << "a low chunk is sent once";
      }
      Flying flying{item->header, {item->first.begin(), item->first.end()}, next_id_++};
      flying.bytes.insert(flying.bytes.end(), item->second.begin(), item->second.end());
      in_flight_[flying.id] = {item->chunk, tick_ + 2 * scenario_.delay + scenario_.jitter / 2 + 2, false};
      if (burst_left_ == 0 && random_.Chance(scenario_.loss / scenario_.burst)) burst_left_ = scenario_.burst;
      if (burst_left_ > 0) {
        --burst_left_;
        continue;
      }
      if (random_.Chance(scenario_.duplication)) Fly(flying);
      Fly(std::move(flying));
    }
  }

  void Fly(Flying flying) {
    const int jitter = static_cast<int>(random_.Below(static_cast<uint64_t>(scenario_.jitter) + 1));
    arrivals_.emplace(tick_ + scenario_.delay + jitter, std::move(flying));
  }

  void Arrivals() {
    while (!arrivals_.empty() && arrivals_.begin()->first <= tick_) {
      const Flying flying = std::move(arrivals_.begin()->second);
      arrivals_.erase(arrivals_.begin());
      const bool duplicate = rx_->IsDuplicate(flying.header);
      const bool closed = rx_->closed();
      const WindowRx::Verdict verdict = rx_->OnData(flying.header, flying.bytes);
      while (const auto chunk = rx_->PollChunk()) OnChunk(*chunk);
      rx_->EndLoans();
      ASSERT_NE(verdict, WindowRx::Verdict::kInvalid);
      ASSERT_EQ(closed, verdict == WindowRx::Verdict::kClosed);
      if (!closed) {
        ASSERT_EQ(duplicate, verdict == WindowRx::Verdict::kDuplicate);
      }
      if (!random_.Chance(scenario_.ack_loss)) acks_.emplace(tick_ + scenario_.delay, flying.id);
    }
  }

  void Fates() {
    while (!acks_.empty() && acks_.begin()->first <= tick_) {
      const auto at = in_flight_.find(acks_.begin()->second);
      acks_.erase(acks_.begin());
      if (at == in_flight_.end()) continue;
      if (at->second.declared_lost) ++spurious_;
      tx_->OnAcked(at->second.chunk);
      in_flight_.erase(at);
    }
    for (auto at = in_flight_.begin(); at != in_flight_.end();) {
      InFlight& packet = at->second;
      if (!packet.declared_lost && packet.deadline <= tick_) {
        packet.declared_lost = true;
        ++declared_lost_;
        tx_->OnLost(packet.chunk, Path());
      }
      // Long after its deadline nothing can be heard of a packet any more.
      const bool forgotten = packet.deadline + 4 * (scenario_.delay + scenario_.jitter) <= tick_;
      at = forgotten ? in_flight_.erase(at) : std::next(at);
    }
  }

  void CheckBounds() {
    const WindowOptions& o = scenario_.options;
    ASSERT_LE(rx_->buffered().value(), int64_t{o.high_count} * o.symbol_bytes);
    if (rx_->HighComplete()) {
      ASSERT_EQ(rx_->buffered(), ByteCount(0));
    }
    // Liveness: while high chunks are missing, something is under way or wants to leave.
    const bool under_way =
        std::ranges::any_of(in_flight_, [](const auto& p) { return !p.second.declared_lost; });
    if (!rx_->HighComplete() && !rx_->closed() && tx_->AllSubmitted()) {
      ASSERT_TRUE(under_way || !tx_->Idle()) << "nothing will ever happen again, tick " << tick_;
    }
  }

  Scenario scenario_;
  Random random_;
  codec::ReferenceCoder coder_;
  std::unique_ptr<WindowTx> tx_;
  std::unique_ptr<WindowRx> rx_;
  std::vector<std::vector<uint8_t>> chunks_;
  uint32_t submitted_ = 0;
  std::vector<int> high_seen_, low_seen_, low_sent_;
  std::set<uint32_t> high_taken_, low_taken_;
  std::multimap<int, Flying> arrivals_;
  std::multimap<int, uint64_t> acks_;
  std::map<uint64_t, InFlight> in_flight_;
  uint64_t next_id_ = 0;
  uint32_t declared_lost_ = 0;
  uint32_t spurious_ = 0;
  int burst_left_ = 0;
  int tick_ = 0;
  int high_done_at_ = -1;
};

WindowOptions Options(uint32_t high, uint32_t low, uint8_t k = 20, uint8_t depth = 4) {
  WindowOptions options{.key = {.id = 3, .generation = 1},
                        .high_count = high,
                        .low_count = low,
                        .symbol_bytes = 32,
                        .fec_k = k,
                        .fec_depth = depth,
                        .metadata = {}};
  return options;
}

Scenario RandomScenario(Random& random) {
  constexpr uint8_t kSizes[] = {0, 8, 12, 16, 20, 24};
  Scenario s;
  const auto high = static_cast<uint32_t>(random.Below(random.Chance(0.2) ? 1000 : 120));
  const auto low = static_cast<uint32_t>(random.Below(200)) + (high == 0 ? 1 : 0);
  s.options = Options(high, low, kSizes[random.Below(6)], static_cast<uint8_t>(1 + random.Below(9)));
  s.options.symbol_bytes = static_cast<uint16_t>(16 * (1 + random.Below(4)));
  s.loss = random.Chance(0.2) ? 0 : 0.3 * random.Uniform();
  s.ack_loss = random.Chance(0.5) ? 0 : 0.3 * random.Uniform();
  s.duplication = random.Chance(0.5) ? 0 : 0.2 * random.Uniform();
  s.burst = random.Chance(0.7) ? 1 : static_cast<int>(2 + random.Below(12));
  s.delay = static_cast<int>(1 + random.Below(40));
  s.jitter = random.Chance(0.5) ? 0 : static_cast<int>(random.Below(60));
  s.packets_per_tick = static_cast<int>(1 + random.Below(8));
  if (random.Chance(0.3)) s.submit_per_tick = static_cast<int>(1 + random.Below(4));
  s.estimate = random.Chance(0.7) ? s.loss : 0.2 * random.Uniform();
  return s;
}

// Time enough to send everything, and a few round trips for each power of ten of bad luck.
int MaxTicks(const Scenario& s) {
  const int packets = 3 * static_cast<int>(s.options.high_count + s.options.low_count);
  return packets / std::min(s.packets_per_tick, s.submit_per_tick) + 60 * (2 * s.delay + 2 * s.jitter + 4);
}

TEST(WindowPair, DeliversHighExactlyOnceAndBitExactOnAnyChannel) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const Scenario scenario = RandomScenario(random);
    Pair pair(scenario, seed);
    ASSERT_TRUE(pair.Run(MaxTicks(scenario))) << "did not end in " << MaxTicks(scenario) << " ticks";
    EXPECT_TRUE(pair.rx().HighComplete());
    EXPECT_EQ(pair.rx().high_done(), scenario.options.high_count);
    EXPECT_TRUE(pair.tx().Finished());
    pair.CheckConservation();
    pair.CloseBothEnds(pair.rx().Complete() ? wire::CloseReason::kComplete : wire::CloseReason::kSoft);
    if (HasFailure()) return;
  }
}

TEST(WindowPair, ClosesConsistentlyAtAnyMoment) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    Scenario scenario = RandomScenario(random);
    scenario.close_at = static_cast<int>(random.Below(300));
    Pair pair(scenario, seed);
    ASSERT_TRUE(pair.Run(MaxTicks(scenario)));
    pair.CloseBothEnds(wire::CloseReason::kHard);
    if (HasFailure()) return;
  }
}

TEST(WindowPair, WhatTheOwnerRefusesIsNotSentAgainAndNotInTheReceipt) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    Scenario scenario = RandomScenario(random);
    scenario.refuse = random.Chance(0.1) ? 1.0 : random.Uniform();
    if (random.Chance(0.5)) scenario.close_at = static_cast<int>(random.Below(300));
    Pair pair(scenario, seed);
    ASSERT_TRUE(pair.Run(MaxTicks(scenario)));
    pair.CheckConservation();
    pair.CloseBothEnds(wire::CloseReason::kHard);
    if (HasFailure()) return;
  }
}

TEST(WindowPair, APerfectPathCarriesEveryChunkOnceAndNothingElse) {
  Scenario scenario{.options = Options(1000, 3000)};
  Pair pair(scenario, 1);
  ASSERT_TRUE(pair.Run(2000));
  EXPECT_TRUE(pair.rx().Complete());
  EXPECT_EQ(pair.tx().stats().retransmissions, 0u);
  EXPECT_EQ(pair.tx().stats().repairs_sent, 0u);
  EXPECT_EQ(pair.tick(), (1000 + 3000) / 4 + 2 * 20 - 1);
}

TEST(WindowPair, RepairSavesTheTailARoundTrip) {
  // 400 high chunks, 4 a tick, one way 20 ticks, 2 % loss: all has left after 100 ticks and arrives 20 later.
  // Without FEC a chunk of the last 40 ticks' 160 is lost in 96 % of the windows: a round trip more.
  int with_fec = 0;
  int without = 0;
  uint32_t retransmissions = 0;
  const int seeds = 100;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    for (const uint8_t k : std::initializer_list<uint8_t>{20, 0}) {
      Scenario scenario{.options = Options(400, 0, k), .loss = 0.02, .estimate = 0.02};
      Pair pair(scenario, seed);
      ASSERT_TRUE(pair.Run(2000)) << "seed " << seed;
      (k > 0 ? with_fec : without) += pair.high_done_at();
      if (k > 0) retransmissions += pair.tx().stats().retransmissions;
    }
  }
  RecordProperty("with_fec", with_fec / seeds);
  RecordProperty("without", without / seeds);
  EXPECT_LT(with_fec / seeds, 120 + 20) << "repair symbols take their time, a round trip is 40";
  EXPECT_GT(without / seeds, with_fec / seeds + 20);
  EXPECT_LT(retransmissions / seeds, 8u) << "8 of 400 are lost";
}

TEST(WindowPair, ABurstAsLongAsTheInterleaverIsDeepNeedsNoRetransmission) {
  // One burst of 4 in 80 chunks of 4 interleaved blocks: each loses one symbol.
  Scenario scenario{.options = Options(80, 0, 20, 4), .burst = 4, .packets_per_tick = 8, .estimate = 0.05};
  for (uint32_t start = 0; start < 77; start += 7) {
    codec::ReferenceCoder coder;
    WindowTx tx(scenario.options, &coder);
    WindowRx rx(tx.OpenFrame(), &coder);
    const std::vector<uint8_t> body(30, 1);
    for (int i = 0; i < 80; ++i) ASSERT_TRUE(tx.Submit(ReliabilityClass::kHigh, {}, body).ok());
    while (auto item = tx.Next({.loss = 0.05, .packets_per_recovery_time = 400})) {
      const bool hit = !item->header.repair && item->header.index >= start && item->header.index < start + 4;
      std::vector<uint8_t> bytes(item->first.begin(), item->first.end());
      bytes.insert(bytes.end(), item->second.begin(), item->second.end());
      if (!hit) rx.OnData(item->header, bytes);
    }
    EXPECT_TRUE(rx.HighComplete()) << "burst at " << start;
    EXPECT_EQ(rx.stats().high_repaired, 4u);
    EXPECT_EQ(tx.stats().retransmissions, 0u);
  }
}

TEST(WindowPair, SurvivesLosingEverythingForAWhile) {
  // Every packet is lost with probability 0.9: slow, but it ends.
  for (const uint8_t k : std::initializer_list<uint8_t>{0, 8, 20}) {
    Scenario scenario{.options = Options(40, 0, k), .loss = 0.9, .delay = 2, .estimate = 0.9};
    Pair pair(scenario, k + 1u);
    ASSERT_TRUE(pair.Run(6000)) << "k " << int{k};
    EXPECT_TRUE(pair.rx().HighComplete());
  }
}

}  // namespace
}  // namespace longhaul::transport
