#include "bench/load/bench_rounds.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/job_settings.h"
#include "base/process/signal_watcher.h"
#include "base/quantile.h"
#include "base/random.h"
#include "base/units_text.h"
#include "bench/load/bench_flow.h"
#include "longhaul/client.h"
#include "longhaul/server.h"
#include "transport/keys/temporary_key.h"
#include "transport/udp/clock.h"

namespace longhaul::load {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr auto kProgress = std::chrono::seconds(1);
// Values that share a scale: about a chunk of float32.
constexpr size_t kScaleElements = 352;

int Fail(const std::string& what, int code) {
  std::fprintf(stderr, "longhaul bench rounds: %s\n", what.c_str());
  return code;
}

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// What the flags mean, checked.
struct Plan {
  BenchRoundsOptions options;
  std::vector<uint64_t> elements;  // by tensor
  DType wire_dtype = DType::kFloat32, result_dtype = DType::kFloat32;
  Duration gap{0};
  std::vector<uint32_t> ranks;  // that run here
  uint64_t seed = 0;
};

Status Invalid(const std::string& what) { return {StatusCode::kInvalidArgument, what}; }

Result<Plan> MakePlan(const BenchRoundsOptions& o) {
  Plan plan;
  plan.options = o;
  if (!o.join.empty() && !o.SettingOfAnotherServer().empty()) {
    return Invalid(o.SettingOfAnotherServer() +
                   " is the server's to decide: start it with that flag, or leave --join out");
  }
  const auto bytes = ParseBytes(o.bytes);
  if (!bytes.ok()) return Invalid("--bytes: " + bytes.status().message());
  const int64_t count = bytes->value() / 4;
  if (count < o.tensors) return Invalid("--bytes: every tensor needs an element of 4 bytes at least");
  if (bytes->value() > int64_t{1} << 30) return Invalid("--bytes: at most 1 GiB");
  for (uint32_t i = 0; i < o.tensors; ++i) {
    plan.elements.push_back(static_cast<uint64_t>(count * (i + 1) / o.tensors - count * i / o.tensors));
  }
  const auto wire_dtype = ParseDType(o.wire_dtype);
  if (!wire_dtype) return Invalid("--wire-dtype: there is no element type " + o.wire_dtype);
  plan.wire_dtype = *wire_dtype;
  const auto result_dtype = ParseDType(o.result_dtype);
  if (!result_dtype) return Invalid("--result-dtype: there is no element type " + o.result_dtype);
  plan.result_dtype = *result_dtype;
  const auto gap = ParseTime(o.gap);
  if (!gap.ok()) return Invalid("--gap: " + gap.status().message());
  plan.gap = *gap;
  if (o.rank >= 0 && o.join.empty())
    return Invalid("--rank needs --join: the other workers have to find the server");
  if (o.rank >= static_cast<int>(o.workers)) {
    return Invalid("--rank " + std::to_string(o.rank) + " is not below --workers " +
                   std::to_string(o.workers));
  }
  for (uint32_t rank = 0; rank < o.workers; ++rank) {
    if (o.rank < 0 || rank == static_cast<uint32_t>(o.rank)) plan.ranks.push_back(rank);
  }
  plan.seed = o.seed != 0 ? o.seed : udp::EntropySeed();
  return plan;
}

Result<Server> StartServer(const BenchRoundsOptions& o, const std::string& key_file) {
  ServerOptions server;
  server.listen = "127.0.0.1:0";
  server.job = o.job;
  server.workers = o.workers;
  server.key_file = key_file;
  server.insecure = o.insecure;
  server.job_spec = o.job_spec;
  server.job_spec.idle_timeout =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(o.idle_timeout));
  server.datagram_bytes = o.datagram_bytes;
  return Server::Start(server);
}

// Chunks of unequal energy, as gradients have them; which chunks are large is much the same for all workers.
std::vector<float> MakeGradient(uint64_t elements, uint32_t tensor, uint32_t rank, double spread) {
  Random common(1 + tensor);
  Random own(1000 + tensor * 1024 + rank);
  std::vector<float> gradient(elements);
  double scale = 1;
  for (size_t i = 0; i < gradient.size(); ++i) {
    if (i % kScaleElements == 0) scale = std::exp(spread * (common.Normal() + own.Normal() / 2));
    gradient[i] = static_cast<float>(scale * (own.Uniform() - 0.5));
  }
  return gradient;
}

