// A plug-in's optimizer in rounds: a step that fails ends the job by name, before any worker or image has
// what it made.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <stdexcept>

#include "base/random.h"
#include "server/tensor/memory_budget.h"
#include "tests/server/two_worker_job.h"

namespace longhaul::server {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Values = std::vector<float>;

// In its second step, of three chunks the last: gives a code, or NaN in the tensor's last element, or stands
// still.
constexpr longhaul_setting kSettings[] = {{"fails", nullptr, 0, 0, LONGHAUL_SETTING_FLAG},
                                          {"nan", nullptr, 0, 0, LONGHAUL_SETTING_FLAG}};
constexpr const char* kState[] = {"one", "two", "three"};
int32_t Step(const longhaul_step* s) {
  for (uint64_t i = 0; i < s->count; ++i) {
    s->updated[i] = s->values[i] - s->gradient[i];
    for (size_t k = 0; k < 3; ++k) s->new_state[k][i] = s->state[k][i] + 1;
  }
  if (s->steps < 2 || s->first < 2 * s->count) return 0;  // the last chunk, which ends the round
  if (s->settings[1] != 0) s->updated[s->count - 1] = std::numeric_limits<float>::quiet_NaN();
  return s->settings[0] != 0 ? 42 : 0;
}
constexpr longhaul_optimizer kRule = {.name = "third",
                                      .settings = kSettings,
                                      .setting_count = 2,
                                      .state = kState,
                                      .state_count = 3,
                                      .flags = 0,
                                      .states = nullptr,
                                      .check = nullptr,
                                      .prepare = nullptr,
                                      .step = Step};
constexpr const longhaul_optimizer* kRules[] = {&kRule};

// The largest value of each element, or what is wrong; and the middle one of three, with memory of its own.
template <int32_t kCode, bool kNan>
int32_t Largest(const longhaul_contributions* in, float* out) {
  for (uint64_t i = 0; i < in->count; ++i) {
    out[i] = in->values[0][i];
    for (uint32_t k = 1; k < in->contributors; ++k) out[i] = std::max(out[i], in->values[k][i]);
    if (kNan) out[i] = std::numeric_limits<float>::infinity();
  }
  return kCode;
}
int32_t Middle(const longhaul_contributions* in, float* out) {
  auto* column = static_cast<float*>(in->scratch);
  for (uint64_t i = 0; i < in->count; ++i) {
    for (uint32_t k = 0; k < 3; ++k) column[k] = in->values[k][i];
    std::sort(column, column + 3);
    out[i] = column[1];
  }
  return in->contributors == 3 && in->liars == 1 && in->ranks[2] == 2 && in->weights[2] == 2 ? 0 : 1;
}
constexpr longhaul_aggregation kLargest = {
    .name = "largest", .scratch = nullptr, .aggregate = Largest<0, false>};
constexpr longhaul_aggregation kCode = {.name = "code", .scratch = nullptr, .aggregate = Largest<9, false>};
constexpr longhaul_aggregation kInfinite = {
    .name = "infinite", .scratch = nullptr, .aggregate = Largest<0, true>};
constexpr longhaul_aggregation kThrows = {
    .name = "throws", .scratch = nullptr, .aggregate = [](const longhaul_contributions*, float*) -> int32_t {
      throw std::runtime_error("x");
    }};
constexpr longhaul_aggregation kGreedy = {
    .name = "greedy",
    .scratch = [](uint64_t, uint32_t, uint32_t) { return uint64_t{1} << 40; },
    .aggregate = Largest<0, false>};
constexpr longhaul_aggregation kMiddle = {
    .name = "middle",
    .scratch = [](uint64_t, uint32_t contributors, uint32_t) -> uint64_t {
      return contributors * sizeof(float);
    },
    .aggregate = Middle};
constexpr const longhaul_aggregation* kAggregations[] = {&kLargest, &kCode,   &kInfinite,
                                                         &kThrows,  &kGreedy, &kMiddle};
constexpr longhaul_plugin kPlugin = {LONGHAUL_PLUGIN_API, 1, kRules, std::size(kAggregations), kAggregations};

struct Keeper final : RestoringKeeper {
  bool Ready() const override { return true; }
  void Keep(std::shared_ptr<const JobImage> image) override { kept.push_back(std::move(image)); }
  void OnSkipped() override {}
  KeeperStats stats() const override { return {}; }
  void OnJobOver() override {}
  std::vector<std::shared_ptr<const JobImage>> kept;
};

ServerSettings WithPlugin(const char* aggregation = nullptr) {
  ServerSettings settings;
  settings.world_size = settings.min_workers = 2;
  settings.policy = LossPolicy::kZero;
  settings.max_model = ByteCount(4 << 20);
  settings.checkpoint_every = 1;
  EXPECT_TRUE(settings.rules.Add(&kPlugin).ok());
  if (aggregation == nullptr) return settings;
  settings.aggregation = Aggregation::kPlugin;
  settings.aggregation_rule = settings.rules.FindAggregation(aggregation);
  return settings;
}

struct HasKeeper {
  Keeper keeper;
};

struct PluginSteps : testing::Test, HasKeeper, TwoWorkerJob {
  explicit PluginSteps(const char* aggregation = nullptr) : TwoWorkerJob(WithPlugin(aggregation), &keeper) {
    a.Join(2);
    b.Join(2);
  }
  void DeclareBoth(const std::string& optimizer) {
    a.Declare("w", count, optimizer);
    b.Declare("w", count, optimizer);
  }
  void Round(uint64_t round) {
    const transport::WindowKey key{static_cast<uint32_t>(round + 1)};
    for (FakeWorker* worker : {&a, &b})
      ASSERT_TRUE(worker->Open({.key = key, .high = kChunks}, 0, round, count, elements, false).ok());
    for (FakeWorker* worker : {&a, &b}) {
      for (uint32_t chunk = 0; chunk < kChunks; ++chunk)
        worker->Send(key, wire::ReliabilityClass::kHigh, chunk, Values(elements, worker == &a ? 1 : second));
    }
  }
  float second = 1;  // what b pushes
};

TEST_F(PluginSteps, KeepTheirStateInImages) {
  DeclareBoth("third");
  Round(0);
  Round(1);
  ASSERT_EQ(keeper.kept.size(), 2u);
  const TensorImage& image = keeper.kept[1]->tensors.at(0);
  EXPECT_EQ(image.optimizer, "third");
  ASSERT_EQ(image.state.size(), 3u);
  EXPECT_EQ(image.state[2].name, "three");
  EXPECT_EQ(image.state[2].values->span()[count - 1], 2.0f);
  EXPECT_EQ(image.values->span()[0], -2.0f);
}

// The round does not end: its values are half made, and the last image stays the one before.
struct Failure {
  const char* optimizer;
  const char* words;
};
void PrintTo(const Failure& failure, std::ostream* out) { *out << failure.optimizer; }

struct FailingPluginStep : PluginSteps, testing::WithParamInterface<Failure> {};

TEST_P(FailingPluginStep, EndsTheJobByNameAndNothingKeepsWhatItMade) {
  DeclareBoth(GetParam().optimizer);
  Round(0);
  EXPECT_EQ(keeper.kept.size(), 1u);
  Round(1);
  ASSERT_EQ(events.over.size(), 1u);
  EXPECT_EQ(events.over[0].code(), StatusCode::kAborted);
  EXPECT_THAT(events.over[0].message(), AllOf(HasSubstr("tensor \"w\""), HasSubstr(GetParam().words)));
  EXPECT_EQ(keeper.kept.size(), 1u) << "no image of the broken round";
  FakeWorker c(coordinator, 0, 41000), d(coordinator, 1, 41001);
  c.Join(2);
  d.Join(2);
  EXPECT_EQ(events.starts, 2) << "the server takes the next job";
}

INSTANTIATE_TEST_SUITE_P(
    Ways, FailingPluginStep,
    testing::Values(
        Failure{"third:fails",
                "has no values in round 1: the step of its optimizer third:fails ended with code 42"},
        Failure{"third:nan", "became infinite in round 1: the step of its optimizer third:nan overflowed"}));

TEST_F(PluginSteps, OfSomeWorkersNeedAnOptimizerThatKnowsOfThem) {
  control::ControlMessage message;
  control::Declare& declare = *message.mutable_declare();
  declare.set_request(1);
  declare.set_name("w");
  declare.set_count(count);
  declare.set_optimizer("third");
  declare.set_staleness(-1);
  a.Say(message);
  const auto answers = a.Heard(control::ControlMessage::kDeclared);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].declared().code(), static_cast<uint32_t>(StatusCode::kInvalidArgument));
  EXPECT_THAT(answers[0].declared().message(),
              HasSubstr("steps of some of the workers, which third does not"));
}

