// What leaves next when several windows are under way.
#include "transport/core/window/outgoing_windows.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/sim/reference_coder.h"

namespace longhaul::transport {
namespace {

constexpr uint16_t kSymbol = 64;
// So lossy and so slow to recover that every block gets repair symbols.
constexpr PathView kLossyPath{.loss = 0.1, .packets_per_recovery_time = 1000};

class OutgoingWindowsTest : public testing::Test {
 protected:
  void Open(uint32_t id, uint32_t high, uint32_t low, int priority = 0) {
    const WindowOptions options{.key = {id, 0},
                                .high_count = high,
                                .low_count = low,
                                .symbol_bytes = kSymbol,
                                .fec_k = 8,
                                .priority = priority,
                                .metadata = {}};
    ASSERT_TRUE(windows_.Open(options, 64, ByteCount(1 << 20)).ok());
    WindowTx* window = windows_.Find(options.key);
    for (uint32_t i = 0; i < high; ++i) {
      ASSERT_TRUE(window->Submit(wire::ReliabilityClass::kHigh, {}, body_).ok());
    }
    for (uint32_t i = 0; i < low; ++i) {
      ASSERT_TRUE(window->Submit(wire::ReliabilityClass::kLow, {}, body_).ok());
    }
  }
  // "1h" = a new high chunk of window 1; r: repair symbol, l: low. Runs of the same are said once.
  std::vector<std::string> Order() {
    std::vector<std::string> order;
    while (const auto item = windows_.NextChunk(kLossyPath)) {
      const bool high = item->header.reliability == wire::ReliabilityClass::kHigh;
      const std::string what = std::to_string(item->header.window_id) + (item->header.repair ? "r"
                                                                         : high              ? "h"
                                                                                             : "l");
      if (order.empty() || order.back() != what) order.push_back(what);
    }
    return order;
  }

  codec::ReferenceCoder coder_;
  OutgoingWindows windows_{&coder_};
  std::vector<uint8_t> body_ = std::vector<uint8_t>(kSymbol, 7);
};

TEST_F(OutgoingWindowsTest, RepairSymbolsDoNotWaitForTheHighChunksOfYoungerWindows) {
  Open(1, 8, 0);
  Open(2, 8, 0);
  Open(3, 8, 0);
  EXPECT_EQ(Order(), (std::vector<std::string>{"1h", "1r", "2h", "2r", "3h", "3r"}));
}

TEST_F(OutgoingWindowsTest, EverythingHighLeavesBeforeAnythingLow) {
  Open(1, 8, 4);
  Open(2, 8, 4);
  EXPECT_EQ(Order(), (std::vector<std::string>{"1h", "1r", "2h", "2r", "1l", "2l"}));
}

// The receiver would take the first one for over, and its CLOSE would be waited for in vain.
TEST_F(OutgoingWindowsTest, AGenerationWaitsForTheCloseOfTheOneBefore) {
  Open(7, 8, 0);
  const WindowOptions next{
      .key = {7, 1}, .high_count = 8, .symbol_bytes = kSymbol, .fec_k = 8, .metadata = {}};
  const Status status = windows_.Open(next, 64, ByteCount(1 << 20));
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("window 7: generation 0 is open"), std::string::npos) << status.message();
  windows_.Erase({7, 0});
  EXPECT_TRUE(windows_.Open(next, 64, ByteCount(1 << 20)).ok());
}

TEST_F(OutgoingWindowsTest, PriorityGoesBeforeAge) {
  Open(1, 8, 0, 5);
  Open(2, 8, 0, 1);
  EXPECT_EQ(Order(), (std::vector<std::string>{"2h", "2r", "1h", "1r"}));
}

TEST_F(OutgoingWindowsTest, RetransmissionsGoFirst) {
  Open(1, 8, 0);
  Open(2, 8, 0);
  const auto item = windows_.NextChunk(kLossyPath);
  ASSERT_TRUE(item);
  // Far from the window's last new chunk there is no waiting for repair symbols.
  windows_.Find({1, 0})->OnLost(item->chunk, {.loss = 0.1, .packets_per_recovery_time = 1});
  const auto again = windows_.NextChunk(kLossyPath);
  ASSERT_TRUE(again);
  EXPECT_TRUE(again->header.retransmission);
  EXPECT_EQ(again->header.index, item->header.index);
}

}  // namespace
}  // namespace longhaul::transport
