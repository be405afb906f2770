// The shared-memory port: the suite of all ports, with the daemon in a thread and as a process, and what is
// its own.
#include <map>

#include "tests/offload/port_conformance.h"
#include "tests/offload/shm_support.h"

namespace longhaul::offload {
namespace {

template <typename Site>
class ShmPortSite : public PortSite {
 public:
  explicit ShmPortSite(const SiteOptions& options) : options_(options), site_(options) {
    for (uint8_t node = 0; node < options.nodes; ++node) {
      for (uint8_t rank = 0; rank < options.ranks_per_node; ++rank) {
        devices_.emplace(std::pair(node, rank), Device::Open(site_.where(), {node, rank, options}).value());
      }
    }
  }
  Device& device(uint8_t node, uint8_t rank) override { return devices_.at({node, rank}); }
  Status OpenAgain(uint8_t node, uint8_t rank) override {
    return Device::Open(site_.where(), {node, rank, options_}).status();
  }

 private:
  SiteOptions options_;
  Site site_;
  std::map<std::pair<uint8_t, uint8_t>, Device> devices_;
};

template <typename Site>
PortUnderTest Under(const char* name) {
  return {name, [](const SiteOptions& options) { return std::make_unique<ShmPortSite<Site>>(options); }};
}

INSTANTIATE_TEST_SUITE_P(ShmThread, PortConformance,
                         testing::Values(Under<ThreadSite>("daemon in a thread")));
INSTANTIATE_TEST_SUITE_P(ShmProcess, PortConformance,
                         testing::Values(Under<ProcessSite>("longhaul-offload")));

TEST(Shm, OpenSaysWhatIsWrong) {
  const ThreadSite site({.ranks_per_node = 2});
  const auto code = [](const std::string& where, const DeviceOptions& options) {
    return Device::Open(where, options).status().code();
  };
  EXPECT_EQ(code("unix:", {}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("unix:" + std::string(200, 'x'), {}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("unix:/nowhere/site.sock", {}), StatusCode::kUnavailable);
  EXPECT_EQ(code(site.where(), {.rank = 2}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(site.where(), {.site = {.ranks_per_node = 3}}), StatusCode::kSettingsMismatch);
  EXPECT_EQ(code(site.where(), {.site = {.ranks_per_node = 2}}), StatusCode::kOk);
  EXPECT_EQ(code(site.where(), {}), StatusCode::kOk);  // the rank is free again, and the site its own
}

// Only what a request names is written, whatever lies around it; pieces of a message come back as they end.
TEST(Shm, CopiedMemoryKeepsWhatARequestDoesNotName) {
  const ThreadSite site({.ranks_per_node = 2});
  Device a = site.Open(0), b = site.Open(1);
  RankArrays x(a, 1024, 1), y(b, 1024, 2);  // 4 segs
  x.receive.assign(1024, -7);
  WorkRequest second = x.Request(1, 0);
  second.first_seg = 2;
  second.seg_count = 1;
  ASSERT_TRUE(a.Post({&second, 1}).ok());
  ASSERT_TRUE(y.Post(1, 0).ok());
  EXPECT_EQ(NextOf(a).status, WorkStatus::kSuccess);
  for (size_t i = 0; i < 1024; ++i) {
    const auto sum = static_cast<int32_t>(2 * i + 3);
    ASSERT_EQ(x.receive[i], i / 256 == 2 ? sum : -7) << i;
  }
}

TEST(Shm, AReduceScatterIntoCopiedMemoryNamesItsRanks) {
  const ThreadSite site({.ranks_per_node = 2});
  Device a = site.Open(0), b = site.Open(1);
  RankArrays x(a, 1024, 1), y(b, 1024, 2);
  WorkRequest of_a = x.Request(1, 0), of_b = y.Request(1, 0);
  of_a.opcode = of_b.opcode = Opcode::kReduceScatter;
  EXPECT_EQ(a.Post({&of_a, 1}).code(), StatusCode::kInvalidArgument);
  for (WorkRequest* r : {&of_a, &of_b}) {
    r->nodes = 1;
    r->ranks = 0b11;
  }
  y.receive.assign(1024, -7);
  ASSERT_TRUE(a.Post({&of_a, 1}).ok());
  ASSERT_TRUE(b.Post({&of_b, 1}).ok());
  EXPECT_EQ(NextOf(a).status, WorkStatus::kSuccess);
  EXPECT_EQ(NextOf(b).status, WorkStatus::kSuccess);
  for (size_t i = 0; i < 512; ++i) {
    ASSERT_EQ(x.receive[i], static_cast<int32_t>(2 * i + 3));
    ASSERT_EQ(y.receive[i], static_cast<int32_t>(2 * (i + 512) + 3));
    ASSERT_EQ(y.receive[i + 512], -7);
  }
}

TEST(Shm, AllocatedMemoryIsNotCopied) {
  const ThreadSite site({.ranks_per_node = 2});
  Device a = site.Open(0), b = site.Open(1);
  const Allocation result = a.Allocate(4096, "result").value(), same = b.Allocate(4096, "result").value();
  EXPECT_EQ(b.Allocate(65536, "result").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(b.Allocate(4096, std::string(64, 'n')).status().code(), StatusCode::kInvalidArgument);
  const Allocation from_a = a.Allocate(4096).value(), from_b = b.Allocate(4096).value();
  auto* const x = reinterpret_cast<int32_t*>(from_a.memory.data());
  auto* const y = reinterpret_cast<int32_t*>(from_b.memory.data());
  for (int32_t i = 0; i < 1024; ++i) x[i] = i, y[i] = 5;
  WorkRequest request{.wr_id = 1, .type = DataType::kInt32, .length = 4096};
  request.send.key = from_a.key;
  request.receive.key = result.key;
  ASSERT_TRUE(a.Post({&request, 1}).ok());
  request.send.key = from_b.key;
  request.receive.key = same.key;
  ASSERT_TRUE(b.Post({&request, 1}).ok());
  EXPECT_EQ(NextOf(a).status, WorkStatus::kSuccess);
  EXPECT_EQ(NextOf(b).status, WorkStatus::kSuccess);
  const auto* const sum = reinterpret_cast<const int32_t*>(same.memory.data());
  for (int32_t i = 0; i < 1024; ++i) ASSERT_EQ(sum[i], i + 5);
  EXPECT_TRUE(a.Deregister(from_a.key).ok());
  EXPECT_EQ(a.Deregister(from_a.key).code(), StatusCode::kNotFound);
}

TEST(Shm, ARankHasItsShareOfRegionsAndBytes) {
  const ThreadSite site({.ranks_per_node = 64}, 1 << 20);
  Device device = site.Open(5);
  EXPECT_EQ(device.Allocate((1 << 20) + 1).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(device.Allocate(UINT64_MAX).status().code(), StatusCode::kResourceExhausted);
  const uint32_t all = device.Allocate(1 << 20).value().key;
  EXPECT_EQ(device.Allocate(1).status().code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(device.Deregister(all).ok());
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(device.Allocate(1).ok());
  EXPECT_EQ(device.Allocate(1).status().code(), StatusCode::kResourceExhausted);
}

// The daemon would write into what is gone.
TEST(Shm, MemoryOfAPendingDatagramStays) {
  const ThreadSite site({.ranks_per_node = 2});
  Device a = site.Open(0), b = site.Open(1);
  const Allocation to = a.Allocate(64).value(), from = b.Allocate(64).value();
  WorkRequest receive{.wr_id = 1, .opcode = Opcode::kReceive, .length = 64};
  receive.receive.key = to.key;
  ASSERT_TRUE(a.Post({&receive, 1}).ok());
  ASSERT_TRUE(a.Query(0, 0, 2).ok());
  EXPECT_EQ(NextOf(a).wr_id, 2u);  // the daemon has both
  EXPECT_EQ(a.Deregister(to.key).code(), StatusCode::kFailedPrecondition);
  WorkRequest send{.wr_id = 1, .opcode = Opcode::kSend, .root_rank = 0, .length = 64};
  send.send.key = from.key;
  from.memory[3] = std::byte{9};
  ASSERT_TRUE(b.Post({&send, 1}).ok());
  EXPECT_EQ(NextOf(a).wr_id, 1u);
  EXPECT_EQ(to.memory[3], std::byte{9});
  EXPECT_TRUE(a.Deregister(to.key).ok());
}

// A completion that was not polled still writes into the caller's memory.
TEST(Shm, MemoryOfACompletionThatIsNotPolledStays) {
  const ThreadSite site({.ranks_per_node = 1});
  Device a = site.Open(0);
  RankArrays x(a, 256, 1);
  ASSERT_TRUE(x.Post(1, 0).ok());
  EXPECT_EQ(a.Deregister(x.receive_key).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(NextOf(a).wr_id, 1u);
  EXPECT_EQ(x.receive[200], 201);
  EXPECT_TRUE(a.Deregister(x.receive_key).ok());
}

}  // namespace
}  // namespace longhaul::offload
