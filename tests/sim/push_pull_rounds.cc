#include "tests/sim/push_pull_rounds.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>

#include "codec/fec/fec.h"
#include "server/server_core.h"
#include "tests/sim/reference_coder.h"
#include "tests/sim/simulated_host.h"
#include "worker/client/worker_core.h"

namespace longhaul::sim {
namespace {

constexpr Duration kRoundLimit = std::chrono::seconds(120);
// IP packet over the gradient bytes in it: 1480 / 1424.
constexpr double kHeaders = 1.04;

codec::ErasureCoder* Coder() {
  static const std::unique_ptr<codec::ErasureCoder> coder = []() -> std::unique_ptr<codec::ErasureCoder> {
    auto library = codec::ErasureCodeLibrary::Create();
    if (library.ok()) return std::move(*library);
    return std::make_unique<codec::ReferenceCoder>();  // bit-identical
  }();
  return coder.get();
}

// Tells when a core has done all that an event made it do.
class ObservedCore final : public transport::DatagramCore {
 public:
  ObservedCore(transport::DatagramCore* core, std::function<void(Instant)> settled)
      : core_(core), settled_(std::move(settled)) {}

  void HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                      const transport::ReceiveInfo& info) override {
    core_->HandleDatagram(now, from, datagram, info);
  }
  void HandleTimeout(Instant now) override { core_->HandleTimeout(now); }
  void HandleSendRefused(Instant now, const Address& to, size_t bytes) override {
    core_->HandleSendRefused(now, to, bytes);
  }
  std::optional<transport::Transmit> PollTransmit(Instant now, MutableByteSpan buffer) override {
    auto transmit = core_->PollTransmit(now, buffer);
    if (!transmit) settled_(now);
    return transmit;
  }
  Instant NextTimeout() const override { return core_->NextTimeout(); }
  bool HasWork() const override { return core_->HasWork(); }
  void Work(Instant now) override { core_->Work(now); }

 private:
  transport::DatagramCore* core_;
  std::function<void(Instant)> settled_;
};

class Rounds final : public server::ServerEvents {
 public:
  explicit Rounds(const PushPullOptions& options)
      : options_(options),
        network_({.seed = options.seed}),
        chance_(options.seed),
        server_times_(options.heap) {
    server::ServerCoreOptions server;
    server.settings = options.settings;
    server.settings.world_size = options.workers;
    server.settings.min_workers = options.workers;
    server.events = this;
    const auto server_site = network_.AddSite("server");
    server_times_.Measure(Call::kRequest, [&] {
      server_ = std::make_unique<server::ServerCore>(server, Coder(), chance_.Fork(1));
    });
    timed_server_ = std::make_unique<TimedCore>(server_.get(), &server_times_);
    transport::DatagramCore* const core =
        options.times_server ? timed_server_.get() : static_cast<transport::DatagramCore*>(server_.get());
    server_host_ = std::make_unique<SimulatedHost>(&network_, kServer, server_site, core);
    const auto site = network_.AddSite("workers");
    network_.SetLinkBothWays(site, server_site, options.link);
    if (options_.then.has_value()) {
      network_.Schedule(network_.now() + options_.then_at, [this, site, server_site] {
        network_.SetLinkBothWays(site, server_site, *options_.then);
      });
    }
    for (uint32_t rank = 0; rank < options.workers; ++rank) AddWorker(rank, site);
  }

  PushPullResult Run() {
    for (const auto& worker : workers_) {
      worker->core->Start(network_.now(), kServer);
      worker->host->Pump();
    }
    const size_t wanted = options_.warmup + options_.rounds;
    round_begin_ = network_.now();
    while (result_.failure.empty() && done_ < wanted) {
      if (network_.now() > round_begin_ + kRoundLimit || !network_.Step()) {
        result_.failure = "round " + std::to_string(done_) + " comes to no end";
      }
    }
    for (const auto& worker : workers_) {
      result_.workers.push_back(worker->core->stats());
      if (!worker->core->failure().ok()) result_.failure = worker->core->failure().ToString();
      if (!worker->host->violation().empty()) result_.failure = worker->host->violation();
    }
    if (!server_host_->violation().empty()) result_.failure = server_host_->violation();
    result_.server = server_->stats();
    const PushPullTraffic end = Traffic();
    result_.traffic.up_packets = end.up_packets - before_.up_packets;
    result_.traffic.up_repair = end.up_repair - before_.up_repair;
    result_.traffic.up_again = end.up_again - before_.up_again;
    result_.traffic.up_pto = end.up_pto - before_.up_pto;
    result_.traffic.down_packets = end.down_packets - before_.down_packets;
    result_.traffic.down_repair = end.down_repair - before_.down_repair;
    result_.traffic.down_again = end.down_again - before_.down_again;
    result_.traffic.up_bytes = end.up_bytes - before_.up_bytes;
    result_.traffic.down_bytes = end.down_bytes - before_.down_bytes;
    result_.traffic.up_arrived = end.up_arrived - before_.up_arrived;
    result_.traffic.up_queue_drops = end.up_queue_drops - before_.up_queue_drops;
    result_.traffic.down_queue_drops = end.down_queue_drops - before_.down_queue_drops;
    result_.traffic.longest_up_queue = end.longest_up_queue;
    result_.traffic.longest_down_queue = end.longest_down_queue;
    result_.server_times = std::move(server_times_);
    return std::move(result_);
  }

