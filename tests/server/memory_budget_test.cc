// What peers can make the server allocate: measured on the heap, not believed.
#include "server/tensor/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "codec/fec/fec.h"
#include "tests/server/fake_worker.h"
#include "tests/server/heap_meter.h"
#include "transport/core/window/fec_policy.h"
#include "transport/core/window/window_rx.h"
#include "transport/core/window/window_tx.h"

namespace longhaul::server {
namespace {

using control::ControlMessage;
using testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;
constexpr auto kHigh = wire::ReliabilityClass::kHigh;
constexpr auto kLow = wire::ReliabilityClass::kLow;

ServerSettings Settings(uint32_t workers, ByteCount max_model = ByteCount(64 * kMiB)) {
  ServerSettings settings;
  settings.world_size = workers;
  settings.min_workers = 1;
  settings.max_model = max_model;
  return settings;
}

// A started job.
struct Job {
  explicit Job(const ServerSettings& settings) : coordinator(settings, nullptr, nullptr) {
    coordinator.SetNow(At(0));
    for (uint32_t rank = 0; rank < settings.world_size; ++rank) {
      workers.emplace_back(coordinator, rank);
      workers.back().Join(settings.world_size);
      workers.back().connection.TakeControl();
    }
  }
  uint32_t chunk_elements() const { return codec::ChunkElementsFor(1392); }
  // The bytes that declaring makes the heap grow by, without the answers to the workers. As many declare it
  // as it takes for an answer (server/round/declarations.h).
  int64_t Declare(const std::string& name, uint64_t count, const std::string& optimizer) {
    const HeapMeter heap;
    std::vector<control::ControlMessage> answers;
    for (FakeWorker& worker : workers) {
      worker.Declare(name, count, optimizer);
      answers = workers[0].Heard(ControlMessage::kDeclared);
      if (!answers.empty()) break;
    }
    for (FakeWorker& worker : workers) worker.connection.TakeControl();
    code = answers.at(0).declared().code();
    answers = {};
    return heap.grown();
  }

