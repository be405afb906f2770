// Deterministic mode, whole cores over a network that reorders: the same job on networks of different chance
// ends with the same parameters, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "server/server_core.h"
#include "tests/sim/reference_coder.h"
#include "tests/sim/simulated_host.h"
#include "wan/link_options.h"
#include "worker/client/worker_core.h"

namespace longhaul::sim {
namespace {

constexpr uint32_t kWorkers = 5;
constexpr uint64_t kRounds = 6;
constexpr size_t kElements = 20'000;

struct Trained {
  std::vector<std::vector<float>> parameters;  // by rank
  std::vector<uint32_t> order;                 // who was last in each round
  std::string failure;
};

// A small training job: the gradient of a worker depends on the parameters it got, on its rank and on the
// round.
class Training final : public server::ServerEvents {
 public:
  Training(bool deterministic, const std::string& optimizer, uint64_t network_seed)
      : network_({.seed = network_seed}), optimizer_(optimizer) {
    server::ServerCoreOptions server;
    server.settings.world_size = kWorkers;
    server.settings.min_workers = kWorkers;
    server.settings.deterministic = deterministic;
    server.settings.high_share = 1;  // which low chunks arrive in time is the network's chance, not ours
    server.events = this;
    const auto server_site = network_.AddSite("server");
    server_ = std::make_unique<server::ServerCore>(server, &coder_, Random(1));
    server_host_ = std::make_unique<SimulatedHost>(&network_, kServer, server_site, server_.get());
    for (uint32_t rank = 0; rank < kWorkers; ++rank) AddWorker(rank, server_site);
  }

  Trained Run() {
    for (const auto& worker : workers_) {
      worker->core->Start(network_.now(), kServer);
      worker->host->Pump();
    }
    const Instant limit = network_.now() + std::chrono::seconds(60);
    while (trained_.failure.empty() && finished_ < kWorkers) {
      if (network_.now() > limit || !network_.Step()) trained_.failure = "comes to no end";
    }
    for (const auto& worker : workers_) trained_.parameters.push_back(worker->parameters);
    return std::move(trained_);
  }

  void OnRound(const server::JobRound& round, const server::ServerStats&) override {
    trained_.order.push_back(round.last_rank);
  }

 private:
  struct Worker {
    std::unique_ptr<worker::WorkerCore> core;
    std::unique_ptr<SimulatedHost> host;
    worker::TensorHandle handle = 0;
    std::vector<float> gradient = std::vector<float>(kElements);
    std::vector<float> parameters = std::vector<float>(kElements);
    uint64_t round = 0;
  };

  const Address kServer = Address::V4(10, 0, 0, 1, 7700);

  void AddWorker(uint32_t rank, wan::VirtualNetwork::SiteId server_site) {
    const auto site = network_.AddSite("worker" + std::to_string(rank));
    const auto link = wan::ParseLinkOptions("rate 200mbit delay 10ms jitter 4ms jitter-reorders loss 2%");
    ASSERT_TRUE(link.ok()) << link.status().ToString();
    network_.SetLinkBothWays(site, server_site, *link);
    const worker::WorkerCoreOptions options{
        .rank = rank, .world_size = kWorkers, .weight = 1.0f / static_cast<float>(rank + 3)};
    workers_.push_back(std::make_unique<Worker>());
    Worker& worker = *workers_.back();
    worker.core = std::make_unique<worker::WorkerCore>(options, &coder_, Random(100 + rank));
    worker.host = std::make_unique<SimulatedHost>(
        &network_, Address::V4(10, 0, 1, static_cast<uint8_t>(rank + 1), 9000), site, worker.core.get());
    worker.core->SetStateListener([this, rank](worker::WorkerCore::State state) {
      if (state == worker::WorkerCore::State::kStarted) Declare(rank);
    });
  }

  void Declare(uint32_t rank) {
    const worker::Declaration declaration{.name = "w", .count = kElements, .optimizer = optimizer_};
    workers_[rank]->core->Declare(declaration, [this, rank](const Result<worker::TensorHandle>& handle) {
      if (!handle.ok()) {
        trained_.failure = handle.status().ToString();
        return;
      }
      workers_[rank]->handle = *handle;
      Push(rank);
    });
  }

  void Push(uint32_t rank) {
    Worker& worker = *workers_[rank];
    if (worker.round == kRounds) {
      ++finished_;
      return;
    }
    Random noise = Random(7).Fork(worker.round * kWorkers + rank);
    for (size_t i = 0; i < kElements; ++i) {
      // Of very different sizes, so that the order of a sum shows in its last bits.
      const double target = std::exp(2 * noise.Normal());
      worker.gradient[i] = worker.parameters[i] - static_cast<float>(target);
    }
    ++worker.round;
    worker.core->PushPull(worker.handle, worker.gradient, worker.parameters,
                          [this, rank](const Status& outcome, const OperationStats&) {
                            if (!outcome.ok()) trained_.failure = outcome.ToString();
                            network_.Schedule(network_.now(), [this, rank] {
                              Push(rank);
                              workers_[rank]->host->Pump();
                            });
                          });
  }

  wan::VirtualNetwork network_;
  codec::ReferenceCoder coder_;
  std::string optimizer_;
  std::unique_ptr<server::ServerCore> server_;
  std::unique_ptr<SimulatedHost> server_host_;
  std::vector<std::unique_ptr<Worker>> workers_;
  uint32_t finished_ = 0;
  Trained trained_;
};

Trained Train(bool deterministic, const std::string& optimizer, uint64_t network_seed) {
  Trained trained = Training(deterministic, optimizer, network_seed).Run();
  EXPECT_EQ(trained.failure, "") << optimizer << ", network seed " << network_seed;
  return trained;
}

TEST(DeterministicMode, TheParametersAreTheSameToTheBitWhateverTheNetworkDoes) {
  for (const char* optimizer : {"sgd:lr=0.1,momentum=0.9", "adam:lr=0.01"}) {
    const Trained first = Train(true, optimizer, 1);
    bool order_differs = false;
    for (uint64_t network_seed : {2, 3}) {
      const Trained other = Train(true, optimizer, network_seed);
      EXPECT_TRUE(other.parameters == first.parameters) << optimizer << ", network seed " << network_seed;
      order_differs |= other.order != first.order;
    }
    EXPECT_TRUE(order_differs) << "or nothing was shown";
    for (uint32_t rank = 1; rank < kWorkers; ++rank) {
      EXPECT_TRUE(first.parameters[rank] == first.parameters[0]) << "rank " << rank;
    }
  }
}

TEST(DeterministicMode, InOrderOfArrivalTheLastBitsDependOnTheNetwork) {
  EXPECT_FALSE(Train(false, "sgd:lr=0.1", 1).parameters == Train(false, "sgd:lr=0.1", 2).parameters)
      << "the test above would pass without deterministic mode";
}

}  // namespace
}  // namespace longhaul::sim
