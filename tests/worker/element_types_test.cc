// Elements of 16 bits (and gradients of 8, 4 and 2, all or the largest of them) on the wire in both
// directions: how many bytes they are, and that all workers have the same values.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "longhaul/client.h"
#include "longhaul/server.h"
#include "tests/worker/client_harness.h"

namespace longhaul {
namespace {

constexpr size_t kCount = 100'000;

// Two workers that go in step.
struct Pair {
  explicit Pair(const std::vector<std::string>& servers) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ConnectOptions options;
      options.servers = servers;
      options.rank = rank;
      options.world_size = 2;
      options.insecure = true;
      clients.push_back(MustConnect(options));
    }
  }
  void Declare(const TensorOptions& options) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < clients.size(); ++i) {
      threads.emplace_back([&, i] {
        const Result<Tensor> tensor = clients[i].Declare("w", options);
        ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
        tensors[i] = *tensor;
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (auto& result : results) result.resize(options.count);
  }
  // Gradients are what a worker's rank gives.
  template <typename Gradient>
  void Round(const Gradient& gradient) {
    std::vector<std::vector<float>> given;
    for (uint32_t rank = 0; rank < 2; ++rank) given.push_back(gradient(rank));
    std::vector<Operation> steps;
    for (size_t i = 0; i < 2; ++i) steps.push_back(clients[i].PushPull(tensors[i], given[i], results[i]));
    std::vector<Status> ends;  // of all of them, for what they borrow is gone with this
    for (const Operation& step : steps) ends.push_back(step.Wait());
    for (const Status& end : ends) ASSERT_TRUE(end.ok()) << end.ToString();
  }
  std::vector<float> Pull(size_t worker) {
    std::vector<float> values(results[worker].size());
    EXPECT_TRUE(clients[worker].Pull(tensors[worker], values).Wait().ok());
    return values;
  }
  void Leave() {
    for (Client& client : clients) EXPECT_TRUE(client.Leave().ok());
  }

  std::deque<Client> clients;
  Tensor tensors[2];
  std::vector<float> results[2];
};

std::vector<float> Spread(size_t count, uint32_t seed) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>((i * 31 + seed * 17) % 1009) * 0.00137f - 0.5f;
  return values;
}

std::vector<float> Normal(size_t count, uint32_t seed) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& v : values) v = static_cast<float>(random.Normal());
  return values;
}

struct Bytes {
  double up = 0, down = 0;                // UDP payload at the server
  double chunks_up = 0, chunks_down = 0;  // of it chunks
};

// Of ten rounds, at the server.
Bytes Counted(DType up, DType down, std::optional<double> topk_share = std::nullopt) {
  Server server = StartServer(2, EverythingReliable());
  Pair pair({server.address()});
  pair.Declare({.wire_dtype = up, .result_dtype = down, .count = kCount, .topk_share = topk_share});
  for (uint32_t round = 0; round < 10; ++round) {
    pair.Round([&](uint32_t rank) { return Normal(kCount, 2 * round + rank); });
    EXPECT_EQ(pair.results[0], pair.results[1]);
  }
  const auto stats = nlohmann::json::parse(server.StatsJson());
  pair.Leave();
  return {.up = stats["bytes_up"],
          .down = stats["bytes_down"],
          .chunks_up = stats["chunk_bytes_up"],
          .chunks_down = stats["chunk_bytes_down"]};
}

