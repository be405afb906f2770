#include "bench/learning/training.h"

#include <Eigen/Core>
#include <algorithm>
#include <optional>
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

// The workers' batches of every round, by the scenario.
class Batches {
 public:
  Batches(const Scenario& scenario, const worker::Dataset& train) {
    if (!scenario.shards) {
      skewed_.emplace(train, scenario.workers, scenario.skew, scenario.batch, scenario.seed);
      return;
    }
    shards_.reserve(scenario.workers);
    for (uint32_t rank = 0; rank < scenario.workers; ++rank) {
      shards_.push_back(worker::ShardOf(train, rank, scenario.workers, scenario.seed, scenario.skew));
      of_shards_.emplace_back(shards_.back(), scenario.batch, rank, scenario.seed);
    }
  }
  void Draw(uint32_t rank, uint64_t round, worker::Batch& out) {
    if (skewed_) return skewed_->Draw(rank, round, out);
    out = of_shards_[rank].ForRound(round);
  }

 private:
  std::optional<SkewedBatches> skewed_;
  std::vector<worker::Dataset> shards_;
  std::vector<worker::MiniBatches> of_shards_;
};

bool AllFinite(std::span<const std::vector<float>> tensors) {
  return std::ranges::all_of(tensors,
                             [](const std::vector<float>& values) { return codec::AllFinite(values); });
}

// Evaluations over the last tenth of the rounds.
struct Tail {
  explicit Tail(const Scenario& scenario)
      : rounds(scenario.rounds),
        step(std::max<uint64_t>(1, scenario.rounds / 70)),
        length(std::min(scenario.rounds, step * (kEvaluations - 1))) {}
  bool Has(uint64_t round) const { return round + length >= rounds; }
  bool EvaluatesAfter(uint64_t round) const {
    const uint64_t left = rounds - 1 - round;
    return left <= length && left % step == 0;
  }
  uint64_t rounds;
  uint64_t step;
  uint64_t length;
};

// The tensors as they travel: matrices as the model has them, [outputs][inputs], or transposed.
void Turn(const Scenario& scenario, bool back, worker::Mlp::Tensors* tensors) {
  if (!scenario.transposed) return;
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  for (const size_t t : {0u, 2u}) {
    std::vector<float>& values = (*tensors)[t];
    const auto outputs = static_cast<Eigen::Index>((*tensors)[t + 1].size());
    const auto inputs = static_cast<Eigen::Index>(values.size()) / outputs;
    const Matrix turned =
        Eigen::Map<const Matrix>(values.data(), back ? inputs : outputs, back ? outputs : inputs).transpose();
    std::copy_n(turned.data(), values.size(), values.begin());
  }
}

void Take(const Scenario& scenario, Exchange& exchange, worker::Mlp::Tensors* parameters) {
  for (size_t t = 0; t < worker::Mlp::kTensors; ++t) {
    const std::span<const float> values = exchange.parameters(t);
    (*parameters)[t].assign(values.begin(), values.end());
  }
  Turn(scenario, true, parameters);
}

// The mean of the parameters over the rounds of the tail.
class MeanModel {
 public:
  void Add(const worker::Mlp::Tensors& parameters) {
    ++count_;
    for (size_t t = 0; t < parameters.size(); ++t) {
      for (size_t i = 0; i < parameters[t].size(); ++i)
        mean_[t][i] += (parameters[t][i] - mean_[t][i]) / static_cast<float>(count_);
    }
  }
  void Evaluate(const worker::Dataset& test, Outcome* outcome) const {
    worker::Mlp model(0);
    model.parameters() = mean_;
    outcome->averaged_accuracy = model.Accuracy(test);
    outcome->averaged_loss = model.Loss(worker::MakeBatch(test, 0, test.size()));
  }

 private:
  size_t count_ = 0;
  worker::Mlp::Tensors mean_ = worker::Mlp::Zeros();
};

void Finish(const Scenario& scenario, const Exchange& exchange, uint64_t evaluations, uint64_t losses,
            Outcome* outcome) {
  outcome->accuracy /= static_cast<double>(evaluations);
  outcome->training_loss /= static_cast<double>(std::max<uint64_t>(1, losses));
  const Exchange::Stats& stats = exchange.stats();
  if (stats.low_chunks > 0) {
    outcome->low_lost = static_cast<double>(stats.low_lost) / static_cast<double>(stats.low_chunks);
  }
  outcome->high_share =
      static_cast<double>(stats.high_chunks) / static_cast<double>(stats.high_chunks + stats.low_chunks);
  outcome->filled = static_cast<double>(stats.filled) / static_cast<double>(scenario.rounds);
}

