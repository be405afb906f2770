// The built-in training job: gradients of the MLP on this worker's shard, the optimizer on the server.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "longhaul/client.h"
#include "worker/dataset.h"

namespace longhaul::worker {

struct TrainOptions {
  uint64_t rounds = 500;
  size_t batch = 128;  // images per worker and round
  double learning_rate = 0.1;
  double momentum = 0.9;
  // Falls linearly to zero over the rounds: workers scale their gradients, the server's rate stays as
  // declared.
  bool decay_learning_rate = true;
  uint64_t seed = 1;         // of model, shards and batches; the same for all workers
  uint64_t eval_every = 50;  // rounds between test accuracies on rank 0; 0 = only at the end
};

struct RoundProgress {
  uint64_t round = 0;  // counted from 1: rounds done
  uint64_t rounds = 0;
  double seconds = 0;              // of this round
  double training_loss = 0;        // of this worker's batch, before the update
  std::optional<double> accuracy;  // on the test images, 0..1
  double goodput_mbps = 0;         // tensor bytes in both directions over the round's time
  double observed_loss = 0;        // share of our packets lost so far, 0..1
  ClientStats stats;               // since the start
};

struct TrainSummary {
  uint64_t rounds = 0;
  double seconds = 0;
  double training_loss = 0;        // of the last batch
  std::optional<double> accuracy;  // of rank 0
  double round_seconds_p50 = 0;
  double round_seconds_p99 = 0;
  ClientStats stats;
};

// Trains until `options.rounds` rounds of the job are done; a worker that comes late or again goes on where
// the job is. Ends early with the error of the first operation that fails.
Result<TrainSummary> Train(Client& client, const Dataset& shard, const Dataset& test,
                           const TrainOptions& options,
                           const std::function<void(const RoundProgress&)>& on_round);

}  // namespace longhaul::worker