  // server::ServerEvents
  void OnRound(const server::JobRound& round, const server::ServerStats&) override {
    phases_.final = network_.now() - round_begin_;
    if (done_ < options_.warmup) return;
    result_.traffic.repaired_chunks += round.repaired_chunks;
    result_.traffic.filled_chunks += round.filled_chunks;
    result_.traffic.lost_chunks += round.lost_chunks;
  }

 private:
  struct TensorState {
    worker::TensorHandle handle = 0;
    std::vector<float> gradient;
    std::vector<float> out;
  };
  struct Worker {
    std::unique_ptr<worker::WorkerCore> core;
    std::unique_ptr<ObservedCore> observed;
    std::unique_ptr<SimulatedHost> host;
    std::vector<TensorState> tensors;
    ByteCount sent;
    ByteCount received;
  };

  const Address kServer = Address::V4(10, 0, 0, 1, 7700);

  void AddWorker(uint32_t rank, wan::VirtualNetwork::SiteId site) {
    const worker::WorkerCoreOptions options{.rank = rank, .world_size = options_.workers};
    workers_.push_back(std::make_unique<Worker>());
    Worker& worker = *workers_.back();
    worker.core = std::make_unique<worker::WorkerCore>(options, Coder(), chance_.Fork(100 + rank));
    worker.observed =
        std::make_unique<ObservedCore>(worker.core.get(), [this, rank](Instant) { Look(rank); });
    worker.host = std::make_unique<SimulatedHost>(
        &network_,
        Address::V4(10, 0, static_cast<uint8_t>(1 + rank / 250), static_cast<uint8_t>(rank % 250 + 1), 9000),
        site, worker.observed.get());
    Random values = chance_.Fork(1000 + rank);
    Random scales(options_.seed);  // the same for every worker
    for (const uint64_t bytes : options_.bytes) {
      TensorState& tensor = worker.tensors.emplace_back();
      tensor.gradient.resize(bytes / sizeof(float));
      tensor.out.resize(tensor.gradient.size());
      double scale = 1;
      for (size_t i = 0; i < tensor.gradient.size(); ++i) {
        // About a chunk each, so that neighbours differ.
        if (i % 352 == 0) scale = std::exp(options_.energy_spread * (scales.Normal() + values.Normal() / 2));
        tensor.gradient[i] = static_cast<float>(scale * (values.Uniform() - 0.5));
      }
    }
    worker.core->SetStateListener([this, rank](worker::WorkerCore::State state) {
      if (state == worker::WorkerCore::State::kStarted) Declare(rank);
    });
  }

  void Declare(uint32_t rank) {
    for (size_t i = 0; i < options_.bytes.size(); ++i) {
      const worker::Declaration declaration{.name = "gradient" + std::to_string(i),
                                            .count = workers_[rank]->tensors[i].gradient.size(),
                                            .optimizer = options_.optimizer};
      workers_[rank]->core->Declare(declaration, [this, rank, i](const Result<worker::TensorHandle>& handle) {
        if (!handle.ok()) {
          result_.failure = handle.status().ToString();
          return;
        }
        workers_[rank]->tensors[i].handle = *handle;
        if (++ready_ == workers_.size() * options_.bytes.size()) StartRound();
      });
    }
  }

  void StartRound() {
    if (done_ == options_.warmup) {
      before_ = Traffic();
      server_times_.Clear();
    }
    running_ = workers_.size() * options_.bytes.size();
    round_begin_ = network_.now() + options_.gap;
    phases_ = {};
    phases_.begin = round_begin_ - Instant();
    phases_.by_tensor.resize(options_.bytes.size());
    network_.Schedule(round_begin_, [this, round = done_] { Sample(round, 0); });
    for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
      const Duration late(
          static_cast<int64_t>(chance_.Uniform() * static_cast<double>(options_.stagger.count())));
      network_.Schedule(round_begin_ + late, [this, rank] { Push(rank); });
    }
  }

  // What entered the links since the last call goes to the step that ends now.
  void Sample(size_t round, size_t step) {
    if (round != done_) return;
    network_.Schedule(round_begin_ + PushPullStep::kLength * static_cast<int64_t>(step + 1),
                      [this, round, step] { Sample(round, step + 1); });
    const wan::LinkModel& up = network_.Link(1, 0);
    const wan::LinkModel& down = network_.Link(0, 1);
    if (round >= options_.warmup && step > 0) {
      if (result_.timeline.size() < step) result_.timeline.resize(step);
      PushPullStep& s = result_.timeline[step - 1];
      ++s.rounds;
      s.up_bytes += up.counters().bytes_in - up_bytes_;
      s.down_bytes += down.counters().bytes_in - down_bytes_;
      s.up_queue += up.QueueDelay(network_.now());
      s.down_queue += down.QueueDelay(network_.now());
    }
    up_bytes_ = up.counters().bytes_in;
    down_bytes_ = down.counters().bytes_in;
  }

