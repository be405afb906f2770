#include "worker/demo/trainer_loop.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include "base/quantile.h"
#include "codec/policy/optimizer.h"
#include "worker/demo/local_steps.h"
#include "worker/demo/mini_batches.h"
#include "worker/demo/mlp.h"

namespace longhaul::worker {
namespace {

using Clock = std::chrono::steady_clock;
using Handles = std::array<Tensor, Mlp::kTensors>;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Every worker offers the same seeded model as initial values; the server takes one of them.
Status DeclareModel(Client& client, const Mlp& model, const TrainOptions& options, Handles& handles) {
  for (size_t t = 0; t < Mlp::kTensors; ++t) {
    TensorOptions tensor;
    tensor.count = Mlp::kShapes[t].count;
    tensor.optimizer = ServerOptimizer(options);
    tensor.wire_dtype = options.wire_dtype;
    tensor.result_dtype = options.result_dtype;
    tensor.initial = model.parameters()[t];
    Result<Tensor> declared = client.Declare(std::string(Mlp::kShapes[t].name), tensor);
    if (!declared.ok()) return declared.status();
    handles[t] = *declared;
  }
  return Status::Ok();
}

Status WaitAll(const std::array<Operation, Mlp::kTensors>& operations) {
  Status first;
  for (const Operation& operation : operations) {
    // All of them, since they borrow memory until they are done.
    if (Status s = operation.Wait(); !s.ok() && first.ok()) first = s;
  }
  return first;
}

// The parameters as they are, and how many rounds made them.
Status PullModel(Client& client, const Handles& handles, Mlp& model, uint64_t* round) {
  std::array<Operation, Mlp::kTensors> pulls;
  for (size_t t = 0; t < Mlp::kTensors; ++t) pulls[t] = client.Pull(handles[t], model.parameters()[t]);
  const Status status = WaitAll(pulls);
  *round = pulls[0].stats().round;
  return status;
}

// The share of the learning rate in a round.
double RateShare(const TrainOptions& options, uint64_t round) {
  if (!options.decay_learning_rate) return 1;
  return 1.0 - static_cast<double>(round) / static_cast<double>(options.rounds);
}

void Scale(Mlp::Tensors& gradients, float share) {
  for (std::vector<float>& gradient : gradients) {
    for (float& value : gradient) value *= share;
  }
}

// What the trainer keeps: images of the shard, batch, local steps and seed, which must be the same to go on,
// and how often batches for a round were drawn. By these the place in an epoch and its order are known.
using Place = std::array<uint64_t, 5>;

// Goes on from what the last process has saved, if any.
Status LoadPlace(const Client& client, Place* place) {
  const std::vector<std::byte> blob = client.LoadedState();
  Place last = {};
  if (blob.size() == sizeof last) std::memcpy(last.data(), blob.data(), sizeof last);
  if (blob.empty() || !std::equal(last.begin(), last.end() - 1, place->begin()))
    return blob.empty()
               ? Status()
               : Status(StatusCode::kSettingsMismatch, "the state is of another shard, batch or seed");
  *place = last;
  return {};
}

double ObservedLoss(const ClientStats& stats) {
  return stats.packets_sent == 0
             ? 0
             : static_cast<double>(stats.packets_lost) / static_cast<double>(stats.packets_sent);
}

}  // namespace

void RoundReports::Add(const OperationStats::RoundInfo& info) {
  if (tensors == 0 || info.lost_chunks > most_lost) {
    most_lost = info.lost_chunks;
    sum.last_rank = info.last_rank;
    sum.fill_reason = info.fill_reason;
  }
  ++tensors;
  sum.contributors = std::max(sum.contributors, info.contributors);
  sum.repaired_chunks += info.repaired_chunks;
  sum.filled_chunks += info.filled_chunks;
  sum.tolerated_chunks += info.tolerated_chunks;
  sum.rejected_chunks += info.rejected_chunks;
  sum.excluded += info.excluded;
  sum.lost_chunks += info.lost_chunks;
  sum.low_chunks += info.low_chunks;
  sum.low_lost += info.low_lost;
  sum.loss = sum.low_chunks == 0 ? 0 : static_cast<double>(sum.low_lost) / sum.low_chunks;
}

std::string ServerOptimizer(const TrainOptions& options) {
  if (!options.optimizer.empty()) return options.optimizer;
  if (options.local_steps > 1) return "sgd:lr=0.7,momentum=0.9,nesterov";
  std::ostringstream text;
  text << "sgd:lr=" << options.learning_rate << ",momentum=" << options.momentum;
  return text.str();
}

Status Validate(const TrainOptions& options) {
  const auto outer = codec::ParseOptimizer(ServerOptimizer(options));
  // One that is not built in may be a plug-in's, which the server knows.
  if (!outer.ok() && outer.status().code() != StatusCode::kNotFound) return outer.status();
  if (outer.ok() && outer->aggregates()) {
    return Status(StatusCode::kInvalidArgument,
                  "the trainer needs an optimizer at the server, not \"aggregate\"");
  }
  const auto local = codec::ParseOptimizer(options.local_optimizer);
  if (!local.ok()) return local.status();
  if (local->aggregates()) {
    return Status(StatusCode::kInvalidArgument, "local steps need an optimizer, not \"aggregate\"");
  }
  if (options.local_steps == 0) {
    return Status(StatusCode::kInvalidArgument, "local_steps must be at least 1");
  }
  return Status::Ok();
}

Result<TrainSummary> Train(Client& client, const Dataset& shard, const Dataset& test,
                           const TrainOptions& options,
                           const std::function<void(const RoundProgress&)>& on_round) {
  if (Status s = Validate(options); !s.ok()) return s;
  const auto outer = codec::ParseOptimizer(ServerOptimizer(options));
  // Adam's step does not depend on the scale of its gradients.
  const bool scale_gradients = outer.ok() && outer->name() == "sgd";
  std::optional<LocalSteps> local;
  if (options.local_steps > 1) {
    local.emplace(*codec::ParseOptimizer(options.local_optimizer), options.local_steps);
  }
  const bool evaluates = client.rank() == 0;
  Mlp model(options.seed);
  Mlp::Tensors gradients = Mlp::Zeros();
  MiniBatches batches(shard, options.batch, client.rank(), options.seed);
  Handles handles;
  uint64_t round = 0;
  if (Status s = DeclareModel(client, model, options, handles); !s.ok()) return s;
  if (Status s = PullModel(client, handles, model, &round); !s.ok()) return s;
  Place place = {shard.size(), options.batch, options.local_steps, options.seed, round};
  uint64_t& draws = place.back();
  Status state = options.state_every == 0 ? Status() : LoadPlace(client, &place);

  TrainSummary summary;
  std::vector<double> round_seconds;
  const Clock::time_point begun = Clock::now();
  for (; round < options.rounds; ++round) {
    const Clock::time_point round_begun = Clock::now();
    const double rate_share = RateShare(options, round);
    if (local) {
      summary.training_loss = local->Run(draws, rate_share, batches, model, gradients);
    } else {
      summary.training_loss = model.Gradient(batches.ForRound(draws), gradients);
      if (scale_gradients && rate_share < 1) Scale(gradients, static_cast<float>(rate_share));
    }
    std::array<Operation, Mlp::kTensors> steps;
    for (size_t t = 0; t < Mlp::kTensors; ++t) {
      steps[t] = client.PushPull(handles[t], gradients[t], model.parameters()[t]);
    }
    if (Status s = WaitAll(steps); !s.ok()) return s;

    RoundProgress progress;
    progress.draws = ++draws;
    progress.round = round + 1;
    progress.rounds = options.rounds;
    progress.seconds = SecondsSince(round_begun);
    progress.training_loss = summary.training_loss;
    progress.stats = client.stats();
    progress.observed_loss = ObservedLoss(progress.stats);
    int64_t bytes = 0;
    for (const Operation& step : steps) {
      const OperationStats stats = step.stats();
      bytes += stats.bytes.value();
      if (stats.round_info) progress.reports.Add(*stats.round_info);
    }
    progress.goodput_mbps = static_cast<double>(bytes) * 8e-6 / std::max(progress.seconds, 1e-9);
    round_seconds.push_back(progress.seconds);
    const bool last = round + 1 == options.rounds;
    if (evaluates && (last || (options.eval_every != 0 && (round + 1) % options.eval_every == 0))) {
      summary.accuracy = progress.accuracy = model.Accuracy(test);
    }
    progress.state = std::exchange(state, Status());
    if (options.state_every != 0 && (last || (round + 1) % options.state_every == 0)) {
      const Status saved = client.SaveState(std::as_bytes(std::span(place)));
      if (progress.state.ok()) progress.state = saved;
    }
    if (on_round) on_round(progress);
    ++summary.rounds;
  }
  if (client.settings().staleness != 0) {
    // The others may have rounds to go, which need this worker as a member; the model is made when all are
    // through.
    if (Status s = client.Barrier("trained"); !s.ok()) return s;
    if (Status s = PullModel(client, handles, model, &round); !s.ok()) return s;
    summary.accuracy.reset();
  }
  if (evaluates && !summary.accuracy) summary.accuracy = model.Accuracy(test);
  summary.seconds = SecondsSince(begun);
  summary.round_seconds_p50 = Quantile(round_seconds, 0.50);
  summary.round_seconds_p99 = Quantile(round_seconds, 0.99);
  summary.stats = client.stats();
  return summary;
}

}  // namespace longhaul::worker