TEST(ElementTypes, Of16BitsHalveTheBytesInBothDirectionsAndInt8QuartersThemUp) {
  const Bytes whole = Counted(DType::kFloat32, DType::kFloat32);
  EXPECT_NEAR(whole.chunks_up, 10 * 2 * 4 * kCount, 0.02 * whole.chunks_up);
  EXPECT_NEAR(whole.chunks_down, 10 * 2 * 4 * kCount, 0.02 * whole.chunks_down);
  for (const DType half : {DType::kBFloat16, DType::kFloat16}) {
    for (const DType up : {half, DType::kInt8}) {
      const Bytes bytes = Counted(up, half);
      const double share = up == half ? 0.5 : 0.25;
      EXPECT_NEAR(bytes.chunks_up / whole.chunks_up, share, 0.005) << DTypeName(up);
      EXPECT_NEAR(bytes.chunks_down / whole.chunks_down, 0.5, 0.005) << DTypeName(half);
      // Datagrams are as full: what is around chunks halves along with them. The other direction's
      // acknowledgements are in here.
      EXPECT_NEAR(bytes.up / whole.up, share, 0.05) << DTypeName(up);
      EXPECT_NEAR(bytes.down / whole.down, 0.5, 0.05) << DTypeName(half);
    }
  }
}

TEST(ElementTypes, Of4And2BitsAreAnEighthAndASixteenthUp) {
  const double whole = 10 * 2 * 4 * kCount;
  EXPECT_NEAR(Counted(DType::kInt4, DType::kFloat32).chunks_up / whole, 1.0 / 8, 0.003);
  EXPECT_NEAR(Counted(DType::kInt2, DType::kFloat32).chunks_up / whole, 1.0 / 16, 0.002);
}

// 2 bits and a gap of 7.6 for each of a 64th of the elements, and two headers.
TEST(ElementTypes, ASixtyFourthOf2BitsIsOneTwoHundredthUp) {
  const double whole = 10 * 2 * 4 * kCount;
  const double wanted = (9.6 / 8 / 64 * kCount + 24) / (4 * kCount);
  EXPECT_NEAR(Counted(DType::kInt2, DType::kBFloat16, 1.0 / 64).chunks_up / whole, wanted, 0.06 * wanted);
}

// What a code misses, what is too small to travel and what the path loses comes later, and nothing comes
// twice: after rounds without a gradient, all of what was pushed is in.
TEST(ElementTypes, WhatDoesNotTravelOrIsLostComesLaterAndNothingTwice) {
  constexpr size_t kSome = 200'000;
  ServerOptions options;
  options.fault = "drop=0.02,seed=5";
  Server server = StartServer(2, options);
  Pair pair({server.address()});
  pair.Declare({.wire_dtype = DType::kInt2, .high_share = 0, .count = kSome, .topk_share = 1.0 / 16});
  std::vector<double> pushed(kSome, 0.0), came(kSome, 0.0);
  double all = 0, left = 0;
  for (uint32_t round = 0; round < 180; ++round) {
    pair.Round([&](uint32_t rank) {
      std::vector<float> gradient(kSome, 0.0f);
      if (round < 20) gradient = Normal(kSome, 2 * round + rank);
      for (size_t i = 0; i < kSome; ++i) pushed[i] += static_cast<double>(gradient[i]);
      return gradient;
    });
    for (size_t i = 0; i < kSome; ++i) came[i] += 2 * static_cast<double>(pair.results[0][i]);
  }
  for (size_t i = 0; i < kSome; ++i) {
    all += pushed[i] * pushed[i];
    left += (pushed[i] - came[i]) * (pushed[i] - came[i]);
  }
  EXPECT_LT(left, 1e-4 * all);
  EXPECT_GT(pair.clients[0].stats().lost_chunks + pair.clients[1].stats().lost_chunks, 0u);
  pair.Leave();
}