TEST_F(PluginSteps, OfAnUnknownOptimizerAreRefusedWithWhatIsKnown) {
  a.Declare("w", count, "forth");
  const auto answers = a.Heard(control::ControlMessage::kDeclared);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].declared().code(), static_cast<uint32_t>(StatusCode::kInvalidArgument));
  EXPECT_THAT(answers[0].declared().message(),
              AllOf(HasSubstr("\"forth\": unknown"), HasSubstr("third[:fails]")));
}

// A checkpoint of an optimizer that keeps another number of arrays.
TEST_F(PluginSteps, DoNotGoOnFromTheStateOfAnother) {
  TensorImage image{.name = "w",
                    .count = count,
                    .optimizer = "third",
                    .rounds = 1,
                    .values = std::make_shared<ZeroedArray<float>>(count)};
  for (const char* name : {"one", "two"})
    image.state.push_back({name, std::make_shared<ZeroedArray<float>>(count)});
  keeper.restored["w"] = image;
  a.Declare("w", count, "third");
  const auto answers = a.Heard(control::ControlMessage::kDeclared);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].declared().code(), static_cast<uint32_t>(StatusCode::kSettingsMismatch));
  EXPECT_THAT(answers[0].declared().message(),
              AllOf(HasSubstr("keeps one, two, three"), HasSubstr("third, which keeps one, two")));
}

