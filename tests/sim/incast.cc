#include "tests/sim/incast.h"

#include <algorithm>
#include <memory>

#include "server/server_core.h"
#include "tests/sim/reference_coder.h"
#include "tests/sim/simulated_host.h"
#include "worker/client/worker_core.h"

namespace longhaul::sim {
namespace {

constexpr Duration kLimit = std::chrono::seconds(120);

class Incast {
 public:
  explicit Incast(const IncastOptions& options)
      : options_(options), network_({.seed = options.seed}), chance_(options.seed) {
    server::ServerCoreOptions server;
    server.settings.world_size = options.workers;
    server.settings.grants = options.grants;
    const auto server_site = network_.AddSite("server");
    server_ = std::make_unique<server::ServerCore>(server, &coder_, chance_.Fork(1));
    server_host_ = std::make_unique<SimulatedHost>(&network_, kServer, server_site, server_.get());
    const auto shared_site = network_.AddSite("workers");
    for (uint32_t rank = 0; rank < options.workers; ++rank) {
      const bool own = !options.own_links.empty();
      const auto site = own ? network_.AddSite("worker" + std::to_string(rank)) : shared_site;
      if (own || rank == 0) Connect(site, server_site, own ? options.own_links[rank] : options.link);
      AddWorker(rank, site);
    }
  }

  IncastResult Run() {
    for (Worker& worker : workers_) {
      worker.core->Start(network_.now(), kServer);
      worker.host->Pump();
    }
    const Instant end = network_.now() + kLimit;
    while (result_.failure.empty() && result_.rounds.size() < options_.rounds) {
      if (network_.now() > end || !network_.Step()) result_.failure = "the rounds come to no end";
    }
    for (const Worker& worker : workers_) {
      result_.workers.push_back(worker.core->stats());
      if (!worker.core->failure().ok()) result_.failure = worker.core->failure().ToString();
      if (!worker.host->violation().empty()) result_.failure = worker.host->violation();
    }
    if (!server_host_->violation().empty()) result_.failure = server_host_->violation();
    result_.capacity = server_->stats().grants.capacity;
    result_.grants = server_->stats().grants.updates;
    return std::move(result_);
  }

 private:
  struct Worker {
    std::unique_ptr<worker::WorkerCore> core;
    std::unique_ptr<SimulatedHost> host;
    worker::TensorHandle tensor = 0;
    std::vector<float> gradient;
    std::vector<float> out;
    Instant begun;
    Duration finished{0};
  };

  const Address kServer = Address::V4(10, 0, 0, 1, 7700);

  void Connect(wan::VirtualNetwork::SiteId site, wan::VirtualNetwork::SiteId server,
               const wan::LinkOptions& link) {
    network_.SetLink(site, server, link);
    wan::LinkOptions down = link;
    down.queue_bytes = ByteCount(0);
    down.queue_time = std::chrono::seconds(1);
    network_.SetLink(server, site, down);
    up_.emplace_back(site, server);
  }

  void AddWorker(uint32_t rank, wan::VirtualNetwork::SiteId site) {
    const worker::WorkerCoreOptions options{.rank = rank, .world_size = options_.workers};
    Worker& worker = workers_.emplace_back();
    worker.core = std::make_unique<worker::WorkerCore>(options, &coder_, chance_.Fork(100 + rank));
    worker.host = std::make_unique<SimulatedHost>(
        &network_, Address::V4(10, 0, 1, static_cast<uint8_t>(rank + 1), 9000), site, worker.core.get());
    worker.gradient.resize(options_.bytes / sizeof(float));
    Random values = chance_.Fork(1000 + rank);
    for (float& value : worker.gradient) value = static_cast<float>(values.Uniform() - 0.5);
    worker.out.resize(worker.gradient.size());
    worker.core->SetStateListener([this, rank](worker::WorkerCore::State state) {
      if (state == worker::WorkerCore::State::kStarted) Declare(rank);
    });
  }

  void Declare(uint32_t rank) {
    const worker::Declaration declaration{.name = "gradient", .count = workers_[rank].gradient.size()};
    workers_[rank].core->Declare(declaration, [this, rank](const Result<worker::TensorHandle>& handle) {
      if (!handle.ok()) {
        result_.failure = handle.status().ToString();
        return;
      }
      workers_[rank].tensor = *handle;
      if (++ready_ == workers_.size()) StartRound();
    });
  }