// What came and what is owed are together what was pushed, after every round.
TEST(ElementTypes, WhatIsOwedIsWhatHasNotCome) {
  constexpr size_t kSome = 150'000;  // more than a run of the copy, and not a multiple of it
  ServerOptions options;
  options.fault = "drop=0.02,seed=6";
  Server server = StartServer(2, options);
  Pair pair({server.address()});
  pair.Declare({.wire_dtype = DType::kInt2, .high_share = 0, .count = kSome, .topk_share = 1.0 / 16});
  std::vector<double> open(kSome, 0.0);  // pushed by both, less what came
  std::vector<float> owed[2] = {std::vector<float>(kSome), std::vector<float>(kSome)};
  for (uint32_t round = 0; round < 4; ++round) {
    pair.Round([&](uint32_t rank) {
      std::vector<float> gradient = Normal(kSome, 2 * round + rank);
      for (size_t i = 0; i < kSome; ++i) open[i] += static_cast<double>(gradient[i]);
      return gradient;
    });
    for (size_t rank = 0; rank < 2; ++rank)
      ASSERT_EQ(pair.clients[rank].Owed(pair.tensors[rank], owed[rank]), Status());
    for (size_t i = 0; i < kSome; ++i) {
      open[i] -= 2 * static_cast<double>(pair.results[0][i]);
      ASSERT_NEAR(static_cast<double>(owed[0][i]) + static_cast<double>(owed[1][i]), open[i], 1e-4) << i;
    }
  }
  pair.Leave();
}

