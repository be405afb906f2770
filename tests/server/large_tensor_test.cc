// However large a tensor is, no event works on more of it than a slice; what is left waits its turn, and
// comes out the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>

#include "base/pages.h"
#include "base/work_budget.h"
#include "tests/server/fake_worker.h"

namespace longhaul::server {
namespace {

using control::ControlMessage;
using testing::HasSubstr;

constexpr auto kHigh = wire::ReliabilityClass::kHigh;
constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr uint64_t kGiBOfFloats = kGiB / sizeof(float);
constexpr uint64_t kMostOfAnEvent = WorkBudget::kMostOfAnEvent;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Of this process, in bytes: mapped, and in memory.
int64_t Statm(bool resident) {
  int64_t pages[2] = {};
  std::ifstream("/proc/self/statm") >> pages[0] >> pages[1];
  EXPECT_GT(pages[1], 0);
  return pages[resident ? 1 : 0] * static_cast<int64_t>(PageBytes());
}

ServerSettings Settings() {
  ServerSettings settings;
  settings.world_size = 2;
  settings.min_workers = 1;
  settings.max_model = ByteCount(int64_t{4} << 30);
  settings.policy = LossPolicy::kZero;
  settings.close_ratio = 0;  // what is low may all be missing
  return settings;
}

struct Large : testing::Test {
  explicit Large(const ServerSettings& settings = Settings(), size_t symbol = 64)
      : coordinator(settings, &events, nullptr), elements(codec::ChunkElementsFor(symbol)) {
    coordinator.SetNow(At(0));
    for (FakeWorker* worker : {&a, &b}) worker->connection.max_chunk_bytes = symbol;
    a.Join(2);
    b.Join(2);
  }
  // Tensor 0, of so many chunks.
  void Declare(uint32_t number, const std::string& optimizer = "aggregate") {
    chunks = number;
    count = uint64_t{chunks} * elements;
    for (FakeWorker* worker : {&a, &b}) {
      worker->Declare("w", count, optimizer);
      worker->connection.TakeControl();
    }
  }
  Status Open(FakeWorker& worker, uint64_t round, uint32_t high, uint32_t low, bool wants_result = true) {
    return worker.Open({.key = KeyOf(round), .high = high, .low = low}, 0, round, count, elements,
                       wants_result);
  }
  static transport::WindowKey KeyOf(uint64_t round) { return {static_cast<uint32_t>(round) + 1, 0}; }
  void Send(FakeWorker& worker, uint64_t round, uint32_t first, uint32_t end, float value) {
    const std::vector<float> values(elements, value);
    for (uint32_t chunk = first; chunk < end; ++chunk) worker.Send(KeyOf(round), kHigh, chunk, values);
  }
  void Push(uint64_t round, float of_a, float of_b) {
    for (FakeWorker* worker : {&a, &b}) ASSERT_TRUE(Open(*worker, round, chunks, 0).ok());
    Send(a, round, 0, chunks, of_a);
    Send(b, round, 0, chunks, of_b);
  }
  uint32_t Work() {
    uint32_t slices = 0;
    for (; coordinator.HasWork(); ++slices) {
      coordinator.Work();
      coordinator.AfterEvent();
    }
    return slices;
  }
  void ExpectWhole(const transport::FakeConnection::Window& window, float value) const {
    std::vector<bool> there(chunks, false);
    for (const auto& [chunk, values] : FakeWorker::ChunksOf(window)) {
      ASSERT_FALSE(there.at(chunk)) << "chunk " << chunk << " twice";
      there[chunk] = true;
      ASSERT_EQ(values.at(0), value) << chunk;
    }
    EXPECT_EQ(std::ranges::count(there, true), chunks);
  }
  uint64_t longest() const { return coordinator.Stats().longest_event_elements; }