// What all workers of this process share.
class Measurement {
 public:
  explicit Measurement(const Plan& plan)
      : plan_(plan), start_(static_cast<std::ptrdiff_t>(plan.ranks.size()), RoundBegins{this}) {}

  // A worker's thread, from Connect to Leave.
  void Work(uint32_t rank, const std::string& server) {
    const Status status = DoWork(rank, server);
    // The others would wait for this one.
    if (!status.ok()) Stop(Status(status.code(), "rank " + std::to_string(rank) + ": " + status.message()));
    const std::lock_guard lock(mutex_);
    ++workers_over_;
    changed_.notify_all();
  }

  // Everything ends with this.
  void Stop(const Status& why) {
    const std::lock_guard lock(mutex_);  // so long no client goes away
    if (stopped_) return;
    stopped_ = true;
    changed_.notify_all();
    outcome_ = why;
    for (Client* client : clients_) (void)client->Leave(why);
  }

  // Waits for the workers' end, at most this long. True when they have ended.
  bool WaitFor(Clock::duration time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [this] { return workers_over_ == plan_.ranks.size(); });
  }

  bool connected() const { return connected_; }
  Status outcome() const {
    const std::lock_guard lock(mutex_);
    return outcome_;
  }
  std::vector<double> seconds() const {
    const std::lock_guard lock(mutex_);
    return seconds_;
  }
  uint32_t warmup_left() const {
    const std::lock_guard lock(mutex_);
    return plan_.options.warmup - std::min(plan_.options.warmup, rounds_over_);
  }
  json Summary() const;

 private:
  struct RoundBegins {
    Measurement* self;
    void operator()() noexcept { self->begun_ = Clock::now(); }
  };

  Status DoWork(uint32_t rank, const std::string& server) {
    const BenchRoundsOptions& o = plan_.options;
    ConnectOptions connect;
    connect.servers = {server};
    connect.job = o.job;
    connect.rank = rank;
    connect.world_size = o.workers;
    connect.idle_timeout =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(o.idle_timeout));
    connect.connect_timeout =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(o.connect_timeout));
    connect.datagram_bytes = o.datagram_bytes;
    connect.rate_controller = o.rate_controller;
    connect.key_file = o.key_file;
    connect.insecure = o.insecure;
    connect.server_name = o.server_name;
    connect.fault = o.fault;
    connect.seed = plan_.seed + rank;
    auto client = Client::Connect(connect);
    if (!client.ok()) {
      start_.arrive_and_drop();
      return client.status();
    }
    connected_ = true;
    if (!Register(&*client)) {
      start_.arrive_and_drop();
      return client->Leave(outcome());
    }
    Status status = Rounds(*client, rank);
    start_.arrive_and_drop();
    Unregister(&*client);
    if (status.ok()) status = client->Leave();
    return status;
  }

  Status Rounds(Client& client, uint32_t rank) {
    std::vector<Tensor> tensors;
    std::vector<std::vector<float>> gradients;
    std::vector<std::vector<float>> results;
    for (uint32_t i = 0; i < plan_.elements.size(); ++i) {
      gradients.push_back(MakeGradient(plan_.elements[i], i, rank, plan_.options.energy_spread));
      results.emplace_back(plan_.elements[i]);
      TensorOptions options;
      options.count = plan_.elements[i];
      options.priority = static_cast<int>(i);
      options.wire_dtype = plan_.wire_dtype;
      options.result_dtype = plan_.result_dtype;
      if (plan_.options.Says("--high-share")) options.high_share = plan_.options.job_spec.high_share;
      if (plan_.options.Says("--high-energy")) options.high_energy = plan_.options.job_spec.high_energy;
      auto tensor = client.Declare("bench" + std::to_string(i), options);
      if (!tensor.ok()) return tensor.status();
      tensors.push_back(*tensor);
    }
    const uint32_t rounds = plan_.options.warmup + plan_.options.rounds;
    for (uint32_t round = 0; round < rounds; ++round) {
      start_.arrive_and_wait();
      if (rank == plan_.ranks.front() && round == plan_.options.warmup) before_ = client.stats();
      std::vector<Operation> operations;
      for (size_t i = 0; i < tensors.size(); ++i) {
        operations.push_back(client.PushPull(tensors[i], gradients[i], results[i]));
      }
      Status status;
      for (const Operation& operation : operations) {
        if (Status s = operation.Wait(); !s.ok() && status.ok()) status = s;
      }
      if (!status.ok()) return status;
      End(round, client, rank);
      Rest();
    }
    return {};
  }

  // The gap between two rounds, or less when everything ends meanwhile.
  void Rest() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, plan_.gap, [this] { return stopped_; });
  }

  // A worker has its result; the last one ends the round.
  void End(uint32_t round, Client& client, uint32_t rank) {
    const std::lock_guard lock(mutex_);
    if (rank == plan_.ranks.front()) after_ = client.stats();
    if (++ended_ < plan_.ranks.size()) return;
    ended_ = 0;
    ++rounds_over_;
    if (round >= plan_.options.warmup) seconds_.push_back(Seconds(Clock::now() - begun_));
  }

  bool Register(Client* client) {
    const std::lock_guard lock(mutex_);
    if (!stopped_) clients_.push_back(client);
    return !stopped_;
  }
  void Unregister(Client* client) {
    const std::lock_guard lock(mutex_);
    std::erase(clients_, client);
  }

  const Plan& plan_;
  std::barrier<RoundBegins> start_;
  Clock::time_point begun_;  // of the round under way
  std::atomic<bool> connected_ = false;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Client*> clients_;
  bool stopped_ = false;
  Status outcome_;
  size_t workers_over_ = 0;
  size_t ended_ = 0;  // workers that are through with the round under way
  uint32_t rounds_over_ = 0;
  std::vector<double> seconds_;  // of measured rounds
  ClientStats before_;           // of the lowest rank, as the first measured round began
  ClientStats after_;            // and as the latest one ended
};

