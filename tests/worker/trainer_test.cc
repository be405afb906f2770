// The built-in trainer with a real server in the same process, over the loopback, on a dataset made up here.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <thread>
#include <vector>

#include "base/random.h"
#include "codec/policy/optimizer.h"
#include "longhaul/server.h"
#include "worker/demo/local_steps.h"
#include "worker/demo/trainer_loop.h"

namespace longhaul::worker {
namespace {

// Every class lights other pixels, with noise; easy to learn, not from the start.
Dataset MadeUp(size_t images, uint64_t seed) {
  Random random(seed);
  Dataset data;
  for (size_t i = 0; i < images; ++i) {
    const auto label = static_cast<uint8_t>(i % Dataset::kClasses);
    for (size_t p = 0; p < Dataset::kPixels; ++p) {
      const uint64_t light = p % Dataset::kClasses == label ? 120 : 60;
      data.pixels.push_back(static_cast<uint8_t>(light + random.Below(100)));
    }
    data.labels.push_back(label);
  }
  return data;
}

TrainOptions Options(uint64_t rounds) {
  TrainOptions options;
  options.rounds = rounds;
  options.batch = 20;
  options.learning_rate = 0.05;
  options.momentum = 0;
  options.eval_every = 0;
  return options;
}

struct Trained {
  TrainSummary summary;
  Mlp::Tensors parameters;
};

// One worker's training; the parameters as the server has them at the end.
Trained TrainOne(const std::string& address, uint32_t rank, uint32_t world_size, float weight,
                 const Dataset& shard, const Dataset& test, const TrainOptions& options) {
  Trained trained;
  ConnectOptions connect;
  connect.servers = {address};
  connect.rank = rank;
  connect.world_size = world_size;
  connect.weight = weight;
  connect.insecure = true;
  Result<Client> client = Client::Connect(connect);
  EXPECT_TRUE(client.ok()) << client.status().ToString();
  if (!client.ok()) return trained;
  const Result<TrainSummary> summary = Train(*client, shard, test, options, nullptr);
  EXPECT_TRUE(summary.ok()) << summary.status().ToString();
  if (!summary.ok()) return trained;
  trained.summary = *summary;
  trained.parameters = Mlp::Zeros();
  for (size_t t = 0; t < Mlp::kTensors; ++t) {
    TensorOptions tensor;
    tensor.count = Mlp::kShapes[t].count;
    tensor.optimizer = ServerOptimizer(options);
    const Result<Tensor> declared = client->Declare(std::string(Mlp::kShapes[t].name), tensor);
    EXPECT_TRUE(declared.ok()) << declared.status().ToString();
    EXPECT_TRUE(client->Pull(*declared, trained.parameters[t]).Wait().ok());
  }
  EXPECT_TRUE(client->Leave().ok());
  return trained;
}

// A job with a worker per weight. Everything travels reliably, so that nothing depends on the network.
std::vector<Trained> TrainJob(const std::vector<float>& weights, const std::vector<Dataset>& shards,
                              const Dataset& test, const TrainOptions& options, int32_t staleness = 0) {
  const auto workers = static_cast<uint32_t>(weights.size());
  ServerOptions server_options;
  server_options.listen = "127.0.0.1:0";
  server_options.insecure = true;
  server_options.workers = workers;
  server_options.job_spec.high_share = 1;
  server_options.job_spec.staleness = staleness;
  Result<Server> server = Server::Start(server_options);
  EXPECT_TRUE(server.ok()) << server.status().ToString();
  std::vector<Trained> trained(workers);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank] {
      trained[rank] = TrainOne(server->address(), rank, workers, weights[rank], shards[rank], test, options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return trained;
}

// The same in plain loops: one worker, SGD after every batch.
Mlp::Tensors PlainSgd(const Dataset& shard, const TrainOptions& options, uint64_t steps) {
  Mlp model(options.seed);
  MiniBatches batches(shard, options.batch, 0, options.seed);
  Mlp::Tensors gradients = Mlp::Zeros();
  for (uint64_t step = 0; step < steps; ++step) {
    model.Gradient(batches.ForRound(step), gradients);
    for (size_t t = 0; t < Mlp::kTensors; ++t) {
      for (size_t i = 0; i < gradients[t].size(); ++i) {
        const float change = static_cast<float>(options.learning_rate) * gradients[t][i];
        model.parameters()[t][i] -= change;
      }
    }
  }
  return model.parameters();
}

double LargestDifference(const Mlp::Tensors& a, const Mlp::Tensors& b) {
  double largest = 0;
  for (size_t t = 0; t < Mlp::kTensors; ++t) {
    for (size_t i = 0; i < a[t].size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(a[t][i]) - static_cast<double>(b[t][i])));
    }
  }
  return largest;
}

TEST(Trainer, OneWorkerWithPlainSgdComputesWhatALoopWithoutANetworkDoes) {
  const Dataset data = MadeUp(200, 1);
  TrainOptions options = Options(6);
  options.decay_learning_rate = false;
  const Mlp::Tensors plain = PlainSgd(data, options, options.rounds);
  EXPECT_GT(LargestDifference(plain, Mlp(options.seed).parameters()), 1e-3);
  EXPECT_EQ(TrainJob({1}, {data}, data, options)[0].parameters, plain) << "to the bit";
  // One local step is no local step: the local optimizer has no say.
  options.optimizer = "sgd:lr=0.05";
  options.local_steps = 1;
  options.local_optimizer = "adamw:lr=1";
  EXPECT_EQ(TrainJob({1}, {data}, data, options)[0].parameters, plain);
}

TEST(Trainer, LocalStepsOfOneWorkerUnderAnOuterStepOfOneAreTheSameTraining) {
  const Dataset data = MadeUp(200, 1);
  TrainOptions options = Options(3);
  options.decay_learning_rate = false;
  options.local_steps = 4;
  options.local_optimizer = "sgd:lr=0.05";
  options.optimizer = "sgd:lr=1";
  const Mlp::Tensors plain = PlainSgd(data, options, 12);
  EXPECT_LT(LargestDifference(TrainJob({1}, {data}, data, options)[0].parameters, plain), 1e-5)
      << "old - (old - new), up to rounding";
}

TEST(Trainer, LocalStepsLearnOnSkewedShards) {
  const Dataset data = MadeUp(400, 1);
  const Dataset test = MadeUp(200, 2);
  TrainOptions options = Options(6);
  options.local_steps = 4;
  const double start = Mlp(options.seed).Accuracy(test);
  for (const char* local : {"sgd:lr=0.05", "adamw:lr=0.001"}) {
    options.local_optimizer = local;
    const std::vector<Trained> trained =
        TrainJob({1, 1}, {ShardOf(data, 0, 2, 1, 0.8), ShardOf(data, 1, 2, 1, 0.8)}, test, options);
    ASSERT_TRUE(trained[0].summary.accuracy.has_value());
    EXPECT_EQ(trained[0].summary.rounds, 6u);
    EXPECT_GT(*trained[0].summary.accuracy, std::max(0.8, start + 0.2)) << local << ", from " << start;
    EXPECT_EQ(trained[0].parameters, trained[1].parameters);
  }
}

TEST(Trainer, AdamAtTheServerLearns) {
  const Dataset data = MadeUp(200, 1);
  TrainOptions options = Options(25);
  options.optimizer = "adam:lr=0.001";
  const Trained trained = TrainJob({1}, {data}, data, options)[0];
  EXPECT_GT(trained.summary.accuracy.value_or(0), 0.8);
}

TEST(Trainer, GradientsCountByTheWorkersWeights) {
  const Dataset data = MadeUp(200, 1);
  const TrainOptions options = Options(1);
  const std::vector<Dataset> shards = {ShardOf(data, 0, 2, 1), ShardOf(data, 1, 2, 1)};
  const Mlp start(options.seed);
  std::array<Mlp::Tensors, 2> gradients = {Mlp::Zeros(), Mlp::Zeros()};
  for (uint32_t rank = 0; rank < 2; ++rank) {
    MiniBatches batches(shards[rank], options.batch, rank, options.seed);
    start.Gradient(batches.ForRound(0), gradients[rank]);
  }
  Mlp::Tensors expected = start.parameters();
  for (size_t t = 0; t < Mlp::kTensors; ++t) {
    for (size_t i = 0; i < expected[t].size(); ++i) {
      expected[t][i] -= 0.05f * (3 * gradients[0][t][i] + gradients[1][t][i]) / 4;
    }
  }
  const Mlp::Tensors weighted = TrainJob({3, 1}, shards, data, options)[0].parameters;
  EXPECT_LT(LargestDifference(weighted, expected), 1e-6);
  EXPECT_GT(LargestDifference(weighted, TrainJob({1, 1}, shards, data, options)[0].parameters), 1e-4);
}

// Rank 0 evaluates after every round: the other one is through long before it, in a job that needs both.
TEST(Trainer, WithoutABarrierBetweenRoundsAllEndWithWhatAllHaveMade) {
  const Dataset data = MadeUp(1000, 7);
  TrainOptions options = Options(30);
  options.eval_every = 1;
  const std::vector<Trained> trained = TrainJob({1, 1}, {data, data}, data, options, /*staleness=*/-1);
  EXPECT_EQ(trained[0].parameters, trained[1].parameters);
}

TEST(Trainer, OptimizersThatCannotBeUsedAreNamedBeforeAnythingIsSent) {
  TrainOptions options;
  EXPECT_TRUE(Validate(options).ok());
  options.optimizer = "aggregate";
  EXPECT_NE(Validate(options).message().find("needs an optimizer at the server"), std::string::npos);
  options.optimizer = "adam";
  EXPECT_NE(Validate(options).message().find("lr is missing"), std::string::npos);
  options.optimizer = "";
  options.local_optimizer = "aggregate";
  EXPECT_NE(Validate(options).message().find("local steps need an optimizer"), std::string::npos);
  options.local_optimizer = "sgd:lr=0.1";
  options.local_steps = 4;
  EXPECT_EQ(ServerOptimizer(options), "sgd:lr=0.7,momentum=0.9,nesterov");
  options.local_steps = 0;
  EXPECT_FALSE(Validate(options).ok());
}

}  // namespace
}  // namespace longhaul::worker
