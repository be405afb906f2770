// The training of longhaul-trainer: gradients of the MLP on this worker's shard, the optimizer on the server.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "longhaul/client.h"
#include "worker/demo/dataset.h"

namespace longhaul::worker {

struct TrainOptions {
  uint64_t rounds = 500;
  size_t batch = 128;  // images per worker and local step
  // Of the server's default optimizer with one local step, which is SGD.
  double learning_rate = 0.1;
  double momentum = 0.9;
  // The server's optimizer as text (codec/policy/optimizer.h). Empty: SGD by the two above; with more
  // than one local step sgd:lr=0.7,momentum=0.9,nesterov, the outer optimizer of DiLoCo (Douillard et al.
  // 2023).
  std::string optimizer;
  // More than one: that many steps of `local_optimizer` per round, old - new is pushed
  // (worker/demo/local_steps.h).
  uint64_t local_steps = 1;
  std::string local_optimizer = "sgd:lr=0.1";
  // Of the gradients on their way to the server, and of the parameters on their way back (TensorOptions).
  DType wire_dtype = DType::kFloat32;
  DType result_dtype = DType::kFloat32;
  // The rate falls linearly to zero over the rounds. With one local step workers scale their gradients, the
  // server's rate stays as declared; Adam at the server undoes any scale, so there the rate is constant. With
  // more the local optimizer's rate falls.
  bool decay_learning_rate = true;
  uint64_t seed = 1;         // of model, shards and batches; the same for all workers
  uint64_t eval_every = 50;  // rounds between test accuracies on rank 0; 0 = only at the end
  // Rounds between two saves of the place in this worker's data (Client::SaveState), from which the next
  // process goes on; its ConnectOptions have a state_dir. 0: the place follows from the job's round.
  uint64_t state_every = 0;
};

// What Train declares to the server.
std::string ServerOptimizer(const TrainOptions& options);
// kInvalidArgument when an optimizer's text is wrong or cannot be used that way.
Status Validate(const TrainOptions& options);

// The server's reports of one round, of those tensors whose report was here when their operation ended.
struct RoundReports {
  uint32_t tensors = 0;
  OperationStats::RoundInfo
      sum;                 // but contributors: the most; last_rank and fill_reason: where most was lost
  uint32_t most_lost = 0;  // chunks of one tensor

  void Add(const OperationStats::RoundInfo& info);
};

struct RoundProgress {
  uint64_t round = 0;  // counted from 1: rounds done
  uint64_t rounds = 0;
  double seconds = 0;              // of this round
  double training_loss = 0;        // of this worker's batches, each before its update
  std::optional<double> accuracy;  // on the test images, 0..1
  double goodput_mbps = 0;         // tensor bytes in both directions over the round's time
  double observed_loss = 0;        // share of our packets lost so far, 0..1
  RoundReports reports;            // best effort
  uint64_t draws = 0;              // of batches for a round that this worker's data have given so far
  Status state;                    // why none was saved, or what was saved is not gone on from
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
// the job is. Where the job's staleness is not 0 it waits at the end until all are through, and the accuracy
// is that of what all have made. Ends early with the error of the first operation that fails.
Result<TrainSummary> Train(Client& client, const Dataset& shard, const Dataset& test,
                           const TrainOptions& options,
                           const std::function<void(const RoundProgress&)>& on_round);

}  // namespace longhaul::worker
