// The in-process port: the suite of all ports, and what is its own.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>

#include "tests/offload/port_conformance.h"

namespace longhaul::offload {
namespace {

class InProcessSiteOfAll : public PortSite {
 public:
  explicit InProcessSiteOfAll(const SiteOptions& options) : options_(options) {
    static int number = 0;
    name_ = "inproc:conformance-" + std::to_string(++number);
    for (uint8_t node = 0; node < options.nodes; ++node) {
      for (uint8_t rank = 0; rank < options.ranks_per_node; ++rank) {
        devices_.emplace(std::pair(node, rank), Device::Open(name_, {node, rank, options}).value());
      }
    }
  }
  Device& device(uint8_t node, uint8_t rank) override { return devices_.at({node, rank}); }
  Status OpenAgain(uint8_t node, uint8_t rank) override {
    return Device::Open(name_, {node, rank, options_}).status();
  }

 private:
  SiteOptions options_;
  std::string name_;
  std::map<std::pair<uint8_t, uint8_t>, Device> devices_;
};

INSTANTIATE_TEST_SUITE_P(InProcess, PortConformance,
                         testing::Values(PortUnderTest{"in process", [](const SiteOptions& options) {
                                                         return std::make_unique<InProcessSiteOfAll>(options);
                                                       }}));

StatusCode OpenCode(std::string_view where, const DeviceOptions& options = {}) {
  return Device::Open(where, options).status().code();
}

TEST(InProcess, RefusesWhatCannotWork) {
  EXPECT_EQ(OpenCode("site"), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenCode("inproc:"), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenCode("inproc:x", {.site = {.nodes = 0}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenCode("inproc:x", {.site = {.nodes = 16, .aggregator = true}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenCode("inproc:x", {.site = {.ranks_per_node = 65}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenCode("inproc:x", {.site = {.seg_bytes = 100}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenCode("inproc:x", {.site = {.pool_segs = 1}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenCode("inproc:x", {.site = {.nodes = 3, .aggregator = true, .pool_segs = 7}}),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenCode("inproc:x", {.site = {.window_segs = 513}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenCode("inproc:x", {.site = {.queue_depth = 0}}), StatusCode::kInvalidArgument);
}

TEST(InProcess, ASiteLivesAsLongAsItsDevices) {
  auto first = Device::Open("inproc:life", {.site = {.ranks_per_node = 2}});
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(OpenCode("inproc:life", {.rank = 1, .site = {.ranks_per_node = 3}}),
            StatusCode::kSettingsMismatch);
  { const Device gone = std::move(*first); }
  EXPECT_TRUE(Device::Open("inproc:life", {.rank = 1, .site = {.ranks_per_node = 3}}).ok());
}

TEST(InProcess, ADeviceThatWasMovedFromDoesNothing) {
  Device device = Device::Open("inproc:moved", {}).value();
  const Device other = std::move(device);
  WorkRequest request;
  Completion completion;
  EXPECT_EQ(device.Post({&request, 1}).code(), StatusCode::kFailedPrecondition);  // NOLINT: that is the test
  EXPECT_EQ(device.Poll({&completion, 1}), 0u);
  EXPECT_EQ(device.fd(), -1);
  EXPECT_EQ(device.RequestNotify().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(device.stats().requests, 0u);
  device.Close();
}

// A rank that comes again finds nothing of the one before.
TEST(InProcess, ARankMayOpenAgain) {
  const DeviceOptions options{.site = {.ranks_per_node = 2}};
  Device keeper = Device::Open("inproc:again", {.rank = 1, .site = options.site}).value();
  std::vector<std::byte> memory(64);
  uint32_t old = 0;
  {
    Device device = Device::Open("inproc:again", options).value();
    old = device.Register(memory).value();
    WorkRequest request{.wr_id = 1, .type = DataType::kInt32, .length = 64};
    request.send.key = request.receive.key = old;
    ASSERT_TRUE(device.Post({&request, 1}).ok());
  }
  Device device = Device::Open("inproc:again", options).value();
  Completion completion;
  EXPECT_EQ(device.Poll({&completion, 1}), 0u);
  EXPECT_EQ(device.Deregister(old).code(), StatusCode::kNotFound);
  EXPECT_TRUE(device.Register(memory).ok());
}

// What a thread posts while another closes is accepted and flushed, or refused: never begun afterwards.
TEST(InProcess, NothingIsAcceptedAfterClose) {
  for (int round = 0; round < 50 && !testing::Test::HasFailure(); ++round) {
    Device device = Device::Open("inproc:close", {.site = {.queue_depth = 65536}}).value();
    std::vector<std::byte> memory(64);
    WorkRequest receive{.opcode = Opcode::kReceive, .length = 64};
    receive.receive.key = device.Register(memory).value();
    std::atomic<uint32_t> accepted = 0;
    const auto post = [&] {
      while (device.Post({&receive, 1}).ok()) ++accepted;
    };
    std::thread one(post), other(post);
    while (accepted < 20) std::this_thread::yield();
    device.Close();
    one.join();
    other.join();
    Completion completion;
    uint32_t flushed = 0;
    while (device.Poll({&completion, 1}) > 0) flushed += completion.status == WorkStatus::kFlushed;
    EXPECT_EQ(flushed, accepted);
  }
}

}  // namespace
}  // namespace longhaul::offload