// Every push is a step: the worker that is ready next, in virtual time, pushes the gradient of the parameters
// that it had at its last push, as far as the staleness lets it.
Outcome TrainSteps(const Scenario& scenario, Batches& batches, const worker::Dataset& test,
                   Exchange& exchange, worker::Mlp& mlp) {
  struct Worker {
    worker::Mlp::Tensors parameters;  // that its gradient is of
    double ready = 0;
    uint64_t clock = 0;
  };
  Random random = Random(scenario.seed ^ 0x636c6f636b).Fork(1);
  const auto take = [&](uint32_t rank) {
    return (0.5 + random.Uniform()) * (rank + 1 == scenario.workers ? scenario.slow : 1);
  };
  std::vector<Worker> workers(scenario.workers, {.parameters = mlp.parameters()});
  for (uint32_t rank = 0; rank < scenario.workers; ++rank) workers[rank].ready = take(rank);
  const Tail tail(scenario);
  worker::Mlp::Tensors gradient = worker::Mlp::Zeros();
  worker::Batch batch;
  Outcome outcome;
  uint64_t evaluations = 0;
  uint64_t losses = 0;
  const uint64_t steps = scenario.rounds * scenario.workers;
  for (uint64_t step = 0; step < steps; ++step) {
    const uint64_t slowest = std::ranges::min(workers, {}, &Worker::clock).clock;
    uint32_t next = scenario.workers;
    for (uint32_t rank = 0; rank < scenario.workers; ++rank) {
      const bool waits =
          scenario.staleness > 0 && workers[rank].clock > slowest + static_cast<uint64_t>(scenario.staleness);
      if (!waits && (next == scenario.workers || workers[rank].ready < workers[next].ready)) next = rank;
    }
    Worker& worker = workers[next];
    const double now = worker.ready;
    const uint64_t round = step / scenario.workers;
    mlp.parameters() = worker.parameters;
    batches.Draw(next, worker.clock, batch);
    const double loss = mlp.Gradient(batch, gradient);
    Scale(gradient, RateFactor(scenario, round));
    if (!AllFinite(gradient)) return {.accuracy = 0.1, .diverged = true};
    Turn(scenario, false, &gradient);
    exchange.Step(next, gradient);
    Take(scenario, exchange, &worker.parameters);
    ++worker.clock;
    worker.ready = now + take(next);
    // A worker that had to wait goes on from here.
    for (Worker& other : workers) other.ready = std::max(other.ready, now);
    if (tail.Has(round)) {
      outcome.training_loss += loss;
      ++losses;
    }
    if ((step + 1) % scenario.workers == 0 && tail.EvaluatesAfter(round)) {
      mlp.parameters() = worker.parameters;
      outcome.accuracy += mlp.Accuracy(test);
      ++evaluations;
    }
  }
  Finish(scenario, exchange, evaluations, losses, &outcome);
  return outcome;
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
  worker::Mlp::Tensors initial = mlp.parameters();
  Turn(scenario, false, &initial);
  Result<std::unique_ptr<Exchange>> created = Exchange::Create(scenario, initial);
  if (!created.ok()) return created.status();
  Exchange& exchange = **created;
  Batches batches(scenario, train);

  if (scenario.staleness != 0) return TrainSteps(scenario, batches, test, exchange, mlp);
  std::vector<worker::Mlp::Tensors> gradients(scenario.workers, worker::Mlp::Zeros());
  std::vector<std::span<const Exchange::Values>> pushed(gradients.begin(), gradients.end());
  worker::Batch batch;
  Outcome outcome;
  const Tail tail(scenario);
  MeanModel mean;
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
      Turn(scenario, false, &gradients[rank]);
      if (!tail.Has(round)) continue;
      outcome.training_loss += loss;
      ++losses;
    }
    if (!std::ranges::all_of(pushed, AllFinite)) {
      // A worker refuses to push it, a server ends the job: what the model is worth at random.
      outcome = {.accuracy = 0.1, .diverged = true};
      return outcome;
    }
    exchange.Round(pushed, attendance);
    Take(scenario, exchange, &mlp.parameters());
    if (tail.Has(round)) mean.Add(mlp.parameters());
    if (tail.EvaluatesAfter(round)) {
      outcome.accuracy += mlp.Accuracy(test);
      ++evaluations;
    }
  }
  Finish(scenario, exchange, evaluations, losses, &outcome);
  mean.Evaluate(test, &outcome);
  return outcome;
}

}  // namespace longhaul::bench