// A plug-in that keeps more than Adam does fits a model of --max-model-bytes as well.
TEST_F(PluginSteps, FitTheBudgetOfTheLargestModel) {
  EXPECT_EQ(WithPlugin().rules.MostState(), 3u);
  ServerSettings settings = WithPlugin();
  settings.max_model = ByteCount(int64_t{4} << 30);  // of which the budget's overhead is a small part
  MemoryBudget budget(settings, elements);
  const uint64_t largest = static_cast<uint64_t>(settings.max_model.value()) / sizeof(float);
  const TensorSpec spec{.name = "w", .count = largest, .optimizer = *WithPlugin().rules.Parse("third")};
  EXPECT_TRUE(budget.Take(spec).ok());
}

// --- Aggregations ---

struct WithLargest : PluginSteps {
  WithLargest() : PluginSteps("largest") {}
};

TEST_F(WithLargest, ThePluginsRuleMakesOneOfAllContributions) {
  second = 3;
  DeclareBoth("sgd:lr=1");
  Round(0);
  ASSERT_EQ(keeper.kept.size(), 1u);
  EXPECT_EQ(keeper.kept[0]->tensors.at(0).values->span()[count - 1], -3.0f);
}

struct FailingAggregation : testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(FailingAggregation, EndsTheJobByName) {
  struct Job : PluginSteps {
    using PluginSteps::PluginSteps;
    void TestBody() override {}
  } job(GetParam().first);
  job.DeclareBoth("sgd:lr=1");
  job.Round(0);
  ASSERT_EQ(job.events.over.size(), 1u);
  EXPECT_EQ(job.events.over[0].code(), StatusCode::kAborted);
  EXPECT_THAT(job.events.over[0].message(),
              HasSubstr(std::string("tensor \"w\" has no values in round 0: the aggregation ") +
                        GetParam().first + " " + GetParam().second));
  EXPECT_TRUE(job.keeper.kept.empty());
}

INSTANTIATE_TEST_SUITE_P(Ways, FailingAggregation,
                         testing::Values(std::pair("code", "ended with code 9"), std::pair("throws", "threw"),
                                         std::pair("infinite", "gave values that are not finite"),
                                         std::pair("greedy", "asked for more than 16 MiB of memory")));

// Of three workers, one of which may lie, the built-in trimmed mean is the middle value.
TEST(PluginAggregation, HasTheBitsOfTheBuiltInOne) {
  const codec::ChunkGeometry geometry{.count = 150, .chunk_elements = 100};
  Aggregator own(geometry, 3, Aggregator::Order::kArrival, Aggregation::kPlugin, &kMiddle);
  Aggregator built_in(geometry, 3, Aggregator::Order::kArrival, Aggregation::kTrimmedMean);
  Random random(3);
  for (const uint32_t rank : {2u, 0u, 1u}) {
    for (uint32_t chunk = 0; chunk < 2; ++chunk) {
      Values values(geometry.Length(chunk));
      for (float& value : values) value = static_cast<float>(random.Normal());
      for (Aggregator* aggregator : {&own, &built_in})
        ASSERT_TRUE(aggregator->Add(rank, chunk, values, rank == 2 ? 2.0f : 1.0f));
    }
  }
  for (uint32_t chunk = 0; chunk < 2; ++chunk) {
    const auto a = own.sum(chunk, 1), b = built_in.sum(chunk, 1);
    EXPECT_EQ(Values(a.begin(), a.end()), Values(b.begin(), b.end()));
    EXPECT_EQ(own.failed(), "");
  }
}

}  // namespace
}  // namespace longhaul::server
