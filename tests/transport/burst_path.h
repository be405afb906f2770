// Windows one after another over a path that loses in bursts, in virtual time, for the tests of FEC planning:
//
//   WindowTx --4 packets a tick--> [Gilbert-Elliott loss, 20 ticks] --> WindowRx
//      ^------------- fates [20 ticks; a loss is declared 2 ticks later] ---'
//
// A recovery time is 50 ticks, 200 packets. The path and what the sender knows of it outlive the windows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/quantile.h"
#include "base/random.h"
#include "tests/sim/reference_coder.h"
#include "transport/core/window/window_rx.h"
#include "transport/core/window/window_tx.h"
#include "wan/link_model.h"

namespace longhaul::transport {

// What plans the FEC: sees the fates, tells the path and the depth.
class FecPlanner {
 public:
  virtual ~FecPlanner() = default;
  virtual uint64_t OnSent() = 0;
  virtual void OnFate(uint64_t place, bool lost, Instant now) = 0;
  virtual PathView Path() const = 0;
  virtual uint8_t Depth() const = 0;
};

struct BurstResult {
  uint64_t blocks = 0;
  uint64_t failed = 0;  // needed a retransmission after the last source had left: a recovery time more
  uint64_t retransmissions = 0;
  uint64_t high = 0;
  uint64_t repair = 0;
  std::vector<int> ticks;  // per window, until the high class is complete

  double failure_rate() const { return static_cast<double>(failed) / static_cast<double>(blocks); }
  double overhead() const {
    return static_cast<double>(repair + retransmissions) / static_cast<double>(high);
  }
  double mean_ticks() const {
    double sum = 0;
    for (const int t : ticks) sum += t;
    return sum / static_cast<double>(ticks.size());
  }
  int Percentile(double share) const { return Quantile(ticks, share); }
};

class BurstPath final {
 public:
  static constexpr int kOneWay = 20;
  static constexpr int kPacketsPerTick = 4;
  static constexpr double kPacketsPerRecoveryTime = 1.25 * 2 * kOneWay * kPacketsPerTick;
  static constexpr Duration kTick = std::chrono::milliseconds(1);

  BurstPath(double loss, double burst, uint64_t seed, FecPlanner* planner)
      : process_(loss, burst, Random(seed)), planner_(planner) {}

  // Sends windows until `count` are complete. The first `warm_up` are not in the result.
  BurstResult Run(uint32_t high, uint32_t low, int count, int warm_up) {
    BurstResult result;
    for (int w = 0; w < count; ++w) {
      BurstResult ignored;
      SendWindow(high, low, w < warm_up ? &ignored : &result);
      if (testing::Test::HasFatalFailure()) break;
    }
    return result;
  }

 private:
  struct Flying {
    int arrives = 0;
    int known = 0;
    bool lost = false;
    uint64_t place = 0;
    uint32_t window = 0;
    wire::DataHeader header;
    SentChunk chunk;
    std::vector<uint8_t> bytes;
  };

  void SendWindow(uint32_t high, uint32_t low, BurstResult* result) {
    const WindowOptions options{.key = {.id = ++window_, .generation = 0},
                                .high_count = high,
                                .low_count = low,
                                .symbol_bytes = 16,
                                .fec_k = 20,
                                .fec_depth = planner_->Depth(),
                                .metadata = {}};
    const BlockMap map(high, options.fec_k, options.fec_depth);
    WindowTx tx(options, &coder_);
    WindowRx rx(tx.OpenFrame(), &coder_);
    for (uint32_t i = 0; i < high; ++i) ASSERT_TRUE(tx.Submit(wire::ReliabilityClass::kHigh, {}, body_).ok());
    for (uint32_t i = 0; i < low; ++i) ASSERT_TRUE(tx.Submit(wire::ReliabilityClass::kLow, {}, body_).ok());
    std::set<uint32_t> failed;
    const int start = tick_;
    int done = -1;
    for (; done < 0 || tick_ < done + kOneWay || !tx.Finished(); ++tick_) {
      ASSERT_LT(tick_, start + 100'000);
      for (int i = 0; i < kPacketsPerTick; ++i) Send(&tx, map, &failed);
      for (Flying& f : flying_) {
        if (f.arrives != tick_ || f.lost || f.window != window_) continue;
        rx.OnData(f.header, f.bytes);
      }
      if (done < 0 && rx.HighComplete()) done = tick_;
      TellFates(&tx);
    }
    result->blocks += map.block_count();
    result->failed += failed.size();
    result->high += high;
    result->repair += tx.stats().repairs_sent;
    result->retransmissions += tx.stats().retransmissions;
    result->ticks.push_back(done - start);
  }

  void Send(WindowTx* tx, const BlockMap& map, std::set<uint32_t>* failed) {
    std::optional<WindowTx::Item> item = tx->Next(planner_->Path());
    if (!item) return;
    if (item->header.retransmission && tx->stats().high_sent == tx->options().high_count) {
      failed->insert(map.Locate(item->header.index).block);
    }
    Flying f;
    f.lost = process_.Next();
    f.arrives = tick_ + kOneWay;
    f.known = tick_ + 2 * kOneWay + (f.lost ? 2 : 0);
    f.place = planner_->OnSent();
    f.window = window_;
    f.header = item->header;
    f.chunk = item->chunk;
    f.bytes.assign(item->first.begin(), item->first.end());
    f.bytes.insert(f.bytes.end(), item->second.begin(), item->second.end());
    flying_.push_back(std::move(f));
  }

  void TellFates(WindowTx* tx) {
    const Instant now = Instant() + tick_ * kTick;
    for (Flying& f : flying_) {
      if (f.known != tick_) continue;
      planner_->OnFate(f.place, f.lost, now);
      if (f.window != window_) continue;
      f.lost ? tx->OnLost(f.chunk, planner_->Path()) : tx->OnAcked(f.chunk);
    }
    while (!flying_.empty() && flying_.front().known < tick_) flying_.pop_front();
  }

  wan::LossProcess process_;
  FecPlanner* planner_;
  codec::ReferenceCoder coder_;
  const std::vector<uint8_t> body_ = std::vector<uint8_t>(16, 7);
  std::deque<Flying> flying_;
  uint32_t window_ = 0;
  int tick_ = 0;
};

}  // namespace longhaul::transport