TEST(ElementTypes, AShareThatTravelsIsTheSameInAllDeclarations) {
  Server server = StartServer(2, {});
  Pair pair({server.address()});
  pair.Declare({.count = 1000, .topk_share = 0.25});
  const auto again = [&](std::optional<double> share) {
    TensorOptions options{.count = 1000, .topk_share = share};
    return pair.clients[1].Declare("w", options).status();
  };
  EXPECT_TRUE(again(0.25).ok());
  EXPECT_EQ(again(0.5).code(), StatusCode::kSettingsMismatch);
  EXPECT_EQ(again(std::nullopt).code(), StatusCode::kSettingsMismatch);
  EXPECT_EQ(again(0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(again(1.5).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(again(std::nan("")).code(), StatusCode::kInvalidArgument);
  pair.Leave();
}

// The server compares what different workers say, and both sides know what a policy is for.
TEST(ElementTypes, AShareOfAnotherWorkerOrOfAPolicyThatForgetsIsRefusedInWords) {
  for (const LossPolicy policy : {LossPolicy::kResidual, LossPolicy::kZero}) {
    ServerOptions options;
    options.job_spec.policy = policy;
    Server server = StartServer(2, options);
    Pair pair({server.address()});
    Status outcomes[2];
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        TensorOptions tensor{.count = 1000, .topk_share = i == 0 ? 0.25 : 0.5};
        outcomes[i] = pair.clients[i].Declare("w", tensor).status();
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (policy == LossPolicy::kZero) {
      for (const Status& outcome : outcomes) {
        EXPECT_EQ(outcome.code(), StatusCode::kInvalidArgument) << outcome.ToString();
        EXPECT_NE(outcome.message().find("remembers"), std::string::npos) << outcome.ToString();
      }
    } else {
      const Status& refused = outcomes[0].ok() ? outcomes[1] : outcomes[0];
      EXPECT_NE(outcomes[0].ok(), outcomes[1].ok());
      EXPECT_EQ(refused.code(), StatusCode::kSettingsMismatch) << refused.ToString();
      EXPECT_NE(refused.message().find("the largest 0.25"), std::string::npos) << refused.ToString();
      EXPECT_NE(refused.message().find("the largest 0.5"), std::string::npos) << refused.ToString();
    }
    pair.Leave();
  }
}

// Results' chunks have as many elements as gradients', so their datagrams are half as long.
TEST(ElementTypes, OfResultsMayBeShorterThanOfGradients) {
  const Bytes bytes = Counted(DType::kFloat32, DType::kBFloat16);
  EXPECT_NEAR(bytes.chunks_up, 10 * 2 * 4 * kCount, 0.02 * bytes.chunks_up);
  EXPECT_NEAR(bytes.chunks_down, 10 * 2 * 2 * kCount, 0.03 * bytes.chunks_down);
}

// What workers do not see of the parameters is still in them, and in checkpoints.
TEST(ElementTypes, TheServerKeepsWhatIsRoundedAwayAndCheckpointsHaveIt) {
  const std::string directory = ::testing::TempDir() + "element_types." + std::to_string(getpid());
  ServerOptions options = EverythingReliable();
  options.checkpoint_dir = directory;
  options.checkpoint_every = 1;
  const std::vector<float> ones(1000, 1.0f);
  TensorOptions tensor{
      .result_dtype = DType::kBFloat16, .count = 1000, .optimizer = "sgd:lr=1", .initial = ones};
  {
    Server server = StartServer(2, options);
    Pair pair({server.address()});
    pair.Declare(tensor);
    for (uint32_t round = 1; round <= 9; ++round) {
      pair.Round([](uint32_t) { return std::vector<float>(1000, -0x1p-10f); });
      EXPECT_EQ(pair.results[0].back(), round <= 4 ? 1.0f : 1.0078125f) << round;
      EXPECT_EQ(pair.Pull(1), pair.results[0]);
    }
    pair.Leave();
    server.Stop();
  }
  Server server = StartServer(2, options);
  Pair pair({server.address()});
  tensor.result_dtype = DType::kFloat32;
  pair.Declare(tensor);
  EXPECT_EQ(pair.Pull(0), std::vector<float>(1000, 1 + 9 * 0x1p-10f));
  pair.Leave();
  std::filesystem::remove_all(directory);
}

// The replicas' hashes are of what arrives; and a pull gives the same.
TEST(ElementTypes, ReplicasOf16BitsAgreeWithALossyDownlink) {
  ServerOptions options;
  options.job_spec.downlink = Downlink::kLossy;
  options.job_spec.hash_rounds = 4;
  options.fault = "drop=0.1,seed=5";
  Server server = StartServer(2, options);
  Pair pair({server.address()});
  pair.Declare({.wire_dtype = DType::kFloat16,
                .result_dtype = DType::kFloat16,
                .count = kCount,
                .optimizer = "adam:lr=0.01"});
  for (uint32_t round = 0; round < 24; ++round)
    pair.Round([&](uint32_t rank) { return Spread(kCount, 2 * round + rank); });
  EXPECT_EQ(pair.results[0], pair.results[1]) << "round 23 is one of those that lose nothing";
  EXPECT_EQ(pair.Pull(0), pair.results[0]);
  const ClientStats stats = pair.clients[0].stats();
  EXPECT_GT(stats.result_chunks_lost, 0u);
  EXPECT_GT(stats.state_hashes_agreed, 5u) << "a hash of each fourth round, and one of the round before";
  EXPECT_EQ(stats.state_hash_mismatches, 0u);
  pair.Leave();
}

TEST(ElementTypes, OfSeveralServersAreTheSame) {
  const std::vector<float> initial = Spread(kCount, 1);
  const TensorOptions tensor{.wire_dtype = DType::kFloat32,
                             .result_dtype = DType::kFloat16,
                             .count = kCount,
                             .optimizer = "adam:lr=0.01",
                             .initial = initial};
  std::vector<std::vector<float>> all;
  for (const uint32_t count : {1u, 2u}) {
    ServerOptions options = EverythingReliable();
    options.servers = count;
    std::vector<Server> servers;
    servers.push_back(StartServer(2, options));
    ServerOptions more;
    more.first_server = servers.front().address();
    if (count == 2) servers.push_back(StartServer(1, more));
    Pair pair({servers.front().address()});
    pair.Declare(tensor);
    for (uint32_t round = 0; round < 5; ++round)
      pair.Round([&](uint32_t rank) { return Spread(kCount, 2 * round + rank); });
    EXPECT_EQ(pair.results[0], pair.results[1]);
    all.push_back(pair.results[0]);
    pair.Leave();
  }
  EXPECT_EQ(all[0], all[1]);
}

}  // namespace
}  // namespace longhaul
