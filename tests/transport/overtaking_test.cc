// What is small and urgent does not wait behind what is large: on a slow link with 4 MB under way, control
// data and a window of one chunk arrive after what is already in the network, and several windows leave in
// the order of their priority.
#include <gtest/gtest.h>

#include <deque>

#include "tests/transport/connection_pair.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;

constexpr uint16_t kSymbol = 1392;
constexpr uint32_t kBulk = 4'000'000 / kSymbol;
constexpr Duration kRtt = 40ms;

class Overtaking : public testing::Test {
 protected:
  Overtaking() : pair_(Options()) {
    EXPECT_TRUE(pair_.Establish());
    pair_.SendWindow({1, 0}, 400, 0, 0);  // the path is known afterwards
    EXPECT_TRUE(pair_.RunUntil([this] { return pair_.worker.outgoing.contains({1, 0}); }, 10s));
    pair_.RunFor(100ms);
  }
  static ConnectionPair::Options Options() {
    ConnectionPair::Options options;
    options.link = "rate 20mbit delay 20ms queue 200ms";
    return options;
  }
  // As ConnectionPair::SendWindow, with a priority; leaves with the next Pump.
  void Submit(WindowKey key, uint32_t high, int priority) {
    const WindowOptions o{
        .key = key, .high_count = high, .symbol_bytes = kSymbol, .priority = priority, .metadata = {}};
    ASSERT_TRUE(pair_.connection->OpenWindow(o).ok());
    for (uint32_t i = 0; i < high; ++i) {
      bodies_.push_back(ConnectionPair::ChunkBytes(key, true, i, kSymbol));
      const ByteSpan all(bodies_.back());
      ASSERT_TRUE(
          pair_.connection->SubmitChunk(key, wire::ReliabilityClass::kHigh, all.first(12), all.subspan(12))
              .ok());
    }
  }
  uint32_t Here(WindowKey key) {
    const auto found = pair_.server.incoming.find(key);
    return found == pair_.server.incoming.end() ? 0 : static_cast<uint32_t>(found->second.high.size());
  }
  // How long what leaves now takes to arrive.
  Duration PathNow() {
    const auto& link = pair_.network().Link(pair_.worker_site(), pair_.server_site());
    return kRtt / 2 + link.QueueDelay(pair_.now());
  }

  ConnectionPair pair_;
  std::deque<std::vector<uint8_t>> bodies_;
};

TEST_F(Overtaking, ControlDataArrivesBeforeTheBulkThatWasThereFirst) {
  Submit({2, 0}, kBulk, 0);
  pair_.worker_host->Pump();
  pair_.RunFor(300ms);
  ASSERT_LT(Here({2, 0}), kBulk / 3);
  const Duration path = PathNow();
  const Instant asked = pair_.now();
  ASSERT_TRUE(pair_.connection->SendControl(std::vector<uint8_t>(200, 7)).ok());
  pair_.worker_host->Pump();
  ASSERT_TRUE(pair_.RunUntil([this] { return pair_.server.control.size() == 200; }, 5s));
  EXPECT_LE(pair_.now() - asked, path + 5ms) << "the network's queue and a few packets at the sender";
  EXPECT_LT(Here({2, 0}), kBulk / 2) << "the bulk takes 1.7 s";
  ASSERT_TRUE(pair_.RunUntil([this] { return pair_.worker.outgoing.contains({2, 0}); }, 10s));
}

TEST_F(Overtaking, AWindowOfOneChunkArrivesBeforeTheBulkOfAHigherPriorityNumber) {
  Submit({2, 0}, kBulk, 1);
  pair_.worker_host->Pump();
  pair_.RunFor(300ms);
  const Duration path = PathNow();
  const Instant asked = pair_.now();
  Submit({3, 0}, 1, 0);
  pair_.worker_host->Pump();
  ASSERT_TRUE(pair_.RunUntil([this] { return Here({3, 0}) == 1; }, 5s));
  EXPECT_LE(pair_.now() - asked, path + 5ms);
  ASSERT_TRUE(pair_.RunUntil([this] { return pair_.worker.outgoing.contains({3, 0}); }, 5s));
  EXPECT_LE(pair_.now() - asked, path + kRtt / 2 + 10ms) << "its CLOSE comes back at once";
  EXPECT_LT(Here({2, 0}), kBulk / 2);
}

TEST_F(Overtaking, SeveralWindowsLeaveInTheOrderOfTheirPriority) {
  const std::vector<int> priorities = {3, 1, 2, 0};  // of windows 2, 3, 4, 5
  const uint32_t chunks = kBulk / 8;
  for (uint32_t i = 0; i < priorities.size(); ++i) Submit({2 + i, 0}, chunks, priorities[i]);
  pair_.worker_host->Pump();
  const std::vector<WindowKey> in_order = {{5, 0}, {3, 0}, {4, 0}, {2, 0}};
  for (size_t i = 0; i < in_order.size(); ++i) {
    ASSERT_TRUE(pair_.RunUntil([&] { return Here(in_order[i]) > 0; }, 10s));
    for (size_t before = 0; before < i; ++before) EXPECT_EQ(Here(in_order[before]), chunks) << i;
    for (size_t behind = i + 1; behind < in_order.size(); ++behind)
      EXPECT_EQ(Here(in_order[behind]), 0u) << i;
  }
}

}  // namespace
}  // namespace longhaul::transport
