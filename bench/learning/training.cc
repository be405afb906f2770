#include "bench/learning/training.h"

#include <Eigen/Core>
#include <algorithm>
#include <utility>

#include "bench/learning/skewed_batches.h"
#include "codec/chunk/top_k.h"

namespace longhaul::bench {
namespace {

constexpr uint64_t kEvaluations = 9;
constexpr uint64_t kReplaceEvery = 50;

// The worker that leaves: one of those that lose most, where workers differ.
uint32_t Absentee(const Scenario& scenario) {
  return static_cast<uint32_t>(scenario.seed % scenario.workers);
}

bool Away(const Scenario& scenario, uint64_t round) {
  const uint64_t first = scenario.rounds * 3 / 7;
  return round >= first && round < first + std::max<uint64_t>(1, scenario.rounds / 7);
}

void Scale(worker::Mlp::Tensors& gradients, float factor) {
  if (factor == 1.0f) return;
  for (std::vector<float>& tensor : gradients) {
    Eigen::Map<Eigen::ArrayXf>(tensor.data(), static_cast<Eigen::Index>(tensor.size())) *= factor;
  }
}

// What a liar makes of its gradient.
void Poison(const Scenario& scenario, worker::Mlp::Tensors& gradients) {
  Scale(gradients, scenario.attack == "scale" ? -10.0f : -1.0f);
}

bool AllFinite(std::span<const std::vector<float>> tensors) {
  return std::ranges::all_of(tensors,
                             [](const std::vector<float>& values) { return codec::AllFinite(values); });
}

}  // namespace

std::vector<Attendance> AttendanceIn(const Scenario& scenario, uint64_t round) {
  std::vector<Attendance> attendance(scenario.workers, Attendance::kPresent);
  if (scenario.membership == "left" && Away(scenario, round))
    attendance[Absentee(scenario)] = Attendance::kGone;
  if (scenario.membership == "excluded" && Away(scenario, round)) {
    attendance[Absentee(scenario)] = Attendance::kExcluded;
  }
  return attendance;
}

float RateFactor(const Scenario& scenario, uint64_t round) {
  if (scenario.optimizer != "sgd") return 1.0f;
  if (scenario.schedule == "drop") return 2 * round < scenario.rounds ? 1.0f : 0.1f;
  return 1.0f - static_cast<float>(round) / static_cast<float>(scenario.rounds);
}

Result<Outcome> Train(const Scenario& scenario, const worker::Dataset& train, const worker::Dataset& test,
                      worker::Mlp* model) {
  worker::Mlp own(scenario.seed);
  worker::Mlp &mlp = model != nullptr ? *model = std::move(own), *model : own;
  Result<std::unique_ptr<Exchange>> created = Exchange::Create(scenario, mlp.parameters());
  if (!created.ok()) return created.status();
  Exchange& exchange = **created;
  const SkewedBatches batches(train, scenario.workers, scenario.skew, scenario.batch, scenario.seed);

  std::vector<worker::Mlp::Tensors> gradients(scenario.workers, worker::Mlp::Zeros());
  std::vector<std::span<const Exchange::Values>> pushed(gradients.begin(), gradients.end());
  worker::Batch batch;
  Outcome outcome;
  const uint64_t step = std::max<uint64_t>(1, scenario.rounds / 70);
  const uint64_t tail = std::min(scenario.rounds, step * (kEvaluations - 1));
  uint64_t evaluations = 0;
  uint64_t losses = 0;
  for (uint64_t round = 0; round < scenario.rounds; ++round) {
    const std::vector<Attendance> attendance = AttendanceIn(scenario, round);
    if (scenario.membership == "replaced" && round > 0 && round % kReplaceEvery == 0) {
      exchange.Replace(static_cast<uint32_t>(round / kReplaceEvery % scenario.workers));
    }
    for (uint32_t rank = 0; rank < scenario.workers; ++rank) {
      if (attendance[rank] != Attendance::kPresent) continue;
      batches.Draw(rank, round, batch);
      const double loss = mlp.Gradient(batch, gradients[rank]);
      Scale(gradients[rank], RateFactor(scenario, round));
      if (scenario.Lies(rank)) Poison(scenario, gradients[rank]);
      if (round + tail < scenario.rounds) continue;
      outcome.training_loss += loss;
      ++losses;
    }
    if (!std::ranges::all_of(pushed, AllFinite)) {
      // A worker refuses to push it, a server ends the job: what the model is worth at random.
      outcome = {.accuracy = 0.1, .diverged = true};
      return outcome;
    }
    exchange.Round(pushed, attendance);
    for (size_t t = 0; t < worker::Mlp::kTensors; ++t) {
      const std::span<const float> values = exchange.parameters(t);
      mlp.parameters()[t].assign(values.begin(), values.end());
    }
    const uint64_t left = scenario.rounds - 1 - round;
    if (left <= tail && left % step == 0) {
      outcome.accuracy += mlp.Accuracy(test);
      ++evaluations;
    }
  }
  outcome.accuracy /= static_cast<double>(evaluations);
  outcome.training_loss /= static_cast<double>(std::max<uint64_t>(1, losses));
  const Exchange::Stats& stats = exchange.stats();
  if (stats.low_chunks > 0) {
    outcome.low_lost = static_cast<double>(stats.low_lost) / static_cast<double>(stats.low_chunks);
  }
  outcome.filled = static_cast<double>(stats.filled) / static_cast<double>(scenario.rounds);
  return outcome;
}

}  // namespace longhaul::bench