  Recorder events;
  Coordinator coordinator;
  FakeWorker a{coordinator, 0};
  FakeWorker b{coordinator, 1};
  const uint32_t elements;
  uint32_t chunks = 0;
  uint64_t count = 0;
};

struct SmallBlocks : Large {
  SmallBlocks() : Large(Of(8)) {}
  static ServerSettings Of(uint8_t fec_k) {
    ServerSettings settings = Settings();
    settings.fec_k = fec_k;
    return settings;
  }
};

// Else its windows could not be opened, and would be waited for without an end.
TEST_F(SmallBlocks, ATensorOfMoreBlocksThanSixteenBitsNameIsRefused) {
  const uint64_t most = uint64_t{UINT16_MAX} * 8 * elements;
  b.Declare("large", most + 1, "aggregate");
  const auto answer = b.Heard(ControlMessage::kDeclared).at(0).declared();
  EXPECT_EQ(answer.code(), static_cast<uint32_t>(StatusCode::kResourceExhausted));
  EXPECT_THAT(answer.message(), HasSubstr("\"large\" has more than 65535 FEC blocks of 8 chunks"));
  a.Declare("just", most, "aggregate");
  b.Declare("just", most, "aggregate");
  EXPECT_EQ(b.Heard(ControlMessage::kDeclared).at(0).declared().code(), 0u);
}

TEST_F(Large, WindowsThatLostAllOfItMakeItFinalInSlices) {
  Declare(20'000);
  for (FakeWorker* worker : {&a, &b}) {
    ASSERT_TRUE(Open(*worker, 0, 0, chunks).ok());
    worker->Finish(KeyOf(0));
  }
  ASSERT_EQ(b.connection.closed_windows.size(), 1u);
  EXPECT_TRUE(events.rounds.empty());
  EXPECT_LT(b.Result().chunks.size(), 2000u);
  EXPECT_GT(b.Result().chunks.size(), 300u) << "a slice at once";
  EXPECT_GE(Work(), 10u);
  ASSERT_EQ(events.rounds.size(), 1u);
  EXPECT_EQ(events.rounds[0].lost_chunks, 2 * chunks);
  for (FakeWorker* worker : {&a, &b}) ExpectWhole(worker->Result(), 0);
  EXPECT_LE(longest(), kMostOfAnEvent);
  EXPECT_GE(longest(), WorkBudget::kSliceElements) << "else nothing was measured";
}

TEST_F(Large, AMemberThatDiesReleasesItInSlices) {
  Declare(20'000);
  ASSERT_TRUE(Open(a, 0, chunks, 0).ok());
  Send(a, 0, 0, chunks, 2);
  b.Die(Status(StatusCode::kPeerDead, "gone"));
  EXPECT_TRUE(events.rounds.empty());
  EXPECT_GE(Work(), 10u);
  ASSERT_EQ(events.rounds.size(), 1u);
  ExpectWhole(a.Result(), 2);
  EXPECT_LE(longest(), kMostOfAnEvent);
}

TEST_F(Large, APullIsHandedOverInSlices) {
  Declare(20'000, "sgd:lr=0.1");
  for (uint32_t request = 0; request < 100; ++request) a.Pull(0, 0, request);
  const auto& first = a.connection.outgoing.begin()->second;
  EXPECT_EQ(first.chunks.size(), WorkBudget::kSliceElements / WorkBudget::kPerChunk);
  EXPECT_EQ(a.connection.outgoing.size(), Pulls::kMaxOfTensor) << "asking again and again changes nothing";
  Work();
  for (const auto& [key, window] : a.connection.outgoing) ExpectWhole(window, 0);
  EXPECT_LE(longest(), kMostOfAnEvent);
}

// What a pull borrows stays as it is while the rounds go on, without a copy of it.
TEST_F(Large, APullThatIsReadForManyRoundsKeepsItsValues) {
  Declare(3'000, "sgd:lr=1");
  a.Pull(0, 0, 1);
  const transport::WindowKey pull = a.connection.outgoing.begin()->first;
  for (uint64_t round = 0; round < 4; ++round) {
    Push(round, -1, -1);
    for (FakeWorker* worker : {&a, &b}) {
      while (worker->connection.outgoing.rbegin()->first != pull &&
             worker->connection.outgoing.size() > (worker == &a ? 1u : 0u))
        worker->CloseResult(worker->connection.outgoing.rbegin()->first);
    }
  }
  Work();
  ExpectWhole(a.connection.outgoing.at(pull), 0);
  a.CloseResult(pull);
  a.Pull(0, 4, 2);
  Work();
  ExpectWhole(a.Result(), 4);
}

// The result waits for a window and is handed over while later chunks become final.
TEST_F(Large, AResultThatOpensLateHasEveryChunkOnce) {
  Declare(8'000);
  a.connection.max_open_windows = 1;
  a.Pull(0, 0, 1);
  const transport::WindowKey pull = a.connection.outgoing.begin()->first;
  Work();
  for (FakeWorker* worker : {&a, &b}) ASSERT_TRUE(Open(*worker, 0, chunks, 0).ok());
  for (FakeWorker* worker : {&a, &b}) Send(*worker, 0, 0, chunks - 2, worker == &a ? 1.0f : 3.0f);
  ASSERT_EQ(a.connection.outgoing.size(), 1u);
  a.CloseResult(pull);
  const auto& result = a.Result();
  EXPECT_EQ(result.chunks.size(), WorkBudget::kSliceElements / WorkBudget::kPerChunk);
  Send(a, 0, chunks - 2, chunks, 1);
  Send(b, 0, chunks - 2, chunks, 3);
  ASSERT_EQ(events.rounds.size(), 1u) << "nobody waits for it";
  EXPECT_LT(result.chunks.size(), chunks);
  Work();
  ExpectWhole(result, 2);
}

TEST_F(Large, AResultThatIsBehindWhenTheNextRoundEndsIsHandedOverWhole) {
  Declare(6'000);
  a.connection.max_open_windows = 1;
  a.Pull(0, 0, 1);
  const transport::WindowKey pull = a.connection.outgoing.begin()->first;
  for (FakeWorker* worker : {&a, &b}) ASSERT_TRUE(Open(*worker, 0, chunks, 0).ok());
  for (FakeWorker* worker : {&a, &b}) Send(*worker, 0, 0, chunks, worker == &a ? 1.0f : 3.0f);
  a.CloseResult(pull);
  const transport::WindowKey first = a.connection.outgoing.begin()->first;
  EXPECT_LT(a.connection.outgoing.at(first).chunks.size(), chunks);
  Push(1, 5, 5);
  ExpectWhole(a.connection.outgoing.at(first), 2);
}

struct Real : Large {
  Real() : Large(Settings(), 1392) {}
};

struct RealChunks : Large {
  RealChunks() : Large(Everything(), 1392) {}
  static ServerSettings Everything() {
    ServerSettings settings = Settings();
    settings.deterministic = true;
    settings.norm_guard = 8;
    settings.policy = LossPolicy::kShift;
    settings.downlink = Downlink::kLossy;
    return settings;
  }
};

TEST_F(RealChunks, AGigabyteOfAdamIsDeclaredWithoutTouchingIt) {
  const int64_t before = Statm(true);
  a.Declare("w", kGiBOfFloats, "adam:lr=0.1");
  b.Declare("w", kGiBOfFloats, "adam:lr=0.1");
  EXPECT_EQ(a.Heard(ControlMessage::kDeclared).at(0).declared().code(), 0u);
  EXPECT_EQ(coordinator.Stats().elements, kGiBOfFloats);
  a.Pull(0, 0, 1);
  EXPECT_LT(Statm(true) - before, int64_t{16} << 20);
  EXPECT_LE(longest(), kMostOfAnEvent);
}

// The machine has less than the budget says: the tensor is refused, by name, and the job goes on.
TEST_F(Real, ATensorThatTheMachineHasNoMemoryForIsRefused) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need address space of their own";
  Declare(10, "adam:lr=0.1");
  const uint64_t taken = coordinator.Stats().memory_bytes;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit less{static_cast<rlim_t>(Statm(false) + (int64_t{900} << 20)), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &less), 0);
  b.Declare("embedding", 125'000'000, "adam:lr=0.1");
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  const auto answer = b.Heard(ControlMessage::kDeclared).at(0).declared();
  EXPECT_EQ(answer.code(), static_cast<uint32_t>(StatusCode::kResourceExhausted));
  EXPECT_THAT(answer.message(), HasSubstr("tensor \"embedding\" does not fit: it may take the server"));
  EXPECT_EQ(coordinator.Stats().memory_bytes, taken) << "what it did not get is nobody's";
  EXPECT_EQ(coordinator.Stats().elements, count);
  EXPECT_TRUE(events.over.empty());
  Push(0, 1, 3);
  ASSERT_EQ(events.rounds.size(), 1u);
  b.Declare("embedding", 1'000'000, "adam:lr=0.1");
  EXPECT_EQ(b.Heard(ControlMessage::kDeclared).at(0).declared().code(), 0u) << "a smaller one fits";
}

}  // namespace
}  // namespace longhaul::server