  void Push(uint32_t rank) {
    Worker& worker = *workers_[rank];
    for (size_t i = 0; i < worker.tensors.size(); ++i) {
      TensorState& tensor = worker.tensors[i];
      worker.core->PushPull(tensor.handle, tensor.gradient, tensor.out,
                            [this, i](const Status& outcome, const OperationStats& stats) {
                              if (!outcome.ok()) result_.failure = outcome.ToString();
                              if (done_ >= options_.warmup) result_.traffic.chunks += stats.chunks_received;
                              const Duration since = network_.now() - round_begin_;
                              phases_.by_tensor[i] = phases_.ended = since;
                              if (--running_ == 0) EndRound();
                            });
    }
    worker.host->Pump();
  }

  // After every event of a worker.
  void Look(uint32_t rank) {
    Worker& worker = *workers_[rank];
    const ClientStats stats = worker.core->stats();
    const Duration since = network_.now() - round_begin_;
    if (stats.chunk_bytes_sent > worker.sent) phases_.sent = since;
    if (stats.chunk_bytes_received > worker.received) {
      phases_.last_chunk = since;
      if (phases_.first_chunk == Duration(0)) phases_.first_chunk = since;
    }
    worker.sent = stats.chunk_bytes_sent;
    worker.received = stats.chunk_bytes_received;
  }

  void EndRound() {
    // The last event is looked at after its callbacks.
    for (uint32_t rank = 0; rank < workers_.size(); ++rank) Look(rank);
    if (done_ >= options_.warmup) {
      for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
        const ClientStats s = workers_[rank]->core->stats();
        result_.fits.push_back({result_.rounds.size(), rank, std::string(s.fit_state),
                                std::string(s.rate_state), s.fit_floor, s.target_loss, s.fit_capacity});
      }
      result_.rounds.push_back(phases_);
    }
    if (++done_ < options_.warmup + options_.rounds) StartRound();
  }

  PushPullTraffic Traffic() {
    PushPullTraffic t;
    for (const auto& worker : workers_) {
      const ClientStats stats = worker->core->stats();
      t.up_packets += stats.packets_sent;
      t.up_repair += stats.repairs_sent;
      t.up_again += stats.retransmissions;
      t.up_pto += stats.pto_fired;
      t.up_bytes += static_cast<uint64_t>(stats.bytes_sent.value());
    }
    const server::ServerStats stats = server_->stats();
    t.down_packets = stats.traffic.packets_sent;
    t.down_repair = stats.traffic.repairs_sent;
    t.down_again = stats.traffic.retransmissions;
    t.down_bytes = stats.traffic.bytes_sent;
    t.up_arrived = stats.traffic.packets_received;
    const wan::LinkCounters& up = network_.Link(1, 0).counters();
    const wan::LinkCounters& down = network_.Link(0, 1).counters();
    t.up_queue_drops = up.dropped_queue;
    t.down_queue_drops = down.dropped_queue;
    t.longest_up_queue = up.max_queue_delay;
    t.longest_down_queue = down.max_queue_delay;
    return t;
  }

  PushPullOptions options_;
  wan::VirtualNetwork network_;
  Random chance_;
  CallTimes server_times_;
  std::unique_ptr<server::ServerCore> server_;
  std::unique_ptr<TimedCore> timed_server_;
  std::unique_ptr<SimulatedHost> server_host_;
  std::vector<std::unique_ptr<Worker>> workers_;
  size_t ready_ = 0;
  size_t running_ = 0;
  size_t done_ = 0;
  Instant round_begin_;
  PushPullPhases phases_;
  PushPullTraffic before_;
  uint64_t up_bytes_ = 0;
  uint64_t down_bytes_ = 0;
  PushPullResult result_;
};

}  // namespace

Duration FullDuplexFloor(const PushPullOptions& options) {
  const uint64_t bytes = std::accumulate(options.bytes.begin(), options.bytes.end(), uint64_t{0});
  const double wire = kHeaders * static_cast<double>(bytes) * options.workers;
  const double seconds = wire / options.link.rate.bytes_per_second();
  const Duration transfer(static_cast<int64_t>(seconds * 1e9));
  const Duration lossless = transfer + options.link.delay * 2;
  return Duration(static_cast<int64_t>(static_cast<double>(lossless.count()) / (1 - options.link.loss)));
}

PushPullResult RunPushPull(const PushPullOptions& options) { return Rounds(options).Run(); }

}  // namespace longhaul::sim
