// longhaul_longest_event_bench: for how long a worker and a server are away from their sockets while a large
// tensor is declared, pushed, pulled and dropped.
//
//   longhaul_longest_event_bench --bytes 1073741824 --optimizer adam:lr=0.1 --link 'rate 10gbit delay 1ms loss 1%'
//
// One worker and a server in virtual time, one thread; the CPU time (CLOCK_THREAD_CPUTIME_ID) of every call
// into either core. A call that takes long is one in which no ACK is heard and nothing is sent. What both
// free goes back in slices, as in their event loops.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/flags/job_flags.h"
#include "base/pages.h"
#include "base/random.h"
#include "codec/fec/fec.h"
#include "server/server_core.h"
#include "tests/sim/simulated_host.h"
#include "tests/sim/timed_core.h"
#include "tests/sim/virtual_network.h"
#include "wan/link_options.h"
#include "worker/client/worker_core.h"

namespace longhaul::bench {
namespace {

using sim::Call;
using sim::CallTimes;
using sim::TimedCore;

struct Options {
  uint64_t bytes = 256'000'000;
  uint32_t rounds = 2;
  std::string link = "rate 10gbit delay 1ms";
  std::string optimizer = "sgd:lr=0.1";
  bool initial = false;
  bool deterministic = false;
  bool pull = false;
  LossPolicy policy = LossPolicy::kResidual;
  Priority priority = Priority::kEnergy;
  Downlink downlink = Downlink::kReliable;
  double limit_ms = 0;
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), network_({.seed = 1}) {}

  int Run() {
    Result<std::unique_ptr<codec::ErasureCodeLibrary>> coder = codec::ErasureCodeLibrary::Create();
    const Result<wan::LinkOptions> link = wan::ParseLinkOptions(options_.link);
    if (!coder.ok() || !link.ok()) return Report(coder.ok() ? link.status() : coder.status());
    server::ServerCoreOptions settings;
    settings.settings.policy = options_.policy;
    settings.settings.priority = options_.priority;
    settings.settings.downlink = options_.downlink;
    settings.settings.deterministic = options_.deterministic;
    settings.settings.max_model = ByteCount(static_cast<int64_t>(2 * options_.bytes));
    if (const Status s = settings.Validate(); !s.ok()) return Report(s);
    server::ServerCore server(settings, coder->get(), Random(1));
    worker::WorkerCore worker(worker::WorkerCoreOptions(), coder->get(), Random(2));
    TimedCore timed_server(&server, &server_times_, &unmap_), timed(&worker, &times_, &unmap_);
    const auto here = network_.AddSite("worker"), there = network_.AddSite("server");
    network_.SetLinkBothWays(here, there, *link);
    sim::SimulatedHost server_host(&network_, kServer, there, &timed_server);
    sim::SimulatedHost host(&network_, Address::V4(10, 1, 0, 1, 40'000), here, &timed);
    worker.Start(network_.now(), kServer);
    host.Pump();

    const uint64_t count = options_.bytes / sizeof(float);
    std::vector<float> gradient(count), out(count);
    Random random(3);
    for (float& g : gradient) g = static_cast<float>(random.Uniform()) - 0.5f;
    worker::TensorHandle tensor = 0;
    Status status = WaitFor(host, [&](auto done) {
      const std::span<const float> initial =
          options_.initial ? std::span<const float>(gradient) : std::span<const float>();
      worker.Declare({.name = "w", .count = count, .optimizer = options_.optimizer, .initial = initial},
                     [&tensor, done](const Result<worker::TensorHandle>& r) {
                       if (r.ok()) tensor = *r;
                       done(r.status());
                     });
    });
    Show(options_.initial ? "declaration with initial values" : "declaration");
    for (uint32_t round = 0; status.ok() && round < options_.rounds; ++round) {
      status = WaitFor(host, [&](auto done) {
        worker.PushPull(tensor, gradient, out,
                        [done](const Status& outcome, const OperationStats&) { done(outcome); });
      });
      Show("round " + std::to_string(round));
    }
    if (status.ok() && options_.pull) {
      status = WaitFor(host, [&](auto done) {
        worker.Pull(tensor, out, {}, [done](const Status& outcome, const OperationStats&) { done(outcome); });
      });
      Show("pull");
    }
    if (status.ok()) {
      times_.Measure(Call::kRequest, [&] { worker.Leave(); });
      host.Pump();
      while (!worker.finished() && network_.Step()) {
      }
      Show("leaving");
    }
    if (!status.ok()) return Report(status);
    std::printf("longest event: %.3f ms\n", most_ms_);
    return options_.limit_ms > 0 && most_ms_ > options_.limit_ms ? 1 : 0;
  }

 private:
  const Address kServer = Address::V4(10, 0, 0, 1, 7700);

  static int Report(const Status& status) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 2;
  }
  // Makes a request and runs until it has ended.
  template <typename Request>
  Status WaitFor(sim::SimulatedHost& host, Request request) {
    std::optional<Status> outcome;
    const std::function<void(const Status&)> done = [&outcome](const Status& s) { outcome = s; };
    times_.Measure(Call::kRequest, [&] { request(done); });
    host.Pump();
    while (!outcome) {
      if (!network_.Step()) return {StatusCode::kInternal, "nothing happens any more"};
    }
    return *outcome;
  }
  void Show(const std::string& what) {
    std::printf("-- %s\n", what.c_str());
    times_.Print("worker");
    server_times_.Print("server");
    most_ms_ = std::max({most_ms_, times_.MaxMs(), server_times_.MaxMs()});
    times_.Clear();
    server_times_.Clear();
  }

  Options options_;
  wan::VirtualNetwork network_;
  DeferredUnmap unmap_;
  CallTimes times_, server_times_;
  double most_ms_ = 0;
};

}  // namespace
}  // namespace longhaul::bench

int main(int argc, char** argv) {
  longhaul::bench::Options options;
  CLI::App app("CPU time of the longest call into a worker's and a server's core, with a large tensor");
  app.add_option("--bytes", options.bytes, "bytes of the tensor (float32)")
      ->check(CLI::Range(uint64_t{4}, uint64_t{1} << 30));
  app.add_option("--rounds", options.rounds, "rounds of PushPull");
  app.add_option("--link", options.link, "both ways, as in longhaul-wan");
  longhaul::cli::AddEnum(app, "--policy", &options.policy, "loss policy of the job");
  longhaul::cli::AddEnum(app, "--priority", &options.priority, "how chunks are ranked");
  longhaul::cli::AddEnum(app, "--downlink", &options.downlink, "whether results may lose chunks");
  app.add_option("--optimizer", options.optimizer, "of the tensor");
  app.add_flag("--initial", options.initial, "the worker has the first values");
  app.add_flag("--pull", options.pull, "pull the values at the end");
  app.add_flag("--deterministic", options.deterministic, "contributions are summed in order of rank");
  app.add_option("--limit-ms", options.limit_ms, "exit with 1 if a call takes longer");
  CLI11_PARSE(app, argc, argv);
  return longhaul::bench::Bench(options).Run();
}