json Measurement::Summary() const {
  const std::lock_guard lock(mutex_);
  uint64_t elements = 0;
  for (const uint64_t n : plan_.elements) elements += n;
  double all = 0;
  for (const double s : seconds_) all += s;
  const double megabits = static_cast<double>(elements) * 4 * 8e-6 * static_cast<double>(plan_.ranks.size()) *
                          static_cast<double>(seconds_.size());
  json summary = {
      {"seconds_p50", Quantile(seconds_, 0.5)},
      {"seconds_p99", Quantile(seconds_, 0.99)},
      {"seconds_max", Quantile(seconds_, 1)},
      {"rounds", seconds_.size()},
      {"goodput_mbps", all > 0 ? megabits / all : 0},
      {"lost_chunks", after_.round_lost_chunks - before_.round_lost_chunks},
      {"repaired_chunks", after_.round_repaired_chunks - before_.round_repaired_chunks},
      {"filled_chunks", after_.round_filled_chunks - before_.round_filled_chunks},
      {"workers", plan_.options.workers},
      {"workers_here", plan_.ranks.size()},
      {"bytes", elements * 4},
      {"tensors", plan_.elements.size()},
      {"wire_dtype", DTypeName(plan_.wire_dtype)},
      {"result_dtype", DTypeName(plan_.result_dtype)},
      {"chunk_bytes_sent", (after_.chunk_bytes_sent - before_.chunk_bytes_sent).value()},
      {"chunk_bytes_received", (after_.chunk_bytes_received - before_.chunk_bytes_received).value()},
      {"seconds", seconds_},
      {"outcome", StatusCodeName(outcome_.code())},
      {"message", outcome_.message()}};
  // Nothing was measured: the counters are of the warm-up.
  if (seconds_.empty()) summary["lost_chunks"] = summary["repaired_chunks"] = summary["filled_chunks"] = 0;
  return summary;
}

void PrintProgress(const Measurement& measurement, double at) {
  const std::vector<double> seconds = measurement.seconds();
  if (seconds.empty()) {
    const char* what = measurement.connected() ? "warming up" : "connecting";
    std::fprintf(stderr, "%3.0f s  %s, %u rounds to go\n", at, what, measurement.warmup_left());
    return;
  }
  std::fprintf(stderr, "%3.0f s  round %zu  last %.3f s  p50 %.3f s  p99 %.3f s\n", at, seconds.size(),
               seconds.back(), Quantile(seconds, 0.5), Quantile(seconds, 0.99));
}