  void StartRound() {
    running_ = static_cast<uint32_t>(workers_.size());
    round_begin_ = network_.now() + options_.compute;
    before_ = Counters();
    for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
      const Duration late(
          static_cast<int64_t>(chance_.Uniform() * static_cast<double>(options_.stagger.count())));
      network_.Schedule(round_begin_ + late, [this, rank] { Push(rank); });
    }
  }

  void Push(uint32_t rank) {
    Worker& worker = workers_[rank];
    worker.begun = network_.now();
    const auto end = [this, rank](const Status& outcome, const OperationStats&) {
      if (!outcome.ok()) result_.failure = outcome.ToString();
      Worker& ended = workers_[rank];
      ended.finished = network_.now() - ended.begun;
      if (--running_ == 0) EndRound();
    };
    if (options_.with_results) {
      worker.core->PushPull(worker.tensor, worker.gradient, worker.out, end);
    } else {
      worker.core->Push(worker.tensor, worker.gradient, end);
    }
    worker.host->Pump();
  }

  void EndRound() {
    IncastRound round;
    for (const Worker& worker : workers_) round.finished.push_back(worker.finished);
    round.duration = network_.now() - round_begin_;
    const wan::LinkCounters now = Counters();
    round.packets = now.packets_in - before_.packets_in;
    round.queue_drops = now.dropped_queue - before_.dropped_queue;
    round.random_drops = now.dropped_loss - before_.dropped_loss;
    round.longest_queue = now.max_queue_delay;
    result_.rounds.push_back(round);
    if (result_.rounds.size() < options_.rounds) StartRound();
  }

  wan::LinkCounters Counters() {
    wan::LinkCounters sum;
    for (const auto& [from, to] : up_) {
      const wan::LinkCounters& link = network_.Link(from, to).counters();
      sum.packets_in += link.packets_in;
      sum.dropped_queue += link.dropped_queue;
      sum.dropped_loss += link.dropped_loss;
      sum.max_queue_delay = std::max(sum.max_queue_delay, link.max_queue_delay);
    }
    return sum;
  }

  IncastOptions options_;
  wan::VirtualNetwork network_;
  Random chance_;
  codec::ReferenceCoder coder_;
  std::unique_ptr<server::ServerCore> server_;
  std::unique_ptr<SimulatedHost> server_host_;
  std::vector<Worker> workers_;
  std::vector<std::pair<wan::VirtualNetwork::SiteId, wan::VirtualNetwork::SiteId>> up_;
  size_t ready_ = 0;
  uint32_t running_ = 0;
  Instant round_begin_;
  wan::LinkCounters before_;
  IncastResult result_;
};

}  // namespace

double IncastRound::spread() const {
  Duration slowest(0);
  Duration fastest = Duration::max();
  for (const Duration d : finished) {
    slowest = std::max(slowest, d);
    fastest = std::min(fastest, d);
  }
  return static_cast<double>(slowest.count()) / static_cast<double>(fastest.count());
}

double IncastResult::OwnLoss(size_t from, size_t to) const {
  uint64_t packets = 0;
  uint64_t drops = 0;
  for (size_t i = from; i < std::min(to, rounds.size()); ++i) {
    packets += rounds[i].packets;
    drops += rounds[i].queue_drops;
  }
  return packets == 0 ? 0.0 : static_cast<double>(drops) / static_cast<double>(packets);
}

double IncastResult::Spread(size_t from, size_t to) const {
  double worst = 0;
  for (size_t i = from; i < std::min(to, rounds.size()); ++i) worst = std::max(worst, rounds[i].spread());
  return worst;
}

Duration IncastResult::Mean(size_t from, size_t to) const {
  Duration sum(0);
  to = std::min(to, rounds.size());
  for (size_t i = from; i < to; ++i) sum += rounds[i].duration;
  return to > from ? sum / static_cast<int64_t>(to - from) : sum;
}

IncastResult RunIncast(const IncastOptions& options) { return Incast(options).Run(); }

}  // namespace longhaul::sim