  Coordinator coordinator;
  std::deque<FakeWorker> workers;
  uint32_t code = 0;
};

struct Case {
  const char* what;
  uint32_t workers;
  uint64_t count;
  const char* optimizer;
  void (*change)(ServerSettings&);
  DType result = DType::kFloat32;
};

class Planned : public testing::TestWithParam<Case> {};

TEST_P(Planned, ADeclarationTakesNoMoreThanThePlanAndThePlanIsNotMuchMore) {
  const Case& c = GetParam();
  ServerSettings settings = Settings(c.workers);
  c.change(settings);
  Job job(settings);
  for (FakeWorker& worker : job.workers) worker.result_dtype = c.result;
  const int64_t grown = job.Declare("w", c.count, c.optimizer);
  ASSERT_EQ(job.code, 0u);
  const auto planned = static_cast<int64_t>(job.coordinator.Stats().memory_bytes);
  EXPECT_LE(grown, planned);
  EXPECT_GE(grown * (settings.deterministic ? 8 : 4), planned)
      << "what is planned for later is not most of it";
}

INSTANTIATE_TEST_SUITE_P(
    Settings, Planned,
    testing::Values(
        Case{"tiny", 256, 1, "aggregate", [](ServerSettings&) {}},
        Case{"tiny, stragglers", 256, 1, "sgd:lr=0.1", [](ServerSettings& s) { s.straggler_factor = 3; }},
        Case{"large", 2, 1'000'000, "sgd:lr=0.1,momentum=0.9", [](ServerSettings&) {}},
        Case{"adam and shift", 2, 1'000'000, "adam:lr=0.1",
             [](ServerSettings& s) { s.policy = LossPolicy::kShift; }},
        Case{"16 bits", 2, 1'000'000, "sgd:lr=0.1", [](ServerSettings&) {}, DType::kFloat16},
        Case{"stale", 2, 1'000'000, "adam:lr=0.1", [](ServerSettings& s) { s.policy = LossPolicy::kStale; }},
        Case{"guard", 64, 1'000'000, "adam:lr=0.1", [](ServerSettings& s) { s.norm_guard = 8; }},
        Case{"lossy", 64, 1'000'000, "adam:lr=0.1", [](ServerSettings& s) { s.downlink = Downlink::kLossy; }},
        Case{"robust", 8, 1'000'000, "adam:lr=0.1",
             [](ServerSettings& s) {
               s.aggregation = Aggregation::kCentredClipping;
               s.policy = LossPolicy::kStale;
             }},
        Case{"deterministic", 8, 1'000'000, "adam:lr=0.1",
             [](ServerSettings& s) { s.deterministic = true; }}),
    [](const auto& test) {
      std::string name = test.param.what;
      std::ranges::replace_if(
          name, [](char c) { return c == ' ' || c == ','; }, '_');
      return name;
    });

// All that a round and its readers can add: contributions that are held, and pulls of several versions.
struct RoundsAndPulls : testing::TestWithParam<Aggregation> {};

TEST_P(RoundsAndPulls, WhatTheyAddIsInThePlan) {
  ServerSettings settings = Settings(4);
  settings.deterministic = GetParam() == Aggregation::kMean;
  settings.aggregation = GetParam();
  if (!settings.deterministic) settings.policy = LossPolicy::kZero;
  settings.norm_guard = 8;
  Job job(settings);
  const uint64_t count = 100 * job.chunk_elements();
  const HeapMeter heap;
  for (FakeWorker& worker : job.workers) worker.Declare("w", count, "adam:lr=0.001");
  const std::vector<float> ones(job.chunk_elements(), 1.0f);
  int64_t others = 0;  // of the fake connections
  for (uint32_t round = 0; round < 6; ++round) {
    for (uint32_t pull = 0; pull < 8; ++pull) job.workers[0].Pull(0, round, round * 8 + pull);
    for (uint32_t rank = 0; rank < 4; ++rank) {
      FakeWorker& worker = job.workers[rank];
      ASSERT_TRUE(worker
                      .Open({.key = {round + 1, 0}, .high = 0, .low = 100}, 0, round, count,
                            job.chunk_elements(), false)
                      .ok());
      for (uint32_t chunk = 0; chunk < 100; ++chunk) worker.Send({round + 1, 0}, kLow, chunk, ones);
      worker.connection.TakeControl();
    }
  }
  for (const FakeWorker& worker : job.workers) {
    for (const auto& [key, window] : worker.connection.outgoing) {
      others += static_cast<int64_t>(window.chunks.size() * (sizeof(window.chunks[0]) * 2 + 64));
    }
  }
  EXPECT_GT(job.coordinator.Stats().pulls_held, 0u) << "the readers were slow enough";
  EXPECT_LE(heap.peak() - others, static_cast<int64_t>(job.coordinator.Stats().memory_bytes));
}

INSTANTIATE_TEST_SUITE_P(Held, RoundsAndPulls,
                         testing::Values(Aggregation::kMean, Aggregation::kTrimmedMean,
                                         Aggregation::kCentredClipping));

// A robust aggregation sees all of a chunk's contributions at once: it holds a gradient for each worker, as
// summing in rank order does.
// While one is written, values and state of its round are there twice.
TEST(MemoryBudget, WhatACheckpointHoldsIsPlanned) {
  ServerSettings settings = Settings(2);
  const MemoryBudget without(settings, codec::ChunkElementsFor(1392));
  settings.checkpoint_every = 1;
  const MemoryBudget with(settings, codec::ChunkElementsFor(1392));
  TensorSpec spec{.name = "w", .count = 1000, .optimizer = {}};
  const auto more = [&](const char* optimizer) {
    spec.optimizer = *codec::ParseOptimizer(optimizer);
    return with.Plan(spec) - without.Plan(spec);
  };
  EXPECT_EQ(more("sgd:lr=1"), 4'000u);
  EXPECT_EQ(more("sgd:lr=1,momentum=0.9"), 8'000u);
  EXPECT_EQ(more("adam:lr=1"), 12'000u);
  spec.result_dtype = DType::kBFloat16;
  EXPECT_EQ(more("sgd:lr=1"), 6'000u);
}

TEST(MemoryBudget, TheCodesOfResultsOf16BitsArePlanned) {
  MemoryBudget budget(Settings(2), codec::ChunkElementsFor(1392));
  TensorSpec spec{.name = "w", .count = 1000, .optimizer = {}};
  const uint64_t plan = budget.Plan(spec), member = budget.PerMember(spec);
  spec.result_dtype = DType::kBFloat16;
  EXPECT_EQ(budget.Plan(spec) - plan, 4'000u) << "of the newest round and the one in progress";
  EXPECT_EQ(budget.PerMember(spec) - member, 2'000u) << "of a result that is kept";
}

TEST(MemoryBudget, WhatARobustAggregationHoldsIsPlanned) {
  constexpr uint64_t kCount = 1'000'000, kWorkers = 8;
  const auto planned = [](bool deterministic, Aggregation aggregation) {
    ServerSettings settings = Settings(kWorkers);
    settings.deterministic = deterministic;
    settings.aggregation = aggregation;
    settings.policy = LossPolicy::kZero;
    Job job(settings);
    job.Declare("w", kCount, "sgd:lr=0.1");
    EXPECT_EQ(job.code, 0u);
    return job.coordinator.Stats().memory_bytes;
  };
  const uint64_t mean = planned(false, Aggregation::kMean);
  for (const Aggregation robust : {Aggregation::kTrimmedMean, Aggregation::kCentredClipping}) {
    EXPECT_GE(planned(false, robust), mean + kWorkers * kCount * sizeof(float));
    EXPECT_EQ(planned(false, robust), planned(true, Aggregation::kMean));
  }
}

TEST(MemoryBudget, ThousandsOfTinyTensorsDoNotTakeMoreThanTheJobMay) {
  Job job(Settings(1024, ByteCount(kMiB)));
  const HeapMeter heap;
  uint32_t taken = 0;
  for (uint32_t i = 0; i < 4096; ++i) {
    (void)job.Declare("t" + std::to_string(i), 1, "aggregate");
    taken += job.code == 0 ? 1 : 0;
  }
  const ServerStats stats = job.coordinator.Stats();
  EXPECT_LE(heap.grown(), static_cast<int64_t>(stats.memory_budget_bytes));
  EXPECT_LE(stats.memory_budget_bytes, MemoryBudget::kOverhead + 16 * kMiB);
  EXPECT_GT(taken, 200u) << "as many as a model has";
  EXPECT_LT(taken, 300u);
  job.workers[1].Declare("one more", 1, "aggregate");
  const auto answer = job.workers[1].Heard(ControlMessage::kDeclared);
  EXPECT_EQ(answer.at(0).declared().code(), static_cast<uint32_t>(StatusCode::kResourceExhausted));
  EXPECT_THAT(answer.at(0).declared().message(), HasSubstr("with 1024 workers it may take the server"));
  EXPECT_THAT(answer.at(0).declared().message(), HasSubstr("--max-model-bytes"));
  job.workers[1].Declare("t0", 1, "aggregate");
  EXPECT_EQ(job.workers[1].Heard(ControlMessage::kDeclared).at(0).declared().code(), 0u)
      << "what is there costs nothing";
}

TEST(MemoryBudget, WhatIsRefusedAllocatesNothing) {
  Job job(Settings(2, ByteCount(kMiB)));
  (void)job.Declare("first", 1, "aggregate");
  const HeapMeter heap;
  for (const uint64_t count : {uint64_t{kMiB / 4}, uint64_t{1} << 38, uint64_t{1} << 40}) {
    EXPECT_LT(job.Declare("w", count, "adam:lr=0.1"), 1024) << count;
    EXPECT_EQ(job.code, static_cast<uint32_t>(StatusCode::kResourceExhausted)) << count;
  }
  EXPECT_LT(heap.peak(), 64 * 1024) << "too large for the model";
  ServerSettings small = Settings(2, ByteCount(64 * kMiB));
  small.memory = 8 * kMiB;
  Job on_a_small_machine(small);
  (void)on_a_small_machine.Declare("first", 1, "aggregate");
  const HeapMeter again;
  EXPECT_LT(on_a_small_machine.Declare("w", 4 * kMiB, "adam:lr=0.1"), 1024);
  EXPECT_EQ(on_a_small_machine.code, static_cast<uint32_t>(StatusCode::kResourceExhausted));
  EXPECT_LT(again.peak(), 64 * 1024) << "too large for the machine";
}

TEST(MemoryBudget, NeverPlansWithMoreThanTheMachineHas) {
  ServerSettings settings = Settings(2, ByteCount(int64_t{1} << 30));
  settings.memory = 100 * kMiB;
  MemoryBudget budget(settings, 344);
  EXPECT_EQ(budget.total(), 100u * kMiB);
  TensorSpec spec;
  spec.name = "w";
  spec.count = 1'000'000;
  EXPECT_TRUE(budget.Take(spec).ok());
  const uint64_t left = budget.total() - budget.taken();
  spec.count = 10'000'000;
  const Status refused = budget.Take(spec);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("tensor \"w\" does not fit"));
  EXPECT_THAT(refused.message(),
              HasSubstr("take the server " + std::to_string(budget.Plan(spec)) + " bytes"));
  EXPECT_THAT(refused.message(), HasSubstr(std::to_string(left) + " are left"));
  EXPECT_THAT(refused.message(), HasSubstr("--max-memory-bytes"));
  spec.count = 1'000'000;
  EXPECT_TRUE(budget.Take(spec).ok()) << "nothing was taken";
  budget.Return(spec);
  EXPECT_EQ(budget.total() - budget.taken(), left);
  settings.memory = uint64_t{1} << 50;
  EXPECT_LT(MemoryBudget(settings, 344).total(), uint64_t{20} << 30) << "a larger machine changes nothing";
}

TEST(MemoryBudget, AModelOfTheLargestSizeFitsWhateverTheSettings) {
  for (const bool deterministic : {false, true}) {
    for (const uint32_t workers : {1u, 16u, 1024u}) {
      ServerSettings settings = Settings(workers, ByteCount(int64_t{1} << 40));
      settings.deterministic = deterministic;
      settings.norm_guard = 8;
      settings.downlink = Downlink::kLossy;
      settings.policy = LossPolicy::kResidual;
      MemoryBudget budget(settings, 344);
      TensorSpec spec;
      spec.count = (uint64_t{1} << 38) / 200;
      spec.optimizer = *codec::ParseOptimizer("adam:lr=1");
      for (int i = 0; i < 200; ++i) EXPECT_TRUE(budget.Take(spec).ok()) << i << " of " << workers;
    }
  }
}

// --- What one member can make the server keep beside the tensors ---

struct Member : testing::Test {
  Member() : job(Settings(2)) {
    for (FakeWorker& worker : job.workers) worker.Declare("w", kCount, "sgd:lr=0.1");
    job.workers[1].connection.TakeControl();
  }
  static constexpr uint64_t kCount = 1'000'000;

  Job job;
  FakeWorker& insider = job.workers[0];
  const uint32_t chunks = static_cast<uint32_t>((kCount + job.chunk_elements() - 1) / job.chunk_elements());
};

TEST_F(Member, PullsThatWaitAreBoundedOverAllTensors) {
  for (int i = 0; i < 200; ++i) insider.Declare("t" + std::to_string(i), 1, "aggregate");
  insider.connection.TakeControl();
  const HeapMeter heap;
  uint32_t refused = 0;
  for (uint32_t key = 0; key < 200; ++key) {
    for (uint32_t i = 0; i < 100; ++i) insider.Pull(key, 1'000'000, key * 100 + i);
    refused += static_cast<uint32_t>(insider.Heard(ControlMessage::kPullRefused).size());
  }
  EXPECT_EQ(refused, 20'000 - Pulls::kMaxWaiting);
  EXPECT_LT(heap.grown(), 1 * kMiB);
  EXPECT_FALSE(insider.connection.closed);
  insider.Die(Status(StatusCode::kPeerDead, "gone"));
  FakeWorker again(job.coordinator, 0, 40100);
  again.Join(2, 1);
  again.Pull(0, 1'000'000, 1);
  EXPECT_TRUE(again.Heard(ControlMessage::kPullRefused).empty()) << "its predecessor's are forgotten";
}

TEST_F(Member, DeclarationsThatWaitForARoundAreBoundedOverAllTensors) {
  // The job's round is under way, so who comes now takes part from the next one on.
  ASSERT_TRUE(
      job.workers[1].Open({.key = {1, 0}, .high = chunks}, 0, 0, kCount, job.chunk_elements(), false).ok());
  insider.Die(Status(StatusCode::kPeerDead, "gone"));
  FakeWorker late(job.coordinator, 0, 40100);
  late.Join(2, 1);
  late.connection.TakeControl();
  const HeapMeter heap;
  uint32_t refused = 0;
  for (uint32_t i = 0; i < 20'000; ++i) {
    late.Declare("w", kCount, "sgd:lr=0.1", false, i);
    refused += static_cast<uint32_t>(late.Heard(ControlMessage::kDeclared).size());
  }
  EXPECT_EQ(refused, 20'000 - Declarations::kMaxPostponed);
  EXPECT_LT(heap.grown(), 2 * kMiB);
}

TEST_F(Member, AWindowWithLongerSymbolsThanTheJobsIsRefused) {
  insider.connection.max_chunk_bytes = 65520;
  EXPECT_FALSE(insider.Open({.key = {1, 0}, .high = chunks}, 0, 0, kCount, job.chunk_elements(), false).ok());
  ASSERT_TRUE(insider.connection.closed);
  EXPECT_EQ(insider.connection.closed->ToString(),
            "SettingsMismatch: window with symbols of 65520 bytes, the job has 1392");
}

TEST_F(Member, OneWindowOfInitialValuesPerTensorIsOpenAtATime) {
  insider.Declare("init", kCount, "sgd:lr=0.1", true);
  const auto open = [&](uint32_t id) {
    return insider.Open({.key = {id, 0}, .high = chunks}, 1, 0, kCount, job.chunk_elements(), false,
                        codec::WindowKind::kInitial);
  };
  EXPECT_TRUE(open(1).ok());
  EXPECT_FALSE(open(2).ok());
  ASSERT_TRUE(insider.connection.closed);
  EXPECT_EQ(insider.connection.closed->message(), "a second window of initial values");
}

// Every answer has a table of the tensor's chunks: 64 of them would be more than the model.
TEST_F(Member, PullsOfOneTensorAreAnsweredAFewAtATime) {
  const auto answers = [this] { return insider.connection.outgoing.size(); };
  for (uint32_t i = 0; i < Pulls::kMaxPending; ++i) insider.Pull(0, 0, i);
  EXPECT_TRUE(insider.Heard(ControlMessage::kPullRefused).empty());
  ASSERT_EQ(answers(), Pulls::kMaxOfTensor);
  EXPECT_EQ(job.coordinator.Stats().pulls_held, Pulls::kMaxPending - Pulls::kMaxOfTensor);
  // Another worker does not wait for this one's.
  job.workers[1].Pull(0, 0, 1);
  EXPECT_EQ(job.workers[1].connection.outgoing.size(), 1u);
  // All are answered in the end.
  uint32_t closed = 0;
  for (; answers() > 0; ++closed) {
    EXPECT_LE(answers(), Pulls::kMaxOfTensor);
    insider.CloseResult(insider.connection.outgoing.begin()->first);
  }
  EXPECT_EQ(closed, Pulls::kMaxPending);
}

// The tables of windows that leave, and what repair symbols take, as a connection really has them.
TEST_F(Member, WindowsThatLeaveTakeNoMoreThanTheirShareOfThePlan) {
  const auto coder = codec::ErasureCodeLibrary::Create();
  ASSERT_TRUE(coder.ok());
  TensorSpec spec;
  spec.count = kCount;
  const MemoryBudget budget(Settings(2), job.chunk_elements());
  const std::vector<uint8_t> body(1376);
  for (const uint8_t k : {uint8_t{0}, uint8_t{8}, uint8_t{24}}) {
    for (const bool high : {true, false}) {
      const HeapMeter heap;
      std::deque<transport::WindowTx> windows;
      for (uint32_t id = 0; id < MemoryBudget::kLeavingWindows; ++id) {
        transport::WindowOptions options;
        options.key = {id, 0};
        (high ? options.high_count : options.low_count) = chunks;
        options.symbol_bytes = 1392;
        options.fec_k = k;
        options.fec_depth = transport::kMaxFecDepth;
        windows.emplace_back(options, coder->get());
        const std::vector<uint8_t> header(16);
        for (uint32_t i = 0; i < chunks; ++i) {
          ASSERT_TRUE(windows.back().Submit(high ? kHigh : kLow, header, body).ok());
        }
        // The worker acknowledges nothing, so that as much repair as there is leaves.
        const transport::PathView lossy{.loss = 0.5, .packets_per_recovery_time = 1e6, .extra_repair = 24};
        for (uint32_t i = 0; i < chunks * 2 && windows.back().Next(lossy); ++i) {
        }
      }
      // What values and arriving windows may take is not theirs.
      const uint64_t others = sizeof(float) * kCount + 2 * chunks * (1392 + MemoryBudget::kPerArrivingChunk);
      EXPECT_LE(heap.peak(), static_cast<int64_t>(budget.PerMember(spec) - others))
          << "k " << int{k} << " high " << high;
      EXPECT_GE(heap.peak(), int64_t{MemoryBudget::kLeavingWindows} * chunks * 16)
          << "else this measures nothing";
    }
  }
}

// One symbol of every block is here, and nothing else comes; k and depth are the worker's choice.
TEST_F(Member, BlocksThatAreNeverCompleteTakeNoMoreThanTheGradient) {
  const auto coder = codec::ErasureCodeLibrary::Create();
  ASSERT_TRUE(coder.ok());
  TensorSpec spec;
  spec.count = kCount;
  const MemoryBudget budget(Settings(2), job.chunk_elements());
  const std::vector<uint8_t> symbol(1392);
  for (const int k : codec::kBlockSizes) {
    for (const int depth : {1, 4, 255}) {
      const wire::WindowOpenFrame open{.high_count = chunks,
                                       .symbol_bytes = 1392,
                                       .fec_k = static_cast<uint8_t>(k),
                                       .fec_depth = static_cast<uint8_t>(depth)};
      ASSERT_TRUE(transport::WindowRx::ValidateOpen(open, ByteCount(int64_t{1} << 30), coder->get()).ok());
      const transport::BlockMap map(chunks, open.fec_k, open.fec_depth);
      const HeapMeter heap;
      transport::WindowRx window(open, coder->get());
      for (uint32_t block = 0; block < map.block_count(); ++block) {
        const auto index = wire::DataHeader::RepairIndex(static_cast<uint16_t>(block), 0);
        ASSERT_EQ(window.OnData({.index = index, .repair = true}, symbol),
                  transport::WindowRx::Verdict::kNew);
      }
      const int64_t bytes = int64_t{chunks} * 1392;
      EXPECT_GE(heap.peak(), bytes) << "a buffer for all of every block";
      EXPECT_LE(heap.peak(), bytes + static_cast<int64_t>(chunks * MemoryBudget::kPerArrivingChunk +
                                                          MemoryBudget::kPerMemberTensor / 4));
      EXPECT_LE(2 * heap.peak(), static_cast<int64_t>(budget.PerMember(spec)));
    }
  }
}

// A worker that wants the result of every third round and closes none: the server keeps the values of one.
TEST_F(Member, ResultsThatAreNeverClosedHoldTheValuesOfOneRoundAtMost) {
  const uint32_t elements = job.chunk_elements();
  for (FakeWorker& worker : job.workers) worker.Declare("small", elements, "sgd:lr=0.1");
  const std::vector<float> ones(elements, 1.0f);
  std::optional<HeapMeter> heap;
  for (uint32_t round = 0; round < 300; ++round) {
    for (FakeWorker& worker : job.workers) {
      const bool wants = &worker == &insider && round % 3 == 0;
      ASSERT_TRUE(worker.Open({.key = {round + 1, 0}, .high = 1}, 1, round, elements, elements, wants).ok());
      worker.Send({round + 1, 0}, kHigh, 0, ones);
      worker.connection.TakeControl();
      worker.connection.closed_windows.clear();
      std::erase_if(worker.connection.outgoing, [](const auto& entry) { return entry.second.cancelled; });
    }
    if (round == 20) heap.emplace();
  }
  EXPECT_LT(heap->grown(), 16 * 1024) << "a copy of the values is " << elements * sizeof(float);
  EXPECT_LE(insider.connection.outgoing.size(), 3u);
}

}  // namespace
}  // namespace longhaul::server