Status WriteJson(const std::string& file, const json& value) {
  const std::string text = value.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  return file == "-" ? WriteAll(STDOUT_FILENO, text) : WriteFileAtomically(file, text);
}

// Until it has ended, of itself or by a signal.
void Watch(Measurement& measurement, process::SignalWatcher* signals, bool quiet) {
  signals->Guard([&measurement](int) {
    measurement.Stop(Status(StatusCode::kCancelled, "interrupted; measured until then"));
  });
  const auto begun = Clock::now();
  auto next_progress = begun + kProgress;
  while (!measurement.WaitFor(std::chrono::milliseconds(50))) {
    if (Clock::now() < next_progress) continue;
    next_progress += kProgress;
    if (!quiet) PrintProgress(measurement, Seconds(Clock::now() - begun));
  }
}

int Conclude(const BenchRoundsOptions& options, const Measurement& measurement, bool interrupted) {
  const Status outcome = measurement.outcome();
  int code = interrupted ? kBenchInterrupted : 0;
  if (!interrupted && !outcome.ok()) code = measurement.connected() ? kBenchFailed : kBenchUnreachable;
  if (!outcome.ok()) Fail(outcome.ToString(), code);
  const json summary = measurement.Summary();
  if (!options.quiet && summary["rounds"] > 0) {
    std::fprintf(stderr, "%llu rounds: p50 %.3f s, p99 %.3f s, max %.3f s; goodput %.1f Mbit/s\n",
                 summary["rounds"].get<unsigned long long>(), summary["seconds_p50"].get<double>(),
                 summary["seconds_p99"].get<double>(), summary["seconds_max"].get<double>(),
                 summary["goodput_mbps"].get<double>());
  }
  if (options.json_file.empty()) return code;
  if (const Status written = WriteJson(options.json_file, summary); !written.ok()) {
    code = std::max(code, Fail("--json: " + written.message(), kBenchFailed));
  }
  return code;
}

}  // namespace

std::string BenchRoundsOptions::SettingOfAnotherServer() const {
  for (const JobSetting& setting : JobSettings()) {
    const bool of_workers = setting.name == "high_share" || setting.name == "high_energy";
    if (!of_workers && Says(setting.Flag())) return setting.Flag();
  }
  return "";
}

int RunBenchRounds(const BenchRoundsOptions& options) {
  auto plan = MakePlan(options);
  if (!plan.ok()) return Fail(plan.status().message(), kBenchUsage);
  // Found out now, not at the end of the run.
  if (options.json_file != "-") {
    if (Status file = PrepareResultFile(options.json_file); !file.ok()) {
      return Fail("--json: " + file.message(), kBenchUsage);
    }
  }
  if (!options.join.empty() && !options.insecure && options.key_file.empty()) {
    return Fail("which key does the server have? --key FILE, or --insecure when it has none", kBenchUsage);
  }
  process::SignalWatcher signals;  // before the first thread
  std::optional<keys::TemporaryKey> own_key;
  if (!options.insecure && options.key_file.empty()) {  // both ends are here
    auto made = keys::TemporaryKey::Make(options.job.empty() ? "bench" : options.job);
    if (!made.ok()) return Fail(made.status().message(), kBenchFailed);
    own_key.emplace(*std::move(made));
    plan->options.key_file = own_key->path();
  }
  std::optional<Server> server;
  std::string address = options.join;
  if (address.empty()) {
    auto own = StartServer(options, plan->options.key_file);
    if (!own.ok()) {
      const bool usage = own.status().code() == StatusCode::kInvalidArgument;
      return Fail(own.status().message(), usage ? kBenchUsage : kBenchFailed);
    }
    server.emplace(std::move(*own));
    address = server->address();
  }
  Measurement measurement(*plan);
  std::vector<std::thread> threads;
  for (const uint32_t rank : plan->ranks) {
    threads.emplace_back([&measurement, &address, rank] { measurement.Work(rank, address); });
  }
  Watch(measurement, &signals, options.quiet);
  for (std::thread& thread : threads) thread.join();
  signals.Guard({});
  return Conclude(options, measurement, signals.interrupted());
}

}  // namespace longhaul::load
