// longhaul_wan_bench: longhaul beside the kernel's TCP over the same emulated link, one after the other.
//
// Exit codes: 0 fine, 1 a run failed, 2 usage, 3 no emulated link can be made here.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "base/units_text.h"
#include "bench/wan/forwarder_load.h"
#include "bench/wan/longhaul_flow.h"
#include "bench/wan/protection.h"
#include "bench/wan/report.h"
#include "bench/wan/tcp_flow.h"

namespace longhaul::bench {
namespace {

constexpr int kFailed = 1, kUsage = 2, kNoLink = 3;

std::atomic<bool> g_interrupted{false};

struct Flags {
  std::string rate = "200mbit", rtt = "50ms", queue = "50ms";
  std::vector<std::string> loss = {"0%", "0.1%", "1%", "5%", "10%", "20%"};
  double burst = 0;
  double seconds = 15, warmup = 3, series = 0;
  int repeat = 1;
  std::vector<std::string> controllers = {"tcp-cubic", "tcp-bbr", "tcp-bbr-x4", "longhaul"};
  std::vector<std::string> flow_flags;
  bool untuned = false, incast = false, forwarder = false, insecure = false;
  IncastOptions incast_options;
  std::string json_file, markdown_file;
  uint64_t seed = 1;
};

void AddFlags(CLI::App& app, Flags& f) {
  app.option_defaults()->always_capture_default();
  app.add_option("--rate", f.rate, "of the link, each way");
  app.add_option("--rtt", f.rtt, "round trip without queue");
  app.add_option("--queue", f.queue, "bound of the link's queue as time");
  app.add_option("--loss", f.loss, "list of losses, each way")->delimiter(',');
  app.add_option("--burst", f.burst, "mean length of loss bursts in packets; 0 = independent");
  app.add_option("--seconds", f.seconds, "length of each run")->check(CLI::Range(1.0, 3600.0));
  app.add_option("--warmup", f.warmup, "seconds at its start that do not count, for all alike");
  app.add_option("--repeat", f.repeat, "runs of each; the table has the median")->check(CLI::Range(1, 100));
  app.add_option(
         "--controllers", f.controllers,
         "list of tcp-cubic, tcp-bbr, tcp-bbr-x4 (each also with -stock: the kernel's own buffer bounds), "
         "longhaul, longhaul-bbr, longhaul-cubic (each also with -insecure: not encrypted)")
      ->delimiter(',');
  app.add_option("--flow-flags", f.flow_flags, "more flags for longhaul bench flow")->delimiter(' ');
  app.add_option("--series", f.series,
                 "seconds between points of longhaul's time series in the JSON; 0 = none");
  app.add_flag("--untuned", f.untuned, "paths not tuned for: 20 to 800 Mbit/s, 5 to 200 ms, bursts");
  app.add_flag("--incast", f.incast,
               "a job of N workers that push at the same moment, 200 Mbit/s, RTT 20 ms");
  app.add_option("--workers", f.incast_options.workers, "of --incast")->check(CLI::Range(1, 64));
  app.add_option("--bytes", f.incast_options.bytes, "of --incast: each worker's gradient");
  app.add_option("--rounds", f.incast_options.rounds, "of --incast")->check(CLI::Range(1, 1000));
  app.add_option("--server-flags", f.incast_options.server_flags,
                 "of --incast: more flags for longhaul-server")
      ->delimiter(' ');
  app.add_flag("--forwarder", f.forwarder, "only find out what the emulator itself carries");
  app.add_flag("--insecure", f.insecure,
               "longhaul without encryption; default: under a key that is made for the run");
  app.add_option("--seed", f.seed, "of the link");
  app.add_option("--json", f.json_file, "write everything to this file");
  app.add_option("--markdown", f.markdown_file, "write the tables to this file, not to standard output");
}

Path MakePath(double mbps, int rtt_ms, double loss, double burst = 0) {
  Path path;
  path.mbps = mbps;
  path.rtt = std::chrono::milliseconds(rtt_ms);
  path.loss = loss;
  path.burst = burst;
  return path;
}

std::vector<Path> UntunedPaths() {
  return {MakePath(20, 5, 0),       MakePath(20, 200, 0.01),      MakePath(50, 100, 0.05),
          MakePath(100, 20, 0.001), MakePath(100, 200, 0.01, 10), MakePath(200, 50, 0.05, 10),
          MakePath(400, 20, 0.01),  MakePath(400, 80, 0.01, 10),  MakePath(400, 5, 0.05),
          MakePath(800, 5, 0),      MakePath(800, 50, 0.01)};
}

Result<std::vector<Path>> Paths(const Flags& f) {
  if (f.untuned) return UntunedPaths();
  if (f.incast) return std::vector<Path>{MakePath(200, 20, 0)};
  std::vector<Path> paths;
  const auto rate = ParseRate(f.rate);
  if (!rate.ok()) return rate.status();
  const auto rtt = ParseTime(f.rtt), queue = ParseTime(f.queue);
  if (!rtt.ok()) return rtt.status();
  if (!queue.ok()) return queue.status();
  for (const std::string& text : f.loss) {
    Path path{.mbps = rate->mbps(), .rtt = *rtt, .queue = *queue, .burst = f.burst};
    const auto loss = ParsePercent(text);
    if (!loss.ok()) return loss.status();
    path.loss = *loss;
    if (path.loss == 0) path.burst = 0;
    if (Status s = path.Link().Validate(); !s.ok()) return s;
    paths.push_back(path);
  }
  return paths;
}

Result<std::unique_ptr<wan::TunWan>> Up(const wan::LinkOptions& link, uint64_t seed) {
  wan::TunWan::Options options;
  options.sites = {"A", "B"};
  options.link = link;
  options.seed = seed;
  options.backend = wan::Backend::kTun;  // its counters separate loss from queue
  options.max_packets_in_flight = 1 << 18;
  return wan::TunWan::Up(options);
}

Outcome RunOne(wan::TunWan* wan, const Runner& runner, const Timing& timing, const Flags& f) {
  Outcome outcome;
  outcome.runner = runner.name;
  const LinkWatch watch(wan);
  if (runner.tcp) {
    RunTcp(wan, runner, timing, &outcome);
  } else {
    outcome.protection = ProtectionName(runner.insecure);
    RunLonghaul(wan, runner, timing, f.series, f.flow_flags, &outcome);
  }
  watch.Finish(&outcome);
  return outcome;
}

int Report(const Flags& f, const std::vector<CellResult>& cells, int code) {
  const std::string markdown = ToMarkdown(cells);
  if (f.markdown_file.empty()) {
    std::fputs(markdown.c_str(), stdout);
  } else {
    std::ofstream(f.markdown_file) << markdown;
  }
  if (!f.json_file.empty()) std::ofstream(f.json_file) << ToJson(cells).dump(1) << "\n";
  return g_interrupted ? 130 : code;
}

int Compare(const Flags& f, const std::vector<Path>& paths, const std::vector<Runner>& runners) {
  const auto seconds = [](double s) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
  };
  const Timing timing{.length = seconds(f.seconds), .warmup = seconds(f.warmup)};
  std::vector<CellResult> cells;
  int code = 0;
  for (const Path& path : paths) {
    cells.push_back({path, {}});
    for (int i = 0; i < f.repeat; ++i) {
      // One link for all runners of a repetition, one after the other.
      auto wan = Up(path.Link(), f.seed + static_cast<uint64_t>(i));
      if (!wan.ok()) {
        std::fprintf(stderr, "longhaul_wan_bench: %s\n", wan.status().ToString().c_str());
        return kNoLink;
      }
      for (const Runner& runner : runners) {
        if (g_interrupted) return Report(f, cells, code);
        cells.back().outcomes.push_back(RunOne(wan->get(), runner, timing, f));
        const Outcome& outcome = cells.back().outcomes.back();
        if (!outcome.error.empty()) code = kFailed;
        std::fprintf(stderr, "%s\n", ToLine(path, outcome).c_str());
      }
    }
  }
  return Report(f, cells, code);
}

void PrintIncast(const Outcome& o) {
  std::vector<double> fastest, slowest, ratio;
  for (const auto& round : o.details.value("push_ms", nlohmann::json::array())) {
    const auto [low, high] = std::minmax_element(round.begin(), round.end());
    fastest.push_back(*low);
    slowest.push_back(*high);
    ratio.push_back(slowest.back() / fastest.back());
  }
  if (ratio.empty()) return;
  const auto median = [](std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
  };
  std::printf(
      "queue drops %.2f %% of %llu packets; first round: %.0f (fastest) to %.0f ms (slowest); median of %zu "
      "rounds: %.0f to %.0f ms, slowest / fastest %.2f\n",
      o.link_packets == 0
          ? 0
          : 100.0 * static_cast<double>(o.dropped_queue) / static_cast<double>(o.link_packets),
      static_cast<unsigned long long>(o.link_packets), fastest.front(), slowest.front(), ratio.size(),
      median(fastest), median(slowest), median(ratio));
}

int Incast(const Flags& f, const Path& path) {
  int code = 0;
  std::vector<CellResult> cells = {{path, {}}};
  for (int i = 0; i < f.repeat && !g_interrupted; ++i) {
    auto wan = Up(path.Link(), f.seed + static_cast<uint64_t>(i));
    if (!wan.ok()) {
      std::fprintf(stderr, "longhaul_wan_bench: %s\n", wan.status().ToString().c_str());
      return kNoLink;
    }
    Outcome outcome;
    outcome.runner = "incast x" + std::to_string(f.incast_options.workers) + (f.insecure ? " insecure" : "");
    const LinkWatch watch(wan->get());
    outcome.protection = ProtectionName(f.insecure);
    RunIncast(wan->get(), f.incast_options, &outcome);
    watch.Finish(&outcome);
    if (!outcome.error.empty()) code = kFailed;
    std::fprintf(stderr, "%s\n", ToLine(path, outcome).c_str());
    PrintIncast(outcome);
    cells[0].outcomes.push_back(std::move(outcome));
  }
  return Report(f, cells, code);
}

int ForwarderLoad(const Flags& f) {
  for (const double offered : {100.0, 200.0, 400.0, 800.0, 1600.0, 3200.0, 1e6}) {
    wan::LinkOptions link;
    link.delay = std::chrono::milliseconds(1);
    auto wan = Up(link, f.seed);
    if (!wan.ok()) {
      std::fprintf(stderr, "longhaul_wan_bench: %s\n", wan.status().ToString().c_str());
      return kNoLink;
    }
    Outcome o;
    const LinkWatch watch(wan->get());
    RunForwarderLoad(wan->get(), offered, std::chrono::seconds(3), &o);
    watch.Finish(&o);
    if (!o.error.empty() || g_interrupted) {
      std::fprintf(stderr, "longhaul_wan_bench: %s\n", o.error.c_str());
      return kFailed;
    }
    std::printf(
        "offered %8.0f packets/s, carried %8.0f packets/s = %7.1f Mbit/s, emulator %.2f cores, late p99 "
        "%.2f ms, its own drops %llu\n",
        o.details["offered_per_second"].get<double>(), o.details["packets_per_second"].get<double>(),
        o.details["mbps"].get<double>(), o.forwarder_cpu, o.lateness_p99_ms,
        static_cast<unsigned long long>(o.emulator_drops));
    std::fflush(stdout);
  }
  return 0;
}

int Run(int argc, char** argv) {
  CLI::App app{"longhaul beside the kernel's TCP over the same emulated WAN link (bench/wan/README.md)",
               "longhaul_wan_bench"};
  Flags flags;
  AddFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  const auto paths = Paths(flags);
  if (!paths.ok() || flags.warmup >= flags.seconds) {
    std::fprintf(stderr, "longhaul_wan_bench: %s\n",
                 paths.ok() ? "--warmup is not below --seconds" : paths.status().message().c_str());
    return kUsage;
  }
  flags.incast_options.insecure = flags.insecure;
  std::vector<Runner> runners;
  for (const std::string& name : flags.controllers) {
    const auto runner = ParseRunner(ProtectedRunner(name, flags.insecure));
    if (!runner.ok()) {
      std::fprintf(stderr, "longhaul_wan_bench: %s\n", runner.status().message().c_str());
      return kUsage;
    }
    runners.push_back(*runner);
  }
  signal(SIGINT, [](int) { g_interrupted = true; });
  signal(SIGTERM, [](int) { g_interrupted = true; });
  signal(SIGPIPE, SIG_IGN);
  if (flags.forwarder) return ForwarderLoad(flags);
  if (flags.incast) return Incast(flags, paths->front());
  return Compare(flags, *paths, runners);
}

}  // namespace
}  // namespace longhaul::bench

int main(int argc, char** argv) { return longhaul::bench::Run(argc, argv); }
